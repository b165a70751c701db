"""Servers that give connections and listeners to other processes, or start anew, while clients are busy with them. Jobs as in programs.py.
Called by run.py, inside a `Bed`.
"""

import os
import re
import shutil
import signal
import textwrap
import threading
import time

from bed import digest, need
from programs import fetch_all, nginx_conf, node_client, postgres_server, tree_digest, web_files


def pgbouncer_takeover(bed):
    """A second process takes the place of the first one: the listeners, and every connection, clients' and servers', by SCM_RIGHTS."""
    need("/usr/sbin/pgbouncer")
    bins = postgres_server(bed)
    bed.quiet("chmod", "777", bed.work)
    (bed.work / "users").write_text('"postgres" ""\n')
    (bed.work / "bouncer.ini").write_text(textwrap.dedent(f"""
        [databases]
        postgres = host=127.0.0.1 port=7002 user=postgres
        [pgbouncer]
        listen_addr = 127.0.0.1
        listen_port = 7501
        unix_socket_dir = {bed.work}
        pidfile = {bed.work}/bouncer.pid
        auth_type = any
        auth_file = {bed.work}/users
        admin_users = postgres
        pool_mode = session
    """))
    bed.quiet(f"{bins}/pgbench", "-h", "127.0.0.1", "-p", 7002, "-U", "postgres", "-i", "-q", "postgres")
    bed.server("/usr/sbin/pgbouncer", bed.work / "bouncer.ini", port=7501, user="postgres")

    def take():
        for _ in range(4):
            time.sleep(1)
            bed.server("/usr/sbin/pgbouncer", "-R", bed.work / "bouncer.ini", user="postgres")

    thread = threading.Thread(target=take)
    thread.start()
    said = bed.client(f"{bins}/pgbench", "-h", "127.0.0.1", "-p", 7501, "-U", "postgres", "-S", "-n", "-c", 12, "-j", 2, "-T", 6, "postgres").decode()
    thread.join()
    ended = [process.poll() for process, _ in bed.started[1:]]
    rows = bed.client(f"{bins}/psql", "-h", "127.0.0.1", "-p", 7501, "-U", "postgres", "-qAt", "-c",
                      "select i, md5(i::text) from generate_series(1, 20000) i")
    return f"{re.findall('failed transactions: ([0-9]+)', said)} {ended} {digest(rows)}"


def node_cluster(bed):
    """One process accepts, and passes each connection on to one of two by SCM_RIGHTS."""
    need("node", "curl")
    names = web_files(bed)
    (bed.work / "server.js").write_text(textwrap.dedent("""
        const cluster = require('cluster'), fs = require('fs'), http = require('http');
        if (cluster.isPrimary) { for (let i = 0; i < 2; i++) cluster.fork(); process.on('SIGTERM', () => process.exit(0)); }
        else http.createServer((q, a) => fs.createReadStream('.' + q.url).pipe(a)).listen(7509, '127.0.0.1');
    """))
    bed.server("node", "server.js", port=7509)
    return node_client(bed, 7509) + fetch_all(bed, 7509, names)


def busy(bed, url, seconds, meanwhile):
    """Six clients fetch by connections that are kept, while a server does something else; which answers they got. A connection that ends in
    between is opened again."""
    over = threading.Event()

    def other():
        while not over.is_set():
            meanwhile()
            over.wait(0.7)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        said = bed.client("sh", "-ec", textwrap.dedent(f"""
            for n in 1 2 3 4 5 6; do
                end=$(($(date +%s) + {seconds}))
                (while [ $(date +%s) -lt $end ]; do
                    curl -sS --retry 3 --retry-all-errors -o b$n.#1 -w '%{{http_code}} ' '{url}?[1-20]'
                    for b in b$n.*; do cmp $b {url.rpartition("/")[2]} || echo other bytes; done
                done) >o$n & pids="$pids $!"
            done
            for p in $pids; do wait $p; done
            cat o1 o2 o3 o4 o5 o6
        """)).decode()
    finally:
        over.set()
        thread.join()
    return " ".join(sorted(set(said.split())))


def nginx_upgrade(bed):
    """A new master takes the listeners through exec, the old one's workers end what they have; and a reload of the settings in between."""
    need("nginx", "curl")
    names = web_files(bed)
    conf = nginx_conf(bed, 7502)
    conf.write_text(conf.read_text().replace("daemon off;", "daemon on; env LD_PRELOAD;"))  # a new binary gets no other environment
    # It takes no such signal from a terminal: its parent has to have ended.
    bed.server("sh", "-c", f"{shutil.which('nginx')} -p {bed.work} -e error.log -c {conf}; true", port=7502)
    pid = bed.work / "nginx.pid"

    def anew():
        old = int(pid.read_text())
        os.kill(old, signal.SIGHUP)
        time.sleep(0.5)
        os.kill(old, signal.SIGUSR2)
        for _ in range(100):
            time.sleep(0.05)
            if (bed.work / "nginx.pid.oldbin").exists() and pid.exists() and pid.read_text().strip() not in ("", str(old)):
                break
        os.kill(old, signal.SIGQUIT)
        time.sleep(0.5)

    said = busy(bed, "http://127.0.0.1:7502/middle", 8, anew)
    return said + fetch_all(bed, 7502, names, wrk=False)


def haproxy_reload(bed):
    """A master whose new worker gets the listeners by SCM_RIGHTS from the old one, which ends what it has."""
    need("nginx", "haproxy", "curl")
    names = web_files(bed)
    (bed.work / "haproxy.cfg").write_text(textwrap.dedent(f"""
        global
            stats socket {bed.work}/stats mode 600 level admin expose-fd listeners
            hard-stop-after 3s
        defaults
            mode http
            timeout connect 5s
            timeout client 30s
            timeout server 30s
        frontend in
            bind 127.0.0.1:7504
            default_backend web
        backend web
            server one 127.0.0.1:7503
    """))
    bed.server("nginx", "-p", bed.work, "-e", "error.log", "-c", nginx_conf(bed, 7503), port=7503)
    master = bed.server("haproxy", "-W", "-f", bed.work / "haproxy.cfg", "-x", bed.work / "stats", port=7504)
    said = busy(bed, "http://127.0.0.1:7504/middle", 8, lambda: os.kill(master.pid, signal.SIGUSR2))
    return said + fetch_all(bed, 7504, names, wrk=False)


def socket_activation(bed):
    """systemd's program listens, and executes the server at the first connection, with the listener as 3 (LISTEN_FDS)."""
    need("systemd-socket-activate", "curl")
    names = web_files(bed)
    (bed.work / "activated.py").write_text(textwrap.dedent("""
        import http.server, os, socket
        assert os.environ["LISTEN_FDS"] == "1" and os.environ["LISTEN_PID"] == str(os.getpid())
        class Handler(http.server.SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            log_message = lambda *_: None
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = socket.socket(fileno=3)
        server.serve_forever()
    """))
    # It gives on what it is told of, and nothing where that is not set.
    bed.server("systemd-socket-activate", "-l", "127.0.0.1:7505", "-E", "LD_PRELOAD", "-E", "SMCR_STRICT", "-E", "SMCR_SWITCH_OPS", "/usr/bin/python3",
               "activated.py", port=7505)
    return fetch_all(bed, 7505, names, wrk=False)


def inetd(bed):
    """It accepts, and executes a program for each connection, which is all that this one gets, as 0, 1 and 2."""
    need("/usr/sbin/inetd", "rsync")
    tree = bed.work / "tree"
    tree.mkdir()
    for i in range(60):
        bed.file(f"tree/f{i}", 1000 + i * 20011)
    (bed.work / "rsyncd.conf").write_text(f"use chroot=no\nuid=root\ngid=root\n[tree]\npath={tree}\n")
    (bed.work / "inetd.conf").write_text(f"127.0.0.1:7506 stream tcp nowait.1000 root /usr/bin/rsync rsync --daemon --config={bed.work}/rsyncd.conf\n")
    bed.server("/usr/sbin/inetd", "-i", "-E", bed.work / "inetd.conf", port=7506)
    for i in range(3):
        bed.client("rsync", "-a", "--whole-file", "rsync://127.0.0.1:7506/tree/", bed.work / f"copy{i}")
    return " ".join(tree_digest(bed.work / f"copy{i}") for i in range(3))


PROGRAMS = [pgbouncer_takeover, node_cluster, nginx_upgrade, haproxy_reload, socket_activation, inetd]
