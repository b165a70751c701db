"""What a client of `peer.py` does to see what single calls take: many small messages, and large ones whole. Each operation is named as it is called."""
from flow import connect, get_whole, put_whole, round_trip, show


def rally(address, port, n, rounds):
    """Ping-pong, so often."""
    n, at = int(n), 0
    sock = connect(address, port, {"op": "echo", "n": n, "rounds": int(rounds)})
    for _ in range(int(rounds)):
        at = round_trip(sock, n, at)
    show(sock)
    return f"{rounds} rounds of {n} bytes"


def whole(address, port, n):
    """n bytes by one send() and to one recv(), there and then back."""
    n = int(n)
    sock = connect(address, port, {"op": "whole", "n": n})
    put_whole(sock, n)
    get_whole(sock, n)
    show(sock)
    return f"{n} bytes each way, by one call at each end"
