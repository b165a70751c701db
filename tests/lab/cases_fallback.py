"""Where TCP is the right answer: no option, no device, no EID, no memory, no permission. Here a
connection that goes over RDMA fails its case, and one whose ends do not say why."""
import re
import time

from guests import HERE, Failed
from lab import EID, KERNEL, MEND, PEER, PORTS, add, case, grown, modes, payload, said

FORKING = f"/usr/bin/python3 {HERE}/forking.py"
NOBODY = "setpriv --reuid 65534 --regid 65534 --clear-groups"
# A mount namespace in which RDMA devices are hidden, or root's alone.
NO_DEVICE = "unshare -m sh -c 'mount -t tmpfs t /dev/infiniband; mount -t tmpfs t /sys/class/infiniband_verbs; exec \"$@\"' sh"
NO_PERMISSION = f"unshare -m sh -c 'cp -a /dev/infiniband /run/lab/ib; chmod 600 /run/lab/ib/*; mount --bind /run/lab/ib /dev/infiniband; exec \"$@\"' sh {NOBODY}"
MEMLOCK = f"prlimit --memlock=65536:65536 {NOBODY}"


# The other end has not shown the option: as libsmcr shows it, and as a kernel does.
NO_OPTION, NO_OPTION_SEEN = "SMC 03010000", "03010000"


def declined(kind, code):
    """How an end of this kind shows that its peer has declined with this code."""
    return f"{'SMC ' if kind == 'smcr' else ''}05000000/{code}"


def over_tcp(lab, client, to, wrap="", why=(None, None), operation="one", arguments="65537", **env):
    """One client run that must be right, on TCP, and quick. `why`: the reasons that client and server show while the connection is open, each as
    `smcrctl sock` has it for libsmcr, as "own/peer diagnosis" for a kernel; None is not looked at."""
    def look():
        for guest, end in ((lab.b, "client"), (lab.a, "server")):
            seen[end] = lab.looked_at(guest, "smcr", port) or lab.looked_at(guest, "kernel", port)
        return "looked"
    seen, port = {}, to.split()[1]
    with lab.traffic() as traffic:
        job = lab.b.start(f"exec {wrap} {PEER} {operation} {to} {arguments}", **lab.env(client, PATIENCE=60, HOLD="both", **env))
        text, looked = lab.held(job, look, 65)
    if not looked:
        raise Failed(f"nobody has looked: {job.tail()}")
    if client == "kernel" and set(modes(text)) != {"TCP"}:
        raise Failed(f"the kernel's diagnosis: {text}")
    for (end, found), wanted in zip(seen.items(), why):
        if wanted and (len(found) != 1 or found[0][0] != "tcp" or not re.fullmatch(wanted, found[0][1])):
            raise Failed(f"{end}: {found}, not tcp for {wanted}; {traffic}")
    shown = ", ".join(f"{end}: {' '.join(map(' '.join, found))}" for end, found in seen.items() if found)
    return f"{traffic.went_over_tcp(payload(text))} {shown}".strip()


def started(lab, wrap, kind="smcr", how="", **env):
    """A server of its own, started in a special way; its address words and job."""
    port = 5010
    job = lab.a.start(f"exec {wrap} {PEER} serve {lab.a.ip} {port} {how}", **lab.env(kind, **env))
    try:
        job.expect("serving", 60)
    except Failed:
        job.kill()  # its port is the next case's
        raise
    return f"{lab.a.ip} {port}", job


def special_server(client, wrap, why=(None, None), **env):
    def run(lab):
        to, job = started(lab, wrap, **env)
        try:
            return over_tcp(lab, client, to, why=why)
        finally:
            job.kill()
    return run


def special_client(server, wrap, why=(None, None), **env):
    return lambda lab: over_tcp(lab, "smcr", lab.server(server), wrap, why, **env)


def set_for(lab, guest, before, after, function):
    guest.run(before)
    try:
        return function(lab)
    finally:
        guest.run(after)


add("fallback: smcr -> a plain TCP server", lambda lab: over_tcp(lab, "smcr", lab.server("tcp"), why=(NO_OPTION, None)))
add("fallback: a plain TCP client -> smcr", lambda lab: over_tcp(lab, "tcp", lab.server("smcr"), why=(None, NO_OPTION)))
add("fallback: a plain TCP client -> kernel", lambda lab: over_tcp(lab, "tcp", lab.server("kernel"), why=(None, f"{NO_OPTION_SEEN}/.*")))
for name, wrap, own, code in [("no device", NO_DEVICE, "SMC 03030002", "03030002"), ("no permission", NO_PERMISSION, "SMC 03030002", "03030002"),
                              ("memlock 64 KiB", MEMLOCK, "SMC 01010000", "01010000")]:
    for peer in ("kernel", "smcr"):
        add(f"fallback: {name}, {peer} -> smcr server without", special_server(peer, wrap, (declined(peer, code), own)))
        add(f"fallback: {name}, smcr client without -> {peer}", special_client(peer, wrap, (own, declined(peer, code))))
add("fallback: mode=shm, kernel -> smcr", special_server("kernel", "", (f"{NO_OPTION_SEEN}/.*", "remote"), SMCR_MODE="shm"))
add("fallback: mode=shm, smcr -> kernel", special_client("kernel", "", ("remote", f"{NO_OPTION_SEEN}/.*"), SMCR_MODE="shm"))
for peer in ("kernel", "smcr"):
    add(f"fallback: max_memory used up, {peer} -> smcr server without", special_server(peer, "", (declined(peer, "01010000"), "max-memory"), SMCR_MAX_MEMORY="0"))
    # A client that knows it before it connects does not ask for SMC.
    unasked = f"{NO_OPTION_SEEN}/.*" if peer == "kernel" else NO_OPTION
    add(f"fallback: max_memory used up, smcr client without -> {peer}", special_client(peer, "", ("max-memory", unasked), SMCR_MAX_MEMORY="0"))
add("fallback: port left out, smcr -> kernel", special_client("kernel", "", ("port", f"{NO_OPTION_SEEN}/.*"), SMCR_PORTS="1-1000"))


def another_subnet(client, server, why):
    """The server's address lies on no RoCE port of its host; TCP has a route there, RoCE has none."""
    def run(lab):
        lab.a.run("ip addr add 10.99.0.1/32 dev lo")
        lab.b.run("ip route add 10.99.0.1 via 10.77.0.1")
        try:
            job = lab.a.start(f"exec {PEER} serve 10.99.0.1 5012", **lab.env(server)).expect("serving", 30)
            try:
                return over_tcp(lab, client, "10.99.0.1 5012", why=why)
            finally:
                job.kill()
        finally:
            lab.b.run("ip route del 10.99.0.1")
            lab.a.run("ip addr del 10.99.0.1/32 dev lo")
    return run


for pair in (("smcr", "kernel"), ("kernel", "smcr"), ("smcr", "smcr")):
    # The server's end has no port in the subnet of its own address, and says so.
    why = declined(pair[0], "03030002"), "SMC 03030002" if pair[1] == "smcr" else "03030002/.*"
    add(f"fallback: another subnet, no route for RoCE, {pair[0]} -> {pair[1]}", another_subnet(*pair, why))


def blocked(client, server, where, why):
    """TCP passes and RoCE does not: the first contact fails, and its connection goes on over TCP; so do those that
    begin meanwhile, and later ones."""
    def fresh(lab):
        to, job = started(lab, "", server)
        try:
            shown = over_tcp(lab, client, to, why=why)
            with lab.traffic() as traffic:
                text = lab.b.start(f"exec {PEER} many {to} 6 3000", **lab.env(client, PATIENCE=40)).done(45)
            return f"{shown}; then {said(text)}, {traffic.went_over_tcp(payload(text))}"
        finally:
            job.kill()
    def run(lab):
        with lab.cut_off(*(lab.a if name == "A" else lab.b for name in where)):
            return fresh(lab)
    return run


def closed_at_once(client, server, operation, words):
    """An end that says all and closes before it is known that no link comes up."""
    def run(lab):
        to, job = started(lab, "", server)
        try:
            with lab.cut_off():
                text = said(lab.client(client, to, operation, 50_000, PATIENCE=120).done(125))
            if words not in text:
                raise Failed(f"the other end has something else: {text}")
            return text
        finally:
            job.kill()
    return run


def no_link(kind):
    """The end that waits less declines, and the other one shows that; between two libsmcr each says it by itself."""
    return "SMC (05000000/02010000|02010000)" if kind == "smcr" else "(05000000/02010000|02010000/.*)"


# It takes a fresh group, which no earlier case has left behind, at both ends.
for pair in (("smcr", "kernel"), ("kernel", "smcr"), ("smcr", "smcr")):
    for words, where in (("", "AB"), (" towards the server", "A"), (" towards the client", "B")):
        add(f"fallback: RoCE is blocked{words}, {pair[0]} -> {pair[1]}", blocked(*pair, where, tuple(map(no_link, pair))))


for pair in (("smcr", "kernel"), ("kernel", "smcr"), ("smcr", "smcr")):
    for operation, end, words in (("closes", "client", "eof 50000"), ("stream", "server", "50000 bytes")):
        if pair[end == "server"] == "smcr":
            add(f"fallback: RoCE is blocked, and the {end} closes at once, {pair[0]} -> {pair[1]}", closed_at_once(*pair, operation, words))


def tcp_counts(guest):
    """The kernel's own counts of TCP's extensions."""
    names, values = (line.split()[1:] for line in guest.run("grep ^TcpExt: /proc/net/netstat").splitlines())
    return dict(zip(names, map(int, values)))


def counted(lab, names, function):
    """What it shows, and by how much these counts of the server's kernel have grown meanwhile: each must."""
    before = tcp_counts(lab.a)
    shown = function(lab)
    growth = grown(before, tcp_counts(lab.a))
    text = ", ".join(f"{name} {growth[name]}" for name in names)
    if not all(growth[name] > 0 for name in names):
        raise Failed(f"grew by {text}: {shown}")
    return f"{shown}, {text}"


def unseen(kind):
    """The option has not come from the other end: as an end of this kind shows it."""
    return {"smcr": NO_OPTION, "kernel": f"{NO_OPTION_SEEN}/.*"}[kind]


def cookies(client, server):
    def run(lab):
        function = lambda lab: over_tcp(lab, client, lab.server(server), why=(unseen(client), unseen(server)))
        return set_for(lab, lab.a, "sysctl -qw net.ipv4.tcp_syncookies=2", "sysctl -qw net.ipv4.tcp_syncookies=1", lambda lab: counted(lab, ["SyncookiesSent", "SyncookiesRecv"], function))
    return run


# What the one who asks for Fast Open says of its connection. A kernel's socket stays in INIT for its diagnosis, which says TCP and is not asked for more.
FASTEN = {"smcr": "fast-open", "kernel": None, "tcp": None}


def fast_open(client, server):
    """The request comes in the SYN, and the program accepts what is no whole connection yet. 0x400: no listener has to ask for that."""
    def fresh(lab):
        to, job = started(lab, "", server)  # listens with it
        try:
            return over_tcp(lab, client, to, operation="fast", arguments="50000", why=(FASTEN[client], unseen(server)))
        finally:
            job.kill()

    def run(lab):
        return set_for(lab, lab.a, "sysctl -qw net.ipv4.tcp_fastopen=0x403", "sysctl -qw net.ipv4.tcp_fastopen=1", lambda lab: counted(lab, ["TCPFastOpenPassive"], fresh))
    return run


def fast_open_refused(lab):
    """The server has none: the request goes when there is a connection."""
    return over_tcp(lab, "smcr", lab.server("smcr"), operation="fast", arguments="50000", why=(FASTEN["smcr"], NO_OPTION))


for pair in (("smcr", "smcr"), ("kernel", "smcr"), ("smcr", "kernel")):
    add(f"fallback: SYN cookies, {' -> '.join(pair)}", cookies(*pair))
    add(f"fallback: TCP Fast Open, {' -> '.join(pair)}", fast_open(*pair))
add("fallback: TCP Fast Open, a plain TCP client -> smcr", fast_open("tcp", "smcr"))
add("fallback: TCP Fast Open that the server does not take, smcr -> smcr", fast_open_refused)


@case
def fallback_the_kernel_declines_without_a_user_EID(lab):
    return set_for(lab, lab.a, f"{KERNEL} ueid-del {EID}", f"{KERNEL} ueid-add {EID}",
                   lambda lab: over_tcp(lab, "smcr", lab.server("kernel"), why=(declined("smcr", "03030000"), "03030000/.*")))  # so Linux 6.12 calls it


@case
def fallback_we_decline_a_kernel_with_another_user_EID(lab):
    def run(lab):
        return over_tcp(lab, "kernel", lab.server("smcr"), why=(declined("kernel", "03030008"), "SMC 03030008"))
    return set_for(lab, lab.b, f"{KERNEL} ueid-del {EID} && {KERNEL} ueid-add ANOTHER", f"{KERNEL} ueid-del ANOTHER && {KERNEL} ueid-add {EID}", run)


@case
def fallback_we_decline_a_kernel_s_buffer_of_2_MiB(lab):
    def run(lab):
        to, job = started(lab, "", "kernel")
        try:
            return over_tcp(lab, "smcr", to, why=("SMC 09990001", declined("kernel", "09990001")))
        finally:
            job.kill()
    return set_for(lab, lab.a, "sysctl -qw net.smc.rmem=2097152", "sysctl -qw net.smc.rmem=65536", run)


@case
def fallback_we_decline_a_kernel_client_with_a_buffer_of_2_MiB(lab):
    return set_for(lab, lab.b, "sysctl -qw net.smc.rmem=2097152", "sysctl -qw net.smc.rmem=65536",
                   lambda lab: over_tcp(lab, "kernel", lab.server("smcr"), why=(declined("kernel", "09990001"), "SMC 09990001")))


def kernel_without_a_device(client, server, why):
    """The kernel's end has shown the option, and says in CLC that it has no device."""
    def run(lab):
        lab.restart()
        guest = lab.b if client == "kernel" else lab.a
        return set_for(lab, guest, "rdma link delete rxe0", "rdma link add rxe0 type rxe netdev eth0", lambda lab: over_tcp(lab, client, lab.server(server), why=why))
    return run


add("fallback: a kernel server without a device declines", kernel_without_a_device("smcr", "kernel", (declined("smcr", "03030002"), "03030002/.*")))
add("fallback: a kernel client without a device declines", kernel_without_a_device("kernel", "smcr", ("03030000/.*", declined("smcr", "03030000"))))


@case
def fallback_a_server_that_is_slow_to_accept(lab):
    """A kernel's connect() fails 6 s after a handshake that nobody answers: those that wait are declined in time."""
    job = lab.a.start(f"exec {PEER} slowly {lab.a.ip} 5011 30", **lab.env("smcr"))
    job.expect("serving", 30)
    try:
        clients = [lab.b.start(f"exec {PEER} one {lab.a.ip} 5011 65537", **lab.env(kind, PATIENCE=60)) for kind in ("kernel", "tcp", "kernel", "smcr")]
        with lab.traffic() as traffic:
            texts = [client.done(65) for client in clients]
        if modes(texts[0]) != ["TCP"] or modes(texts[2]) != ["TCP"]:
            raise Failed(f"the kernel's diagnosis: {texts}")
        kernel = [line for line in texts[0].splitlines() if line.startswith("diag")]
        # Those that come when it accepts are served as ever.
        with lab.traffic() as later:
            text = lab.b.start(f"exec {PEER} one {lab.a.ip} 5011 65537", **lab.env("kernel", PATIENCE=40)).done(45)
        if "not-accepted" not in lab.a.run("smcrctl stats -d"):
            raise Failed("the server does not say why")
        return f"4 clients, {traffic}; {' '.join(kernel)}; then {later.went_over_rdma(payload(text))}"
    finally:
        job.kill()


def kept(what, port, clients, operation, *rest):
    """Those that wait for long before anybody accepts are kept beside the queue: then something becomes of the listener."""
    def run(lab):
        job = lab.a.start(f"exec {FORKING} {what} {lab.a.ip} {port}", **lab.env("smcr")).expect("serving", 30)
        try:
            jobs = [lab.client(kind, f"{lab.a.ip} {port}", operation, *rest, PATIENCE=60) for kind in clients]
            # One of our own to the listener's port: it stands for one that is kept.
            lab.a.run(f"until ss -Htn state established dst {lab.a.ip} dport = :{port} | grep -q .; do sleep 0.1; done", 30)
            time.sleep(3)
            lab.a.say(id=job.number, input="go\n")
            return [client.done(65) for client in jobs]
        except Failed as error:
            raise Failed(f"{error}; the server: {job.tail()}") from error
        finally:
            job.kill()
    return run


@case
def fallback_who_waits_in_a_queue_is_served_by_a_child_that_is_made_later(lab):
    kinds = ("kernel", "tcp", "smcr", "tcp")
    with lab.traffic() as traffic:
        texts = kept("workers", 5012, kinds, "echo", 50_000)(lab)
    if modes(texts[0]) != ["TCP"]:
        raise Failed(f"the kernel's diagnosis: {texts}")
    return f"{len(texts)} clients, {traffic}"


@case
def fallback_who_waits_in_a_queue_is_reset_with_the_listener(lab):
    texts = kept("shuts", 5013, ("tcp", "tcp"), "waits")(lab)
    wrong = [text for text in texts if "saw ECONNRESET" not in text]
    if wrong:
        raise Failed(str(wrong))
    return "; ".join(map(said, texts))


@case
def fallback_a_greeting_that_comes_late_and_a_writer_that_does_not_wait(lab):
    """The server's greeting is lost for longer than a client waits, and its program says nothing until it has read all."""
    to, job = started(lab, "")
    try:
        lab.b.run("nft add rule inet lab cut tcp sport 5010 tcp flags \\& psh == psh drop")
        with lab.traffic() as traffic:
            client = lab.b.start(f"exec {PEER} fill {to} {8 << 20}", **lab.env("smcr", PATIENCE=60))
            # The program may take its time to get there.
            lab.b.run("until ss -Htn state established dport = :5010 | grep -q .; do sleep 0.1; done", 40)
            time.sleep(4)
            lab.b.run(MEND)
            text = client.done(65)
        return f"{said(text)}; {traffic.went_over_tcp(payload(text))}"
    finally:
        lab.b.run(MEND)
        job.kill()


def stopped(lab):
    """A client that stands still in its handshake: what it says when it goes on is not for the server's program."""
    to = lab.server("smcr")
    with lab.traffic() as traffic:
        jobs = [lab.client("smcr", to, "stopped", 100_000, seconds, PATIENCE=60) for seconds in (1, 7, 9)]
        texts = [job.done(65) for job in jobs]
    bad = [line for line in lab.servers["smcr", "A"].out.splitlines() if "DecodeError" in line or "ValueError" in line]
    if bad:
        raise Failed(f"the server read something else: {bad}")
    if traffic.tcp < 400_000:
        raise Failed(f"those that stood still for long are not on TCP: {traffic}")
    return f"stopped for 1, 7 and 9 s: {'; '.join(map(said, texts))}; {traffic}"


add("fallback: a client that is stopped in its handshake", stopped)
