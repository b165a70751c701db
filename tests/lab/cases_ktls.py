"""kTLS: a program hands its keys to the kernel in the middle of a connection, which has left TCP by then. It returns, and every byte is
right. This machine's kernel may have no TLS; a guest's has."""
from guests import HERE, Failed
from lab import add, said

KTLS = f"/usr/bin/python3 {HERE}/ktls.py"
# Plain messages of both ends, and what they send encrypted.
PLAIN, AFTER = 2 * 300 * 1000, 2 * 2_000_000


def ktls(kind, same_host, port):
    def run(lab):
        for guest in (lab.a, lab.b):
            guest.run("modprobe -a tls gcm ctr ghash_generic aes_generic")
        client = lab.a if same_host else lab.b
        server = lab.a.start(f"exec {KTLS} serve {lab.a.ip} {port}", **lab.env(kind)).expect("serving", 30)
        with lab.traffic(client) as traffic:
            job = client.start(f"exec {KTLS} client {lab.a.ip} {port}", **lab.env(kind, HOLD="client")).expect("shown", 40)
            modes = [s["mode"] for s in lab.socks(client, port)]
            job.guest.say(id=job.number, input="go\n")
            text = job.done(60)
            server.done(30)
        wanted = {"tcp": set(), "smcr": {"shm"} if same_host else {"rdma"}}[kind]
        if set(modes) != wanted:
            raise Failed(f"before it was encrypted: {modes}")
        if traffic.tcp < AFTER:
            raise Failed(f"what is encrypted is not on TCP: {traffic}")
        if kind == "smcr" and traffic.tcp > AFTER + AFTER // 5 + PLAIN // 2:
            raise Failed(f"too much on TCP: {traffic}")
        return f"{said(text)}; before that {modes or 'tcp'}; {traffic}"
    return run


add("kTLS: tcp", ktls("tcp", False, 5701))
add("kTLS: smcr, over a link before", ktls("smcr", False, 5702))
add("kTLS: smcr, in memory before", ktls("smcr", True, 5703))
