"""An echo server in one of Python's styles, and the client that asks it: rounds.py blocking|selectors|asyncio PORT serves until it
is ended; rounds.py client PORT CONNECTIONS ROUNDS compares each answer, half-closes, and prints the payload of both directions."""
import asyncio
import hashlib
import selectors
import socket
import sys
import threading

MODE, PORT = sys.argv[1], int(sys.argv[2])
SIZE = 8192


def blocking():
    def echo(s):
        with s:
            while part := s.recv(1 << 16):
                s.sendall(part)

    with socket.create_server(("127.0.0.1", PORT)) as listener:
        while True:
            threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()


def with_selectors():
    waiting = selectors.DefaultSelector()
    listener = socket.create_server(("127.0.0.1", PORT))
    listener.setblocking(False)
    waiting.register(listener, selectors.EVENT_READ)
    pending = {}
    while True:
        for key, events in waiting.select():
            s = key.fileobj
            if s is listener:
                s = listener.accept()[0]
                s.setblocking(False)
                pending[s] = b""
                waiting.register(s, selectors.EVENT_READ)
                continue
            if events & selectors.EVENT_READ:
                part = s.recv(1 << 16)
                if not part:
                    waiting.unregister(s)
                    s.close()
                    continue
                pending[s] += part
            try:
                pending[s] = pending[s][s.send(pending[s]):]
            except BlockingIOError:
                pass
            waiting.modify(s, selectors.EVENT_READ | (selectors.EVENT_WRITE if pending[s] else 0))


async def with_asyncio():
    async def echo(reader, writer):
        while part := await reader.read(1 << 16):
            writer.write(part)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", PORT) as server:
        await server.serve_forever()


def client(connections, rounds):
    failures = []

    def ask(number):
        block = b"".join(hashlib.sha256(b"%d %d" % (number, i)).digest() for i in range(2 * SIZE // 32))
        with socket.create_connection(("127.0.0.1", PORT)) as s:
            for i in range(rounds):
                at = i * 37 % SIZE
                message = block[at:at + SIZE]
                s.sendall(message)
                back = b""
                while len(back) < SIZE and (part := s.recv(SIZE - len(back))):
                    back += part
                if back != message:
                    return failures.append((number, i))
            s.shutdown(socket.SHUT_WR)
            if s.recv(1):
                failures.append((number, "end"))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(connections)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        sys.exit(f"wrong: {failures[:10]}")
    print(2 * connections * rounds * SIZE)


if MODE == "client":
    client(int(sys.argv[3]), int(sys.argv[4]))
elif MODE == "asyncio":
    asyncio.run(with_asyncio())
else:
    {"blocking": blocking, "selectors": with_selectors}[MODE]()
