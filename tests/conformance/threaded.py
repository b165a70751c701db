"""Frameworks whose threads share sets or hand connections on. Jobs as in programs.py. Called by run.py, inside a `Bed`."""

from bed import digest, need
from frameworks import FOLDER

EXAMPLES = "/usr/share/proton/examples/c"


def thrift(bed):
    """Connections go to threads with sets of their own, answers come back to them through pipes."""
    need("thrift", "c++", "/usr/include/thrift/server/TNonblockingServer.h")
    (bed.work / "echo.thrift").write_text("service Echo { binary twice(1: binary data) }\n")
    bed.quiet("thrift", "--gen", "cpp", "echo.thrift")
    bed.quiet("c++", "-O1", "-pthread", "-I.", "-o", "echo", FOLDER / "thrift_echo.cc", "gen-cpp/Echo.cpp", "-lthriftnb", "-lthrift", "-levent")
    bed.server(bed.work / "echo", port=7530)
    return bed.client(bed.work / "echo", "client")


def ice(bed):
    """Threads that take turns at one set."""
    need("slice2cpp", "c++", "/usr/include/Ice/Ice.h")
    (bed.work / "Echo.ice").write_text("module Test { sequence<byte> Bytes; interface Echo { Bytes twice(Bytes data); } }\n")
    bed.quiet("slice2cpp", "Echo.ice")
    bed.quiet("c++", "-O1", "-std=c++17", "-DICE_CPP11_MAPPING", "-pthread", "-I.", "-o", "echo", FOLDER / "ice_echo.cc", "Echo.cpp", "-lIce++11")
    bed.server(bed.work / "echo", port=7531)
    return bed.client(bed.work / "echo", "client", seconds=200)


def proton(bed):
    """A broker of AMQP: four threads on one set, each connection told of once and armed again; many senders and receivers."""
    need("cc", f"{EXAMPLES}/broker.c")
    for name in ("broker", "send", "receive"):
        bed.quiet("cc", "-O1", "-pthread", "-w", "-o", name, f"{EXAMPLES}/{name}.c", "-lqpid-proton")
    bed.server(bed.work / "broker", "127.0.0.1", 7532, port=7532)
    pairs = "\n".join(f"./receive 127.0.0.1 7532 q{i} 5000 >r{i} & p=\"$p $!\"\n./send 127.0.0.1 7532 q{i} 5000 >s{i} & p=\"$p $!\"" for i in range(5))
    bed.client("sh", "-ec", f"{pairs}\nfor i in $p; do wait $i; done", seconds=200)
    return digest(b"".join((bed.work / f"{what}{i}").read_bytes() for what in "rs" for i in range(5)))


PROGRAMS = [thrift, ice, proton]
