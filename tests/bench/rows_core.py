"""Rows of our own load programs: ping-pong, bulk, many connections, one processor, busy neighbours, think time."""

import os

from proc import Failed
from row import from_hist, latency, ratio, row
from stats import Metric

RATE = ratio("ops_s", "1/s", "high")


def cpu0():
    return {min(os.sched_getaffinity(0))}


def ping(c, server_args=(), client_args=(), **kw):
    """Blocking ping-pong; the CPU time is that of both ends in the counted part alone."""
    srv, port = c.server("mode=block", *server_args, **kw)
    cli = c.start(["pingpong", "port=%d" % port, "secs=%g" % c.secs, "srvpid=%d" % srv.pid, *client_args], **kw)
    return from_hist(cli.json())


P50 = Metric("p50_us", "us", "low", ("ratio", 100, 0.3), "p50")
IN_VAIN = Metric("in_vain", "", "low", ("max", 0), "events without data")
P99 = ratio("p99_us", "us", "low", 10, "p99")


@row("pingpong", "blocking 64 B ping-pong", [P50, P99, RATE], group="core")
def pingpong(c):
    return ping(c)


@row("pingpong4k", "blocking 4 KiB ping-pong", latency(), group="core")
def pingpong4k(c):
    return ping(c, client_args=["size=4096"])


def bulk(c, recv_args=(), send_args=(), both=False, **kw):
    extra = ["secs=%g" % c.secs, "both=%d" % both]
    rx = c.start(["stream", "role=recv", *extra, *recv_args], **kw)
    tx = c.start(["stream", "role=send", "port=%d" % rx.ready_port(), *extra, *send_args], **kw)
    results = [rx.json()]
    if both:
        results.append(tx.json())
    else:
        tx.result()
    if not all(r["secs"] > 0 for r in results):
        raise Failed("nothing arrived after the warm-up: %s" % results)
    return {
        "gb_s": sum(r["bytes"] / r["secs"] for r in results) / 1e9,
        "got": sum(r["bytes"] for r in results) / max(1, sum(r["reads"] for r in results)),
        "_all": sum(r["payload"] for r in results),
    }


@row("stream", "64 KiB streaming, one direction", [ratio("gb_s", "GB/s", "high", 12)], group="core")
def stream(c):
    return bulk(c)


@row("duplex", "64 KiB streaming, both directions at once", [ratio("gb_s", "GB/s", "high", 0.95)], group="never")
def duplex(c):
    return bulk(c, both=True)


for _ms in (1, 50, 200):
    @row("tick%d" % _ms, "64 KiB streaming to a reader that comes each %d ms and takes all there is" % _ms, [ratio("gb_s", "GB/s", "high", 0.95)], group="never")
    def tick(c, ms=_ms):
        c.secs = max(1.0, ms * 0.02, c.secs)
        return bulk(c, recv_args=["tick=%d" % ms])


@row("byte1", "1 B writes without NODELAY", [ratio("gb_s", "GB/s", "high", 0.95)], group="never")
def byte1(c):
    r = bulk(c, recv_args=["nodelay=0"], send_args=["size=1", "nodelay=0"])
    return r


def many(c, conns, active, size=64, turn=0, **kw):
    srv, port = c.server("mode=epoll", **kw)
    args = ["port=%d" % port, "conns=%d" % conns, "active=%d" % active, "size=%d" % size, "secs=%g" % c.secs, "turn=%d" % turn]
    return from_hist(c.start(["many", *args], **kw).json())


@row("many4000", "4,000 connections, 32 active, epoll", [ratio("ops_s", "1/s", "high", 50)] + latency() + [IN_VAIN], group="core")
def many4000(c):
    return many(c, 4000, 32)


@row("turns1024", "1,024 connections that speak in turn, 8 at a time, epoll", [ratio("ops_s", "1/s", "high", 2)] + latency() + [IN_VAIN], group="core")
def turns1024(c):
    return many(c, 1024, 8, turn=1)


@row("turns4000", "4,000 connections that speak in turn, 32 at a time, epoll", [ratio("ops_s", "1/s", "high", 2)] + latency() + [IN_VAIN], group="core")
def turns4000(c):
    return many(c, 4000, 32, turn=1)


@row("many32", "32 connections, all active, epoll", [RATE] + latency() + [IN_VAIN], group="core")
def many32(c):
    return many(c, 32, 32)


@row("onecpu", "both ends on one processor, ping-pong", latency(3), group="core")
def onecpu(c):
    return ping(c, cpus=cpu0())


@row("onecpu_epoll", "both ends on one processor, 32 connections, epoll", [ratio("ops_s", "1/s", "high", 1)], group="never")
def onecpu_epoll(c):
    return many(c, 32, 32, cpus=cpu0())


def with_neighbours(c, fn, count=2):
    """Programs that compute, spread over the first two processors, for as long as the sample takes."""
    cpus = sorted(os.sched_getaffinity(0))
    for i in range(count):
        c.start(["burn"], accel=False, cpus={cpus[i % len(cpus)]})
    r = fn(c)
    r["_no_cpu"] = True  # the neighbours' time is in the sum
    return r


@row("busy_pingpong", "ping-pong beside two busy processes", [ratio("ops_s", "1/s", "high", 2)] + latency(), group="core")
def busy_pingpong(c):
    return with_neighbours(c, ping)


@row("busy_onecpu", "both ends on one processor beside two busy processes", [ratio("ops_s", "1/s", "high", 1)] + latency(), group="core")
def busy_onecpu(c):
    return with_neighbours(c, lambda c: ping(c, cpus=cpu0()))


CROWDED = [ratio("ops_s", "1/s", "high", 0.95)] + latency()


@row("crowded_pingpong", "ping-pong beside four busy processes", CROWDED, group="never")
def crowded_pingpong(c):
    return with_neighbours(c, ping, 4)


@row("crowded_epoll", "1 connection, epoll at both ends, beside four busy processes", CROWDED, group="never")
def crowded_epoll(c):
    return with_neighbours(c, lambda c: many(c, 1, 1), 4)


# The goal of the CPU time, "no more than 1.3x", as a gain.
THINK = latency(1, 1, pooled=True) + [Metric("cpu_us_op", "us", "low", ("ratio", 1 / 1.3), "CPU per round", text="at most 1.3 times")]


def think(us, how="think_us"):
    def run(c):
        # The quantiles are taken over all repetitions together: of 900 rounds the ninth worst is p99.
        n = max(300 if us <= 10000 else 60, min(20000, int(c.secs * 1e6 / (us + 100))))
        return ping(c, client_args=["%s=%d" % (how, us), "n=%d" % n])

    return run


for _us, _text in ((10, "10 us"), (100, "100 us"), (1000, "1 ms"), (2000, "2 ms"), (10000, "10 ms"), (100000, "100 ms")):
    row("think%d" % _us, "%s think time, ping-pong" % _text, THINK, group="think")(think(_us))

# Just longer than the library polls: a wait that is polled for in vain each time would show here. A sleep is too coarse for it.
row("compute65", "65 us of computing between rounds, ping-pong", THINK, group="think")(think(65, "compute_us"))
