"""One client, one server, each pair of kinds: the stream is right, and it went where it should."""
import json
import time

from guests import Failed
from lab import add, all_smcr, case, payload, said

PAIRS = [("kernel", "kernel"), ("kernel", "smcr"), ("smcr", "kernel"), ("smcr", "smcr")]
MANY = 100
# (name, operation, arguments, connections, seconds)
OPERATIONS = [
    ("1 B to 64 KiB", "one", [65537], 1, 60),
    ("1 B to 64 MiB", "one", [64 << 20], 1, 240),
    ("ring wrap", "wrap", [3 << 20, 1], 1, 90),
    ("both directions at once", "echo", [1, 70000, 5 << 20], 3, 90),
    ("16 MiB by one send and one receive", "whole", [16 << 20], 1, 120),
    ("stream from the server", "stream", [24 << 20], 1, 90),
    ("slow reader", "slow", [2 << 20], 1, 90),
    ("full ring, no wait", "fill", [1 << 20], 1, 90),
    ("SO_SNDBUF set while a stream goes", "limited", [200_000], 1, 60),
    ("half-close", "half", [700001], 1, 60),
    ("urgent byte", "urgent", [], 1, 60),
    ("urgent byte from the server", "urgent_back", [], 1, 60),
    ("urgent bytes where rings end, in a row, in line", "urgents", [], 2, 60),
    ("urgent bytes where rings end, in a row, in line, from the server", "urgents_back", [], 2, 60),
    (f"{MANY} connections", "many", [MANY, 3000, "hold"], MANY, 120),
    ("again after a pause", "again", [4, 1.5], 4, 60),
]


def stream(client, server, operation, arguments, connections, seconds):
    def run(lab):
        to = lab.server(server)
        # A kernel that is the server is asked as well, and both ends where there is little to count. Those of one kernel have other ways.
        is_seen = client == "smcr" and operation != "many" or operation.startswith("urgent")
        with lab.traffic() as traffic:
            job = lab.client(client, to, operation, *arguments, PATIENCE=seconds, **({"HOLD": "both"} if is_seen else {}))
            one = in_one_group(lab, job, client, server, connections, seconds) if "hold" in arguments else ""
            text, seen = lab.held(job, lambda: lab.on_rdma(client, server), seconds + 5) if is_seen else (job.done(seconds + 5), "")
        if is_seen and not seen:
            raise Failed(f"nobody has looked: {job.tail()}")
        kernel = all_smcr(text, client) + seen
        return f"{said(text)}{one}; {traffic.went_over_rdma(payload(text), connections)}{kernel}"
    return run


def in_one_group(lab, job, client, server, connections, seconds):
    """All of them are open now, and belong to one link group; as our end shows it."""
    job.expect("open", seconds)
    held = [g["connections"] for guest, kind in ((lab.a, server), (lab.b, client)) if kind == "smcr" for g in ours(guest)]
    held += [g["connections"] for guest, kind in ((lab.a, server), (lab.b, client)) if kind == "kernel" for g in lab.groups(guest)]
    job.guest.say(id=job.number, input="go\n")
    if held.count(connections) != 2:
        raise Failed(f"connections of the groups at both ends: {held}")
    return f", {connections} in one group at each end"


def ours(guest):
    return json.loads(guest.run("smcrctl linkgroup --json"))["linkgroups"]


def burst(lab):
    """Many connections of one process come before the first has a link: there is one link group all the same."""
    number, on_link, seen = 60, 0, []
    for _ in range(TRIES):
        lab.restart()
        text, on_link, groups = burst_of(lab, lab.server("smcr"), number)
        seen.append(on_link)
        if groups != [[on_link], [on_link]]:
            raise Failed(f"{on_link} connections on RDMA, groups of {groups}")
        if on_link >= number - FEW:
            return f"{said(text)}, {on_link} of {number} in one group at each end, on TCP for the greeting that came late: {number - on_link}"
    raise Failed(f"of {number} were on RDMA: {seen}")


# A client that a slow server has not greeted within 2 s is on TCP, and says so. On a busy machine these are few at one of some attempts.
TRIES, FEW = 4, 10


def burst_of(lab, to, number):
    """So many connections at once: what was said, how many are on RDMA, and the groups. None is elsewhere for another reason."""
    job = lab.client("smcr", to, "many", number, 3000, "hold", "burst", PATIENCE=90).expect("open", 90)
    try:
        groups = [[g["connections"] for g in ours(guest)] for guest in (lab.a, lab.b)]
        here = lab.looked_at(lab.b, "smcr", to.split()[1])  # the server has closed its ends, and waits for these
    finally:
        job.guest.say(id=job.number, input="go\n")
    on_link = here.count(("rdma", "-"))
    others = {reason for mode, reason in here if mode != "rdma"}
    if len(here) != number or not others <= {"peer-silent"}:
        raise Failed(f"{len(here)} connections, {on_link} on RDMA, others for {others}")
    return job.done(95), on_link, groups


def after_silence(client, server):
    """Longer than a link may be silent without a Test Link: the group is the same one."""
    def run(lab):
        lab.restart()
        to = lab.server(server)
        guest = lab.a if server == "smcr" else lab.b
        with lab.traffic() as traffic:
            job = lab.client(client, to, "again", 2, 38, PATIENCE=90)
            seen, end = {}, time.monotonic() + 95
            while job.rc is None and time.monotonic() < end:
                seen.update({g["qpn"]: g["messages_received"] for g in ours(guest)})
                time.sleep(1)
            text = job.done(5)
        kernel = all_smcr(text, client)
        if len(seen) != 1:
            raise Failed(f"queue pairs and messages: {seen}")
        return f"{said(text)}, one group; {traffic.went_over_rdma(payload(text), 2)}{kernel}"
    return run


def larger_there(server, there, piece=5000, size=1 << 20, **ours):
    """The reader's ring is so much larger than the sender's that all that can wait is little of it: a libsmcr hears of
    each read, and towards a kernel nothing of what was written waits."""
    def run(lab):
        setting = "net.smc.rmem"
        before = lab.a.run(f"sysctl -n {setting}").strip()
        lab.a.run(f"sysctl -qw {setting}={there}")
        try:
            lab.restart()
            to = lab.server(server)
            with lab.traffic() as traffic:
                job = lab.client("smcr", to, "slow", size, piece, PATIENCE=60, HOLD="both", **ours)
                text, seen = lab.held(job, lambda: lab.on_rdma("smcr", server), 65)
            if not seen:
                raise Failed(f"nobody has looked: {job.tail()}")
            return f"{said(text)}; {traffic.went_over_rdma(payload(text))}{seen}"
        finally:
            lab.a.run(f"sysctl -qw {setting}={before}")
    return run


def plain(lab):
    """Proves the harness: what does not go over RDMA is seen not to."""
    with lab.traffic() as traffic:
        text = lab.client("tcp", lab.server("tcp"), "one", 1 << 20).done()
    try:
        traffic.went_over_rdma(payload(text))
    except Failed:
        return f"{said(text)}; {traffic.went_over_tcp(payload(text))}"
    raise Failed("plain TCP was taken for RDMA")


ROUNDS = 500
# Work requests for a message, at least and at most: between two libsmcr one, a write with immediate data; where a kernel is an end a write and a message
# of CDC, which shows that they are counted. What a link takes when it comes up is in the tenth.
REQUESTS = {pair: (1.0, 1.1) if "kernel" not in pair else (1.9, 2.2) for pair in PAIRS}


def work_requests(client, server):
    """A ping-pong of one byte costs no more of them than it has to, whatever the load of this machine."""
    def run(lab):
        to, messages = lab.server(server), 2 * ROUNDS
        with lab.traffic(lab.a) as there, lab.traffic() as traffic:
            text = lab.client(client, to, "rally", 1, ROUNDS, PATIENCE=90).done(95)
        # Soft RoCE repeats what is not acknowledged in time: the other end counts those.
        again = sum(t.of_devices("duplicate_request") for t in (there, traffic))
        least, most = REQUESTS[client, server]
        shown = f"{traffic.requests / messages:.3f} work requests for a message, {again} packets that came twice"
        if not least * messages <= traffic.requests <= most * messages + again:
            raise Failed(f"{shown}: not {least} to {most}")
        return f"{said(text)}: {shown}; {traffic.went_over_rdma(payload(text))}{all_smcr(text, client)}"
    return run


@case
def smcr_to_smcr_more_senders_than_send_slots(lab):
    """Each of 40 connections with as much to send as it can gets its share of the 16 slots of a link."""
    lab.restart()
    to = lab.server("smcr")
    lab.client("smcr", to, "one", 1000).done()  # while a server opens its device others may wait for its greeting for too long
    with lab.traffic() as traffic:
        text = lab.client("smcr", to, "shares", 40, 15, PATIENCE=90).done(95)
    where = traffic.went_over_rdma(payload(text), 40)  # first: one of them on TCP, which is faster here, starves the others
    if ", 0 with next to nothing" not in said(text):
        raise Failed(f"{said(text)}; {where}")
    return f"{said(text)}; {where}"


add("tcp -> tcp: 1 B to 1 MiB, counted as TCP", plain)
for client, server in PAIRS:
    for name, operation, arguments, connections, seconds in OPERATIONS:
        if operation.startswith("urgent") and client == server == "kernel":
            continue  # nothing of ours
        add(f"{client} -> {server}: {name}", stream(client, server, operation, arguments, connections, seconds))
    add(f"{client} -> {server}: work requests of {2 * ROUNDS:,} messages of a ping-pong", work_requests(client, server))
    if "smcr" in (client, server):
        add(f"{client} -> {server}: again after 38 s of silence", after_silence(client, server))
add("smcr -> smcr: 64 MiB by one send and one receive", stream("smcr", "smcr", "whole", [64 << 20], 1, 240))
add("smcr -> smcr: 60 connections in one burst", burst)
add("smcr -> smcr: a ring of 16 KiB to a peer with 64", larger_there("smcr", 65536, SMCR_RING=16384))
add("smcr -> kernel: to a ring of 512 KiB", larger_there("kernel", 524288))
add("smcr -> kernel: a ring of 16 KiB to one of 512", larger_there("kernel", 524288, SMCR_RING=16384))
add("smcr -> kernel: a ring of 16 KiB to one of 512, read in small pieces", larger_there("kernel", 524288, 500, 200_000, SMCR_RING=16384))
