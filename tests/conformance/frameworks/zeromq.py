"""ZeroMQ: request and reply, and a flood (its I/O threads wait in epoll)."""

import hashlib
import sys

import zmq

context = zmq.Context()
if sys.argv[1] == "server":
    flood = context.socket(zmq.PUSH)
    flood.bind("tcp://127.0.0.1:7041")
    reply = context.socket(zmq.REP)
    reply.bind("tcp://127.0.0.1:7040")
    while True:
        raw = reply.recv()
        if raw == b"flood":
            for i in range(3000):
                flood.send(b"%d" % i * 500)
        reply.send(raw[::-1])
request, flood, digest = context.socket(zmq.REQ), context.socket(zmq.PULL), hashlib.sha256()
request.connect("tcp://127.0.0.1:7040")
flood.connect("tcp://127.0.0.1:7041")
for i in range(4000):
    request.send(b"%d" % i * 30)
    digest.update(request.recv())
request.send(b"flood")
for _ in range(3000):
    digest.update(flood.recv())
request.recv()
print(digest.hexdigest())
