"""Counts that noise cannot hide: system calls from strace -c, user-space instructions from callgrind.

Each count is the difference between two run lengths, so that start-up is not in it. What the library adds has a limit
in limits.py: a change that makes a call dearer is seen on any machine.

What is not counted, and why: instructions of programs whose ends wait for each other (two threads, an accelerated end
and a plain one, several threads on one socket), as a wait polls for a time and not for a number of rounds. There the
system calls that did something are held instead, and of the instructions those of `pair`, where nothing waits."""

import os
import re
import signal

from limits import added
from proc import Failed, free_port, wait_listening
from row import row, which
from rows_programs import redis_rate
from stats import Metric

# Calls whose number says how often something waited or was woken, not what was done.
WAITS = {"epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6", "futex", "sched_yield", "restart_syscall",
         "nanosleep", "clock_nanosleep"}
# And those that move bytes or ring, whose number over a switched connection depends on the waits as well.
DATA = {"sendto", "recvfrom", "sendmsg", "recvmsg", "read", "write", "rt_sigprocmask"}


def strace_table(path):
    """{system call: (number, how many of them failed)} from the file of `strace -c`."""
    calls = {}
    with open(path) as f:
        for ln in f:
            v = ln.split()
            if len(v) >= 5 and v[0][0].isdigit() and v[-1] != "total":
                n, bad = calls.get(v[-1], (0, 0))
                calls[v[-1]] = (n + int(v[3]), bad + (int(v[4]) if len(v) > 5 else 0))
    os.unlink(path)
    return calls


def traced(c, prog, *args, accel=None):
    """Start a program of ours under strace -f -c, which is not preloaded itself."""
    out = os.path.join(c.env.workdir, "strace-%d-%d" % (os.getpid(), len(c.procs)))
    argv = ["strace", "-f", "-c", "-o", out]
    if (c.accel if accel is None else accel) and c.env.lib:
        argv += ["-E", "LD_PRELOAD=" + c.env.lib]
    p = c.start(argv + [c.env.prog(prog), *args], accel=False, deadline=120)
    p.table = out
    return p


def calls_of(c, server, client, plain=None):
    """System calls of both ends together, by name; `plain` is the end without the library."""
    srv = traced(c, *server, accel=False if plain == "server" else None)
    cli = traced(c, client[0], "port=%d" % srv.ready_port(), *client[1:], accel=False if plain == "client" else None)
    cli.result()
    srv.result()
    out = {}
    for p in (srv, cli):
        for k, v in strace_table(p.table).items():
            n, bad = out.get(k, (0, 0))
            out[k] = (n + v[0], bad + v[1])
    return out


def spread(make, n1, n2, scale=1):
    """A sample from the tables of two run lengths: per operation all calls, and those that did something."""
    few, lots = make(n1), make(n2)
    ops = (n2 - n1) * scale
    per = {k: [(b - a) / ops for a, b in zip(few.get(k, (0, 0)), lots.get(k, (0, 0)))] for k in set(few) | set(lots)}
    work = {k: n if k == "connect" else n - bad for k, (n, bad) in per.items() if k not in WAITS}
    # a shorter run may by chance have more of the calls that depend on time
    return {
        "calls": max(0.0, round(sum(n for n, _ in per.values()), 3)),
        "work": max(0.0, round(sum(work.values()), 3)),
        "setup": max(0.0, round(sum(n for k, n in work.items() if k not in DATA), 3)),
        "_detail": {k: round(n, 3) for k, (n, _) in sorted(per.items()) if abs(n) >= 0.001},
    }


CALLS = "system calls of both ends"
WORK = "those that neither wait nor fail"
NO_MORE = [Metric("calls", "", "low", ("delta", 0.02), CALLS, text="no more")]
# Where the number of waits depends on what the scheduler does: calls that do something have the goal.
NO_MORE_WORK = [Metric("calls", "", "low", None, CALLS), Metric("work", "", "low", ("delta", 0.05), WORK, text="no more")]
# What the switch to memory costs a connection in calls, which it has back after so many rounds: a limit, not "no more".
SWITCH = [Metric("calls", "", "low", None, CALLS), Metric("setup", "", "low", added("calls_short_64"), "those that make, ask or end something")]
# A connection that lives long enough, as it may under a tracer, asks for its peer once.
ONE_QUESTION = [Metric("calls", "", "low", None, CALLS), Metric("work", "", "low", ("delta", 1), WORK)]


def counted_calls(name, title, make, n, metrics=NO_MORE_WORK, scale=1):
    """`make(c, n)` gives a table of calls."""
    def run(c):
        return spread(lambda k: make(c, k), *n, scale=scale)

    row(name, title, metrics, ("strace",), off_tcp=False, group="counts")(run)


def short_calls(mode, *args, closer="client", warm=0):
    def make(c, n):
        server = ["server", "mode=" + mode, "serve=%d" % n, "closer=" + closer]
        return calls_of(c, server, ["short", "n=%d" % n, "warm=%d" % warm, "closer=" + closer, *args])

    return make


counted_calls("calls_short", "system calls per short connection", short_calls("block"), (100, 600), NO_MORE)
counted_calls("calls_short_srvclose", "the same, server closes first", short_calls("block", closer="server"), (100, 600), NO_MORE)
counted_calls("calls_short_threads", "the same, 8 client threads, epoll server", short_calls("epoll", "pattern=threads"), (96, 576))
counted_calls("calls_short_epoll", "the same, 32 at once, epoll at both ends", short_calls("epoll", "pattern=epoll", "par=32"), (96, 576))
counted_calls("calls_short_16", "the same, 16 round trips each", short_calls("block", "rounds=16"), (50, 250), ONE_QUESTION)
counted_calls("calls_short_16_threads", "the same, 16 round trips each, 8 client threads, epoll server",
              short_calls("epoll", "rounds=16", "pattern=threads"), (48, 240), ONE_QUESTION)
counted_calls("calls_short_64", "the same, 64 round trips each", short_calls("epoll", "rounds=64"), (25, 100), SWITCH)


def pingpong_calls(plain=None):
    def make(c, n):
        return calls_of(c, ["server", "mode=block", "serve=1"], ["pingpong", "n=%d" % n], plain)

    return make


# Where both ends find no time to poll (a tracer, busy neighbours), a round trip is two rings and two sleeps: as many calls
# that do something as TCP's, and the waits on top, which TCP has inside recv.
counted_calls("calls_pingpong", "system calls per 64 B round trip", pingpong_calls(), (2000, 12000))
# A connection that carries traffic asks for its peer again every 50 ms at most, which is nothing without a tracer.
FEW_MORE = [Metric("calls", "", "low", ("delta", 0.1), CALLS)]
counted_calls("calls_plain_server", "the same, accelerated client, plain server", pingpong_calls("server"), (2000, 6000), FEW_MORE)
counted_calls("calls_plain_client", "the same, plain client, accelerated server", pingpong_calls("client"), (2000, 6000), FEW_MORE)


def stream_calls(*args, both=False):
    def make(c, n):
        more = ["n=%d" % n, "both=%d" % both, *args]
        return calls_of(c, ["stream", "role=recv", *more], ["stream", "role=send", *more])

    return make


# How much a recv finds depends on the scheduler, on TCP as well.
counted_calls("calls_stream", "system calls per 64 KiB written and read", stream_calls(), (2000, 8000))
counted_calls("calls_duplex", "the same, both directions at once", stream_calls(both=True), (2000, 8000), scale=2)
counted_calls("calls_byte1", "system calls per 1 B write without NODELAY", stream_calls("size=1", "nodelay=0"), (20000, 60000))


def threads_calls(c, n):
    return calls_of(c, ["threads", "role=recv", "n=%d" % n], ["threads", "role=send", "n=%d" % n])


counted_calls("calls_threads", "system calls per 64 B message, 4 threads write, 4 read one socket", threads_calls, (5000, 15000), scale=4)


def calls_alone(*args):
    """Both ends in one thread, or no socket: nothing waits, so nothing but the calls themselves is counted."""
    def make(c, n):
        p = traced(c, *args, "n=%d" % n)
        p.result()
        return strace_table(p.table)

    return make


PAIR = [Metric("calls", "", "low", ("max", 0.1), "system calls")]
SAME = [Metric("calls", "", "low", ("delta", 0.001), "system calls", text="no more")]
counted_calls("calls_sendrecv", "system calls per two sends and two receives that find data", calls_alone("pair", "mode=sendrecv"), (4000, 24000), PAIR)
counted_calls("calls_epoll", "the same with an epoll_wait before each receive", calls_alone("pair", "mode=epoll"), (4000, 24000), PAIR)
for _what, _text in (("pipe", "a pipe"), ("file", "a file"), ("null", "/dev/null and /dev/zero")):
    counted_calls("calls_" + _what, "system calls per read or write on " + _text, calls_alone("pipeio", "what=" + _what), (10000, 40000), SAME, 1.1)


@row("calls_start", "system calls of /bin/true", [Metric("calls", "", "low", added("calls_start"), "in all")], ("strace",), off_tcp=False, group="counts")
def calls_start(c):
    p = traced(c, "/bin/true")
    p.result()
    t = {k: n for k, (n, _) in strace_table(p.table).items()}
    return {"calls": sum(t.values()), "_detail": t}


def under_callgrind(c, *argv, inside=None):
    """`inside`: a function; what it and all below it execute is counted."""
    out = os.path.join(c.env.workdir, "callgrind-%d" % os.getpid())
    only = ["--toggle-collect=" + inside] if inside else []
    return c.start(["valgrind", "--tool=callgrind", "--callgrind-out-file=" + out, *only, *argv], deadline=180)


def instructions(c, prog, *args, inside=None):
    p = under_callgrind(c, c.env.prog(prog), *args, inside=inside)
    p.result()
    return collected(p)


def collected(p):
    m = re.search(r"Collected : (\d+)", p.errors())
    if not m:
        raise Failed("callgrind printed no count: %s" % p.errors())
    return int(m.group(1))


def counted(name, title, *args, divisor=2, n=(1000, 4000), inside=None):
    def run(c):
        # What it does after so many microseconds is more where the machine is slow: the smaller count of two.
        few, lots = (min(instructions(c, *args, "n=%d" % k, inside=inside) for _ in range(1 + c.accel)) for k in n)
        return {"instructions": (lots - few) / (n[1] - n[0]) / divisor}

    m = [Metric("instructions", "", "low", added(name), "instructions in user space")]
    row(name, title, m, ("valgrind",), off_tcp=False, group="counts")(run)


for _call, _mode in (("send", "sendrecv"), ("recv", "sendrecv"), ("epoll_wait", "epoll")):
    counted("instr_" + _call, "one %s" % {"send": "64 B send", "recv": "64 B recv that finds data", "epoll_wait": "epoll_wait with one ready"}[_call],
            "pair", "mode=" + _mode, inside=_call)
counted("instr_sendrecv", "one 64 B send and one recv", "pair", "mode=sendrecv")
counted("instr_epoll", "one send, epoll_wait with one ready, recv", "pair", "mode=epoll")
counted("instr_epoll100", "the same with 200 registered", "pair", "mode=epoll", "conns=100")
counted("instr_epoll1000", "the same with 2,000 registered", "pair", "mode=epoll", "conns=1000")
counted("instr_64k", "one 64 KiB send and one recv", "pair", "mode=sendrecv", "size=65536", "warm=100", n=(100, 300))
counted("instr_duplex", "the same in both directions at once", "pair", "mode=duplex", "size=65536", "warm=100", n=(100, 300))
counted("instr_byte1", "one 1 B write without NODELAY, one recv for each 64", "pair", "mode=byte1", "warm=40", divisor=128, n=(20, 80))

# A connection in one thread has no more than this: neither locks that others hold, nor waits.
SHORT = dict(divisor=1, n=(500, 1500))
counted("instr_short", "one short connection, both ends", "pair", "mode=short", "warm=200", **SHORT)
counted("instr_short_srvclose", "the same, server closes first", "pair", "mode=short", "warm=200", "closer=server", **SHORT)
counted("instr_short_epoll", "the same, epoll at both ends", "pair", "mode=short", "warm=200", "epoll=1", **SHORT)
counted("instr_short_16", "the same, 16 round trips each", "pair", "mode=short", "warm=100", "rounds=16", divisor=1, n=(200, 600))
counted("instr_short_64", "the same, 64 round trips each", "pair", "mode=short", "warm=50", "rounds=64", divisor=1, n=(100, 300))
for _what, _text in (("pipe", "a pipe"), ("file", "a file"), ("null", "/dev/null and /dev/zero")):
    counted("instr_" + _what, "one read or write on " + _text, "pipeio", "what=" + _what, divisor=1.1, n=(10000, 40000))


def plain_instructions(plain):
    """The accelerated end's own, per round trip; its peer has no library."""
    def total(c, n):
        if plain == "server":
            srv, port = c.server("mode=block", "serve=1", accel=False)
            return instructions(c, "pingpong", "port=%d" % port, "n=%d" % n)
        srv = under_callgrind(c, c.env.prog("server"), "mode=block", "serve=1")
        cli = c.start(["pingpong", "port=%d" % srv.ready_port(), "n=%d" % n], accel=False, deadline=120)
        cli.result()
        srv.result()
        return collected(srv)

    return lambda c: {"instructions": (total(c, 6000) - total(c, 2000)) / 4000}


for _end, _text in (("server", "accelerated client, plain server"), ("client", "plain client, accelerated server")):
    row("instr_plain_" + _end, "one 64 B round trip, %s: the accelerated end" % _text,
        [Metric("instructions", "", "low", added("instr_plain_" + _end), "instructions in user space")],
        ("valgrind",), off_tcp=False, group="counts")(plain_instructions(_end))


@row("instr_start", "start of /bin/true", [Metric("instructions", "", "low", added("instr_start"), "instructions in all")],
     ("valgrind",), off_tcp=False, group="counts")
def instr_start(c):
    return {"instructions": instructions(c, which("true") or "/bin/true")}


@row("instr_redis", "redis-server, one GET of redis-benchmark -c 50", [Metric("instructions", "", "low", added("instr_redis"), "instructions in user space")],
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
