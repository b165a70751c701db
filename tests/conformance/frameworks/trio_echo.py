"""trio: sends and receives at the same time on each stream."""

import hashlib
import sys

import trio


async def echo(stream):
    async for raw in stream:
        await stream.send_all(raw)


async def client(n, found):
    stream, digest = await trio.open_tcp_stream("127.0.0.1", 7040), hashlib.sha256()
    for i in range(200):
        raw, got = b"%d-%d" % (n, i) * (1 + (i * 37) % 3000), b""
        async with trio.open_nursery() as both:
            both.start_soon(stream.send_all, raw)
            while len(got) < len(raw):
                got += await stream.receive_some(65536)
        assert got == raw
        digest.update(got)
    found[n] = digest.hexdigest()
    await stream.aclose()


async def main():
    if sys.argv[1] == "server":
        await trio.serve_tcp(echo, 7040, host="127.0.0.1")
    found = {}
    async with trio.open_nursery() as all:
        for n in range(10):
            all.start_soon(client, n, found)
    print(sorted(found.items()))


trio.run(main)
