"""Programs that nobody here wrote, and Python's asyncio: between the guests, and within one."""
import hashlib
import json
import re
import time

import known
from guests import HERE, Failed
from lab import LIB, add, case

SHIM = "/usr/local/lib/smcrun.so"
PRELOAD = {"kernel": SHIM, "smcr": LIB, "tcp": ""}


def running(guest, text, ready, **env):
    return guest.start(f"exec {text}", **env).expect(ready, 30)


def listening(guest, port, log="/dev/null"):
    """Waits until somebody listens there; `log` is shown where nobody does."""
    guest.run(f"for i in $(seq 300); do ss -Hltn sport = :{port} | grep -q . && exit 0; sleep 0.2; done; cat {log}; exit 1", 90)


def moved(lab, text, seconds=60, **env):
    """A client in B, which says how many bytes it has moved: those, and what the networks carried meanwhile."""
    with lab.traffic() as traffic:
        said = lab.b.run(text, seconds, **env)
    return int(re.search(r"ok (\d+)", said)[1]), traffic


def known_values(lab, guest, kind, port):
    """Stored and read back by a client of this kind, and read by a plain one at the server: every byte. How many bytes the first has moved."""
    values = "".join(value + "\n" for value in known.values())
    for at, words, wanted, env in ((guest, "set get", "OK\n" * known.NUMBER + values, {"LD_PRELOAD": PRELOAD[kind], **lab.logged()}), (lab.a, "get", values, {})):
        got = at.run(f"/usr/bin/python3 {HERE}/known.py {words} | redis-cli -h {lab.a.ip} -p {port} | md5sum", 60, **env).split()[0]
        if got != hashlib.md5(wanted.encode()).hexdigest():
            raise Failed(f"what was to be {words.replace(' ', ' and ')} at {at.role} differs: {got}")
    return 2 * len(values)


def redis(server, client, port):
    def run(lab):
        job = running(lab.a, f"redis-server --port {port} --bind {lab.a.ip} --protected-mode no --save '' --dir /run/lab --loglevel verbose", "Ready to accept", LD_PRELOAD=PRELOAD[server], **lab.logged())
        try:
            with lab.traffic() as traffic:
                load = lab.b.start(f"exec redis-benchmark -h {lab.a.ip} -p {port} -c 10 -n 3000 -d 500 -r 1000 -t set,get --csv", LD_PRELOAD=PRELOAD[client], **lab.logged())
                modes = asked_while(lab, load, {"A": server, "B": client}, port)
                text = load.done(90)
            rates = re.findall(r'"(SET|GET)","([\d.]+)"', text)
            if len(rates) != 2:
                raise Failed(text)
            proof = traffic.went_over_rdma(2 * 3000 * 520, 25)
            if any(seen != {"rdma"} for seen in modes.values()):
                raise Failed(f"what the ends say of their connections: {modes}")
            with lab.traffic() as traffic:
                total = known_values(lab, lab.b, client, port)
            values = traffic.went_over_rdma(total)
        except Failed as error:
            time.sleep(1)
            raise Failed(f"{error}; the server: {' | '.join(job.out.strip().splitlines()[-25:])}") from error
        finally:
            job.kill()
        return f"{', '.join(f'{name} {rate}/s' for name, rate in rates)}; {proof}, {len(modes)} ends say rdma; {known.NUMBER} known values are right at both ends: {values}"
    return run


@case
def redis_saves_beside_its_connections(lab):
    """Each BGSAVE forks a child that exits; the connection that asked goes on."""
    job = running(lab.a, f"redis-server --port 6390 --bind {lab.a.ip} --protected-mode no --save '' --dir /run/lab", "Ready to accept", **lab.env("smcr"))
    try:
        said = "for i in 1 2 3 4; do echo set k$i $i$(head -c 9000 /dev/zero | tr '\\0' x); echo bgsave; sleep 3; echo get k$i; done"
        with lab.traffic() as traffic:
            text = lab.b.run(f"({said}) | redis-cli -h {lab.a.ip} -p 6390", 60, **lab.env("smcr"))
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
    add(f"redis: redis-benchmark {pair[1]} -> redis-server {pair[0]}", redis(*pair, 6380 + number))


NGINX = """
daemon off; worker_processes {workers}; pid /run/lab/ng.pid; error_log /run/lab/ng.log info;
events {{ worker_connections 256; }}
http {{ access_log off; client_body_temp_path /run/lab/ng1; proxy_temp_path /run/lab/ng2; fastcgi_temp_path /run/lab/ng3;
 uwsgi_temp_path /run/lab/ng4; scgi_temp_path /run/lab/ng5; sendfile on; keepalive_requests 100000;
 server {{ listen {ip}:{port}; root /run/lab/{root}; }} }}
"""


@case
def nginx_and_wrk_smcr(lab):
    lab.a.run("mkdir -p /run/lab/www; head -c 20000 /dev/urandom >/run/lab/www/a; head -c 3000000 /dev/urandom >/run/lab/www/big; chmod -R a+rX /run/lab/www; "
              f"cat >/run/lab/ng.conf <<'EOF'{NGINX.format(ip=lab.a.ip, port=8080, root='www', workers=1)}EOF")
    job = lab.a.start("exec nginx -c /run/lab/ng.conf", **lab.env("smcr"))
    listening(lab.a, 8080, "/run/lab/ng.log")
    try:
        with lab.traffic() as traffic:
            there = lab.b.run(f"curl -s http://{lab.a.ip}:8080/big | md5sum", **lab.env("smcr"))
            here = lab.a.run("md5sum </run/lab/www/big")
            if there.split()[0] != here.split()[0]:
                raise Failed("the file that curl got differs")
            text = lab.b.run(f"wrk -t 1 -c 8 -d 4 --timeout 20s http://{lab.a.ip}:8080/a", **lab.env("smcr"))
        requests = int(re.search(r"(\d+) requests in", text)[1])
        if "Socket errors" in text or requests < 20:
            raise Failed(text)
        proof = traffic.went_over_rdma(3_000_000 + 20000 * requests, 12)
    finally:
        job.kill()
    return f"{requests} requests of 20,000 B, one file of 3 MB right; {proof}"


def iperf3(direction):
    def run(lab):
        job = running(lab.a, f"stdbuf -oL iperf3 -s -B {lab.a.ip} -p 5201", "Server listening", **lab.env("smcr"))
        try:
            with lab.traffic() as traffic:
                text = lab.b.run(f"iperf3 -c {lab.a.ip} -p 5201 -t 4 {direction} -J", 60, **lab.env("smcr"))
            result = json.loads(text)["end"]
            sent, received = result["sum_sent"]["bytes"], result["sum_received"]["bytes"]
            proof = traffic.went_over_rdma(received, 3)
        finally:
            job.kill()
        return f"{received * 8 / 4e6:.0f} Mbit/s, {sent:,} B sent; {proof}"
    return run


add("iperf3 smcr, client sends", iperf3(""))
add("iperf3 smcr, server sends", iperf3("-R"))


@case
def asyncio_smcr_30_connections(lab):
    job = running(lab.a, f"/usr/bin/python3 {HERE}/asyncio_echo.py serve {lab.a.ip} 5300", "serving", **lab.env("smcr"))
    try:
        total, traffic = moved(lab, f"/usr/bin/python3 {HERE}/asyncio_echo.py run {lab.a.ip} 5300 30 40 3000", **lab.env("smcr"))
        return f"{total:,} B echoed; {traffic.went_over_rdma(total * 2, 30)}"
    finally:
        job.kill()


@case
def within_one_guest_by_its_own_address(lab):
    """The same programs on one host: shared memory, neither RoCE nor TCP."""
    def lo():
        return int(lab.a.run("awk '/ lo:/ {print $2}' /proc/net/dev"))
    to = lab.server("smcr")
    before = lo()
    with lab.traffic(lab.a) as traffic:
        text = lab.client("smcr", to, "wrap", 3 << 20, 1, guest=lab.a).done(60)
    used = lo() - before
    # RoCE has retries to ends that earlier cases killed.
    if used > 400_000 or traffic.rdma > 120_000:
        raise Failed(f"lo carried {used:,} B of 6.3 MB, {traffic}")
    return f"6.3 MB, of which lo carried {used:,} B; {traffic}"
