"""What a row of the bench is, and the helpers that rows share."""

import os
import shutil
import time

from proc import Proc
from stats import Metric, quantile

ROWS = {}


class Row:
    def __init__(self, name, title, run, metrics, needs, off_tcp, setup, group, pairs):
        self.name, self.title, self.run, self.metrics = name, title, run, metrics
        self.pairs = pairs  # times as many repetitions, where the ratio is so near its goal that a few don't show it
        self.needs = needs  # programs without which the row is skipped
        self.off_tcp = 0.95 if off_tcp is True else off_tcp or 0.0  # least share of payload expected off TCP
        self.setup = setup  # makes shared state once; None or a text that says why the row is skipped
        self.group = group

    def why_not(self):
        for n in self.needs:
            if not which(n):
                return "%s is not installed" % n
        return None


def row(name, title, metrics, needs=(), off_tcp=True, setup=None, group="", pairs=1):
    def add(fn):
        ROWS[name] = Row(name, title, fn, metrics, needs, off_tcp, setup, group, pairs)
        return fn

    return add


def which(name):
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return shutil.which(name, path=path)


def ratio(key, unit, better, goal=None, title=None, pooled=None):
    return Metric(key, unit, better, ("ratio", goal) if goal else None, title, pooled)


def latency(p50=None, p99=None, pooled=False):
    q = (0.5, 0.99) if pooled else (None, None)
    return [ratio("p50_us", "us", "low", p50, "p50", q[0]), ratio("p99_us", "us", "low", p99, "p99", q[1])]


class Ctx:
    """One sample: which side it is, how long it may take, and the processes it started."""

    def __init__(self, env, accel, quick, secs):
        self.env, self.accel, self.quick, self.secs = env, accel, quick, secs
        self.procs = []

    def start(self, argv, accel=None, **kw):
        argv = [str(a) for a in argv]
        if "/" not in argv[0]:
            own = self.env.prog(argv[0])
            argv[0] = own if os.path.exists(own) else which(argv[0]) or argv[0]
        kw.setdefault("deadline", 20 + 6 * self.secs)
        p = Proc(self.env, argv, accel=self.accel if accel is None else accel, **kw)
        self.procs.append(p)
        return p

    def server(self, *args, **kw):
        p = self.start(["server", *args], **kw)
        return p, p.ready_port()

    def stop_all(self):
        for p in reversed(self.procs):
            p.stop()

    def usage(self):
        """CPU seconds and voluntary context switches of all processes of the sample."""
        return sum(p.cpu_s() for p in self.procs), sum(p.switches() for p in self.procs)


def from_hist(r):
    """A sample from the result line of a C program with a histogram in ns."""
    out = {"ops_s": r["ops"] / r["secs"], "_all": r.get("all_ops", r["ops"]), "_ops": r["ops"]}
    if r.get("hist"):
        out["p50_us"] = quantile(r["hist"], 0.5) / 1000.0
        out["p99_us"] = quantile(r["hist"], 0.99) / 1000.0
        out["_hist"] = r["hist"]
    if "in_vain" in r:
        out["in_vain"] = r["in_vain"]
    if r.get("cpu_ns"):
        out["cpu_us_op"] = r["cpu_ns"] / 1000.0 / r["ops"]
    return out


def sleep(seconds):
    time.sleep(seconds)
