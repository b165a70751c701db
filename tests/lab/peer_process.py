"""What a client of `peer.py` does where its process is the subject: children that end beside a connection, and descriptors that run out. Each operation is named as it is called."""
import json
import sys

from flow import HOLD, a_child, connect, fill_table, named, opened, put, show, take, tight


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
