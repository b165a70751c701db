"""Rows of unmodified programs: redis, nginx with wrk, HAProxy, iperf3, memcached, PostgreSQL, python asyncio."""

import glob
import json
import os
import pwd
import re
import signal
import subprocess
import time

from proc import Failed, Proc, free_port, wait_listening
from row import from_hist, ratio, row, which
from rows_core import with_neighbours

ROOT = os.getuid() == 0


# ---- redis ----
def redis_rate(c, port, clients, test, n):
    out = c.start(["redis-benchmark", "-h", "127.0.0.1", "-p", port, "-c", clients, "-n", n, "-P", 1, "-t", test, "--csv"]).result()
    rows = [ln.strip().strip('"').split('","') for ln in out.splitlines() if ln.startswith('"')]
    if len(rows) < 2 or "rps" not in rows[0]:
        raise Failed("redis-benchmark: no result: %s" % out[-200:])
    named = dict(zip(rows[0], rows[-1]))
    return float(named["rps"]), float(named.get("p99_latency_ms", 0)) * 1000


def redis(clients, fn=lambda c, f: f(c)):
    def run(c):
        port = free_port()
        srv = c.start(["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        wait_listening(srv, port)
        out, total = {}, 0
        for test in ("set", "get"):
            n, is_long = 2000, False
            while not is_long:  # not counted: the length of the run, from one that is not mostly its beginning
                rate, _ = redis_rate(c, port, clients, test, n)
                total += n
                is_long = n >= rate * c.secs / 4
                n = int(max(n, min(rate * c.secs, 1e7)))
            out[test + "_s"], out[test + "_p99_us"] = redis_rate(c, port, clients, test, n)
            total += n
        out["_all"] = total
        return out

    return lambda c: fn(c, run)


def redis_metrics(goal):
    return [ratio("get_s", "1/s", "high", goal, "GET"), ratio("set_s", "1/s", "high", goal, "SET"),
            ratio("get_p99_us", "us", "low", None, "GET p99")]


REDIS = ("redis-server", "redis-benchmark")
row("redis1", "redis-benchmark -c 1", redis_metrics(22), REDIS, group="redis")(redis(1))
row("redis50", "redis-benchmark -c 50", redis_metrics(22), REDIS, group="redis")(redis(50))
row("busy_redis50", "redis-benchmark -c 50 beside two busy processes", redis_metrics(10), REDIS, group="redis")(redis(50, with_neighbours))


# ---- nginx, wrk, HAProxy ----
NGINX_CONF = """daemon off;
worker_processes 1;
%(user)spid %(dir)s/nginx.pid;
error_log stderr crit;
events { worker_connections 4096; }
http {
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_timeout 600;
    keepalive_requests 100000000;
    client_body_temp_path %(dir)s/body;
    proxy_temp_path %(dir)s/proxy;
    fastcgi_temp_path %(dir)s/fastcgi;
    uwsgi_temp_path %(dir)s/uwsgi;
    scgi_temp_path %(dir)s/scgi;
    server {
        listen 127.0.0.1:%(port)d;
        root %(dir)s/html;
        location = /empty { return 200; }
    }
}
"""


def nginx(c):
    d = os.path.join(c.env.workdir, "nginx")
    os.makedirs(os.path.join(d, "html"), exist_ok=True)
    for name, size in (("1k", 1024), ("64k", 65536)):
        path = os.path.join(d, "html", name)
        if not os.path.exists(path):
            with open(path, "wb") as f:
                f.write(b"x" * size)
    port = free_port()
    conf = os.path.join(d, "nginx.conf")
    with open(conf, "w") as f:
        f.write(NGINX_CONF % {"dir": d, "port": port, "user": "user root;\n" if ROOT else ""})
    srv = c.start(["nginx", "-p", d, "-e", "stderr", "-c", conf])
    wait_listening(srv, port)
    return port


def wrk(c, port, path, conns):
    secs = max(1, round(c.secs))
    out = c.start(["wrk", "-t", 1, "-c", conns, "-d", "%ds" % secs, "--latency", "http://127.0.0.1:%d/%s" % (port, path)]).result()
    rate = re.search(r"Requests/sec:\s+([\d.]+)", out)
    total = re.search(r"(\d+) requests in", out)
    bad = re.search(r"(Non-2xx.*|Socket errors.*)", out)
    if bad or not rate or not total or int(total.group(1)) == 0:
        raise Failed("wrk: %s" % (bad.group(1) if bad else out[-300:]))
    r = {"ops_s": float(rate.group(1)), "_all": int(total.group(1))}
    for name, pct in (("p50_us", "50"), ("p99_us", "99")):
        m = re.search(r"^\s+%s%%\s+([\d.]+)(us|ms|s)\b" % pct, out, re.M)
        if m:
            r[name] = float(m.group(1)) * {"us": 1, "ms": 1e3, "s": 1e6}[m.group(2)]
    return r


def http_metrics(goal):
    return [ratio("ops_s", "1/s", "high", goal, "requests"), ratio("p50_us", "us", "low", None, "p50"),
            ratio("p99_us", "us", "low", None, "p99")]


WEB = ("nginx", "wrk")
for _name, _text, _path, _goal in (
    ("nginx1k", "1 KiB file", "1k", 3),
    ("nginx_empty", "empty answer (return 200)", "empty", 7),
    ("nginx64k", "64 KiB file", "64k", 3),
):
    row(_name, "nginx + wrk -c 16 keep-alive, " + _text, http_metrics(_goal), WEB, group="nginx")(
        lambda c, path=_path: wrk(c, nginx(c), path, 16)
    )

HAPROXY_CONF = """global
    maxconn 2000
    nbthread 1
defaults
    mode http
    option http-keep-alive
    http-reuse always
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend f
    bind 127.0.0.1:%d
    default_backend b
backend b
    server s 127.0.0.1:%d
"""


@row("haproxy", "wrk -c 16, HAProxy, nginx with a 1 KiB file", http_metrics(2), WEB + ("haproxy",), group="nginx")
def haproxy(c):
    back, port = nginx(c), free_port()
    conf = os.path.join(c.env.workdir, "haproxy.cfg")
    with open(conf, "w") as f:
        f.write(HAPROXY_CONF % (port, back))
    srv = c.start(["haproxy", "-f", conf, "-db"])
    wait_listening(srv, port)
    return wrk(c, port, "1k", 16)


# ---- iperf3 ----
@row("iperf3", "iperf3, one stream", [ratio("gbit_s", "Gbit/s", "high", 10)], ("iperf3",), group="bulk")
def iperf3(c):
    port = free_port()
    srv = c.start(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port])
    wait_listening(srv, port)
    # iperf3 counts whole seconds; the first one is its warm-up
    secs = max(1, round(c.secs))
    out = c.start(["iperf3", "-c", "127.0.0.1", "-p", port, "-t", secs, "-O", 1, "-J"]).result(allow=(0, 1))
    r = json.loads(out[out.index("{"):])
    if "error" in r or "sum_received" not in r.get("end", {}):
        raise Failed("iperf3: %s" % r.get("error", "no result"))
    got = r["end"]["sum_received"]
    return {"gbit_s": got["bits_per_second"] / 1e9, "_all": sum(i["sum"]["bytes"] for i in r["intervals"])}


# ---- memcached ----
@row("memcached", "memcached -t 4, 50 connections, 9 gets to 1 set of 100 B",
     [ratio("ops_s", "1/s", "high", 8), ratio("p50_us", "us", "low", None, "p50"), ratio("p99_us", "us", "low", None, "p99")],
     ("memcached",), group="programs")
def memcached(c):
    port = free_port()
    srv = c.start(["memcached", "-t", 4, "-p", port, "-U", 0, "-l", "127.0.0.1"] + (["-u", "root"] if ROOT else []))
    wait_listening(srv, port)
    return from_hist(c.start(["mcload", "port=%d" % port, "secs=%g" % c.secs]).json())


# ---- python asyncio ----
def asyncio_echo(conns):
    def run(c):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "asyncio_echo.py")
        python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else which("python3")
        srv = c.start([python, script, "server"])
        port = srv.ready_port()
        return from_hist(c.start([python, script, "client", port, conns, c.secs]).json())

    return run


for _n in (1, 8):
    row("asyncio%d" % _n, "python asyncio echo, 64 B, %d connection%s" % (_n, "s" * (_n > 1)),
        [ratio("ops_s", "1/s", "high", 1.5), ratio("p50_us", "us", "low", None, "p50"), ratio("p99_us", "us", "low", None, "p99")],
        ("python3",), group="programs")(asyncio_echo(_n))


# ---- PostgreSQL ----
def pg_bin(name):
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/" + name)) or ([which(name)] if which(name) else [])
    return found[-1] if found else None


def pg_user():
    """PostgreSQL refuses to run as root."""
    if not ROOT:
        return None
    for name in ("postgres", "nobody"):
        try:
            u = pwd.getpwnam(name)
            return (u.pw_uid, u.pw_gid)
        except KeyError:
            pass
    return None


def pg_start(env, accel, keep):
    port = free_port()
    p = Proc(env, [pg_bin("postgres"), "-D", os.path.join(env.workdir, "pg", "data"), "-p", str(port), "-c", "listen_addresses=127.0.0.1",
                   "-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "autovacuum=off", "-c", "max_connections=50"],
             accel=accel, user=pg_user(), deadline=120)
    keep.append(p)
    wait_listening(p, port)
    # it listens before it has recovered from the last stop
    for _ in range(200):
        with Proc(env, [pg_bin("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]) as ask:
            if not ask.result(allow=(0, 1, 2)) and ask.p.returncode == 0:
                return port
        time.sleep(0.05)
    raise Failed("PostgreSQL does not get ready: %s" % p.errors())


def pgbench_argv(port, *more):
    return [pg_bin("pgbench"), "-h", "127.0.0.1", "-p", str(port), *more, "postgres"]


def pg_setup(env):
    if not (all(pg_bin(n) for n in ("initdb", "pgbench", "postgres", "pg_isready"))):
        return "PostgreSQL is not installed"
    d = os.path.join(env.workdir, "pg")
    if os.path.exists(d):
        return None
    os.mkdir(d)
    user = pg_user()
    if user:
        os.chown(d, *user)
    procs = []
    try:
        with Proc(env, [pg_bin("initdb"), "-D", os.path.join(d, "data"), "-A", "trust", "-N", "-U", "postgres"], user=user, deadline=120, cwd=d) as p:
            p.result()
        port = pg_start(env, False, procs)
        with Proc(env, pgbench_argv(port, "-U", "postgres", "-i", "-q", "-s", "2"), user=user, deadline=120, cwd=d) as p:
            p.result()
    except (Failed, OSError, subprocess.SubprocessError) as e:
        return "PostgreSQL could not be set up: %s" % e
    finally:
        for p in procs:
            p.stop(signal.SIGINT)
    return None


def pgbench(clients):
    def run(c):
        port = pg_start(c.env, c.accel, c.procs)
        secs = max(1, round(c.secs))
        try:
            out = c.start(pgbench_argv(port, "-U", "postgres", "-S", "-n", "-M", "simple", "-c", str(clients), "-j", "1", "-T", str(secs)),
                          user=pg_user()).result()
        finally:
            c.procs[0].stop(signal.SIGINT, grace=10)
        tps = re.search(r"tps = ([\d.]+)", out)
        lat = re.search(r"latency average = ([\d.]+) ms", out)
        total = re.search(r"transactions actually processed: (\d+)", out)
        if not tps or not total:
            raise Failed("pgbench: %s" % out[-300:])
        return {"ops_s": float(tps.group(1)), "avg_us": float(lat.group(1)) * 1000 if lat else None, "_all": int(total.group(1))}

    return run


for _n in (1, 8):
    row("pgbench%d" % _n, "pgbench -S over TCP, %d client%s" % (_n, "s" * (_n > 1)),
        [ratio("ops_s", "1/s", "high", 1.5, "transactions"), ratio("avg_us", "us", "low", None, "mean latency")],
        setup=pg_setup, group="programs")(pgbench(_n))
