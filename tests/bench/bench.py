#!/usr/bin/env python3
"""The bench: rows of TCP and smcr in turn, medians, spread and goals. See README.md; run.sh prepares and calls this."""

import argparse
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import machine
import report
import rows_core  # noqa: F401  (rows register themselves on import)
import rows_counts  # noqa: F401
import rows_never  # noqa: F401
import rows_programs  # noqa: F401
import stats
from proc import Env, Failed, Proc, own_cpu
from row import ROWS, Ctx
from sweeps import SWEEPS, growth, point_of

SIDES = ("tcp", "smcr")
MAX_REPS = {"counts": 1, "idle": 3}


def options():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--rows", default="", help="names or groups, separated by commas (default: all)")
    p.add_argument("--skip", default="", help="names or groups to leave out")
    p.add_argument("--list", action="store_true", help="print the names of the rows and exit")
    p.add_argument("--quick", action="store_true", help="short samples, three repetitions")
    p.add_argument("--reps", type=int, default=0, help="repetitions (default 7, quick 3)")
    p.add_argument("--secs", type=float, default=0.0, help="length of a sample (default 2, quick 0.5)")
    p.add_argument("--retries", type=int, default=2, help="attempts more for a sample during which other programs were busy (default 2)")
    p.add_argument("--quiet-wait", type=float, default=0.0, help="seconds to wait at most before a sample until other programs are quiet (default 0)")
    p.add_argument("--out", default="bench-out", help="directory of the results (default bench-out)")
    p.add_argument("--json", default="", help="JSON file (default OUT/bench.json)")
    p.add_argument("--markdown", default="", help="Markdown file (default OUT/bench.md)")
    p.add_argument("--plots", default="", help="directory of the SVG files (default OUT/plots)")
    p.add_argument("--check", action="store_true", help="exit status 2 if a goal is missed")
    p.add_argument("--bin", required=True, help="directory of the compiled load programs")
    p.add_argument("--lib", default="", help="libsmcr.so (empty: nothing is preloaded, TCP against itself)")
    return p.parse_args()


def chosen(o):
    def match(name, group, words):
        return name in words or group in words

    want, skip = (set(x for x in s.split(",") if x) for s in (o.rows, o.skip))
    known = set(ROWS) | {r.group for r in ROWS.values()} | set(SWEEPS) | {"plots"}
    unknown = (want | skip) - known
    if unknown:
        sys.exit("no such row: %s (--list shows them)" % ", ".join(sorted(unknown)))
    rows = [r for r in ROWS.values() if (not want or match(r.name, r.group, want)) and not match(r.name, r.group, skip)]
    order = [g for g, _ in report.GROUPS]
    rows.sort(key=lambda r: order.index(r.group))
    sweeps = [s for s in SWEEPS if (not want or match(s, "plots", want)) and not match(s, "plots", skip)]
    return rows, sweeps


def sample(env, fn, side, quick, secs):
    """One sample with its traffic, CPU time and sleeps; Failed if there is none."""
    c = Ctx(env, side == "smcr", quick, secs)
    lo, load = machine.Lo(), machine.Load(own_cpu)
    try:
        r = fn(c)
    finally:
        c.stop_all()
    r["_lo_bytes"], r["_lo_packets"], r["_lo_payload"] = lo.since()
    r["_outside"] = load.outside()
    if not r.pop("_no_cpu", False):
        r["_cpu_s"], r["_sleeps"] = c.usage()
    return r


def calm_sample(env, fn, side, secs, o):
    """A sample again, if other programs took more than a tenth of the machine: the calmest of the attempts."""
    best = None
    for _ in range(1 + o.retries):
        machine.wait_quiet(own_cpu, o.quiet_wait)
        r = sample(env, fn, side, o.quick, secs)
        if best is None or r["_outside"] < best["_outside"]:
            best = r
        if best["_outside"] <= 0.1:
            break
    return best


def measure(env, fn, reps, o, secs, say, scale=1):
    samples, failed = {s: [] for s in SIDES}, []
    for i in range(reps):
        for side in SIDES if i % 2 == 0 else SIDES[::-1]:
            try:
                got = calm_sample(env, fn, side, secs, o)
                got["_pair"] = i
                if got.get("_all") and got.get("_cpu_s") is not None:
                    got["_cpu_us"] = got["_cpu_s"] / got["_all"] * scale * 1e6
                samples[side].append(got)
            except (Failed, OSError, ValueError, KeyError, ArithmeticError) as e:
                failed.append("%s: %s" % (side, str(e) or type(e).__name__))
                say("  failed, " + failed[-1])
        if len(failed) >= 2 and not all(samples.values()):
            break  # a side that never works is not tried again and again
    return samples, failed


def one_row(env, r, o, say):
    reps = min(o.reps, MAX_REPS.get(r.group, o.reps)) * r.pairs
    per_kib = report.counts_bytes(r.metrics)
    samples, failed = measure(env, r.run, reps, o, o.secs, say, 1024 if per_kib else 1)
    out = {
        "name": r.name,
        "title": r.title,
        "group": r.group,
        "off_tcp_expected": r.off_tcp,
        "metrics": [stats.summarise(m, samples) for m in r.metrics],
        "facts": stats.side_facts(samples),
        "failed": failed,
        "detail": {s: samples[s][0].get("_detail") for s in SIDES if samples[s]},
        "samples": {s: [{k: v for k, v in x.items() if k not in ("_hist", "_detail")} for x in samples[s]] for s in SIDES},
    }
    cpu = stats.cpu_metric(out["metrics"], out["facts"], per_kib) if r.group != "counts" else None
    if cpu:
        out["metrics"].append(stats.summarise(cpu, samples))
    if env.lib and r.off_tcp and samples["smcr"]:
        out["metrics"].append(stats.verdict_of_share(out["facts"]["share_off_tcp"], r.off_tcp))
    share = report.off_tcp(out).strip("*")
    for m in out["metrics"]:
        say("  %-26s tcp %-24s smcr %-24s %8s  goal %-14s %-7s %s" % (
            m["title"], report.spread(m["tcp"]), report.spread(m["smcr"]), report.gain(m["gain"]), m["goal"] or "-",
            "near" if m["near"] else {True: "met", False: "MISSED", None: ""}[m["met"]], "off TCP " + share if share else ""))
        share = ""
    return out, report.pooled_hists(samples)


def one_sweep(env, name, o, say):
    _title, _xlabel, xs, make, keys, _least = SWEEPS[name]
    data = []
    for x in xs:
        samples, failed = measure(env, make(x), max(1, min(3, o.reps // 2)), o, min(o.secs, 0.6), say)
        point = point_of(x, samples, failed, keys)
        data.append(point)
        say("  %8d  " % x + "  ".join("%s %s" % (s, " ".join("%s %s" % (k, report.num(point[s][k])) for k in keys)) for s in SIDES))
    return data


def against(title, a, b, goal, good):
    d = {"title": title, "goal": goal}
    for side in SIDES:
        x, y = a["metrics"][0][side], b["metrics"][0][side]
        d[side] = x["median"] / y["median"] if x and y and y["median"] else None
    d["met"] = d["smcr"] is not None and good(d["smcr"])
    return d


def derived(rows):
    """Goals that compare two rows of the same side."""
    by = {r["name"]: r for r in rows}
    out = []
    if "many4000" in by and "many32" in by:
        out.append(against("rate with 32 of 4,000 connections active, against 32 in all", by["many4000"], by["many32"], "at least 0.75", lambda v: v >= 0.75))
    for big, few, many in (("instr_epoll100", "instr_epoll", "200"), ("instr_epoll1000", "instr_epoll", "2,000")):
        if big in by and few in by:
            out.append(against("instructions of epoll_wait, send and recv with %s connections registered, against 2" % many, by[big], by[few],
                               "at most 1.1", lambda v: v <= 1.1))
    return out


def main():
    o = options()
    rows, sweeps = chosen(o)
    if o.list:
        for r in rows:
            print("%-16s %-9s %s" % (r.name, r.group, r.title))
        for s in sweeps:
            print("%-16s %-9s %s" % (s, "plots", SWEEPS[s][0]))
        return 0
    o.reps = o.reps or (3 if o.quick else 7)
    o.secs = o.secs or (0.5 if o.quick else 2.0)
    out_dir = os.path.abspath(o.out)
    os.makedirs(out_dir, exist_ok=True)
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, interrupted)
    work = tempfile.mkdtemp(prefix="smcr-bench-")
    os.chmod(work, 0o711)
    try:
        return run(o, rows, sweeps, work, out_dir)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def interrupted(_signal, _frame):
    """Ends the run after the sample at hand was taken down; the report has the rows so far."""
    raise KeyboardInterrupt


def say(text):
    print(text, flush=True)


def ceiling(env):
    """What shared memory can do here without any protocol; None with one processor."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        return None
    runs = []
    for _ in range(5):
        time.sleep(1)  # a host may move its virtual processors meanwhile
        try:
            with Proc(env, [env.prog("ceiling"), "cpu_a=%d" % cpus[0], "cpu_b=%d" % cpus[1]]) as p:
                runs.append(p.json())
        except Failed:
            pass
    if not runs:
        return None
    p50 = [stats.quantile(r["hist"], 0.5) / 1000.0 for r in runs]
    return {"p50_us": [min(p50), max(p50)], "gb_s": [min(r["gb_s"] for r in runs), max(r["gb_s"] for r in runs)]}


def commit():
    """The commit of the tree that the bench lies in, "+changes" if it differs; None without git."""
    def git(*args):
        r = subprocess.run(["git", "-C", os.path.dirname(os.path.abspath(__file__)), *args], capture_output=True, text=True)
        return r.stdout.strip() if r.returncode == 0 else None

    try:
        name = git("rev-parse", "--short", "HEAD")
        return name and name + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except OSError:
        return None


def raise_limits():
    """10,000 connections need as many files at each end."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 20000:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
        except (OSError, ValueError):
            pass


def run(o, rows, sweeps, work, out_dir):
    lib = None
    digest = None
    if o.lib:
        # a copy: a build during the run must not change what is measured; readable for other users
        lib = os.path.join(work, "libsmcr.so")
        shutil.copyfile(o.lib, lib)
        os.chmod(lib, 0o755)
        with open(lib, "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
    env = Env(lib, o.bin, work)
    raise_limits()
    netns = machine.own_netns()
    results = {
        "machine": machine.describe(netns),
        "quick": o.quick,
        "reps": o.reps,
        "secs": o.secs,
        "retries": o.retries,
        "library": digest,
        "commit": commit(),
        "rows": [],
        "skipped": [],
        "sweeps": {},
        "hists": {},
    }
    results["machine"]["ceiling"] = None if o.quick and o.rows else ceiling(env)
    if lib is None:
        say("no library: TCP against itself")
    begin = time.monotonic()
    try:
        for r in rows:
            why = r.why_not() or (r.setup(env) if r.setup else None)
            if why:
                results["skipped"].append((r.title, why))
                say("%s: not run, %s" % (r.name, why))
                continue
            say("%s: %s" % (r.name, r.title))
            got, results["hists"][r.name] = one_row(env, r, o, say)
            results["rows"].append(got)
        for s in sweeps:
            say("%s: %s" % (s, SWEEPS[s][0]))
            results["sweeps"][s] = one_sweep(env, s, o, say)
    except KeyboardInterrupt:
        say("interrupted: the report has the rows so far")
    results["derived"] = derived(results["rows"])
    results["growth"] = [v for name, points in results["sweeps"].items() if points for v in growth(name, points)] if lib else []
    results["minutes"] = round((time.monotonic() - begin) / 60, 1)

    md = os.path.abspath(o.markdown) if o.markdown else os.path.join(out_dir, "bench.md")
    js = os.path.abspath(o.json) if o.json else os.path.join(out_dir, "bench.json")
    plot_dir = os.path.abspath(o.plots) if o.plots else os.path.join(out_dir, "plots")
    images = report.draw(results, plot_dir, os.path.relpath(plot_dir, os.path.dirname(md)))
    with open(md, "w") as f:
        f.write(report.markdown(results, images))
    report.write_json(results, js)
    met, missed, near = report.tally(results)
    say("%d goals met, %d missed, %d missed within the spread, %.1f minutes; %s, %s" % (
        met, missed, near, results["minutes"], os.path.relpath(md), os.path.relpath(js)))
    if any(r["failed"] for r in results["rows"]) or any(p["failed"] for points in results["sweeps"].values() for p in points):
        return 1
    return 2 if missed and o.check else 0


if __name__ == "__main__":
    sys.exit(main())
