"""connect() that returns before there is a connection: of a socket that does not wait, or by a signal. What follows goes over RDMA all the same. And connect() that
disconnects."""
from guests import Failed
from lab import MEND, PORTS, add, all_smcr, payload, said


def interrupted(client, server, how):
    """The answer to the client's SYN does not arrive before its connect() has returned; the server's kernel says it again. (A SYN that is lost twice
    goes without the option: `bpf/smcr.bpf.c`.)"""
    def run(lab):
        to, n = lab.server(server), 200_001
        cut = f"nft 'add rule inet lab cut tcp sport {PORTS[server]} tcp flags & (syn | ack) == syn | ack drop'"
        with lab.traffic() as traffic:
            lab.b.run(cut)
            try:
                job = lab.client(client, to, "interrupted", n, f"'{how}'", HOLD="both", PATIENCE=60).expect("begun", 40)
            finally:
                lab.b.run(MEND)
            job.guest.say(id=job.number, input="go\n")
            text, seen = lab.held(job, lambda: lab.on_rdma(client, server), 65)
        if not seen:
            raise Failed(f"nobody has looked: {job.tail()}")
        return f"{said(text)}; {traffic.went_over_rdma(payload(text))}{all_smcr(text, client)}{seen}"
    return run


def anew(server, when):
    """What comes after a connect() to AF_UNSPEC goes to the new peer, and the old one has seen a reset."""
    def run(lab):
        job = lab.client("smcr", lab.server(server), "anew", 100_001, f"'{when}'", PATIENCE=60)
        seen = ""
        if when != "at once":
            job.expect("up", 40)
            seen = lab.on_rdma("smcr", server)
            job.guest.say(id=job.number, input="go\n")
        text = said(job.done(65))
        if when != "at once" and "server saw ECONNRESET 100" not in text:
            raise Failed(text)
        return f"{text}{seen}"
    return run


for client, server in (("smcr", "smcr"), ("smcr", "kernel")):
    add(f"connect: of a socket that does not wait, {client} -> {server}", interrupted(client, server, "at once"))
    add(f"connect: ended by a signal, {client} -> {server}", interrupted(client, server, "signal"))
    add(f"connect: ended by a signal and called again, {client} -> {server}", interrupted(client, server, "again"))
    for when in ("on a link", "at once"):
        add(f"connect: disconnected by AF_UNSPEC {when} and connected again, smcr -> {server}", anew(server, when))
