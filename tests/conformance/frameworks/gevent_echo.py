"""gevent: its own loop (libev) under patched blocking sockets."""

from gevent import monkey

monkey.patch_all()

import hashlib
import socket
import sys

import gevent
from gevent.server import StreamServer


def echo(peer, _):
    while raw := peer.recv(65536):
        peer.sendall(raw)


def client(n):
    s, digest = socket.create_connection(("127.0.0.1", 7040)), hashlib.sha256()
    for i in range(200):
        raw, got = b"%d-%d" % (n, i) * (1 + (i * 37) % 3000), b""
        s.sendall(raw)
        while len(got) < len(raw):
            got += s.recv(65536)
        assert got == raw
        digest.update(got)
    s.close()
    return digest.hexdigest()


if sys.argv[1] == "server":
    StreamServer(("127.0.0.1", 7040), echo).serve_forever()
print(sorted(job.value for job in gevent.joinall([gevent.spawn(client, n) for n in range(10)])))
