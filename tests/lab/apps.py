"""What cases_apps.py runs: `memcached ADDRESS PORT CONNECTIONS ROUNDS`, each value read again and compared; `deferring ADDRESS PORT`, two servers with
TCP_DEFER_ACCEPT, which echo, and `echoed ADDRESS PORT PORTS`, a client; `hears` and `knocks`, `slams` and `slammed`: connections that nobody
uses; `counts` and `counted`: FIONREAD before anything else."""
import fcntl
import os
import random
import socket
import subprocess
import sys
import termios
import threading
import time


def memcached(address, port, connections, rounds):
    total, wrong = [0] * connections, []

    def one(index):
        try:
            rng = random.Random(index)
            link = socket.create_connection((address, port), 40)
            file = link.makefile("rwb")
            values = {}
            for turn in range(rounds):
                key = f"k{index}.{rng.randrange(20)}"
                values[key] = rng.randbytes(rng.choice((1, 90, 1500, 20000)))
                file.write(b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), len(values[key]), values[key]))
                file.flush()
                assert file.readline() == b"STORED\r\n"
                asked = rng.choice(sorted(values))
                file.write(b"get %s\r\n" % asked.encode())
                file.flush()
                words = file.readline().split()
                assert words[:2] == [b"VALUE", asked.encode()], words
                got = file.read(int(words[3]) + 2)[:-2]
                assert got == values[asked] and file.readline() == b"END\r\n"
                total[index] += min(len(values[key]), len(got))
            link.close()
        except (AssertionError, OSError, IndexError) as error:
            wrong.append(f"{index}: {error!r}")

    threads = [threading.Thread(target=one, args=(i,)) for i in range(connections)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    if wrong:
        sys.exit("; ".join(wrong))
    print("ok", sum(total))


DEFERS = socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT


def deferring(address, port):
    """The option is set before listen() and after it; what the program, and one without the library, read of it."""
    listeners = []
    for number in range(2):
        listener = socket.create_server((address, port + number), backlog=5) if number else socket.socket()
        if not number:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
        listener.setsockopt(*DEFERS, 20)
        if not number:
            listener.listen()
        listeners.append(listener)
    print("values", *(listener.getsockopt(*DEFERS) for listener in listeners), flush=True)
    print("serving", flush=True)
    for listener in listeners:
        for _ in range(3):
            link = listener.accept()[0]
            while data := link.recv(65536):
                link.sendall(data)
            link.close()
    bare = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    for listener in listeners:
        text = f"import socket; print('elsewhere', socket.socket(fileno={listener.fileno()}).getsockopt({DEFERS[0]}, {DEFERS[1]}))"
        subprocess.run([sys.executable, "-c", text], pass_fds=[listener.fileno()], env=bare, check=True)


def echoed(address, port, ports=1):
    for number in range(6):
        link = socket.create_connection((address, port + number * ports // 6), 20)
        for _ in range(20):
            data = random.randbytes(5000)
            link.sendall(data)
            got = b""
            while len(got) < len(data):
                got += link.recv(65536)
            assert got == data
        link.close()
    print("ok", 6 * 20 * 5000)


def hears(address, port):
    """What each of 12 connections gives to a server that reads: nobody says anything."""
    listener = socket.create_server((address, port), backlog=20)
    print("serving", flush=True)
    for _ in range(12):
        link = listener.accept()[0]
        try:
            print("heard", len(link.recv(10)), flush=True)
        except OSError as error:
            print("heard", error, flush=True)
        link.close()


def knocks(address, port, ends):
    """Connects and ends without a word, when a greeting may have come: by close, and if `ends` by its own end."""
    for _ in range(12 - ends):
        link = socket.create_connection((address, port), 20)
        time.sleep(0.3)
        link.close()
    for _ in range(ends):
        if not os.fork():
            link = socket.create_connection((address, port), 20)
            time.sleep(0.3)
            sys.exit(0)
        os.wait()


def unread(link):
    return int.from_bytes(fcntl.ioctl(link, termios.FIONREAD, bytes(4)), sys.byteorder)


def asks(link):
    """Asks how much there is until there is something."""
    end = time.monotonic() + 20
    while not (n := unread(link)) and time.monotonic() < end:
        time.sleep(0.01)
    return n, len(link.recv(1000)), unread(link)


def counts(address, port):
    listener = socket.create_server((address, port), backlog=20)
    print("serving", flush=True)
    for _ in range(4):
        link = listener.accept()[0]
        print("heard", *asks(link), flush=True)
        time.sleep(0.3)
        link.sendall(bytes(50))
        link.recv(1)


def counted(address, port):
    for _ in range(4):
        link = socket.create_connection((address, port), 20)
        time.sleep(0.5)
        link.sendall(bytes(100))
        assert asks(link) == (50, 50, 0)
        link.close()


def slams(address, port):
    """A server that closes what it accepts."""
    listener = socket.create_server((address, port), backlog=20)
    print("serving", flush=True)
    for _ in range(6):
        listener.accept()[0].close()
    time.sleep(1)


def slammed(address, port):
    for _ in range(6):
        link = socket.create_connection((address, port), 20)
        assert link.recv(10) == b""
        link.close()


{"counts": counts, "counted": counted, "hears": hears, "knocks": knocks, "slams": slams, "slammed": slammed, "memcached": memcached, "deferring": deferring, "echoed": echoed}[sys.argv[1]](sys.argv[2], *map(int, sys.argv[3:]))
