"""Two guests on one Ethernet, and how to run commands in them. Used by run.py and measure.py."""
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
IP = {"A": "10.77.0.1", "B": "10.77.0.2"}
# Another emulator than the distribution's, with its own arguments.
EMULATOR = shlex.split(os.environ.get("LAB_QEMU", "qemu-system-x86_64"))
# What a kernel writes that has lost a thread, or itself.
OOPS = re.compile(r"Oops: |BUG: |Kernel panic|general protection fault|double fault")
# EFLAGS in it, and the bits of them that a processor always leaves 0 (3, 5, 15, and 22 and above; Intel SDM 1, 3.4.3).
EFLAGS = re.compile(r"EFLAGS: ([0-9a-f]{8})")
ALWAYS_ZERO = 0xFFC0_8028
# The second network, which the cases of two devices use.
SECOND = {"A": "10.78.0.1", "B": "10.78.0.2"}


class Failed(Exception):
    """A case did not show what it should."""


class Job:
    """A command in a guest."""

    def __init__(self, guest, number, text):
        self.guest, self.number, self.text, self.out, self.rc = guest, number, text, "", None

    def expect(self, word, seconds=20):
        """Waits until the output holds `word`."""
        self.guest.wait(lambda: word in self.out or self.rc is not None, seconds)
        if word not in self.out:
            raise Failed(f"no '{word}' from `{self.text}` in guest {self.guest.role}: {self.tail()}")
        return self

    def wait(self, seconds=60):
        """Waits for its end; returns the status, None if it has not ended."""
        self.guest.wait(lambda: self.rc is not None, seconds)
        return self.rc

    def done(self, seconds=60):
        """Waits for its end, which must be a success; returns the output."""
        rc = self.wait(seconds)
        if rc != 0:
            how = "did not end" if rc is None else f"ended with {rc}"
            if rc is None:
                self.kill()
            raise Failed(f"`{self.text}` in guest {self.guest.role} {how}: {self.tail()}")
        return self.out

    def kill(self, sig=signal.SIGKILL, seconds=60):
        """Waits for the end as well: a process of the kernel's SMC may take more than 10 s for it, in which its ports are in use."""
        self.guest.say(id=self.number, kill=int(sig))
        if self.wait(seconds) is None:
            raise Failed(f"`{self.text}` in guest {self.guest.role} does not end after signal {int(sig)}")
        return self.rc

    def tail(self):
        return " | ".join(self.out.strip().splitlines()[-6:])[-700:] or "(no output)"


class Guest:
    def __init__(self, role, out):
        self.role, self.ip, self.jobs = role, IP[role], {}
        self.path = os.path.join(out, f"port.{role}")
        self.changed, self.ready, self.gone, self.stood = threading.Condition(), False, False, None
        self.lock = threading.Lock()

    def connect(self, process):
        self.process = process
        end = time.monotonic() + 30
        while True:
            try:
                self.port = socket.socket(socket.AF_UNIX)
                self.port.connect(self.path)
                break
            except OSError:
                if time.monotonic() > end or process.poll() is not None:
                    raise
                time.sleep(0.05)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        pending = b""
        while data := self._receive():
            *lines, pending = (pending + data).split(b"\n")
            with self.changed:
                for line in filter(None, lines):
                    message = json.loads(line)
                    if "ready" in message:
                        self.ready = True
                    elif "stood" in message:
                        self.stood = message["stood"]
                    elif job := self.jobs.get(message["id"]):
                        job.out += message.get("out", "")
                        job.rc = message.get("rc", job.rc)
                self.changed.notify_all()
        with self.changed:
            self.gone = True
            self.changed.notify_all()

    def _receive(self):
        try:
            return self.port.recv(65536)
        except ConnectionResetError:
            return b""  # QEMU was killed

    def say(self, **message):
        try:
            with self.lock:
                self.port.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self.gone = True
            raise Failed(f"guest {self.role} has gone: {error}") from error

    def wait(self, condition, seconds):
        with self.changed:
            self.changed.wait_for(lambda: condition() or self.gone, seconds)
        if self.gone:
            raise Failed(f"guest {self.role} has gone")

    def start(self, text, **env):
        """Starts a command; see Job."""
        with self.changed:
            job = Job(self, len(self.jobs) + 1, text)
            self.jobs[job.number] = job
        self.say(id=job.number, run=text, env={k: str(v) for k, v in env.items()})
        return job

    def stood_still(self):
        """For how many seconds its processors have not run at most since this was asked last; None if it does not answer."""
        self.stood = None
        self.say(stood=True)
        self.wait(lambda: self.stood is not None, 20)
        return self.stood

    def run(self, text, seconds=60, **env):
        """Runs a command that must succeed; returns its output."""
        return self.start(text, **env).done(seconds)


# An instruction takes 2 to this power nanoseconds of a counted guest's time, about as many as it takes to emulate it.
COUNTED_SHIFT = 2
# Boots at most.
ATTEMPTS = 3


class Guests:
    """Both of them, booted; a context manager."""

    def __init__(self, kernel, cache, library, out=None, memory=1536, mtu=1500, packets=False, counted=False):
        self.kernel, self.cache, self.library, self.memory, self.mtu = kernel, cache, library, memory, mtu
        # Counted: a guest's clock goes on by its own instructions, and while it is idle.
        self.accel = ["-accel", "tcg,thread=single", "-icount", f"shift={COUNTED_SHIFT},sleep=on,align=off"] if counted else ["-accel", "tcg,thread=multi"]
        self.patience = 400 if counted else 110  # 6 s to boot where nothing else runs
        self.out = out or tempfile.mkdtemp(prefix="smcr-lab.")
        self.keep, self.packets = out is not None, packets
        self.processes, self.boots = [], 0

    def __enter__(self):
        os.makedirs(self.out, exist_ok=True)
        # The files of this run: a build meanwhile changes nothing.
        for name, file in self.library.items():
            shutil.copy2(file, os.path.join(self.out, name))
        for attempt in range(ATTEMPTS):
            try:
                self._boot_both()
                return self
            except BaseException as error:
                self.__exit__(keep=True)
                if attempt + 1 == ATTEMPTS or not isinstance(error, Failed):
                    raise
                # Not the library's: nothing of it runs yet. An emulated processor loses its timer now and then.
                print(f"lab: {str(error).splitlines()[0][:100]}: booted again", flush=True)

    def _boot_both(self):
        for name in os.listdir(self.out):
            if name.startswith(("port.", "console.", "wire")):
                os.unlink(os.path.join(self.out, name))
        wire = os.path.join(self.out, "wire")
        self.a, self.b = (self._boot(role, wire) for role in "AB")
        for guest in (self.a, self.b):
            guest.wait(lambda: guest.ready, self.patience)
            if not guest.ready:
                raise Failed(f"guest {guest.role} did not start: {self.console(guest.role)}")

    def _boot(self, role, wire):
        guest = Guest(role, self.out)
        words = {"role": role, "ip": guest.ip, "second": SECOND[role], "here": HERE, "kernel": f"{self.cache}/{self.kernel}", "mtu": self.mtu}
        # A stream over a Unix socket: over TCP, Nagle and delayed ACK add 40 ms to each RDMA round trip.
        listens = "on" if role == "A" else "off"
        mac = f"0{1 if role == 'A' else 2}"
        console = os.path.join(self.out, f"console.{role}")
        command = [
            *EMULATOR, *self.accel, "-cpu", "max", "-m", str(self.memory), "-smp", "2",
            "-display", "none", "-monitor", "none", "-no-reboot", "-nic", "none", "-serial", f"file:{console}",
            "-kernel", f"{self.cache}/{self.kernel}/boot/vmlinuz-{self.kernel}",
            "-initrd", f"{self.cache}/initrd-{self.kernel}.gz",
            "-append", "console=ttyS0 panic=-1 quiet mitigations=off no_timer_check " + " ".join(f"lab.{k}={v}" for k, v in words.items()),
            "-virtfs", "local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap",
            "-virtfs", f"local,path={self.out},mount_tag=out,security_model=none",
            "-netdev", f"stream,id=n0,server={listens},addr.type=unix,addr.path={wire}",
            "-device", f"virtio-net-pci,netdev=n0,romfile=,host_mtu={self.mtu},mac=52:54:00:77:00:{mac}",
            "-netdev", f"stream,id=n1,server={listens},addr.type=unix,addr.path={wire}1",
            "-device", f"virtio-net-pci,netdev=n1,romfile=,host_mtu={self.mtu},mac=52:54:00:78:00:{mac}",
            "-device", "virtio-serial-pci", "-chardev", f"socket,id=c0,path={guest.path},server=on,wait=off",
            "-device", "virtserialport,chardev=c0,name=lab",
        ]
        if self.packets and role == "B":
            for n in range(2):
                command += ["-object", f"filter-dump,id=d{n},netdev=n{n},maxlen=112,file={self.out}/packets.eth{n}"]
        log = open(console + ".qemu", "w")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes.append(process)
        if role == "A":
            end = time.monotonic() + 10
            while not os.path.exists(wire + "1") and time.monotonic() < end and process.poll() is None:
                time.sleep(0.05)
        guest.connect(process)
        return guest

    def impossible_flags(self, role):
        """What its kernel has reported of the flags, if no processor can have them: the emulator has failed, and nothing that ran on it."""
        found = EFLAGS.findall(self.console(role))
        return next((flags for flags in found if int(flags, 16) & ALWAYS_ZERO), None)

    def console(self, role):
        """Its end; from where the kernel of the guest has reported an error of its own, if it has."""
        try:
            with open(os.path.join(self.out, f"console.{role}"), errors="replace") as f:
                text = f.read()
        except OSError as error:
            return str(error)
        oops = OOPS.search(text)
        return text[max(0, oops.start() - 200):][:4000] if oops else text[-3000:]

    def has_oops(self, role):
        return bool(OOPS.search(self.console(role)))

    def boot_again(self):
        """After the death of one: both, fresh. Their consoles are kept beside the new ones."""
        self.__exit__(keep=True)
        self.boots += 1
        for role in "AB":
            old = os.path.join(self.out, f"console.{role}")
            if os.path.exists(old):
                os.rename(old, os.path.join(self.out, f"died{self.boots}.{role}"))
        self.__enter__()

    def __exit__(self, *_, keep=False):
        for guest in (getattr(self, "a", None), getattr(self, "b", None)):
            if guest:
                try:
                    guest.say(off=True)
                except Failed:
                    pass
        end = time.monotonic() + 5
        for process in self.processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()
        if not self.keep and not keep:
            shutil.rmtree(self.out, ignore_errors=True)
