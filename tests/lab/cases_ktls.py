"""kTLS: a program hands its keys to the kernel in the middle of a connection, which has left TCP by then. It returns, and every byte is
right. This machine's kernel may have no TLS; a guest's has."""
from guests import HERE, Failed
from ktls import AFTER, LENGTH, PLAIN
from lab import add, said

KTLS = f"/usr/bin/python3 {HERE}/ktls.py"


def ktls(kind, same_host, port):
    def run(lab):
        for guest in (lab.a, lab.b):
            guest.run("modprobe -a tls gcm ctr ghash_generic aes_generic")
        client = lab.a if same_host else lab.b
        server = lab.a.start(f"exec {KTLS} serve {lab.a.ip} {port}", **lab.env(kind)).expect("serving", 30)
        modes = []
        with lab.traffic(client) as traffic:
            job = client.start(f"exec {KTLS} client {lab.a.ip} {port}", **lab.env(kind, HOLD="client"))
            for turn in (1, 2):
                client.wait(lambda: job.out.count("shown") == turn or job.rc is not None, 60)
                modes.append(sorted({s["mode"] for s in lab.socks(client, port)}))
                client.say(id=job.number, input="go\n")
            text = job.done(60)
            server.done(30)
        before = {"tcp": [], "smcr": ["shm" if same_host else "rdma"]}[kind]
        if modes != [before, ["tcp"] if before else []]:
            raise Failed(f"before it was encrypted, and then: {modes}; {job.tail()}")
        if not same_host and traffic.tcp < 2 * AFTER:
            raise Failed(f"what is encrypted is not on TCP: {traffic}")
        if before and traffic.tcp > 2 * AFTER + 2 * AFTER // 5 + PLAIN * LENGTH:
            raise Failed(f"too much on TCP: {traffic}")
        return f"{said(text)}; {' -> '.join(m for mode in modes for m in mode) or 'tcp'}; {traffic}"
    return run


add("kTLS: tcp", ktls("tcp", False, 5701))
add("kTLS: smcr, over a link before", ktls("smcr", False, 5702))
add("kTLS: smcr, in memory before", ktls("smcr", True, 5703))
