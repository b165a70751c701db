"""Own test suites of programs: nginx's, HAProxy's, memcached's and curl's. Each returns which tests passed and which did not,
as those of suites.py. Called by run.py through suites.py, inside a `Bed`.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess

from bed import need, patient
from libraries import each
from runtimes import output, tree_of, words

# Their servers become nobody where root starts them, and could not read what the tests write; daemon is an ordinary user.
USER = [] if os.geteuid() else ["setpriv", "--reuid=1", "--regid=1", "--clear-groups"]
# First letters of nginx's files: parts that end in time.
NGINX = ["[a-g]", "[h-l]", "[m-r]", "[s-z]"]
# Numbers of curl's tests, in such parts.
CURL = ["1 to 700", "701 to 1500", "1501 to 4000"]


def nginx(bed, part):
    """Files of nginx-tests, which talk to an nginx of the same day from perl; fixed ports, so one after the other."""
    need("perl")
    tree = ours(bed, "nginx-tests")
    more = {"TEST_NGINX_BINARY": str(tree_of("nginx") / "objs/nginx"), "TMPDIR": str(bed.work)}
    return tap(bed, tree, [[str(test.name)] for test in sorted(tree.glob(f"{part}*.t"))], more, at_once=1)


def memcached(bed, _):
    """The files of t/, which start a server each, on a port that is free."""
    need("perl")
    tree = ours(bed, "memcached")
    # Of fixed ports, of the whole machine's state, or of the sources' format.
    tests = [test for test in sorted((tree / "t").glob("*.t")) if test.stem not in ("whitespace", "64bit", "maxconns")]
    # Their names tell of values that the tests made up.
    return tap(bed, tree, [["-Ilib", f"t/{test.name}"] for test in tests], {"TMPDIR": str(bed.work)}, at_once=2, named=False)


def haproxy(bed, _):
    """HAProxy's regression tests: the programs of Debian, clients and servers of vtest."""
    need("haproxy")
    tree = ours(bed, "haproxy")
    more = {"HAPROXY_PROGRAM": shutil.which("haproxy"), "TMPDIR": str(bed.work)}
    vtest = str(tree_of("vtest") / "vtest")
    def command(test):
        return [*USER, vtest, "-q", "-t", patient(40), "-D", "no-htx=", "-k", "-b", "50M", str(test)]
    return each(bed, sorted(tree.glob("reg-tests/*/*.vtc")), command, more, seconds=60, at_once=1, cwd=lambda _: tree)


def curl(bed, part):
    """Its curl and libcurl against servers of its own for each protocol; how many tests are chosen depends on how it was built."""
    need("perl")
    tests = tree_of("curl") / "tests"
    text = output(bed, ["perl", f"-I{tests}", str(tests / "runtests.pl"), "-n", "-a", "-s", *part.split()], tests.parent / "out/tests")
    return words(text, r"^test (\d+) OK", r"^test (\d+) FAILED")


def ours(bed, package):
    """A copy of the tree that the tests may write to."""
    tree = bed.work / package
    shutil.copytree(tree_of(package), tree, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    bed.work.chmod(0o777)
    if USER:
        subprocess.run(["chown", "-R", "1:1", tree], check=True)
    return tree


def tap(bed, cwd, tests, more, at_once, named=True):
    """Runs perl's test files and takes their lines of "ok" and "not ok"."""
    def one(arguments):
        done = subprocess.run(["timeout", "-k", "2", patient(90), *USER, "perl", *arguments], cwd=cwd, stdin=subprocess.DEVNULL,
                              env=bed.environment(bed.mode != "native", more), capture_output=True, text=True, errors="replace")
        return arguments[-1], done.returncode, done.stdout
    passed, failed = [], []
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for name, code, text in pool.map(one, tests):
            # Which server of several is the first is another one each time.
            text = re.sub(r"(?<= to server )\d+(?= in )", "N", text)
            found = re.findall(r"^(ok|not ok) (\d+)(?: - (.*?))?( # (?:TODO|SKIP|skip).*)?$", text, re.M)
            names = [(word, f"{name} {number} {what}" if named else f"{name} {number}") for word, number, what, left in found if not left]
            passed += [title for word, title in names if word == "ok"]
            bad = [title for word, title in names if word != "ok"]
            failed += bad + ([f"{name}: exit {code}"] if code and not bad else [])
    return {"passed": passed, "failed": failed}


# What the first word of a name needs the sources of.
PACKAGES = {"nginx": "nginx nginx-tests", "memcached": "memcached", "HAProxy": "haproxy vtest", "curl": "curl"}


def jobs():
    yield from ((f"nginx {part}", nginx, part) for part in NGINX)
    yield "HAProxy", haproxy, ""
    yield "memcached t", memcached, ""
    yield from ((f"curl {part}", curl, part) for part in CURL)
