"""Programs that pass on whatever comes, in both directions at once: SOCKS, encryption. Jobs as in programs.py; each end is asked for files
through them, many at a time. Called by run.py, inside a `Bed`.
"""

import json
import textwrap

from bed import digest, need
from programs import fetch_all, nginx_conf, web_files


def dante(bed):
    """A SOCKS server whose processes pass each connection on to one another."""
    need("/usr/sbin/danted", "nginx", "curl")
    names = files_of_nginx(bed)
    (bed.work / "danted.conf").write_text(textwrap.dedent(f"""
        logoutput: {bed.work}/danted.log
        internal: 127.0.0.1 port = 7301
        external: 127.0.0.1
        clientmethod: none
        socksmethod: none
        user.privileged: root
        user.unprivileged: nobody
        client pass {{ from: 127.0.0.0/8 to: 0.0.0.0/0 }}
        socks pass {{ from: 127.0.0.0/8 to: 0.0.0.0/0 }}
    """))
    bed.server("/usr/sbin/danted", "-f", bed.work / "danted.conf", "-p", bed.work / "danted.pid", port=7301)
    return through(bed, "socks5://127.0.0.1:7301", names)


def shadowsocks(bed):
    """Two ends of a tunnel on an edge of which each waits for the other."""
    need("ss-server", "ss-local", "nginx", "curl")
    names = files_of_nginx(bed)
    for side, more in (("server", {"server_port": 7302}), ("local", {"server_port": 7302, "local_address": "127.0.0.1", "local_port": 7303})):
        about = {"server": "127.0.0.1", "password": "x", "method": "aes-128-gcm", "timeout": 60, "mode": "tcp_only", **more}
        (bed.work / f"{side}.json").write_text(json.dumps(about))
    bed.server("ss-server", "-c", bed.work / "server.json", port=7302)
    bed.server("ss-local", "-c", bed.work / "local.json", port=7303)
    return through(bed, "socks5://127.0.0.1:7303", names)


def hitch(bed):
    """TLS before nginx, with processes that share a listener."""
    need("hitch", "nginx", "curl", "openssl")
    names = files_of_nginx(bed)
    bed.quiet("sh", "-c", "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout k -out c -days 2 && cat k c > both.pem")
    bed.server("hitch", "--frontend=[127.0.0.1]:7304", "--backend=[127.0.0.1]:7005", "--workers=2", "--user=nobody", bed.work / "both.pem", port=7304)
    urls = [f"https://127.0.0.1:7304/{n}" for n in names * 8]
    many = ["-Z", "--parallel-max", 12, *[w for i, u in enumerate(urls) for w in ("-o", f"got{i}", u)]]
    bed.client("curl", "-sSk", *many)
    return digest(b"".join((bed.work / f"got{i}").read_bytes() for i in range(len(urls)))) + digest(bed.client("curl", "-sSk", *urls))


def sniproxy(bed):
    """Looks at the first bytes of a connection, and passes it on by the name in there."""
    need("sniproxy", "nginx", "curl", "wrk")
    names = files_of_nginx(bed)
    (bed.work / "sniproxy.conf").write_text(textwrap.dedent(f"""
        user root
        pidfile {bed.work}/sniproxy.pid
        listen 127.0.0.1:7305 {{
            proto http
            table web
            fallback 127.0.0.1:7005
        }}
        table web {{
            127.0.0.1 127.0.0.1:7005
        }}
    """))
    bed.server("sniproxy", "-f", "-c", bed.work / "sniproxy.conf", port=7305)
    return fetch_all(bed, 7305, names)


def files_of_nginx(bed):
    names = web_files(bed)
    bed.server("nginx", "-p", bed.work, "-e", "error.log", "-c", nginx_conf(bed, 7005), port=7005)
    return names


def through(bed, proxy, names):
    urls = [f"http://127.0.0.1:7005/{n}" for n in names * 8]
    many = [w for i, u in enumerate(urls) for w in ("-o", f"got{i}", u)]
    bed.client("curl", "-sS", "-x", proxy, "-Z", "--parallel-max", 12, *many)
    return digest(b"".join((bed.work / f"got{i}").read_bytes() for i in range(len(urls)))) + digest(bed.client("curl", "-sS", "-x", proxy, *urls))


PROGRAMS = [dante, shadowsocks, hitch, sniproxy]
