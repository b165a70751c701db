"""A link that was lost comes back: the path carries again, the port comes up. Both ends make another second link in its place, new
connections are spread over both, and what dies then moves to the new one."""
import re
import time

from cases_two_devices import Networks, carrying, cut, goes_over_both, links, loaded, on_tcp, two_devices, wait_for_links
from guests import Failed
from lab import MEND, add, said


def numbers(lab):
    return sorted((row["device"], row["link"]) for row in links(lab.b)[0])


def again_under_load(lab):
    """The second path is cut and mended under load, then the first one dies: everything goes on over the new link."""
    n, idle = 64 << 20, 20
    with two_devices(lab):
        job, spread = loaded(lab, n, idle, 400)
        before = numbers(lab)
        lab.b.run(cut(1))
        wait_for_links(lab, 1, 40)
        lab.b.run(MEND)
        wait_for_links(lab, 2, 90)
        after = numbers(lab)
        lab.a.run(cut(0))
        wait_for_links(lab, 1, 60)
        with Networks(lab) as networks:
            job.expect("busy done", 400)
            left = carrying(lab.b)
            job.guest.say(id=job.number, input="go\n")
            text = job.done(200)
        if left != [[("rxe1", sum(spread))]]:
            raise Failed(f"links afterwards: {left}, before {spread}")
        if networks.each[1] < n // 4 or networks.traffic.tcp > 20000:
            raise Failed(f"not over the new link: {networks}")
        busy = re.findall(r"busy done after [\d.]+ s", text)[0]
        return f"links {before}, then {after}, then {left}; {said(text)}; {busy}; after that {networks}"


add("two devices: a lost path carries again under load, then the other dies", again_under_load)


def again_spread(down, up):
    """After a link has come back new connections are spread over both."""
    def run(lab):
        with two_devices(lab):
            to = lab.server("smcr")
            first = lab.client("smcr", to, "spread", 1, 20, 100_000, PATIENCE=200).expect("up", 40)
            wait_for_links(lab, 2)
            down(lab)
            wait_for_links(lab, 1, 40)
            began = time.monotonic()
            up(lab)
            wait_for_links(lab, 2, 100)
            took = time.monotonic() - began
            return f"two links again after {took:.0f} s; {goes_over_both(lab, first, 20)}"
    return run


def port(guest, state):
    return lambda lab: getattr(lab, guest).run(f"ip link set eth1 {state}")


add("two devices: the server's port comes up again", again_spread(port("a", "down"), port("a", "up")))
add("two devices: the client's port comes up again", again_spread(port("b", "down"), port("b", "up")))


def removed(guest):
    """One of two devices is taken away from a program that uses it, and comes back."""
    def run(lab):
        n, idle = 48 << 20, 20
        with two_devices(lab):
            its = getattr(lab, guest)
            job, spread = loaded(lab, n, idle, 300)
            began = time.monotonic()
            its.run("timeout 60 rdma link delete rxe1", 70)
            took = time.monotonic() - began
            wait_for_links(lab, 1, 40)
            job.expect("busy done", 300)
            left = carrying(lab.b)
            if left != [[("rxe0", sum(spread))]]:
                raise Failed(f"links afterwards: {left}, before {spread}; on TCP: {on_tcp(lab.b)}; the server: {on_tcp(lab.a)}")
            its.run("rdma link add rxe1 type rxe netdev eth1")
            began = time.monotonic()
            wait_for_links(lab, 2, 100)
            back, names = time.monotonic() - began, numbers(lab)
            with Networks(lab) as networks:
                job.guest.say(id=job.number, input="go\n")
                text = job.done(200)
            if networks.traffic.tcp > 20000:
                raise Failed(f"too much on TCP: {networks}")
            return (f"removed in {took:.1f} s, connections {spread}, then {left}; {said(text)}; {names} after {back:.0f} s; "
                    f"after that {networks}")
    return run


add("two devices: the server's second device is removed under load", removed("a"))
add("two devices: the client's second device is removed under load", removed("b"))
