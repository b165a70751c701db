"""Own test suites of network frameworks, and the tests of system calls of the Linux Test Project. Each returns
which tests passed and which did not, as those of suites.py. Called by run.py through suites.py, inside a `Bed`.
"""

import concurrent.futures
import importlib.util
import pathlib
import re
import shutil
import subprocess

from bed import Skip, need, patient
from runtimes import output, tree_of, words

PYTHON = "/usr/bin/python3"
# Folders of sources.LTP, in parts that end in time.
LTP = {"sockets": "accept accept4 bind connect recv recvfrom recvmsg recvmmsg send sendto sendmsg sendmmsg sendfile splice tee vmsplice"
                  " shutdown socket socketpair setsockopt getsockopt getsockname getpeername sockioctl listen",
       "waiting": "epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait poll ppoll select pselect",
       "descriptors": "close close_range dup dup2 dup3 read readv write writev preadv2 pwritev2 fork vfork execve",
       "fcntl": "fcntl"}
NODE = ["net", "http", "https", "http2", "tls", "cluster"]
TWISTED = ["twisted.internet.test", "twisted.web.test", "twisted.protocols.test", "twisted.test.test_tcp", "twisted.test.test_tcp_internals",
           "twisted.test.test_internet", "twisted.test.test_ssl", "twisted.test.test_sslverify", "twisted.test.test_protocols",
           "twisted.test.test_ftp", "twisted.test.test_process", "twisted.test.test_unix", "twisted.conch.test", "twisted.mail.test",
           "twisted.words.test"]
# Tests of gevent about sockets, servers and what waits for them.
GEVENT = re.compile(r"test__?_?(.*socket|.*server|.*pywsgi|.*ssl|.*select|makefile|greenio|.*backdoor|.*subprocess|.*http|timeout|GreenletExit"
                    r"|close_backend_fd|core_fork|fileobject|os|order|pool|hub|loop)")


def ltp(bed, part):
    """Each program in its folder; what needs more than the namespace gives says so itself."""
    tree = tree_of("ltp") / "testcases/kernel/syscalls"
    tests = [test for folder in LTP[part].split() for test in sorted((tree / folder).iterdir())
             if test.is_file() and test.stat().st_mode & 0o111 and re.fullmatch(r"[a-z_]+[0-9]*\d\d(_64)?", test.name)]
    path = {"TMPDIR": str(bed.work), "LTP_COLORIZE_OUTPUT": "0"}
    return each(bed, tests, lambda test: [f"./{test.name}"], path, seconds=40, at_once=1, cwd=lambda test: test.parent)


def node(bed, part):
    """The files of one subject, which say by their exit status how it went."""
    need("node")
    tree = tree_of("nodejs")
    work = bed.work / "node"
    shutil.copytree(tree / "test/common", work / "test/common")
    shutil.copytree(tree / "test/fixtures", work / "test/fixtures", symlinks=True)
    shutil.copytree(tree / "test/parallel", work / "test/parallel", ignore=shutil.ignore_patterns("test-[!hntc]*"))
    tests = sorted((work / "test/parallel").glob(f"test-{part}-*.js"))
    def command(test):
        flags = re.search(r"^// Flags: (.*)$", test.read_text(errors="replace"), re.M)
        return ["node", *(flags[1].split() if flags else []), str(test)]
    return each(bed, tests, command, seconds=30, cwd=lambda _: work)


def twisted(bed, part):
    if importlib.util.find_spec("twisted") is None:
        raise Skip("not installed: python3-twisted")
    text = output(bed, ["timeout", "-k", "5", patient(400), PYTHON, "-m", "twisted.trial", "--reporter=bwverbose", part], bed.work)
    passed, failed, place = [], [], []
    for line in text.splitlines():
        found = re.match(r"( *)(\S+) ?(?:\.\.\. *\[(\w[\w-]*)\])?$", line)
        if found and not found[3]:
            place = [*place[:len(found[1]) // 2], found[2]]
        elif found and found[3] in ("OK", "FAIL", "ERROR"):
            (passed if found[3] == "OK" else failed).append(f"{'.'.join(place[-2:])}.{found[2]}")
        elif line.startswith("===="):
            break
    return {"passed": passed, "failed": failed}


def gevent(bed, _):
    """Each file in a process of its own."""
    top = tree_of("gevent")
    passed, failed = [], []
    tests = [test for test in sorted((top / "gevent/tests").glob("test*.py")) if GEVENT.match(test.stem)]
    def one(test):
        return test.stem, output(bed, ["timeout", "-k", "5", patient(90), PYTHON, "-m", f"gevent.tests.{test.stem}", "-v"], bed.work,
                                 {"PYTHONPATH": str(top), "PYTHONWARNINGS": "ignore"})
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for stem, text in pool.map(one, tests):
            # What a child prints comes between a name and its "ok".
            result = words(text, r"^(\w+ \([\w.]+\)) (?:.*\n(?!\w+ \([\w.]+\))){0,4}?.*ok$", r"^(?:FAIL|ERROR): (.*)$")
            passed += [f"{stem} {name}" for name in result["passed"]]
            failed += [f"{stem} {name}" for name in result["failed"]]
    return {"passed": passed, "failed": failed}


def microhttpd(bed, part):
    tree = tree_of("libmicrohttpd") / "src" / part
    tests = [p for p in sorted(tree.glob("test_*")) if p.suffix == "" and p.stat().st_mode & 0o111]
    return each(bed, tests, lambda test: [str(test)], seconds=60, at_once=1, cwd=lambda test: test.parent)


def each(bed, tests, command, more=None, seconds=60, at_once=2, cwd=None):
    """Runs test programs and takes their exit status."""
    def one(test):
        done = subprocess.run(["timeout", "-k", "2", patient(seconds), *command(test)], cwd=cwd(test), stdin=subprocess.DEVNULL,
                              env=bed.environment(bed.mode != "native", more), capture_output=True)
        return done.returncode
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        codes = list(pool.map(one, tests))
    names = [str(test.relative_to(test.parents[1]) if at_once == 1 else test.stem) for test in tests]
    # 32 and 77: left out by the test itself.
    return {"passed": [n for n, code in zip(names, codes) if code == 0],
            "failed": [n for n, code in zip(names, codes) if code not in (0, 32, 77)]}


# What the first word of a name needs the sources of.
PACKAGES = {"LTP": "ltp", "Node": "nodejs", "gevent": "gevent", "libmicrohttpd": "libmicrohttpd"}


def jobs():
    yield from ((f"LTP {part}", ltp, part) for part in LTP)
    yield from ((f"Node {part}", node, part) for part in NODE)
    yield from ((part.replace(".test.", " "), twisted, part) for part in TWISTED)
    yield "gevent", gevent, ""
    yield from ((f"libmicrohttpd {part}", microhttpd, part) for part in ("microhttpd", "testcurl"))
