"""A host, or a process, that stands still for a while and goes on: TCP bears that, so a connection over a link has to. Towards a kernel's
SMC-R the link is kept, for there is no way back from it; between two libsmcr a connection may go on over TCP, with every byte."""
import contextlib
import json
import re
import signal
import time

from guests import Failed
from lab import add, said

N, IDLE = 12 << 20, 5


@contextlib.contextmanager
def host_stands(*guests):
    """The whole guest: its clocks go on, nothing else."""
    for guest in guests:
        guest.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for guest in guests:
            guest.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def process_stands(job):
    """A program with its library; its network card answers for it."""
    job.guest.say(id=job.number, kill=int(signal.SIGSTOP))
    try:
        yield
    finally:
        job.guest.say(id=job.number, kill=int(signal.SIGCONT))


def stands(client, server, who, seconds):
    def run(lab):
        lab.restart()
        to = lab.server(server)
        with lab.traffic() as traffic:
            job = lab.client(client, to, "survive", N, IDLE, PATIENCE=120).expect("up", 40)
            # It begins by the link, whatever becomes of it: one that is half closed and those that wait among them.
            began = lab.on_rdma(client, server, number=IDLE + 2)
            with who(lab, job, lab.servers[server, "A"]):
                time.sleep(seconds)
            job.expect("busy done", 120)
            groups = json.loads(lab.b.run("smcrctl linkgroup --json"))["linkgroups"] if client == "smcr" else None
            job.guest.say(id=job.number, input="go\n")
            text = job.done(120)
        busy = re.findall(r"busy done after [\d.]+ s", text)[0]
        return traffic, groups, f"{said(text)}; {busy}; {traffic}{began}"
    return run


def keeps_its_link(*case):
    def run(lab):
        traffic, groups, text = stands(*case)(lab)
        if traffic.rdma < 2 * N or traffic.tcp > 6000 + 2500 * (IDLE + 3) + N // 50 or groups == []:
            raise Failed(f"the link was given up: {text}")
        return text
    return run


def loses_nothing(*case):
    return lambda lab: stands(*case)(lab)[2]


HOSTS = {"client": lambda lab, *_: host_stands(lab.b), "server": lambda lab, *_: host_stands(lab.a), "both": lambda lab, *_: host_stands(lab.a, lab.b)}
PROCESSES = {"client": lambda lab, client, server: process_stands(client), "server": lambda lab, client, server: process_stands(server)}

for pair in (("smcr", "kernel"), ("kernel", "smcr")):
    for which in ("client", "server"):
        add(f"stands still: {' -> '.join(pair)}, the {which}'s host for 8 s", keeps_its_link(*pair, HOSTS[which], 8))
    ours = "client" if pair[0] == "smcr" else "server"
    add(f"stands still: {' -> '.join(pair)}, the {ours} for 12 s", keeps_its_link(*pair, PROCESSES[ours], 12))
add("stands still: smcr -> smcr, both hosts for 8 s", keeps_its_link("smcr", "smcr", HOSTS["both"], 8))
for which in ("client", "server"):
    add(f"stands still: smcr -> smcr, the {which}'s host for 12 s", loses_nothing("smcr", "smcr", HOSTS[which], 12))
    add(f"stands still: smcr -> smcr, the {which} for 12 s", loses_nothing("smcr", "smcr", PROCESSES[which], 12))
