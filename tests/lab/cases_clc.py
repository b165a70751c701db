"""Hostile CLC, against the library itself: `raw_clc.py` marks its socket as libsmcr does, and then says what no peer should, as server and
as client. The library's end declines and goes on over TCP with every byte, or the connection ends; nothing hangs, nothing dies, and what the
process has by RDMA with a good peer goes on. And strangers that show the option without knowing what it means."""
import json
import re

from cases_fallback import over_tcp
from guests import HERE, Failed
from lab import LIB, PORTS, add, said
from raw_clc import CLIENT, N, SERVER

RAW = f"/usr/bin/python3 {HERE}/raw_clc.py"
BASE = 6100
# How often a row is tried where the guests were too slow for the greeting, which is no more than 2 s.
TRIES = 4


def at_server(lab):
    """The victim is a server."""
    lab.restart()
    to = lab.server("smcr")
    good = lab.client("smcr", to, "pings", 4000, 1000, "stops", PATIENCE=500).expect("up", 30)
    lab.on_rdma("smcr", "smcr")
    text = lab.b.start(f"exec {RAW} client {to}", PATIENCE=60).done(400)
    found = dict(re.findall(r"^\[(.*?)\] (.*)$", text, re.M))
    wrong = [f"{name}: {found.get(name)}, not {wanted}" for name, (_, wanted, _) in CLIENT.items() if found.get(name) != wanted]
    server = lab.servers["smcr", "A"]
    if server.rc is not None or good.rc is not None:
        raise Failed(f"server {server.tail()}; the good client {good.tail()}; {wrong}")
    if wrong:
        raise Failed(f"{'; '.join(wrong)}; server {server.tail()}")
    good.guest.say(id=good.number, input="go\n")
    with lab.traffic() as traffic:
        again = lab.client("smcr", to, "one", 65537, PATIENCE=60).done(65)
    return f"{len(found)} rows: {counted(CLIENT)}; a good client meanwhile: {said(good.done(60))}; then {said(again)}, {traffic.went_over_rdma(400_000)}"


def counted(rows):
    return ", ".join(f"{sum(w == how for _, w, _ in rows.values())} {words}" for how, words in (("tcp", "on TCP with every byte"), ("ends", "ended")))


def at_client(lab):
    """The victim is a client: one process with a connection to each row's server, and one to a good server."""
    lab.restart()
    to = lab.server("smcr")
    names = list(SERVER)
    quoted = " ".join(f'"{name}"' for name in names)
    server = lab.a.start(f"exec {RAW} serve {lab.a.ip} {BASE} {quoted}", PATIENCE=60).expect("serving", 60)
    rows = {name: [BASE + i, stray.hex()] for i, (name, (_, _, stray)) in enumerate(SERVER.items())}
    victim = None
    try:
        victim = lab.client("smcr", to, "meets", N, PATIENCE=600, HOLD="both").expect("up", 60)
        left, found = names, {}
        for _ in range(TRIES):
            victim.guest.say(id=victim.number, input=json.dumps([[name, *rows[name]] for name in left]) + "\n")
            before = len(re.findall("^all met$", victim.out, re.M))
            lab.b.wait(lambda: victim.rc is not None or len(re.findall("^all met$", victim.out, re.M)) > before, 500)
            found.update(re.findall(r"^\[(.*?)\] (.*)$", victim.out, re.M))
            theirs = dict(re.findall(r"^\[(.*?)\] (.*)$", server.out, re.M))
            left = [name for name in names if theirs.get(name, "").startswith("late")]
            if not left or victim.rc is not None:
                break
        wrong = [f"{name}: {found.get(name)}, not {wanted}; there {theirs.get(name)}" for name, (_, wanted, _) in SERVER.items()
                 if found.get(name, "").split(" ")[0] != wanted or not theirs.get(name, "ends").startswith(wanted)]
        if victim.rc is not None:
            raise Failed(f"the victim has ended: {victim.tail()}; {wrong}")
        if wrong:
            raise Failed("; ".join(wrong))
        victim.guest.say(id=victim.number, input="\n")
        text, seen = lab.held(victim, lambda: lab.on_rdma("smcr", "smcr", number=2), 60)
        return f"{len(found)} rows: {counted(SERVER)}; {said(text)}{seen}"
    finally:
        for job in filter(None, (victim, server)):
            if job.rc is None:
                job.kill()


add("clc: a server, and what a client says in place of CLC", at_server)
add("clc: a client, and what a server says in place of CLC", at_client)


def stranger(name, reason):
    """A plain program has set the private mark on its listener itself: libsmcr's client waits for a greeting that does not come, or reads what the
    server has to say."""
    def run(lab):
        stray = SERVER[name][2].hex()
        server = lab.a.start(f'exec {RAW} serve {lab.a.ip} {BASE} "{name}"', PATIENCE=60).expect("serving", 60)
        try:
            shown = over_tcp(lab, "smcr", f"{lab.a.ip} {BASE}", why=(re.escape(reason), None), operation="stray", arguments=f"65537 '{stray}'")
            lab.a.wait(lambda: "tcp, eof" in server.out, 10)
            if f"[{name}] tcp, eof" not in server.out:
                raise Failed(f"the stranger: {server.tail()}")
            return f"{shown}; the stranger has got these bytes, and no other"
        finally:
            server.kill()
    return run


add("clc: a stranger with the mark that waits for the client", stranger("nothing", "peer-silent"))
add("clc: a stranger with the mark that speaks first", stranger("text and no greeting", "SMC 03010000"))
add("clc: a stranger with the mark that begins as a greeting does", stranger("half a greeting and no greeting", "peer-silent"))
