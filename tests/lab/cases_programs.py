"""Programs that nobody here wrote, and Python's asyncio: between the guests, and within one."""
import hashlib
import json
import re
import time

import known
from guests import HERE, Failed
from lab import LIB, SMALLEST, add, case, payload, said

SHIM = "/usr/local/lib/smcrun.so"
PRELOAD = {"kernel": SHIM, "smcr": LIB, "tcp": ""}


def running(guest, text, ready, **env):
    return guest.start(f"exec {text}", **env).expect(ready, 30)


class Between:
    """What a client in B does with a server in A: over RDMA, as B counts it."""

    def __init__(self, lab):
        self.lab, self.guest, self.traffic = lab, lab.b, lab.traffic()

    def __enter__(self):
        self.traffic.__enter__()
        return self

    def __exit__(self, *error):
        self.traffic.__exit__(*error)

    def ran(self, text, port, seconds=60):
        """The client, with libsmcr; its output."""
        return self.guest.run(text, seconds, **self.lab.env("smcr"))

    def asked(self, load, server, client, port):
        """What both ends say of their connections while `load` runs: that they are on RDMA, and nothing else."""
        modes = asked_while(self.lab, load, {"A": server, "B": client}, port)
        if any(seen != {"rdma"} for seen in modes.values()):
            raise Failed(f"what the ends say of their connections: {modes}; {load.tail()}")
        return f"{len(modes)} ends say rdma"

    def shows(self, payload, connections):
        return self.traffic.went_over_rdma(payload, connections)


class Within(Between):
    """What a client in A does with a server there, by the address that B knows it by: in shared memory, neither over RoCE nor over the loopback device."""

    def __init__(self, lab):
        self.lab, self.guest, self.traffic = lab, lab.a, lab.traffic(lab.a)

    def __enter__(self):
        self.lo = -self._lo()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.lo += self._lo()

    def _lo(self):
        return int(self.guest.run("awk '/ lo:/ {print $2}' /proc/net/dev"))

    def ran(self, text, port, seconds=60):
        load = self.guest.start(f"exec {text}", **self.lab.env("smcr"))
        self.asked(load, "smcr", "smcr", port)
        return load.done(seconds)

    def asked(self, load, server, client, port):
        """They begin on TCP, and both ends of each are asked in the same guest."""
        seen = asked_while(self.lab, load, {"A": server}, port)["A"]
        if "shm" not in seen or any("rdma" in mode for mode in seen):
            raise Failed(f"what the ends say of their connections: {seen}; {load.tail()}")
        return "both ends say shm"

    def shows(self, payload, connections):
        """A connection begins on TCP (docs/negotiation.md); on RoCE is what goes again to ends that earlier cases killed."""
        shown = f"payload {payload:,} B, of which lo carried {self.lo:,} B; {self.traffic}"
        if self.lo > payload // 2 or self.traffic.rdma > 120_000 or self.traffic.packets > 120_000 // SMALLEST:
            raise Failed(f"not in memory: {shown}")
        return shown


def listening(guest, port, log="/dev/null"):
    """Waits until somebody listens there; `log` is shown where nobody does."""
    guest.run(f"for i in $(seq 300); do ss -Hltn sport = :{port} | grep -q . && exit 0; sleep 0.2; done; cat {log}; exit 1", 90)


def moved(lab, text, seconds=60, **env):
    """A client in B, which says how many bytes it has moved: those, and what the networks carried meanwhile."""
    with lab.traffic() as traffic:
        output = lab.b.run(text, seconds, **env)
    return int(re.search(r"ok (\d+)", output)[1]), traffic


def known_values(lab, guest, words, port, **env):
    """Stores them, or reads them, or one after the other: every byte. How many bytes that are."""
    values = "".join(value + "\n" for value in known.values())
    got = guest.run(f"/usr/bin/python3 {HERE}/known.py {words} | redis-cli -h {lab.a.ip} -p {port} | md5sum", 60, **env).split()[0]
    if got != hashlib.md5("".join({"set": "OK\n" * known.NUMBER, "get": values}[word] for word in words.split()).encode()).hexdigest():
        raise Failed(f"`{words}` of known values gave something else in {guest.role}")
    return len(values) * len(words.split())


def redis(where, server, client, port, number, size):
    """So many SET and GET of that size; then known values, which a plain client at the server reads as well."""
    def run(lab):
        job = running(lab.a, f"redis-server --port {port} --bind {lab.a.ip} --protected-mode no --save '' --dir /run/lab --loglevel verbose", "Ready to accept", LD_PRELOAD=PRELOAD[server], **lab.logged())
        env = {"LD_PRELOAD": PRELOAD[client], **lab.logged()}
        try:
            with where(lab) as its:
                load = its.guest.start(f"exec redis-benchmark -h {lab.a.ip} -p {port} -c 10 -n {number} -d {size} -r 1000 -t set,get --csv", **env)
                modes = its.asked(load, server, client, port)
                text = load.done(90)
            rates = re.findall(r'"(SET|GET)","([\d.]+)"', text)
            if len(rates) != 2:
                raise Failed(text)
            proof = its.shows(2 * number * (size + 20), 25)
            with where(lab) as its:
                total = known_values(lab, its.guest, "set get", port, **env)
            stored = its.shows(total, 1)
            known_values(lab, lab.a, "get", port)
        except Failed as error:
            time.sleep(1)
            raise Failed(f"{error}; the server: {' | '.join(job.out.strip().splitlines()[-25:])}") from error
        finally:
            job.kill()
        return f"{', '.join(f'{name} {rate}/s' for name, rate in rates)}; {proof}, {modes}; {known.NUMBER} known values are right at both ends: {stored}"
    return run


@case
def redis_saves_beside_its_connections(lab):
    """Each BGSAVE forks a child that exits; the connection that asked goes on."""
    job = running(lab.a, f"redis-server --port 6390 --bind {lab.a.ip} --protected-mode no --save '' --dir /run/lab", "Ready to accept", **lab.env("smcr"))
    try:
        says = "for i in 1 2 3 4; do echo set k$i $i$(head -c 9000 /dev/zero | tr '\\0' x); echo bgsave; sleep 3; echo get k$i; done"
        with lab.traffic() as traffic:
            text = lab.b.run(f"({says}) | redis-cli -h {lab.a.ip} -p 6390", 60, **lab.env("smcr"))
        got = [int(line[0]) for line in text.splitlines() if re.fullmatch(r"\dx{9000}", line)]
        if got != [1, 2, 3, 4] or text.count("Background saving started") < 2:
            raise Failed(f"{got} {re.sub('x+', 'x', text)[-300:]}")
        return f"{text.count('Background saving started')} saves; {traffic.went_over_rdma(8 * 9000)}"
    finally:
        job.kill()


def asked_while(lab, load, ends, port):
    """The modes that the kernel's ends, or ours, show while a program runs: of connections that are there already."""
    modes, end = {role: set() for role in ends}, time.monotonic() + 90
    while load.rc is None and time.monotonic() < end:
        for role, kind in ends.items():
            modes[role] |= {mode for mode, _ in lab.looked_at(lab.guests.a if role == "A" else lab.guests.b, kind, port)}
    return modes


# A port for each: the kernel's SMC keeps one for a while after a server was killed.
for number, pair in enumerate((("smcr", "kernel"), ("kernel", "smcr"), ("smcr", "smcr"))):
    add(f"redis: redis-benchmark {pair[1]} -> redis-server {pair[0]}", redis(Between, *pair, 6380 + number, 1500, 500))


NGINX = """
daemon off; worker_processes {workers}; pid /run/lab/ng.pid; error_log /run/lab/ng.log info;
events {{ worker_connections 256; }}
http {{ access_log off; client_body_temp_path /run/lab/ng1; proxy_temp_path /run/lab/ng2; fastcgi_temp_path /run/lab/ng3;
 uwsgi_temp_path /run/lab/ng4; scgi_temp_path /run/lab/ng5; sendfile on; keepalive_requests 100000;
 server {{ listen {ip}:{port}; root /run/lab/{root}; }} }}
"""


def nginx_and_wrk(where):
    def run(lab):
        lab.a.run("mkdir -p /run/lab/www; head -c 20000 /dev/urandom >/run/lab/www/a; head -c 3000000 /dev/urandom >/run/lab/www/big; chmod -R a+rX /run/lab/www; "
                  f"cat >/run/lab/ng.conf <<'EOF'{NGINX.format(ip=lab.a.ip, port=8080, root='www', workers=1)}EOF")
        job = lab.a.start("exec nginx -c /run/lab/ng.conf", **lab.env("smcr"))
        listening(lab.a, 8080, "/run/lab/ng.log")
        try:
            with where(lab) as its:
                there = its.guest.run(f"curl -s http://{lab.a.ip}:8080/big | md5sum", **lab.env("smcr"))
                here = lab.a.run("md5sum </run/lab/www/big")
                if there.split()[0] != here.split()[0]:
                    raise Failed("the file that curl got differs")
                text = its.ran(f"wrk -t 1 -c 8 -d 4 --timeout 20s http://{lab.a.ip}:8080/a", 8080)
            requests = int(re.search(r"(\d+) requests in", text)[1])
            if "Socket errors" in text or requests < 20:
                raise Failed(text)
            proof = its.shows(3_000_000 + 20000 * requests, 12)
        finally:
            job.kill()
        return f"{requests} requests of 20,000 B, one file of 3 MB right; {proof}"
    return run


def iperf3(where, direction):
    def run(lab):
        job = running(lab.a, f"stdbuf -oL iperf3 -s -B {lab.a.ip} -p 5201", "Server listening", **lab.env("smcr"))
        try:
            with where(lab) as its:
                text = its.ran(f"iperf3 -c {lab.a.ip} -p 5201 -t 4 {direction} -J", 5201)
            result = json.loads(text)["end"]
            sent, received = result["sum_sent"]["bytes"], result["sum_received"]["bytes"]
            proof = its.shows(received, 3)
        finally:
            job.kill()
        return f"{received * 8 / 4e6:.0f} Mbit/s, {sent:,} B sent; {proof}"
    return run


def asyncio(where, connections, rounds, size):
    def run(lab):
        job = running(lab.a, f"/usr/bin/python3 {HERE}/asyncio_echo.py serve {lab.a.ip} 5300", "serving", **lab.env("smcr"))
        try:
            # While a server opens its device others may wait for its greeting for too long.
            its = where(lab)
            its.guest.run(f"/usr/bin/python3 {HERE}/asyncio_echo.py run {lab.a.ip} 5300 1 1 100", **lab.env("smcr"))
            with its:
                text = its.ran(f"/usr/bin/python3 {HERE}/asyncio_echo.py run {lab.a.ip} 5300 {connections} {rounds} {size}", 5300)
            total = int(re.search(r"ok (\d+)", text)[1])
            return f"{total:,} B echoed; {its.shows(total * 2, connections)}"
        finally:
            job.kill()
    return run


add("nginx and wrk smcr", nginx_and_wrk(Between))
add("iperf3 smcr, client sends", iperf3(Between, ""))
add("iperf3 smcr, server sends", iperf3(Between, "-R"))
add("asyncio smcr 30 connections", asyncio(Between, 30, 40, 3000))


@case
def within_one_guest_by_its_own_address(lab):
    """Messages of all lengths, each answered."""
    to = lab.server("smcr")
    with Within(lab) as its:
        text = lab.client("smcr", to, "wrap", 3 << 20, 1, guest=lab.a).done(60)
    if its.lo > 400_000:
        raise Failed(f"lo carried {its.lo:,} B of 6.3 MB")
    return f"{said(text)}: {its.shows(payload(text), 1)}"


add("within one guest: redis", redis(Within, "smcr", "smcr", 6383, 1000, 20_000))
add("within one guest: nginx and wrk", nginx_and_wrk(Within))
add("within one guest: iperf3, client sends", iperf3(Within, ""))
add("within one guest: iperf3, server sends", iperf3(Within, "-R"))
add("within one guest: asyncio, 10 connections", asyncio(Within, 10, 60, 20_000))
