"""The series behind the plots and the tables of growth: throughput over message size, and what a connection, a thread
and a process cost as their number doubles."""

import time

from row import from_hist, sleep
from rows_core import bulk
from rows_never import idle, memory_kib
from stats import median, side_facts

SIZES = [64, 256, 1024, 4096, 16384, 65536, 262144, 1048576]
CONNS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
PROCS = [1, 2, 4, 8, 16, 32, 64]
THREADS = [1, 2, 4, 8, 16, 32, 64]
IDLE = [625, 1250, 2500, 5000, 10000]
SIDES = ("tcp", "smcr")


def by_size(x):
    def run(c):
        return bulk(c, send_args=["size=%d" % x], recv_args=["rsize=%d" % max(x, 65536)])

    return run


def requests(results, on_tcp):
    """A sample of so many clients, of which one told the server's CPU time as well. `on_tcp`: so many of the operations are warm-up."""
    ops = sum(r["_ops"] for r in results)
    out = {k: sum(r[k] for r in results) for k in ("ops_s", "_all")}
    out["cpu_us"] = sum(r["cpu_us_op"] * r["_ops"] for r in results) / ops
    for k in ("p50_us", "p99_us"):
        if k in results[0]:
            out[k] = max(r[k] for r in results)
    out["_on_tcp"] = on_tcp
    return out


def by_conns(x):
    def run(c):
        srv, port = c.server("mode=epoll")
        args = ["port=%d" % port, "srvpid=%d" % srv.pid, "conns=%d" % x, "active=%d" % x, "size=64", "secs=%g" % c.secs]
        return requests([from_hist(c.start(["many", *args]).json())], 20 * x)

    return run


def by_procs(x):
    """So many client processes, each with one connection to one epoll server."""

    def run(c):
        srv, port = c.server("mode=epoll")
        args = ["pingpong", "port=%d" % port, "secs=%g" % c.secs, "warm=1000"]
        clients = [c.start(args + (["srvpid=%d" % srv.pid] if i == 0 else [])) for i in range(x)]
        return requests([from_hist(p.json()) for p in clients], 20 * x)

    return run


def by_threads(x):
    """So many threads of one client process, each with a connection of its own to one epoll server."""

    def run(c):
        srv, port = c.server("mode=epoll")
        args = ["port=%d" % port, "srvpid=%d" % srv.pid, "threads=%d" % x, "secs=%g" % c.secs, "warm=1000"]
        return requests([from_hist(c.start(["fan", *args]).json())], 20 * x)

    return run


def held(c, pids, settled_ns, n, rounds):
    """Memory of processes that hold `n` idle things, and the time that it took to make them."""
    sleep(2)  # rings may shrink and hot connections cool down
    rss, pss = (sum(v) for v in zip(*(memory_kib(p) for p in pids)))
    return {"rss_kib": rss / n, "pss_kib": pss / n, "setup_us": settled_ns / 1000.0 / n, "_all": n * rounds}


def idle_procs(x):
    """So many client processes with one idle connection each, one server; started one after the other."""

    def run(c):
        srv, port = c.server("mode=epoll")
        t0, clients = time.monotonic_ns(), []
        for _ in range(x):
            p = c.start(["many", "port=%d" % port, "conns=1", "hold=1"], stdin=True, deadline=120)
            p.line("settled ")
            clients.append(p)
        took = time.monotonic_ns() - t0
        r = held(c, [srv.pid] + [p.pid for p in clients], took, x, 20)
        for p in clients:
            p.p.stdin.close()
        for p in clients:
            p.result()
        return r

    return run


def idle_threads(x):
    """A client process with so many threads, one idle connection each, one server."""

    def run(c):
        srv, port = c.server("mode=epoll")
        p = c.start(["fan", "port=%d" % port, "threads=%d" % x, "warm=100", "hold=1"], stdin=True, deadline=120)
        r = held(c, [srv.pid, p.pid], int(p.line("settled ")), x, 100)
        p.p.stdin.close()
        p.result()
        return r

    return run


# name: title, x axis, values of x, what makes a sample, what is kept of it, least share off TCP
SWEEPS = {
    "sweep_size": ("throughput over message size, one direction", "bytes per write", SIZES, by_size, ("gb_s", "got"), 0.95),
    "sweep_conns": ("64 B requests over the number of active connections, epoll", "connections", CONNS, by_conns, ("ops_s", "p50_us", "p99_us", "cpu_us"), 0.95),
    "sweep_procs": ("64 B requests over the number of client processes", "processes", PROCS, by_procs, ("ops_s", "p99_us", "cpu_us"), 0.95),
    "sweep_threads": ("64 B requests over the number of threads of one client", "threads", THREADS, by_threads, ("ops_s", "cpu_us"), 0.95),
    # 20 rounds, of which the first 8 come before the switch, and the proofs are payload too
    "sweep_idle": ("memory and set-up time over the number of connections", "connections", IDLE, idle, ("rss_kib", "pss_kib", "setup_us"), 0.2),
    "sweep_idle_procs": ("memory and set-up time over the number of processes", "processes", PROCS, idle_procs, ("rss_kib", "pss_kib", "setup_us"), 0.0),
    "sweep_idle_threads": ("memory and set-up time over the number of threads", "threads", THREADS, idle_threads, ("rss_kib", "pss_kib", "setup_us"), 0.2),
}

# What one costs at the top of a series against its middle, at most, where the growth is linear or better; for times what noise
# and the scheduler add, for memory what page granularity does. Memory is that of one more, or a fixed part, which all share, would
# hide what each adds. Rates are in the tables alone: with more runnable threads than processors they say how the scheduler shares,
# so the time that is held is CPU time.
LINEAR = {"cpu_us": 1.5, "setup_us": 2.0, "pss_kib": 1.3}
WHAT = {"cpu_us": "CPU time per request, us", "setup_us": "set-up time of each, us", "pss_kib": "memory (PSS) of each, KiB",
        "rss_kib": "memory (RSS) of each, KiB", "gb_s": "GB/s", "got": "bytes per receive", "ops_s": "requests/s", "p50_us": "p50, us", "p99_us": "p99, us"}


def point_of(x, samples, failed, keys):
    """One x of a series: medians of either side, the share off TCP, what failed."""
    out = {"x": x, "failed": failed, "share_off_tcp": side_facts(samples)["share_off_tcp"]}
    # In a short run over many connections much of the payload is what comes before the switch.
    out["early"] = median([s.get("_on_tcp", 0) / s["_all"] for s in samples["smcr"]]) or 0.0
    for side in SIDES:
        out[side] = {k: median([s[k] for s in samples[side] if s.get(k) is not None]) for k in keys}
    return out


def one_more(points, i, side, key):
    """What each of those costs that point `i` has more than the point before."""
    a, b = points[i - 1], points[i]
    if a[side][key] is None or b[side][key] is None:
        return None
    return (b[side][key] * b["x"] - a[side][key] * a["x"]) / (b["x"] - a["x"])


def growth(name, points):
    """Verdicts on a series: each unit of cost at the top against the middle, and no point that fell back to TCP."""
    title, unit, _xs, _make, keys, least = SWEEPS[name]
    out = []
    last, middle = len(points) - 1, len(points) // 2
    for k in keys:
        if k not in LINEAR or len(points) < 4:
            continue
        memory = k == "pss_kib"
        d = {"goal": "at most %gx" % LINEAR[k], "title": "%s of one more, %d %s against %d" % ("memory (PSS)", points[last]["x"], unit, points[middle]["x"])
             if memory else "%s, %d %s against %d" % (WHAT[k].split(",")[0], points[last]["x"], unit, points[middle]["x"])}
        for side in SIDES:
            a, b = (one_more(points, i, side, k) if memory else points[i][side][k] for i in (last, middle))
            d[side] = a / b if a is not None and b and b > 0 else None
        # The times of TCP and the machine may themselves grow worse: what is held is that smcr's do not more than they.
        limit = LINEAR[k] if memory else LINEAR[k] * max(1.0, d["tcp"] or 1.0)
        d["met"] = d["smcr"] is not None and d["smcr"] <= limit
        out.append(d)
    if least:
        there = [p for p in points if p["smcr"][keys[0]] is not None]
        off = [p for p in there if p["share_off_tcp"] is None or p["share_off_tcp"] < least * (1 - p["early"])]
        low = min((p["share_off_tcp"] or 0.0 for p in there), default=None)
        out.append({"title": "payload off TCP, %s, the least of the series" % title, "goal": "at least %g %%, less what warms up" % (least * 100),
                    "tcp": None, "smcr": low and low * 100, "met": bool(there) and not off})
    return out
