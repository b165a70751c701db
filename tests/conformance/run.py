#!/usr/bin/python3
"""Runs programs and test suites of others natively and under the library, compares, and writes the scoreboard.

    run.py [--only WORD] [--programs | --suites] [--short] [--write docs/compatibility.md]
    run.py --quick      suites that take seconds, for `make test`; nothing is kept

Exit status 1: something that holds natively does not hold under the library.
"""

import argparse
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
        rows = [suite(name, library) for name in suites.QUICK]
        for row in rows:
            show(row)
        return 1 if any(row["verdict"].startswith("DIFFERS") for row in rows) else 0
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
    return 1 if kept.differs else 0


class Kept:
    """Rows of this run and of earlier ones, each with its library's commit, so that the scoreboard can be made in parts."""

    def __init__(self, path):
        self.path, self.differs = path, False
        self.found = json.loads(path.read_text()) if path.exists() else {"programs": [], "suites": []}
        self.found["machine"] = f"{platform.release()}, {os.cpu_count()} processors"
        self.found["date"] = time.strftime("%Y-%m-%d")
        self.revision = os.environ.get("SMCR_REVISION") or revision()

    def add(self, kind, row):
        show(row)
        row["revision"] = self.revision
        self.differs |= row["verdict"].startswith("DIFFERS")
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
    row["off"] = 1 - both["lo"] / native["lo"] if "lo" in both else None
    wrong = [f"{m}: {r.get('failed') or 'other bytes'}" for m, r in row["modes"].items() if r.get("result") != native["result"]]
    row["verdict"] = "DIFFERS, " + "; ".join(wrong) if wrong else "same"
    return row


def suite(name, library):
    """One suite, natively and with the library in every process of it."""
    native, both = beds.run(name, "native", library, 600), beds.run(name, "both", library, 600, EARLY)
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
    lost = sorted(set(native["result"]["passed"]) - set(both["result"]["passed"]))
    for _ in range(2):  # what fails by chance natively fails by chance here too: it counts when it fails three times
        if not lost:
            break
        again = beds.run(name, "both", library, 600, EARLY)
        lost = sorted(set(lost) - set(again.get("result", {}).get("passed", [])))
    row["off"] = 1 - both["lo"] / native["lo"] if native["lo"] else None
    row["lost"] = lost
    row["verdict"] = f"DIFFERS, {len(lost)} lost: {', '.join(lost[:6])}" if lost else "same"
    return row


def show(row):
    off = row.get("off")
    print(f"{row['name']:32} {'' if off is None else f'{100 * off:6.1f} % off TCP':18} {row['verdict']}", flush=True)


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
        bed.done()
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
