"""One client, one server, each pair of kinds: the stream is right, and it went where it should."""
from guests import Failed
from lab import add, all_smcr, payload, said

PAIRS = [("kernel", "kernel"), ("kernel", "smcr"), ("smcr", "kernel"), ("smcr", "smcr")]
MANY = 100
# (name, operation, arguments, connections, seconds)
OPERATIONS = [
    ("1 B to 64 KiB", "one", [65537], 1, 60),
    ("1 B to 64 MiB", "one", [64 << 20], 1, 240),
    ("ring wrap", "wrap", [3 << 20, 1], 1, 90),
    ("both directions at once", "echo", [1, 70000, 5 << 20], 3, 90),
    ("stream from the server", "stream", [24 << 20], 1, 90),
    ("slow reader", "slow", [2 << 20], 1, 90),
    ("full ring, no wait", "fill", [1 << 20], 1, 90),
    ("half-close", "half", [700001], 1, 60),
    ("urgent byte", "urgent", [], 1, 60),
    (f"{MANY} connections", "many", [MANY, 3000], MANY, 120),
    ("again after a pause", "again", [4, 1.5], 4, 60),
]


def stream(client, server, operation, arguments, connections, seconds):
    def run(lab):
        to = lab.server(server)
        with lab.traffic() as traffic:
            text = lab.client(client, to, operation, *arguments, PATIENCE=seconds).done(seconds + 5)
        kernel = all_smcr(text, client)
        return f"{said(text)}; {traffic.went_over_rdma(payload(text), connections)}{kernel}"
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


add("tcp -> tcp: 1 B to 1 MiB, counted as TCP", plain)
for client, server in PAIRS:
    for name, operation, arguments, connections, seconds in OPERATIONS:
        if operation == "urgent" and client == server == "kernel":
            continue  # nothing of ours
        add(f"{client} -> {server}: {name}", stream(client, server, operation, arguments, connections, seconds))
