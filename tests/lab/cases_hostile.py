"""A hostile peer on a real link: an established one of the build with faults (`SMCR_FORGE`, preload/src/link/forge.rs) sends what no
peer should. It may break its own connection and its own group. Other groups of the victim go on, over RDMA, with every byte right,
and nothing is written outside the ring, whatever keys and places the hostile end knows. Each forgery is sent by what the victim takes for a libsmcr, and
again by what it takes for a kernel (`taken_for_kernel`): another part of the library hears that one, and there is no way back from it. `FORGED=WORDS`
in the environment keeps to rows with that name."""
import contextlib
import json
import os
import re
import signal
import time

from guests import Failed
from lab import LIB, PEER, PORTS, add, payload, said

FAULTY = "/usr/local/lib/smcr-faults/libsmcr.so"
N = 300_000
AT_ONCE = 4
# How often a forgery is tried at a victim whose connection has got no link.
TRIES = 6


def llc(kind, flags=0, length=44, **at):
    """An LLC message of version 2: `b12="ffff"` puts bytes at offset 12. O and P are keys (8 digits)."""
    text = f"{kind | 0x20:02x}{length:02x}00{flags:02x}"
    for place, hexes in sorted(at.items(), key=lambda kv: int(kv[0][1:])):
        start = 2 * int(place[1:])
        now = len(re.sub("[OP]", "00000000", text))
        text += "0" * (start - now) + hexes
    now = len(re.sub("[OP]", "00000000", text))
    return f"send {text}{'0' * (2 * length - now)}"


GID = "00000000000000000000ffff0a4d0002"
# In pieces; what there is room for is the hostile end's own stream, if not what its program sent.
GARBAGE = "imm 1ffff +0 +0;imm 1ffff +0 +0;imm 1ffff +0 +0"
# Where to: "link" it goes on, "tcp" the group ends and TCP carries on, "ends" the connection is reset. Each with nothing lost or wrong.
FORGED = [
    # LLC
    ("Confirm Link once more", llc(1, 0x03, b10=GID, b26="000011", b29="01"), "link"),
    ("an answer to Confirm Link for link 7", llc(1, 0x83, b26="000011", b29="07"), "link"),
    ("Add Link", llc(2, b12=GID, b28="000011", b31="02", b32="03"), "link"),
    ("an answer to an Add Link that was never sent", llc(2, 0x80, length=72, b12=GID, b28="000011", b31="02", b32="03"), "link"),
    ("Add Link with 255 keys that are not there", llc(2, length=72, b12=GID, b31="02", b32="03", b70="ff00"), "link"),
    ("a reject of no Add Link", llc(2, 0xc0, b31="02"), "link"),
    ("Add Link Continue", llc(3, b4="02ff"), "link"),
    ("Delete Link of link 9", llc(4, b4="09"), "link"),
    ("an answer to a Delete Link that was never sent", llc(4, 0xe0), "link"),
    ("Delete Link of the only link", llc(4, 0x20, b4="01", b5="00010000"), "tcp"),
    ("Delete Link of all links", llc(4, 0x40), "tcp"),
    ("Request Add Link with 200 GIDs", llc(5, b24="c8"), "link"),
    ("Confirm Rkey of memories on links 2 and 77", ";".join(
        f"times 10 {llc(6, b4='01', b5=f'{key:08x}', b17=link + f'{key + 1:08x}')}" for key, link in ((17, "4d"), (33, "02"))), "link"),
    ("Confirm Rkey of nine links", llc(6, b4="09", b5="O"), "link"),
    ("20 times Test Link", f"times 20 {llc(7, b4='aa' * 16)}", "link"),
    ("2,000 times Test Link", f"times 2000 {llc(7, b4='aa' * 16)}", "tcp"),
    ("Delete Rkey of unknown keys", llc(9, b4="02", b8="1234567812345678"), "link"),
    ("Delete Rkey of 255 keys", llc(9, b4="ff", b8="O"), "link"),
    ("Delete Rkey of the memory in use", llc(9, b4="01", b8="O"), "ends"),
    ("unknown types, lengths that lie", ";".join(["send 3f2c", "send 00", "send 212c", "send fe", f"send 27ff00{'00' * 41}", f"send 292b{'00' * 42}",
                                                   f"send fe2d{'00' * 42}", f"send {'ff' * 200}"]), "link"),
    ("a message of 1,024 bytes", "long 400", "link"),
    ("a message that no receive has room for", "long 1800", "tcp"),
    # CDC
    ("producer cursor one ring ahead", "cdc +0 +0 +140000 +0 0 0", "ends"),
    ("producer cursor at the end of numbers", "raw +0 ffff ffffffff 0 0 0 0", "ends"),
    ("producer count outside the ring", "raw +0 0 20001 0 0 0 0", "ends"),
    ("consumer cursor beyond what was sent", "cdc +0 +0 +0 +140000 0 0", "ends"),
    ("consumer count outside the ring", "raw +0 0 0 0 80000000 0 0", "ends"),
    ("both cursors gone back", "cdc +0 +0 -3000 -3000 0 0", "link"),
    ("a number from the past", "cdc -5 +0 +140000 +1 0 0", "link"),
    ("an unknown token", "cdc +0 +77 +140000 +1 0 0;cdc +0 ffffffff +140000 +1 0 60;cdc +0 -65536 +140000 +1 0 60", "link"),
    ("a failover message with a number that lies", "cdc +3000 +0 +0 +0 8 0", "link"),
    ("a failover message with a producer cursor that lies", "cdc +0 +0 +1 +0 8 0", "tcp"),
    ("a failover message with a consumer cursor that lies", "cdc +0 +0 +0 +140000 8 0", "tcp"),
    ("urgent bytes that are none", "cdc +0 +0 +0 +0 e0 0", "link"),
    ("closed, aborted and done in one", "cdc +0 +0 +0 +0 0 e0", "ends"),
    ("all flags, so that it is a failover message", "cdc +0 +0 +0 +0 ff ff", "link"),
    # Writes that announce themselves
    ("a write of no bytes", "imm 0 +0 +0", "link"),
    ("a write longer than the free space", GARBAGE, "ends"),
    ("a write that says more has been read than was sent", "imm 1 +0 +12000", "ends"),
    ("a write with a number from the past", "imm 100 +0 +0 -2", "link"),
    ("a write with a number too far ahead", "imm 1 +0 +0 +2", "tcp"),
    ("writes for other connections", "imm 1 +1 +0;imm 1 +4096 +0;imm 1 0 +0;imm 1 ffff +0", "link"),
    # RDMA
    ("a write with another key", "rdma 0 +1 +0 40", "tcp"),
    ("a write with a key of another place", "rdma 0 +256 +0 40", "tcp"),
    ("a write before the region", "rdma 0 +0 -1000000 40", "tcp"),
    ("a write behind the region", "rdma 0 +0 +5000000 40", "tcp"),
    ("a write over the region's end", "rdma 0 +0 +500000 ffff", "tcp"),
    ("a write to address 0", "rdma 0 +0 0 40", "tcp"),
    ("a read of the region", "rdma 4 +0 +0 1000", "tcp"),
]


# What becomes of these where the peer is a kernel. Else "tcp", to which there is no way, is the end there, and a write that announces itself, of
# which nothing was agreed, does nothing.
OF_KERNELS = {
    "a failover message with a number that lies": "ends",
    "a failover message with a producer cursor that lies": "link",  # its number alone counts
    "a failover message with a consumer cursor that lies": "link",
}
ANSWERS = ";".join(f"times 3 {llc(7, 0x80, b4=f'{number:032x}')}" for number in range(4))
# And some that only such a peer can try: its end is held back until it has answered.
BY_KERNELS = [
    ("done in the middle, and answers before and behind it that nobody has asked for", f"{ANSWERS};cdc +0 +0 +0 +0 0 80;{ANSWERS}", "ends"),
    ("closed, and bytes that wait for room behind that", "cdc +0 +0 +0 +0 80 40", "ends"),
    ("500 times the consumer cursor is wanted", "times 500 cdc +0 +0 +0 +0 10 0", "link"),
]


def by_kernels():
    for name, plan, wanted in FORGED:
        if plan.startswith("imm"):
            # Within a kernel's ring, which is half as large.
            plan, wanted = plan.replace("1ffff", "8000"), "link"
        yield name, plan, OF_KERNELS.get(name, "ends" if wanted == "tcp" else wanted)
    yield from BY_KERNELS


def some(rows):
    return [row for row in rows if re.search(os.environ.get("FORGED", ""), row[0])]


def groups(guest):
    return {g["qpn"]: g for g in json.loads(guest.run("smcrctl linkgroup --json"))["linkgroups"]}


def install(lab):
    lab.restart()
    for guest in (lab.a, lab.b):
        guest.run(f"[ -e {FAULTY} ] || {{ mkdir -p $(dirname {FAULTY}) && cp /lab/libsmcr-faults.so {FAULTY}; }}")


def hostile(lab, to, plan, guest=None, **more):
    guest = guest or lab.b
    return guest.start(f"exec {PEER} forger {to} {N}", LD_PRELOAD=FAULTY, SMCR_FORGE=plan, PATIENCE=200, **more)


def outcome(lab, job):
    """Where the connection of a hostile client has gone: as the two ends show it while it is still there."""
    job.guest.wait(lambda: "\nwhole" in job.out or job.rc is not None, 100)
    if job.rc is None and "\nwhole" not in job.out:
        return f"it hangs: {job.tail()}"
    if job.rc is not None:
        how = re.findall(r"^(\w+Error)", job.out, re.M)
        if not how or how[-1] not in ENDS:
            return f"{job.tail()}"
        return "ends"
    return medium(lab, int(re.search(r"^pid (\d+)", job.out, re.M)[1]), PORTS["smcr"])


ENDS = ("ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError", "EOFError")


def connections(lab, pid, port):
    return [s for s in json.loads(lab.b.run("smcrctl sock --json")) if s["pid"] == pid and s["peer"].endswith(f":{port}")]


def medium(lab, pid, port):
    """Where the client's end of a connection is, when it has come to rest."""
    end = time.monotonic() + 15
    while True:
        socks = connections(lab, pid, port)
        modes = [s["mode"] for s in socks]
        if modes in (["rdma"], ["tcp"]):
            return {"rdma": "link", "tcp": "tcp"}[modes[0]]
        if time.monotonic() > end:
            return f"neither here nor there: {socks}"
        time.sleep(0.5)


@contextlib.contextmanager
def taken_for_kernel(guest, hook, those, least):
    """At least so many times both ends of `those` connections of a guest take each other for kernels: the SYN does not show the role of libsmcr, as it leaves, or arrives."""
    guest.run(f"nft -f - <<'END'\ntable inet lab {{ counter greeted {{ }}\nchain greet {{ type filter hook {hook} priority -200; tcp flags & (syn | ack) == syn {those} "
              "tcp option @254,48,16 0x5101 counter name greeted tcp option @254,48,16 set 0x0101; }\n}\nEND")
    try:
        yield
        hit = json.loads(guest.run("nft -j list counter inet lab greeted"))["nftables"][-1]["counter"]["packets"]
        if hit < least:
            raise Failed(f"only {hit} greetings were changed")
    finally:
        guest.run("nft delete chain inet lab greet; nft delete counter inet lab greeted")


def innocent(lab, to, **more):
    job = lab.client("smcr", to, "pings", 40_000, 1000, "stops", PATIENCE=1000, **more).expect("up", 30)
    await_groups_of(lab.a, 1)
    return job


def await_groups_of(guest, number):
    end = time.monotonic() + 30
    while len(groups(guest)) != number:
        if time.monotonic() > end:
            raise Failed(f"groups: {groups(guest)}")
        time.sleep(0.3)


def await_groups(guest, before, forged):
    """A hostile end whose own queue pair has failed can't say that it leaves: the victim's next Test Link finds out."""
    end = time.monotonic() + 90
    while groups(guest).keys() != before and time.monotonic() < end:
        time.sleep(0.3)
    if groups(guest).keys() != before:
        raise Failed(f"groups left by {forged}, not {sorted(before)} as before: {groups(guest)}")


def end_innocent(lab, job, before):
    if job.rc is not None:
        raise Failed(f"the innocent one has ended: {job.tail()}")
    await_groups(lab.a, before, "all")
    job.guest.say(id=job.number, input="go\n")
    return said(job.done(60))


# The link may be over before all is sent.
CUT_SHORT = {name for name, _, wanted in FORGED if wanted == "tcp"}


def judged(row, how, job):
    """What is wrong with how a forgery went; `job` is the hostile end."""
    name, plan, wanted = row
    forged = "forge: done" in job.out and (name in CUT_SHORT or "forge: refused" not in job.out)
    if plan.startswith("rdma") and not re.search(r"forge: completed (9|10|12)\b", job.out):
        how = f"{how}, and the network card took it"
    return [] if how == wanted and forged else [f"{name}: {how}, not {wanted}{'' if forged else ', not forged'}: {job.tail()}"]


# A kernel is known by its address: one for each forgery, so that none is asked to join the group of another.
ADDRESSES = [f"10.77.0.{100 + i}" for i in range(len(FORGED) + len(BY_KERNELS))]


@contextlib.contextmanager
def addresses(guest, all_):
    """Meanwhile a guest has them."""
    for address in all_:
        guest.run(f"ip addr add {address}/32 dev eth0")
    try:
        yield
    finally:
        for address in all_:
            guest.run(f"ip addr del {address}/32 dev eth0")


def forged_at_server(lab, rows=None, sources=()):
    """The victim is a server; each forgery comes from a process, and so a group, of its own."""
    rows = rows or some(FORGED)
    install(lab)
    to = lab.server("smcr")
    good = innocent(lab, to)
    before, seen, wrong = groups(lab.a).keys(), {}, []
    for at in range(0, len(rows), AT_ONCE):
        own = sources[at:at + AT_ONCE]
        with addresses(lab.b, own):
            forge_at_server(lab, to, good, rows[at:at + AT_ONCE], own or [""] * AT_ONCE, seen, wrong)
    text = end_innocent(lab, good, before)
    announced = sum(row[1] == GARBAGE for row in rows)
    if lab.servers["smcr", "A"].out.count("ValueError") > announced:
        wrong.append(f"wrong bytes: {lab.servers['smcr', 'A'].tail()}")
    if wrong:
        raise Failed("; ".join(wrong))
    return f"{len(rows)} forgeries: {seen}; the other group: {text}"


def forge_at_server(lab, to, good, rows, sources, seen, wrong):
    """Some at once."""
    server = lab.servers["smcr", "A"]
    jobs = [(row, hostile(lab, to, row[1], SOURCE=source)) for row, source in zip(rows, sources)]
    for row, job in jobs:
        how = outcome(lab, job)
        seen[how] = seen.get(how, 0) + 1
        wrong += judged(row, how, job)
        if job.rc is None:
            job.guest.say(id=job.number, input="go\n")
    for _, job in jobs:
        job.wait(30)
    if server.rc is not None or good.rc is not None:
        raise Failed(f"after {[row[0] for row in rows]}: server {server.tail()}, innocent {good.tail()}")


def forged_by_kernel_at_server(lab):
    rows = some(by_kernels())
    with taken_for_kernel(lab.b, "output", f"ip saddr {ADDRESSES[0]}-{ADDRESSES[-1]}", len(rows)):
        return forged_at_server(lab, rows, ADDRESSES)


add("hostile: a server, forged messages, cursors, keys", forged_at_server)
add("hostile: a server, forged messages, cursors, keys of a kernel", forged_by_kernel_at_server)


def forged_at_client(lab, forgeries=None):
    """The victim is a client; each forgery comes from a server of its own, and so by a group of its own. Beside them the victim
    has a connection to a good server."""
    forgeries = forgeries or some(FORGED)
    install(lab)
    job = lab.client("smcr", lab.server("smcr"), "victim", N, PATIENCE=1500)
    await_groups_of(lab.b, 1)
    before, seen, wrong = groups(lab.b).keys(), {}, []
    pid = int(re.search(r"^pid (\d+)", job.expect("pid", 5).out, re.M)[1])
    left, port, tries = list(forgeries), 5600, {}
    while left:
        is_blocked = False
        rows, left = {port + i: row for i, row in enumerate(left[:AT_ONCE])}, left[AT_ONCE:]
        port += AT_ONCE
        servers = {p: lab.a.start(f"exec {PEER} serve {lab.a.ip} {p}", LD_PRELOAD=FAULTY, SMCR_FORGE=row[1], **lab.logged()) for p, row in rows.items()}
        try:
            for p, server in servers.items():
                server.expect("serving", 60)
                job.guest.say(id=job.number, input=f"{p}\n")
            for p, row in rows.items():
                how = seen_by_victim(lab, job, p, pid)
                how = "ends" if how == "ValueError" and row[1] == GARBAGE else how
                server = servers[p]
                is_told = re.compile("forge: completed" if row[1].startswith("rdma") else "forge: done").search
                lab.a.wait(lambda: is_told(server.out) or server.rc is not None, 5)
                tries[row[0]] = tries.get(row[0], 0) + 1
                if how == "ends" and row[1].startswith("rdma") and not is_told(server.out) and tries[row[0]] < TRIES:
                    left.append(row)  # the victim was faster than the hostile end, which has heard nothing of its card
                elif how == "tcp" and "forge:" not in server.out and tries[row[0]] < TRIES:
                    # It had no link: not greeted in time by a server on a busy machine, or one to that host has just failed to come up.
                    left.append(row)
                    is_blocked |= {s["reason"]["name"] for s in connections(lab, pid, p)} != {"peer-silent"}
                else:
                    seen[how] = seen.get(how, 0) + 1
                    victim = re.findall(rf"^port {p} .*$", job.out, re.M)
                    wrong += [f"{text}; the victim: {victim}" for text in judged(row, how, servers[p])]
                job.guest.say(id=job.number, input=f"-{p}\n")
        finally:
            for server in servers.values():
                server.kill(signal.SIGINT)  # so that it says that it leaves, if it can
        if job.rc is not None or "innocent:" in job.out:
            raise Failed(f"after {[row[0] for row in rows.values()]}: {job.tail()}")
        if is_blocked:
            time.sleep(65)  # then the host is tried again
    await_groups(lab.b, before, "all")
    job.guest.say(id=job.number, input="\n")
    text = re.search(r"^innocent: (.*)$", job.done(60), re.M)[1]
    if wrong:
        raise Failed("; ".join(wrong))
    return f"{len(forgeries)} forgeries: {seen}; the other group: {text}"


def forged_by_kernel_at_client(lab):
    rows = some(by_kernels())
    with taken_for_kernel(lab.a, "prerouting", "tcp dport 5600-5999", len(rows)):
        return forged_at_client(lab, rows)


def seen_by_victim(lab, job, port, pid):
    """Where its connection to a hostile server has gone."""
    job.guest.wait(lambda: f"port {port} " in job.out or job.rc is not None, 100)
    said_ = re.findall(rf"^port {port} (\w+)", job.out, re.M)
    if not said_:
        return f"it hangs: {job.tail()}"
    if said_[0] == "whole":
        return medium(lab, pid, port)
    return "ends" if said_[0] in ENDS else said_[0]


add("hostile: a client, forged messages, cursors, keys", forged_at_client)
add("hostile: a client, forged messages, cursors, keys of a kernel", forged_by_kernel_at_client)


def other_groups_ring(lab):
    """The hostile end knows key and place of the innocent one's ring, and overwrites all of it again and again."""
    install(lab)
    to = lab.server("smcr")
    good = lab.b.start(f"exec {PEER} pings {to} 40000 1000 stops", LD_PRELOAD=FAULTY, SMCR_FORGE="show", PATIENCE=1000).expect("forge: done", 40)
    before = groups(lab.a).keys()
    key, ring, size = (int(x, 16) for x in re.search(r"key (\w+) ring (\w+) size (\w+)", good.out).groups())
    results = []
    for what, plan in (("write", f"rdma 0 {key:x} {ring:x} {size:x}"), ("read", f"rdma 4 {key:x} {ring:x} 1000"), ("write with immediate", f"rdma 1 {key:x} {ring:x} {size:x}")):
        job = hostile(lab, to, plan)
        how = outcome(lab, job)
        status = re.findall(r"forge: completed (\d+)", job.out)
        if job.rc is None:
            job.guest.say(id=job.number, input="go\n")
            job.wait(30)
        if "forge: done" not in job.out or not status or "0" in status:
            raise Failed(f"{what}: the network card took it: {how} {job.tail()}; {good.tail()}")
        results.append(f"{what}: status {status[0]}, then {how}")
    return f"{'; '.join(results)}; the other group: {end_innocent(lab, good, before)}"


add("hostile: the ring of another group, key and address known", other_groups_ring)
