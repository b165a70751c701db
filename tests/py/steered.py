"""Owns: servers, and a client that a test steers line by line over descriptor 3.

  steered.py server PORT...   echoes every connection on these ports, a thread each
  steered.py keeps PORT...    the same, and closes none
  steered.py forks PORT       echoes as well, a child each; all call themselves `forks`
  steered.py heir PORT        echoes one connection, and forks at SIGUSR1 a child that keeps it and does nothing
  steered.py sink PORT FIRST LAST    sends FIRST bytes to one connection, LAST more when it has read
                              a million, two more at SIGUSR1, 100 ms apart, and says how it ended
  steered.py pours PORT       has a thread read one byte of one connection, sends 50,000 in pieces of 100, and stays
  steered.py client           does what it is told:
      open NAME PORT          connects
      talk NAME ROUNDS SIZE   sends and compares echoes of SIZE bytes
      start NAME              talks on until `stop NAME`, which answers with the rounds
      put NAME SIZE           sends and does not read
      sleep NAME SIZE HOW     waits for SIZE bytes in a thread, by recv, poll or epoll
      woken NAME              waits for that thread; the bytes must be right
      end NAME                shuts its sending side down
      fetch NAME SIZE         reads the echo of that, and the end if there was one
      close NAME
      do NAME ACTION          something that keeps a connection on TCP, or takes it back (ACTIONS)
Each command is answered by one line: "ok ..." or the name of the error."""
import ctypes
import errno
import fcntl
import hashlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
KEPT = []  # what has to stay as long as the program
KEEPS = sys.argv[1] == "keeps"


def get(s, size):
    parts = []
    while size > 0:
        part = s.recv(min(size, 1 << 17))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def echo(s):
    try:
        while part := s.recv(1 << 16):
            s.sendall(part)
    except OSError:
        pass
    if KEEPS:
        KEPT.append(s)
    else:
        s.close()


def serve(listener):
    while True:
        s, _ = listener.accept()
        threading.Thread(target=echo, args=(s,), daemon=True).start()


def fork(port):
    with open("/proc/self/comm", "w") as name:
        name.write("forks")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    print("ready", flush=True)
    while True:
        s, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            echo(s)
            os._exit(0)
        s.close()


def heir(port):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    listener = socket.create_server(("127.0.0.1", port))
    print("ready", flush=True)
    s, _ = listener.accept()
    threading.Thread(target=echo, args=(s,), daemon=True).start()
    signal.sigwait({signal.SIGUSR1})
    if os.fork() == 0:
        listener.close()
        print("child", os.getpid(), flush=True)
    signal.sigwait({signal.SIGUSR1})


def sink(port, first, last):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    listener = socket.create_server(("127.0.0.1", port))
    print("ready", flush=True)
    s, _ = listener.accept()
    s.sendall(data(0, first))
    got = 0
    try:
        while part := s.recv(1 << 16):
            if got < 1_000_000 <= got + len(part):
                s.sendall(data(0, last))
                print("sent", flush=True)
                if last:
                    signal.sigwait({signal.SIGUSR1})
                    s.sendall(b"x")
                    time.sleep(0.1)
                    s.sendall(b"x")
            got += len(part)
        print("ended EOF", flush=True)
    except OSError as e:
        print("ended", name_of(e), flush=True)
    threading.Event().wait()


def pour(port):
    listener = socket.create_server(("127.0.0.1", port))
    print("ready", flush=True)
    s, _ = listener.accept()
    threading.Thread(target=s.recv, args=(1,), daemon=True).start()
    all = data(0, 50_000)
    for i in range(0, len(all), 100):
        s.sendall(all[i : i + 100])
        time.sleep(0.0005)
    threading.Event().wait()


def data(seed, size):
    block = b"".join(hashlib.sha256(b"%d %d" % (seed, i)).digest() for i in range(64))
    return (block * (size // len(block) + 1))[:size]


def talk(s, rounds, size):
    for i in range(rounds):
        message = data(i, size)
        if size > 1 << 16:
            writer = threading.Thread(target=s.sendall, args=(message,))
            writer.start()
            back = get(s, size)
            writer.join()
        else:
            s.sendall(message)
            back = get(s, size)
        if back != message:
            return "DIFFERENT"
    return f"ok {rounds}"


class Talker(threading.Thread):
    def __init__(self, s, size):
        super().__init__()
        self.s, self.size, self.go, self.rounds, self.result = s, size, True, 0, "ok"

    def run(self):
        try:
            while self.go:
                message = data(self.rounds, self.size)
                self.s.sendall(message)
                if get(self.s, self.size) != message:
                    self.result = "DIFFERENT"
                    return
                self.rounds += 1
        except (OSError, EOFError) as e:
            self.result = name_of(e)


class Sleeper(threading.Thread):
    def __init__(self, s, size, how):
        super().__init__()
        self.s, self.size, self.how, self.result = s, size, how, "ok"

    def run(self):
        try:
            if self.how == "poll":
                p = select.poll()
                p.register(self.s, select.POLLIN)
                p.poll()
            elif self.how == "epoll":
                with select.epoll() as p:
                    p.register(self.s, select.EPOLLIN)
                    while not p.poll():
                        pass
            if get(self.s, self.size) != data(0, self.size):
                self.result = "DIFFERENT"
        except (OSError, EOFError) as e:
            self.result = name_of(e)


def name_of(e):
    return errno.errorcode.get(getattr(e, "errno", None), type(e).__name__)


def die_with_parent():
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def share(_):
    if os.fork() == 0:
        die_with_parent()
        signal.pause()


def passed(s):
    pair = socket.socketpair()
    socket.send_fds(pair[0], [b"x"], [s.fileno()])
    KEPT.append(pair)


def zero_copy(s):
    s.setsockopt(socket.SOL_SOCKET, 60, 1)  # SO_ZEROCOPY
    s.send(b"", 0x4000000)


def restrict(s):
    class Filter(ctypes.Structure):
        _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Filter))]

    allow = Filter(0x06, 0, 0, 0x7FFF0000)  # returns SECCOMP_RET_ALLOW
    program = Program(1, ctypes.pointer(allow))
    LIBC.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if LIBC.prctl(22, 2, ctypes.byref(program), 0, 0) != 0:  # PR_SET_SECCOMP, by filter
        raise OSError(ctypes.get_errno(), "seccomp")


def upper_layer(s):
    try:
        s.setsockopt(socket.IPPROTO_TCP, 31, b"no such protocol")  # TCP_ULP
    except OSError as e:
        if e.errno != errno.ENOENT:
            raise


def filtered(s):
    allow = ctypes.create_string_buffer(b"\x06\0\0\0\xff\xff\xff\xff")  # BPF_RET of all
    KEPT.append(allow)
    s.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", 1, ctypes.addressof(allow)))  # SO_ATTACH_FILTER


def asynchronous(s):
    # struct aiocb: a write of nothing
    request = ctypes.create_string_buffer(struct.pack("iiiiPN", s.fileno(), 0, 0, 0, 0, 0) + bytes(256))
    struct.pack_into("i", request, 44, 1)  # sigev_notify: SIGEV_NONE
    KEPT.append(request)
    if LIBC.aio_write(request) != 0:
        raise OSError(ctypes.get_errno(), "aio_write")


def until_full(s):
    s.setblocking(False)
    try:
        while True:
            s.send(bytes(1 << 16))
    except BlockingIOError:
        s.setblocking(True)


ACTIONS = {
    "fdopen": lambda s: LIBC.fdopen(s.fileno(), b"r+"),
    "urgent": lambda s: s.send(b"!", socket.MSG_OOB),
    "zerocopy": zero_copy,
    "o-async": lambda s: fcntl.fcntl(s, fcntl.F_SETFL, fcntl.fcntl(s, fcntl.F_GETFL) | os.O_ASYNC),
    "pacing": lambda s: s.setsockopt(socket.SOL_SOCKET, 47, 10**9),  # SO_MAX_PACING_RATE
    "fork": share,
    "pass": passed,
    "exec": lambda s: KEPT.append(subprocess.Popen(["sleep", "1000"], pass_fds=[s.fileno()], preexec_fn=die_with_parent)),
    "io-uring": lambda s: LIBC.syscall(425, 1, ctypes.create_string_buffer(256)),
    "seccomp": restrict,
    "ulp": upper_layer,
    "peek-off": lambda s: s.setsockopt(socket.SOL_SOCKET, 42, 0),
    "filter": filtered,
    "stamps": lambda s: s.setsockopt(socket.SOL_SOCKET, 37, 0x10),  # SO_TIMESTAMPING, by software
    "aio": asynchronous,
    "user": lambda _: os.setresuid(12345, 12345, 12345),
    "full": until_full,
    "end": lambda s: s.shutdown(socket.SHUT_WR),
}


def client():
    control = socket.socket(fileno=3).makefile("rw")
    socks, talkers = {}, {}
    for line in control:
        word, name, *rest = line.split()
        numbers = [int(n) for n in rest if n.isdigit()]
        answer = "ok"
        try:
            if word == "open":
                socks[name] = socket.create_connection(("127.0.0.1", numbers[0]))
            elif word == "talk":
                answer = talk(socks[name], *numbers)
            elif word == "start":
                talkers[name] = Talker(socks[name], numbers[0] if numbers else 3000)
                talkers[name].start()
            elif word == "rounds":
                answer = f"ok {talkers[name].rounds}"
            elif word == "stop":
                t = talkers.pop(name)
                t.go = False
                t.join()
                answer = f"{t.result} {t.rounds}"
            elif word == "put":
                socks[name].sendall(data(0, numbers[0]))
            elif word == "sleep":
                talkers[name] = Sleeper(socks[name], numbers[0], rest[1])
                talkers[name].start()
            elif word == "woken":
                t = talkers.pop(name)
                t.join()
                answer = t.result
            elif word == "end":
                socks[name].shutdown(socket.SHUT_WR)
            elif word == "fetch":
                if get(socks[name], numbers[0]) != data(0, numbers[0]):
                    answer = "DIFFERENT"
                elif len(numbers) > 1 and socks[name].recv(1):
                    answer = "NO END"
            elif word == "do":
                ACTIONS[rest[0]](socks[name])
            elif word == "close":
                socks.pop(name).close()
        except (OSError, EOFError) as e:
            answer = name_of(e)
        control.write(answer + "\n")
        control.flush()


if sys.argv[1] in ("server", "keeps"):
    for port in sys.argv[2:]:
        one = socket.create_server(("127.0.0.1", int(port)), backlog=64)
        threading.Thread(target=serve, args=(one,), daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()
elif sys.argv[1] == "forks":
    fork(int(sys.argv[2]))
elif sys.argv[1] == "heir":
    heir(int(sys.argv[2]))
elif sys.argv[1] == "pours":
    pour(int(sys.argv[2]))
elif sys.argv[1] == "sink":
    sink(*map(int, sys.argv[2:]))
else:
    client()
