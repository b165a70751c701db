"""The stream that both ends of a case know, and sockets of either family: what `peer.py` and the forking servers use."""
import ctypes
import errno
import fcntl
import itertools
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time

FAMILY = int(os.environ.get("AF", "2"))
# AF_SMC over IPv6 is protocol 1 of its family.
PROTOCOL = int(os.environ.get("PROTOCOL", "0"))
LIBC = ctypes.CDLL(None, use_errno=True)
PERIOD = 65521
BLOCK = random.Random(7).randbytes(PERIOD) * 34
PATIENCE = int(os.environ.get("PATIENCE", "60"))
# The own address that a client has, where it is not to be the usual one.
SOURCE = os.environ.get("SOURCE", "")
PAYLOAD = [0, 0]
# What is open is looked at from outside: "client" waits at `show` for a line on stdin; with "both" the server keeps its end open meanwhile.
HOLD = os.environ.get("HOLD", "")


def pattern(at, n):
    """`n` bytes of the stream from offset `at` on; at most 2 MiB."""
    at %= PERIOD
    return memoryview(BLOCK)[at:at + n]


def raw_name(address, port):
    """An IPv6 socket takes IPv4 addresses in the form of IPv6."""
    if FAMILY == socket.AF_INET6 or PROTOCOL:
        ip = socket.inet_pton(socket.AF_INET6, address if ":" in address else f"::ffff:{address}")
        return struct.pack("=HHI16sI", socket.AF_INET6, socket.htons(port), 0, ip, 0)
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(address))


def named(call, sock, address, port):
    raw = raw_name(address, port)
    if getattr(LIBC, call)(sock.fileno(), raw, len(raw)) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def named_send(sock, data, flags, address, port):
    raw = raw_name(address, port)
    sent = LIBC.sendto(sock.fileno(), data, len(data), flags, raw, len(raw))
    if sent != len(data):
        error = ctypes.get_errno()
        raise OSError(error, f"{os.strerror(error)}: sent {sent}")


def accepted(listener):
    if FAMILY == socket.AF_INET:
        return listener.accept()[0]
    fd = LIBC.accept(listener.fileno(), None, None)
    if fd < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return socket.socket(FAMILY, socket.SOCK_STREAM, PROTOCOL, fileno=fd)


def local_name(sock):
    raw, length = ctypes.create_string_buffer(16), ctypes.c_uint(16)
    LIBC.getsockname(sock.fileno(), raw, ctypes.byref(length))
    return f"{socket.inet_ntoa(raw.raw[4:8])}:{struct.unpack_from('!H', raw.raw, 2)[0]}"


def tight(left=1):
    """One more descriptor may be opened, or none, and no other."""
    def is_open(fd):
        try:
            return fcntl.fcntl(fd, fcntl.F_GETFD) >= 0
        except OSError:
            return False
    free = next(fd for fd in itertools.count() if not is_open(fd))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + left, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def a_child(how):
    """Forks one that ends, and waits until the library has heard of it."""
    child = os.fork()
    if child == 0:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(0.3)


def fill_table():
    """Opens descriptors until no more may be."""
    try:
        while True:
            os.dup(1)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise


def opened():
    sock = socket.socket(FAMILY, socket.SOCK_STREAM, PROTOCOL)
    if SOURCE:
        sock.bind((SOURCE, 0))
    return sock


def asked(request):
    """The line by which a client asks for it."""
    return json.dumps({**request, "stay": True} if HOLD == "both" else request).encode() + b"\n"


def connect(address, port, request):
    sock = opened()
    named("connect", sock, address, port)
    sock.sendall(asked(request))
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
            raise ValueError(f"wrong byte at offset {at + wrong}, {told_of(data[wrong:])}, descriptor {sock.fileno()}")
        PAYLOAD[1] += len(data)
        at, n = at + len(data), n - len(data)
        if pause:
            time.sleep(pause)


def round_trip(sock, n, at):
    """n bytes of the stream there and back, from its offset `at` on; the next one's offset."""
    put(sock, n, at)
    take(sock, n, at)
    return (at + n) % PERIOD


def of_stream(n):
    """The first n bytes of the stream, as many as they are."""
    return (bytes(pattern(0, PERIOD)) * (n // PERIOD + 1))[:n]


def put_whole(sock, n):
    """All of them by one send(); a kernel's SMC takes no more than its ring holds, and is called again with the rest."""
    data = of_stream(n)
    sent = sock.sendall(data) or n if FAMILY == 43 else sock.send(data)
    PAYLOAD[0] += sent
    if sent != n:
        raise ValueError(f"a send of {n} bytes has taken {sent}")


def get_whole(sock, n):
    """All of them to one recv() that waits for them."""
    data = sock.recv(n, socket.MSG_WAITALL)
    PAYLOAD[1] += len(data)
    if data != of_stream(n):
        raise ValueError(f"{len(data)} bytes to a recv that waits for {n}, or wrong ones")


def become(sock, text, library):
    """This process becomes another program, with the library or without, that has the connection as `s` and runs this."""
    sock.set_inheritable(True)
    here = os.path.dirname(os.path.abspath(__file__))
    text = f"import sys, socket; sys.path.insert(0, {here!r}); from flow import *; s = socket.socket(fileno={sock.fileno()}); s.settimeout(20); {text}"
    os.execve(sys.executable, [sys.executable, "-c", text], {**os.environ, **({} if library else {"LD_PRELOAD": ""})})


def told_of(data):
    """What bytes are that should be others."""
    place = BLOCK.find(bytes(data[:12]))
    whole = place >= 0 and data == pattern(place, len(data))
    return f"{len(data)} bytes {bytes(data[:20]).hex()}" + (f" of offset {place}{'' if whole else ', not all of them'}" if place >= 0 else "")


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


def show(*socks):
    """What the kernel's AF_SMC says of these connections while they are open; others may look as well."""
    if FAMILY == 43:
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        import kernel
        mine = {local_name(sock) for sock in socks}
        for one_ in kernel.diag():
            if one_["local"] in mine:
                print(f"diag mode={one_['mode']} state={one_['state']} reason={one_.get('reason', '-')} "
                      f"peer_diagnosis={one_.get('peer_diagnosis', '-')}", flush=True)
    if HOLD:
        print("shown", flush=True)
        sys.stdin.readline()
