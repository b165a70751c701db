"""asyncio on uvloop (libuv)."""

import asyncio
import hashlib
import sys

import uvloop


async def echo(reader, writer):
    while raw := await reader.read(65536):
        writer.write(raw)
        await writer.drain()
    writer.close()


async def client(n):
    reader, writer = await asyncio.open_connection("127.0.0.1", 7040)
    digest = hashlib.sha256()
    for i in range(200):
        raw = b"%d-%d" % (n, i) * (1 + (i * 37) % 3000)
        writer.write(raw)
        got = await reader.readexactly(len(raw))
        assert got == raw
        digest.update(got)
    writer.close()
    return digest.hexdigest()


async def main():
    if sys.argv[1] == "server":
        await (await asyncio.start_server(echo, "127.0.0.1", 7040)).serve_forever()
    print(await asyncio.gather(*[client(n) for n in range(10)]))


uvloop.install()
asyncio.run(main())
