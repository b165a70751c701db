"""Owns one run of one job: a network and a process namespace of its own, so that ports are free, bytes on
`lo` can be counted, and everything that was started ends with it. Used by programs.py and suites.py.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

# What a loaded machine needs more of: every deadline is this many times as long.
PATIENCE = float(os.environ.get("SMCR_CONFORMANCE_PATIENCE", "1"))
# strict: both ends, and a fallback of a connection that should have left TCP is an error.
MODES = ("native", "both", "server", "client", "strict")
HERE = pathlib.Path(__file__).resolve().parent
# A server that was asked to end and does as it is asked.
ENDED = "ended"
# What is left of a process that crashes where its parent is not us: how servers, shells and C libraries tell of it.
CRASH = re.compile(rb"signal (?:4|6|7|8|11)\b|\bSIG(?:SEGV|ABRT|BUS|ILL|FPE)\b|Segmentation fault|\(core dumped\)|stack smashing|corrupted (?:size|double)|free\(\): invalid")


class Skip(Exception):
    """The job can't run here; the text says why."""


def run(job, mode, library, deadline, settings=()):
    """Runs `job` in namespaces of its own and returns what it found as a dict."""
    me = [sys.executable, str(HERE / "run.py"), "--inside", job, mode]
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", *user, "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", *me]
    environ = dict(os.environ, SMCR_CONFORMANCE_LIB=str(library))
    environ.update(settings)
    deadline *= PATIENCE
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
                               start_new_session=True)
    try:
        out, err = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"failed": f"not over after {deadline:.0f} s"}
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    return {"failed": (err.strip().splitlines() or ["no result"])[-1][:200]}


class Bed:
    """What a job sees: where to work, how to start the two ends, what crossed `lo`."""

    def __init__(self, mode):
        self.mode = mode
        self.library = os.environ["SMCR_CONFORMANCE_LIB"]
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="conformance-"))
        self.work.chmod(0o755)
        self.started = []
        self.names = []
        self.aside = 0
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)

    def environment(self, accelerated, more=None):
        environ = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        environ.update(more or {})
        if accelerated:
            environ["LD_PRELOAD"] = self.library
        if self.mode == "strict":
            environ["SMCR_STRICT"] = "1"
        return environ

    def server(self, *command, port=None, user=None, env=None, cwd=None):
        """Starts a server; returns when `port` answers."""
        log = open(self.work / f"server{len(self.started)}.log", "w")
        process = subprocess.Popen(as_user(user, command), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   cwd=cwd or self.work, env=self.environment(self.mode in ("both", "server", "strict"), env))
        self.started.append((process, log.name))
        self.names.append(pathlib.Path(str(command[0])).name)
        if port:
            self.wait_for(port)
        return process

    def wait_for(self, port, seconds=30):
        end = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"port {port} does not answer: {self.tail()}")

    def tail(self):
        """Last words of the servers, for a failure."""
        lines = [open(log).read().strip().splitlines()[-1:] for _, log in self.started]
        return " | ".join(line[0] for line in lines if line)

    def client(self, *command, user=None, env=None, cwd=None, seconds=120, stdin=b"", check=True):
        """Runs a client to its end; returns its standard output."""
        done = subprocess.run(as_user(user, command), input=stdin, capture_output=True, timeout=seconds * PATIENCE,
                              cwd=cwd or self.work, env=self.environment(self.mode in ("both", "client", "strict"), env))
        if done.returncode if check else done.returncode < 0:  # no client ends by a signal
            raise RuntimeError(f"{command[0]} exits {done.returncode}: {done.stderr.decode(errors='replace').strip()[-160:]}"
                               f" {self.tail()}")
        return done.stdout

    def quiet(self, *command, user=None, env=None, cwd=None):
        """Set-up that is no part of the job: never accelerated, and what crosses `lo` meanwhile does not count."""
        before = lo_bytes()
        done = subprocess.run(as_user(user, command), capture_output=True, cwd=cwd or self.work, timeout=300 * PATIENCE,
                              env=self.environment(False, env))
        self.aside += lo_bytes() - before
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.decode(errors='replace').strip()[-200:]}")
        return done.stdout

    def alive(self):
        """Every server still runs."""
        for process, log in self.started:
            if process.poll() not in (None, 0):
                raise RuntimeError(f"a server ended with {process.poll()}: {open(log).read().strip()[-160:]}")
            fallback = [line for line in open(log, errors="replace") if "smcr: strict:" in line]
            if fallback:
                raise RuntimeError(fallback[0].strip())

    def file(self, name, size):
        """A file of `size` bytes that look random and are the same each time; returns its path."""
        path, block = self.work / name, hashlib.sha256(name.encode()).digest()
        with open(path, "wb") as f:
            left = size
            while left > 0:
                block = hashlib.sha512(block).digest() * 64
                f.write(block[:left])
                left -= len(block)
        path.chmod(0o644)
        return path

    def files(self, folder, n):
        """A new folder with `n` files of 1 MiB, 2 MiB and so on; returns its path."""
        path = self.work / folder
        path.mkdir()
        for i in range(n):
            self.file(f"{folder}/f{i}", (i + 1) << 20)
        return path

    def stop(self):
        """Asks every server to end; returns how each did, and what they had to say of crashes: run.py compares that with the native run."""
        for process, _ in self.started:
            if process.poll() is None:
                process.terminate()
        ends = []
        for number, (process, _) in enumerate(self.started, 1):
            try:
                ends.append(f"server {number} ({self.names[number - 1]}) {ending(process.wait(10 * PATIENCE))}")
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                ends.append(f"server {number} ({self.names[number - 1]}) did not end when asked")
        for log in sorted(p for p in self.work.glob("*log") if p.is_file()):
            if log.stat().st_size < 64 << 20 and (told := CRASH.search(log.read_bytes())):
                ends.append(f"{log.name} tells of {told[0].decode()}")
        return ends

    def done(self):
        for process, _ in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self.work, ignore_errors=True)


def ending(status):
    """How a process ended; by the signal that it was sent, or by exit(0): as it was asked."""
    if status in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        return ENDED
    return f"exits {status}" if status > 0 else f"dies of {signal.Signals(-status).name}"


def as_user(user, command):
    """The command, run by `user` where this process may choose."""
    command = [str(c) for c in command]
    if user is None:
        return command
    if os.geteuid() != 0 or not can_switch():
        raise Skip(f"needs to run as {user}")
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"][:4] + command


def can_switch():
    """Whether other users exist in this user namespace."""
    return len(open("/proc/self/uid_map").read().split()) == 3 and open("/proc/self/uid_map").read().split()[2] != "1"


def need(*programs):
    """Skips unless all are installed."""
    missing = [p for p in programs if not shutil.which(p) and not os.path.exists(p)]
    if missing:
        raise Skip(f"not installed: {' '.join(missing)}")


def lo_bytes():
    """Bytes that crossed the loopback device of this namespace."""
    for line in open("/proc/net/dev"):
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[0])
    return 0


def patient(seconds):
    """As `timeout` takes it."""
    return str(int(seconds * PATIENCE))


def redis_values(bed, port, keys):
    """A digest of what stands under these keys, each of which must be there."""
    said = bed.client("redis-cli", "-e", "-p", port, "mget", *keys)
    there = sum(bool(line) for line in said.splitlines())
    if there != len(keys):
        raise RuntimeError(f"{there} of {len(keys)} keys: {said[:200]}")
    return f"{there} {digest(said)}"


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]
