#!/usr/bin/env python3
"""Instructions that two guests execute, kernel and programs together, for a message over each medium: what measure.py times, in
numbers that the load of this machine does not change.

    tests/lab/instructions.py [-n REPETITIONS] [--media NAMES] [--rows TEXT] [--lib NAME=FILE]...

The emulators run with -icount: a guest's clock goes on by its own instructions, and by real time only while the guest is idle. So
the time in which its processors were not idle is a number of instructions. Real time and a guest's do not go equally fast while it
runs, so a wait that polls would find its answer more often than on a real machine: libsmcr's do not (SMCR_SPIN_US=0), as a wait of
the lab's length never does. Two runs of the whole differ by some per cent, for the machine's load changes which packets come together;
what the two programs execute themselves, system calls included, differs less.
"""
import argparse
import os
import re
import shutil
import statistics

from counts import KINDS, roce
from guests import COUNTED_SHIFT, Failed
from lab import LIB, Lab
from measure import MEDIA
from run import boot

ROWS = "ping 64 3000;ping 65536 300;stream 65536 16777216"
PROCESSORS = 2


def busy(guest):
    """Nanoseconds in which its processors were not idle."""
    up, *fields = guest.run("cut -d' ' -f1 /proc/uptime; sed -n '1s/cpu *//p' /proc/stat").split()
    return (float(up) * PROCESSORS - (int(fields[3]) + int(fields[4])) / 100) * 1e9


def used(guest, pid):
    """Nanoseconds that a process has had a processor, threads that have ended included: its clock by its number."""
    return float(guest.run(f"python3 -c 'import time; print(time.clock_gettime_ns(~{pid} << 3 | 2))'"))


def one(lab, medium, port, words, pid):
    """Instructions in both guests, those of the two programs, and counts of RoCE, for a round trip or a write."""
    each = int(words[2]) * 1.1 if words[0] == "ping" else int(words[2]) / int(words[1])
    before, server, was = roce(lab), used(lab.a, pid), [busy(guest) for guest in (lab.a, lab.b)]
    text = lab.b.run(f"TIMEFORMAT='client %3U %3S'; time env {medium} /lab/bench {words[0]} {lab.a.ip} {port} {' '.join(words[1:])}", 300)
    spent = sum(busy(guest) - old for guest, old in zip((lab.a, lab.b), was))
    client = sum(float(part) for part in re.search(r"^client (\S+) (\S+)", text, re.M).groups()) * 1e9
    programs = used(lab.a, pid) - server + client
    counts = {kind: (n - before[kind]) / each for kind, n in roce(lab).items()}
    return [n / 2 ** COUNTED_SHIFT / each for n in (spent, programs)], counts


def media(lab, names, libraries, out):
    """Each medium's environment; libsmcr once for each library that is named."""
    found = {name: MEDIA[name] for name in names if name != "libsmcr" or not libraries}
    if "libsmcr" in found:
        found["libsmcr"] = f"SMCR_SPIN_US=0 LD_PRELOAD={LIB}"
    for name, path in libraries.items():
        # One directory each: the library goes by its name.
        shutil.copy(path, os.path.join(out, f"lib{name}.so"))
        for guest in (lab.a, lab.b):
            guest.run(f"mkdir -p /usr/local/lib/{name} && cp /lab/lib{name}.so /usr/local/lib/{name}/libsmcr.so")
        found[name] = f"SMCR_SPIN_US=0 LD_PRELOAD=/usr/local/lib/{name}/libsmcr.so"
    return found


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("-n", type=int, default=3)
    parse.add_argument("--media", default=",".join(MEDIA))
    parse.add_argument("--rows", default=ROWS)
    parse.add_argument("--lib", action="append", default=[], help="NAME=FILE, in place of the build's library; may be repeated")
    args = parse.parse_args()
    with boot(bench=True, counted=True) as guests:
        lab = Lab(guests)
        lab.set_up(600)
        which = media(lab, args.media.split(","), dict(lib.split("=", 1) for lib in args.lib), guests.out)
        ports = {name: 5400 + at for at, name in enumerate(which)}
        pids = {}
        for name, environment in which.items():
            server = lab.a.start(f"echo pid $$; exec env {environment} /lab/bench serve {lab.a.ip} {ports[name]}").expect("serving", 120)
            pids[name] = int(re.search(r"^pid (\d+)", server.out, re.M)[1])
        for row in args.rows.split(";"):
            found = {name: [] for name in which}
            for _ in range(args.n):
                for name, environment in which.items():
                    try:
                        found[name].append(one(lab, environment, ports[name], row.split(), pids[name]))
                    except Failed as error:
                        print(f"{name}, {row}: {error}", flush=True)
            for name, values in found.items():
                if values:
                    both, programs = ([round(spent[at]) for spent, _ in values] for at in (0, 1))
                    counts = ", ".join(f"{values[-1][1][kind]:.2f} {words}" for kind, words in KINDS.items())
                    print(f"{row}: {name}: both guests {told(both)}, the programs {told(programs)} instructions; {counts}", flush=True)


def told(numbers):
    return f"{statistics.median(numbers):,.0f} ({min(numbers):,} to {max(numbers):,})"


if __name__ == "__main__":
    main()
