"""Servers of which several threads take what comes, each from where another one left it. Jobs as in programs.py. Called by run.py, inside a `Bed`."""

import os
import re
import textwrap

from bed import digest, need, redis_values
from clusters import mariadb_server
from programs import fetch_all, web_files


def apache(bed, module, port):
    need("/usr/sbin/apache2", "curl", "wrk")
    modules = "/usr/lib/apache2/modules"
    (bed.work / "apache.conf").write_text(textwrap.dedent(f"""
        ServerRoot {bed.work}
        ServerName localhost
        PidFile {bed.work}/pid
        ErrorLog {bed.work}/error.log
        Listen 127.0.0.1:{port}
        LoadModule mpm_{module}_module {modules}/mod_mpm_{module}.so
        LoadModule authz_core_module {modules}/mod_authz_core.so
        User www-data
        Group www-data
        StartServers 2
        ThreadsPerChild 8
        MaxRequestWorkers 32
        MaxKeepAliveRequests 0
        DocumentRoot {bed.work}
    """))
    names = web_files(bed)
    bed.server("/usr/sbin/apache2", "-X" if os.geteuid() else "-DFOREGROUND", "-f", bed.work / "apache.conf", port=port)
    # What wrk says of errors is not asked: natively too a busy server ends some connections that are kept.
    bed.client("wrk", "-t", 1, "-c", 8, "-d", "2s", f"http://127.0.0.1:{port}/middle")
    return fetch_all(bed, port, names, wrk=False)


def apache_event(bed):
    """One thread listens, the others answer, and a connection goes back to the first while it waits for more."""
    return apache(bed, "event", 7401)


def apache_worker(bed):
    """A thread for each connection."""
    return apache(bed, "worker", 7402)


def redis_threads(bed):
    """Threads that read and write for the one that computes."""
    need("redis-server", "redis-benchmark", "redis-cli")
    bed.server("redis-server", "--port", 7403, "--save", "", "--loglevel", "warning", "--io-threads", 4, "--io-threads-do-reads", "yes", port=7403)
    keys = "".join(f"SET key:{i} {'v%d' % i * 20}\r\n" for i in range(20000)).encode()
    bed.client("redis-cli", "-p", 7403, "--pipe", stdin=keys)
    bed.client("redis-benchmark", "-p", 7403, "-c", 40, "-P", 4, "--threads", 2, "-n", 60000, "-d", 256, "-t", "set,get,lrange_100", "-q")
    return redis_values(bed, 7403, [f"key:{i}" for i in range(0, 20000, 20)])


def mariadb_pool(bed):
    """Few threads for many connections: each is told of by epoll once, and armed again."""
    need("/usr/sbin/mariadbd", "mariadb", "mariadb-install-db", "mariadb-slap")
    sql = mariadb_server(bed, "my", 7205, "--thread-handling=pool-of-threads", "--thread-pool-size=2", "--skip-log-bin")
    sql("create database d; create table d.t (i int primary key auto_increment, v varchar(2000))")
    bed.client("mariadb-slap", "--no-defaults", "--protocol=tcp", "-h127.0.0.1", "-P7205", "-uroot", "--no-drop", "--create-schema=d", "--concurrency=24",
               "--number-of-queries=6000", "--query=insert into t (v) values (repeat('abc', 300)); select v from t where i = 7; select count(*) > 0 from t")
    rows = ",".join(f"(repeat('y{i}',{i % 400}))" for i in range(4000))
    sql(f"insert into d.t (v) values {rows}")
    return sql("select count(*) from d.t").decode().strip() + digest(sql("select v from d.t order by v"))


def unbound(bed):
    """Two threads, a listener that both have, and clients that ask much over few connections."""
    need("/usr/sbin/unbound", "dnsperf", "dig")
    records = "".join(f"  local-data: 'h{i}.test. TXT \"{'t%d' % i * 20}\"'\n" for i in range(3000))
    (bed.work / "unbound.conf").write_text(textwrap.dedent(f"""
        server:
          interface: 127.0.0.1@7404
          port: 7404
          num-threads: 2
          do-udp: no
          incoming-num-tcp: 50
          username: ""
          chroot: ""
          directory: "{bed.work}"
          pidfile: "{bed.work}/pid"
          use-syslog: no
          do-daemonize: no
          local-zone: "test." static
        remote-control:
          control-enable: no
        server:
    """) + records)
    bed.server("/usr/sbin/unbound", "-d", "-p", "-c", bed.work / "unbound.conf", port=7404)
    (bed.work / "names").write_text("".join(f"h{i * 7 % 3000}.test TXT\n" for i in range(2000)))
    said = bed.client("dnsperf", "-m", "tcp", "-s", "127.0.0.1", "-p", 7404, "-c", 8, "-T", 2, "-n", 12, "-t", 30, "-d", bed.work / "names").decode()
    asked = bed.client("dig", "+tcp", "+keepopen", "-p", "7404", "@127.0.0.1", "+short", "-f", bed.work / "names")
    return " ".join(re.findall(r"(?:sent|completed|lost): +(\d+)", said)) + digest(asked)


PROGRAMS = [apache_event, apache_worker, redis_threads, mariadb_pool, unbound]
