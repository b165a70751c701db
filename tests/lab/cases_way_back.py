"""Between two libsmcr: a link that dies, a drain, an exec or a passed descriptor brings connections back to TCP, and no
byte of them is lost."""
import json
import re
import time

from guests import HERE, Failed
from lab import CUT, MEND, PORTS, add, case, said

FORKING = f"/usr/bin/python3 {HERE}/forking.py"


def on_rdma(lab, to):
    with lab.traffic() as traffic:
        lab.client("smcr", to, "one", 65537, PATIENCE=40).done(45)
    return traffic.went_over_rdma(400_000)


def survives(lab, n, idle, happens, reason="link-lost", patience=100):
    """Traffic in both directions while something happens to the link; what went where, and that each connection has gone back, for this reason at
    the client's end."""
    lab.restart()
    to = lab.server("smcr")
    with lab.traffic() as traffic:
        job = lab.client("smcr", to, "survive", n, idle, PATIENCE=patience, HOLD="client")
        job.expect("up", 30)
        time.sleep(0.7)
        if not lab.b.run("smcrctl linkgroup").count("rxe0"):
            raise Failed("no link group: " + job.tail())
        happens()
        if n:
            job.expect("busy done", patience)
            # The server has yet to close the ends of those that are idle.
            returned(lab, idle + 2, reason, idle)
        job.guest.say(id=job.number, input="go\n")
        # What has carried nothing had ended in order before.
        text, shown = lab.held(job, lambda: returned(lab, idle + 2, reason, ended=0 if n else 1), patience)
    if traffic.tcp < n // 4 or not shown:
        raise Failed(f"not over TCP at the end: {traffic}; {job.tail()}")
    busy = re.findall(r"busy done after [\d.]+ s", text)
    return to, f"{said(text)}; {busy[0] if busy else ''}; {traffic}; {shown}"


def returned(lab, number, reason, there=0, ended=0):
    """All connections of the client, so many, are on TCP for this reason, but those that the server had ended before; and so are those that the server
    still has open, for its own."""
    end = time.monotonic() + 15
    while True:
        client, server = (lab.looked_at(guest, "smcr", PORTS["smcr"]) for guest in (lab.b, lab.a))
        are = len(client) == number and client.count(("tcp", reason)) == number - ended and client.count(("rdma", "-")) == ended
        if are and len(server) >= there and {mode for mode, _ in server} <= {"tcp"}:
            return f"{number - ended} of {number} on TCP for {reason}"
        if time.monotonic() > end:
            raise Failed(f"not {number} on TCP for {reason}: {client}; the server's: {server}")
        time.sleep(0.3)


@case
def way_back_the_link_dies_under_load(lab):
    try:
        to, text = survives(lab, 24 << 20, 20, lambda: lab.a.run(CUT))
    finally:
        lab.a.run(MEND)
    return f"{text}; then {on_rdma(lab, to)}"


@case
def way_back_the_link_of_idle_connections_dies(lab):
    try:
        to, text = survives(lab, 0, 50, lambda: lab.a.run(CUT))
    finally:
        lab.a.run(MEND)
    return f"{text}; then {on_rdma(lab, to)}"


@case
def way_back_one_end_gives_the_link_up_and_the_other_is_idle(lab):
    """What the client writes does not arrive any more; the server has nothing to send, and hears of it over TCP alone."""
    lab.restart()
    to = lab.server("smcr")
    job = lab.client("smcr", to, "twice", 3000, PATIENCE=100).expect("once", 30)
    try:
        began = lab.on_rdma("smcr", "smcr")
        time.sleep(2)  # all is acknowledged
        lab.a.run(CUT)
        job.guest.say(id=job.number, input="go\n")
        job.expect("both", 20)  # the link is given up after 5 s
        went = time.monotonic()
        while any(linkgroups(guest) for guest in (lab.b, lab.a)) and time.monotonic() < went + 15:
            time.sleep(0.2)
        took, left = time.monotonic() - went, [linkgroups(guest) for guest in (lab.b, lab.a)]
        if any(left):
            raise Failed(f"groups that are left: {left}")
    finally:
        lab.a.run(MEND)
    job.guest.say(id=job.number, input="go\n")
    return f"{said(job.done(60))}{began}; no group {took:.0f} s after; then {on_rdma(lab, to)}"


def on_a_dead_link(operation, *rest):
    """The handshake joins a group by CLC alone, and the program has closed, or has ended, before it is over."""
    def run(lab):
        lab.restart()
        to = lab.server("smcr")
        job = lab.client("smcr", to, "holds", operation, 50_000, *rest, PATIENCE=100).expect("up", 30)
        began = lab.on_rdma("smcr", "smcr")
        with lab.cut_off():
            job.guest.say(id=job.number, input="go\n")
            text = said(job.done(100))
            if rest:
                text = said(lab.client("tcp", to, "ends", *rest, PATIENCE=60).done(65))
            if "server saw eof 50000" not in text:
                raise Failed(text)
        return f"{text}{began}; then {on_rdma(lab, to)}"
    return run


add("way back: closed at once on a link that is dead", on_a_dead_link("closes"))
add("way back: all is said on a link that is dead, and the process ends at once", on_a_dead_link("parting", "dead"))


def linkgroups(guest):
    return json.loads(guest.run("smcrctl linkgroup --json"))["linkgroups"]


@case
def way_back_drain_of_one_end_under_load(lab):
    to, text = survives(lab, 16 << 20, 10, lambda: lab.b.run("smcrctl drain"), "drained")
    return f"{text}; then {on_rdma(lab, to)}"


def with_bytes_unread(lab, cut, becomes=""):
    """The other end is drained: the connection has left its link when the program reads what had come by it."""
    lab.restart()
    job = lab.client("smcr", lab.server("smcr"), "kept", 40_000, becomes, PATIENCE=60).expect("up", 30)
    began = lab.on_rdma("smcr", "smcr")
    try:
        if cut:
            lab.a.run(CUT)
        drain = lab.a.start("smcrctl drain")
        end = time.monotonic() + 20
        while {mode for mode, _ in lab.looked_at(lab.b, "smcr", PORTS["smcr"])} != {"tcp/rdma"}:
            if time.monotonic() > end:
                raise Failed(f"it has not left: {lab.socks(lab.b, PORTS['smcr'])}")
            time.sleep(0.2)
        job.guest.say(id=job.number, input="go\n")
        job.wait(60)
        drain.done(30)
    finally:
        lab.a.run(MEND)
    if becomes == "plain":
        if job.rc != 1 or not re.search(r"^(ConnectionResetError|OSError: .Errno 107)", job.out, re.M):
            raise Failed(f"the next program: {job.rc} {job.tail()}")
        return f"a program without the library is reset{began}"
    return f"{said(job.done(1))}{began}"


@case
def way_back_drain_with_bytes_unread(lab):
    return with_bytes_unread(lab, cut=False)


@case
def way_back_drain_with_bytes_unread_where_the_link_is_dead(lab):
    return with_bytes_unread(lab, cut=True)


@case
def way_back_drain_with_bytes_unread_and_exec(lab):
    return with_bytes_unread(lab, cut=False, becomes="another")


@case
def way_back_drain_with_bytes_unread_and_exec_without_the_library(lab):
    """The peer sends them no more: no orderly end may hide that."""
    return with_bytes_unread(lab, cut=False, becomes="plain")


def forked(lab, what, port, client="smcr"):
    job = lab.a.start(f"exec {FORKING} {what} {lab.a.ip} {port}", **lab.env("smcr")).expect("serving", 30)
    n, before = 3_000_000, 200_000
    try:
        with lab.traffic() as traffic:
            text = lab.client(client, f"{lab.a.ip} {port}", "after", n, before, PATIENCE=40).done(45)
    finally:
        job.kill()
    if traffic.rdma < 2 * before or traffic.tcp < 2 * n:
        raise Failed(f"not by the link, then by TCP: {traffic}")
    return f"{said(text)}; {traffic}"


@case
def way_back_exec_with_a_connection(lab):
    """A program without the library inherits the connection as its stdin and stdout."""
    return forked(lab, "cat", 5510)


@case
def way_back_a_descriptor_is_passed_to_a_program_without_the_library(lab):
    return forked(lab, "pass", 5511)


@case
def way_back_a_waiter_that_the_library_does_not_see(lab):
    """An echo server whose epoll_wait is a bare system call."""
    job = lab.a.start(f"exec /lab/echo_many raw 5512 {lab.a.ip}", **lab.env("smcr"))
    time.sleep(1)
    try:
        with lab.traffic() as traffic:
            client = lab.client("smcr", f"{lab.a.ip} 5512", "echoed", 2_000_000, PATIENCE=60, HOLD="client")
            text, seen = lab.held(client, lambda: lab.socks(lab.a, 5512), 65)
        if [s["reason"]["name"] for s in seen] != ["unseen-waiter"]:
            raise Failed(f"the server's end: {seen}")
        return f"{said(text)}; {traffic}; reason unseen-waiter, {seen[0]['rx']} by the link"
    finally:
        job.kill()
