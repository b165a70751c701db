#!/usr/bin/env python3
"""Both ends of a connection whose kernel is told to encrypt it (kTLS) when it has carried plain messages for a while. Knows nothing of the medium.

    ktls.py serve ADDRESS PORT
    ktls.py client ADDRESS PORT     prints "ok ..." or fails
"""
import signal
import socket
import struct
import sys

from flow import PAYLOAD, both, put, show, take

TCP_ULP, SOL_TLS, TX, RX = 31, 282, 1, 2
# Plain messages there and back, and their length; bytes each way after them.
PLAIN, LENGTH, AFTER = 300, 1000, 2_000_000


def keys(end):
    """struct tls12_crypto_info_aes_gcm_128 of what this end sends: version, cipher, iv, key, salt, record."""
    return struct.pack("=HH8s16s4s8s", 0x0303, 51, bytes([end] * 8), bytes([end + 1] * 16), bytes([end + 2] * 4), bytes(8))


def encrypt(sock, own, other):
    sock.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
    sock.setsockopt(SOL_TLS, TX, keys(own))
    sock.setsockopt(SOL_TLS, RX, keys(other))


def talk(sock, own, other):
    for i in range(PLAIN):
        for move in (put, take) if own == 10 else (take, put):
            move(sock, LENGTH, i * LENGTH)
    show(sock)
    if own == 10:
        sock.sendall(b"T")
        if sock.recv(1) != b"t":
            raise EOFError("no answer")
    else:
        if sock.recv(1) != b"T":
            raise EOFError("no question")
        sock.sendall(b"t")
    encrypt(sock, own, other)
    both(sock, AFTER)
    show(sock)
    sock.shutdown(socket.SHUT_WR)
    if sock.recv(1):
        raise ValueError("more than was sent")


def main(what, address, port):
    signal.alarm(60)
    name = (address, int(port))
    if what == "serve":
        listener = socket.create_server(name)
        print("serving", flush=True)
        talk(listener.accept()[0], 20, 10)
    else:
        talk(socket.create_connection(name), 10, 20)
    print("ok", f"{PLAIN} messages, then {AFTER} bytes each way encrypted", flush=True)
    print("payload", sum(PAYLOAD), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
