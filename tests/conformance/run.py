#!/usr/bin/python3
"""Runs programs and test suites of others natively and under the library, compares, and writes the scoreboard.

    run.py [--only WORD] [--programs | --suites] [--short] [--write docs/compatibility.md]
    run.py --quick      suites that take seconds, for `make test`; nothing is kept

Exit status 1: something that holds natively does not hold under the library, or a row is below its floor of floors.py. What could not be run is
named at the end; with --quick it is a failure as well, unless its package can't be had here.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import appservers
import bed as beds
import brokers
import clusters
import daemons
import floors
import frameworks
import handovers
import languages
import pools
import programs
import proxies
import report
import sources
import storage
import suites
import telephony
import threaded
import tools
import tunnels

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = [job for module in (programs, proxies, brokers, daemons, appservers, tools, clusters, pools, tunnels, languages, handovers, telephony, storage, threaded, frameworks)
            for job in module.PROGRAMS]
# Suites open thousands of short connections: with this they go to memory at once, where by default they never would.
EARLY = {"SMCR_SWITCH_OPS": "1"}


def main():
    options = argparse.ArgumentParser(description="Programs and suites, natively and under the library.")
    options.add_argument("--only", default="", help="those with this word in their names")
    options.add_argument("--programs", action="store_true", help="programs only")
    options.add_argument("--suites", action="store_true", help="suites only")
    options.add_argument("--short", action="store_true", help="programs with both ends only")
    options.add_argument("--quick", action="store_true", help="suites of suites.QUICK only; nothing is kept")
    options.add_argument("--write", metavar="FILE", help="write the scoreboard there")
    options.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.inside:
        return inside(*given.inside)
    library = os.environ.get("SMCR_LIB") or f"{os.environ.get('CARGO_TARGET_DIR', ROOT / 'target')}/release/libsmcr.so"
    if not os.path.exists(library):
        sys.exit(f"{library} is not there: make build")
    library = os.path.realpath(library)
    if given.quick:
        rows = []
        with concurrent.futures.ThreadPoolExecutor(3) as pool:  # they sleep most of the time, each in namespaces of its own
            for row in pool.map(lambda name: suite(name, library), suites.QUICK):
                show(row)
                rows.append(row)
        wanted = [row["name"] for row in rows if not_run(row) and suites.can_be_had(row["name"])]
        return 1 if summary(rows, "suites") or wanted else 0
    cache = ROOT / "target" / "conformance"
    cache.mkdir(parents=True, exist_ok=True)
    kept = Kept(cache / "results.json")
    if not given.suites:
        for job in PROGRAMS:
            if given.only in job.__name__:
                kept.add("programs", program(job.__name__, library, given.short))
    if not given.programs:
        for name, _, _ in suites.jobs():
            if given.only in name:
                for package in suites.packages(name):
                    sources.prepare(cache, package)
                kept.add("suites", suite(name, library))
    if given.write:
        scoreboard = pathlib.Path(given.write)
        order = {"programs": [job.__name__.replace("_", " ") for job in PROGRAMS], "suites": [name for name, _, _ in suites.jobs()]}
        scoreboard.write_text(report.markdown(kept.found, order, scoreboard.read_text() if scoreboard.exists() else ""))
    return max(summary(rows, kind) for kind, rows in kept.fresh.items())


def not_run(row):
    return row["verdict"].startswith("not run")


def summary(rows, kind):
    """Says at the end how it went, what could not be run, and which rows have no floor; returns the exit status."""
    if not rows:
        return 0
    bad = [row["name"] for row in rows if row["verdict"].startswith(("DIFFERS", "FELL BACK"))]
    left = [row for row in rows if not_run(row)]
    print(f"{kind}: {len(rows) - len(bad) - len(left)} of {len(rows)} same", end="")
    print(f"; not the same: {', '.join(bad)}" if bad else "")
    if left:
        print(f"{kind}: {len(left)} not run: " + "; ".join(f"{row['name']} ({row['verdict'].removeprefix('not run: ')})" for row in left))
    unknown = [row["name"] for row in rows if not not_run(row) and floors.floor(kind, row["name"]) is None]
    if unknown:
        print(f"{kind}: no floor in floors.py: {', '.join(unknown)}")
    return 1 if bad else 0


class Kept:
    """Rows of this run and of earlier ones, each with its library's commit, so that the scoreboard can be made in parts."""

    def __init__(self, path):
        self.path, self.fresh = path, {"programs": [], "suites": []}
        self.found = json.loads(path.read_text()) if path.exists() else {"programs": [], "suites": []}
        self.found["machine"] = f"{platform.release()}, {os.cpu_count()} processors"
        self.found["date"] = time.strftime("%Y-%m-%d")
        self.revision = os.environ.get("SMCR_REVISION") or revision()

    def add(self, kind, row):
        show(row)
        row["revision"] = self.revision
        self.fresh[kind].append(row)
        self.found[kind] = [r for r in self.found[kind] if r["name"] != row["name"]] + [row]
        self.path.write_text(json.dumps(self.found))


def revision():
    """The commit that is checked out; SMCR_REVISION says which one a library from elsewhere is of."""
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return said or "unknown"


def program(name, library, short):
    """One program in all combinations of ends."""
    row = {"name": name, "modes": {}}
    for mode in ("native", "both") if short else beds.MODES:
        row["modes"][mode] = beds.run(name, mode, library, 300)
    native, both = row["modes"]["native"], row["modes"]["both"]
    if "skip" in native or "failed" in native:
        row["verdict"] = "not run: " + (native.get("skip") or native["failed"])
        return row
    row["off"] = off(native, both)
    row["ends"] = endings(name, library, row["modes"])
    wrong = [f"{m}: {r.get('failed') or r.get('skip') or 'other bytes'}" for m, r in row["modes"].items() if r.get("result") != native["result"]]
    wrong += [f"{m}: {end}" for m, found in row["ends"].items() for end in found]
    below = floors_hold("programs", row, lambda: off(beds.run(name, "native", library, 300), beds.run(name, "both", library, 300)))
    row["verdict"] = "DIFFERS, " + "; ".join(wrong) if wrong else below or "same"
    return row


def endings(name, library, modes):
    """How servers end that end otherwise than as they are asked, and never do natively: by ends. Natively it is looked at three times."""
    natively = set(modes["native"].get("ends", []))
    def others():
        found = {mode: [end for end in run.get("ends", []) if not end.endswith(" " + beds.ENDED) and end not in natively] for mode, run in modes.items()}
        return {mode: ends for mode, ends in found.items() if ends}
    for _ in range(2):
        if not others():
            break
        natively.update(beds.run(name, "native", library, 300).get("ends", []))
    return others()


def suite(name, library):
    """One suite, natively and with the library in every process of it."""
    def once(mode):
        return beds.run(name, mode, library, 600, EARLY if mode == "both" else ())
    native, both = once("native"), once("both")
    row = {"name": name, "native": native, "both": both, "off": None}
    if "skip" in native or "failed" in native:
        row["verdict"] = "not run: " + (native.get("skip") or native["failed"])
        return row
    if not native["result"]["passed"]:
        row["verdict"] = f"not run: nothing passes natively: {native['result']['failed'][:1]}"
        return row
    if "result" not in both:
        row["verdict"] = f"DIFFERS, {both.get('failed') or both.get('skip')}"
        return row
    row["off"] = off(native, both)
    row["lost"], row["chance"] = compare(native, both, once)
    below = floors_hold("suites", row, lambda: off(once("native"), once("both")))
    lost = row["lost"]
    row["verdict"] = f"DIFFERS, {len(lost)} lost: {', '.join(lost[:6])}" if lost else below or "same"
    return row


def compare(native, both, once):
    """Tests that are lost: they pass in each of three native runs and in none of three with the library. And those that are lost in the first two
    alone, with how often each passed on either side: their own race, or one that the library widens."""
    natively, here = [tally(native)], [tally(both)]
    first = missing = sorted((natively[0] - here[0]).elements())
    while missing and len(here) < 3:
        for counts, mode in ((natively, "native"), (here, "both")):
            found = once(mode)
            if mode == "both" or "result" in found:  # a native run that comes to nothing excuses nothing
                counts.append(tally(found))
        missing = [test for test in missing if max(c[test] for c in here) < min(c[test] for c in natively)]
    chance = {test: f"{ratio(natively, test)} natively, {ratio(here, test)} here" for test in first if test not in missing}
    return sorted(set(missing)), chance


def ratio(counts, test):
    """In how many of these runs it passed as often as in the first native one."""
    most = max(c[test] for c in counts)
    return f"{sum(c[test] >= most > 0 for c in counts)} of {len(counts)}"


def tally(found):
    """How often each name passed: some suites use one for several tests."""
    return collections.Counter(found.get("result", {}).get("passed", []))


def off(native, both):
    """The share that left TCP; None where there is none natively, or a run came to nothing."""
    return 1 - both["lo"] / native["lo"] if native.get("lo") and "lo" in both else None


def floors_hold(kind, row, measure):
    """What to say of a row below its floor. Connections that are moved at random (`make flip`) have none."""
    return None if os.environ.get("SMCR_FLIP") else floors.short(kind, row, measure)


def show(row):
    share = row.get("off")
    chance = "".join(f"; by chance {test}: {how}" for test, how in row.get("chance", {}).items())
    print(f"{row['name']:32} {'' if share is None else f'{100 * share:6.1f} % off TCP':18} {row['verdict']}{chance}", flush=True)


def inside(name, mode):
    """In the namespaces: runs the job and prints what it found as one line of JSON."""
    job = next((job for job in PROGRAMS if job.__name__ == name), None) or suites.find(name)
    bed = beds.Bed(mode)
    answer = {}
    try:
        result = job(bed)
        bed.alive()
        answer = {"result": result.decode() if isinstance(result, bytes) else result, "lo": beds.lo_bytes() - bed.aside}
    except beds.Skip as why:
        answer = {"skip": str(why)}
    except Exception as error:  # whatever goes wrong in a job is its result
        answer = {"failed": f"{type(error).__name__}: {error}"[:300]}
    finally:
        try:
            answer["ends"] = bed.stop()
        finally:
            bed.done()
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
