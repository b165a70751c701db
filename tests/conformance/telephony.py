"""SIP and TURN: calls through servers that hand each connection from process to process, or from thread to thread. Jobs as in programs.py.
Called by run.py, inside a `Bed`.
"""

import re
import textwrap

from bed import need


def kamailio(bed):
    """One process takes the connections and gives each, when something comes, to a worker by SCM_RIGHTS, which sends it back when it is idle."""
    need("/usr/sbin/kamailio", "sipp")
    (bed.work / "k.cfg").write_text(textwrap.dedent("""
        debug=-1
        log_stderror=yes
        children=2
        tcp_children=3
        listen=tcp:127.0.0.1:7510
        disable_tcp=no
        tcp_connection_lifetime=60
        tcp_max_connections=4096
        mpath="/usr/lib/x86_64-linux-gnu/kamailio/modules/"
        loadmodule "tm.so"
        loadmodule "sl.so"
        loadmodule "pv.so"
        loadmodule "textops.so"
        request_route {
            $du = "sip:127.0.0.1:7511;transport=tcp";
            t_relay();
        }
    """))
    bed.server("/usr/sbin/kamailio", "-DD", "-E", "-m", 64, "-M", 8, "-f", bed.work / "k.cfg", "-w", bed.work, "-P", bed.work / "pid", port=7510)
    bed.server("sipp", "-sn", "uas", "-i", "127.0.0.1", "-p", 7511, "-t", "t1", "-nostdin", env={"TERM": "xterm"})
    bed.wait_for(7511)
    said = []
    for way, calls in (("t1", 3000), ("tn", 600)):
        text = bed.client("sipp", "-sn", "uac", "-i", "127.0.0.1", "-p", 7512, "-t", way, "-max_socket", 900, "-m", calls, "-r", 400, "-l", 200, "-d", 100,
                          "-nostdin", "-timeout", "60s", "127.0.0.1:7510", env={"TERM": "xterm"}, check=False).decode(errors="replace")
        said += [n.split()[-1] for n in re.findall(r"(?:Successful call|Failed call) .*", text)[-2:]]
    return " ".join(said)


def coturn(bed):
    """TURN with TCP towards clients and peers: one thread listens, others serve what it takes."""
    need("/usr/bin/turnserver", "turnutils_uclient", "turnutils_peer")
    bed.server("/usr/bin/turnserver", "-n", "-L", "127.0.0.1", "-E", "127.0.0.1", "-p", 7513, "--no-tls", "--no-dtls", "-m", 3, "-a", "-u", "u:p", "-r", "r",
               "--allow-loopback-peers", "--cli-password=x", "--no-cli", "--log-file=stdout", "--pidfile", bed.work / "pid", port=7513)
    bed.server("turnutils_peer", "-L", "127.0.0.1", "-p", 7514)
    said = []
    for way in (["-t"], ["-t", "-T"]):
        text = bed.client("turnutils_uclient", *way, "-u", "u", "-w", "p", "-e", "127.0.0.1", "-r", 7514, "-p", 7513, "-n", 300, "-m", 12, "-l", 900, "-c",
                          "127.0.0.1", check=False).decode(errors="replace")
        counts = re.findall(r"tot_send_msgs=(\d+), tot_recv_msgs=(\d+)", text)
        if not counts:
            raise RuntimeError(text.strip()[-200:])
        sent, got = map(int, counts[-1])
        said.append(f"{sent} {got > 0.98 * sent}")  # the way to the peer is UDP, of which a busy machine loses some
    return " ".join(said)


PROGRAMS = [kamailio, coturn]
