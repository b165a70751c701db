"""Larger programs that nobody here wrote, their ends in two guests: stores, databases, web servers, shells, each with its data compared."""
import re

from guests import HERE, Failed
from lab import add
from cases_programs import NGINX, PRELOAD, listening, moved, running

APPS = f"/usr/bin/python3 {HERE}/apps.py"
PG = "/usr/lib/postgresql/15/bin"


def app(function):
    add(f"apps: {function.__name__.replace('_', ' ')}", function)


def ended(job):
    """Asked to end, as an administrator would; it must."""
    job.kill(15)


def memcached(server, client, port):
    def run(lab):
        job = lab.a.start(f"exec memcached -u root -l {lab.a.ip} -p {port} -t 4 -m 64", LD_PRELOAD=PRELOAD[server], **lab.logged())
        listening(lab.a, port)
        try:
            total, traffic = moved(lab, f"{APPS} memcached {lab.a.ip} {port} 12 40", 90, LD_PRELOAD=PRELOAD[client], **lab.logged())
            return f"{total:,} B stored and read; {traffic.went_over_rdma(total * 2, 12)}"
        finally:
            ended(job)
    return run


# What is alike in the sums of both ends: rows that were copied in, changed by several clients, and read back.
ROWS = "select md5(string_agg(aid || ':' || abalance, ',' order by aid)) from pgbench_accounts where aid <= 20000"


def postgresql(server, client, port):
    """A process for each connection, which the postmaster has accepted."""
    def run(lab):
        lab.a.run(f"[ -d /run/lab/pg ] || {{ mkdir -p /run/lab/pg && chown postgres /run/lab/pg && chmod a+rx /run/lab && su postgres -c '{PG}/initdb -D /run/lab/pg -A trust -N -U postgres' >/run/lab/pg.init && echo 'host all all 10.77.0.0/24 trust' >>/run/lab/pg/pg_hba.conf; }}", 180)
        # `su` alone would ask the library, which is not for setuid programs.
        job = lab.a.start(f"exec setpriv --reuid postgres --regid postgres --init-groups env LD_PRELOAD={PRELOAD[server]} {PG}/postgres -D /run/lab/pg -p {port} -c listen_addresses={lab.a.ip} -k /tmp "
                          "-c fsync=off -c autovacuum=off -c max_wal_size=64MB", **lab.logged())
        job.expect("ready to accept connections", 90)
        env = {"LD_PRELOAD": PRELOAD[client], **lab.logged()}
        host = f"-h {lab.a.ip} -p {port} -U postgres"
        try:
            with lab.traffic() as traffic:
                lab.b.run(f"{PG}/pgbench {host} -i -q -I dtGp postgres && {PG}/pgbench {host} -i -q -I dtgp postgres", 180, **env)
                lab.b.run(f"{PG}/pgbench {host} -n -c 6 -j 2 -t 20 postgres", 120, **env)
                there = lab.b.run(f"psql {host} -Atc \"{ROWS}\" postgres", 60, **env).strip()
                lab.b.run(f"psql {host} -Atc 'copy (select * from pgbench_accounts order by aid) to stdout' postgres | md5sum >/run/lab/copied", 60, **env)
            here = lab.a.run(f"psql -h /tmp -p {port} -U postgres -Atc \"{ROWS}\" postgres").strip()
            copied = lab.b.run("cut -c -32 /run/lab/copied").strip()
            stays = lab.a.run(f"psql -h /tmp -p {port} -U postgres -Atc 'copy (select * from pgbench_accounts order by aid) to stdout' postgres | md5sum | cut -c -32").strip()
            if (here, stays) != (there, copied) or len(here) != 32:
                raise Failed(f"rows differ: {here} {there}, {stays} {copied}")
            # COPY in and out of 100,000 rows.
            return f"rows of 120 transactions right; {traffic.went_over_rdma(11_000_000, 16)}"
        finally:
            job.kill(2)
    return run


for number, pair in enumerate((("smcr", "smcr"), ("smcr", "kernel"), ("kernel", "smcr"))):
    add(f"apps: memcached {pair[0]}, its clients {pair[1]}", memcached(*pair, 4211 + number))
    add(f"apps: PostgreSQL {pair[0]}, its clients {pair[1]}", postgresql(*pair, 5461 + number))


PROXY = """
global
  maxconn 200
defaults
  mode http
  timeout connect 10s
  timeout client 60s
  timeout server 60s
frontend f
  bind {ip}:8091
  default_backend b
backend b
  server s {other}:8092
"""


def deferring(client, port):
    """TCP_DEFER_ACCEPT: the client with libsmcr waits for a greeting of who accepts it, the kernel's speaks first."""
    def run(lab):
        job = running(lab.a, f"{APPS} deferring {lab.a.ip} {port}", "serving", **lab.env("smcr"))
        try:
            total, traffic = moved(lab, f"{APPS} echoed {lab.a.ip} {port} 2", LD_PRELOAD=PRELOAD[client], **lab.logged())
            said = job.done(30).split()
            values = [int(word) for word in said if word.isdigit()]
            # The kernel counts retransmissions, whose time it gives back: 20 s are 31.
            if values != [31] * 4:
                raise Failed(f"{' '.join(said)}")
            return f"read as it was set, by a program without the library as well; {traffic.went_over_rdma(total * 2, 6)}"
        finally:
            if job.rc is None:
                job.kill()
    return run


add("apps: listeners that defer, smcr client", deferring("smcr", 4600))
add("apps: listeners that defer, kernel client", deferring("kernel", 4602))


@app
def haproxy_before_nginx(lab):
    """The proxy and its clients in one guest, the server in the other: every connection of nginx is over RDMA, those of the clients in memory."""
    lab.a.run(f"mkdir -p /run/lab/files; for i in 1 2 3 4; do head -c $((i * 700000)) /dev/urandom >/run/lab/files/$i; done; chmod -R a+rX /run/lab/files; "
              f"cat >/run/lab/ng.conf <<'EOF'{NGINX.format(ip=lab.a.ip, port=8092, root='files', workers=2)}EOF")
    lab.b.run(f"mkdir -p /run/lab; cat >/run/lab/proxy.cfg <<'EOF'{PROXY.format(ip=lab.b.ip, other=lab.a.ip)}EOF")
    nginx = lab.a.start("exec nginx -c /run/lab/ng.conf", **lab.env("smcr"))
    listening(lab.a, 8092, "/run/lab/ng.log")
    proxy = lab.b.start("exec /usr/sbin/haproxy -f /run/lab/proxy.cfg", **lab.env("smcr"))
    listening(lab.b, 8091)
    try:
        sums = lab.a.run("cd /run/lab/files; md5sum 1 2 3 4 | cut -c -32").split()
        with lab.traffic() as traffic:
            got = lab.b.run(f"for i in 1 2 3 4; do for k in 1 2 3; do curl -s http://{lab.b.ip}:8091/$i | md5sum | cut -c -32 & done; wait; done", 90, **lab.env("smcr")).split()
            text = lab.b.run(f"wrk -t 1 -c 6 -d 3 --timeout 20s http://{lab.b.ip}:8091/1", **lab.env("smcr"))
        if sorted(got) != sorted(sums * 3) or "Socket errors" in text:
            raise Failed(f"{got} {sums} {text[-200:]}")
        return f"12 files right, {re.search(r'([0-9]+) requests in', text)[1]} requests; {traffic.went_over_rdma(3 * 7_000_000, 30)}"
    finally:
        ended(proxy)
        ended(nginx)


def fetched(lab, times, command, path):
    """A file of A's, which a command in B gets so often, whole each time: what the networks carried meanwhile."""
    with lab.traffic() as traffic:
        got = lab.b.run(f"for k in $(seq {times}); do {command} | md5sum | cut -c -32; done", 90, **lab.env("smcr")).split()
    if got != [lab.a.run(f"md5sum <{path}").split()[0]] * times:
        raise Failed(f"{got}")
    return traffic


@app
def curl_gets_over_tls(lab):
    """openssl's server and client with curl's: records, and an end that both sides say."""
    lab.a.run("mkdir -p /run/lab/tls && cd /run/lab/tls && head -c 3000000 /dev/urandom >file && "
              "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key -out cert -days 9 -subj /CN=lab 2>/dev/null", 60)
    job = lab.a.start(f"cd /run/lab/tls && exec openssl s_server -accept {lab.a.ip}:4433 -key key -cert cert -HTTP -quiet", **lab.env("smcr"))
    listening(lab.a, 4433)
    try:
        traffic = fetched(lab, 3, f"curl --http0.9 -sk https://{lab.a.ip}:4433/file", "/run/lab/tls/file")
        return f"3 files of 3 MB right; {traffic.went_over_rdma(9_000_000, 3)}"
    finally:
        ended(job)


@app
def rsync_daemon_both_ways(lab):
    """A child for each connection, which it uses when it has set its privileges, so over TCP."""
    lab.a.run("mkdir -p /run/lab/out /run/lab/in; cd /run/lab/out; for i in $(seq 40); do head -c $((i * 9000)) /dev/urandom >f$i; done; "
              "printf 'use chroot = no\\nuid = root\\ngid = root\\nport = 8873\\n[out]\\npath = /run/lab/out\\n[in]\\npath = /run/lab/in\\nread only = no\\n' >/run/lab/rsyncd.conf")
    job = lab.a.start(f"exec rsync --daemon --no-detach --address {lab.a.ip} --config /run/lab/rsyncd.conf", **lab.env("smcr"))
    listening(lab.a, 8873)
    sums = "cat $(ls | sort) | md5sum | cut -c -32"
    try:
        with lab.traffic() as traffic:
            lab.b.run(f"mkdir -p /run/lab/got && rsync -r rsync://{lab.a.ip}:8873/out/ /run/lab/got/ && rsync -r /run/lab/got/ rsync://{lab.a.ip}:8873/in/", 90, **lab.env("smcr"))
        three = [guest.run(f"cd /run/lab/{name} && {sums}").strip() for guest, name in ((lab.a, "out"), (lab.b, "got"), (lab.a, "in"))]
        if len(set(three)) != 1:
            raise Failed(f"{three}")
        return f"40 files there and back; {traffic}"
    finally:
        ended(job)


@app
def scp_both_ways(lab):
    """The server's children become another program with the connection, which returns to TCP where it was in use."""
    for guest in (lab.a, lab.b):
        guest.run("mkdir -p /run/sshd /run/lab/ssh && chmod 700 /run/lab/ssh")
    lab.a.run("cd /run/lab/ssh && ssh-keygen -q -t ed25519 -N '' -f host && ssh-keygen -q -t ed25519 -N '' -f user && cp user.pub authorized && chmod 600 authorized && head -c 4000000 /dev/urandom >/run/lab/ssh/file", 60)
    key = lab.a.run("cat /run/lab/ssh/user")
    lab.b.run(f"umask 77; cat >/run/lab/ssh/user <<'EOF'\n{key}EOF")
    # UsePAM needs accounts that a guest has not.
    job = lab.a.start(f"exec /usr/sbin/sshd -D -e -f /dev/null -p 4022 -o ListenAddress={lab.a.ip} -h /run/lab/ssh/host -o AuthorizedKeysFile=/run/lab/ssh/authorized -o StrictModes=no -o UsePAM=no -o PermitRootLogin=yes "
                      "-o Subsystem='sftp internal-sftp'", **lab.env("smcr"))
    listening(lab.a, 4022)
    opts = "-i /run/lab/ssh/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    try:
        with lab.traffic() as traffic:
            lab.b.run(f"scp {opts} -P 4022 root@{lab.a.ip}:/run/lab/ssh/file /run/lab/ssh/got && scp {opts} -P 4022 /run/lab/ssh/got root@{lab.a.ip}:/run/lab/ssh/back", 120, **lab.env("smcr"))
            said = lab.b.run(f"head -c 500000 /run/lab/ssh/got | ssh {opts} -p 4022 root@{lab.a.ip} 'md5sum; echo over' ", 60, **lab.env("smcr"))
        sums = [guest.run(f"md5sum </run/lab/ssh/{name} | cut -c -32").strip() for guest, name in ((lab.a, "file"), (lab.b, "got"), (lab.a, "back"))]
        part = lab.a.run("head -c 500000 /run/lab/ssh/file | md5sum | cut -c -32").strip()
        if len(set(sums)) != 1 or said.split() != [part, "-", "over"]:
            raise Failed(f"{sums} {part} {said}")
        return f"4 MB there and back, a command with 500 KB; {traffic}"
    finally:
        ended(job)


@app
def apache_prefork(lab):
    """Processes that accept in turn."""
    lab.a.run("mkdir -p /run/lab/ap/www; cd /run/lab/ap; head -c 900000 /dev/urandom >www/f; M=/usr/lib/apache2/modules; "
              f"printf \"ServerRoot /run/lab/ap\\nPidFile /run/lab/ap/pid\\nErrorLog /run/lab/ap/log\\nListen {lab.a.ip}:8093\\nLoadModule mpm_prefork_module $M/mod_mpm_prefork.so\\nLoadModule authz_core_module $M/mod_authz_core.so\\n"
              "ServerName lab\\nDocumentRoot /run/lab/ap/www\\nStartServers 3\\nMinSpareServers 2\\nMaxRequestWorkers 20\\nMaxKeepAliveRequests 0\\nUser www-data\\nGroup www-data\\n\" >conf; chmod -R a+rX /run/lab")
    job = lab.a.start("exec apache2 -f /run/lab/ap/conf -DFOREGROUND", **lab.env("smcr"))
    listening(lab.a, 8093)
    try:
        with lab.traffic() as traffic:
            got = lab.b.run(f"for k in 1 2 3 4 5 6; do curl -s http://{lab.a.ip}:8093/f http://{lab.a.ip}:8093/f | md5sum | cut -c -32 & done; wait", 90, **lab.env("smcr")).split()
        twice = lab.a.run("cat /run/lab/ap/www/f /run/lab/ap/www/f | md5sum | cut -c -32").strip()
        if got != [twice] * 6:
            raise Failed(f"{got} {twice}")
        return f"6 connections, 2 files of 900 KB on each, right; {traffic.went_over_rdma(12 * 900_000, 6)}"
    finally:
        ended(job)


@app
def node_echoes_what_it_is_sent(lab):
    job = running(lab.a, f"node {HERE}/apps.js serve {lab.a.ip} 8094", "serving", **lab.env("smcr"))
    try:
        total, traffic = moved(lab, f"node {HERE}/apps.js run {lab.a.ip} 8094 6 12 60000", 120, **lab.env("smcr"))
        return f"{total:,} B posted and sent back; {traffic.went_over_rdma(total * 2, 6)}"
    finally:
        ended(job)


def iperf_2(client, port, streams=3):
    """Its server asks for times of arrival when a connection is in use, reads one before it accepts the next, and ends what says nothing
    for 4 s; its client connects all before it speaks. Of a kernel's that wait meanwhile the server declines some."""
    def run(lab):
        job = lab.a.start(f"exec iperf -s -B {lab.a.ip} -p {port}", **lab.env("smcr"))
        listening(lab.a, port)
        try:
            with lab.traffic() as traffic:
                text = lab.b.run(f"iperf -c {lab.a.ip} -p {port} -t 3 -P {streams} -f B", 60, LD_PRELOAD=PRELOAD[client], **lab.logged())
            sent = [int(n) for n in re.findall(r"^\[ +\d+\].* (\d+) Bytes ", text, re.M)]
            if len(sent) != streams or "failed" in text + job.out:
                raise Failed(f"{text[-400:]} {job.out[-400:]}")
            if client == "smcr":
                return f"{streams} streams; {traffic.went_over_rdma(sum(sent), streams)}"
            if traffic.rdma < min(sent):
                raise Failed(f"none is on RDMA: {sent} {traffic}")
            return f"{streams} streams, {traffic}"
        finally:
            ended(job)
    return run


add("apps: iperf 2, smcr client", iperf_2("smcr", 4610))
add("apps: iperf 2, kernel client", iperf_2("kernel", 4611))


@app
def varnish_listens_in_a_child(lab):
    """The parent has made and bound the socket; a web server of Python's stands behind, in memory."""
    lab.a.run("mkdir -p /run/lab/cached /run/lab/varnish && chmod 777 /run/lab/varnish && head -c 900000 /dev/urandom >/run/lab/cached/f")
    web = lab.a.start(f"cd /run/lab/cached && exec python3 -m http.server -b {lab.a.ip} 8805", **lab.env("smcr"))
    listening(lab.a, 8805)
    job = lab.a.start(f"exec varnishd -F -a {lab.a.ip}:8095 -b {lab.a.ip}:8805 -n /run/lab/varnish -s malloc,10m -j none -p thread_pools=1 -p thread_pool_min=10", **lab.env("smcr"))
    listening(lab.a, 8095)
    try:
        traffic = fetched(lab, 4, f"curl -s http://{lab.a.ip}:8095/f", "/run/lab/cached/f")
        return f"4 times 900 KB right; {traffic.went_over_rdma(4 * 900_000, 4)}"
    finally:
        ended(job)
        ended(web)


@app
def socat_and_nc_end_in_halves(lab):
    """What is sent ends, and what comes back goes on."""
    job = lab.a.start(f"exec socat TCP-LISTEN:4500,bind={lab.a.ip},fork,reuseaddr SYSTEM:'md5sum; head -c 700000 /run/lab/random'", **lab.env("smcr"))
    lab.a.run("head -c 700000 /dev/urandom >/run/lab/random")
    listening(lab.a, 4500)
    try:
        with lab.traffic() as traffic:
            lab.b.run("mkdir -p /run/lab; head -c 900000 /dev/urandom >/run/lab/said")
            lab.b.run(f"socat -t 30 - TCP:{lab.a.ip}:4500 </run/lab/said >/run/lab/heard1; nc -N {lab.a.ip} 4500 </run/lab/said >/run/lab/heard2", 60, **lab.env("smcr"))
        want = lab.b.run("md5sum </run/lab/said")
        rest = lab.a.run("md5sum </run/lab/random").split()[0]
        for name in ("heard1", "heard2"):
            first, other = lab.b.run(f"head -1 /run/lab/{name}; tail -n +2 /run/lab/{name} | md5sum").split("\n")[:2]
            if first.split() != want.split() or other.split()[0] != rest:
                raise Failed(f"{name}: {first} {want} {other} {rest}")
        return f"twice 900 KB there, then 700 KB back; {traffic}"
    finally:
        ended(job)


@app
def redis_follows_a_master(lab):
    """A replica takes everything over, and what comes then, from a master that forks for it."""
    master = running(lab.a, f"redis-server --port 6395 --bind {lab.a.ip} --protected-mode no --save '' --dbfilename master.rdb --dir /run/lab --repl-diskless-sync-delay 0 --enable-debug-command yes", "Ready to accept", **lab.env("smcr"))
    replica = running(lab.b, f"redis-server --port 6396 --bind {lab.b.ip} --protected-mode no --save '' --dir /run --enable-debug-command yes", "Ready to accept", **lab.env("smcr"))
    try:
        cli = f"redis-cli -h {lab.a.ip} -p 6395"
        lab.a.run(f"{cli} debug populate 3000 k 700; {cli} debug populate 10 big 300000", 60, **lab.env("smcr"))
        with lab.traffic() as traffic:
            lab.b.run(f"redis-cli -h {lab.b.ip} -p 6396 replicaof {lab.a.ip} 6395; for i in $(seq 200); do redis-cli -h {lab.b.ip} -p 6396 info replication | grep -q master_link_status:up && exit 0; sleep 0.2; done; exit 1", 90, **lab.env("smcr"))
            said = lab.a.run(f"{cli} eval \"for i = 1, 1000 do redis.call('set', 'later' .. i, string.rep(i, 300)) end\" 0; {cli} wait 1 20000", 60, **lab.env("smcr"))
        digests = [guest.run(f"redis-cli -h {guest.ip} -p {port} debug digest").strip() for guest, port in ((lab.a, 6395), (lab.b, 6396))]
        keys = lab.b.run(f"redis-cli -h {lab.b.ip} -p 6396 dbsize").strip()
        if said.split()[-1] != "1" or len(set(digests)) != 1 or int(keys.split()[-1]) != 4010:
            raise Failed(f"{digests} {keys}")
        return f"{keys} keys alike; {traffic.went_over_rdma(1_000_000, 6)}"
    finally:
        ended(replica)
        ended(master)
