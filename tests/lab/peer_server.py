"""What a server of `peer.py` does: on each connection what the client's first line says."""
import json
import os
import select
import signal
import socket
import threading
import time

from flow import (PERIOD, a_child, accepted, both, fill_table, get_whole, line, named, opened, pattern, put, put_whole, take, tight, told_of,
                  until_end)
from peer_urgent import READER, urgent_in, urgent_out


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
                    raise ValueError(f"wrong byte after offset {at}: {told_of(data)}, descriptor {sock.fileno()}")
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
    elif op == "whole":                  # n bytes to one call, and n by one
        get_whole(sock, n)
        put_whole(sock, n)
    elif op == "source":
        put(sock, n)
    elif op == "pours":                  # as much as the client takes
        piece = bytes(1 << 20)
        sock.sendall(b"r")
        sock.recv(1)
        while not until_closed(sock, piece):
            pass
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
    elif op == "report":                 # how the connection ends, told to a client that asks for it by its name
        if not r.get("quiet"):
            sock.sendall(b"r")
        time.sleep(r.get("wait", 0))
        ENDS[r["name"]] = until_end(sock)
        if r.get("kept"):
            LET_GO.setdefault(r["name"], threading.Event()).wait(60)
    elif op == "let go":
        sock.sendall(b"r")
        sock.recv(1)
        LET_GO.setdefault(r["name"], threading.Event()).set()
    elif op == "late":                   # to the client's end, a pause, then n bytes
        while sock.recv(65536):
            pass
        time.sleep(12)
        put(sock, n)
    elif op == "ends":
        sock.sendall(json.dumps(ENDS.get(r["name"])).encode() + b"\n")
    elif op == "unread":                 # ends with bytes unread: a reset, for TCP
        sock.sendall(b"r")
        select.select([sock], [], [], 20)
        time.sleep(r.get("wait", 1))
    elif op == "over":                   # both ends have shut down when it closes, with bytes unread
        sock.sendall(b"r")
        while not select.select([sock], [], [], 20)[0] or len(sock.recv(n, socket.MSG_PEEK)) < n:
            time.sleep(0.01)
        time.sleep(1)
        sock.shutdown(socket.SHUT_WR)
        time.sleep(0.5)
    elif op == "urgent":
        if r["inline"]:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        sock.sendall(READER)
        good = urgent_in(sock, r["parts"], r["inline"])
        sock.sendall(b"y" if good else b"n")
    elif op == "urgent back":
        urgent_out(sock, r["parts"])
        sock.recv(1)
    elif op == "left":                   # n bytes that the client does not read; how that ends for this end
        put(sock, n)
        ENDS[r["name"]] = until_end(sock)
    elif op == "jam":                    # a byte, when `lost` says so
        sock.sendall(b"r")
        JAM.wait()
        sock.sendall(b"j")
        until_end(sock)
    elif op == "children":               # a child ends between the bytes of each round and their way back
        for turn in range(r["rounds"]):
            take(sock, n, turn * n)
            if r["how"]:
                a_child(r["how"])
            put(sock, n, turn * n)
    elif op == "full":
        fill_table()
        sock.sendall(b"f")
        until_end(sock)
    elif op == "lost":
        lost(sock, n, r["mark"])
    elif op == "hold":                   # stays open until the client ends it
        sock.sendall(b"r")
        until_end(sock)
    if r.get("stay"):                    # the client is looked at before it ends
        until_end(sock)
    sock.close()


def until_closed(sock, piece):
    """Sends it; whether the client has closed."""
    try:
        sock.sendall(piece)
        return False
    except (BrokenPipeError, ConnectionResetError):
        return True


def lost(sock, n, mark):
    """Reads all that has come in one call, while others take each send slot of the link (the path is cut once there is the file `mark`), and a
    signal ends its wait for one: a kernel tells nothing of that read. Then the rest of n bytes."""
    sock.sendall(b"r")
    while not os.path.exists(mark):
        time.sleep(0.05)
    JAM.set()
    time.sleep(1)
    threading.Timer(1.5, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1)).start()
    began = time.monotonic()
    data = sock.recv(1 << 20)
    held = time.monotonic() - began
    if data != pattern(0, len(data)):
        raise ValueError("wrong bytes")
    take(sock, n - len(data), len(data))
    sock.sendall(json.dumps([len(data), round(held, 1), round(time.monotonic() - began, 1)]).encode() + b"\n")


JAM = threading.Event()
# How connections have ended, by the names that clients gave them.
ENDS = {}
# Those that stay open behind that.
LET_GO = {}


def serve(address, port, asleep=0, how=""):
    """`how`: "tight": with one descriptor for each connection and no other; "alone": without further threads, one connection after the other."""
    listener = opened()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    named("bind", listener, address, int(port))
    listener.listen(256)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    print("serving", flush=True)
    time.sleep(float(asleep))

    def one(sock):
        try:
            serve_one(sock)
        except (OSError, EOFError, ValueError) as error:
            print(f"server: {type(error).__name__}: {error}", flush=True)
            sock.close()

    while True:
        if how == "tight":
            tight()
        sock = accepted(listener)
        if how == "alone":
            one(sock)
            continue
        threading.Thread(target=one, args=(sock,), daemon=True).start()
