"""A server under the library that forks, execs or starts programs, or gives a connection away:

    forking.py fork|late|begun|heir|outlived|around|dies|system|exec|cat|pass|lend|gives|again|workers|shuts ADDRESS PORT [exits|execs|killed] [closes]
"""
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

from flow import line, put, take
from peer_server import ENDS, serve_one

what, address, port, *how = sys.argv[1:]
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.create_server((address, int(port)), backlog=64)
print("serving", flush=True)
if what in ("gives", "again"):           # what comes before a line on stdin waits: while another program gets the listener, or the next one
    sys.stdin.readline()
    listener.set_inheritable(True)
    if what == "again":                  # one that starts fast
        echo = 'open(L, "+<&=", shift); accept(S, L); while (sysread(S, $b, 1) && $b ne "\\n") {} while (sysread(S, $b, 65536)) { syswrite(S, $b) }'
        os.execv("/usr/bin/perl", ["perl", "-e", echo, str(listener.fileno())])
    subprocess.Popen(["/bin/sleep", "60"], pass_fds=[listener.fileno()])
if what == "shuts":                      # without having accepted what waits
    sys.stdin.readline()
    listener.close()
    sys.stdin.readline()
if what == "workers":                    # that are made when clients wait already; this process accepts nothing
    sys.stdin.readline()
    children = [os.fork() for _ in range(2)]
    while all(children):
        time.sleep(60)
    signal.alarm(60)
    while True:
        one = listener.accept()[0]
        serve_one(one)
        print("served", os.getpid(), flush=True)


def echoed_first(sock, behind=b"r"):
    """What this program answers itself, before another one does."""
    n = line(sock)["n"]
    take(sock, n)
    put(sock, n)
    sock.sendall(behind)


def pass_on(sock, code):
    """Another process without the library gets the descriptor as `s`, and does this; the socket that it has as `u`."""
    ours, theirs = socket.socketpair()
    code = f"import socket; u = socket.socket(fileno=0); s = socket.socket(fileno=socket.recv_fds(u, 1, 1)[1][0])\n{code}"
    subprocess.Popen(["/usr/bin/python3", "-c", code], stdin=theirs, env={"PATH": "/bin"}, close_fds=True)
    socket.send_fds(ours, [b"x"], [sock.fileno()])
    return ours


# It reads to the end, and says when it begins and what it has read.
READS = """n, end = 0, ""
u.send(b"b")
try:
    while data := s.recv(65536):
        n += len(data)
except OSError as error:
    end = f", then {error}"
print(f"the other has read {n} bytes{end}", flush=True)"""


accepted = 0
while True:
    sock = listener.accept()[0]
    if what == "late":                   # when its handshake is about to begin, under way, or over
        time.sleep(0.28 + accepted % 12 * 0.02)
        accepted += 1
    if what in ("begun", "heir"):        # it has been looked at: the handshake is this process's
        sock.setblocking(False)
        try:
            sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            pass
        sock.setblocking(True)
    if what == "dies":                   # the child reads all and says so, and then it is killed
        line(sock)
        sock.sendall(b"r")
        if os.fork() == 0:
            take(sock, 20000)
            sock.sendall(b"k")
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        sock.close()
    elif what == "gives":
        threading.Thread(target=serve_one, args=(sock,), daemon=True).start()
    elif what == "around":               # first used by a thread when the library begins by itself, 0.3 s after accept()
        def one(sock):
            time.sleep(0.3 + random.uniform(-0.005, 0.02))
            serve_one(sock)
        threading.Thread(target=one, args=(sock,), daemon=True).start()
    elif what in ("fork", "late", "begun"):
        if os.fork() == 0:
            print("forked", flush=True)
            listener.close()
            serve_one(sock)
            os._exit(0)
        sock.close()
    elif what == "outlived":             # the child serves it by this process's link, which ends after a line on stdin
        sock.recv(1, socket.MSG_PEEK)
        if os.fork() == 0:
            listener.close()
            try:
                serve_one(sock)
                print("child:", *ENDS.values(), flush=True)
            except (OSError, EOFError, ValueError) as error:
                print(f"child: {type(error).__name__}: {error}", flush=True)
            os._exit(0)
        if "closes" in how:
            sock.close()
        print("pid", os.getpid(), flush=True)
        sys.stdin.readline()
        if "execs" in how:
            os.execv("/bin/true", ["true"])
        if "killed" in how:
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit()
    elif what == "heir":                 # the child serves it, and the parent ends at once
        if os.fork():
            if "execs" in how:
                os.execv("/bin/sleep", ["sleep", "60"])
            os._exit(0)
        print("forked", flush=True)
        listener.close()
        serve_one(sock)
        os._exit(0)
    elif what == "system":
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        line(sock)
        left = 300000
        while left:
            data = sock.recv(10000)
            os.system("true")
            sock.sendall(data)
            left -= len(data)
        sock.close()
    elif what == "cat":                  # the program goes on as another one, which answers
        echoed_first(sock)
        for n in (0, 1):
            os.dup2(sock.fileno(), n)
        os.execve("/bin/cat", ["cat"], {"PATH": "/bin"})
    elif what == "pass":                 # another process without the library gets the descriptor, and answers
        echoed_first(sock)
        pass_on(sock, "while data := s.recv(65536): s.sendall(data)")
        sock.close()
    elif what == "lend":                 # another process gets it and reads, and this one goes on with it, or closes its own
        echoed_first(sock, b"")
        pass_on(sock, READS).recv(1)
        sock.sendall(b"r")
        while "closes" not in how and (data := sock.recv(65536)):
            sock.sendall(data)
        sock.close()
    else:
        line(sock)
        sock.sendall(b"r")
        sock.set_inheritable(True)
        sys.stdin.readline()             # the client has looked at its connection
        os.execv("/bin/sleep", ["sleep", "5"])
