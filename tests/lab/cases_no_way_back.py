"""Towards a kernel there is no way back to TCP, nor where the process that has the link is killed: what becomes of connections then when their
program becomes another one, when they are to be drained, when their descriptor is passed on, and when a parent ends whose child uses them. What
is lost is seen as an error at both ends, never as the end of the stream (docs/decisions/09-rdma.md)."""
import re

from guests import HERE, Failed
from lab import PORTS, add, all_smcr, payload, said

FORKING = f"/usr/bin/python3 {HERE}/forking.py"
LOST = re.compile("saw ECONN(RESET|ABORTED)")


def becomes(library):
    """The client is another program from then on, which has the descriptor."""
    def run(lab):
        to, name = lab.server("kernel"), f"becomes-{library or 'plain'}"
        job = lab.client("smcr", to, "becomes", name, library, PATIENCE=60, HOLD="client")
        text, seen = lab.held(job, lambda: lab.on_rdma("smcr", "kernel"), 65)
        theirs = said(lab.client("kernel", to, "ends", name, PATIENCE=60).done(65))
        if not seen or not re.search("saw E(CONN|NOTCONN)", said(text)) or not LOST.search(theirs):
            raise Failed(f"{said(text)}; {theirs}{seen}")
        return f"{said(text)}; {theirs}{seen}"
    return run


add("no way back: exec by a client of a kernel, with the library", becomes("library"))
add("no way back: exec by a client of a kernel, without", becomes(""))


def drained(client, server):
    """It stays on its link, which `smcrctl drain` says."""
    def run(lab):
        lab.restart()
        ours = lab.b if client == "smcr" else lab.a
        with lab.traffic() as traffic:
            # No more than what is on its way may hold: it is all said before anything is read.
            job = lab.client(client, lab.server(server), "twice", 50_000, PATIENCE=60).expect("once", 40)
            lab.on_rdma(client, server)
            drain = ours.start(f"smcrctl drain --timeout 2 port:{PORTS[server]}")
            drain.wait(30)
            if not drain.rc or "1 of 1 connections are still in memory" not in drain.out:
                raise Failed(f"the drain: {drain.rc} {drain.tail()}")
            seen = lab.on_rdma(client, server)
            job.guest.say(id=job.number, input="go\n")
            job.expect("both", 40)
            job.guest.say(id=job.number, input="go\n")
            text = job.done(40)
        return f"{said(text)}; {traffic.went_over_rdma(payload(text))}{seen}"
    return run


for pair in (("smcr", "kernel"), ("kernel", "smcr")):
    add(f"no way back: drain, {' -> '.join(pair)}", drained(*pair))


def started(lab, what, port, *how):
    return lab.a.start(f"exec {FORKING} {what} {lab.a.ip} {port} {' '.join(how)}", **lab.env("smcr")).expect("serving", 30)


def lent(port, operation, *how):
    """Another process, without the library, has the descriptor as well and reads: it gets nothing, and takes nothing from who goes on with the link."""
    def run(lab):
        job = started(lab, "lend", port, *how)
        try:
            with lab.traffic() as traffic:
                text = lab.client("kernel", f"{lab.a.ip} {port}", *operation, PATIENCE=60).done(65)
            job.expect("the other has read", 30)
            other = re.search("the other has read.*", job.out)[0]
            if not other.startswith("the other has read 0 bytes") or how and "saw eof" not in text:
                raise Failed(f"{said(text)}; {other}")
            return f"{said(text)}; {other}; {traffic.went_over_rdma(payload(text))}{all_smcr(text, 'kernel')}"
        finally:
            job.kill()
    return run


add("no way back: a descriptor is passed on, and its sender goes on, kernel client", lent(5560, ("after", 300_000, 200_000)))
add("no way back: a descriptor is passed on, and its sender closes it, kernel client", lent(5561, ("given_up", 200_000), "closes"))


def parent_ends(client, port, how, *writes):
    """The child reads by its parent's link when that ends."""
    def run(lab):
        job = started(lab, "outlived", port, how)
        try:
            with lab.traffic() as traffic:
                asks = lab.client(client, f"{lab.a.ip} {port}", "bereaved", *writes, PATIENCE=60).expect("up", 40)
                seen = all_smcr(asks.out, client) or lab.on_rdma(client, "tcp", port)
                lab.a.say(id=job.number, input="go\n")
                text = asks.done(65)
            if not LOST.search(said(text)) or traffic.rdma < 100_000:
                raise Failed(f"{said(text)}; {traffic}")
            job.expect("child:", 30)
            child = re.search("child: (.*)", job.out)[1]
            if "eof" in child or "EOFError" in child:
                raise Failed(f"an end at the child: {child}")
            return f"{said(text)}, the child {child}; {traffic}{seen}"
        finally:
            job.kill()
    return run


for how, does in (("exits closes", "exits"), ("execs closes", "becomes another program")):
    add(f"no way back: a forked child, and its parent with the link {does}, kernel client", parent_ends("kernel", 5562, how))
add("no way back: a forked child, and its parent with the link is killed, smcr client", parent_ends("smcr", 5563, "killed", "writes"))
add("no way back: a forked child, and its parent with the link is killed, kernel client", parent_ends("kernel", 5564, "killed", "writes"))
