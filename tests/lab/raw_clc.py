#!/usr/bin/env python3
"""A plain program that marks its socket itself, so that its end shows the SMC option of libsmcr, and then says what its row says: not CLC, or
CLC as nobody should say it. Where the connection is to go on over TCP it checks that each byte of the program arrives, and none of CLC.

    raw_clc.py serve ADDRESS PORT ROW...   each row on a port of its own, from PORT on
    raw_clc.py client ADDRESS PORT ROW...  each row by a connection of its own, four at a time

A row is a function: of a server, or of a client, and what becomes of the connection: "tcp" or "ends". One of a server that goes on over TCP
may have said something before that is the program's; a client reads it first. Where the library declines, the row has the code that it must say.
"""
import concurrent.futures
import json
import os
import socket
import struct
import sys
import threading
import time

from flow import both, line, named, put, take, until_end

LEVEL, MARK = 0x534d, 1
N = 30_000
SMCR, SMCD = bytes.fromhex("e2d4c3d9"), bytes.fromhex("e2d4c3c4")
HELLO = bytes.fromhex("e2d4c3d920000c20e2d4c3d9")
PROPOSAL, ACCEPT, CONFIRM, DECLINE = 1, 2, 3, 4
OURS, THEIRS = "LIBSMCR", "NOBODY-HAS-THIS"
# What a server says is the same in each process that knows it: the other end reads it.
NAME = b"stranger"
SERVER, CLIENT = {}, {}


def row(rows, name, wanted, stray=b""):
    def note(function):
        rows[name] = (function, wanted, stray)
        return function
    return note


# --- messages ---

def message(kind, body, last=0x20, length=None, eye=SMCR, trailer=SMCR):
    return eye + bytes([kind]) + struct.pack("!H", 12 + len(body) if length is None else length) + bytes([last]) + body + trailer


def placed(size, **at):
    """A body of a message of this size; `b64=...` puts bytes at offset 64 of the message."""
    body = bytearray(size - 12)
    for place, data in at.items():
        start = int(place[1:]) - 8
        body[start:start + len(data)] = data
    return bytes(body[:size - 12])


def eid(text):
    return text.encode().ljust(32)


def own(address):
    """The GID of an IPv4 address."""
    return bytes(10) + b"\xff\xff" + socket.inet_aton(address)


def proposal(eids=(OURS,), count=None, offset=28, ip_offset=0, conns=255, links=1, last=0x22, size=0, **how):
    at = {"b8": os.urandom(8), "b16": own("10.77.0.2"), "b32": b"\2\0\0\0\0\2", "b38": struct.pack("!H", ip_offset), "b50": struct.pack("!H", offset),
          "b80": bytes([len(eids) if count is None else count]), "b83": b"\x10", "b88": own("10.77.0.2"), "b104": bytes([conns, links])}
    at |= {f"b{120 + 32 * i}": eid(text) for i, text in enumerate(eids)}
    return message(PROPOSAL, placed(size or 124 + 32 * len(eids), **at), last, **how)


def answer(kind, name=OURS, index=1, token=5, code=0x23, address=1 << 30, conns=255, links=1, release=1, gids=0, last=0x28, size=0, **how):
    """Accept or Confirm, on first contact if nothing else is said."""
    at = {"b8": NAME if kind == ACCEPT else os.urandom(8), "b16": own("10.77.0.1" if kind == ACCEPT else "10.77.0.2"), "b32": b"\2\0\0\0\0\1", "b38": b"\0\0\x99", "b41": b"\0\0\1\1", "b45": bytes([index]),
          "b46": struct.pack("!I", token), "b50": bytes([code]), "b52": struct.pack("!Q", address), "b61": b"\0\0\1", "b64": eid(name), "b104": bytes([0x80, 0x20 | release]),
          "b108": b"stranger".ljust(32), "b140": bytes([conns, links])}
    if kind == CONFIRM:
        at |= {"b156": bytes([gids or 1]), "b160": own("10.77.0.2")}
    return message(kind, placed(size or (180 if kind == CONFIRM else 160), **at), last, **how)


def decline(last=0x10, size=28, **how):
    return message(DECLINE, placed(size, b8=NAME, b16=bytes.fromhex("03030000")), last, **how)


def slowly(sock, data):
    """In 12 pieces, for a message has to be there within 6 s."""
    for at in range(0, len(data), len(data) // 12):
        sock.sendall(data[at:at + len(data) // 12])
        time.sleep(0.02)


class Late(Exception):
    """The other end has gone on without CLC: it was not greeted in time, and that is nothing that this row is about."""


def heard(sock, *kinds):
    """A message, which must be of one of these kinds."""
    first = sock.recv(8, socket.MSG_PEEK | socket.MSG_WAITALL)
    if first[:4] != SMCR[:len(first[:4])]:
        raise Late
    if len(first) < 8:
        raise EOFError("the end in place of CLC")
    size = struct.unpack("!H", first[5:7])[0]
    data = sock.recv(size, socket.MSG_WAITALL)
    if first[4] not in kinds or len(data) != size:
        raise ValueError(f"{data.hex()} in place of kinds {kinds}")
    return data


def declined(sock, code):
    """A Decline for this reason; where the ends disagree on their groups it ends that of this connection."""
    said = heard(sock, DECLINE)
    if (said[16:20].hex(), said[7] & 0x0f) != (code, 8 if code == "04000000" else 0):
        raise ValueError(f"{said.hex()}, where {code} is the reason")


# Accepts and Confirms of another form: of version 1; of a group that is there already.
V1, NOT_NEW = {"size": 68, "last": 0x18}, {"size": 108, "last": 0x20}


# --- a server ---

def greeted(sock):
    sock.sendall(HELLO)
    return heard(sock, PROPOSAL)


row(SERVER, "nothing", "tcp")(lambda sock: None)
for what, first in {"text": b"220 stranger ESMTP\r\n", "a greeting with another end": HELLO[:-1] + b"x", "half a greeting": HELLO[:6], "Accept": answer(ACCEPT), "Decline": decline()}.items():
    row(SERVER, f"{what} and no greeting", "tcp", first)(lambda sock, first=first: sock.sendall(first))


@row(SERVER, "a greeting and Decline in pieces", "tcp")
def _(sock):
    slowly(sock, HELLO)
    heard(sock, PROPOSAL)
    slowly(sock, decline())


@row(SERVER, "Decline and the program's bytes behind it", "tcp", b"welcome")
def _(sock):
    greeted(sock)
    sock.sendall(decline() + b"welcome")


@row(SERVER, "Decline twice", "tcp", decline())
def _(sock):
    greeted(sock)
    sock.sendall(decline() * 2)


@row(SERVER, "the end after the greeting", "ends")
def _(sock):
    greeted(sock)
    sock.close()


@row(SERVER, "a reset after the greeting", "ends")
def _(sock):
    greeted(sock)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
    sock.close()


@row(SERVER, "the end within Accept", "ends")
def _(sock):
    greeted(sock)
    sock.sendall(answer(ACCEPT)[:70])
    sock.close()


# After the greeting and a Proposal. What can't be taken any more ends the connection; what can be declined is, and TCP goes on.
for what, (data, wanted) in {
        "Decline of version 2": (decline(0x20, 44), "tcp"),
        "Decline with another trailer, as Linux takes it": (decline(trailer=b"abcd"), "tcp"),
        "Decline of 12 bytes": (message(DECLINE, b""), "ends"),
        "Decline of 1,000 bytes": (decline(size=1000), "ends"),
        "half a Decline": (decline()[:15], "ends"),
        "another greeting": (HELLO, "ends"),
        "the program's bytes": (b"HTTP/1.1 200 OK\r\n\r\n", "ends"),
        "Proposal": (proposal(), "ends"),
        "Confirm": (answer(CONFIRM), "ends"),
        "half an Accept": (answer(ACCEPT)[:80], "ends"),
        "Accept of 65,535 bytes": (answer(ACCEPT, length=65535) + bytes(65535 - 160), "ends"),
        "Accept of 1,025 bytes": (answer(ACCEPT, length=1025) + bytes(1025 - 160), "ends"),
        "Accept of 11 bytes": (answer(ACCEPT, length=11), "ends"),
        "Accept that is shorter than it says": (answer(ACCEPT, length=300) + bytes(140), "ends"),
        "Accept of version 0": (answer(ACCEPT, last=0x08), "ends"),
        "Accept with another trailer": (answer(ACCEPT, trailer=b"abcd"), "ends"),
        "an unknown type": (message(9, bytes(100)), "ends")}.items():
    @row(SERVER, f"{what} in place of Accept" if wanted == "tcp" or "Accept" not in what else what, wanted)
    def _(sock, data=data):
        greeted(sock)
        sock.sendall(data)

for what, (data, code) in {
        "of SMC-D": (answer(ACCEPT, eye=SMCD, trailer=SMCD), "03040000"), "of version 1": (answer(ACCEPT, **V1), "03040000"),
        "of another EID": (answer(ACCEPT, THEIRS), "03030008"), "of a group that is not there": (answer(ACCEPT, **NOT_NEW), "04000000"),
        "of RMBE index 0": (answer(ACCEPT, index=0), "09990001"), "of alert token 0": (answer(ACCEPT, token=0), "09990000"),
        "of MTU code 0": (answer(ACCEPT, code=0x20), "09990002"), "of MTU code 6": (answer(ACCEPT, code=0x26), "09990002"),
        "of size code 6": (answer(ACCEPT, code=0x63), "09990001"), "of size code 15": (answer(ACCEPT, code=0xf3), "09990001"),
        "of a buffer beyond all addresses": (answer(ACCEPT, address=(1 << 64) - 100), "09990001"),
        "of release 2.2": (answer(ACCEPT, release=2), "03030009"), "of 3 links": (answer(ACCEPT, links=3), "0303000b"), "of no links": (answer(ACCEPT, links=0), "0303000b"),
        "of 15 connections": (answer(ACCEPT, conns=15), "0303000a"), "of no connections": (answer(ACCEPT, conns=0), "0303000a")}.items():
    @row(SERVER, f"Accept {what}", "tcp")
    def _(sock, data=data, code=code):
        greeted(sock)
        sock.sendall(data)
        declined(sock, code)


# --- a client ---

def hears_greeting(sock):
    data = sock.recv(len(HELLO), socket.MSG_WAITALL)
    if data != HELLO:
        raise ValueError(f"no greeting: {data.hex()}")


row(CLIENT, "the program's bytes at once", "tcp")(hears_greeting)


@row(CLIENT, "nothing for 9 s", "tcp")
def _(sock):
    hears_greeting(sock)
    time.sleep(9)
    declined(sock, "02010000")


@row(CLIENT, "Decline before the greeting", "tcp")
def _(sock):
    sock.sendall(decline())
    hears_greeting(sock)


@row(CLIENT, "Proposal in pieces, then Decline", "tcp")
def _(sock):
    hears_greeting(sock)
    slowly(sock, proposal())
    heard(sock, ACCEPT)
    slowly(sock, decline())


@row(CLIENT, "Proposal before the greeting, then Decline", "tcp")
def _(sock):
    sock.sendall(proposal())
    hears_greeting(sock)
    heard(sock, ACCEPT)
    sock.sendall(decline())


@row(CLIENT, "the end within Proposal", "ends")
def _(sock):
    hears_greeting(sock)
    sock.sendall(proposal()[:70])
    sock.shutdown(socket.SHUT_WR)


for what, (data, wanted) in {
        "Decline": (decline(), "tcp"),
        "Decline of version 2": (decline(0x20, 44), "tcp"),
        "half a Decline": (decline()[:15], "ends"),
        "Decline of 12 bytes": (message(DECLINE, b""), "ends"),
        "the greeting": (HELLO, "ends"),
        "Accept": (answer(ACCEPT), "ends"),
        "Confirm": (answer(CONFIRM), "ends"),
        "half a Proposal": (proposal()[:80], "ends"),
        "Proposal of 65,535 bytes": (proposal(length=65535) + bytes(65535 - 156), "ends"),
        "Proposal of 11 bytes": (proposal(length=11), "ends"),
        "Proposal of version 0": (proposal(last=0x02), "ends"),
        "Proposal with another trailer": (proposal(trailer=b"abcd"), "ends"),
        "Proposal with an IP area far away": (proposal(ip_offset=41), "ends"),
        "Proposal with an extension far away": (proposal(offset=4000), "ends"),
        "Proposal with an extension at its end": (proposal(offset=110), "ends"),
        "Proposal of 9 EIDs": (proposal([OURS] * 9), "ends"),
        "Proposal of 255 EIDs, of which there is one": (proposal(count=255), "ends"),
        "Proposal with bytes that belong to nothing": (proposal(size=200), "ends"),
        "Proposal twice": (proposal() * 2, "ends"),
        "an unknown type": (message(9, bytes(100)), "ends")}.items():
    @row(CLIENT, what, wanted)
    def _(sock, data=data):
        hears_greeting(sock)
        sock.sendall(data)

for what, (data, code) in {
        "without a common EID": (proposal([THEIRS]), "03030008"), "without an EID": (proposal([]), "03030008"), "of SMC-D alone": (proposal(last=0x26, size=124 + 32 + 48), "03040000"),
        "of neither": (proposal(last=0x2a, size=84), "03040000"), "of 15 connections": (proposal(conns=15), "0303000a"), "of no links": (proposal(links=0), "0303000b")}.items():
    @row(CLIENT, f"Proposal {what}", "tcp")
    def _(sock, data=data, code=code):
        hears_greeting(sock)
        sock.sendall(data)
        declined(sock, code)

for what, (data, wanted) in {
        "Decline": (decline(), "tcp"),
        "Accept": (answer(ACCEPT), "ends"),
        "half a Confirm": (answer(CONFIRM)[:90], "ends"),
        "Confirm of 65,535 bytes": (answer(CONFIRM, length=65535) + bytes(65535 - 180), "ends"),
        "Confirm with another trailer": (answer(CONFIRM, trailer=b"abcd"), "ends"),
        "Confirm with 9 GIDs, of which there is one": (answer(CONFIRM, gids=9), "ends"),
        "the program's bytes": (b'{"op": "echo", "n": 30000}\n', "ends")}.items():
    @row(CLIENT, f"{what} behind Accept", wanted)
    def _(sock, data=data):
        hears_greeting(sock)
        sock.sendall(proposal())
        heard(sock, ACCEPT)
        sock.sendall(data)

for what, (data, code) in {
        "RMBE index 0": (answer(CONFIRM, index=0), "09990001"), "alert token 0": (answer(CONFIRM, token=0), "09990000"), "MTU code 0": (answer(CONFIRM, code=0x20), "09990002"),
        "size code 15": (answer(CONFIRM, code=0xf3), "09990001"), "version 1": (answer(CONFIRM, **V1), "030c0000"), "a group that is not new": (answer(CONFIRM, **NOT_NEW), "04000000"),
        "release 2.0": (answer(CONFIRM, release=0), "03030009"), "release 2.2": (answer(CONFIRM, release=2), "03030009"),
        "2 links in place of 1": (answer(CONFIRM, links=2), "0303000b"), "fewer connections": (answer(CONFIRM, conns=200), "0303000a")}.items():
    @row(CLIENT, f"Confirm of {what}", "tcp")
    def _(sock, data=data, code=code):
        hears_greeting(sock)
        sock.sendall(proposal())
        heard(sock, ACCEPT)
        sock.sendall(data)
        declined(sock, code)


# --- both ---

def marked():
    sock = socket.socket()
    sock.setsockopt(LEVEL, MARK, 1)
    return sock


def server_side(sock, name):
    """One connection of a row; what it was, to print."""
    function, wanted, _ = SERVER[name]
    try:
        function(sock)
    except Late:
        wanted = "late"
    if wanted == "ends":
        if sock.fileno() < 0:
            return "ends"
        sock.settimeout(60)
        how, _ = until_end(sock)
        return f"ends, seen as {how}"
    n = line(sock)["n"]
    take(sock, n)
    put(sock, n)
    how, more = until_end(sock)
    if more:
        raise ValueError(f"{more} bytes that are nobody's")
    return f"{wanted}, {how}"


def serve(address, port, names):
    def one(listener, name):
        while True:
            sock = listener.accept()[0]
            try:
                print(f"[{name}] {server_side(sock, name)}", flush=True)
            except (OSError, EOFError, ValueError) as error:
                print(f"[{name}] {type(error).__name__}: {error}", flush=True)
            sock.close()
    for i, name in enumerate(names):
        listener = marked()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        named("bind", listener, address, port + i)
        listener.listen(8)
        threading.Thread(target=one, args=(listener, name), daemon=True).start()
    print("serving", flush=True)
    threading.Event().wait()


def client_side(address, port, name):
    function, wanted, _ = CLIENT[name]
    sock = marked()
    sock.settimeout(40)
    sock.connect((address, port))
    function(sock)
    if wanted == "tcp":
        sock.sendall(json.dumps({"op": "echo", "n": N}).encode() + b"\n")
        both(sock, N)
        if more := until_end(sock)[1]:
            raise ValueError(f"{more} bytes that are nobody's")
        return "tcp"
    # What it had said until then may come.
    left = b""
    try:
        while data := sock.recv(65536):
            left += data
    except TimeoutError:
        return f"it hangs, {left.hex()[:100]}"
    except OSError:
        pass
    return "ends"


def client(address, port, names):
    def one(name):
        try:
            return f"[{name}] {client_side(address, port, name)}"
        except (OSError, EOFError, ValueError, Late) as error:
            return f"[{name}] {type(error).__name__}: {error}"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for text in pool.map(one, names):
            print(text, flush=True)
    print("all said", flush=True)


if __name__ == "__main__":
    what, address_, port_, *rest = sys.argv[1:]
    {"serve": serve, "client": client}[what](address_, int(port_), rest or list(SERVER if what == "serve" else CLIENT))
