#!/usr/bin/env python3
"""The lab: two guests with soft RoCE and the kernel's SMC-R, booted once, and many cases in them.

    tests/lab/run.py [-k WORDS]... [--list] [--out DIR]

Each case prints one line: its result, and the proof (bytes that IP of a guest counted on RoCE and on TCP,
and what the kernel says of its sockets where it is a peer). A connection that falls back to TCP fails its
case, unless the case is about that. Exit status 0: all passed. Needs the release build (SMCR_LIB and
SMCR_CTL name others).
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from guests import Failed, Guests  # noqa: E402
from lab import CASES, Lab, grown  # noqa: E402

import cases_streams  # noqa: E402, F401, I001
import cases_ends  # noqa: E402, F401
import cases_programs  # noqa: E402, F401
import cases_apps  # noqa: E402, F401
import cases_blind  # noqa: E402, F401
import cases_process  # noqa: E402, F401
import cases_way_back  # noqa: E402, F401
import cases_no_way_back  # noqa: E402, F401
import cases_two_devices  # noqa: E402, F401
import cases_again  # noqa: E402, F401
import cases_fallback  # noqa: E402, F401
import cases_limits  # noqa: E402, F401
import cases_connect  # noqa: E402, F401
import cases_families  # noqa: E402, F401
import cases_still  # noqa: E402, F401
import cases_lost  # noqa: E402, F401
import cases_hostile  # noqa: E402, F401
import cases_clc  # noqa: E402, F401
import cases_cut  # noqa: E402, F401
import cases_faults  # noqa: E402, F401
import cases_ktls  # noqa: E402, F401
import cases_twice  # noqa: E402, F401


# Some of each kind, for `make test`: streams, half-close and urgent bytes in each pair, the way back, fallback.
SHORT = [r"^tcp -> tcp", r"smcr.*: (1 B to 64 KiB|half-close|urgent byte( from the server)?$)", r"^way back (the link dies under load|exec|drain with bytes unread)", r"^two devices: both",
         r"^fallback: (a plain TCP client -> smcr|smcr -> a plain TCP|no device, kernel|RoCE is blocked, smcr -> kernel)", r"^way back: closed at once", r"^limits: no thread may be made, (kernel -> smcr|smcr client without -> smcr)"]


# An end posts more receives than can be on their way, so that none is missed, but where a case is about that.
REFUSING = r"faults|hostile"


def built(variable, name):
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(HERE, "..", "..", "target")
    path = os.path.realpath(os.environ.get(variable) or os.path.join(target, "release", name))
    if not os.path.exists(path):
        sys.exit(f"{path} is not there: make build")
    return path


def faulty(cache):
    """The library with faults on demand, built where the tests of one host build it."""
    target = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(HERE, "..", "..", "target"), "smcr-tests", "faults")
    cargo = os.environ.get("CARGO", "cargo")
    subprocess.run([cargo, "build", "-q", "-p", "smcr-preload", "--features", "faults", "--target-dir", target], check=True, cwd=HERE)
    return shutil.copy2(os.path.join(target, "debug", "libsmcr.so"), os.path.join(cache, "libsmcr-faults.so"))


def boot(out=None, bench=False, faults=False, apps=False, **more):
    """Guests with the files of this build."""
    if apps:
        subprocess.run([f"{HERE}/../deps.sh", "apps"], check=True, stdout=sys.stderr)
    files = {name: built(variable, name) for variable, name in [("SMCR_LIB", "libsmcr.so"), ("SMCR_CTL", "smcrctl")]}
    kernel, cache = subprocess.run([f"{HERE}/prepare.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    compiled = [("smcrun.so", "smcrun.c", "-O1 -shared -fPIC", "-ldl"), ("echo_many", "../c/echo_many.c", "-O1", "-lpthread"), ("blind", "blind.c", "-O1", "")]
    if bench:
        compiled.append(("bench", "bench.c", "-O2", "-lpthread"))
    for name, source, options, libraries in compiled:
        files[name] = os.path.join(cache, name)
        subprocess.run(["cc", *options.split(), "-o", files[name], f"{HERE}/{source}", *libraries.split()], check=True)
    if faults:
        files["libsmcr-faults.so"] = faulty(cache)
    return Guests(kernel, cache, files, out, **more)


def still(guest):
    seconds = guest.stood_still()
    return "more than 20 s" if seconds is None else f"{seconds:.1f} s"


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("-k", action="append", default=[], help="only cases whose name matches this expression")
    parse.add_argument("-x", action="append", default=[], help="leave out cases whose name matches this")
    parse.add_argument("--list", action="store_true")
    parse.add_argument("--out", help="keep consoles and logs in this directory")
    parse.add_argument("--log", default="", help="SMCR_LOG for programs under the library; needs --out")
    parse.add_argument("--packets", action="store_true", help="keep the first bytes of each packet that guest B sees; needs --out")
    parse.add_argument("--short", action="store_true", help="only a few cases")
    parse.add_argument("--times", type=int, default=1, help="run the cases so often")
    args = parse.parse_args()
    if args.short:
        args.k += SHORT
    cases = [c for c in CASES if (not args.k or any(re.search(k, c[0]) for k in args.k))
             and not any(re.search(x, c[0]) for x in args.x)]
    if args.list:
        print("\n".join(name for name, _ in cases))
        return 0
    cases *= args.times
    began, tried = time.monotonic(), None
    try:
        with boot(args.out, packets=args.packets, faults=any(name.startswith(("hostile", "faults")) for name, _ in cases),
                  apps=any(name.startswith("apps") for name, _ in cases)) as guests:
            tried = Tried(guests, args.log)
            print(f"lab: two guests with Linux {guests.kernel}, ready after {time.monotonic() - began:.0f} s", flush=True)
            failed = [case for case in cases if not tried.passes(*case)]
            later = []
            if args.short and 0 < len(failed) <= 2:  # guests of a busy machine may not get the processor that a case needs: once more
                print(f"lab: once more: {', '.join(name for name, _ in failed)}", flush=True)
                later = [case for case in failed if tried.passes(*case)]
                failed = [case for case in failed if case not in later]
            if failed:
                for guest in (tried.lab.a, tried.lab.b):
                    print(f"--- kernel log of guest {guest.role} ---\n{guest.run('dmesg | tail -15')}", end="")
    except (Failed, subprocess.CalledProcessError) as error:
        print(f"FAIL lab: {error}")
        failed, later = cases, []
    at_second = f", at the second attempt: {', '.join(name for name, _ in later)}" if later else ""
    print(f"lab: {tried.passed if tried else 0} of {len(cases)} cases passed in {time.monotonic() - began:.0f} s{at_second}")
    return 1 if failed else 0


class Tried:
    """Runs cases one after the other in guests that are ready, and prints what each gave."""

    def __init__(self, guests, log):
        self.guests, self.log, self.passed = guests, log, 0
        self.lab = ready(guests, log)

    def passes(self, name, function, again=True):
        start, lab, failed = time.monotonic(), self.lab, False
        try:
            [guest.stood_still() for guest in (lab.a, lab.b)]  # counts from here on
            before = lab.not_ready()
            text = function(lab)
            refused = {name: n for name, n in grown(before, lab.not_ready()).items() if n}
            if refused and not re.match(REFUSING, name):
                raise Failed(f"a message found no receive: {refused}; {text}")
            self.passed += 1
        except Exception as error:
            text, failed = told(error), True
            try:
                text = "\n       ".join([text, *about(lab)])
                lab.after_failure()
            except Failed as more:
                text += f"\n       {more}"
        print(f"{'FAIL' if failed else 'ok  '} {name}: {text} [{time.monotonic() - start:.1f} s]", flush=True)
        if failed and (dead := dead_of(lab)):
            for role in dead:
                print(f"--- end of the console of guest {role} ---\n{self.guests.console(role)}\n---", flush=True)
            flags = [flags for role in dead if (flags := self.guests.impossible_flags(role))]
            self.guests.boot_again()
            self.lab = ready(self.guests, self.log)
            if flags and again:
                print(f"lab: the emulator's failure: processor flags {flags[0]}, which no processor can have; the case once more", flush=True)
                return self.passes(name, function, again=False)
        return not failed


def ready(guests, log):
    lab = Lab(guests, log)
    lab.set_up()
    return lab


def dead_of(lab):
    """Guests that have gone, or do not answer, or whose kernel has lost a thread: nothing that they do afterwards says anything."""
    def is_dead(guest):
        try:
            return guest.stood_still() is None or lab.guests.has_oops(guest.role)
        except Failed:
            return True
    return [guest.role for guest in (lab.a, lab.b) if is_dead(guest)]


def told(error):
    """What a case failed by; of what it did not foresee also where."""
    if isinstance(error, Failed):
        # What it cleans up with may fail as well, and is not what has failed first.
        first = error.__context__ if error.__cause__ is None else None
        return f"{told(first)}; then {error}" if isinstance(first, Failed) else str(error)
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({os.path.basename(at.filename)}:{at.lineno})"


def about(lab):
    """What is worth knowing after a failure."""
    servers = [f"{kind} server in {role}: {job.tail()}" for (kind, role), job in lab.servers.items() if "server:" in job.out]
    stood = [f"guest {guest.role} stood still for {still(guest)} at most" for guest in (lab.a, lab.b)]
    return [*servers, ", ".join(stood)]


if __name__ == "__main__":
    sys.exit(main())
