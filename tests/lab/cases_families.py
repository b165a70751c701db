"""IPv6 sockets: those that carry IPv4 (what Java, nginx and Node listen on) are accelerated as IPv4 sockets are; IPv6 itself
is plain TCP, with every byte, whoever the peer is."""
from lab import PEER, add, all_smcr, payload, said

PORT = 5010
ADDRESS = {"A": "fd77::1", "B": "fd77::2"}
SIX = {"AF": "10"}


def listening(lab, function):
    """Runs it beside a server that listens for both families with one socket."""
    job = lab.a.start(f"exec {PEER} serve :: {PORT}", **lab.env("smcr", **SIX)).expect("serving", 30)
    try:
        return function(job)
    finally:
        job.kill()


def carried(lab, client, to, **more):
    with lab.traffic() as traffic:
        text = lab.client(client, to, "wrap", 1 << 20, 1, PATIENCE=60, **more).done(65)
    return f"{said(text)}; {traffic.went_over_rdma(payload(text))}{all_smcr(text, client)}"


def mapped(client, **more):
    def run(lab):
        return listening(lab, lambda _: carried(lab, client, f"{lab.a.ip} {PORT}", **more))
    return run


def mapped_to_kernel(lab):
    return carried(lab, "smcr", lab.server("kernel"), **SIX)


def six(client, **more):
    """IPv6 to the same server: it has no RoCE address that SMC-R could name."""
    def run(lab):
        for guest in (lab.a, lab.b):
            guest.run(f"ip -6 addr replace {ADDRESS[guest.role]}/64 dev eth0 nodad")

        def to_it(_):
            with lab.traffic() as traffic:
                job = lab.client(client, f"{ADDRESS['A']} {PORT}", "wrap", 1 << 20, 1, PATIENCE=60, **more)
                text = job.done(65)
            return f"{said(text)}; {traffic.went_over_tcp(payload(text))}"
        try:
            return listening(lab, to_it)
        finally:
            for guest in (lab.a, lab.b):
                guest.run(f"ip -6 addr del {ADDRESS[guest.role]}/64 dev eth0")
    return run


add("IPv4 on an IPv6 listener: kernel -> smcr", mapped("kernel"))
add("IPv4 on an IPv6 listener: smcr -> smcr", mapped("smcr"))
add("IPv4 on IPv6 sockets: smcr -> smcr", mapped("smcr", **SIX))
add("IPv4 on an IPv6 socket: smcr -> kernel", mapped_to_kernel)
add("fallback: IPv6, smcr -> smcr", six("smcr", **SIX))
add("fallback: IPv6, tcp -> smcr", six("tcp", **SIX))
add("fallback: IPv6, kernel -> smcr", six("kernel", PROTOCOL="1"))
