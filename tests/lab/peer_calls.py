"""What a client of `peer.py` does to see what single calls take. Each operation is named as it is called."""
from flow import PERIOD, connect, put, show, take


def rally(address, port, n, rounds):
    """Ping-pong, so often."""
    n, at = int(n), 0
    sock = connect(address, port, {"op": "echo", "n": n, "rounds": int(rounds)})
    for _ in range(int(rounds)):
        put(sock, n, at)
        take(sock, n, at)
        at = (at + n) % PERIOD
    show(sock)
    return f"{rounds} rounds of {n} bytes"
