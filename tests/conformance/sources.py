"""Sources of other projects as Debian has them, fetched and built once into target/conformance. Used by suites.py and
run.py; nothing here runs under the library.
"""

import os
import pathlib
import shutil
import subprocess

# Package of Debian -> how its tests are built, in its folder; nothing where they are scripts.
BUILD = {
    "redis": [],
    "libuv1": [["cmake", "-B", "out", "-DLIBUV_BUILD_TESTS=ON", "."], ["make", "-C", "out", "uv_run_tests_a"]],
    "libevent": [["./configure", "-q", "--disable-samples"], ["make", "-s", "-j2"], ["make", "-s", "test/regress"]],
    "apr": [["./configure", "-q"], ["make", "-s", "-j2"], ["make", "-s", "-C", "test", "all"]],
    "zeromq3": [["cmake", "-B", "out", "-DBUILD_TESTS=ON", "-DWITH_DOCS=OFF", "-DBUILD_STATIC=OFF", "."], ["make", "-s", "-j2", "-C", "out"]],
    "nng": [["cmake", "-B", "out", "-DNNG_TESTS=ON", "."], ["make", "-s", "-j2", "-C", "out"]],
    "perl": [],
    "ruby3.1": [],
    "php8.2": [],
}


def prepare(cache, packages):
    """Fetches and builds; sets the folder of each in the environment, for the jobs (empty: not there)."""
    for package in packages:
        os.environ[variable(package)] = str(built(pathlib.Path(cache), package) or "")


def folder(package):
    """The folder that `prepare` found, or None."""
    return os.environ.get(variable(package)) or None


def variable(package):
    return f"SMCR_SOURCE_{package.upper()}"


def built(cache, package):
    top = cache / package
    if (top / ".built").exists():
        return top
    shutil.rmtree(top, ignore_errors=True)
    archive = fetched(cache, package)
    if archive is None:
        return None
    top.mkdir()
    subprocess.run(["tar", "xf", archive, "-C", top, "--strip-components=1"], check=True)
    for command in BUILD[package]:
        try:
            done = subprocess.run(command, cwd=top, capture_output=True, text=True)
        except FileNotFoundError as missing:
            print(f"{package}: {missing}")
            return None
        if done.returncode:
            print(f"{package}: {' '.join(command)}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
            return None
    (top / ".built").touch()
    return top


def fetched(cache, package):
    """The upstream archive."""
    def there():
        return next((a for a in cache.glob(f"{package}_*.orig.tar.*") if a.suffix != ".asc"), None)

    if there() is None:
        (cache / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (cache / "sources.list").write_text("deb-src http://deb.debian.org/debian bookworm main\n")
        apt = ["apt-get", "-o", f"Dir::Etc::SourceList={cache}/sources.list", "-o", "Dir::Etc::SourceParts=/dev/null",
               "-o", f"Dir::State::Lists={cache}/lists"]
        subprocess.run([*apt, "update"], capture_output=True)
        subprocess.run([*apt, "source", "--download-only", package], cwd=cache, capture_output=True)
    return there()
