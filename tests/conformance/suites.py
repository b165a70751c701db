"""Test suites of other projects. Each returns the set of tests that passed and of those that did not, so that a
test that passes natively and not under the library is seen by name. Called by run.py, inside a `Bed`.
"""

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as xml

import libraries
import runtimes
import servers
import systems
from bed import Skip, need, patient
from runtimes import tree_of

PYTHON = "/usr/bin/python3"
# The network pack: the modules of CPython's own tests that open TCP sockets, or are about signals and descriptors that calls wait for. Left out:
# those of multiprocessing and concurrent.futures, which don't end within their limit of time on a loaded machine, natively too.
CPYTHON = ["test_socket", "test_socketserver", "test_select", "test_selectors", "test_poll", "test_epoll", "test_asyncore",
           "test_asynchat", "test_asyncio", "test_ssl", "test_ftplib", "test_httplib", "test_httpservers", "test_urllib2_localnet",
           "test_xmlrpc", "test_docxmlrpc", "test_smtplib", "test_poplib", "test_imaplib", "test_telnetlib", "test_nntplib",
           "test_robotparser", "test_wsgiref", "test_os", "test_subprocess", "test_eintr", "test_logging", "test_timeout", "test_urllib", "test_urllib2",
           "test_smtpd", "test_signal", "test_threadsignals", "test_fcntl", "test_posix", "test_fork1", "test_asyncgen"]
# Those that refuse to run without this resource, though they use loopback alone.
NETWORK = {"test_socketserver", "test_timeout"}
# A test of VSOCK waits for ever on some machines, natively too.
OUT = ["-i", "*VSOCK*"]
# Of 84 of redis 7.0.15. Left out: data types, commands and files that one question and one answer are enough for (unit/dump, keyspace, scan, info, info-command,
# sort, expire, slowlog, bitops, bitfield, geo, hyperloglog, lazyfree, latency-monitor, acl-v2, type/incr, list-2, list-3, set, zset, stream-cgroups, aofrw,
# integration/rdb, aof-multi-part, corrupt-dump, corrupt-dump-fuzzer, dismiss-mem, three of convert), what takes long (integration/replication-psync) or the
# machine's memory (unit/maxmemory, memefficiency, oom-score-adj, violations), and unit/printver and unit/tls, which test nothing here.
REDIS = ["unit/auth", "unit/type/string", "unit/type/list", "unit/type/hash", "unit/type/stream", "unit/protocol", "unit/pubsub",
         "unit/multi", "unit/limits", "unit/obuf-limits", "unit/querybuf", "unit/networking", "unit/other", "unit/scripting",
         "unit/client-eviction", "integration/replication", "integration/redis-cli", "integration/redis-benchmark",
         "integration/aof", "integration/logging", "unit/shutdown", "unit/introspection",
         "unit/tracking", "unit/cluster", "unit/cluster/misc", "unit/cluster/links", "unit/cluster-scripting", "unit/pubsubshard", "unit/wait",
         "unit/pause", "unit/pendingquerybuf", "unit/replybufsize", "unit/quit", "unit/introspection-2", "unit/acl", "unit/functions",
         "integration/block-repl", "integration/replication-2", "integration/replication-3",
         "integration/replication-4", "integration/replication-buffer", "integration/psync2",
         "integration/psync2-reg", "integration/psync2-pingoff", "integration/psync2-master-restart", "integration/failover",
         "integration/shutdown"]
# What the first word of a name needs the sources of.
PACKAGES = {"redis": "redis", "libuv": "libuv1", "libuv-newest": "libuv", **runtimes.PACKAGES, **libraries.PACKAGES, **servers.PACKAGES, **systems.PACKAGES}
# Stressors and how much each does: as many operations natively as under the library, or the bytes say nothing about each other.
STRESS = {"sock": ["--sock-ops", "600"], "sockmany": ["--sockmany-ops", "6000"], "sockabuse": ["--sockabuse-ops", "2000"],
          "epoll": ["--epoll-domain", "ipv4", "--epoll-ops", "20000"],  # its own choice is unix
          # Files, pipes and descriptors through a socket of the family unix: no TCP, but the same calls.
          "poll": ["-t", "6"], "sendfile": ["-t", "6"], "sockfd": ["-t", "6"]}
# Those that need no sources and end within seconds.
QUICK = [*(f"CPython {m}" for m in ("test_socket", "test_select", "test_selectors", "test_poll", "test_epoll", "test_asynchat",
                                    "test_ftplib", "test_poplib", "test_httplib")), "stress-ng --sock", "stress-ng --epoll"]
# The packages of those.
DEBIAN = {"CPython": "libpython3.11-testsuite", "stress-ng": "stress-ng"}


def can_be_had(name):
    """Whether the package of one of QUICK is known to the distribution: then `tests/deps.sh test` has it installed."""
    try:
        return subprocess.run(["apt-cache", "show", DEBIAN[name.split()[0]]], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def cpython(bed, module):
    """One module of CPython's tests."""
    found = subprocess.run([PYTHON, "-c", "import test.support"], capture_output=True)
    if found.returncode:
        raise Skip("not installed: libpython3.11-testsuite")
    report = bed.work / "report.xml"
    os.environ["TMPDIR"] = str(bed.work)
    use = ["-u", "network"] if module in NETWORK else []
    subprocess.run([PYTHON, "-m", "test", *use, "--junit-xml", str(report), "--timeout", patient(240), *OUT, module],
                   cwd=bed.work, env=bed.environment(bed.mode != "native"), capture_output=True, stdin=subprocess.DEVNULL)
    if not report.exists():
        return {"failed": [f"{module} (no report)"], "passed": []}
    passed, failed = [], []
    for case in xml.parse(report).iter("testcase"):
        name = case.get("name", "")
        if case.find("skipped") is not None or case.get("status") == "notrun":
            continue
        bad = case.find("failure") is not None or case.find("error") is not None
        (failed if bad else passed).append(name)
    return {"passed": passed, "failed": failed}


def redis(bed, unit):
    """One unit of redis's own tests, with the installed programs."""
    need("tclsh", "redis-server", "redis-benchmark", "redis-cli")
    source = tree_of("redis")
    tree = bed.work / "redis"
    shutil.copytree(source, tree, ignore=shutil.ignore_patterns("deps", "*.c", "*.h"))
    (tree / "src").mkdir(exist_ok=True)
    for program in ("redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb", "redis-sentinel"):
        link = tree / "src" / program
        if shutil.which(program) and not link.exists():
            link.symlink_to(shutil.which(program))
    done = subprocess.run(["tclsh", "tests/test_helper.tcl", "--single", unit, "--clients", "1", "--skiptest",
                           "/.*(?:slow|memory efficiency|leak).*"], cwd=tree, capture_output=True, text=True,
                          env=bed.environment(bed.mode != "native"), stdin=subprocess.DEVNULL)
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    passed = re.findall(r"^\[ok\]: (.*?)(?: \(\d+ ms\))?$", text, re.M)
    if unit.startswith("integration/psync2"):  # which replica follows which, and how often, is drawn anew each time
        passed = sorted({re.sub(r"\d+", "N", name) for name in passed})
    failed = re.findall(r"^\[(?:err|exception|timeout)\]: (.*?)(?: in tests.*)?$", text, re.M)
    if done.returncode and not failed:
        failed = [f"{unit}: exit {done.returncode}"]
    return {"passed": passed, "failed": failed}


def libuv(bed, package):
    """libuv's own tests; they refuse to run as root. The newest registers with epoll sets by a ring of io_uring."""
    tree = tree_of(package)
    nobody = [] if os.geteuid() else ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    work = bed.work / "libuv"
    shutil.copytree(tree / "test", work / "test")
    shutil.copy(tree / "out" / "uv_run_tests_a", work)
    for path in (work, *work.rglob("*")):
        path.chmod(0o777)
    done = subprocess.run([*nobody, "./uv_run_tests_a"], cwd=work, capture_output=True, text=True, errors="replace",
                          env=bed.environment(bed.mode != "native", {"TMPDIR": str(work)}), stdin=subprocess.DEVNULL)
    return {"passed": re.findall(r"^ok \d+ - (\S+)$", done.stdout, re.M), "failed": re.findall(r"^not ok \d+ - (\S+)", done.stdout, re.M)}


def stress(bed, kind):
    """One stressor of stress-ng, with its own verification."""
    need("stress-ng")
    amount = STRESS[kind] if "-t" in STRESS[kind] else [*STRESS[kind], "-t", patient(120)]
    done = subprocess.run(["stress-ng", f"--{kind}", "2", "--verify", *amount, "--temp-path", str(bed.work)], cwd=bed.work,
                          capture_output=True, text=True, env=bed.environment(bed.mode != "native"), stdin=subprocess.DEVNULL)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "fail:" in line or "error:" in line]
    return {"passed": [] if done.returncode else [kind], "failed": [f"{kind}: {said[:1]}"] if done.returncode else []}


def jobs():
    """Name, function and argument of every part."""
    yield from ((f"CPython {m}", cpython, m) for m in CPYTHON)
    yield from ((f"redis {u}", redis, u) for u in REDIS)
    yield "libuv", libuv, "libuv1"
    yield "libuv-newest", libuv, "libuv"
    yield from ((f"stress-ng --{k}", stress, k) for k in STRESS)
    yield from runtimes.jobs()
    yield from libraries.jobs()
    yield from systems.jobs()
    yield from servers.jobs()


def packages(name):
    """What this suite needs the sources of."""
    first, _, rest = name.partition(" ")
    return [rest] if first == "Rust" else PACKAGES.get(first, "").split()


def find(name):
    for title, function, argument in jobs():
        if title == name:
            return lambda bed: function(bed, argument)
    raise SystemExit(f"no such suite: {name}")
