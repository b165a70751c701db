"""The urgent byte at both ends of a case: how it is sent and read, and what a client of `peer.py` does with it. Each operation is named as it is called;
`urgent_out` and `urgent_in` are the server's as well."""
import errno
import select
import socket

from flow import FAMILY, PAYLOAD, asked, connect, pattern, put, show, take

READER = b"k" if FAMILY == 43 else b"r"
# Bytes of a stream before each urgent one, and behind the last.
ONE = [100, 100]
# 0: one urgent byte at once behind another; for a kernel with a byte before it, as below.
ROW = [100, 0, 0, 100]


def where_rings_end(before):
    """Urgent bytes as the last and the first of a ring of 64 KiB, and of one of 128 KiB, for a stream that begins with so many others."""
    return [65535 - before, 0, 65534, 0, 70_000]


def urgent_out(sock, parts):
    """The parts, with an urgent byte between them, to a reader who says first what it is, and of each such byte that it has it: it is passed over before
    that, and the next one would take its place, as with TCP."""
    # A kernel that has read all before an urgent byte, and then fetches it, never passes over it (docs/wire.md).
    before, at = int(sock.recv(1) == b"k"), 0
    for number, n in enumerate(parts):
        if number + 1 == len(parts):
            return put(sock, n, at)
        n = max(n, before)
        put(sock, n - before, at)
        at += n
        sock.send(bytes(pattern(at - before, before)) + urgent_byte(number), socket.MSG_OOB)
        PAYLOAD[0] += before
        if not sock.recv(1):
            raise EOFError(f"urgent byte {number} was not read")


def urgent_byte(number):
    return bytes([ord("!") + number])


def urgent_in(sock, parts, inline=False):
    """Whether they come so; `inline`: the urgent bytes in their places, SO_OOBINLINE has been set."""
    poll, at = select.poll(), 0
    poll.register(sock, select.POLLPRI)
    for number, n in enumerate(parts):
        if number + 1 == len(parts):
            take(sock, n, at)
            return True
        n = max(n, int(READER == b"k"))
        take(sock, n, at)
        at += n
        pri, apart = bool(poll.poll(10000)), fetched(sock)
        found = [apart, sock.recv(1)] if inline else [apart]
        if not pri or found != [None, urgent_byte(number)][not inline:]:
            print(f"server: urgent byte {number} behind {at}: {found}, pri={pri}", flush=True)
            return False
        sock.sendall(READER)


def fetched(sock):
    """The urgent byte, apart from the stream; None: it is in there."""
    try:
        return sock.recv(1, socket.MSG_OOB)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def urgent(address, port, parts=ONE, inline=False):
    request = {"op": "urgent", "parts": parts, "inline": inline}
    sock = connect(address, port, request)
    urgent_out(sock, parts)
    answer = sock.recv(1)
    show(sock)
    if answer != b"y":
        raise ValueError("the server read something else")
    return f"{len(parts) - 1} urgent bytes between {parts}{', in line' if inline else ''}"


def urgents(address, port):
    """In a row and where rings end; and in line."""
    before = len(asked({"op": "urgent", "parts": where_rings_end(100), "inline": False}))  # as long as any of them
    return f"{urgent(address, port, where_rings_end(before))}; {urgent(address, port, ROW, True)}"


def urgent_back(address, port, parts=ONE, inline=False):
    sock = connect(address, port, {"op": "urgent back", "parts": parts})
    if inline:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    sock.sendall(READER)
    good = urgent_in(sock, parts, inline)
    show(sock)
    sock.sendall(b"y")
    if not good:
        raise ValueError("it was read otherwise")
    return f"{len(parts) - 1} urgent bytes between {parts}{', in line' if inline else ''}, from the server"


def urgents_back(address, port):
    return f"{urgent_back(address, port, where_rings_end(0))}; {urgent_back(address, port, ROW, True)}"
