"""Owns: connections that end, or are handed to a program, while their ends still agree on memory (tests/tests/control/strict.rs).
    strict_ends.py closes|hands ROUNDS
Prints of how many connections the client had memory. Exit 0: each answer has come whole."""

import os
import socket
import subprocess
import sys

ANSWER = 300_000
TURNS = 40


def closes(line, turn):
    """Answers with much and closes, while the client still reads that."""
    for _ in range(turn % 24):
        line.sendall(line.recv(10))
    line.recv(10)
    line.sendall(bytes(ANSWER))


def reads_all(line, turn):
    for _ in range(turn % 24):
        line.sendall(b"0123456789")
        line.recv(10)
    line.sendall(b"0123456789")
    got = 0
    while part := line.recv(2000):
        got += len(part)
    assert got == ANSWER, got


def hands(line, turn):
    """A child that execs at some point of the small talk inherits the connection."""
    line.set_inheritable(True)
    for n in range(TURNS):
        if n == turn % 12:
            subprocess.run(["true"], close_fds=False, check=True)
        line.sendall(line.recv(10))


def talks(line, turn):
    for _ in range(TURNS):
        line.sendall(b"0123456789")
        assert line.recv(10) == b"0123456789"


def has_memory():
    with open("/proc/self/maps") as maps:
        return "smcr-region" in maps.read()


def main():
    how, rounds = sys.argv[1], int(sys.argv[2])
    serve, ask = {"closes": (closes, reads_all), "hands": (hands, talks)}[how]
    listener = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        for turn in range(rounds):
            with listener.accept()[0] as line:
                serve(line, turn)
        os._exit(0)
    in_memory = 0
    for turn in range(rounds):
        with socket.create_connection(listener.getsockname()) as line:
            ask(line, turn)
            in_memory += has_memory()
    assert os.wait()[1] == 0
    print(in_memory)


main()
