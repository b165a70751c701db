#!/usr/bin/env python3
"""The cases of `tests/c` between two guests: each runs natively, and with the library at both ends; what the ends print, and how they end, must be the same.

    twice.py a ADDRESS LIBRARY PROGRAM [CASE]...     in the guest with this address, where the listening ends run
    twice.py b ADDRESS LIBRARY PROGRAM               in the other one

The ends of a case tell each other by descriptor 3 when to go on; here that goes by a plain TCP connection for each run. A line for each case:
"same"; "other" with the first differences; "unsteady" where it has two native transcripts, as of times that hold on one host alone; "unsound" where it comes to
nothing natively. Behind it stands what RoCE has carried of the run under the library, in bytes of IP.
"""
import difflib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

from flow import line
from kernel import counters

DEADLINE = float(os.environ.get("DEADLINE", "60"))
PORT = 3901
KEEP = os.environ.get("KEEP")


def relay(one, other):
    """Bytes of descriptor 3, both ways, until both have ended."""
    def copy(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
    for ends in ((one, other), (other, one)):
        threading.Thread(target=copy, args=ends, daemon=True).start()


def run(program, case, side, sync, env):
    """What this end has printed and how it ended."""
    ours, theirs = socket.socketpair()

    def first():
        os.dup2(theirs.fileno(), 3)
        os.setpgid(0, 0)
    process = subprocess.Popen([program, case, side], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=first,
                               pass_fds=(3,), env=env)
    theirs.close()
    relay(ours, sync)
    try:
        out, _ = process.communicate(timeout=DEADLINE)
        how = process.returncode
    except subprocess.TimeoutExpired:
        how = "hangs"
        kill(process.pid)
        out, _ = process.communicate()
    kill(process.pid)
    ours.close()
    return [f"{side}: {line}" for line in out.decode(errors="replace").splitlines()] + [f"{side}: ends with {how}"]


def kill(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def say(control, what):
    control.sendall(json.dumps(what).encode() + b"\n")


def environment(address, library):
    env = {**os.environ, "CASE_ADDRESS": address}
    return {**env, "LD_PRELOAD": library} if library else env


def came_to_nothing(said):
    return any("hangs" in text or "DIED" in text for text in said)


class Pair:
    """The listening side, which leads."""

    def __init__(self, address, library, program):
        self.address, self.library, self.program = address, library, program
        self.listener = socket.create_server((address, PORT), reuse_port=True)
        print("leads", flush=True)
        self.control = self.listener.accept()[0]

    def both(self, case, library):
        say(self.control, [case, bool(library)])
        sync = self.listener.accept()[0]
        mine = run(self.program, case, "a", sync, environment(self.address, library))
        theirs = line(self.control)
        sync.close()
        return mine + theirs

    def check(self, case):
        native = self.both(case, None)
        if came_to_nothing(native):
            return "unsound " + " | ".join(native[-4:])
        before = counters()["roce"]
        ours = self.both(case, self.library)
        carried = counters()["roce"] - before
        if ours == native:
            return f"same {carried}"
        if not came_to_nothing(ours) and any(self.both(case, None) != native for _ in range(3)):
            return f"unsteady {carried}"
        self.keep(case, native, ours)
        changed = [said for said in difflib.unified_diff(native, ours, lineterm="", n=0) if not said.startswith(("---", "+++", "@@"))]
        return f"other {carried} " + " | ".join(changed[:8])

    def keep(self, case, native, ours):
        """Both transcripts whole, where KEEP names a directory."""
        if not KEEP:
            return
        for name, said in (("native", native), ("library", ours)):
            with open(f"{KEEP}/{os.path.basename(self.program)}.{case}.{name}", "w") as file:
                file.write("\n".join(said) + "\n")


def lead(address, library, program, *cases):
    pair = Pair(address, library, program)
    listed = subprocess.run([program, "list"], capture_output=True, text=True, check=True).stdout.split("\n")
    for name in [text.split()[0] for text in listed if text]:
        if not cases or any(re.fullmatch(case, name) for case in cases):
            print(f"{os.path.basename(program)}::{name} {pair.check(name)}", flush=True)


def follow(address, library, program):
    until = time.monotonic() + DEADLINE
    while True:
        try:
            control = socket.create_connection((address, PORT))
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
    while True:
        try:
            case, with_library = line(control)
        except EOFError:
            return
        sync = socket.create_connection((address, PORT))
        say(control, run(program, case, "b", sync, environment(address, library if with_library else None)))
        sync.close()


if __name__ == "__main__":
    {"a": lead, "b": follow}[sys.argv[1]](*sys.argv[2:])
