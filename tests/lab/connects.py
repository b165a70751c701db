"""HTTP requests, each over a connection of its own, for some seconds: connects.py ADDRESS PORT SECONDS.
Counts the answers that are not what was asked for."""
import sys
import time

import flow

address, port, seconds = sys.argv[1:]
good = wrong = 0
kinds = {}
end = time.monotonic() + float(seconds)
while time.monotonic() < end:
    try:
        sock = flow.opened()
        flow.named("connect", sock, address, int(port))
        sock.sendall(b"GET /a HTTP/1.0\r\n\r\n")
        data = b""
        while part := sock.recv(65536):
            data += part
        sock.close()
        if data.startswith(b"HTTP/1.1 200") and data.endswith(b"\0" * 20000):
            good += 1
        else:
            raise ValueError(f"{len(data)} bytes: {data[:20]!r}")
    except (OSError, ValueError) as error:
        wrong += 1
        kinds[str(error)] = kinds.get(str(error), 0) + 1
print(f"{good} right, {wrong} wrong {kinds or ''}")
