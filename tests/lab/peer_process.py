"""What a client of `peer.py` does where its process is the subject: children that end beside a connection, descriptors that run out, signals that end
its calls. Each operation is named as it is called."""
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import threading

from flow import HOLD, LIBC, PATIENCE, a_child, become, connect, fill_table, named, opened, put, show, take, tight
from peer_clients import OWN, ends


def tightly(address, port, n, left):
    """When the connection is made, one more descriptor may be opened, or none."""
    sock = opened()
    tight(int(left))
    named("connect", sock, address, port)
    request = {"op": "lockstep", "lengths": [int(n)], "stay": HOLD == "both"}
    sock.sendall(json.dumps(request).encode() + b"\n")
    put(sock, int(n))
    take(sock, int(n))
    show(sock)
    return f"{n} bytes there and back"


def children(address, port, n, where, how):
    """Children end beside a connection that goes on, at this end or at the other."""
    n, rounds = int(n), 6
    sock = connect(address, port, {"op": "children", "n": n, "rounds": rounds, "how": how if where == "server" else ""})
    for turn in range(rounds):
        put(sock, n, turn * n)
        if where == "client":
            a_child(how)
        take(sock, n, turn * n)
    show(sock)
    return f"{rounds} children {how}, {2 * rounds * n} bytes"


def becomes(address, port, name, library=""):
    """Another program has the connection, with the library or without: how that ends there."""
    sock = connect(address, port, {"op": "report", "name": name})
    sock.recv(1)
    put(sock, 100)
    show(sock)
    become(sock, "print('ok the next program saw', until_end(s)[0])", library)


def full(address, port, n, number):
    """So many connections carry n bytes there and back; then no end may open any descriptor, and they do so once more."""
    n, socks = int(n), [connect(address, port, {"op": "echo", "n": int(n), "rounds": 2}) for _ in range(int(number))]
    for sock in socks:
        put(sock, n)
        take(sock, n)
    control = connect(address, port, {"op": "full"})
    control.recv(1)
    fill_table()
    print("up", flush=True)
    sys.stdin.readline()
    for sock in socks:
        put(sock, n, n)
        take(sock, n, n)
    return f"{n} bytes there and back, twice over {number} connections"


def interrupted(address, port, n, how):
    """connect() returns before there is a connection (the answer to its SYN is late, see the case): "signal": by a signal, "again": the same, and connect() is called once
    more, which waits; "at once": the socket does not wait."""
    sock = opened()
    sock.setblocking(how != "at once")
    wanted = errno.EINPROGRESS if how == "at once" else errno.EINTR
    calls = threading.Event()
    if wanted == errno.EINTR:
        signal.signal(signal.SIGUSR1, lambda *_: None)  # ends a call: no SA_RESTART
        # Again and again, for the first one may come before the call.
        ring = threading.Thread(target=lambda me: [signal.pthread_kill(me, signal.SIGUSR1) for _ in iter(lambda: calls.wait(0.5), True)],
                                args=(threading.get_ident(),), daemon=True)
        ring.start()
    try:
        named("connect", sock, address, port)
        raise ValueError("connect() has succeeded")
    except OSError as error:
        if error.errno != wanted:
            raise
    finally:
        calls.set()
    if wanted == errno.EINTR:
        ring.join()
    print("begun", flush=True)
    sys.stdin.readline()
    if how == "again":
        named("connect", sock, address, port)
    elif not select.select([], [sock], [], PATIENCE)[1]:
        raise TimeoutError("never connected")
    if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(error, os.strerror(error))
    sock.setblocking(True)
    sock.sendall(json.dumps({"op": "lockstep", "lengths": [int(n)], "stay": HOLD == "both"}).encode() + b"\n")
    put(sock, int(n))
    take(sock, int(n))
    show(sock)
    return f"{errno.errorcode[wanted]}; {n} bytes there and back"


def anew(address, port, n, when):
    """Disconnected by AF_UNSPEC, and connected again under its number: when it is on a link, or "at once", in its handshake."""
    sock = connect(address, port, {"op": "report", "name": OWN, "quiet": True})
    if when != "at once":
        put(sock, 100)
        print("up", flush=True)
        sys.stdin.readline()
    nobody = struct.pack("=H14x", socket.AF_UNSPEC)
    if LIBC.connect(sock.fileno(), nobody, len(nobody)) < 0:
        raise OSError("it can't be disconnected")
    named("connect", sock, address, port)
    sock.sendall(json.dumps({"op": "lockstep", "lengths": [int(n)]}).encode() + b"\n")
    put(sock, int(n))
    take(sock, int(n))
    how = "" if when == "at once" else f"; {ends(address, port, OWN)}"
    return f"{n} bytes there and back over the second{how}"
