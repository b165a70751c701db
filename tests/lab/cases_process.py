"""fork, exec and spawned programs beside connections over RDMA; a listener that goes to a program without
the library."""
import json
import re
import signal
import time

from cases_programs import NGINX
from cases_streams import FEW, TRIES, burst_of
from guests import HERE, Failed
from lab import CUT, EID, KERNEL, MEND, PEER, add, all_smcr, case, payload, said

FORKING = f"/usr/bin/python3 {HERE}/forking.py"


def forking(lab, what, port, client, operation, *rest, connections=1):
    job = lab.a.start(f"exec {FORKING} {what} {lab.a.ip} {port}", **lab.env("smcr")).expect("serving", 30)
    try:
        with lab.traffic() as traffic:
            text = lab.client(client, f"{lab.a.ip} {port}", operation, *rest, PATIENCE=60).done(65)
        return text, traffic
    finally:
        job.kill()


@case
def accept_then_fork_kernel_client(lab):
    text, traffic = forking(lab, "fork", 5500, "kernel", "again", 4, 0.2)
    return traffic.went_over_rdma(payload(text), 4)


@case
def accept_then_fork_smcr_client(lab):
    text, traffic = forking(lab, "fork", 5501, "smcr", "again", 4, 0.2)
    return traffic.went_over_rdma(payload(text), 4)


def late_fork(client):
    """The server forks when the connection's handshake is about to begin, under way, or over."""
    def run(lab):
        text, traffic = forking(lab, "late", 5520, client, "again", 24, 0.1)
        return f"{said(text)}; {traffic.went_over_rdma(payload(text), 24)}"
    return run


add("accept then fork a little later, kernel client", late_fork("kernel"))
add("accept then fork a little later, smcr client", late_fork("smcr"))


def children_end(client, server, where, how):
    """Beside a connection that the process goes on with."""
    def run(lab):
        to = lab.server(server)
        with lab.traffic() as traffic:
            text = lab.client(client, to, "children", 9000, where, how, PATIENCE=60).done(65)
        return f"{said(text)}; {traffic.went_over_rdma(payload(text))}{all_smcr(text, client)}"
    return run


for pair in (("smcr", "kernel"), ("kernel", "smcr"), ("smcr", "smcr")):
    for where, kind in zip(("client", "server"), pair):
        for how in ("exits", "killed") if kind == "smcr" else ():
            add(f"{' -> '.join(pair)}: children of the {where} end ({how})", children_end(*pair, where, how))


def first_use(lab):
    """The program reads for the first time when the library begins the handshake by itself: neither is in the other's way."""
    job, seen = lab.a.start(f"exec {FORKING} around {lab.a.ip} 5533", **lab.env("smcr")).expect("serving", 30), []
    try:
        while not seen or seen[-1] < 100 - 2 * FEW:
            if len(seen) == TRIES:
                raise Failed(f"of 100 were on RDMA: {seen}")
            text, on_link, _ = burst_of(lab, f"{lab.a.ip} 5533", 100)
            seen.append(on_link)
    finally:
        job.kill()
    again, more = forking(lab, "around", 5534, "kernel", "again", 20, 0)
    return f"{said(text)}, on RDMA {seen[-1]} of 100; {said(again)}; {more.went_over_rdma(payload(again), 20)}{all_smcr(again, 'kernel')}"


add("a connection is first used when the library begins by itself", first_use)


def silent(guest, port):
    """What a program has said to this port gets lost; the handshake of TCP passes."""
    return guest.run(f"nft add rule inet lab cut tcp dport {port} tcp flags \\& psh == psh drop")


def client_forks_in_its_handshake(ends, stands):
    """The server does not answer the Proposal for longer than a client would wait with a fork: TCP, and nothing is reset. Nor where the
    parent ends meanwhile."""
    def run(lab):
        to, port = f"{lab.a.ip} 5530", 5530
        server = lab.a.start(f"exec {PEER} serve {to}", **lab.env("smcr")).expect("serving", 30)
        try:
            with lab.traffic() as traffic:
                silent(lab.a, port)
                client = lab.b.start(f"exec /usr/bin/python3 {HERE}/forks_early.py {to} 200000 {ends}", **lab.env("smcr", PATIENCE=60))
                time.sleep(1.5)
                server.guest.say(id=server.number, kill=int(signal.SIGSTOP))
                lab.a.run(MEND)
                client.expect("forked", 20)
                time.sleep(stands)
                server.guest.say(id=server.number, kill=int(signal.SIGCONT))
                client.expect("payload", 65)
                text = client.out
            if ends and "has ended: True" not in text:
                raise Failed(f"the parent was there: {client.tail()}")
            return f"{said(text)}; {traffic.went_over_tcp(payload(text))}"
        finally:
            lab.a.run(MEND)
            server.kill()
    return run


add("a client forks in its handshake with a silent server", client_forks_in_its_handshake("", 9))
add("a client forks in its handshake, and its parent exits", client_forks_in_its_handshake("exits", 9))
add("a client forks in its handshake, and its parent is killed", client_forks_in_its_handshake("killed", 2))


@case
def a_client_has_ended_when_a_server_that_stood_still_would_greet_it(lab):
    """It has waited for the greeting, has sent all over TCP and has ended: the server sees that, and no reset."""
    to, n, name = f"{lab.a.ip} 5538", 40_000, "gone"
    server = lab.a.start(f"exec {PEER} serve {to}", **lab.env("smcr")).expect("serving", 30)
    try:
        with lab.traffic() as traffic:
            server.guest.say(id=server.number, kill=int(signal.SIGSTOP))
            lab.client("smcr", to, "parting", n, name, PATIENCE=60).done(65)
            server.guest.say(id=server.number, kill=int(signal.SIGCONT))
            text = lab.client("smcr", to, "ends", name, PATIENCE=60).done(65)
        if not re.search(rf"\beof {n}$", said(text)):
            raise Failed(f"{said(text)} instead of {n} bytes and the end")
        return f"{said(text)}; {traffic.went_over_tcp(n)}"
    finally:
        server.kill()


@case
def a_client_ends_in_its_handshake_with_a_server_that_stands_still(lab):
    """It has said all; TCP would carry that after its end, however long the server takes."""
    to, n, name = f"{lab.a.ip} 5537", 40_000, "late"
    server = lab.a.start(f"exec {PEER} serve {to}", **lab.env("smcr")).expect("serving", 30)
    try:
        # It has opened its device: the greeting is no later than a client waits for it.
        lab.client("smcr", to, "echo", 1000, PATIENCE=40).done(45)
        with lab.traffic() as traffic:
            silent(lab.a, 5537)
            client = lab.client("smcr", to, "parting", n, name, PATIENCE=90).expect("ok ", 30)
            time.sleep(1)
            server.guest.say(id=server.number, kill=int(signal.SIGSTOP))
            lab.a.run(MEND)
            time.sleep(12)
            server.guest.say(id=server.number, kill=int(signal.SIGCONT))
            client.done(60)
            text = lab.client("smcr", to, "ends", name, PATIENCE=60).done(65)
        if not re.search(rf"\b{n}$", said(text)):
            raise Failed(f"{said(text)} instead of {n} bytes")
        return f"{said(text)}; {traffic}"
    except Failed as error:
        raise Failed(f"{error}; the server: {server.tail()}") from error
    finally:
        lab.a.run(MEND)
        server.kill()


def server_forks(what, port, hinder, client, how=""):
    """The child serves the client over TCP, when what hinders the handshake has gone or its parent has seen the end of it."""
    def run(lab):
        job = lab.a.start(f"exec {FORKING} {what} {lab.a.ip} {port} {how}", **lab.env("smcr")).expect("serving", 30)
        try:
            with lab.traffic() as traffic:
                mends = hinder(lab)
                asks = lab.client(client, f"{lab.a.ip} {port}", "again", 1, 0, PATIENCE=60)
                job.expect("forked", 20)
                if mends:
                    lab.a.run(MEND)
                text = asks.done(65)
            return f"{said(text)}; {traffic.went_over_tcp(payload(text))}"
        finally:
            lab.a.run(MEND)
            job.kill()
    return run


def no_proposal(lab):
    """The client's Proposal comes when the server has forked."""
    silent(lab.a, 5531)
    return True


def no_link(lab):
    """There is a ring by the time of the fork, and no link comes up: only the parent can end that, and waits for it."""
    lab.a.run(CUT)
    return False


for client in ("kernel", "smcr"):
    for words, what, how in (("", "begun", ""), (" and ends", "heir", ""), (" and becomes another program", "heir", "execs")):
        add(f"a server forks in its handshake{words}, {client} client", server_forks(what, 5531, no_proposal, client, how))
    for words, how in (("ends", ""), ("becomes another program", "execs")):
        add(f"a server forks before its link is up and {words}, {client} client", server_forks("heir", 5539, no_link, client, how))


@case
def forked_children_end_connections_on_TCP_and_their_memory_is_free(lab):
    """80 handshakes that are declined, each for a child: what they had would fill the memory that is allowed."""
    job = lab.a.start(f"exec {FORKING} begun {lab.a.ip} 5532", **lab.env("smcr", SMCR_MAX_MEMORY="4")).expect("serving", 30)
    try:
        lab.b.run(f"{KERNEL} ueid-del {EID} && {KERNEL} ueid-add ANOTHER")
        try:
            with lab.traffic() as traffic:
                text = lab.client("kernel", f"{lab.a.ip} 5532", "again", 80, 0, PATIENCE=100).done(105)
            declined = traffic.went_over_tcp(payload(text))
        finally:
            lab.b.run(f"{KERNEL} ueid-del ANOTHER && {KERNEL} ueid-add {EID}")
        with lab.traffic() as traffic:
            text = lab.client("kernel", f"{lab.a.ip} 5532", "again", 2, 0.2, PATIENCE=60).done(65)
        return f"{declined}; then {traffic.went_over_rdma(payload(text), 2)}"
    finally:
        job.kill()


def forked_child_killed(client):
    """A child that uses a connection over its parent's link is killed: the client sees an end, as over TCP."""
    def run(lab):
        job = lab.a.start(f"exec {FORKING} dies {lab.a.ip} 5521", **lab.env("smcr")).expect("serving", 30)
        try:
            with lab.traffic() as traffic:
                text = lab.client(client, f"{lab.a.ip} 5521", "until", PATIENCE=60).done(65)
            if traffic.rdma < 20000:
                raise Failed(f"not over RoCE: {traffic}")
            return f"{said(text)}; {traffic}"
        finally:
            job.kill()
    return run


add("a forked child with its parent's link is killed, kernel client", forked_child_killed("kernel"))
add("a forked child with its parent's link is killed, smcr client", forked_child_killed("smcr"))


def outlived(n, how, seconds=0):
    """The child of a server goes on with a connection over its parent's link when that ends: over TCP, and nothing is lost. Between two
    rounds, or `seconds` after the beginning of a stream both ways."""
    def run(lab):
        job = lab.a.start(f"exec {FORKING} outlived {lab.a.ip} 5536 {how}", **lab.env("smcr")).expect("serving", 30)
        try:
            with lab.traffic() as traffic:
                client = lab.client("smcr", f"{lab.a.ip} 5536", *(("one_stream", n) if seconds else ("twice", n)), PATIENCE=90)
                job.expect("pid", 30)
                if not seconds:
                    client.expect("once", 60)
                time.sleep(seconds)
                lab.a.say(id=job.number, input="go\n")
                lab.a.run(f"while kill -0 {re.search('pid ([0-9]+)', job.out)[1]}; do sleep 0.1; done 2>/dev/null", 30)
                if not seconds:
                    client.guest.say(id=client.number, input="go\n")
                    client.expect("both", 60)
                    client.guest.say(id=client.number, input="go\n")
                text = client.done(95)
            least = 200_000 if seconds else 2 * n
            if min(traffic.rdma, traffic.tcp) < least or traffic.rdma + traffic.tcp < payload(text):
                raise Failed(f"not by the link, then by TCP: {traffic}")
            return f"{said(text)}; {traffic}"
        finally:
            job.kill()
    return run


for how, does in (("exits", "exits"), ("exits closes", "has closed it and exits"), ("execs closes", "becomes another program")):
    add(f"a forked child goes on when its parent with the link {does}", outlived(300_000, how))
add("a forked child goes on when its parent with the link exits under load", outlived(24 << 20, "exits", 2))


@case
def programs_started_beside_a_connection_do_not_disturb_it(lab):
    text, traffic = forking(lab, "system", 5502, "smcr", "echo", 300000)
    return traffic.went_over_rdma(payload(text))


@case
def exec_with_a_connection_to_a_kernel_resets_it(lab):
    job = lab.a.start(f"exec {FORKING} exec {lab.a.ip} 5503", **lab.env("smcr")).expect("serving", 30)
    try:
        client = lab.client("kernel", f"{lab.a.ip} 5503", "unread", PATIENCE=60).expect("diag", 30)
        lab.a.say(id=job.number, input="go\n")
        # The reset may come while the client still sends.
        client.wait(65)
        how = re.findall(r"ECONN\w+|EPIPE|ConnectionResetError|BrokenPipeError", client.out)
        if client.rc is None or not how:
            raise Failed(client.tail())
        return how[-1] + all_smcr(client.out, "kernel")
    finally:
        job.kill()


@case
def a_connection_is_reset_in_its_handshake(lab):
    """The program hears of it as over TCP: it is no end."""
    job = lab.a.start(f"exec {PEER} slowly {lab.a.ip} 5546 60", **lab.env("smcr")).expect("serving", 30)
    try:
        client = lab.client("smcr", f"{lab.a.ip} 5546", "unread", PATIENCE=60)
        # Nobody accepts it, so nobody greets.
        lab.a.run("until ss -Hltn sport = :5546 | awk '$2 > 0' | grep -q .; do sleep 0.1; done; ss -HK state established sport = :5546", 30)
        client.wait(65)
        if "ConnectionResetError" not in client.out:
            raise Failed(f"no reset: {client.tail()}")
        return client.out.strip().splitlines()[-1]
    finally:
        job.kill()


@case
def clients_of_one_host_with_libsmcr_and_the_kernel_s_have_a_group_each(lab):
    """The kernel does not name itself when it proposes, and both have one GID."""
    job = lab.a.start(f"exec {PEER} serve {lab.a.ip} 5547", **lab.env("smcr")).expect("serving", 30)
    to = f"{lab.a.ip} 5547"
    def groups():
        return {g["qpn"] for g in json.loads(lab.a.run("smcrctl linkgroup --json"))["linkgroups"]}
    others = groups()
    try:
        held = lab.client("smcr", to, "pings", 1000, 1000, "stops", PATIENCE=200)
        held.expect("up", 30)
        end = time.monotonic() + 20
        while not (first := groups() - others) and time.monotonic() < end:
            time.sleep(0.2)
        with lab.traffic() as traffic:
            text = lab.client("kernel", to, "again", 3, 0, PATIENCE=60).done(65)
        shown = all_smcr(text, "kernel")
        both = groups() - others
        if len(first) != 1 or len(both) != 2 or not first < both or held.rc is not None:
            raise Failed(f"queue pairs {first}, then {both}; {held.tail()}")
        return f"{said(text)}; {traffic.went_over_rdma(payload(text), 3)}{shown}; queue pairs {first}, then {both}"
    finally:
        job.kill()


def waits_in_the_queue(what, port, kind):
    """The handshake of a connection has shown the option, and its listener goes to a program that may be without the library before
    the connection is accepted: what was shown holds."""
    def run(lab):
        job = lab.a.start(f"exec {FORKING} {what} {lab.a.ip} {port}", **lab.env("smcr")).expect("serving", 30)
        try:
            with lab.traffic() as traffic:
                client = lab.client(kind, f"{lab.a.ip} {port}", "echo", 100_000, PATIENCE=60)
                lab.a.run(f"until ss -Hltn sport = :{port} | awk '$2 > 0' | grep -q .; do sleep 0.1; done", 30)
                lab.a.say(id=job.number, input="go\n")
                text = client.done(65)
            return f"{said(text)}; {traffic.went_over_rdma(payload(text))}"
        except Failed as error:
            raise Failed(f"{error}; the server: {job.tail()}") from error
        finally:
            job.kill()
    return run


for number, (what, does) in enumerate((("gives", "goes to another program"), ("again", "goes through an exec"))):
    for more, kind in enumerate(("kernel", "smcr")):
        add(f"a connection waits while its listener {does}, {kind} client", waits_in_the_queue(what, 5540 + 2 * number + more, kind))


@case
def nginx_hands_its_listener_to_a_master_without_the_library(lab):
    """USR2 under connect load: nginx gives the new master its sockets and none of the environment."""
    lab.a.run("mkdir -p /run/lab/www; head -c 20000 /dev/zero >/run/lab/www/a; chmod -R a+rX /run/lab/www; "
              f"cat >/run/lab/up.conf <<'EOF'{NGINX.format(ip=lab.a.ip, port=8081, root='www', workers=1).replace('daemon off;', '').replace('ng.pid', 'up.pid')}EOF")
    lab.a.run(">/run/lab/ng.log; /usr/sbin/nginx -c /run/lab/up.conf", **lab.env("smcr"))
    pid = lab.a.run("cat /run/lab/up.pid").strip()
    try:
        load = [lab.b.start(f"exec /usr/bin/python3 {HERE}/connects.py {lab.a.ip} 8081 8", **lab.env(kind)) for kind in ("smcr", "kernel")]
        with lab.traffic() as before:
            time.sleep(3)
        # The old listener shows the option, and its answers go by RDMA to either client: what comes later is what the hand-over does.
        if before.rdma < 200_000 or before.tcp > before.rdma // 3:
            raise Failed(f"not over RDMA before the hand-over: {before}")
        lab.a.run(f"kill -USR2 {pid}")
        time.sleep(2.5)
        new = lab.a.run("cat /run/lab/up.pid").strip()
        if new == pid:
            raise Failed("no new master: " + lab.a.run("tail -3 /run/lab/ng.log"))
        has = lab.a.run(f"grep -c libsmcr /proc/{new}/maps || true").strip()
        lab.a.run(f"kill -QUIT {pid}")
        results = [job.done(40).strip().splitlines()[-1] for job in load]
        with lab.traffic() as traffic:
            lab.b.run(f"exec /usr/bin/python3 {HERE}/connects.py {lab.a.ip} 8081 2", **lab.env("smcr"))
        if has != "0" or any(", 0 wrong," not in r for r in results):
            log = lab.a.run("grep -av 'closed keepalive' /run/lab/ng.log | tail -40")
            raise Failed(f"library in the new master: {has}; {results}; nginx says\n{log}")
        return f"before: {before}; {'; '.join(results)}; after it: {traffic.went_over_tcp(20000)}"
    finally:
        lab.a.run("for f in /run/lab/up.pid /run/lab/up.pid.oldbin; do [ -e $f ] && kill $(cat $f); done; true")
