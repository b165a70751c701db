"""A client that forks right after connect(), in its handshake; the child uses the connection, then the parent:

    forks_early.py ADDRESS PORT N [exits|killed]     the parent ends at once, and the child uses it twice
"""
import os
import signal
import sys
import time

from flow import PATIENCE, both, connect, put, take

address, port, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ends = sys.argv[4] if sys.argv[4:] else None
signal.alarm(PATIENCE)
sock = connect(address, port, {"op": "echo", "n": n, "rounds": 2})
began = time.monotonic()
parent = os.getpid()
child = os.fork()
if child == 0:
    signal.alarm(PATIENCE)
    both(sock, n)
    print("child done", flush=True)
    if ends:
        while os.getppid() == parent and time.monotonic() < began + 40:
            time.sleep(0.05)
        put(sock, n, n)
        take(sock, n, n)
        print(f"ok {n} bytes there and back twice in the child, its parent has ended: {os.getppid() != parent}")
        print("payload", 4 * n, flush=True)
    os._exit(0)
took = time.monotonic() - began
print("forked", flush=True)
if ends == "exits":
    sys.exit()
if ends == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if os.waitpid(child, 0)[1]:
    sys.exit("the child failed")
put(sock, n, n)
take(sock, n, n)
print(f"ok {n} bytes there and back in the child and in the parent, fork took {took:.1f} s")
print("payload", 4 * n)
