"""HTTP requests, each over a connection of its own, for some seconds: connects.py ADDRESS PORT SECONDS.
Counts the answers that are not what was asked for, and says of each when it came, what it took and from which port it was asked."""
import sys
import time

import flow

address, port, seconds = sys.argv[1:]
good = wrong = 0
kinds = []
start = time.monotonic()
longest = 0.0
while (began := time.monotonic()) < start + float(seconds):
    sock = flow.opened()
    try:
        flow.named("connect", sock, address, int(port))
        sock.sendall(b"GET /a HTTP/1.0\r\n\r\n")
        data = b""
        while part := sock.recv(65536):
            data += part
        if data.startswith(b"HTTP/1.1 200") and data.endswith(b"\0" * 20000):
            good += 1
        else:
            raise ValueError(f"{len(data)} bytes: {data[:20]!r}")
    except (OSError, ValueError) as error:
        wrong += 1
        kinds.append(f"{error} at {began - start:.2f} s, took {time.monotonic() - began:.2f} s, {flow.local_name(sock)}")
    sock.close()
    longest = max(longest, time.monotonic() - began)
print(f"{good} right, {wrong} wrong, longest {longest:.2f} s {kinds or ''}")
