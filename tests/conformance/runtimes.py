"""Own test suites of event loops, portable runtimes, messaging libraries and languages. Each returns which tests passed
and which did not, as those of suites.py. Called by run.py through suites.py, inside a `Bed`.
"""

import os
import pathlib
import re
import shutil
import subprocess

import sources
from bed import Skip, need, patient

# Parts of the sources of languages whose tests use TCP.
PERL = ["cpan/IO-Socket-IP", "dist/IO", "cpan/libnet", "cpan/Socket"]
RUBY = ["test/socket", "test/net", "test/io", "test/drb"]
PHP = ["ext/sockets/tests", "ext/standard/tests/streams", "ext/standard/tests/http", "ext/standard/tests/network",
       "sapi/cli/tests"]
TCL = ["socket", "chanio", "io", "ioCmd", "http", "http11", "httpold", "event", "exec"]
# Programs of the package libglib2.0-tests about sockets, streams and what waits for them.
GLIB = pathlib.Path("/usr/libexec/installed-tests/glib")
GLIB_TESTS = """socket socket-service socket-listener socket-address gsocketclient-slow converter-stream network-address proxy-test pollable
    readwrite unix-streams unix-fd gdbus-non-socket gdbus-peer gdbus-connection-slow tls-interaction io-stream io-channel io-channel-basic
    mainloop async-splice-output-stream async-close-output-stream spawn-test spawn-singlethread spawn-multithreaded spawn-path-search
    gsubprocess cancellable task stream-rw_all timeout""".split()
RUST = ["mio", "async-io", "tokio", "hyper"]
# What the first word of a name needs the sources of; each of RUST is its own.
PACKAGES = {"libevent": "libevent", "APR": "apr", "libzmq": "zeromq3", "nng": "nng", "perl": "perl", "ruby": "ruby3.1", "PHP": "php8.2", "Tcl": "tcl8.6", "socat": "socat"}


def libevent(bed, _):
    """Its regression tests, each in a process of its own."""
    return words(output(bed, ["./regress"], tree_of("libevent") / "test"), r"^(\S+): (?:\[forking\] )?OK$",
                 r"^\s*\[(\S+) FAILED\]$")


def apr(bed, _):
    return words(output(bed, ["./testall"], tree_of("apr") / "test"), r"^(\w+) +:.*SUCCESS$", r"^(\w+) +:.*FAILED")


def libzmq(bed, _):
    return programs(bed, sorted((tree_of("zeromq3") / "out" / "bin").glob("test_*")), bed.work)


def nng(bed, _):
    tree = tree_of("nng") / "out"
    found = [p for p in tree.rglob("*") if p.is_file() and os.access(p, os.X_OK) and p.suffix == ""
             and (p.parent.name == "tests" or p.name.endswith("_test"))]
    return programs(bed, sorted(found), tree / "tests")


def tornado(bed, _):
    return words(output(bed, ["/usr/bin/python3", "-m", "tornado.test", "--verbose"], bed.work), r"^(\w+ \([\w.]+\)).*ok$",
                 r"^(?:FAIL|ERROR): (.*)$")


def perl(bed, part):
    """The files of one distribution, by the system's perl."""
    tree = tree_of("perl") / part
    passed, failed = [], []
    for test in sorted((tree / "t").glob("*.t")):
        text = output(bed, ["timeout", patient(60), "perl", f"t/{test.name}"], tree)
        passed += [f"{test.stem} {n}" for n in re.findall(r"^ok (\d+)", text, re.M)]
        failed += [f"{test.stem} {n}" for n in re.findall(r"^not ok (\d+)", text, re.M)]
    return {"passed": passed, "failed": failed}


def ruby(bed, _):
    """By the system's ruby. What failed is listed behind the names of all."""
    need("ruby")
    text = output(bed, ["ruby", "-Itool/lib", "-Itest", "tool/test/runner.rb", "-v", "--color=never", *RUBY], tree_of("ruby3.1"))
    failed = set(re.findall(r"^(\w[\w:]*#\w+)(?: \[|:)", text, re.M))
    every = set(re.findall(r"^\[ *\d+/\d+\] (\S+) = ", text, re.M))
    return {"passed": sorted(every - failed), "failed": sorted(failed)}


def php(bed, _):
    need("php")
    # Two gigabytes through a socket: hundreds of the others' time.
    (tree_of("php8.2") / "sapi/cli/tests/upload_2G.phpt").unlink(missing_ok=True)
    text = output(bed, ["php", "run-tests.php", "-q", "-P", "--no-color", *PHP], tree_of("php8.2"),
                  {"TEST_PHP_EXECUTABLE": "/usr/bin/php", "NO_INTERACTION": "1"})
    return words(text.replace("\r", "\n"), r"(?:^|\])PASS .*\[(\S+\.phpt)\]", r"(?:^|\])FAIL .*\[(\S+\.phpt)\]")


def tcl(bed, _):
    """By the system's interpreter, each file in a process of its own."""
    need("tclsh8.6")
    passed, failed = [], []
    for name in TCL:
        text = output(bed, ["timeout", "-k", "2", patient(120), "tclsh8.6", "all.tcl", "-file", f"{name}.test", "-verbose", "pe"],
                      tree_of("tcl8.6") / "tests")
        result = words(text, r"^\+{4} (\S+) PASSED", r"^==== (\S+) .*FAILED$")
        passed += result["passed"]
        failed += result["failed"]
    return {"passed": passed, "failed": failed}


def socat(bed, _):
    """Its test script, which is a list of what can be done with sockets, descriptors and processes."""
    tree = bed.work / "socat"
    shutil.copytree(tree_of("socat"), tree)
    text = output(bed, ["timeout", "-k", "5", patient(590), "./test.sh", "-t", "0.5"], tree, {"TMPDIR": str(bed.work), "LANG": "C.UTF-8"})
    return words(re.sub(r"\x1b\[[0-9;]*m", "", text), r"^test +\d+ (\S+): .*\.\.\. OK", r"^test +\d+ (\S+): .*\.\.\. FAILED")


def glib(bed, _):
    if not GLIB.exists():
        raise Skip("not installed: libglib2.0-tests")
    passed, failed = [], []
    for name in GLIB_TESTS:
        text = output(bed, ["timeout", "-k", "2", patient(90), str(GLIB / name), "--tap"], GLIB,
                      {"G_TEST_SRCDIR": str(GLIB), "G_TEST_BUILDDIR": str(GLIB)})
        result = words(text, r"^ *ok \d+ (\S+)$", r"^ *not ok \d+ (\S+)")
        passed += [f"{name} {test}" for test in result["passed"]]
        failed += [f"{name} {test}" for test in result["failed"]]
    return {"passed": passed, "failed": failed}


def go(bed, cgo):
    """Go's package net: with cgo it is a dynamic program, without it the library is never loaded. Go calls the kernel itself."""
    need("go")
    home = {"GOCACHE": str(bed.work / "cache"), "GOPATH": str(bed.work / "path"), "CGO_ENABLED": cgo, "HOME": str(bed.work)}
    root = pathlib.Path(bed.quiet("go", "env", "GOROOT", env=home).decode().strip()) / "src"
    bed.quiet("go", "test", "-c", "-o", bed.work / "net.test", "net", env=home, cwd=root)
    return words(output(bed, [str(bed.work / "net.test"), "-test.v", "-test.short"], root / "net"),
                 r"^--- PASS: (\S+)", r"^--- FAIL: (\S+)")


def rust(bed, package):
    """The test programs of a crate, as cargo has built them. What a crate calls by rustix it calls past libc."""
    tree = tree_of(package)
    home = tree / package if (tree / package / "tests").exists() else tree
    names = {test.stem for test in (home / "tests").glob("*.rs")} | {package.replace("-", "_")}
    passed, failed = [], []
    for program in sorted((tree / "out/debug/deps").iterdir()):
        stem, _, number = program.name.rpartition("-")
        if stem not in names or not re.fullmatch("[0-9a-f]{16}", number):
            continue
        result = words(output(bed, ["timeout", "-k", "2", patient(120), str(program)], home), r"^test (\S+) +\.\.\. ok$",
                       r"^test (\S+) +\.\.\. FAILED$")
        passed += [f"{stem} {name}" for name in result["passed"]]
        failed += [f"{stem} {name}" for name in result["failed"]]
    return {"passed": passed, "failed": failed}


def programs(bed, all_of_them, cwd):
    """Test programs that say by their exit status how it went."""
    passed, failed = [], []
    for program in all_of_them:
        done = subprocess.run(["timeout", "-k", "2", patient(60), str(program)], cwd=cwd, env=bed.environment(bed.mode != "native"),
                              capture_output=True, stdin=subprocess.DEVNULL)
        if done.returncode != 77:
            (failed if done.returncode else passed).append(program.name)
    return {"passed": passed, "failed": failed}


def output(bed, command, cwd, more=None):
    """What a suite prints."""
    done = subprocess.run(command, cwd=cwd, env=bed.environment(bed.mode != "native", more), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return done.stdout


def words(text, passed, failed):
    bad = set(re.findall(failed, text, re.M))
    return {"passed": [name for name in re.findall(passed, text, re.M) if name not in bad], "failed": sorted(bad)}


def tree_of(package):
    """The built sources of a package."""
    tree = sources.folder(package)
    if not tree:
        raise Skip(f"the sources of {package} could not be fetched or built")
    return pathlib.Path(tree)


def jobs():
    yield "libevent", libevent, ""
    yield "APR", apr, ""
    yield "libzmq", libzmq, ""
    yield "nng", nng, ""
    yield "tornado", tornado, ""
    yield from ((f"perl {part.split('/')[1]}", perl, part) for part in PERL)
    yield "ruby socket, net, io, drb", ruby, ""
    yield from ((f"Rust {package}", rust, package) for package in RUST)
    yield "PHP sockets, streams, http", php, ""
    yield "Tcl", tcl, ""
    yield "GLib", glib, ""
    yield "socat", socat, ""
    yield "Go net, dynamic", go, "1"
    yield "Go net, static", go, "0"
