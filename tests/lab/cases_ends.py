"""How connections end: in order, by a reset, by the death of a process or of the link."""
import json
import re
import time

from cases_streams import PAIRS
from guests import Failed
from lab import EID, LIB, PORTS, add, all_smcr, case, payload, said

OURS = [pair for pair in PAIRS if "smcr" in pair]


def ending(client, server, operation, wanted):
    def run(lab):
        to = lab.server(server)
        with lab.traffic() as traffic:
            job = lab.client(client, to, operation, PATIENCE=60, HOLD="client")
            text, seen = lab.held(job, lambda: lab.on_rdma(client, server), 65)
        if not seen:
            raise Failed(f"nobody has looked: {job.tail()}")
        kernel = all_smcr(text, client)
        if not re.search(wanted, said(text)):
            raise Failed(f"{said(text)} instead of {wanted}")
        if traffic.rdma < 300:
            raise Failed(f"not over RoCE: {traffic}")
        return f"{said(text)}; {traffic}{kernel}{seen}"
    return run


def server_killed(client, server, operation, wanted):
    def run(lab):
        lab.restart()
        job = lab.client(client, lab.server(server), operation, PATIENCE=90)
        job.expect("up", 30)
        seen = lab.on_rdma(client, server)
        lab.servers[server, "A"].kill()
        text = job.done(95)
        if not re.search(wanted, said(text)):
            raise Failed(f"{said(text)} instead of {wanted}")
        return said(text) + all_smcr(text, client) + seen
    return run


def client_killed(client, server):
    def run(lab):
        lab.restart()
        to = lab.server(server)
        name = f"{client}-to-{server}"
        job = lab.client(client, to, "hold", name)
        job.expect("up", 30)
        kernel = all_smcr(job.out, client) + lab.on_rdma(client, server)
        began = time.monotonic()
        job.kill()
        text = lab.client("tcp" if server == "tcp" else server, to, "ends", name, PATIENCE=60).done(65)
        if not re.search("eof|ECONN", said(text)):
            raise Failed(said(text))
        return f"{said(text)}, {time.monotonic() - began:.0f} s after the kill{kernel}"
    return run


def said_and_gone(client, server, n=40_000, wait=0):
    """A program that says what it has to say and ends at once, while the handshake has not even begun; or has filled the ring of a
    reader who comes late."""
    def run(lab):
        to, name = lab.server(server), f"parting {client} {server} {n} {wait}"
        with lab.traffic() as traffic:
            lab.client(client, to, "parting", n, f"'{name}'", wait, "kept", PATIENCE=40).done(45)
            job = lab.client(server, to, "ends_kept", f"'{name}'", PATIENCE=60, HOLD="client")
            # Its end has been kept, and that of who asks is beside it.
            text, seen = lab.held(job, lambda: lab.on_rdma("tcp", server, number=2), 65)
        if not re.search(rf"\b{n}$", said(text)) or not seen:
            raise Failed(f"{said(text)} instead of {n} bytes{seen}")
        asked = 3 + int(wait / 0.3)  # how it ended is asked for each 0.3 s, by a connection of its own
        return f"{said(text)}; {traffic.went_over_rdma(n, asked)}{seen}"
    return run


def late_reader(client, server, piece):
    def run(lab):
        to = lab.server(server)
        with lab.traffic() as traffic:
            job = lab.client(client, to, "behind", 120_000, piece, PATIENCE=40, HOLD="client")
            text, seen = lab.held(job, lambda: lab.on_rdma(client, "tcp", PORTS[server]), 45)  # the other end has closed
        if not seen:
            raise Failed(f"nobody has looked: {job.tail()}")
        return f"{said(text)}; {traffic.went_over_rdma(payload(text))}{all_smcr(text, client)}{seen}"
    return run


def group_ended(lab):
    """A kernel that loses its device ends its links: it resets TCP first, and then says so by the link. Who reads up to the end must not
    take what has come so far for all of it."""
    lab.restart()
    job = lab.client("smcr", lab.server("kernel"), "cut_off", PATIENCE=60).expect("up", 30)
    seen = lab.on_rdma("smcr", "kernel")
    lab.a.run("rdma link delete rxe0")
    try:
        text = job.done(65)
    finally:
        lab.restart()
        lab.a.run("rdma link add rxe0 type rxe netdev eth0")
    if not re.search("saw ECONN", said(text)):
        raise Failed(f"{said(text)} instead of an error")
    return said(text) + seen


add("smcr -> kernel: the kernel's device is removed, the client reads", group_ended)
add("kernel -> kernel: closed with bytes unread", ending("kernel", "kernel", "unread", "ECONNRESET"))
for client, server in OURS:
    add(f"{client} -> {server}: all is said, and the process ends at once", said_and_gone(client, server))
    add(f"{client} -> {server}: all is said, more than the ring holds, and read late", said_and_gone(client, server, 120_000, 3))
    add(f"{client} -> {server}: all is said, more than the ring holds, and read very late", said_and_gone(client, server, 120_000, 14))
    for piece in (4000, 65536):
        add(f"{client} -> {server}: the server says all and closes, read late, {piece} at a time", late_reader(client, server, piece))
    add(f"{client} -> {server}: orderly end", ending(client, server, "orderly", "eof"))
    add(f"{client} -> {server}: closed with bytes unread", ending(client, server, "unread", "ECONNRESET"))
    add(f"{client} -> {server}: the client closes with bytes unread", ending(client, server, "left", "ECONNRESET"))
    if server == "smcr":
        add(f"{client} -> {server}: both have shut down, and the server closes with bytes unread", ending(client, server, "over", "eof, eof"))
    # Linux's SMC does not wait then, and ends in order all the same (smc_close_active).
    add(f"{client} -> {server}: {'abort' if client == 'smcr' else 'an end'} (LINGER 0)", ending(client, server, "abort", "ECONNRESET" if client == "smcr" else "eof 0"))
    add(f"{client} -> {server}: server killed, client reads", server_killed(client, server, "killed", "saw (ECONN|eof)"))
    add(f"{client} -> {server}: server killed, client writes", server_killed(client, server, "writer", "saw (ECONN|EPIPE)"))
    add(f"{client} -> {server}: client killed", client_killed(client, server))


@case
def smcrctl_shows_link_groups_sockets_devices_and_EIDs(lab):
    """What smcrctl says on both sides of one connection fits together, and is right."""
    lab.restart()
    job = lab.client("smcr", lab.server("smcr"), "hold", "shown")
    job.expect("up", 30)
    try:
        here, there = (json.loads(guest.run("smcrctl linkgroup --json"))["linkgroups"] for guest in (lab.b, lab.a))
        if len(here) != 1 or len(there) != 1:
            raise Failed(f"{here} and {there}")
        a, b = there[0], here[0]
        if (a["qpn"], a["gid"]) != (b["peer_qpn"], b["peer_gid"]) or (b["qpn"], b["gid"]) != (a["peer_qpn"], a["peer_gid"]):
            raise Failed(f"the ends do not name each other: {a} and {b}")
        wrong = [g for g in (a, b) if g["type"] != "SINGLE" or g["connections"] != 1 or g["version"] != 2]
        if wrong or (a["role"], b["role"]) != ("SERV", "CLNT"):
            raise Failed(f"{a} and {b}")
        for guest, rdma in ((lab.a, "5002"), (lab.b, "5002")):
            if not re.search(rf"{rdma}.*", guest.run("smcrctl sock --mode rdma")):
                raise Failed(guest.run("smcrctl sock"))
        device, eid = lab.a.run("smcrctl device"), lab.a.run("smcrctl ueid show")
        if "rxe0" not in device or "ffff:0a4d:0001" not in device or EID not in eid:
            raise Failed(f"{device} {eid}")
        stats = json.loads(lab.b.run("smcrctl stats -a --json"))
        rdma = next(t for t in stats["transports"] if t["name"] == "rdma")
        ports = stats["devices"]
        if not rdma["now"] or not rdma["bytes_sent"] or not ports or not ports[0]["bytes_sent"]:
            raise Failed(f"stats: {rdma} {ports}")
        text = lab.b.run("smcrctl stats -a -d")
        if not re.search(r"\n +[0-9a-f]{8} +(CLNT|SERV) +rxe0 ", text) or not re.search(r"\n +rxe0 +1 +1 ", text):
            raise Failed(text)
        found = lab.a.run("smcrctl check", SMCR_LIB=LIB)
        for line in ("ok +verbs", "ok +gid", "ok +uverbs", "ok +rdma", "ok +smc option"):
            if not re.search(f"(?m)^{line} ", found):
                raise Failed(f"{line}: {found}")
        if "EID" not in lab.a.run("smcrctl explain 03030008"):
            raise Failed("no sentence for 03030008")
        return f"one group, queue pairs {a['qpn']} and {b['qpn']}, EID {a['eid']}"
    finally:
        job.kill()
