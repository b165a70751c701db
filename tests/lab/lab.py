"""What cases share: servers and clients of the three kinds, counters, proofs. Used by the cases_* files."""
import contextlib
import json
import re
import time

from guests import HERE, Failed

KINDS = ("tcp", "kernel", "smcr")
PORTS = {"tcp": 5003, "kernel": 5001, "smcr": 5002}
EID = "SMCR-LAB"
PEER = f"/usr/bin/python3 {HERE}/peer.py"
KERNEL = f"/usr/bin/python3 {HERE}/kernel.py"
LIB = "/usr/local/lib/smcr/libsmcr.so"
# RoCE does not get into a guest any more.
CUT = "nft add rule inet lab cut udp dport 4791 drop"
# A packet of RoCE on the wire has so many bytes at least (an acknowledgement), and carries so many at most (InfiniBand's largest MTU).
SMALLEST, LARGEST = 48, 4096
# What a case has cut off carries again.
MEND = "nft flush chain inet lab cut"
CASES = []


def case(function):
    """A case: a function of a Lab that returns what it has shown, or raises Failed."""
    CASES.append((function.__name__.replace("_", " "), function))
    return function


def add(name, function):
    CASES.append((name, function))


class Lab:
    def __init__(self, guests, log=""):
        self.guests, self.a, self.b, self.servers, self.log, self.logs = guests, guests.a, guests.b, {}, log, 0

    def set_up(self, seconds=180):
        """Both guests at once: the library in its place, the option's programs, one user EID everywhere."""
        text = (f"mkdir -p /usr/local/lib/smcr && cp /lab/libsmcr.so {LIB} && cp /lab/smcrctl /usr/local/bin/ && cp /lab/smcrun.so /usr/local/lib/ && "
                f"{KERNEL} ueid-add {EID} && {KERNEL} pnet-add LABNET eth0 rxe0 1 && "
                f"smcrctl enable && smcrctl ueid add {EID}")
        for job in [guest.start(text) for guest in (self.a, self.b)]:
            job.done(seconds)

    # --- programs ---

    def env(self, kind, **more):
        env = {"kernel": {"AF": "43"}, "smcr": {"LD_PRELOAD": LIB}, "tcp": {}}[kind]
        if kind == "smcr":
            env = {**env, **self.logged()}
        return {**env, **more}

    def logged(self):
        """What the library is told to log, and where: a file for each process that is started."""
        if not self.log:
            return {}
        self.logs += 1
        return {"SMCR_LOG": self.log, "SMCR_LOG_FILE": f"/lab/log.{self.logs}"}

    def server(self, kind, guest=None):
        """The address words of a server of this kind, which is started where it does not run."""
        guest = guest or self.a
        key = kind, guest.role
        job = self.servers.get(key)
        if not job or job.rc is not None:
            job = guest.start(f"exec {PEER} serve {guest.ip} {PORTS[kind]}", **self.env(kind))
            self.servers[key] = job.expect("serving", 30)
        return f"{guest.ip} {PORTS[kind]}"

    def restart(self):
        """Servers are started anew where they are needed."""
        for job in self.servers.values():
            if job.rc is None:
                job.kill()
        self.servers.clear()

    def after_failure(self):
        """Nothing that the case has started goes on."""
        self.restart()
        for job in [job for guest in (self.a, self.b) for job in guest.jobs.values() if job.rc is None]:
            job.kill()

    def client(self, kind, to, operation, *rest, guest=None, **more):
        guest = guest or self.b
        words = " ".join(map(str, rest))
        return guest.start(f"exec {PEER} {operation} {to} {words}", **self.env(kind, **more))

    @contextlib.contextmanager
    def cut_off(self, *guests):
        """Meanwhile RoCE does not get into these guests, or into both."""
        guests = guests or (self.a, self.b)
        try:
            for guest in guests:
                guest.run(CUT)
            yield
        finally:
            for guest in guests:
                guest.run(MEND)

    # --- proofs ---

    def traffic(self, guest=None):
        return Traffic(guest or self.b)

    def socks(self, guest, port):
        """Connections of libsmcr in a guest that have this port at one of their ends."""
        return [s for s in json.loads(guest.run("smcrctl sock --json")) if s["role"] in ("client", "server") and any((s[end] or "").endswith(f":{port}") for end in ("local", "peer"))]

    def diag(self, guest, port):
        """AF_SMC sockets of a guest that are connected and have this port at one of their ends."""
        return [d for d in json.loads(guest.run(f"{KERNEL} diag")) if d["state"] not in ("LISTEN", "INIT", "CLOSED") and any(d[end].endswith(f":{port}") for end in ("local", "peer"))]

    def looked_at(self, guest, kind, port):
        """What an end says of its connections: modes in words of libsmcr, and reasons with the peer's own behind; nothing for a plain one."""
        if kind == "smcr":
            return [(s["mode"], s["reason"]["name"] + (f"/{s['peer_diagnosis']['code']:08x}" if s.get("peer_diagnosis") else "")) for s in self.socks(guest, port)]
        return [({"SMCR": "rdma", "TCP": "tcp"}.get(d["mode"], d["mode"]), f"{d.get('reason')}/{d.get('peer_diagnosis')}") for d in self.diag(guest, port)] if kind == "kernel" else []

    def on_rdma(self, client, server, port=None, number=1):
        """Both ends of what is open now, or one where the other is "tcp", say that it goes over RDMA. An end may take a moment to say so."""
        port, shown = port or PORTS[server], {}
        for guest, kind in ((self.b, client), (self.a, server)):
            if kind == "tcp":
                continue
            end = time.monotonic() + 10
            while True:
                shown[kind, guest.role] = found = self.looked_at(guest, kind, port)
                if len(found) >= number and all(mode == "rdma" for mode, _ in found):
                    break
                if time.monotonic() > end:
                    raise Failed(f"not on RDMA at the {kind} end in {guest.role}: {found}, {number} expected")
                time.sleep(0.3)
        where = "both ends" if len(shown) > 1 else "one end"
        return f", on RDMA at {where} ({', '.join(f'{kind} {len(found)}x' for (kind, _), found in shown.items())})"

    def held(self, job, look, seconds=60):
        """Calls `look` each time a client with HOLD shows its connections, up to its end; the output, and what was seen last."""
        turns, seen, end = 0, "", time.monotonic() + seconds
        while True:
            job.guest.wait(lambda: job.rc is not None or len(re.findall("^shown$", job.out, re.M)) > turns, max(0, end - time.monotonic()))
            if job.rc is not None or time.monotonic() > end:
                return job.done(0 if job.rc is None else 1), seen
            turns += 1
            seen = look()
            job.guest.say(id=job.number, input="go\n")

    def not_ready(self):
        """How often soft RoCE in each guest has found no receive for what came, has heard that, and has given up for it."""
        jobs = [guest.start("grep -H . /sys/class/infiniband/*/ports/1/hw_counters/*rnr*; true") for guest in (self.a, self.b)]
        return {f"{job.guest.role} {path.split('/')[4]} {path.split('/')[-1]}": int(n) for job in jobs for path, n in re.findall(r"^(/sys/\S+):(\d+)$", job.done(), re.M)}

    def groups(self, guest):
        return [g for g in json.loads(guest.run(f"{KERNEL} groups")) if g["id"]]


class Traffic:
    """Bytes over RDMA (UDP 4791) and over TCP (ports 4000 to 9999), as IP of one guest counts them, and what its RoCE devices count."""

    def __init__(self, guest):
        self.guest = guest

    def __enter__(self):
        self.before, self.began = self._now(), time.monotonic()
        return self

    def _now(self):
        return json.loads(self.guest.run(f"{KERNEL} counters"))

    def __exit__(self, kind, *_):
        if kind:
            return
        now = self._now()
        self.seconds = time.monotonic() - self.began
        self.rdma, self.tcp, self.requests = (now[k] - self.before[k] for k in ("roce", "stream", "requests"))
        self.counted = grown(self.before["devices"], now["devices"])
        self.packets = self.of_devices("sent_pkts") + self.of_devices("rcvd_pkts")

    def of_devices(self, counter):
        """By how much this counter of the guest's RoCE devices has grown."""
        return sum(n for name, n in self.counted.items() if name.split()[1] == counter)

    def __str__(self):
        return f"RoCE {self.rdma:,} B, {self.packets:,} packets of its devices, TCP {self.tcp:,} B"

    def went_over_rdma(self, payload, connections=1):
        """All payload on RoCE, and on TCP no more than handshakes and CLC."""
        if self.rdma < payload:
            raise Failed(f"payload {payload:,} B is not on RoCE: {self}")
        if self.packets * LARGEST < payload:
            raise Failed(f"payload {payload:,} B did not pass RoCE devices: {self}")
        if self.tcp > 6000 + 2500 * connections + payload // 100:
            raise Failed(f"payload {payload:,} B: too much is on TCP: {self}")
        return f"payload {payload:,} B: {self}"

    def went_over_tcp(self, payload):
        if self.tcp < payload:
            raise Failed(f"payload {payload:,} B is not on TCP: {self}")
        # Retries to ends that earlier cases killed: soft RoCE repeats what nobody takes some times a second.
        again = 60000 + 2000 * self.seconds + payload // 100
        if self.rdma > again or self.packets * SMALLEST > again:
            raise Failed(f"payload {payload:,} B should be on TCP: {self}")
        return f"payload {payload:,} B: {self}"


def grown(before, now):
    """By how much counters have grown; those of a device that was made anew began at 0."""
    return {name: n - (before.get(name, 0) if before.get(name, 0) <= n else 0) for name, n in now.items()}


def payload(text):
    return int(re.search(r"^payload (\d+)$", text, re.M)[1])


def said(text):
    return re.search(r"^ok (.*)$", text, re.M)[1]


def modes(text):
    """Modes that the kernel's diagnosis showed for the client's sockets."""
    return re.findall(r"^diag mode=(\w+)", text, re.M)


def all_smcr(text, kind):
    """The kernel, where it is the client, must call each of its connections SMC-R."""
    shown = modes(text)
    if kind == "kernel" and (not shown or set(shown) != {"SMCR"}):
        raise Failed(f"the kernel's diagnosis: {shown} {text.strip()[-300:]}")
    return f", kernel says SMCR {len(shown)}x" if shown else ""
