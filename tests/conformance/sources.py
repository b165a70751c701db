"""Sources of other projects as Debian has them, fetched and built once into target/conformance. Used by suites.py and
run.py; nothing here runs under the library.
"""

import os
import pathlib
import shutil
import subprocess

# Folders of LTP: the system calls that sockets, descriptors and waiting are about.
LTP = ("accept accept4 bind connect recv recvfrom recvmsg recvmmsg send sendto sendmsg sendmmsg sendfile splice tee vmsplice shutdown"
       " socket socketpair setsockopt getsockopt getsockname getpeername sockioctl listen epoll_create epoll_create1 epoll_ctl epoll_wait"
       " epoll_pwait poll ppoll select pselect close close_range dup dup2 dup3 fcntl read readv write writev preadv2 pwritev2 fork vfork"
       " execve").split()
# Parts of nginx that its tests ask for.
NGINX = ("debug threads http_ssl_module http_v2_module http_realip_module http_addition_module http_sub_module http_dav_module"
         " http_flv_module http_mp4_module http_gunzip_module http_gzip_static_module http_auth_request_module http_random_index_module"
         " http_secure_link_module http_slice_module http_stub_status_module mail mail_ssl_module stream stream_ssl_module"
         " stream_realip_module stream_ssl_preread_module").split()
LIBUV = [["cmake", "-B", "out", "-DLIBUV_BUILD_TESTS=ON", "."], ["make", "-s", "-j2", "-C", "out", "uv_run_tests_a"]]
# The tests of sockets that systems.py runs, and what they need.
ERLANG = """cd lib/kernel/test
erlc -W0 -I ../../common_test/test_server ../../common_test/test_server/ts_lib.erl ../../common_test/test_server/ts_install_cth.erl \\
    ../../common_test/test_server/ts_erl_config.erl
erlc -W0 +debug_info gen_tcp_echo_SUITE.erl gen_tcp_api_SUITE.erl sendfile_SUITE.erl kernel_test_*.erl
cc -shared -fPIC -I/usr/lib/erlang/usr/include -o gen_tcp_api_SUITE_data/gen_tcp_api_SUITE.so gen_tcp_api_SUITE_data/*.c"""
# Package of Debian -> how its tests are built, in its folder; nothing where they are scripts.
BUILD = {
    "redis": [],
    "libuv1": LIBUV,
    "libuv": LIBUV,
    "libevent": [["./configure", "-q", "--disable-samples"], ["make", "-s", "-j2"], ["make", "-s", "test/regress"]],
    "apr": [["./configure", "-q"], ["make", "-s", "-j2"], ["make", "-s", "-C", "test", "all"]],
    "zeromq3": [["cmake", "-B", "out", "-DBUILD_TESTS=ON", "-DWITH_DOCS=OFF", "-DBUILD_STATIC=OFF", "."], ["make", "-s", "-j2", "-C", "out"]],
    "nng": [["cmake", "-B", "out", "-DNNG_TESTS=ON", "."], ["make", "-s", "-j2", "-C", "out"]],
    "perl": [],
    "ruby3.1": [],
    "php8.2": [],
    "tcl8.6": [],
    "socat": [["./configure", "-q"], ["make", "-s", "-j2"]],
    "nodejs": [],
    "gevent": [],
    "libmicrohttpd": [["./configure", "-q", "--disable-https", "--disable-doc", "--disable-examples"], ["make", "-s", "-j2"],
                      ["make", "-s", "-j2", "-C", "src/microhttpd", "check", "TESTS="],
                      ["make", "-s", "-j2", "-C", "src/testcurl", "check", "TESTS="]],
    "nginx": [["auto/configure", *(f"--with-{part}" for part in NGINX)], ["make", "-s", "-j2"]],
    "nginx-tests": [],
    "vtest": [["make", "-s", "vtest"]],
    "haproxy": [],
    "memcached": [["./configure", "-q"], ["make", "-s", "-j2"]],
    "curl": [["cmake", "-B", "out", "-DCURL_USE_LIBPSL=OFF", "."], ["make", "-s", "-j2", "-C", "out"],
             ["make", "-s", "-j2", "-C", "out", "testdeps"]],
    "mio": [["cargo", "test", "-q", "--no-run", "--tests", "--features", "os-poll,os-ext,net", "--target-dir", "out"]],
    "async-io": [["cargo", "test", "-q", "--no-run", "--tests", "--target-dir", "out"]],
    "tokio": [["cargo", "test", "-q", "--no-run", "-p", "tokio", "--features", "full", "--target-dir", "out",
               *(word for name in ("tcp_*", "uds_*", "net_*", "io_driver*", "io_async_fd", "io_copy_bidirectional", "buffered", "udp",
                                   "unix_shutdown", "rt_common") for word in ("--test", name))]],
    "hyper": [["cargo", "test", "-q", "--no-run", "--tests", "--features", "full", "--target-dir", "out"]],
    "ltp": [["make", "-s", "autotools"], ["./configure", "-q"], ["make", "-s", "-j2", "-C", "lib"],
            *(["make", "-s", "-k", "-j2", "-C", f"testcases/kernel/syscalls/{part}"] for part in LTP)],
    "erlang": [["sh", "-ec", ERLANG]],
    "gvisor": [["make", "-s", "-j2", "-f", str(pathlib.Path(__file__).resolve().parent / "gvisor/Makefile")]],
}
# Of the Python Package Index: Debian's package has no tests.
PIP = {"gevent": "gevent==24.11.1"}
# Of crates.io, with their tests.
CRATES = {"tokio": "1.54.1"}
# What Debian does not have. Where there is no network: SMCR_SOURCE_<NAME> may name a folder that is built.
UPSTREAM = {"ltp": "https://github.com/linux-test-project/ltp", "mio": "https://github.com/tokio-rs/mio",
            "async-io": "https://github.com/smol-rs/async-io", "hyper": "https://github.com/hyperium/hyper", "nginx": "https://github.com/nginx/nginx",
            "nginx-tests": "https://github.com/nginx/nginx-tests", "vtest": "https://github.com/vtest/VTest2",
            "curl": "https://github.com/curl/curl", "libuv": "https://github.com/libuv/libuv",
            "gvisor": "https://github.com/google/gvisor"}


def prepare(cache, package):
    """Fetches and builds; sets the folder in the environment, for the jobs (empty: not there)."""
    if variable(package) not in os.environ:
        os.environ[variable(package)] = str(built(pathlib.Path(cache), package) or "")


def folder(package):
    """The folder that `prepare` found, or None."""
    return os.environ.get(variable(package)) or None


def variable(package):
    return f"SMCR_SOURCE_{package.upper().replace('-', '_')}"


def built(cache, package):
    top = cache / package
    if (top / ".built").exists():
        return top
    shutil.rmtree(top, ignore_errors=True)
    if package in UPSTREAM:
        if subprocess.run(["git", "clone", "-q", "--depth", "1", UPSTREAM[package], top], capture_output=True).returncode:
            return None
        apart(top / "Cargo.toml")
    elif package in CRATES:
        if not crate(top, package, CRATES[package]):
            return None
    elif package in PIP:
        pip = ["/usr/bin/python3", "-m", "pip", "install", "-q", "--only-binary=:all:", "--target", top, PIP[package]]
        if subprocess.run(pip, capture_output=True).returncode:
            return None
    else:
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


def apart(manifest):
    """Cargo would take a crate below this project's folder for one of its workspace."""
    if manifest.exists() and "[workspace]" not in manifest.read_text():
        with open(manifest, "a") as file:
            file.write("\n[workspace]\n")


def crate(top, name, version):
    """A crate as the root of a workspace, so that what its tests need of others is built with this one and not with a second."""
    (top / "src").mkdir(parents=True)
    (top / "src/lib.rs").touch()
    (top / "Cargo.toml").write_text(f'[package]\nname = "fetch"\nedition = "2021"\n[workspace]\n[dependencies]\n{name} = "={version}"\n')
    try:
        subprocess.run(["cargo", "vendor", "-q", "vendor"], cwd=top, capture_output=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return False
    (top / "vendor" / name).rename(top / name)
    shutil.rmtree(top / "vendor")
    shutil.rmtree(top / "src")
    (top / "Cargo.toml").write_text(f'[workspace]\nmembers = ["{name}"]\nresolver = "2"\n[patch.crates-io]\n{name}.path = "{name}"\n')
    return True


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
