"""The share of its TCP bytes that each row of the scoreboard has to leave off TCP, in per cent: half of what it is known to, or less where one
run's share is far from the next one's. Below its floor a row has fallen back (run.py says so, and exits 1). A row where hardly anything leaves TCP
has a reason instead: those of programs are in report.WHY, those of suites here, from where report.py writes them into the scoreboard.
"""

PROGRAMS = {
    "redis": 50, "memcached": 50, "nginx": 50, "apache_prefork": 50, "haproxy_nginx": 50, "lighttpd": 50, "squid_nginx": 47, "node_http": 50,
    "java_http": 50, "postgresql": 50, "mariadb": 35, "openssh": 48, "rsync_daemon": 50, "iperf3": 50, "openssl_tls": 44, "python_http": 46,
    "socat_tcp": 30, "varnish_nginx": 50, "tinyproxy_nginx": 17, "stunnel_redis": 50, "nutcracker_redis": 50, "pgbouncer_postgresql": 50,
    "samba": 50, "mosquitto": 50, "rabbitmq": 50, "zookeeper": 50, "kafka": 46, "openldap": 47, "bind9": 47, "sockperf": 50, "gunicorn": 48,
    "uwsgi": 25, "php_fpm": 46, "puma": 49, "tomcat": 49, "nghttpd": 44, "h2o": 50, "trafficserver": 50, "openmpi": 50, "nbdkit": 50,
    "rsyslog": 35, "postfix_mail": 48, "ffmpeg": 50, "iperf2": 38, "nuttcp": 44, "qperf": 50, "asio": 46, "beanstalkd": 50, "gearman": 31,
    "erlang": 50, "redis_cluster": 45, "postgresql_replication": 22, "mariadb_replication": 23, "glusterfs": 50, "apache_event": 50,
    "apache_worker": 50, "redis_threads": 50, "mariadb_pool": 40, "unbound": 50, "shadowsocks": 42, "hitch": 37, "sniproxy": 49, "nim": 46,
    "mono": 49, "tarantool": 50, "haskell": 50, "pgbouncer_takeover": 15, "node_cluster": 50, "dante": 30, "nginx_upgrade": 14, "haproxy_reload": 46, "socket_activation": 45, "coturn": 29,
    "nfs_ganesha": 36, "tgt": 50, "qemu_nbd": 47, "thrift": 28, "ice": 47, "proton": 50, "grpc_calls": 50, "zeromq": 40, "gevent_echo": 50,
    "uvloop_echo": 50, "trio_echo": 50, "twisted_echo": 50, "tornado_websocket": 50, "aiohttp_posts": 50,
}
# Why each of them stays on TCP is in report.WHY.
PROGRAMS_ON_TCP = {"git_daemon", "inetd", "vsftpd", "dovecot", "distcc", "gdbserver", "kamailio"}

SUITES = {
    "CPython test_socket": 22, "CPython test_asynchat": 32, "CPython test_asyncio": 39, "CPython test_ssl": 38, "CPython test_ftplib": 25,
    "CPython test_httplib": 50, "CPython test_smtplib": 9, "CPython test_poplib": 23, "CPython test_imaplib": 23, "CPython test_nntplib": 9,
    "CPython test_os": 44, "redis unit/auth": 42, "redis unit/type/string": 50, "redis unit/type/list": 49, "redis unit/type/hash": 50,
    "redis unit/type/stream": 50, "redis unit/protocol": 41, "redis unit/pubsub": 23, "redis unit/multi": 41, "redis unit/obuf-limits": 50,
    "redis unit/querybuf": 50, "redis unit/networking": 31, "redis unit/other": 40, "redis unit/scripting": 44, "redis unit/client-eviction": 40,
    "redis integration/replication": 48, "redis integration/redis-cli": 50, "redis integration/redis-benchmark": 42, "redis integration/aof": 50,
    "redis unit/acl": 39, "redis unit/functions": 44, "redis unit/cluster-scripting": 40, "redis unit/introspection-2": 47,
    "redis unit/cluster/misc": 41, "redis unit/cluster/links": 39, "redis integration/psync2": 49, "redis integration/psync2-reg": 48, "redis integration/psync2-pingoff": 45,
    "redis unit/pendingquerybuf": 50, "redis unit/tracking": 42, "redis unit/cluster": 39, "redis unit/pubsubshard": 23, "redis integration/failover": 47,
    "redis integration/replication-2": 50, "redis integration/psync2-master-restart": 49, "redis integration/shutdown": 30,
    "redis integration/replication-4": 49, "redis integration/block-repl": 42, "redis integration/replication-3": 48, "redis integration/logging": 6, "redis unit/shutdown": 34, "redis unit/introspection": 37, "libuv": 31, "libuv-newest": 41, "libevent": 39, "libzmq": 50, "nng": 42,
    "Erlang gen_tcp_echo": 47, "Erlang gen_tcp_api": 48, "Erlang sendfile": 49, "gVisor loopback": 48, "gVisor streams": 46,
    "tornado": 46, "ruby socket, net, io, drb": 29, "Rust mio": 48, "Rust tokio": 34, "Rust hyper": 21, "Tcl": 12, "GLib": 27, "Node net": 49,
    "Node https": 41, "twisted.internet.test": 11, "twisted.web.test": 24, "twisted test_tcp": 50, "twisted test_ssl": 24, "twisted test_ftp": 12, "twisted.words.test": 40, "twisted.mail.test": 21, "twisted.conch.test": 32, "gevent": 18,
    "nginx [a-g]": 16, "nginx [h-l]": 14, "nginx [m-r]": 22, "nginx [s-z]": 10, "HAProxy": 13, "memcached t": 33, "curl 1 to 700": 29,
    "curl 701 to 1500": 18, "curl 1501 to 4000": 20,
}
NONE = "no TCP natively: files, pipes and other sockets by the same calls"
BRIEF = "connections of one request or one message, over before both ends are proved"
LITTLE = "0.2 to 11 KB of TCP in all, natively too; proofs and doorbells may make it more"
BURST = "one send of 16 MB on a new connection, which is the kernel's to its end or moves on its way, by chance (from none to all of it)"
FULL = "connections of 2 MB each, sent at once by one end, which is through before the other one has answered for itself"
PAST = "system calls past libc, which no library in LD_PRELOAD sees"
SUITES_ON_TCP = {
    NONE: ["CPython test_select", "CPython test_selectors", "CPython test_poll", "CPython test_subprocess", "CPython test_urllib2", "CPython test_smtpd", "CPython test_timeout", "CPython test_signal",
           "CPython test_threadsignals", "CPython test_fcntl", "CPython test_posix", "CPython test_fork1", "CPython test_asyncgen", "stress-ng --poll", "stress-ng --sendfile",
           "stress-ng --sockfd", "LTP descriptors", "LTP fcntl", "twisted.protocols.test", "twisted test_internet",
           "twisted test_process", "twisted test_unix", "gVisor waiting"],
    BRIEF: ["CPython test_logging", "CPython test_xmlrpc", "CPython test_docxmlrpc", "CPython test_httpservers", "CPython test_urllib2_localnet", "CPython test_asyncore",
            "PHP sockets, streams, http", "stress-ng --epoll", "stress-ng --sockmany", "stress-ng --sockabuse", "LTP sockets", "LTP waiting", "socat",
            "libmicrohttpd microhttpd", "libmicrohttpd testcurl", "twisted test_sslverify"],
    LITTLE: ["perl Socket", "perl libnet", "perl IO-Socket-IP", "perl IO", "APR", "CPython test_epoll", "CPython test_telnetlib",
             "CPython test_robotparser", "CPython test_eintr", "CPython test_urllib", "redis unit/limits", "Node cluster", "twisted test_tcp_internals", "twisted test_protocols"],
    BURST: ["CPython test_socketserver", "CPython test_wsgiref"],
    FULL: ["stress-ng --sock"],
    PAST: ["Go net, dynamic", "Go net, static", "Rust async-io"],
}


def reason(name):
    """Why a suite may stay on TCP, or None."""
    return next((why for why, names in SUITES_ON_TCP.items() if name in names), None)


def floor(kind, name):
    """In per cent; 0 where it may stay on TCP, None where nothing is known of the row."""
    if kind == "programs":
        return 0 if name in PROGRAMS_ON_TCP else PROGRAMS.get(name)
    return 0 if reason(name) else SUITES.get(name)


def short(kind, row, measure):
    """What to say of a row below its floor, or None. `measure` runs it again: a share that is low once in three times is the machine's."""
    least = floor(kind, row["name"])
    if not least:
        return None
    for attempt in range(3):
        if row["off"] is not None and 100 * row["off"] >= least:
            return None
        if attempt < 2:
            again = measure()
            row["off"] = max((share for share in (row["off"], again) if share is not None), default=None)
    off = "no TCP natively" if row["off"] is None else f"{100 * row['off']:.1f} % off TCP"
    return f"FELL BACK, {off}, at least {least} % should be"
