#!/usr/bin/env python3
"""Connections of small messages, what pages their shared memory has, and what is left of more when they are idle.

    pages.py serve        one end: says its port, and echoes
    pages.py use PORT     the other end: says after each step how many pages each connection has, by mincore(2)
"""
import ctypes
import os
import select
import socket
import sys

CONNECTIONS = 8
PAGE = 4096
LARGE = 100_000


def serve():
    listener = socket.create_server(("127.0.0.1", 0))
    print("port", listener.getsockname()[1], flush=True)
    conns = {}
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                conn = listener.accept()[0]
                conns[conn.fileno()] = conn
                poll.register(conn, select.EPOLLIN)
            elif data := conns[fd].recv(65536):
                conns[fd].sendall(data)
            else:
                sys.exit(0)


def pages():
    """Of each region of this process: its pages that there are, whoever has them mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if "memfd:smcr-region" in line]
    for at, _, offset, *_ in lines:
        first, end = (int(x, 16) for x in at.split("-"))
        if int(offset, 16):
            continue
        there = (ctypes.c_ubyte * ((end - first) // PAGE))()
        if libc.mincore(ctypes.c_void_p(first), ctypes.c_size_t(end - first), there):
            raise OSError(ctypes.get_errno(), "mincore")
        found.append(sum(page & 1 for page in there))
    return found


def use(port):
    conns = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    poll = select.epoll()
    for conn in conns:
        poll.register(conn, select.EPOLLIN)

    def rounds(count, size):
        for _ in range(count):
            for conn in conns:
                conn.sendall(bytes(size))
            left = {conn.fileno(): size for conn in conns}
            while any(left.values()):
                for fd, _ in poll.poll():
                    left[fd] -= len(os.read(fd, 65536))

    def say(step):
        print(step, *pages(), flush=True)

    rounds(400, 64)
    say("small")
    rounds(20, LARGE)
    say("large")
    for _ in range(40):
        poll.poll(1.5)                      # a set that sleeps without an event
        if sum(pages()) <= CONNECTIONS:
            break
    say("idle")
    rounds(400, 1000)
    say("again")


use(int(sys.argv[2])) if sys.argv[1] == "use" else serve()
