"""Two RDMA devices on each host: a link group has two links, connections are spread over both, and one that dies takes nothing
with it. Seen by the counters of IP for each network, and by what smcrctl shows."""
import contextlib
import json
import re
import time

from guests import SECOND, Failed
from lab import MEND, add, all_smcr, payload, said

def cut(network):
    """What arrives over RoCE on this network is lost."""
    return f"nft add rule inet lab cut iifname eth{network} udp dport 4791 drop"


@contextlib.contextmanager
def two_devices(lab):
    lab.restart()
    for guest in (lab.a, lab.b):
        guest.run("rdma link add rxe1 type rxe netdev eth1")
    try:
        yield
    finally:
        lab.restart()
        for guest in (lab.a, lab.b):
            guest.run(f"{MEND}; ip link set eth1 up; ip link set eth0 up; [ ! -e /sys/class/infiniband/rxe1 ] || rdma link delete rxe1")


def links(guest):
    """Link groups of a guest's processes: the links of each."""
    groups = {}
    for row in json.loads(guest.run("smcrctl linkgroup --json"))["linkgroups"]:
        groups.setdefault((row["pid"], row["id"]), []).append(row)
    return list(groups.values())


def wait_for_links(lab, wanted, seconds=25):
    """Waits until each group has so many links, at both ends."""
    end = time.monotonic() + seconds
    while True:
        seen = [links(guest) for guest in (lab.a, lab.b)]
        if all(s and all(len([r for r in g if r["type"] != "NONE"]) == wanted for g in s) for s in seen):
            return seen
        if time.monotonic() > end:
            raise Failed(f"not {wanted} links: {seen}")
        time.sleep(0.3)


def carrying(guest):
    """Devices and connections of the links that carry data: one that is tried again and does not come up is none."""
    return [[(row["device"], row["connections"]) for row in group if row["type"] != "NONE"] for group in links(guest)]


def on_tcp(guest):
    """Why connections have left their links altogether, where they have, and what its network cards have counted: an error that soft RoCE
    has made by itself shows there."""
    counted = "cd /sys/class/infiniband; for f in rxe*/ports/1/hw_counters/*; do read -r n <$f; [ $n = 0 ] || echo $f $n; done | sed 's|/ports/1/hw_counters/| |'"
    return guest.run(f"smcrctl sock --mode tcp | tail -3; {counted}")


class Networks:
    """Bytes of RoCE on each of the two networks."""

    def __init__(self, lab):
        self.traffic = lab.traffic()

    def __enter__(self):
        self.traffic.__enter__()
        return self

    def __exit__(self, kind, *rest):
        self.traffic.__exit__(kind, *rest)
        if not kind:
            now = self.traffic._now()
            self.each = [now[k] - self.traffic.before[k] for k in ("roce0", "roce1")]

    def __str__(self):
        return f"RoCE {self.each[0]:,} B on eth0 and {self.each[1]:,} B on eth1, TCP {self.traffic.tcp:,} B"


def goes_over_both(lab, first, more):
    """The client `first` (`spread`) opens so many more connections, one after the other, and uses them: over both links."""
    with Networks(lab) as networks:
        first.guest.say(id=first.number, input="go\n")
        first.expect("opened", 60)
        each, why = sorted(r["connections"] for r in links(lab.b)[0]), on_tcp(lab.b)
        first.guest.say(id=first.number, input="go\n")
        text = first.done(95)
    if each[0] < more // 2 - 1:
        raise Failed(f"connections on the links: {each}; on TCP: {why}")
    total = payload(text)
    if min(networks.each) < total // 3:
        raise Failed(f"payload {total:,} B is not on both: {networks}")
    if networks.traffic.tcp > 6000 + 2500 * (more + 1) + total // 100:
        raise Failed(f"too much on TCP: {networks}")
    return f"connections {each}; payload {total:,} B: {networks}"


def both_up(lab):
    with two_devices(lab):
        to = lab.server("smcr")
        first = lab.client("smcr", to, "spread", 1, 40, 100_000, PATIENCE=90).expect("up", 40)
        seen = wait_for_links(lab, 2)
        names = sorted(f"{r['device']} link {r['link']}" for r in seen[1][0])
        return f"{', '.join(names)}; {goes_over_both(lab, first, 40)}"


add("two devices: both links up, connections spread", both_up)


def several_addresses(lab):
    """The interface below the second device has another address before the one that both networks have in common."""
    def give(*addresses):
        for guest, number in ((lab.a, 1), (lab.b, 2)):
            guest.run("ip addr flush dev eth1; " + "; ".join(f"ip addr add {a.format(number, SECOND[guest.role])}/24 dev eth1" for a in addresses))
    give("192.168.6{0}.1", "{1}")
    try:
        return both_up(lab)
    finally:
        give("{1}")


add("two devices: the second has several addresses", several_addresses)


def loaded(lab, n, idle, patience):
    """A client with idle connections, a half closed one and two that carry a stream each way, spread over both links."""
    to = lab.server("smcr")
    job = lab.client("smcr", to, "survive", n, idle, "waits", PATIENCE=patience).expect("up", 60)
    wait_for_links(lab, 2)
    job.guest.say(id=job.number, input="go\n")
    job.expect("spread", 60)
    spread, end = [], time.monotonic() + 20
    # The half-closed one, two streams each way and the idle ones; on a busy host the last may still be on its way.
    while sum(spread) < idle + 4 and time.monotonic() < end:
        time.sleep(0.3)
        spread = sorted(r["connections"] for r in links(lab.b)[0])
    if spread[0] < idle // 2:
        raise Failed(f"connections on the links: {spread}")
    return job, spread


def one_dies(network, happens):
    """A stream both ways, idle and half-closed connections on both links; one link dies under it."""
    def run(lab):
        n, idle = 48 << 20, 20
        with two_devices(lab):
            job, spread = loaded(lab, n, idle, 200)
            happens(lab)
            with Networks(lab) as networks:
                job.expect("busy done", 200)
                left, why = carrying(lab.b), on_tcp(lab.b)
                job.guest.say(id=job.number, input="go\n")
                text = job.done(200)
            if left != [[(f"rxe{1 - network}", sum(spread))]]:
                raise Failed(f"links afterwards: {left}, before {spread}; on TCP: {why}")
            if networks.each[1 - network] < n // 2 or networks.traffic.tcp > 20000:
                raise Failed(f"not over the other link: {networks}")
            busy = re.findall(r"busy done after [\d.]+ s", text)[0]
            return f"connections {spread}, then {left}; {said(text)}; {busy}; after that {networks}"
    return run


add("two devices: the path of the first link is cut under load", one_dies(0, lambda lab: lab.a.run(cut(0))))
add("two devices: the path of the second link is cut under load", one_dies(1, lambda lab: lab.b.run(cut(1))))
add("two devices: the port of one goes down under load", one_dies(1, lambda lab: lab.a.run("ip link set eth1 down")))


def both_die(lab):
    n, idle = 48 << 20, 20
    with two_devices(lab):
        job, spread = loaded(lab, n, idle, 200)
        lab.a.run(cut(1))
        wait_for_links(lab, 1)
        with Networks(lab) as networks:
            lab.a.run(cut(0))
            job.expect("busy done", 200)
            shown = lab.b.run("smcrctl sock")
            job.guest.say(id=job.number, input="go\n")
            text = job.done(200)
        if "link-lost" not in shown:
            raise Failed(f"no reason: {shown}")
        if networks.traffic.tcp < n // 8:
            raise Failed(f"not over TCP at the end: {networks}")
        busy = re.findall(r"busy done after [\d.]+ s", text)[0]
        return f"connections {spread}; {said(text)}; {busy}; after the second {networks}"


add("two devices: one link dies under load, then the other: TCP", both_die)


def redis(lab):
    """Programs that nobody here wrote do not notice."""
    with two_devices(lab):
        server = lab.a.start(f"exec redis-server --port 6390 --bind {lab.a.ip} --protected-mode no --save '' --dir /run/lab", **lab.env("smcr")).expect("Ready to accept", 30)
        try:
            with Networks(lab) as networks:
                bench = f"redis-benchmark -h {lab.a.ip} -p 6390 -c 20 -n 30000 -d 2000 -r 1000 -t set,get --csv"
                job = lab.b.start(f"exec {bench}", **lab.env("smcr"))
                before = wait_for_links(lab, 2)
                time.sleep(2)
                lab.b.run(cut(1))
                wait_for_links(lab, 1)
                text = job.done(200)
        finally:
            server.kill()
        rates = re.findall(r'"(SET|GET)","([\d.]+)"', text)
        if len(rates) != 2 or "rror" in text:
            raise Failed(text)
        if networks.each[1] < 200_000 or networks.each[0] < 2_000_000 or networks.traffic.tcp > 6000 + 2500 * 45 + 1_200_000:
            raise Failed(f"{networks}")
        spread = sorted(r["connections"] for r in before[1][0])
        return f"{', '.join(f'{name} {rate}/s' for name, rate in rates)}; {len(before[1])} group, connections {spread} before; {networks}"


add("two devices: one link dies under redis-benchmark", redis)


def kernels(lab):
    """Towards a kernel with two devices a group has one link, as ever."""
    results = []
    with two_devices(lab):
        for client, server in (("kernel", "smcr"), ("smcr", "kernel")):
            to = lab.server(server)
            with Networks(lab) as networks:
                text = lab.client(client, to, "many", 10, 3000, PATIENCE=60).done(65)
            kernel = all_smcr(text, client)
            results.append(f"{client} -> {server}: {networks.traffic.went_over_rdma(payload(text), 10)}{kernel}")
            if networks.each[1] > 20000:
                raise Failed(f"a second link: {networks}")
    return "; ".join(results)


add("two devices: kernel and smcr, one link", kernels)
