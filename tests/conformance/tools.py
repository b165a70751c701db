"""Programs that move data over one or a few connections for people who compute, debug, send mail and copy disks. Each job is written as
those of programs.py. Called by run.py, inside a `Bed`.
"""

import re
import textwrap
import time

from bed import digest, need
from frameworks import FOLDER as FRAMEWORKS
from programs import MIB


def openmpi(bed):
    """Four processes that all send to all, in messages of all sizes; they connect to each other as they need it."""
    need("mpicc", "mpirun")
    (bed.work / "all.c").write_text(textwrap.dedent("""
        #include <mpi.h>
        #include <stdio.h>
        #include <stdlib.h>
        int main(int argc, char **argv) {
            int me, n;
            MPI_Init(&argc, &argv);
            MPI_Comm_rank(MPI_COMM_WORLD, &me);
            MPI_Comm_size(MPI_COMM_WORLD, &n);
            unsigned long sum = 5381;
            for (int size = 1; size <= 1 << 18; size *= 8) {
                unsigned *out = malloc(4ul * size * n), *in = malloc(4ul * size * n);
                for (int round = 0; round < 20; round++) {
                    for (long i = 0; i < (long)size * n; i++)
                        out[i] = (unsigned)(i * 2654435761u + me * 97 + round);
                    MPI_Alltoall(out, size, MPI_UNSIGNED, in, size, MPI_UNSIGNED, MPI_COMM_WORLD);
                    for (long i = 0; i < (long)size * n; i++)
                        sum = sum * 33 + in[i];
                    MPI_Sendrecv(in, size, MPI_UNSIGNED, (me + 1) % n, 7, out, size, MPI_UNSIGNED, (me + n - 1) % n, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                    sum = sum * 33 + out[size - 1];
                }
                free(out);
                free(in);
            }
            unsigned long all;
            MPI_Reduce(&sum, &all, 1, MPI_UNSIGNED_LONG, MPI_BXOR, 0, MPI_COMM_WORLD);
            if (me == 0)
                printf("%lx\\n", all);
            MPI_Finalize();
        }
    """))
    bed.quiet("mpicc", "-O1", "-o", "all", "all.c")
    return bed.client("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", 4, "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
                      "--mca", "btl_tcp_if_include", "lo", "--mca", "oob_tcp_if_include", "lo", "--mca", "mpi_yield_when_idle", 1, bed.work / "all")


def nbdkit(bed):
    """A disk over several connections at once, each with many requests on the way."""
    need("nbdkit", "nbdcopy")
    disk = bed.file("disk", 60 * MIB)
    bed.server("nbdkit", "-f", "-i", "127.0.0.1", "-p", 7101, "--threads", 8, "file", disk, port=7101)
    bed.client("nbdcopy", "--connections", 4, "nbd://127.0.0.1:7101", "copy")
    bed.client("nbdcopy", "--synchronous", "nbd://127.0.0.1:7101", "again")
    return digest((bed.work / "copy").read_bytes()) + digest((bed.work / "again").read_bytes())


def gdbserver(bed):
    """Small messages in turn."""
    need("gdbserver", "gdb", "cc")
    (bed.work / "p.c").write_text("#include <stdio.h>\nint n; void step(int i) { n += i; }\n"
                                  "int main(void) { for (int i = 0; i < 150; i++) step(i); printf(\"%d\\n\", n); }\n")
    bed.quiet("cc", "-g", "-o", "p", "p.c")
    bed.server("gdbserver", "--multi", "--no-startup-with-shell", "127.0.0.1:7102")
    time.sleep(1)  # it takes the first connection for the debugger's
    said = bed.client("gdb", "-batch", "-nx", "-ex", "set confirm off", "-ex", "set pagination off", "-ex", "set sysroot /", "-ex", "target extended-remote 127.0.0.1:7102",
                      "-ex", f"set remote exec-file {bed.work}/p", "-ex", f"file {bed.work}/p", "-ex", "break step if i % 5 == 4", "-ex", "run",
                      *(["-ex", "print n", "-ex", "continue"] * 30)).decode()
    return " ".join(re.findall(r"^\$\d+ = (\d+)", said, re.M))


def rsyslog(bed):
    """One daemon that takes lines from many and passes them on to another one, which writes them."""
    need("/usr/sbin/rsyslogd", "logger")
    (bed.work / "to.conf").write_text('module(load="imtcp")\ninput(type="imtcp" address="127.0.0.1" port="7103" ruleset="w")\n'
                                      f'template(name="t" type="string" string="%msg%\\n")\n'
                                      f'ruleset(name="w") {{ action(type="omfile" file="{bed.work}/lines" template="t" asyncWriting="off") }}\n')
    (bed.work / "from.conf").write_text('module(load="imtcp")\ninput(type="imtcp" address="127.0.0.1" port="7104" ruleset="f")\n'
                                        'ruleset(name="f" queue.type="LinkedList" queue.size="200000") {\n'
                                        '  action(type="omfwd" target="127.0.0.1" port="7103" protocol="tcp" action.resumeRetryCount="-1") }\n')
    for name, port in (("to", 7103), ("from", 7104)):
        bed.server("/usr/sbin/rsyslogd", "-n", "-i", bed.work / f"{name}.pid", "-f", bed.work / f"{name}.conf", port=port)
    for n in range(3):
        (bed.work / f"in{n}").write_text("".join(f"source {n} line {i} {'x%d' % i * 20}\n" for i in range(8000)))
    bed.client("sh", "-ec", "for n in 0 1 2; do logger -T -n 127.0.0.1 -P 7104 -t c --octet-count -f in$n & p=\"$p $!\"; done; for x in $p; do wait $x; done")
    for _ in range(600):
        came = (bed.work / "lines").read_bytes() if (bed.work / "lines").exists() else b""
        if came.count(b"\n") >= 24000:
            break
        time.sleep(0.1)
    lines = sorted(re.sub(rb"^.*source", b"source", line) for line in came.splitlines() if b"source" in line)
    return f"{len(lines)} {digest(b'|'.join(lines))}"


def postfix_mail(bed):
    """What Postfix brings to load a mail server with: many sessions, one server without threads."""
    need("/usr/sbin/smtp-sink", "/usr/sbin/smtp-source")
    mails = bed.work / "mails"
    mails.mkdir()
    bed.quiet("chown", "nobody", mails)
    bed.server("/usr/sbin/smtp-sink", "-u", "nobody", "-d", f"{mails}/%M.", "127.0.0.1:7105", 100, port=7105)
    bed.client("/usr/sbin/smtp-source", "-s", 8, "-m", 300, "-l", 30000, "-f", "a@test", "-t", "b@test", "-d", "127.0.0.1:7105")
    mails = [p.read_bytes() for p in mails.iterdir()]
    bodies = [mail.partition(b"\n\n")[2] for mail in mails]  # the heads have times
    return f"{len(mails)} mails, {digest(b'|'.join(sorted(bodies)))}"


def ffmpeg(bed):
    """A film as it is made, from one process to the other."""
    need("ffmpeg")
    server = bed.server("ffmpeg", "-v", "error", "-nostdin", "-y", "-i", "tcp://127.0.0.1:7106?listen=1", "-c", "copy", "-f", "rawvideo", "film")
    bed.client("sh", "-c", textwrap.dedent("""
        for n in $(seq 100); do
            ffmpeg -v error -nostdin -f lavfi -i testsrc=duration=3:size=640x360:rate=25 -pix_fmt yuv420p -c:v rawvideo -f nut tcp://127.0.0.1:7106 && exit 0
            sleep 0.1
        done
        exit 1
    """))
    server.wait(60)
    return digest((bed.work / "film").read_bytes())


def iperf2(bed):
    """Threads at both ends, both directions."""
    need("iperf")
    bed.server("iperf", "-s", "-B", "127.0.0.1", "-p", 7107, port=7107)
    said = bed.client("iperf", "-c", "127.0.0.1", "-p", 7107, "-P", 4, "-n", "60M", "-y", "C").decode()
    back = bed.client("iperf", "-c", "127.0.0.1", "-p", 7107, "--full-duplex", "-n", "40M").decode()
    return f"{sorted(int(line.split(',')[7]) >= 60 * MIB for line in said.splitlines())[:4]} {back.count('40.0 MBytes') > 0}"


def nuttcp(bed):
    need("nuttcp")
    bed.server("nuttcp", "-S", "--nofork", "-P", 7108, "-4", port=7108)
    said = [bed.client("nuttcp", *way, "-P", 7108, "-p", 7109, "-n", 1000, "-l", 65536, "127.0.0.1").decode() for way in ([], ["-r"], ["-N", 3])]
    return " ".join(line.split()[0] for line in said)


def qperf(bed):
    need("qperf")
    bed.server("qperf", "-lp", 7110, port=7110)
    said = bed.client("qperf", "-lp", 7110, "-ip", 7111, "-t", 1, "127.0.0.1", "tcp_bw", "tcp_lat").decode()
    return " ".join(line for line in said.splitlines() if not line.startswith(" "))


def asio(bed):
    """One set with edges for four threads, each of which may find a connection full while another one waits."""
    need("c++", "/usr/include/asio.hpp")
    bed.quiet("c++", "-O1", "-std=c++17", "-pthread", "-o", "echo", FRAMEWORKS / "asio_echo.cc")
    bed.server(bed.work / "echo", port=7116)
    return bed.client(bed.work / "echo", "client")


def beanstalkd(bed):
    need("beanstalkd")
    bed.server("beanstalkd", "-l", "127.0.0.1", "-p", 7112, "-z", 1 << 20, port=7112)
    return bed.client("/usr/bin/python3", "-c", textwrap.dedent("""
        import hashlib, socket, threading
        JOBS = 3000
        def talk():
            s = socket.create_connection(("127.0.0.1", 7112)); return s, s.makefile("rb")
        def produce(n):
            s, f = talk()
            for i in range(JOBS):
                body = (b"%d-%d " % (n, i)) * (i % 700 + 1)
                s.sendall(b"put 0 0 60 %d\\r\\n" % len(body) + body + b"\\r\\n")
                assert f.readline().startswith(b"INSERTED")
        found = []
        def consume():
            s, f = talk(); mine = []
            while True:
                s.sendall(b"reserve-with-timeout 2\\r\\n")
                said = f.readline().split()
                if said[0] != b"RESERVED": break
                body = f.read(int(said[2]) + 2)[:-2]
                mine.append(hashlib.sha256(body).digest())
                s.sendall(b"delete %s\\r\\n" % said[1]); assert f.readline() == b"DELETED\\r\\n"
            found.extend(mine)
        threads = [threading.Thread(target=produce, args=(n,)) for n in range(3)] + [threading.Thread(target=consume) for _ in range(2)]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(len(found), hashlib.sha256(b"".join(sorted(found))).hexdigest())
    """))


def gearman(bed):
    """A server between those who ask and those who work, with threads that pass connections to each other."""
    need("/usr/sbin/gearmand", "gearman")
    bed.server("/usr/sbin/gearmand", "-L", "127.0.0.1", "-p", 7113, "-t", 4, "-l", bed.work / "g.log", port=7113)
    for _ in range(2):
        bed.server("gearman", "-h", "127.0.0.1", "-p", 7113, "-w", "-f", "sum", "--", "sha256sum")
    bed.file("load", 3 * MIB)
    return bed.client("sh", "-ec", "for i in $(seq 10); do head -c $((i * 280000)) load | gearman -h 127.0.0.1 -p 7113 -f sum; done")


def erlang(bed):
    """Two nodes of Erlang: a port of its own runtime, and what it asks the port mapper. What is sent to a name before that is registered is lost."""
    need("erl", "epmd")
    env = {"HOME": str(bed.work), "ERL_EPMD_PORT": "7114", "ERL_EPMD_ADDRESS": "127.0.0.1"}
    bed.server("epmd", "-port", 7114, "-address", "127.0.0.1", port=7114)
    echo = "register(e, self()), F = fun F() -> receive {P, B} -> P ! {e, erlang:md5(B), B}, F() end end, F()."
    bed.server("erl", "-noinput", "-sname", "a@localhost", "-setcookie", "c", "-kernel", "inet_dist_use_interface", "{127,0,0,1}", "-eval", echo, env=env)
    ask = textwrap.dedent("""
        Up = fun U(0) -> halt(1); U(N) -> case rpc:call('a@localhost', erlang, whereis, [e]) of P when is_pid(P) -> ok; _ -> timer:sleep(100), U(N - 1) end end, Up(100),
        One = fun(I) -> B = binary:copy(<<I:32>>, I * 37 rem 90000 + 1), {e, 'a@localhost'} ! {self(), B},
                        receive {e, M, B} -> M = erlang:md5(B), M after 30000 -> halt(2) end end,
        Sums = [One(I) || I <- lists:seq(1, 1500)],
        io:format("~s~n", [binary:encode_hex(erlang:md5(Sums))]), init:stop().
    """).replace("\n", " ")
    return bed.client("erl", "-noinput", "-sname", "b@localhost", "-setcookie", "c", "-kernel", "inet_dist_use_interface", "{127,0,0,1}", "-eval", ask, env=env)


PROGRAMS = [openmpi, nbdkit, gdbserver, rsyslog, postfix_mail, ffmpeg, iperf2, nuttcp, qperf, asio, beanstalkd, gearman, erlang]
