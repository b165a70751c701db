"""Daemons of the internet's older protocols, which fork, drop rights, sandbox themselves and hand connections from process to
process. Each job is written as those of programs.py. Called by run.py, inside a `Bed`.
"""

import textwrap

from bed import digest, need
from programs import MIB, ready


def vsftpd(bed):
    """A process for each session and one beside it with the rights, both in a seccomp sandbox; data by sendfile."""
    need("vsftpd", "lftp")
    files = bed.files("ftp", 6)
    (bed.work / "empty").mkdir()
    (bed.work / "v.conf").write_text(textwrap.dedent(f"""
        listen=YES
        listen_address=127.0.0.1
        listen_port=7071
        background=NO
        anonymous_enable=YES
        no_anon_password=YES
        anon_root={files}
        secure_chroot_dir={bed.work}/empty
        write_enable=YES
        anon_upload_enable=YES
        anon_umask=022
        pasv_min_port=7100
        pasv_max_port=7400
    """))
    (files / "in").mkdir(mode=0o777)
    (files / "in").chmod(0o777)
    bed.server("vsftpd", bed.work / "v.conf", port=7071)
    bed.file("up", 8 * MIB)
    bed.client("lftp", "-e", "set net:max-retries 3; mirror -P 3 . got; put -O in up; ls; quit", "ftp://127.0.0.1:7071")
    return digest(b"".join((bed.work / f"got/f{i}").read_bytes() for i in range(6)) + (files / "in/up").read_bytes())


def openldap(bed):
    need("/usr/sbin/slapd", "ldapadd", "ldapsearch")
    (bed.work / "db").mkdir()
    (bed.work / "slapd.conf").write_text(textwrap.dedent(f"""
        include /etc/ldap/schema/core.schema
        include /etc/ldap/schema/cosine.schema
        include /etc/ldap/schema/inetorgperson.schema
        modulepath /usr/lib/ldap
        moduleload back_mdb
        pidfile {bed.work}/slapd.pid
        database mdb
        suffix "dc=test"
        rootdn "cn=admin,dc=test"
        rootpw secret
        directory {bed.work}/db
        maxsize 100000000
    """))
    entries = "dn: dc=test\nobjectClass: dcObject\nobjectClass: organization\ndc: test\no: test\n\n" + "".join(
        f"dn: cn=u{i},dc=test\nobjectClass: inetOrgPerson\ncn: u{i}\nsn: s{i}\ndescription: {'d%d' % i * 50}\n\n" for i in range(1500))
    (bed.work / "entries").write_text(entries)
    bed.server("/usr/sbin/slapd", "-d", "0", "-h", "ldap://127.0.0.1:7072", "-f", bed.work / "slapd.conf", port=7072)
    bed.client("ldapadd", "-x", "-H", "ldap://127.0.0.1:7072", "-D", "cn=admin,dc=test", "-w", "secret", "-f", bed.work / "entries")
    every = bed.client("sh", "-ec", textwrap.dedent("""
        for n in 1 2 3 4; do
            ldapsearch -LLL -x -H ldap://127.0.0.1:7072 -D cn=admin,dc=test -w secret -b dc=test -E pr=100/noprompt >o$n & pids="$pids $!"
        done
        for p in $pids; do wait $p; done
        cat o1 o2 o3 o4
    """))
    return digest(every)


def bind9(bed):
    """Queries by TCP and the transfer of a zone."""
    need("named", "dig")
    records = "".join(f"h{i} IN TXT \"{'t%d' % i * 20}\"\n" for i in range(20000))
    (bed.work / "zone").write_text(f"$TTL 60\n@ IN SOA ns.test. root.test. 1 60 60 60 60\n@ IN NS ns\nns IN A 127.0.0.1\n{records}")
    (bed.work / "named.conf").write_text(textwrap.dedent(f"""
        options {{ directory "{bed.work}"; listen-on port 7073 {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; recursion no; pid-file none;
                   session-keyfile none; allow-transfer {{ any; }}; dnssec-validation no; }};
        controls {{ }};
        zone "test" {{ type primary; file "zone"; }};
    """))
    bed.server("named", "-g", "-n", "2", "-c", bed.work / "named.conf", port=7073)
    ready(bed, "sh", "-c", "dig +tcp -p 7073 @127.0.0.1 test SOA +short | grep -q root.test")
    (bed.work / "names").write_text("".join(f"h{i * 7}.test TXT\n" for i in range(2000)))
    transfer = bed.client("dig", "+tcp", "-p", "7073", "@127.0.0.1", "test", "AXFR", "+nocmd", "+nostats")
    asked = bed.client("dig", "+tcp", "+keepopen", "-p", "7073", "@127.0.0.1", "+short", "-f", bed.work / "names")
    lines = sorted(line for line in transfer.splitlines() if line and not line.startswith(b";"))
    return digest(b"\n".join(lines) + asked)


def dovecot(bed):
    """A login process takes the connection and hands it to the one that reads the mail."""
    need("/usr/sbin/dovecot")
    (bed.work / "run").mkdir()
    (bed.work / "mail").mkdir(mode=0o777)
    (bed.work / "mail").chmod(0o777)
    (bed.work / "users").write_text(f"u:{{PLAIN}}p:65534:65534::{bed.work}/mail\n")
    (bed.work / "d.conf").write_text(textwrap.dedent(f"""
        base_dir = {bed.work}/run
        log_path = /dev/stderr
        protocols = imap
        ssl = no
        disable_plaintext_auth = no
        import_environment = $import_environment LD_PRELOAD SMCR_STRICT
        listen = 127.0.0.1
        default_login_user = nobody
        default_internal_user = nobody
        default_internal_group = nogroup
        first_valid_uid = 1
        mail_location = mbox:{bed.work}/mail:INBOX={bed.work}/mail/inbox
        service imap-login {{
            inet_listener imap {{
                port = 7074
            }}
            inet_listener imaps {{
                port = 0
            }}
        }}
        passdb {{
            driver = passwd-file
            args = {bed.work}/users
        }}
        userdb {{
            driver = passwd-file
            args = {bed.work}/users
        }}
    """))
    bed.server("/usr/sbin/dovecot", "-F", "-c", bed.work / "d.conf", port=7074)
    return bed.client("/usr/bin/python3", "-c", textwrap.dedent("""
        import hashlib, imaplib
        h = hashlib.sha256()
        for session in range(3):
            c = imaplib.IMAP4("127.0.0.1", 7074)
            c.login("u", "p")
            c.select("INBOX")
            for i in range(100):
                text = b"Subject: %d\\r\\n\\r\\n" % i + (b"line %d\\r\\n" % i) * (i * 20)
                assert c.append("INBOX", None, None, text)[0] == "OK"
            c.noop()
            for i in range(1, 101):
                h.update(c.fetch(str(session * 100 + i), "(BODY.PEEK[TEXT])")[1][0][1])
            c.logout()
        print(h.hexdigest())
    """))


def distcc(bed):
    """A compiler behind a connection as standard input of nobody: forked workers, sendfile."""
    need("distccd", "distcc", "cc")
    bed.server("distccd", "--no-detach", "--daemon", "--allow", "127.0.0.1", "--listen", "127.0.0.1", "--port", "7075", "--jobs", "2",
               "--log-stderr", "--enable-tcp-insecure", "--user", "nobody", port=7075)
    for i in range(6):
        (bed.work / f"s{i}.c").write_text("".join(f"int f{i}_{n}(int x) {{ return x * {n}; }}\n" for n in range(4000)))
    (bed.work / ".distcc").mkdir()
    env = {"DISTCC_HOSTS": "127.0.0.1:7075", "DISTCC_FALLBACK": "0", "DISTCC_DIR": str(bed.work / ".distcc"), "PATH": "/usr/bin:/bin", "TMPDIR": str(bed.work)}
    bed.client("sh", "-ec", "for i in 0 1 2 3 4 5; do distcc gcc -O0 -c s$i.c -o s$i.o & p=\"$p $!\"; done; for x in $p; do wait $x; done", env=env)
    return digest(b"".join((bed.work / f"s{i}.o").read_bytes() for i in range(6)))


def sockperf(bed):
    need("sockperf")
    bed.server("sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", "7076", port=7076)
    # At a rate: it counts 600,000 messages a second, and gives up ("_seqN > m_maxSequenceNo") where more are answered.
    said = bed.client("sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1", "-p", "7076", "-t", "3", "-m", "200", "--mps", "200000",
                      "--data-integrity").decode()
    good = "# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0" in said
    return "all in order" if good else said[-300:]


PROGRAMS = [vsftpd, openldap, bind9, dovecot, distcc, sockperf]
