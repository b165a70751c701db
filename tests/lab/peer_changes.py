"""What a client of `peer.py` does while something happens to its link or at the other end. Each operation is named as it is called."""
import concurrent.futures
import errno
import fcntl
import json
import os
import select
import socket
import struct
import sys
import termios
import threading
import time

from flow import HOLD, PATIENCE, become, both, connect, named, named_send, opened, pattern, put, round_trip, show, take, until_end


def pings(address, port, n, seconds, stops="", over=None):
    """Ping-pong for some seconds, or to a line on stdin, each answer checked: what a link that dies must not disturb."""
    n, at = int(n), 0
    sock = connect(address, port, {"op": "echo", "n": n, "rounds": 1 << 30})
    print("up", flush=True)
    end, worst, count = time.monotonic() + float(seconds), 0.0, 0
    while time.monotonic() < end and not (over and over.is_set() or stops and select.select([sys.stdin], [], [], 0)[0]):
        began = time.monotonic()
        at = round_trip(sock, n, at)
        worst, count = max(worst, time.monotonic() - began), count + 1
    show(sock)
    return f"{count} rounds of {n} bytes, longest {worst:.2f} s"


def until(address, port):
    """The server's process dies when it has read all: how that is seen."""
    sock = connect(address, port, {})
    sock.recv(1)
    put(sock, 20000)
    if sock.recv(1) != b"k":
        raise EOFError("no answer")
    show(sock)
    return f"saw {until_end(sock)[0]}"


def twice(address, port, n):
    """n bytes there and back, and once more after a line on stdin; stays until another one."""
    n = int(n)
    sock = connect(address, port, {"op": "echo", "n": n, "rounds": 2})
    for at in (0, n):
        put(sock, n, at)
        take(sock, n, at)
        print("once" if not at else "both", flush=True)
        sys.stdin.readline()
    return f"{n} bytes twice"


def kept(address, port, n, becomes=""):
    """n bytes have come and are not read before a line on stdin; then they are, and what the server sends of new ones. Or it becomes
    another program, which reads on."""
    n = int(n)
    sock = connect(address, port, {"op": "echo", "n": n, "rounds": 2})
    put(sock, n)
    while (there := struct.unpack("=i", fcntl.ioctl(sock, termios.FIONREAD, bytes(4)))[0]) < n:
        time.sleep(0.01)
    print("up", flush=True)
    sys.stdin.readline()
    if becomes:
        become(sock, f"take(s, {n}); put(s, {n}, {n}); take(s, {n}, {n}); print('ok the next program reads on')", becomes != "plain")
    take(sock, n)
    put(sock, n, n)
    take(sock, n, n)
    return f"{there} bytes unread, and {n} after them"


def one_stream(address, port, n):
    """n bytes each way at once."""
    sock = connect(address, port, {"op": "echo", "n": int(n)})
    both(sock, int(n))
    return f"{n} bytes each way"


def forger(address, port, n):
    """n bytes there and back while the library under it breaks the rules; stays until a line on stdin."""
    print(f"pid {os.getpid()}", flush=True)
    sock = connect(address, port, {"op": "echo", "n": int(n)})
    small_then_all(sock, int(n))
    print("whole", flush=True)
    sys.stdin.readline()
    return f"{n} bytes"


def small_then_all(sock, n, first=25_000):
    for at in range(0, first, 500):
        put(sock, 500, at)
        take(sock, 500, at)
    both(sock, n, at=first)


def victim(address, port, n):
    """Ping-pong with a good server, and beside it, for each line on stdin with a port, n bytes there and back with the hostile
    server there: says how that went. A line with "-" and a port ends that connection, an empty one everything."""
    n, open_, over, failed = int(n), {}, threading.Event(), []
    print(f"pid {os.getpid()}", flush=True)

    def one(other):
        try:
            open_[other] = connect(address, int(other), {"op": "echo", "n": n})
            small_then_all(open_[other], n)
            print(f"port {other} whole", flush=True)
        except (OSError, EOFError, ValueError) as error:
            print(f"port {other} {type(error).__name__}: {error}", flush=True)

    def good():
        try:
            print("innocent:", pings(address, port, 40_000, PATIENCE, over=over), flush=True)
        except (OSError, EOFError, ValueError) as error:
            failed.append(error)
            print(f"innocent: {type(error).__name__}: {error}", flush=True)

    pinger = threading.Thread(target=good, daemon=True)
    pinger.start()
    while text := sys.stdin.readline().strip():
        if text.startswith("-"):
            open_.pop(text[1:]).close()
        else:
            threading.Thread(target=one, args=(text,), daemon=True).start()
    over.set()
    pinger.join(PATIENCE)
    if failed or pinger.is_alive():
        raise failed[0] if failed else TimeoutError("the good server is silent")
    return "ended"


def stray(address, port, n, hexes):
    """A server that has said something by itself, and then echoes."""
    sock = connect(address, port, {"op": "echo", "n": int(n)})
    if sock.recv(len(hexes) // 2, socket.MSG_WAITALL) != bytes.fromhex(hexes):
        raise ValueError("it was read otherwise")
    both(sock, int(n))
    show(sock)
    return f"{n} bytes after {len(hexes) // 2}"


def meets(address, port, n):
    """A good server, and for each line on stdin others, as many at once as a busy machine greets in time: [name, port, what it says by itself]. An
    empty line: the good one is used once more, and so is a new connection to it."""
    n = int(n)
    good = connect(address, port, {"op": "echo", "n": 1000, "rounds": 2})
    both(good, 1000)
    print("up", flush=True)

    def one(name, other, hexes):
        try:
            sock = connect(address, other, {"op": "echo", "n": n})
            sock.settimeout(60)
            if hexes and sock.recv(len(hexes) // 2, socket.MSG_WAITALL) != bytes.fromhex(hexes):
                raise ValueError("it was read otherwise")
            both(sock, n)
            sock.close()
            return f"[{name}] tcp"
        except TimeoutError:
            return f"[{name}] it hangs"
        except (OSError, EOFError, ValueError) as error:
            # The thread that sends may have taken the reset: then nothing is connected.
            is_end = isinstance(error, (ConnectionError, EOFError)) or getattr(error, "errno", None) == errno.ENOTCONN
            return f"[{name}] {'ends ' if is_end else ''}{type(error).__name__}: {error}"

    while text := sys.stdin.readline().strip():
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for answer in pool.map(lambda row: one(*row), json.loads(text)):
                print(answer, flush=True)
        print("all met", flush=True)
    both(good, 2000, at=1000)
    new = connect(address, port, {"op": "echo", "n": 1000, "rounds": 2})
    both(new, 1000)
    show(good, new)
    return "the good server is served on, and anew"


def spread(address, port, first, more, n):
    """Some connections, and more after a line on stdin; n bytes echoed on each of these after another."""
    n = int(n)
    early = [connect(address, port, {"op": "echo", "n": 1000, "rounds": 1}) for _ in range(int(first))]
    for sock in early:
        put(sock, 1000)
        take(sock, 1000)
    print("up", flush=True)
    sys.stdin.readline()
    later = []
    for _ in range(int(more)):
        later.append(connect(address, port, {"op": "echo", "n": n, "rounds": 2}))
        put(later[-1], 1000)
        take(later[-1], 1000)
    print("opened", flush=True)
    sys.stdin.readline()
    for sock in later:
        both_from(sock, 1000, n)
    return f"{first} and {more} connections, {2 * n * int(more)} bytes"


def both_from(sock, at, n):
    """The rest of n bytes there and back, in pieces."""
    while at < n:
        k = min(n - at, 30000)
        put(sock, k, at)
        take(sock, k, at)
        at += k


def survive(address, port, n, idle, waits=""):
    """n bytes each way at once, beside idle connections and one that is half closed, while something happens to the link. A line
    on stdin says that it has; then every connection is used once more."""
    n, idle = int(n), int(idle)
    if waits:
        # The group is there; the others come when it has both links.
        early = connect(address, port, {"op": "echo", "n": 1000, "rounds": 1})
        put(early, 1000)
        take(early, 1000)
        print("up", flush=True)
        sys.stdin.readline()
    rest = [connect(address, port, {"op": "echo", "n": 5000, "rounds": 2}) for _ in range(idle)]
    for sock in rest:
        put(sock, 5000)
        take(sock, 5000)
    half = connect(address, port, {"op": "late", "n": 300000})
    half.shutdown(socket.SHUT_WR)
    # One after the other they use different links, where there are two.
    busy = [connect(address, port, {"op": "both", "n": n}) for _ in range(2 if waits else 1)]
    blocked = []
    reader = threading.Thread(target=lambda: blocked.append(rest[0].recv(1)), daemon=True)
    reader.start()
    print("spread" if waits else "up", flush=True)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda sock: both(sock, n), busy if n else []))
    for sock in busy:
        sock.sendall(b"{}\n")
    print(f"busy done after {time.monotonic() - began:.1f} s", flush=True)
    sys.stdin.readline()
    if waits:
        # A new one, over what is left.
        rest.append(connect(address, port, {"op": "echo", "n": 5000, "rounds": 2}))
        put(rest[-1], 5000)
        take(rest[-1], 5000)
    put(rest[0], 5000, 5000)
    reader.join(PATIENCE)
    if blocked != [bytes(pattern(5000, 1))]:
        raise ValueError(f"the one that waited got {blocked}")
    take(rest[0], 4999, 5001)
    for sock in rest[1:]:
        put(sock, 5000, 5000)
        take(sock, 5000, 5000)
    show(*rest, half, *busy)
    for sock in rest:
        if sock.recv(1):
            raise ValueError("more than was sent")
    take(half, 300000)
    if half.recv(1) or any(sock.recv(1) for sock in busy):
        raise ValueError("more than was sent")
    return f"{n} bytes each way{' twice' if waits else ''}, {idle} idle connections, one half closed"


def end_both(sock):
    """The own end, then the other one, with nothing before it."""
    sock.shutdown(socket.SHUT_WR)
    if sock.recv(1):
        raise ValueError("more than was sent")


def after(address, port, n, before):
    """The server echoes `before` bytes and gives the connection to another program: that answers all the same."""
    n = int(n)
    sock = connect(address, port, {"n": int(before)})
    put(sock, int(before))
    take(sock, int(before))
    if sock.recv(1) != b"r":
        raise EOFError("no answer")
    both(sock, n)
    show(sock)
    end_both(sock)
    return f"{before} bytes echoed, then {n}"


def given_up(address, port, n):
    """The server echoes so much and closes, while another process has the connection as well: how that ends."""
    n = int(n)
    sock = connect(address, port, {"n": n})
    put(sock, n)
    take(sock, n)
    if sock.recv(1) != b"r":
        raise EOFError("no answer")
    show(sock)
    return f"{n} bytes echoed, then saw {until_end(sock)[0]}"


def echoed(address, port, n):
    """A server that echoes and knows no requests: ping-pong, a pause, a stream, the end."""
    n = int(n)
    sock = opened()
    named("connect", sock, address, port)
    for i in range(50):
        put(sock, 64, i * 64)
        take(sock, 64, i * 64)
    time.sleep(1)
    both(sock, n)
    show(sock)
    end_both(sock)
    return f"50 pings and {n} bytes echoed"


def fast(address, port, n):
    """The request goes with the SYN where TCP Fast Open is on at both ends: the second at least, since the first asks for a cookie where none is kept."""
    n = int(n)
    for _ in range(2):
        sock = opened()
        named_send(sock, json.dumps({"op": "echo", "n": n, "stay": HOLD == "both"}).encode() + b"\n", socket.MSG_FASTOPEN, address, port)
        both(sock, n)
        show(sock)
        sock.close()
    return f"{n} bytes twice"


def worn(address, port, connections, n, ends=""):
    """Connections one after the other from four threads, each with messages and then n bytes there and back, while the library at
    either end is told to fail. With `ends` each may end as TCP can; never with a wrong byte, nor too late."""
    n, lock, left, seen = int(n), threading.Lock(), list(range(int(connections))), {}

    def each():
        while True:
            with lock:
                if not left:
                    return
                left.pop()
            how = "whole"
            try:
                sock = connect(address, port, {"op": "echo", "n": n})
                with sock:
                    sock.settimeout(PATIENCE / 2)
                    small_then_all(sock, n)
            except TimeoutError:
                raise
            except (OSError, EOFError) as error:
                # Nothing is connected any more where the thread that sends has taken the reset.
                if not ends or not isinstance(error, (ConnectionError, EOFError)) and error.errno != errno.ENOTCONN:
                    raise
                how = type(error).__name__
            with lock:
                seen[how] = seen.get(how, 0) + 1

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for thread in [pool.submit(each) for _ in range(4)]:
            thread.result()
    return f"{n} bytes: {json.dumps(seen)}"
