"""Counts that noise cannot hide: system calls from strace -c, user-space instructions from callgrind.

Each count is the difference between two run lengths, so that start-up is not in it."""

import os
import re
import signal

from proc import Failed, free_port, wait_listening
from row import row, which
from rows_programs import redis_rate
from stats import Metric


def strace_table(path):
    """{system call: number} from the file of `strace -c`."""
    calls = {}
    with open(path) as f:
        for ln in f:
            v = ln.split()
            if len(v) >= 5 and v[0][0].isdigit() and v[-1] != "total":
                calls[v[-1]] = calls.get(v[-1], 0) + int(v[3])
    os.unlink(path)
    return calls


def traced(c, prog, *args):
    """Start a program of ours under strace -f -c, which is not preloaded itself."""
    out = os.path.join(c.env.workdir, "strace-%d-%d" % (os.getpid(), len(c.procs)))
    argv = ["strace", "-f", "-c", "-o", out]
    if c.accel and c.env.lib:
        argv += ["-E", "LD_PRELOAD=" + c.env.lib]
    p = c.start(argv + [c.env.prog(prog), *args], accel=False, deadline=120)
    p.table = out
    return p


def calls_of(c, server_args, client):
    """System calls of both ends together, by name."""
    srv = traced(c, "server", "mode=block", *server_args)
    cli = traced(c, client[0], "port=%d" % srv.ready_port(), *client[1:])
    cli.result()
    srv.result()
    out = {}
    for p in (srv, cli):
        for k, v in strace_table(p.table).items():
            out[k] = out.get(k, 0) + v
    return out


def per_op(few, lots, ops):
    return {k: (lots.get(k, 0) - few.get(k, 0)) / ops for k in sorted(set(few) | set(lots)) if lots.get(k, 0) != few.get(k, 0)}


def spread(c, make, n1, n2):
    calls = per_op(make(n1), make(n2), n2 - n1)
    detail = {k: round(v, 3) for k, v in calls.items() if abs(v) >= 0.001}
    # a shorter run may by chance have more of the calls that depend on time
    return {"calls": max(0.0, round(sum(calls.values()), 3)), "_detail": detail}


CALLS = "system calls of both ends"


@row("calls_short", "system calls per short connection", [Metric("calls", "", "low", ("delta", 0), CALLS)],
     ("strace",), off_tcp=False, group="counts")
def calls_short(c):
    def make(n):
        return calls_of(c, ["serve=%d" % n], ["short", "n=%d" % n, "warm=0"])

    return spread(c, make, 100, 600)


@row("calls_pingpong", "system calls per 64 B round trip", [Metric("calls", "", "low", ("delta", 0), CALLS)],
     ("strace",), off_tcp=False, group="counts")
def calls_pingpong(c):
    def make(n):
        return calls_of(c, ["serve=1"], ["pingpong", "n=%d" % n])

    return spread(c, make, 2000, 12000)


def calls_of_pair(mode):
    """Both ends in one thread: nothing waits, so nothing but the calls themselves is counted."""
    def run(c):
        def make(n):
            p = traced(c, "pair", "mode=" + mode, "n=%d" % n)
            p.result()
            return strace_table(p.table)

        return spread(c, make, 4000, 24000)

    return run


PAIR = [Metric("calls", "", "low", ("max", 0.1), "system calls")]
row("calls_sendrecv", "system calls per two sends and two receives that find data", PAIR, ("strace",), off_tcp=False, group="counts")(calls_of_pair("sendrecv"))
row("calls_epoll", "the same with an epoll_wait before each receive", PAIR, ("strace",), off_tcp=False, group="counts")(calls_of_pair("epoll"))


@row("calls_start", "system calls of /bin/true", [Metric("calls", "", "low", None, "in all")], ("strace",), off_tcp=False, group="counts")
def calls_start(c):
    p = traced(c, "/bin/true")
    p.result()
    t = strace_table(p.table)
    return {"calls": sum(t.values()), "_detail": t}


def under_callgrind(c, *argv):
    out = os.path.join(c.env.workdir, "callgrind-%d" % os.getpid())
    return c.start(["valgrind", "--tool=callgrind", "--callgrind-out-file=" + out, *argv], deadline=180)


def instructions(c, prog, *args):
    p = under_callgrind(c, c.env.prog(prog), *args)
    p.result()
    return collected(p)


def collected(p):
    m = re.search(r"Collected : (\d+)", p.errors())
    if not m:
        raise Failed("callgrind printed no count: %s" % p.errors())
    return int(m.group(1))


def per_round(c, divisor, n1, n2, *args):
    few = instructions(c, *args, "n=%d" % n1)
    lots = instructions(c, *args, "n=%d" % n2)
    return {"instructions": (lots - few) / (n2 - n1) / divisor}


def counted(name, title, *args, divisor=2, n=(1000, 4000), goal=None):
    m = [Metric("instructions", "", "low", goal, "instructions in user space")]
    row(name, title, m, ("valgrind",), off_tcp=False, group="counts")(lambda c: per_round(c, divisor, n[0], n[1], *args))


counted("instr_sendrecv", "one 64 B send and one recv", "pair", "mode=sendrecv")
counted("instr_short", "one short connection, both ends", "pair", "mode=short", "warm=200", divisor=1, n=(500, 1500))
counted("instr_epoll", "one send, epoll_wait with one ready, recv", "pair", "mode=epoll")
counted("instr_epoll100", "the same with 200 registered", "pair", "mode=epoll", "conns=100")
counted("instr_pipe", "one read or write on a pipe", "pipeio", "what=pipe", divisor=1.1, n=(10000, 40000))


@row("instr_start", "start of /bin/true", [Metric("instructions", "", "low", None, "instructions in all")],
     ("valgrind",), off_tcp=False, group="counts")
def instr_start(c):
    return {"instructions": instructions(c, which("true") or "/bin/true")}


@row("instr_redis", "redis-server, one GET of redis-benchmark -c 50", [Metric("instructions", "", "low", None, "instructions in user space")],
     ("valgrind", "redis-server", "redis-benchmark"), off_tcp=False, group="counts")
def instr_redis(c):
    """The server's own work for a request, which no path of the data can take away."""
    def total(n):
        port = free_port()
        srv = under_callgrind(c, "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
        wait_listening(srv, port)
        redis_rate(c, port, 50, "get", n)
        os.kill(srv.pid, signal.SIGTERM)
        srv.result()
        return collected(srv)

    # What it polls before it has work is in neither count as far as it is in the smaller one of two.
    few, lots = (min(total(n), total(n)) for n in (4000, 16000))
    if lots <= few:
        raise Failed("polling outweighs the work: %d and %d instructions" % (few, lots))
    return {"instructions": (lots - few) / 12000}
