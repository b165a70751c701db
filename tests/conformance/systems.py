"""Own tests of systems that have sockets of their own: Erlang's of gen_tcp and sendfile, and gVisor's, which say by one test after the other
what Linux does. Each returns which tests passed and which did not, as those of suites.py. Called by run.py through suites.py, inside a `Bed`.
"""

import re

from bed import Skip, need, patient
from runtimes import output, tree_of

ERLANG = ["gen_tcp_echo", "gen_tcp_api", "sendfile"]
# They count the descriptors of their process, of which some are the library's.
COUNT_DESCRIPTORS = {"sendfile t_sendfile_small", "sendfile t_sendfile_big_all"}
# Programs of gVisor's that belong together (`gvisor/Makefile` builds them).
GVISOR = {"streams": "tcp_socket socket_ip_tcp_generic_loopback readv_socket sendfile_socket partial_bad_buffer",
          "loopback": "socket_ip_tcp_loopback socket_ip_tcp_loopback_blocking socket_ip_tcp_loopback_nonblock socket_ip_loopback_blocking"
                      " socket_ip_tcp_udp_generic",
          "waiting": "poll ppoll select pselect epoll"}
# Those that only wait, for seconds in each of a dozen forms, or need all ports of the machine; one that the kernel answers in two ways, natively as
# well (SO_TIMESTAMP just after it was set); and three that ask for what docs/interpose.md and docs/readiness.md name as different: TCP_CORK holds
# nothing back in memory, a full ring that nobody reads is left for TCP, which takes more, and a buffer that is not there is no EFAULT.
GVISOR_OUT = ("-*PortReuse*:*EphemeralPort*:*PortExhaustion*:*FinWait2*:*TimeWait*:*NoPackets*:*Linger*:*TCPBacklog*:*TcpSCMPriority*"
              ":*TCPSocketPairTest.TCPCork/*:*ClosedWriteBlockingSocket*:PartialBadBufferTest.SendMsgTCP")


def erlang(bed, part):
    need("ct_run")
    tests, logs = tree_of("erlang") / "lib/kernel/test", bed.work / "ct"
    logs.mkdir()
    output(bed, ["timeout", "-k", "5", patient(900), "ct_run", "-no_auto_compile", "-noinput", "-pa", str(tests), "-dir", str(tests),
                 "-suite", f"{part}_SUITE", "-logdir", str(logs), "-sname", f"ct_{part}"], bed.work)
    found = {True: [], False: []}
    case = None
    for log in logs.glob("**/suite.log"):
        for line in log.read_text(errors="replace").splitlines():
            if name := re.match(r"=case\s+\w+:(\w+)", line):
                case = name[1]
            elif (result := re.match(r"=result\s+(ok|failed)", line)) and case and not re.match(r"(init|end)_per_", case):
                name = f"{part} {case}"
                found[result[1] == "ok"] += [name] if name not in COUNT_DESCRIPTORS else []
                case = None
    return {"passed": found[True], "failed": found[False]}


def gvisor(bed, part):
    """Connections begin with small talk, natively as well (`gvisor/warm.c`)."""
    out = tree_of("gvisor") / "out"
    passed, failed = [], []
    for program in GVISOR[part].split():
        if not (out / "bin" / program).exists():
            raise Skip(f"not built: {program}")
        preload = ":".join([str(out / "warm.so"), *([bed.library] if bed.mode != "native" else [])])
        text = output(bed, ["timeout", "-k", "5", patient(150), "env", f"LD_PRELOAD={preload}", str(out / "bin" / program),
                            f"--gtest_filter={GVISOR_OUT}"], out.parent, {"TEST_TMPDIR": str(bed.work)})
        ends = re.findall(r"^\[ +(OK|FAILED) +\] (\S+?)(?:,| \()", text, re.M)
        bad = {name for end, name in ends if end == "FAILED"}
        passed += [f"{program} {name}" for end, name in ends if end == "OK" and name not in bad]
        failed += [f"{program} {name}" for name in sorted(bad)]
    return {"passed": passed, "failed": failed}


# What the first word of a name needs the sources of.
PACKAGES = {"Erlang": "erlang", "gVisor": "gvisor"}


def jobs():
    yield from ((f"Erlang {part}", erlang, part) for part in ERLANG)
    yield from ((f"gVisor {part}", gvisor, part) for part in GVISOR)
