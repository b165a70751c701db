"""asyncio: `serve ADDRESS PORT`, or `run ADDRESS PORT CONNECTIONS ROUNDS BYTES`, each answer checked."""
import asyncio
import random
import sys


async def answer(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(address, port):
    server = await asyncio.start_server(answer, address, int(port))
    print("serving", flush=True)
    await server.serve_forever()


async def one(address, port, rounds, n, seed):
    reader, writer = await asyncio.open_connection(address, int(port))
    rng = random.Random(seed)
    for _ in range(rounds):
        data = rng.randbytes(n)
        writer.write(data)
        await writer.drain()
        assert await reader.readexactly(n) == data
    writer.close()
    await writer.wait_closed()


async def run(address, port, connections, rounds, n):
    await asyncio.wait_for(asyncio.gather(*(one(address, port, int(rounds), int(n), i) for i in range(int(connections)))), 50)
    print("ok", int(connections) * int(rounds) * int(n), flush=True)


asyncio.run({"serve": serve, "run": run}[sys.argv[1]](*sys.argv[2:]))
