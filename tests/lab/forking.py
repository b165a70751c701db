"""A server under the library that forks, execs or starts programs: forking.py fork|system|exec ADDRESS PORT."""
import os
import signal
import socket
import sys

import peer

what, address, port = sys.argv[1:]
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.create_server((address, int(port)), backlog=64)
print("serving", flush=True)
while True:
    sock = listener.accept()[0]
    if what == "fork":
        if os.fork() == 0:
            listener.close()
            peer.serve_one(sock)
            os._exit(0)
        sock.close()
    elif what == "system":
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        peer.line(sock)
        left = 300000
        while left:
            data = sock.recv(10000)
            os.system("true")
            sock.sendall(data)
            left -= len(data)
        sock.close()
    else:
        peer.line(sock)
        sock.sendall(b"r")
        sock.set_inheritable(True)
        os.execv("/bin/sleep", ["sleep", "5"])
