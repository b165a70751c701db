"""Owns: Python's own ways to a connection: blocking sockets, makefile, selectors, asyncio streams
and protocols, socketserver, http. The same rules as in c/case.h: one process for each end,
descriptor 3 leads to the other, the transcript goes to standard output."""
import asyncio
import hashlib
import http.client
import http.server
import os
import selectors
import socket
import socketserver
import sys
import threading

PORT = 7000
CTL = socket.socket(fileno=3) if len(sys.argv) == 3 else None
MB = 1 << 20


def say(*words):
    print(*words, flush=True)


def meet():
    CTL.sendall(b"m")
    CTL.recv(1)


def lo_bytes():
    for line in open("/proc/thread-self/net/dev"):
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[0])


def warmed(payload, before):
    print(f"#warm {payload} {lo_bytes() - before}", file=sys.stderr, flush=True)


def data(seed, size):
    block = b"".join(hashlib.sha256(b"%d %d" % (seed, i)).digest() for i in range(2048))
    return (block * (size // len(block) + 1))[:size]


def digest(what):
    return hashlib.sha256(what).hexdigest()[:16]


def listener():
    return socket.create_server(("127.0.0.1", PORT), backlog=128)


def get(s, size):
    parts = []
    while size > 0:
        part = s.recv(min(size, 1 << 18))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def client_rounds(rounds=400, size=8192):
    """A plain client that other servers are tested with: echoes, checked, then a bulk."""
    meet()
    before = lo_bytes()
    with socket.create_connection(("127.0.0.1", PORT)) as s:
        message = data(1, size)
        for _ in range(rounds):
            s.sendall(message)
            if get(s, size) != message:
                say("DIFFERENT")
        bulk = data(2, 16 * MB)
        writer = threading.Thread(target=s.sendall, args=(bulk,))
        writer.start()
        back = get(s, len(bulk))
        writer.join()
        say("bulk", digest(back), back == bulk)
        s.shutdown(socket.SHUT_WR)
        say("end", s.recv(1))
    warmed(2 * (rounds * size + 16 * MB), before)
    meet()


def blocking_a():
    with listener() as l:
        meet()
        s, _ = l.accept()
        with s:
            while part := s.recv(1 << 16):
                s.sendall(part)
    meet()


def into_a():
    """recv_into, sendmsg, recvmsg_into, timeouts."""
    with listener() as l:
        meet()
        s, _ = l.accept()
        with s:
            s.settimeout(10)
            room = bytearray(1 << 17)
            view = memoryview(room)
            i = 0
            while True:
                i += 1
                if i % 2:
                    n = s.recv_into(room)
                else:
                    n = s.recvmsg_into([view[:1000], view[1000:]])[0]
                if n == 0:
                    break
                sent = s.sendmsg([view[: n // 2], view[n // 2 : n]])
                if sent < n:
                    s.sendall(view[sent:n])
            s.settimeout(0.05)
            try:
                say(s.recv(1))
            except TimeoutError:
                say("timeout")
    meet()


def selectors_a():
    """One loop for all connections, with whatever DefaultSelector is (epoll)."""
    choose = selectors.DefaultSelector()
    l = listener()
    l.setblocking(False)
    choose.register(l, selectors.EVENT_READ)
    meet()
    pending = {}
    live = None
    while live is None or live > 0:
        for key, events in choose.select():
            s = key.fileobj
            if s is l:
                s, _ = l.accept()
                s.setblocking(False)
                pending[s] = bytearray()
                choose.register(s, selectors.EVENT_READ)
                live = (live or 0) + 1
                continue
            if events & selectors.EVENT_READ and len(pending[s]) < MB:
                part = s.recv(1 << 16)
                if not part and not pending[s]:
                    choose.unregister(s)
                    s.close()
                    live -= 1
                    continue
                pending[s] += part
            if pending[s]:
                try:
                    n = s.send(pending[s])
                except BlockingIOError:
                    n = 0
                del pending[s][:n]
            mask = selectors.EVENT_READ if len(pending[s]) < MB else 0
            mask |= selectors.EVENT_WRITE if pending[s] else 0
            if choose.get_key(s).events != mask:
                choose.modify(s, mask)
    meet()


async def echo_handler(reader, writer):
    while part := await reader.read(1 << 16):
        writer.write(part)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


def asyncio_a():
    async def main():
        done = asyncio.Event()

        async def handler(reader, writer):
            await echo_handler(reader, writer)
            done.set()

        server = await asyncio.start_server(handler, "127.0.0.1", PORT)
        async with server:
            meet()
            await done.wait()

    asyncio.run(main())
    meet()


def asyncio_b():
    async def one(i):
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        bulk = data(i, 4 * MB)

        async def send():
            for at in range(0, len(bulk), 100_003):
                writer.write(bulk[at : at + 100_003])
                await writer.drain()
            writer.write_eof()

        task = asyncio.create_task(send())
        back = await reader.read(-1)
        await task
        writer.close()
        return digest(back), back == bulk

    async def main():
        return await asyncio.gather(*(one(i) for i in range(8)))

    meet()
    before = lo_bytes()
    for result in asyncio.run(main()):
        say(*result)
    warmed(2 * 8 * 4 * MB, before)
    meet()


def asyncio_many_a():
    async def main():
        left = 8
        done = asyncio.Event()

        async def handler(reader, writer):
            nonlocal left
            await echo_handler(reader, writer)
            left -= 1
            if left == 0:
                done.set()

        async with await asyncio.start_server(handler, "127.0.0.1", PORT):
            meet()
            await done.wait()

    asyncio.run(main())
    meet()


def asyncio_many_b():
    """Requests and answers: bytes that were sent before anybody could answer say nothing."""
    rounds, size = 600, 16_000

    async def one(i):
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        bulk = data(i, size)
        good = True
        for n in range(rounds):
            writer.write(bulk[n:] + bulk[:n])
            await writer.drain()
            good = good and await reader.readexactly(size) == bulk[n:] + bulk[:n]
        writer.write_eof()
        end = await reader.read(-1)
        writer.close()
        return good, len(end)

    async def main():
        return await asyncio.gather(*(one(i) for i in range(8)))

    meet()
    before = lo_bytes()
    for result in asyncio.run(main()):
        say(*result)
    warmed(2 * 8 * rounds * size, before)
    meet()


class Lines(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())


def socketserver_a():
    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", PORT), Lines) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        meet()
        meet()
        server.shutdown()
        thread.join()
    say("served")


def socketserver_b():
    meet()
    before = lo_bytes()
    size = 0
    with socket.create_connection(("127.0.0.1", PORT)) as s, s.makefile("rwb") as f:
        good = True
        for i in range(12000):
            line = b"line %d " % i + b"x" * 400 + b"\n"
            f.write(line)
            f.flush()
            good = good and f.readline() == line.upper()
            size += 2 * len(line)
        say("good", good)
    warmed(size, before)
    meet()


class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, *_):
        pass


def http_a():
    with http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        meet()
        meet()
        server.shutdown()
        thread.join()
    say("served")


def http_b():
    meet()
    before = lo_bytes()
    c = http.client.HTTPConnection("127.0.0.1", PORT)
    good, size = True, 0
    for i in range(50):
        body = data(i % 7, 200_000 + i)
        c.request("POST", "/", body)
        good = good and c.getresponse().read() == body[::-1]
        size += 2 * len(body)
    c.close()
    say("good", good)
    warmed(size, before)
    meet()


def sendfile_a():
    """socket.sendfile, which is os.sendfile where it can."""
    with listener() as l:
        meet()
        s, _ = l.accept()
        with s:
            before = lo_bytes()
            for _ in range(50):
                s.sendall(get(s, 1000))
            file = os.memfd_create("f")
            os.write(file, data(5, 20 * MB))
            with open(file, "rb") as f:
                f.seek(0)
                say("sent", s.sendfile(f))
            s.shutdown(socket.SHUT_WR)
            say("end", s.recv(1))
            warmed(20 * MB, before)
    meet()


def sendfile_b():
    meet()
    with socket.create_connection(("127.0.0.1", PORT)) as s:
        for _ in range(50):
            s.sendall(bytes(1000))
            get(s, 1000)
        parts = []
        while part := s.recv(1 << 18):
            parts.append(part)
        whole = b"".join(parts)
        say(len(whole), whole == data(5, 20 * MB))
    meet()


CASES = {
    "blocking": (blocking_a, client_rounds),
    "recv_into": (into_a, client_rounds),
    "selectors": (selectors_a, client_rounds),
    "asyncio": (asyncio_a, client_rounds),
    "asyncio_many": (asyncio_many_a, asyncio_many_b),
    "socketserver": (socketserver_a, socketserver_b),
    "http": (http_a, http_b),
    "sendfile": (sendfile_a, sendfile_b),
}

if sys.argv[1] == "list":
    for name in CASES:
        say(name, "slow")
else:
    CASES[sys.argv[1]]["ab".index(sys.argv[2])]()
    say("done")
