"""Processes of the bench: start, wait for readiness, deadline, end, CPU time.

Only processes that this driver started are ever signalled, each by its own process group."""

import ctypes
import json
import os
import resource
import select
import signal
import socket
import subprocess
import time

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """A sample could not be taken; the text says why."""


class Env:
    """Where things are, and how the accelerated side is made."""

    def __init__(self, lib, bindir, workdir):
        self.lib = lib  # None: nothing is preloaded, the comparison of TCP with itself
        self.bindir = bindir
        self.workdir = workdir

    def prog(self, name):
        return os.path.join(self.bindir, name)

    def environ(self, accelerated):
        env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "SMCR_LIB")}
        if accelerated and self.lib:
            env["LD_PRELOAD"] = self.lib
        return env


class Proc:
    """One program in its own process group. `accel` preloads the library; `cpus` pins; `user` is (uid, gid)."""

    def __init__(self, env, argv, accel=False, cpus=None, user=None, deadline=30.0, cwd=None, stdin=False, cgroup=None):
        self.argv = argv
        self.ends = time.monotonic() + deadline
        self.usage = None
        self.out = b""
        self.pending = b""
        self.err_path = os.path.join(env.workdir, "err-%d-%d" % (os.getpid(), time.monotonic_ns()))

        def child():
            if cgroup:
                with open(os.path.join(cgroup, "cgroup.procs"), "w") as f:
                    f.write("0")
            if cpus is not None:
                os.sched_setaffinity(0, cpus)
            if user:
                os.setgroups([])
                os.setgid(user[1])
                os.setuid(user[0])
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

        with open(self.err_path, "wb") as err:
            self.p = subprocess.Popen(
                argv,
                env=env.environ(accel),
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=err,
                cwd=cwd or env.workdir,
                start_new_session=True,
                preexec_fn=child,
            )
        self.pid = self.p.pid

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()

    def name(self):
        return os.path.basename(self.argv[0])

    def errors(self):
        try:
            with open(self.err_path, "rb") as f:
                return f.read()[-600:].decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def _read_some(self):
        left = self.ends - time.monotonic()
        if left <= 0 or not select.select([self.p.stdout], [], [], left)[0]:
            err = self.errors()
            self.stop(kill=True)
            raise Failed("%s missed its deadline %s" % (self.name(), err))
        return os.read(self.p.stdout.fileno(), 1 << 16)

    def line(self, start):
        """Wait for a line of stdout that begins with `start`; the rest of that line."""
        while True:
            while b"\n" in self.pending:
                one, self.pending = self.pending.split(b"\n", 1)
                if one.startswith(start.encode()):
                    return one[len(start):].decode().strip()
            chunk = self._read_some()
            if not chunk:
                text = self.errors()
                self.stop()
                raise Failed("%s ended early, exit status %s: %s" % (self.name(), self.p.returncode, text))
            self.pending += chunk

    def ready_port(self):
        return int(self.line("ready "))

    def result(self, allow=(0,)):
        """Wait for the end; the whole of stdout. Any other exit status is a failure."""
        while True:
            chunk = self._read_some()
            if not chunk:
                break
            self.pending += chunk
        self._wait(self.ends)
        if self.p.returncode not in allow:
            raise Failed("%s: exit status %d: %s" % (self.name(), self.p.returncode, self.errors()))
        return self.pending.decode("utf-8", "replace")

    def json(self):
        lines = [ln for ln in self.result().splitlines() if ln.startswith("{")]
        if not lines:
            raise Failed("%s printed no result: %s" % (self.name(), self.errors()))
        return json.loads(lines[-1])

    def _wait(self, ends):
        """wait4 with a deadline; the CPU time and context switches of it and the children it waited for."""
        pause = 0.001
        while self.usage is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.usage = usage
                self.p.returncode = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() > ends:
                raise Failed("%s did not end in time" % self.name())
            time.sleep(pause)
            pause = min(pause * 2, 0.02)

    def stop(self, sig=signal.SIGTERM, kill=False, grace=5.0):
        """End it: a polite signal to the leader, then SIGKILL to its own group."""
        if self.usage is None:
            try:
                if not kill:
                    os.kill(self.pid, sig)
                    self._wait(time.monotonic() + grace)
            except (Failed, ProcessLookupError):
                pass
            if self.usage is None:
                try:
                    os.killpg(self.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                try:
                    self._wait(time.monotonic() + 5)
                except Failed:
                    pass
        for f in (self.p.stdout, self.p.stdin):
            if f:
                try:
                    f.close()
                except OSError:
                    pass
        try:
            os.unlink(self.err_path)
        except OSError:
            pass

    def cpu_s(self):
        return self.usage.ru_utime + self.usage.ru_stime if self.usage else 0.0

    def switches(self):
        return self.usage.ru_nvcsw if self.usage else 0


def free_port():
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def listening(port):
    """Whether someone listens on the port, without a connection (a probe would be a connection to measure)."""
    want = ":%04X" % port
    for name in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(name) as f:
                for ln in f:
                    p = ln.split()
                    if len(p) > 3 and p[3] == "0A" and p[1].endswith(want):
                        return True
        except OSError:
            pass
    return False


def wait_listening(proc, port, seconds=15.0):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if listening(port):
            return
        if os.waitid(os.P_PID, proc.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            text = proc.errors()
            proc.stop()
            raise Failed("%s ended before it listened, exit status %s: %s" % (proc.name(), proc.p.returncode, text))
        time.sleep(0.01)
    raise Failed("%s does not listen on port %d: %s" % (proc.name(), port, proc.errors()))


def own_cpu():
    """CPU seconds of this driver and of all children it has waited for."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        r = resource.getrusage(who)
        total += r.ru_utime + r.ru_stime
    return total
