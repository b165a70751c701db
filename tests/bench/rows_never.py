"""Rows where the promise is "never slower", and what an idle connection costs."""

import os
import resource

from machine import Quota
from proc import Failed
from row import from_hist, latency, ratio, row, sleep
from rows_core import bulk, ping
from stats import Metric

CONN_RATE = [ratio("ops_s", "1/s", "high", 0.95, "connections")]


def short(mode, closer, *client_args, rounds=1):
    def run(c):
        n = (3000 if c.quick else 10000) // max(1, rounds // 8)
        srv, port = c.server("mode=%s" % mode, "closer=%s" % closer)
        cli = c.start(["short", "port=%d" % port, "n=%d" % n, "closer=%s" % closer, "rounds=%d" % rounds, *client_args])
        return from_hist(cli.json())

    return run


for _name, _text, _fn, _pairs in (
    ("short", "one after the other", short("block", "client"), 5),
    ("short_srvclose", "server closes first", short("block", "server"), 5),
    ("short_threads", "8 client threads, epoll server", short("epoll", "client", "pattern=threads"), 5),
    ("short_16", "16 round trips each", short("block", "client", rounds=16), 3),
    ("short_16_threads", "16 round trips each, 8 client threads, epoll server", short("epoll", "client", "pattern=threads", rounds=16), 3),
    ("short_64", "64 round trips each", short("epoll", "client", rounds=64), 1),
    ("short_256", "256 round trips each", short("epoll", "client", rounds=256), 1),
    ("short_epoll", "32 at once, epoll at both ends", short("epoll", "client", "pattern=epoll", "par=32"), 5),
):
    row(_name, "short connections, " + _text, CONN_RATE, off_tcp=False, group="short", pairs=_pairs)(_fn)


@row(
    "startup",
    "start-up of a program that opens no socket (/bin/true)",
    [Metric("ms", "ms", "low", ("delta", 0.3), "spawn to exit")],
    off_tcp=False,
    group="never",
)
def startup(c):
    n = 100 if c.quick else 400
    lib = c.env.lib if c.accel and c.env.lib else ""
    r = c.start(["spawnloop", "n=%d" % n, "lib=%s" % lib], accel=False).json()
    return {"ms": r["with_ns"] / 1e6}


@row("threads", "4 threads write, 4 threads read one socket, 64 B", [ratio("msg_s", "1/s", "high", 0.95)], group="never")
def threads(c):
    extra = "secs=%g" % c.secs
    rx = c.start(["threads", "role=recv", extra])
    tx = c.start(["threads", "role=send", extra, "port=%d" % rx.ready_port()])
    r = rx.json()
    tx.result()
    return {"msg_s": r["bytes"] / 64 / r["secs"], "_all": r["payload"]}


@row("workers", "8 client processes, 4 worker processes, epoll", [ratio("ops_s", "1/s", "high", 0.95)] + latency(), group="never")
def workers(c):
    srv, port = c.server("mode=epoll", "workers=4", "maxconn=2")
    clients = [c.start(["pingpong", "port=%d" % port, "secs=%g" % c.secs]) for _ in range(8)]
    results = [from_hist(p.json()) for p in clients]
    out = {k: sum(r[k] for r in results) for k in ("ops_s", "_all", "_ops")}
    out["p50_us"] = sum(r["p50_us"] for r in results) / len(results)
    out["p99_us"] = max(r["p99_us"] for r in results)
    return out


@row("plain_server", "accelerated client, plain server", latency(0.95), off_tcp=False, group="never", pairs=3)
def plain_server(c):
    srv, port = c.server("mode=block", accel=False)
    return from_hist(c.start(["pingpong", "port=%d" % port, "secs=%g" % c.secs]).json())


@row("plain_client", "plain client, accelerated server", latency(0.95), off_tcp=False, group="never", pairs=3)
def plain_client(c):
    srv, port = c.server("mode=block")
    return from_hist(c.start(["pingpong", "port=%d" % port, "secs=%g" % c.secs], accel=False).json())


def pipeio(what):
    def run(c):
        # the best of a few short processes: their placement in memory is worth more than 3 %
        n = 100000 if c.quick else 300000
        runs = [c.start(["pipeio", "what=%s" % what, "n=%d" % n]).json()["ns_per_call"] for _ in range(5)]
        return {"ns": min(runs)}

    return run


for _what, _text in (("pipe", "a pipe"), ("file", "a file"), ("null", "/dev/null and /dev/zero")):
    _m = [ratio("ns", "ns", "low", 0.97, "per call")]
    row("io_" + _what, "64 B read and write on " + _text, _m, off_tcp=False, group="io")(pipeio(_what))


def in_quota(c, fn):
    q = Quota(20)
    if not q.path:
        raise Failed("no cgroup with a CPU quota can be made here")
    try:
        r = fn(q.path)
        c.stop_all()
        return r
    finally:
        c.stop_all()
        q.close()


def no_quota(env):
    q = Quota(20)
    if not q.path:
        return "no cgroup with a CPU quota can be made here"
    q.close()
    return None


@row("quota_pingpong", "ping-pong, both ends in a cgroup with 20 % of a processor", [ratio("ops_s", "1/s", "high", 0.95)],
     setup=no_quota, group="never")
def quota_pingpong(c):
    c.secs = max(1.0, c.secs)
    return in_quota(c, lambda path: ping(c, cgroup=path))


@row("quota_stream", "64 KiB streaming, both ends in a cgroup with 20 % of a processor", [ratio("gb_s", "GB/s", "high", 0.95)],
     setup=no_quota, group="never")
def quota_stream(c):
    c.secs = max(1.0, c.secs)
    return in_quota(c, lambda path: bulk(c, cgroup=path))


def memory_kib(pid):
    """RSS, and PSS without that of files: a process's share of libc's pages changes when another program starts or ends."""
    rss = pss = 0
    with open("/proc/%d/smaps_rollup" % pid) as f:
        for ln in f:
            if ln.startswith("Rss:"):
                rss = int(ln.split()[1])
            elif ln.startswith(("Pss_Anon:", "Pss_Shmem:")):
                pss += int(ln.split()[1])
    return rss, pss


def activity(pid):
    """CPU ticks and context switches of all threads of a process, so far."""
    ticks = switches = 0
    for t in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/stat" % (pid, t)) as f:
            v = f.read().rsplit(")", 1)[1].split()
        ticks += int(v[11]) + int(v[12])
        with open("/proc/%d/task/%s/status" % (pid, t)) as f:
            switches += sum(int(ln.split()[1]) for ln in f if "ctxt_switches" in ln)
    return ticks, switches


def idle(conns):
    def run(c):
        srv, port = c.server("mode=epoll")
        cli = c.start(["many", "port=%d" % port, "conns=%d" % conns, "hold=1"], stdin=True, deadline=120)
        setup_ns = int(cli.line("settled "))
        both = (srv.pid, cli.pid)
        sleep(2 if c.quick else 5)  # rings may shrink and hot connections cool down
        rss, pss = (sum(v) for v in zip(*(memory_kib(p) for p in both)))
        before = [activity(p) for p in both]
        sleep(3 if c.quick else 10)
        after = [activity(p) for p in both]
        fds = sum(len(os.listdir("/proc/%d/fd" % p)) for p in both)
        cli.p.stdin.close()
        cli.result()
        return {
            "rss_kib": rss / conns,
            "pss_kib": pss / conns,
            "fds": fds / conns,
            "setup_us": setup_ns / 1000.0 / conns,
            "ticks": sum(a[0] - b[0] for a, b in zip(after, before)),
            "switches": sum(a[1] - b[1] for a, b in zip(after, before)),
            "_all": conns * 20,
        }

    return run


IDLE = [
    Metric("rss_kib", "KiB", "low", ("delta", 8), "RSS of both ends per connection"),
    Metric("pss_kib", "KiB", "low", None, "PSS of both ends per connection"),
    Metric("fds", "", "low", ("delta", 0.05), "open files of both ends per connection"),
    Metric("setup_us", "us", "low", None, "set-up and 20 rounds, per connection"),
    Metric("ticks", "ticks", "low", ("max", 0), "CPU ticks while idle"),
    Metric("switches", "", "low", ("max", 0), "context switches while idle"),
]


def enough_files(conns):
    def check(_env):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return None if hard >= conns + 100 else "the limit of open files is %d" % hard

    return check


# Off TCP: 20 rounds, of which the first 8 come before the switch, and the proofs are payload too.
row("idle10000", "10,000 idle connections", IDLE, off_tcp=0.2, setup=enough_files(10000), group="idle")(idle(10000))
row("idle1000", "1,000 idle connections", IDLE, off_tcp=0.2, group="idle")(idle(1000))
