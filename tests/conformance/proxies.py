"""Programs that stand between two TCP connections, and a file server: jobs as in programs.py, of which they use the web files
and the servers behind.
"""

import textwrap

from bed import digest, need, redis_values
from programs import MIB, fetch_all, nginx_conf, postgres_server, web_files


def varnish_nginx(bed):
    need("/usr/sbin/varnishd", "nginx", "curl", "wrk")
    names = web_files(bed)
    bed.server("nginx", "-p", bed.work, "-e", "error.log", "-c", nginx_conf(bed, 7005), port=7005)
    bed.server("/usr/sbin/varnishd", "-F", "-n", bed.work / "varnish", "-a", "127.0.0.1:7020", "-b", "127.0.0.1:7005",
               "-T", "none", "-j", "none", "-s", "malloc,64m", port=7020)
    return fetch_all(bed, 7020, names)


def tinyproxy_nginx(bed):
    need("tinyproxy", "nginx", "curl")
    names = web_files(bed)
    (bed.work / "tiny.conf").write_text("Port 7021\nListen 127.0.0.1\nTimeout 60\nMaxClients 20\nLogLevel Critical\n")
    bed.server("nginx", "-p", bed.work, "-e", "error.log", "-c", nginx_conf(bed, 7005), port=7005)
    bed.server("tinyproxy", "-d", "-c", bed.work / "tiny.conf", port=7021)
    urls = [f"http://127.0.0.1:7005/{n}" for n in names * 8]
    return digest(bed.client("curl", "-sS", "-x", "http://127.0.0.1:7021", *urls))


def stunnel_redis(bed):
    need("stunnel4", "redis-server", "redis-cli", "redis-benchmark", "openssl")
    bed.quiet("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-keyout", "k", "-out", "c", "-days", "2")
    for side, client, accept, connect in (("in", "yes", 7023, 7022), ("out", "no", 7022, 7000)):
        (bed.work / f"{side}.conf").write_text(textwrap.dedent(f"""
            foreground = yes
            pid =
            debug = err
            {'' if client == 'yes' else f'cert = {bed.work}/c'}
            {'' if client == 'yes' else f'key = {bed.work}/k'}
            [redis]
            client = {client}
            accept = 127.0.0.1:{accept}
            connect = 127.0.0.1:{connect}
        """))
    bed.server("redis-server", "--port", 7000, "--save", "", "--loglevel", "warning", port=7000)
    bed.server("stunnel4", bed.work / "out.conf", port=7022)
    bed.server("stunnel4", bed.work / "in.conf", port=7023)
    bed.client("redis-benchmark", "-p", 7023, "-c", 8, "-n", 20000, "-d", 1000, "-t", "set,get,lrange_100", "-q")
    keys = "".join(f"SET key:{i} {'v%d' % i * 20}\r\n" for i in range(5000)).encode()
    bed.client("redis-cli", "-p", 7023, "--pipe", stdin=keys)
    return redis_values(bed, 7023, [f"key:{i}" for i in range(0, 5000, 5)])


def nutcracker_redis(bed):
    need("/usr/sbin/nutcracker", "redis-server", "redis-cli", "redis-benchmark")
    (bed.work / "nut.yml").write_text(textwrap.dedent("""
        pool:
          listen: 127.0.0.1:7024
          hash: fnv1a_64
          distribution: ketama
          redis: true
          timeout: 10000
          servers:
           - 127.0.0.1:7000:1 one
           - 127.0.0.1:7025:1 two
    """))
    for port in (7000, 7025):
        bed.server("redis-server", "--port", port, "--save", "", "--loglevel", "warning", port=port)
    bed.server("/usr/sbin/nutcracker", "-c", bed.work / "nut.yml", "-p", bed.work / "nut.pid", port=7024)
    bed.client("redis-benchmark", "-p", 7024, "-c", 10, "-n", 40000, "-d", 256, "-t", "set,get", "-r", 5000, "-q")
    for i in range(3):
        bed.client("redis-cli", "-p", 7024, "set", f"big{i}", "x" * 100_000)
    return digest(b"".join(bed.client("redis-cli", "-p", 7024, "get", f"big{i}") for i in range(3)))


def pgbouncer_postgresql(bed):
    need("/usr/sbin/pgbouncer")
    bins = postgres_server(bed)
    (bed.work / "users").write_text('"postgres" ""\n')
    (bed.work / "bouncer.ini").write_text(textwrap.dedent(f"""
        [databases]
        postgres = host=127.0.0.1 port=7002 user=postgres
        [pgbouncer]
        listen_addr = 127.0.0.1
        listen_port = 7026
        unix_socket_dir = /tmp
        auth_type = any
        auth_file = {bed.work}/users
        pool_mode = transaction
    """))
    through = [f"{bins}/psql", "-h", "127.0.0.1", "-p", 7026, "-U", "postgres", "-qAt"]
    bed.quiet(f"{bins}/pgbench", "-h", "127.0.0.1", "-p", 7002, "-U", "postgres", "-i", "-q", "postgres")
    bed.server("/usr/sbin/pgbouncer", bed.work / "bouncer.ini", port=7026, user="postgres")
    bed.client(f"{bins}/pgbench", "-h", "127.0.0.1", "-p", 7026, "-U", "postgres", "-S", "-n", "-c", 6, "-t", 2000, "postgres")
    rows = bed.client(*through, "-c", "copy (select i, md5(i::text) from generate_series(1, 200000) i) to stdout")
    return digest(rows)


def samba(bed):
    need("/usr/sbin/smbd", "smbclient")
    share = bed.files("share", 10)
    (bed.work / "smb.conf").write_text(textwrap.dedent(f"""
        [global]
            smb ports = 7030
            interfaces = 127.0.0.1
            bind interfaces only = yes
            private dir = {bed.work}
            lock directory = {bed.work}
            state directory = {bed.work}
            cache directory = {bed.work}
            pid directory = {bed.work}
            ncalrpc dir = {bed.work}/rpc
            map to guest = bad user
            guest account = root
            log file = {bed.work}/smb.log
            disable spoolss = yes
        [share]
            path = {share}
            guest ok = yes
            read only = no
    """))
    bed.server("/usr/sbin/smbd", "--foreground", "--no-process-group", "-s", bed.work / "smb.conf", port=7030)
    bed.file("up", 20 * MIB)
    bed.client("smbclient", "-N", "-p", 7030, "//127.0.0.1/share", "-c", "prompt off; recurse on; mget f*; put up up; get up back")
    return digest(b"".join((bed.work / f"f{i}").read_bytes() for i in range(10)) + (bed.work / "back").read_bytes())


PROGRAMS = [varnish_nginx, tinyproxy_nginx, stunnel_redis, nutcracker_redis, pgbouncer_postgresql, samba]
