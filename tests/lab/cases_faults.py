"""Faults inside RDMA, by the build with faults (`SMCR_FAIL`, `SMCR_FAULTS`; preload/src/fault.rs): what a network card may refuse is refused, what
may come late comes late, and an end dies at each step. Between two libsmcr every connection ends whole, towards a kernel it may end as
TCP can; nobody waits for ever, and no byte is wrong. Each case shows that its faults have happened. `FAULTS=WORDS` in the environment keeps to rows
with that name."""
import collections
import json
import os
import re
import struct

from cases_hostile import FAULTY, install
from guests import HERE, Failed
from lab import PEER, PORTS, add, payload, said

with open(f"{HERE}/../src/fired.rs") as names:
    # Numbers of `fault::Step`, by name.
    NUMBER = {name: n for n, name in enumerate(re.findall(r'^    "(\w+)",$', names.read(), re.M))}
# A step, a chance in 100,000, and from which pass on it has that chance.
REFUSED = [
    ("opening a device", "DeviceOpened", 50_000, 0),
    ("a registration", "Registered", 15_000, 0),
    ("a later registration", "Registered", 40_000, 3),
    ("making a queue pair", "QueuePairMade", 50_000, 0),
    ("bringing it to life", "QueuePairMoved", 30_000, 0),
    ("the receives of a new link", "ReceivePosted", 100, 0),
    ("half of the later receives", "ReceivePosted", 50_000, 1024),
    ("a post", "Posted", 4_000, 0),
    ("a post, seldom", "Posted", 300, 0),
    ("what was posted", "SendCompleted", 4_000, 0),
    ("what was posted, seldom", "SendCompleted", 300, 0),
]
# Those that a kernel's programs are tried with as well: what they meet takes them seconds each.
OF_KERNEL = ("a registration", "bringing it to life", "half of the later receives", "a post, seldom", "what was posted, seldom")
FAILED, DIED, LATE = 3, 4, 2
ROOM = (64, 8)
# Clients, each with a group of its own and no memory of what has failed to others.
CLIENTS, CONNECTIONS, N = 4, 8, 60_000


class Ends:
    """Both ends of a case, of which one or both have the build with faults and its settings."""

    def __init__(self, lab, client, server, who, seed, port=None, **settings):
        self.lab, self.client, self.server, self.who, self.settings, self.number = lab, client, server, who, settings, seed
        self.port = port or PORTS[server]
        self.counts = f"/run/faults.{self.port}"
        for guest in (lab.a, lab.b):
            guest.run(f"rm -f {self.counts}; truncate -s {8 * ROOM[0] * ROOM[1]} {self.counts}")

    def env(self, kind, end, **more):
        if kind != "smcr" or self.who not in (end, "both"):
            return self.lab.env(kind, **more)
        self.number += 1
        settings = {k: v.format(seed=self.number) for k, v in self.settings.items()}
        return {"LD_PRELOAD": FAULTY, "SMCR_FAULT_COUNTS": self.counts, **settings, **self.lab.logged(), **more}

    def serve(self):
        return self.lab.a.start(f"exec {PEER} serve {self.lab.a.ip} {self.port}", **self.env(self.server, "server")).expect("serving", 40)

    def connect(self, connections, may="", is_good=False):
        env = self.lab.env(self.client, PATIENCE=100) if is_good else self.env(self.client, "client", PATIENCE=100)
        return self.lab.b.start(f"exec {PEER} worn {self.lab.a.ip} {self.port} {connections} {N} {may}", **env)

    def at(self, step, event):
        """How often it happened at both ends."""
        n = 0
        for guest in (self.lab.a, self.lab.b):
            place = 8 * (NUMBER[step] * ROOM[1] + event)
            n += struct.unpack("=Q", bytes.fromhex(guest.run(f"od -An -v -tx1 -j{place} -N8 {self.counts}").replace(" ", "").strip()))[0]
        return n


def counted(job):
    """What `worn` has counted."""
    return json.loads(re.search(r"\{.*\}", said(job.out))[0])


def refused(client, server, who):
    def run(lab):
        install(lab)
        told, wrong = [], []
        for number, (name, step, chance, after) in enumerate(REFUSED):
            if not re.search(os.environ.get("FAULTS", ""), name) or "kernel" in (client, server) and name not in OF_KERNEL:
                continue
            ends = Ends(lab, client, server, who, 1000 * number, SMCR_FAULTS="{seed},0,0", SMCR_FAIL=f"{NUMBER[step]},{chance},{after}")
            job = ends.serve()
            may = "ends" if "kernel" in (client, server) else ""  # there is no way back from it
            clients = [ends.connect(CONNECTIONS, may) for _ in range(CLIENTS)]
            seen = collections.Counter()
            for c in clients:
                if c.wait(150) != 0:
                    wrong.append(f"{name}: {'hangs' if c.rc is None else c.rc}: {c.tail()}; server {job.tail()}")
                    continue
                seen.update(counted(c))
            if job.rc is not None or "ValueError" in job.out:
                wrong.append(f"{name}: the server: {job.tail()}")
            for c in (*clients, job):
                if c.rc is None:
                    c.kill(seconds=300)
            failed = ends.at(step, FAILED)
            if not failed:
                wrong.append(f"{name}: never failed")
            told.append(f"{name} {failed}x: {', '.join(f'{n} {how}' for how, n in sorted(seen.items()))}")
        if wrong:
            raise Failed("; ".join(wrong))
        return "; ".join(told)
    return run


for client_, server_, who_ in (("smcr", "smcr", "client"), ("smcr", "smcr", "server"), ("smcr", "smcr", "both"),
                               ("smcr", "kernel", "client"), ("kernel", "smcr", "server")):
    add(f"faults: refused at {'both ends' if who_ == 'both' else f'the {who_}'}, {client_} -> {server_}", refused(client_, server_, who_))


def late(client, server):
    def run(lab):
        install(lab)
        ends = Ends(lab, client, server, "both", 7, SMCR_FAULTS="{seed},1500,0")
        job = ends.serve()
        seen = collections.Counter()
        with lab.traffic() as traffic:
            clients = [ends.connect(CONNECTIONS) for _ in range(CLIENTS)]
            carried = sum(payload(c.done(200)) for c in clients)
        for c in clients:
            seen.update(counted(c))
        job.kill()
        if traffic.rdma < carried // 2:
            raise Failed(f"not half of {carried} bytes were on a link: {traffic}")
        delays = {step: n for step in STEPS if (n := ends.at(step, LATE))}
        if sum(delays.values()) < 20:
            raise Failed(f"hardly anything was late: {delays}")
        return f"{dict(seen)}; late at {sum(delays.values())} passes of {len(delays)} steps; payload {carried:,} B: {traffic}"
    return run


for client_, server_ in (("smcr", "smcr"), ("smcr", "kernel"), ("kernel", "smcr")):
    add(f"faults: everything late, {client_} -> {server_}", late(client_, server_))

# At which passes of each step of RDMA an end dies.
STEPS = {"DeviceOpened": (1,), "Registered": (1, 3), "QueuePairMade": (1,), "QueuePairMoved": (1, 2), "ReceivePosted": (700, 1030), "Posted": (1, 2, 40),
         "SendCompleted": (1, 2, 40), "Arrived": (1, 2, 5, 60), "ClcSent": (1, 2), "ClcTaken": (1, 2)}
AT_ONCE = 4


def dies(client, server, who):
    def run(lab):
        install(lab)
        deaths = [(step, nth) for step, all_ in STEPS.items() for nth in all_]
        seen, wrong, died, skipped = collections.Counter(), [], 0, []
        for at in range(0, len(deaths), AT_ONCE):
            runs = []
            for place, (step, nth) in enumerate(deaths[at:at + AT_ONCE]):
                ends = Ends(lab, client, server, who, at + place, port=5600 + at + place, SMCR_FAULTS=f"{{seed}},0,0,{NUMBER[step]},{nth}")
                runs.append((step, nth, ends, ends.serve()))
            for step, nth, ends, job, c in [(*run_, run_[2].connect(4, "ends")) for run_ in runs]:
                name, survivor = f"pass {nth} of {step}", job if who == "client" else c
                c.wait(120)
                if not ends.at(step, DIED):
                    skipped.append(f"{step}/{nth}")
                else:
                    died += 1
                if c.rc is None or "ValueError" in c.out + job.out or survivor is job and job.rc is not None or survivor is c and c.rc != 0:
                    wrong.append(f"{name}: client {c.rc}: {c.tail()}; server {job.rc}: {job.tail()}")
                elif survivor is c:
                    seen.update(counted(c))
                else:
                    good = ends.connect(1, is_good=True)  # the server serves on
                    if good.wait(60) != 0:
                        wrong.append(f"{name}: a good client afterwards: {good.rc}: {good.tail()}")
                for other in (c, job):
                    if other.rc is None:
                        other.kill()
        if wrong or died < len(deaths) // 2:
            raise Failed("; ".join([*wrong, f"{died} deaths, none at {skipped}"]))
        return f"{died} deaths{f', never so often: {skipped}' if skipped else ''}{f'; seen by the other end: {dict(seen)}' if seen else ''}"
    return run


for client_, server_, who_ in (("smcr", "smcr", "client"), ("smcr", "smcr", "server"), ("smcr", "kernel", "client"), ("kernel", "smcr", "server")):
    add(f"faults: the {who_} dies at each step, {client_} -> {server_}", dies(client_, server_, who_))
