"""The results as Markdown and JSON, and the plots."""

import json
import os

import plots
from stats import merge
from sweeps import SWEEPS, WHAT

GROUPS = (
    ("core", "Our own load programs"),
    ("redis", "redis"),
    ("nginx", "nginx, wrk, HAProxy"),
    ("bulk", "iperf3"),
    ("programs", "Other programs"),
    ("think", "Think time"),
    ("short", "Short connections"),
    ("never", "Never slower"),
    ("io", "Pipes and files"),
    ("idle", "Idle connections"),
    ("counts", "Counts"),
)


def num(v):
    if v is None:
        return "-"
    a = abs(v)
    if a >= 1e6:
        return "%.3gM" % (v / 1e6)
    if a >= 1e4:
        return "%.3gk" % (v / 1e3)
    if a >= 100 or v == int(v):
        return "%.0f" % v
    return "%.3g" % v


def gain(v):
    if v is None:
        return "-"
    return "%.0fx" % v if v >= 20 else "%.1fx" % v if v >= 2 else "%.2fx" % v


def spread(d):
    if not d:
        return "-"
    return "%s (%s-%s)" % (num(d["median"]), num(d["min"]), num(d["max"]))


def verdict(m):
    if m["met"] is False and not m["smcr"]:
        return "**failed**"
    if m["near"]:
        return "missed, within the spread"
    return {True: "met", False: "**missed**", None: ""}[m["met"]] if m["goal"] else ""


def tally(run):
    """(met, missed, missed within the spread) over all goals, those that compare rows and the growth included."""
    ms = [m for r in run["rows"] for m in r["metrics"] if m["met"] is not None] + run["derived"] + run["growth"]
    near = sum(1 for m in ms if m.get("near"))
    met = sum(1 for m in ms if m["met"])
    return met, len(ms) - met - near, near


def counts_bytes(metrics):
    """Whether the operations of a row are bytes; what a result says of its metrics, or the metrics themselves."""
    return any((m["unit"] if isinstance(m, dict) else m.unit) in ("GB/s", "Gbit/s") for m in metrics)


def off_tcp(r):
    share = r["facts"].get("share_off_tcp")
    if share is None:
        return ""
    text = "%.1f %%" % (share * 100)
    if share < r["off_tcp_expected"]:
        return "**%s**" % text
    return text


def line(r, m, first):
    cells = [
        r["title"] if first else "",
        "%s, %s" % (m["title"], m["unit"]) if m["unit"] else m["title"],
        spread(m["tcp"]),
        spread(m["smcr"]),
        "%s (%s-%s)" % (gain(m["gain"]), gain(m["gain_min"]), gain(m["gain_max"])) if m["gain"] is not None else "-",
        m["goal"],
        verdict(m),
        off_tcp(r) if first else "",
    ]
    return "| " + " | ".join(cells) + " |"


def detail(r):
    """Loopback packets, sleeps and CPU time per operation, both sides; empty where the row has no operations."""
    f = r["facts"]

    def pair(key, scale=1.0):
        a, b = f["tcp"].get(key), f["smcr"].get(key)
        return "%s / %s" % (num(a * scale) if a is not None else "-", num(b * scale) if b is not None else "-")

    if not f["tcp"].get("lo_packets_per_op") and not f["smcr"].get("lo_packets_per_op"):
        return None
    others = max(f["tcp"].get("outside_cpu_share", 0), f["smcr"].get("outside_cpu_share", 0))
    unit = "KiB" if counts_bytes(r["metrics"]) else "op"
    k = 1024.0 if unit == "KiB" else 1.0
    cells = (r["name"], unit, pair("lo_packets_per_op", k), pair("lo_bytes_per_op", k), pair("sleeps_per_op", k),
             pair("cpu_us_per_op", k), "%.0f %%" % (others * 100))
    return "| " + " | ".join(cells) + " |"


HEAD = "| work | measure | TCP | smcr | ratio | goal | | off TCP |\n|---|---|---|---|---|---|---|---|"
FACTS = (
    "| row | per | packets on lo | bytes on lo | sleeps | CPU us | others |\n|---|---|---|---|---|---|---|"
)


def method(run):
    return """Each row runs TCP and smcr in turn, %(reps)d times, in one run, each time with new processes; the order changes with every repetition.
Rows of short connections and of one end without the library, whose ratio is close to its goal, have 3 or 5 times as many repetitions.
Cells are the median and, in brackets, the smallest and the largest value. The ratio is the gain of the medians (more than 1x is better than TCP), in brackets that of the pairs of runs.
In smcr runs both ends have the library preloaded. Nothing else differs: the same programs, the same arguments, placed by the scheduler unless the row says otherwise.
%(netns)s
*Off TCP* is the share of payload that does not pass through `lo`: TCP payload bytes on `lo` per operation (everything before the switch, doorbells and warm-up included) against the TCP runs. A row that fell back shows it there (bold) and counts as a goal missed: less than 95 %%, or than 20 %% where connections carry only 20 rounds.
*CPU per op* is that of all processes of the sample, start and warm-up included. The goal is general: less than TCP's where the row is faster, at most 1.3 times TCP's where it isn't.
*Missed, within the spread*: a goal that a quarter of the pairs of runs and more meet, though their median does not. All other misses count.
Warm-up is not counted where the load program is ours; wrk, redis-benchmark and pgbench count from the first byte. The quantiles of the think time rows are taken over all repetitions together.
A sample during which other programs took more than a tenth of the processors is taken again, at most %(retries)d times, on either side alike; the calmest counts.
""" % {
        "reps": run["reps"],
        "retries": run["retries"],
        "netns": "`lo` belongs to a network namespace of the bench alone."
        if run["machine"]["own_network_namespace"]
        else "**No network namespace of its own could be made: `lo` was shared with whatever else ran, the shares are lower bounds.**",
    }


def markdown(run, images=None):
    m = run["machine"]
    out = ["# Performance", ""]
    out.append("Written by `make bench`; do not edit. %s, %s.\n" % (m["date"], "quick run" if run["quick"] else "full run"))
    if run["library"] is None:
        out.append("**No library was preloaded: this is TCP against itself. The ratios show the noise of the machine.**\n")
    out += ["## Machine", ""]
    out.append(
        "%s, %s processors%s, %d MiB; %s, Linux %s (%s), %s; clock %s, congestion control %s; load average at the start %s.\n"
        % (m["cpu"], m["cores"], " of a virtual machine" if m["virtual"] else "", m["memory_mib"], m["os"], m["kernel"], m["arch"],
           m["libc"], m["clocksource"], m["congestion_control"], m["load_average_at_start"])
    )
    if run["library"]:
        out.append("Commit %s; library sha256 `%s`.\n" % (run["commit"] or "unknown", run["library"][:16]))
    if m.get("ceiling"):
        out.append(
            "What two threads on two processors reach here through shared memory without any protocol, the limit for the rows below, in five runs: 64 B there"
            " and back %s to %s us at the median, 64 KiB blocks through a 2 MiB ring %s to %s GB/s.\n"
            % tuple(map(num, m["ceiling"]["p50_us"] + m["ceiling"]["gb_s"]))
        )
    out += ["## Method", "", method(run)]
    rows = run["rows"]
    missed = [(r, x) for r in rows for x in r["metrics"] if x["met"] is False and x["metric"] != "share_off_tcp"]
    out += ["## Result", "", "%d goals met, %d missed, %d missed by less than the runs differ." % tally(run), ""]
    for r, x in missed:
        want = x["goal"]
        if not x["smcr"]:
            out.append("- %s, %s: no run of smcr worked (goal %s)" % (r["title"], x["title"], want))
            continue
        got = gain(x["gain"]) if x["gain"] is not None and want[0].isdigit() else num(x["smcr"]["median"])
        if x["metric"] in ("cpu_us_op", "_cpu_us") and x["gain"]:
            got = "%.2f times TCP's" % (1 / x["gain"])
        elif want.startswith("+") and x["tcp"]:
            got = "+" + num(x["smcr"]["median"] - x["tcp"]["median"])
        out.append("- %s, %s: %s (goal %s)%s" % (r["title"], x["title"], got, want, ", within the spread" if x["near"] else ""))
    for d in run["derived"] + run["growth"]:
        if not d["met"]:
            out.append("- %s: %s (goal %s)" % (d["title"], num(d["smcr"]), d["goal"]))
    slower = [(r, x) for r in rows for x in r["metrics"]
              if x["gain"] is not None and x["gain"] < 0.95 and r["group"] != "counts" and x["unit"] not in ("", "KiB", "ticks") and "CPU" not in x["title"]]
    if slower:
        out += ["", "Slower than TCP, goal or not:", ""]
        out += ["- %s, %s: %s" % (r["title"], x["title"], gain(x["gain"])) for r, x in slower]
    dearer = [(r, x) for r in rows for x in r["metrics"] if x["gain"] and x["gain"] < 0.95 and x["metric"] in ("cpu_us_op", "_cpu_us")]
    if dearer:
        out += ["", "More CPU time than TCP, goal or not:", ""]
        out += ["- %s: %.2f times" % (r["title"], 1 / x["gain"]) for r, x in dearer]
    back = [r for r in rows if (r["facts"].get("share_off_tcp") or 0) < r["off_tcp_expected"] and not r["failed"]]
    if back and run["library"]:
        out += ["", "Payload that stayed on TCP where it should not:", ""]
        out += ["- %s: %s off TCP" % (r["title"], off_tcp(r).strip("*")) for r in back]
    failed = [r for r in rows if r["failed"]]
    failed += [{"title": "%s, %d" % (SWEEPS[name][0], p["x"]), "failed": p["failed"]} for name, points in run["sweeps"].items() for p in points if p["failed"]]
    if failed:
        out += ["", "Samples that failed:", ""]
        out += ["- %s: %s" % (r["title"], "; ".join(sorted(set(r["failed"])))) for r in failed]
    if run["skipped"]:
        out += ["", "Not run:", ""] + ["- %s: %s" % (t, why) for t, why in run["skipped"]]
    out.append("")
    for group, title in GROUPS:
        mine = [r for r in rows if r["group"] == group]
        if not mine:
            continue
        out += ["### " + title, "", HEAD]
        for r in mine:
            shown = [x for x in r["metrics"] if x["metric"] != "share_off_tcp"]
            out += [line(r, x, i == 0) for i, x in enumerate(shown)]
        out.append("")
    if run["derived"]:
        out += ["### Derived", "", "| measure | TCP | smcr | goal | |", "|---|---|---|---|---|"]
        for d in run["derived"]:
            out.append("| %s | %s | %s | %s | %s |" % (d["title"], num(d["tcp"]), num(d["smcr"]), d["goal"], "met" if d["met"] else "**missed**"))
        out.append("")
    out += growth_tables(run)
    details = [x for x in (detail(r) for r in rows) if x]
    if details:
        out += ["## Traffic, sleeps and CPU time", "", "Per operation (per KiB for bulk), TCP / smcr, both ends and the start of the programs together."
                " *others*: the largest share of all processors that other programs used during one sample.", "", FACTS, *details, ""]
    calls = [r for r in rows if r["group"] == "counts" and r["detail"]]
    for r in calls:
        t, s = r["detail"].get("tcp"), r["detail"].get("smcr")
        if not t or not s:
            continue
        names = [k for k in sorted(set(t) | set(s)) if t.get(k, 0) != s.get(k, 0)]
        if names:
            out += ["%s, where they differ (TCP / smcr): %s" % (r["title"], ", ".join("%s %s/%s" % (k, num(t.get(k, 0)), num(s.get(k, 0))) for k in names)), ""]
    if images:
        out += ["## Plots", ""] + ["![%s](%s)\n" % (t, p) for t, p in images]
    return "\n".join(out).rstrip() + "\n"


def growth_tables(run):
    """What one more connection, thread and process costs as they double, TCP / smcr."""
    out = []
    for name, points in run["sweeps"].items():
        title, unit, _xs, _make, keys, _least = SWEEPS[name]
        if not points:
            continue
        out += ["### " + title[0].upper() + title[1:], "", "TCP / smcr.", ""]
        out += ["| %s | %s | off TCP |" % (unit, " | ".join(WHAT[k] for k in keys)), "|---" * (len(keys) + 2) + "|"]
        for p in points:
            share = p["share_off_tcp"]
            cells = ["%s / %s" % (num(p["tcp"][k]), num(p["smcr"][k])) for k in keys]
            out.append("| %s | %s | %s |" % ("{:,}".format(p["x"]), " | ".join(cells), "%.1f %%" % (share * 100) if share is not None else "-"))
        out.append("")
    if run["growth"]:
        out += ["### Nothing worse than linear", "", "What one costs at the top of a series against the middle. Where TCP's own time rises, the limit of times rises with it.", "",
                "| measure | TCP | smcr | goal | |", "|---|---|---|---|---|"]
        for d in run["growth"]:
            out.append("| %s | %s | %s | %s | %s |" % (d["title"], num(d["tcp"]), num(d["smcr"]), d["goal"], "met" if d["met"] else "**missed**"))
        out.append("")
    return ["## Growth", ""] + out if out else []


def draw(run, directory, relative):
    """All plots that the results allow; [(title, path as the Markdown names it)]."""
    os.makedirs(directory, exist_ok=True)
    images = []

    def add(name, title, done):
        if done:
            images.append((title, os.path.join(relative, name) if relative else name))

    for name, title in (("pingpong", "64 B ping-pong"), ("many32", "32 connections"), ("think2000", "2 ms think time"), ("memcached", "memcached")):
        hists = run["hists"].get(name) or {}
        if hists.get("tcp") and hists.get("smcr"):
            f = "latency-%s.svg" % name
            add(f, "Latency distribution, %s" % title, plots.distribution(os.path.join(directory, f), "Latency distribution, " + title, hists))
    s = run["sweeps"]
    if "sweep_size" in s:
        t = "Throughput over message size"
        add("throughput-size.svg", t, plots.sweep(os.path.join(directory, "throughput-size.svg"), t, "bytes per write", "GB/s", s["sweep_size"], ["gb_s"]))
    if "sweep_conns" in s:
        d, t = s["sweep_conns"], "Throughput over active connections"
        add("throughput-conns.svg", t, plots.sweep(os.path.join(directory, "throughput-conns.svg"), t, "connections", "requests/s", d, ["ops_s"]))
        t = "Latency over active connections"
        add("latency-conns.svg", t, plots.sweep(os.path.join(directory, "latency-conns.svg"), t, "connections", "us", d, ["p50_us", "p99_us"]))
        t = "Latency against load"
        f = os.path.join(directory, "latency-load.svg")
        add("latency-load.svg", t, plots.sweep(f, t, "requests/s", "us", d, ["p50_us", "p99_us"], x_of="ops_s"))
    for key, name, title, ylabel, value in (
        ("sweep_procs", "throughput-processes.svg", "Throughput over client processes", "requests/s", "ops_s"),
        ("sweep_threads", "throughput-threads.svg", "Throughput over client threads", "requests/s", "ops_s"),
        ("sweep_idle", "memory-connections.svg", "Resident memory of both ends per connection", "KiB", "rss_kib"),
        ("sweep_idle", "setup-connections.svg", "Set-up and 20 rounds, per connection", "us", "setup_us"),
    ):
        if key in s:
            path = os.path.join(directory, name)
            add(name, title, plots.sweep(path, title, SWEEPS[key][1], ylabel, s[key], [value]))
    return images


def pooled_hists(samples):
    return {side: merge([x["_hist"] for x in samples.get(side, []) if x.get("_hist")]) for side in ("tcp", "smcr")}


def write_json(run, path):
    with open(path, "w") as f:
        json.dump({k: v for k, v in run.items() if k != "hists"}, f, indent=1, sort_keys=True)
        f.write("\n")
