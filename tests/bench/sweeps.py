"""The series behind the plots: throughput over message size and connection count, latency against load, growth."""

from row import from_hist
from rows_core import bulk, many
from rows_never import idle

SIZES = [64, 256, 1024, 4096, 16384, 65536, 262144, 1048576]
CONNS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
PROCS = [1, 2, 4, 8, 16, 32, 64]
IDLE = [625, 1250, 2500, 5000, 10000]


def by_size(x):
    def run(c):
        return bulk(c, send_args=["size=%d" % x], recv_args=["rsize=%d" % max(x, 65536)])

    return run


def by_conns(x):
    return lambda c: many(c, x, x)


def by_procs(x):
    """So many client processes, each with one connection to one epoll server."""

    def run(c):
        _srv, port = c.server("mode=epoll")
        clients = [c.start(["pingpong", "port=%d" % port, "secs=%g" % c.secs, "warm=1000"]) for _ in range(x)]
        results = [from_hist(p.json()) for p in clients]
        return {"ops_s": sum(r["ops_s"] for r in results), "p99_us": max(r["p99_us"] for r in results)}

    return run


# name: title, x axis, values of x, what makes a sample, what is kept of it
SWEEPS = {
    "sweep_size": ("throughput over message size, one direction", "bytes per write", SIZES, by_size, ("gb_s",)),
    "sweep_conns": ("64 B requests over the number of active connections, epoll", "connections", CONNS, by_conns, ("ops_s", "p50_us", "p99_us")),
    "sweep_procs": ("64 B requests over the number of client processes", "processes", PROCS, by_procs, ("ops_s", "p99_us")),
    "sweep_idle": ("memory and set-up time over the number of connections", "connections", IDLE, idle, ("rss_kib", "setup_us")),
}
