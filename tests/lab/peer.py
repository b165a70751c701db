#!/usr/bin/env python3
"""The program that both ends of a case run; it knows nothing of the medium under it.

    peer.py serve ADDRESS PORT                   serves until it is killed
    peer.py OPERATION ADDRESS PORT [ARGUMENT]... one client; prints a line "ok ..." or fails

AF=43 makes it a program of the kernel's AF_SMC, else it is a plain TCP program. A client sends one line
of JSON that says what the server shall do on this connection; what is sent either way is a pattern that
shows each lost, doubled or misplaced byte.
"""
import concurrent.futures
import ctypes
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
import threading
import time

FAMILY = int(os.environ.get("AF", "2"))
LIBC = ctypes.CDLL(None, use_errno=True)
PERIOD = 65521
BLOCK = random.Random(7).randbytes(PERIOD) * 34
PATIENCE = int(os.environ.get("PATIENCE", "60"))
PAYLOAD = [0, 0]


def pattern(at, n):
    """`n` bytes of the stream from offset `at` on; at most 2 MiB."""
    at %= PERIOD
    return memoryview(BLOCK)[at:at + n]


def named(call, sock, address, port):
    raw = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(address))
    if getattr(LIBC, call)(sock.fileno(), raw, len(raw)) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def accepted(listener):
    if FAMILY == socket.AF_INET:
        return listener.accept()[0]
    fd = LIBC.accept(listener.fileno(), None, None)
    if fd < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return socket.socket(FAMILY, socket.SOCK_STREAM, 0, fileno=fd)


def local_name(sock):
    raw, length = ctypes.create_string_buffer(16), ctypes.c_uint(16)
    LIBC.getsockname(sock.fileno(), raw, ctypes.byref(length))
    return f"{socket.inet_ntoa(raw.raw[4:8])}:{struct.unpack_from('!H', raw.raw, 2)[0]}"


def opened():
    return socket.socket(FAMILY, socket.SOCK_STREAM, 0)


def connect(address, port, request):
    sock = opened()
    named("connect", sock, address, port)
    sock.sendall(json.dumps(request).encode() + b"\n")
    return sock


def put(sock, n, at=0, piece=65536):
    while n:
        k = min(n, piece)
        sock.sendall(pattern(at, k))
        PAYLOAD[0] += k
        at, n = at + k, n - k


def take(sock, n, at=0, piece=65536, pause=0):
    while n:
        data = sock.recv(min(n, piece))
        if not data:
            raise EOFError(f"end of the stream with {n} bytes missing")
        if data != pattern(at, len(data)):
            wrong = next(i for i, b in enumerate(data) if b != pattern(at + i, 1)[0])
            raise ValueError(f"wrong byte at offset {at + wrong}")
        PAYLOAD[1] += len(data)
        at, n = at + len(data), n - len(data)
        if pause:
            time.sleep(pause)


def both(sock, n, piece=65536, at=0):
    """Sends and receives the bytes up to `n` at once, from `at` on."""
    failure = []

    def sender():
        try:
            put(sock, n - at, at, piece=piece)
        except OSError as error:
            failure.append(error)

    thread = threading.Thread(target=sender, daemon=True)
    thread.start()
    take(sock, n - at, at)
    thread.join(PATIENCE)
    if failure or thread.is_alive():
        raise failure[0] if failure else TimeoutError("the sender does not end")


def line(sock):
    text = b""
    while not text.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte:
            raise EOFError("no request")
        text += byte
    return json.loads(text)


def until_end(sock):
    """Reads to the end: ("eof" or the error's name, bytes)."""
    n = 0
    try:
        while data := sock.recv(65536):
            n += len(data)
        # AF_SMC shows a reader the end, and the reset only here.
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return errno.errorcode.get(error, "eof"), n
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error)), n


READER = b"k" if FAMILY == 43 else b"r"


def urgent_out(sock, n):
    """n bytes, one urgent byte, n bytes, to a reader who says first what it is."""
    # A kernel that has read all before an urgent byte, and then fetches it, never passes over it (docs/wire.md).
    alone = sock.recv(1) != b"k"
    put(sock, n if alone else n - 1)
    sock.send((b"" if alone else bytes(pattern(n - 1, 1))) + b"!", socket.MSG_OOB)
    PAYLOAD[0] += 0 if alone else 1
    put(sock, n, at=n)


def urgent_in(sock, n, inline=False):
    before = sock.recv(n, socket.MSG_WAITALL) if not inline else b""
    poll = select.poll()
    poll.register(sock, select.POLLPRI)
    pri = bool(poll.poll(10000))
    byte = sock.recv(1, socket.MSG_OOB)
    after = sock.recv(n, socket.MSG_WAITALL)
    good = before == pattern(0, n) and byte == b"!" and after == pattern(n, n) and pri
    if not good:
        print(f"urgent: {len(before)} {byte} {len(after)} pri={pri}", flush=True)
    return good


# --- what a server does -----------------------------------------------------------------------------

def serve_one(sock):
    r = line(sock)
    op, n = r["op"], r.get("n", 0)
    if op == "echo":                     # n bytes at a time, as often as they come
        at, rounds = 0, r.get("rounds", 1)
        for _ in range(rounds):
            left = n
            while left:
                data = sock.recv(min(left, 262144))
                if not data:
                    raise EOFError("the client ended")
                if data != pattern(at, len(data)):
                    raise ValueError(f"wrong byte after offset {at}")
                sock.sendall(data)
                at, left = (at + len(data)) % PERIOD, left - len(data)
    elif op == "lockstep":               # messages of the lengths in the list, one answered at a time
        for k in r["lengths"]:
            take(sock, k)
            put(sock, k)
    elif op == "sink":                   # n bytes, slowly; then one byte back
        time.sleep(r.get("wait", 0))
        take(sock, n, piece=r.get("piece", 65536), pause=r.get("pause", 0))
        sock.sendall(b"k")
    elif op == "source":
        put(sock, n)
    elif op == "both":                   # n bytes each way at once
        both(sock, n)
        line(sock)
    elif op == "half":                   # to the client's end, then n bytes back
        at = 0
        while data := sock.recv(65536):
            if data != pattern(at, len(data)):
                raise ValueError(f"wrong byte after offset {at}")
            at += len(data)
        if at != n:
            raise EOFError(f"{at} bytes of {n}")
        put(sock, n)
    elif op == "report":                 # how the connection ends, told to the next client that asks
        sock.sendall(b"r")
        ENDS.append(until_end(sock))
    elif op == "late":                   # to the client's end, a pause, then n bytes
        while sock.recv(65536):
            pass
        time.sleep(12)
        put(sock, n)
    elif op == "ends":
        sock.sendall(json.dumps(ENDS).encode() + b"\n")
    elif op == "unread":                 # ends with bytes unread: a reset, for TCP
        sock.sendall(b"r")
        time.sleep(r.get("wait", 1))
    elif op == "urgent":
        sock.sendall(READER)
        good = urgent_in(sock, n, r.get("inline"))
        sock.sendall(b"y" if good else b"n")
    elif op == "urgent back":
        urgent_out(sock, n)
        sock.recv(1)
    elif op == "left":                   # n bytes that the client does not read; how that ends for this end
        put(sock, n)
        ENDS.append(until_end(sock))
    elif op == "hold":                   # stays open until the client ends it
        sock.sendall(b"r")
        until_end(sock)
    sock.close()


ENDS = []


def serve(address, port, asleep=0):
    listener = opened()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    named("bind", listener, address, int(port))
    listener.listen(256)
    print("serving", flush=True)
    time.sleep(float(asleep))

    def one(sock):
        try:
            serve_one(sock)
        except (OSError, EOFError, ValueError) as error:
            print(f"server: {type(error).__name__}: {error}", flush=True)
            sock.close()

    while True:
        sock = accepted(listener)
        threading.Thread(target=one, args=(sock,), daemon=True).start()


# --- what a client does -----------------------------------------------------------------------------

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


def slow(address, port, n):
    """The reader sleeps, then takes little at a time."""
    n = int(n)
    sock = connect(address, port, {"op": "sink", "n": n, "wait": 1.5, "piece": 5000, "pause": 0.002})
    put(sock, n)
    if sock.recv(1) != b"k":
        raise EOFError("no answer")
    show(sock)
    return f"{n} bytes"


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
    sock = connect(address, port, {"op": "report"})
    sock.recv(1)
    show(sock)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
    sock.close()
    return f"server saw {last_end(address, port)}"


def orderly(address, port):
    sock = connect(address, port, {"op": "report"})
    sock.recv(1)
    put(sock, 100)
    show(sock)
    sock.close()
    return f"server saw {last_end(address, port)}"


def last_end(address, port):
    end = time.monotonic() + 50
    while time.monotonic() < end:
        sock = connect(address, port, {"op": "ends"})
        ends = line(sock)
        sock.close()
        if ends:
            return " ".join(map(str, ends[-1]))
        time.sleep(0.3)
    raise TimeoutError("the server does not see the end")


def unread(address, port):
    """The server ends with bytes unread: the client sees a reset."""
    sock = connect(address, port, {"op": "unread"})
    sock.recv(1)
    put(sock, 1000)
    show(sock)
    how, _ = until_end(sock)
    return f"client saw {how}"


def urgent(address, port):
    sock = connect(address, port, {"op": "urgent", "n": 100})
    urgent_out(sock, 100)
    answer = sock.recv(1)
    show(sock)
    if answer != b"y":
        raise ValueError("the server read something else")
    return "1 urgent byte between 100 and 100"


def urgent_back(address, port):
    sock = connect(address, port, {"op": "urgent back", "n": 100})
    sock.sendall(READER)
    good = urgent_in(sock, 100)
    PAYLOAD[1] += 200
    show(sock)
    sock.sendall(b"y")
    if not good:
        raise ValueError("it was read otherwise")
    return "1 urgent byte between 100 and 100, from the server"


def left(address, port):
    """The client ends with bytes unread: the server sees a reset."""
    sock = connect(address, port, {"op": "left", "n": 1000})
    sock.recv(1)
    time.sleep(0.5)
    show(sock)
    sock.close()
    return f"server saw {last_end(address, port)}"


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


def hold(address, port):
    sock = connect(address, port, {"op": "report"})
    sock.recv(1)
    put(sock, 100)
    show(sock)
    print("up", flush=True)
    time.sleep(600)


def ends(address, port):
    return f"server saw {last_end(address, port)}"


def pings(address, port, n, seconds, stops="", over=None):
    """Ping-pong for some seconds, or to a line on stdin, each answer checked: what a link that dies must not disturb."""
    n, at = int(n), 0
    sock = connect(address, port, {"op": "echo", "n": n, "rounds": 1 << 30})
    print("up", flush=True)
    end, worst, count = time.monotonic() + float(seconds), 0.0, 0
    while time.monotonic() < end and not (over and over.is_set() or stops and select.select([sys.stdin], [], [], 0)[0]):
        began = time.monotonic()
        put(sock, n, at)
        take(sock, n, at)
        at = (at + n) % PERIOD
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


def after(address, port, n):
    """The server gives the connection to another program, or waits in its own way: it answers all the same."""
    n = int(n)
    sock = connect(address, port, {})
    if sock.recv(1) != b"r":
        raise EOFError("no answer")
    both(sock, n)
    end_both(sock)
    return f"{n} bytes echoed"


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
    end_both(sock)
    return f"50 pings and {n} bytes echoed"


def fast(address, port, n):
    """The request goes with the SYN where TCP Fast Open is on (twice: the first asks for a cookie)."""
    n = int(n)
    for _ in range(2):
        sock = opened()
        sock.sendto(json.dumps({"op": "echo", "n": n}).encode() + b"\n", socket.MSG_FASTOPEN, (address, port))
        both(sock, n)
        sock.close()
    return f"{n} bytes twice"


def show(*socks):
    """What the kernel's AF_SMC says of these connections while they are open."""
    if FAMILY == 43:
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        import kernel
        mine = {local_name(sock) for sock in socks}
        for one_ in kernel.diag():
            if one_["local"] in mine:
                print(f"diag mode={one_['mode']} state={one_['state']} reason={one_.get('reason', '-')} "
                      f"peer_diagnosis={one_.get('peer_diagnosis', '-')}", flush=True)


def main(operation, address, port, *rest):
    if operation in ("serve", "slowly"):
        serve(address, port, *rest)
    signal.alarm(PATIENCE)  # a hang is a failure of this case, and no more
    print("ok", globals()[operation](address, int(port), *rest), flush=True)
    print("payload", sum(PAYLOAD), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
