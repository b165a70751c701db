"""What a client of `peer.py` does: streams and how they end. Each operation is named as it is called."""
import errno
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time

from flow import PATIENCE, PAYLOAD, both, connect, line, named, opened, pattern, put, show, take, until_end


def echo(address, port, *sizes):
    for n in map(int, sizes):
        sock = connect(address, port, {"op": "echo", "n": n})
        both(sock, n, piece=262144)
        show(sock)
        sock.close()
    return f"{len(sizes)} sizes up to {max(map(int, sizes))}"


def one(address, port, n):
    """All sizes up to n over one connection."""
    n, at = int(n), 0
    sizes = [1, 2, 3, 63, 64, 65, 1000, 4096, 16383, 16384, 65535, 65536, 65537, 100001, 131071, 262145, 1 << 20, 3_333_333, 64 << 20]
    sizes = [s for s in sizes if s <= n]
    sock = connect(address, port, {"op": "lockstep", "lengths": sizes})
    for k in sizes:
        put(sock, k)
        take(sock, k)
        at += k
    show(sock)
    return f"{len(sizes)} sizes, {2 * at} bytes"


def wrap(address, port, total, seed):
    """Messages of random lengths, so that each place of the ring sees a wrap."""
    rng, lengths, sum_ = random.Random(int(seed)), [], 0
    while sum_ < int(total):
        lengths.append(rng.choice((rng.randint(1, 200), rng.randint(1, 9000), rng.randint(20000, 70000))))
        sum_ += lengths[-1]
    sock = connect(address, port, {"op": "lockstep", "lengths": lengths})
    for k in lengths:
        put(sock, k)
        take(sock, k)
    show(sock)
    return f"{len(lengths)} messages, {2 * sum_} bytes, seed {seed}"


def lost(address, port, n, mark):
    """See `lost` of the server; 20 connections take the 16 slots."""
    n = int(n)
    jams = [connect(address, port, {"op": "jam"}) for _ in range(20)]
    sock = connect(address, port, {"op": "lost", "n": n, "mark": mark})
    for each in (sock, *jams):
        if each.recv(1) != b"r":
            raise EOFError("no answer")
    print("up", flush=True)
    put(sock, n)
    first, held, took = line(sock)
    for jam in jams:
        if jam.recv(1) != b"j":
            raise EOFError("a byte is lost")
    return f"{n} bytes; {first} read at once, held {held} s by a signal, all read after {took} s"


def slow(address, port, n, piece=5000):
    """The reader sleeps, then takes little at a time."""
    n = int(n)
    sock = connect(address, port, {"op": "sink", "n": n, "wait": 1.5, "piece": int(piece), "pause": 0.002})
    put(sock, n)
    if sock.recv(1) != b"k":
        raise EOFError("no answer")
    show(sock)
    return f"{n} bytes"


def limited(address, port, n):
    """A sender that lets little wait, from its beginning; then, with the reader behind, or after it has read everything, less still."""
    n = int(n)
    sock = connect(address, port, {"op": "sink", "n": 5 * n, "wait": 0.5, "piece": 50000})
    for turn in range(5):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096 if turn % 2 else 20000)
        put(sock, n, turn * n)
        time.sleep(turn // 2 / 4)
    if sock.recv(1) != b"k":
        raise EOFError("no answer")
    show(sock)
    return f"{5 * n} bytes"


def fill(address, port, n):
    """A sender that does not wait meets a full ring, and its end."""
    n, sent = int(n), 0
    sock = connect(address, port, {"op": "sink", "n": n, "wait": 1.5})
    sock.setblocking(False)
    full = 0
    while sent < n:
        try:
            sent += sock.send(pattern(sent, min(n - sent, 65536)))
            PAYLOAD[0] = sent
        except BlockingIOError:
            full += 1
            if not select.select([], [sock], [], PATIENCE)[1]:
                raise TimeoutError("never writable again")
    sock.setblocking(True)
    if sock.recv(1) != b"k" or not full:
        raise EOFError(f"full {full} times")
    show(sock)
    return f"{n} bytes, found full {full} times"


def stream(address, port, n):
    n = int(n)
    sock = connect(address, port, {"op": "source", "n": n})
    take(sock, n)
    show(sock)
    return f"{n} bytes"


def stopped(address, port, n, seconds):
    """The process stands still right after connect(), for longer than the server waits for it."""
    subprocess.Popen(["/bin/sh", "-c", f"sleep {float(seconds)}; kill -CONT {os.getpid()}"], env={})
    sock = opened()
    named("connect", sock, address, port)
    os.kill(os.getpid(), signal.SIGSTOP)
    sock.sendall(json.dumps({"op": "echo", "n": int(n)}).encode() + b"\n")
    both(sock, int(n))
    show(sock)
    return f"{n} bytes there and back"


def half(address, port, n):
    n = int(n)
    sock = connect(address, port, {"op": "half", "n": n})
    put(sock, n)
    show(sock)
    sock.shutdown(socket.SHUT_WR)
    take(sock, n)
    if sock.recv(1):
        raise ValueError("more than was sent")
    return f"{n} bytes each way, end seen twice"


def abort(address, port):
    """The client ends with LINGER 0: the server sees a reset."""
    sock = connect(address, port, {"op": "report", "name": OWN})
    sock.recv(1)
    show(sock)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
    sock.close()
    return ends(address, port, OWN)


def orderly(address, port):
    sock = connect(address, port, {"op": "report", "name": OWN})
    sock.recv(1)
    put(sock, 100)
    show(sock)
    sock.close()
    return ends(address, port, OWN)


def parting(address, port, n, name, wait=0, kept=""):
    """Says all and ends at once, without a look at what becomes of it, which is read so much later; kept: see `ends_kept`."""
    put(connect(address, port, {"op": "report", "name": name, "quiet": True, "wait": float(wait), "kept": kept}), int(n))
    return f"{n} bytes"


def behind(address, port, n, piece):
    """The server says all and closes; it is read later than a kernel waits before it says so."""
    n = int(n)
    sock = connect(address, port, {"op": "source", "n": n})
    time.sleep(4)
    take(sock, n, piece=int(piece))
    show(sock)
    if sock.recv(1):
        raise ValueError("more than was sent")
    return f"{n} bytes, and the end"


# The name of the connection whose end the server is asked for.
OWN = f"{os.getpid()} {time.time()}"


def ends(address, port, name, seconds=50, dying=False):
    """How the server saw the end of the connection with this name. `dying`: a kernel that has not noticed yet puts the question on the link that
    dies, with which it ends."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sock, how = connect(address, port, {"op": "ends", "name": name}), None
        try:
            how = line(sock)
        except ConnectionError:
            if not dying:
                raise
        sock.close()
        if how:
            return f"server saw {' '.join(map(str, how))}"
        time.sleep(0.3)
    raise TimeoutError("the server does not see the end")


def ends_kept(address, port, name):
    """The same of one whose end there stays open until it has been looked at."""
    how = ends(address, port, name)
    sock = connect(address, port, {"op": "let go", "name": name})
    sock.recv(1)
    show(sock)
    sock.sendall(b"g")
    return how


def unread(address, port):
    """The server ends with bytes unread: the client sees a reset."""
    sock = connect(address, port, {"op": "unread"})
    sock.recv(1)
    show(sock)
    put(sock, 1000)
    how, _ = until_end(sock)
    return f"client saw {how}"


def over(address, port):
    """Both ends shut down, and then the server closes with bytes unread: no reset comes of that."""
    sock = connect(address, port, {"op": "over", "n": 1000})
    sock.recv(1)
    show(sock)
    put(sock, 1000)
    sock.shutdown(socket.SHUT_WR)
    how, _ = until_end(sock)
    time.sleep(2)
    then, _ = until_end(sock)
    return f"client saw {how}, {then}"


def waits(address, port):
    """How a connection ends that nobody accepts."""
    how, _ = until_end(connect(address, port, {"op": "echo", "n": 1}))
    return f"client saw {how}"


def shares(address, port, n, seconds):
    """Takes what n connections bring for so long: those that began last get their share."""
    socks = [connect(address, port, {"op": "pours"}) for _ in range(int(n))]
    got = dict.fromkeys(socks, 0)
    for sock in socks:
        sock.recv(1)
    for sock in socks:
        sock.sendall(b"g")
    began = time.monotonic()
    while time.monotonic() < began + float(seconds):
        for sock in select.select(socks, [], [], 1)[0]:
            got[sock] += len(sock.recv(1 << 20))
    PAYLOAD[1] += sum(got.values())
    least, most = min(got.values()), max(got.values())
    return f"{sum(got.values())} bytes of {n} connections, from {least} to {most} each, {sum(b < most / 20 for b in got.values())} with next to nothing"


def left(address, port):
    """The client ends with bytes unread: the server sees a reset."""
    sock = connect(address, port, {"op": "left", "n": 1000, "name": OWN})
    sock.recv(1)
    time.sleep(0.5)
    show(sock)
    sock.close()
    return ends(address, port, OWN)


def closes(address, port, n):
    """Says n bytes and closes at once, and lives on; then asks how that ended."""
    sock = connect(address, port, {"op": "report", "name": OWN, "quiet": True})
    put(sock, int(n))
    sock.close()
    print("closed", flush=True)
    return ends(address, port, OWN, 100)


def holds(address, port, operation, *rest):
    """One connection that stays; when told to, another operation beside it."""
    sock = connect(address, port, {"op": "hold"})
    sock.recv(1)
    print("up", flush=True)
    sys.stdin.readline()
    return globals()[operation](address, port, *rest)


def many(address, port, n, size, hold="", burst=""):
    """n connections, each used once before the next one is opened (unless they all come in one burst), and then all at once."""
    n, size, socks = int(n), int(size), []
    for _ in range(n):
        socks.append(connect(address, port, {"op": "echo", "n": size, "rounds": 2}))
        if not burst:
            put(socks[-1], size)
            take(socks[-1], size)
    for at in (0, size) if burst else (size,):
        for sock in socks:
            put(sock, size, at)
        for sock in socks:
            take(sock, size, at)
    if hold:
        print("open", flush=True)
        sys.stdin.readline()
    show(*socks)
    for sock in socks:
        sock.close()
    return f"{n} connections, {4 * size * n} bytes"


def again(address, port, n, pause):
    for i in range(int(n)):
        if i:
            time.sleep(float(pause))
        sock = connect(address, port, {"op": "echo", "n": 30000})
        both(sock, 30000)
        show(sock)
        sock.close()
    return f"{n} connections one after the other"


def killed(address, port):
    """Says "up", and then how the connection ends when the server is killed."""
    sock = connect(address, port, {"op": "hold"})
    sock.recv(1)
    show(sock)
    print("up", flush=True)
    began = time.monotonic()
    how, _ = until_end(sock)
    return f"saw {how} after {time.monotonic() - began:.1f} s"


def cut_off(address, port):
    """As `killed`; what the reads say is all that counts, as for a program that takes the end for the end of a file."""
    sock = connect(address, port, {"op": "hold"})
    sock.recv(1)
    show(sock)
    print("up", flush=True)
    try:
        return f"saw {'bytes' if sock.recv(1) else 'eof'}"
    except OSError as error:
        return f"saw {errno.errorcode.get(error.errno, error)}"


def writer(address, port):
    """As `killed`, for an end that writes."""
    sock = connect(address, port, {"op": "sink", "n": 1 << 40})
    put(sock, 100000)
    show(sock)
    print("up", flush=True)
    began, at = time.monotonic(), 100000
    try:
        while True:
            put(sock, 1000, at)
            at += 1000
            time.sleep(0.01)
    except OSError as error:
        return f"saw {errno.errorcode.get(error.errno, error)} after {time.monotonic() - began:.1f} s"


def bereft(address, port, writes=""):
    """The link dies, while this end writes or waits: how both ends see that. What asks the server is a new connection."""
    sock = connect(address, port, {"op": "report", "name": OWN})
    print(ended(sock, writes, 100000 if writes else 100), flush=True)
    sock.close()
    return ends(address, port, OWN, 100, dying=True)


def bereaved(address, port, writes=""):
    """The same where it is the server's process with the link that ends."""
    return ended(connect(address, port, {"op": "report", "name": OWN}), writes, 100000)


def ended(sock, writes, at):
    """How a connection ends that has carried so many bytes, for an end that writes or waits."""
    sock.recv(1)
    put(sock, at)
    show(sock)
    print("up", flush=True)
    began = time.monotonic()
    try:
        while writes:
            put(sock, 1000, at)
            at += 1000
            time.sleep(0.01)
        how, _ = until_end(sock)
    except OSError as error:
        how = errno.errorcode.get(error.errno, error)
    return f"saw {how} after {time.monotonic() - began:.1f} s"


def hold(address, port, name):
    sock = connect(address, port, {"op": "report", "name": name})
    sock.recv(1)
    put(sock, 100)
    show(sock)
    print("up", flush=True)
    time.sleep(600)
