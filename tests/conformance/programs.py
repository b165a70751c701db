"""Programs that people run: each job starts a server, moves data with an unmodified client, and returns what
must be the same natively and under the library (checksums, counts). Called by run.py, inside a `Bed`.
"""

import glob
import os
import random
import re
import textwrap

from bed import Skip, digest, need, redis_values

MIB = 1 << 20


def redis(bed):
    need("redis-server", "redis-benchmark", "redis-cli")
    bed.server("redis-server", "--port", 7000, "--save", "", "--loglevel", "warning", port=7000)
    keys = "".join(f"SET key:{i} {'v%d' % i * 20}\r\n" for i in range(20000)).encode()
    bed.client("redis-cli", "-p", 7000, "--pipe", stdin=keys)
    bed.client("redis-benchmark", "-p", 7000, "-c", 20, "-n", 60000, "-d", 256, "-t", "set,get,lpush,lrange_100", "-q")
    return redis_values(bed, 7000, [f"key:{i}" for i in range(0, 20000, 20)])


def memcached(bed):
    need("memcached")
    bed.server("memcached", "-p", 7001, "-U", 0, "-t", 4, "-u", "nobody", port=7001)
    return bed.client("/usr/bin/python3", "-c", textwrap.dedent("""
        import hashlib, socket, threading
        out = [None] * 8
        def work(n):
            s = socket.create_connection(("127.0.0.1", 7001)); f = s.makefile("rb"); h = hashlib.sha256()
            for i in range(1500):
                v = (b"%d-%d;" % (n, i)) * 100
                s.sendall(b"set k%d-%d 0 0 %d\\r\\n" % (n, i, len(v)) + v + b"\\r\\n")
                assert f.readline() == b"STORED\\r\\n"
                s.sendall(b"get k%d-%d\\r\\n" % (n, i))
                size = int(f.readline().split()[3]); h.update(f.read(size + 2)); f.readline()
            out[n] = h.hexdigest()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(out)
    """))


def postgresql(bed):
    bins = postgres_server(bed)
    psql = [f"{bins}/psql", "-h", "127.0.0.1", "-p", 7002, "-U", "postgres", "-qAt"]
    bed.client(f"{bins}/pgbench", "-h", "127.0.0.1", "-p", 7002, "-U", "postgres", "-i", "-s", 2, "-q", "postgres")
    out = bed.client(f"{bins}/pgbench", "-h", "127.0.0.1", "-p", 7002, "-U", "postgres", "-S", "-c", 6, "-j", 2, "-t", 3000,
                     "postgres")
    rows = bed.client(*psql, "-c", "copy (select i, md5(i::text) from generate_series(1, 300000) i) to stdout")
    done = re.search(rb"processed: (\d+/\d+)", out).group(1)
    return done + digest(rows).encode()


def openssh(bed):
    need("/usr/sbin/sshd", "scp", "ssh")
    os.makedirs("/run/sshd", exist_ok=True)
    for name in ("host", "user"):
        bed.quiet("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", bed.work / name)
    (bed.work / "keys").write_bytes((bed.work / "user.pub").read_bytes())
    (bed.work / "sshd.conf").write_text(textwrap.dedent(f"""
        Port 7003
        ListenAddress 127.0.0.1
        HostKey {bed.work}/host
        AuthorizedKeysFile {bed.work}/keys
        StrictModes no
        UsePAM no
        PermitRootLogin yes
        PidFile none
        Subsystem sftp internal-sftp
    """))
    options = ["-i", bed.work / "user", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
    bed.server("/usr/sbin/sshd", "-D", "-e", "-f", bed.work / "sshd.conf", port=7003)
    big = bed.file("big", 40 * MIB)
    bed.client("scp", *options, "-P", 7003, big, f"root@127.0.0.1:{bed.work}/copy")
    back = bed.client("ssh", *options, "-p", 7003, "root@127.0.0.1", f"cat {bed.work}/copy; echo $((6*7))")
    return digest(back) + digest(open(bed.work / "copy", "rb").read())


def apache_prefork(bed):
    need("/usr/sbin/apache2", "curl", "wrk")
    modules = "/usr/lib/apache2/modules"
    (bed.work / "apache.conf").write_text(textwrap.dedent(f"""
        ServerRoot {bed.work}
        ServerName localhost
        PidFile {bed.work}/pid
        ErrorLog {bed.work}/error.log
        Listen 127.0.0.1:7004
        LoadModule mpm_prefork_module {modules}/mod_mpm_prefork.so
        LoadModule authz_core_module {modules}/mod_authz_core.so
        User www-data
        Group www-data
        StartServers 12
        MaxRequestWorkers 16
        MaxKeepAliveRequests 0
        DocumentRoot {bed.work}
    """))
    names = web_files(bed)
    bed.server("/usr/sbin/apache2", "-X" if os.geteuid() else "-DFOREGROUND", "-f", bed.work / "apache.conf", port=7004)
    return fetch_all(bed, 7004, names)


def nginx(bed):
    need("nginx", "curl", "wrk")
    names = web_files(bed)
    bed.server("nginx", "-p", bed.work, "-e", "error.log", "-c", nginx_conf(bed, 7005), port=7005)
    return fetch_all(bed, 7005, names)


def haproxy_nginx(bed):
    need("nginx", "haproxy", "curl", "wrk")
    names = web_files(bed)
    (bed.work / "haproxy.cfg").write_text(textwrap.dedent("""
        defaults
            mode http
            timeout connect 5s
            timeout client 30s
            timeout server 30s
        frontend in
            bind 127.0.0.1:7006
            default_backend web
        backend web
            server one 127.0.0.1:7005
    """))
    bed.server("nginx", "-p", bed.work, "-e", "error.log", "-c", nginx_conf(bed, 7005), port=7005)
    bed.server("haproxy", "-db", "-f", bed.work / "haproxy.cfg", port=7006)
    return fetch_all(bed, 7006, names)


def lighttpd(bed):
    need("lighttpd", "curl", "wrk")
    names = web_files(bed)
    (bed.work / "lighttpd.conf").write_text(f'server.document-root = "{bed.work}"\nserver.port = 7007\n'
                                             'server.bind = "127.0.0.1"\nserver.max-keep-alive-requests = 1000000\n')
    bed.server("lighttpd", "-D", "-f", bed.work / "lighttpd.conf", port=7007)
    return fetch_all(bed, 7007, names)


def squid_nginx(bed):
    need("squid", "nginx", "curl")
    names = web_files(bed)
    (bed.work / "squid.conf").write_text(textwrap.dedent(f"""
        http_port 127.0.0.1:7008
        http_access allow all
        cache deny all
        pid_filename none
        access_log none
        cache_log {bed.work}/squid.log
        coredump_dir {bed.work}
        pinger_enable off
        shutdown_lifetime 1 second
    """))
    bed.quiet("chmod", "777", bed.work)
    bed.server("nginx", "-p", bed.work, "-e", "error.log", "-c", nginx_conf(bed, 7005), port=7005)
    bed.server("squid", "-N", "-f", bed.work / "squid.conf", port=7008)
    urls = [f"http://127.0.0.1:7005/{n}" for n in names * 8]
    return digest(bed.client("curl", "-sS", "-x", "http://127.0.0.1:7008", *urls))


def node_http(bed):
    need("node", "curl", "wrk")
    names = web_files(bed)
    (bed.work / "server.js").write_text(textwrap.dedent("""
        const fs = require('fs'), http = require('http');
        http.createServer((q, a) => fs.createReadStream('.' + q.url).pipe(a)).listen(7009, '127.0.0.1');
    """))
    bed.server("node", "server.js", port=7009)
    return node_client(bed, 7009) + fetch_all(bed, 7009, names)


def node_client(bed, port):
    """Four connections that are kept, sixty times four files."""
    (bed.work / "client.js").write_text(textwrap.dedent("""
        const port = +process.argv[2];
        const http = require('http'), crypto = require('crypto'), agent = new http.Agent({keepAlive: true, maxSockets: 4});
        const get = name => new Promise((ok, no) => http.get({port, host: '127.0.0.1', path: '/' + name, agent}, a => {
            const h = crypto.createHash('sha256'); a.on('data', d => h.update(d)); a.on('end', () => ok(h.digest('hex')));
        }).on('error', no));
        (async () => { for (let i = 0; i < 60; i++)
            console.log((await Promise.all(['small', 'middle', 'large', 'small'].map(get))).join(' ')); agent.destroy(); })();
    """))
    return digest(bed.client("node", "client.js", port))


def java_http(bed):
    need("java", "curl")
    (bed.work / "Main.java").write_text(textwrap.dedent("""
        import com.sun.net.httpserver.HttpServer; import java.net.*; import java.net.http.*; import java.util.*; import java.util.concurrent.*;
        public class Main { public static void main(String[] a) throws Exception {
            byte[] body = new byte[200000]; new Random(7).nextBytes(body);
            if (a[0].equals("server")) {
                HttpServer s = HttpServer.create(new InetSocketAddress("127.0.0.1", 7010), 64);
                s.createContext("/", x -> { x.getRequestBody().readAllBytes(); x.sendResponseHeaders(200, body.length);
                    try (var o = x.getResponseBody()) { o.write(body); } });
                s.setExecutor(Executors.newFixedThreadPool(4)); s.start(); return; }
            HttpClient c = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build(); int good = 0;
            for (int r = 0; r < 60; r++) { var all = new ArrayList<CompletableFuture<HttpResponse<byte[]>>>();
                for (int i = 0; i < 4; i++) all.add(c.sendAsync(HttpRequest.newBuilder(URI.create("http://127.0.0.1:7010/"))
                    .POST(HttpRequest.BodyPublishers.ofByteArray(body)).build(), HttpResponse.BodyHandlers.ofByteArray()));
                for (var f : all) if (Arrays.equals(f.get().body(), body)) good++; }
            System.out.println(good); System.exit(0); } }
    """))
    bed.quiet("javac", "Main.java")
    bed.server("java", "-Xmx256m", "Main", "server", port=7010)
    return bed.client("java", "-Xmx256m", "Main", "client")


def rsync_daemon(bed):
    need("rsync")
    tree = bed.work / "tree"
    tree.mkdir()
    for i in range(60):
        bed.file(f"tree/f{i}", 1000 + i * 20011)
    (bed.work / "rsyncd.conf").write_text(f"port=7011\naddress=127.0.0.1\nuse chroot=no\nuid=root\ngid=root\n[tree]\npath={tree}\n")
    bed.server("rsync", "--daemon", "--no-detach", "--config", bed.work / "rsyncd.conf", port=7011)
    bed.client("rsync", "-a", "--whole-file", "rsync://127.0.0.1:7011/tree/", bed.work / "copy")
    return tree_digest(bed.work / "copy")


def git_daemon(bed):
    need("git")
    source = bed.work / "source"
    bed.quiet("git", "init", "-q", source)
    for i in range(40):  # what zlib can't make smaller
        (source / f"f{i}").write_bytes(random.Random(i).randbytes(500_000))
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    bed.quiet("git", *who, "-C", source, "add", ".")
    bed.quiet("git", *who, "-C", source, "commit", "-qm", "all")
    bed.server("git", "daemon", "--export-all", f"--base-path={bed.work}", "--listen=127.0.0.1", "--port=7012", port=7012)
    bed.client("git", "-c", "core.compression=0", "clone", "-q", "git://127.0.0.1:7012/source", bed.work / "copy")
    return tree_digest(bed.work / "copy", skip=".git")


def mariadb(bed):
    need("/usr/sbin/mariadbd", "mariadb", "mariadb-install-db")
    data = bed.work / "my"
    data.mkdir()
    bed.quiet("chown", "mysql", data)
    bed.quiet("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=mysql",
              "--auth-root-authentication-method=normal", "--skip-test-db")
    bed.server("/usr/sbin/mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={data}/s", "--port=7013",
               "--bind-address=127.0.0.1", "--user=mysql", "--skip-log-bin", f"--pid-file={data}/pid", port=7013)
    sql = ["mariadb", "--no-defaults", "--protocol=tcp", "-h127.0.0.1", "-P7013", "-uroot", "-N", "-B"]
    bed.client(*sql, "-e", "create database d; create table d.t (i int primary key, v varchar(200))")
    rows = ",".join(f"({i},repeat('x{i}',20))" for i in range(8000))
    bed.client(*sql, stdin=f"insert into d.t values {rows};".encode())
    each = "".join(f"select v from d.t where i={i};\n" for i in range(8000)).encode()
    return digest(bed.client(*sql, stdin=each)) + digest(bed.client(*sql, "-e", "select * from d.t order by i"))


def iperf3(bed):
    need("iperf3")
    import json
    results = []
    for options in ([], ["-R"], ["-P", 4], ["-l", 200, "-n", "20M"]):
        server = bed.server("iperf3", "-s", "-1", "-p", 7014)
        amount = [] if "-n" in options else ["-n", "400M"]
        for _ in range(100):
            out = bed.client("iperf3", "-c", "127.0.0.1", "-p", 7014, "-J", *amount, *options, check=False)
            report = json.loads(out)
            if "Connection refused" not in report.get("error", ""):
                break
        server.wait(30)  # the next one takes its port
        end = report["end"]
        results.append(end["sum_sent"]["bytes"] >= end["sum_received"]["bytes"] > 0 and "error" not in report)
    return str(results)


def openssl_tls(bed):
    need("openssl")
    bed.quiet("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-keyout", "k", "-out", "c", "-days", "2")
    bed.file("big", 30 * MIB)
    bed.server("openssl", "s_server", "-accept", "127.0.0.1:7015", "-key", "k", "-cert", "c", "-WWW", "-quiet", port=7015)
    out = bed.client("openssl", "s_client", "-connect", "127.0.0.1:7015", "-quiet", "-ign_eof",
                     stdin=b"GET /big HTTP/1.0\r\n\r\n", check=False)
    return digest(out)


def python_http(bed):
    names = web_files(bed)
    bed.server("/usr/bin/python3", "-m", "http.server", 7016, "--bind", "127.0.0.1", "--protocol", "HTTP/1.1", port=7016)
    return fetch_all(bed, 7016, names, wrk=False)


def socat_tcp(bed):
    need("socat")
    big = bed.file("big", 30 * MIB)
    bed.server("socat", "TCP-LISTEN:7017,reuseaddr,fork", "EXEC:cat", port=7017)
    bed.server("socat", "TCP-LISTEN:7018,reuseaddr,fork", "SYSTEM:sha256sum", port=7018)
    out = bed.client("sh", "-c", f"socat -t20 - TCP:127.0.0.1:7017 <{big} | sha256sum")
    return out + bed.client("sh", "-c", f"socat -t20 - TCP:127.0.0.1:7018 <{big}")


PROGRAMS = [redis, memcached, nginx, apache_prefork, haproxy_nginx, lighttpd, squid_nginx, node_http, java_http, postgresql,
            mariadb, openssh, rsync_daemon, git_daemon, iperf3, openssl_tls, python_http, socat_tcp]


def web_files(bed):
    for name, size in (("small", 1000), ("middle", 70_000), ("large", 3 * MIB)):
        bed.file(name, size)
    return ["small", "middle", "large"]


def postgres_server(bed):
    """A new cluster that answers on port 7002; returns the folder of its programs."""
    bins = (sorted(glob.glob("/usr/lib/postgresql/*/bin")) or [None])[-1]
    if not bins:
        raise Skip("not installed: postgresql")
    data = bed.work / "pg"
    data.mkdir()
    bed.quiet("chown", "postgres", data)
    bed.quiet(f"{bins}/initdb", "-D", data, "-A", "trust", "--no-sync", user="postgres", cwd="/")
    bed.server(f"{bins}/postgres", "-D", data, "-h", "127.0.0.1", "-p", 7002, "-k", "", "-F", port=7002, user="postgres",
               cwd="/")
    ready(bed, f"{bins}/psql", "-h", "127.0.0.1", "-p", 7002, "-U", "postgres", "-qAt", "-c", "select 1")
    return bins


def nginx_conf(bed, port):
    path = bed.work / "nginx.conf"
    path.write_text(textwrap.dedent(f"""
        daemon off; worker_processes 2; pid {bed.work}/nginx.pid; user root;
        events {{ worker_connections 256; }}
        http {{ access_log off; sendfile on; keepalive_requests 10000000; server {{ listen 127.0.0.1:{port}; root {bed.work}; }} }}
    """))
    return path


def fetch_all(bed, port, names, wrk=True):
    """Every file many times over a few connections with curl, then a load by wrk; the bytes, and wrk's errors."""
    bodies = bed.client("curl", "-sS", *[f"http://127.0.0.1:{port}/{n}" for n in names * 12])
    errors = b""
    if wrk:
        out = bed.client("wrk", "-t", 1, "-c", 8, "-d", "2s", f"http://127.0.0.1:{port}/middle").decode()
        errors = b"".join(line.encode() for line in out.splitlines() if "errors" in line or "Non-2xx" in line)
    return digest(bodies) + errors.decode()


def ready(bed, *command):
    import subprocess
    import time
    for _ in range(200):
        if subprocess.run([str(c) for c in command], capture_output=True, env=bed.environment(False)).returncode == 0:
            return
        time.sleep(0.1)
    raise RuntimeError(f"{command[0]}: the server does not answer")


def tree_digest(top, skip=None):
    found = []
    for folder, folders, files in os.walk(top):
        folders[:] = [f for f in folders if f != skip]
        found += [os.path.join(folder, f) for f in files]
    return digest(b"".join(os.path.relpath(p, top).encode() + open(p, "rb").read() for p in sorted(found)))
