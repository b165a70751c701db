"""Echo server and client on asyncio protocols, the client with one request in flight per connection.

asyncio_echo.py server            prints `ready <port>`, serves until it is ended
asyncio_echo.py client PORT CONNS SECS
"""

import asyncio
import json
import sys
import time

SIZE = 64
WARM = 0.2


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class Ask(asyncio.Protocol):
    def __init__(self, run):
        self.run, self.have, self.message = run, 0, b"x" * SIZE

    def connection_made(self, transport):
        self.transport = transport
        self.fire()

    def fire(self):
        self.sent = time.perf_counter_ns()
        self.transport.write(self.message)

    def data_received(self, data):
        self.have += len(data)
        if self.have < SIZE:
            return
        now, run = time.perf_counter_ns(), self.run
        self.have = 0
        run.all_ops += 1
        if now >= run.begin:
            run.latency.append(now - self.sent)
        if now < run.end:
            self.fire()
        else:
            self.transport.close()

    def connection_lost(self, exc):
        self.run.open -= 1
        if self.run.open == 0:
            self.run.done.set_result(exc)


class Run:
    pass


async def client(port, conns, secs):
    run = Run()
    run.begin = time.perf_counter_ns() + int(WARM * 1e9)
    run.end = run.begin + int(secs * 1e9)
    run.latency, run.all_ops, run.open = [], 0, conns
    loop = asyncio.get_running_loop()
    run.done = loop.create_future()
    for _ in range(conns):
        await loop.create_connection(lambda: Ask(run), "127.0.0.1", port)
    if await run.done:
        sys.exit("connection lost")
    counts = {}
    for v in run.latency:
        v = v // 100 * 100
        counts[v] = counts.get(v, 0) + 1
    hist = [[v, counts[v]] for v in sorted(counts)]
    print(json.dumps({"ops": len(run.latency), "all_ops": run.all_ops, "secs": secs, "hist": hist}))


async def server():
    s = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print("ready", s.sockets[0].getsockname()[1], flush=True)
    await s.serve_forever()


if sys.argv[1] == "server":
    asyncio.run(server())
else:
    asyncio.run(client(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
