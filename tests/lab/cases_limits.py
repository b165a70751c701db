"""A process that may have no more descriptors, or no thread, when a handshake is to begin: it says no, and its connections are on TCP; or when
connections are to go back there."""
from cases_fallback import NOBODY, declined, over_tcp, started
from guests import Failed
from lab import add, case, said

# Of `nobody`, who runs nothing else.
NO_THREADS = f"prlimit --nproc=1 {NOBODY}"
# What the end that has nothing shows.
OWN = "resources"


def server(client, wrap, how):
    def run(lab):
        to, job = started(lab, wrap, how=f"0 {how}")
        try:
            shown = [over_tcp(lab, client, to, why=(declined(client, "01010000"), OWN)) for _ in range(3)]
            return "; ".join(shown)
        finally:
            job.kill()
    return run


def client(server, wrap, operation, arguments="65537", why=OWN):
    return lambda lab: over_tcp(lab, "smcr", lab.server(server), wrap, (why, declined(server, "01010000") if why == OWN else None), operation, arguments)


for peer in ("kernel", "smcr"):
    add(f"limits: no descriptor is left, {peer} -> smcr server without", server(peer, "", "tight"))
    add(f"limits: one descriptor is left, smcr client without -> {peer}", client(peer, "", "tightly", "65537 1"))
    # It cannot see what devices there are, and does not ask.
    add(f"limits: no descriptor is left, smcr client without -> {peer}", client(peer, "", "tightly", "65537 0", "remote"))
    add(f"limits: no thread may be made, {peer} -> smcr server without", server(peer, NO_THREADS, "alone"))
    add(f"limits: no thread may be made, smcr client without -> {peer}", client(peer, NO_THREADS, "one"))


@case
def limits_the_link_dies_and_no_descriptor_is_left(lab):
    """The way back takes one for each connection while that is on its way."""
    lab.restart()
    job = lab.client("smcr", lab.server("smcr"), "full", 100_000, 8, PATIENCE=120).expect("up", 40)
    try:
        began = lab.on_rdma("smcr", "smcr", number=9)
        with lab.cut_off(), lab.traffic() as traffic:
            job.guest.say(id=job.number, input="go\n")
            text = said(job.done(120))
        if traffic.tcp < 2 * 8 * 100_000:
            raise Failed(f"not over TCP at the end: {traffic}")
        return f"{text}; {traffic}{began}"
    finally:
        lab.restart()
