"""A memcached client: sets, gets and compares values over several connections; prints the bytes
that the server has read and written."""
import hashlib
import socket
import sys
import threading

PORT = int(sys.argv[1])
failures = []


def value(i):
    block = hashlib.sha256(b"%d" % i).digest()
    return block * (1 + i % 500)


def session(number):
    s = socket.create_connection(("127.0.0.1", PORT))
    f = s.makefile("rb")
    for i in range(number * 1000, number * 1000 + 1000):
        v = value(i)
        s.sendall(b"set k%d 0 0 %d\r\n%s\r\n" % (i, len(v), v))
        if f.readline() != b"STORED\r\n":
            failures.append(i)
    for first in range(number * 1000, number * 1000 + 1000, 10):
        keys = b" ".join(b"k%d" % i for i in range(first, first + 10))
        s.sendall(b"get " + keys + b"\r\n")
        for i in range(first, first + 10):
            words = f.readline().split()
            if words[:2] != [b"VALUE", b"k%d" % i] or f.read(int(words[3])) != value(i):
                failures.append(i)
            f.readline()
        if f.readline() != b"END\r\n":
            failures.append(first)
    s.close()


threads = [threading.Thread(target=session, args=(n,)) for n in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
if failures:
    sys.exit(f"wrong: {failures[:10]}")

with socket.create_connection(("127.0.0.1", PORT)) as s:
    s.sendall(b"stats\r\n")
    text = b""
    while b"END\r\n" not in text:
        text += s.recv(4096)
stats = dict(line.split()[1:3] for line in text.splitlines() if line.startswith(b"STAT"))
print(int(stats[b"bytes_read"]) + int(stats[b"bytes_written"]))
