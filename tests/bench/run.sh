#!/bin/sh
# The bench: packages, library, load programs, then bench.py with the arguments given.
#   tests/bench/run.sh [--rows pingpong,redis50] [--quick] [--list] ...   (bench.py --help has them all)
#   SMCR_LIB=path    measure this libsmcr.so instead of building one; SMCR_LIB=none: TCP against itself
#   BENCH_INSTALL=0  install nothing
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cd "$root"

have() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ]; }

# Rows whose program is missing afterwards are skipped, and the report says so.
missing() {
    while read -r program package; do
        have "$program" || echo "$package"
    done <<LIST
redis-server redis-server
redis-benchmark redis-tools
nginx nginx-light
wrk wrk
iperf3 iperf3
memcached memcached
haproxy haproxy
strace strace
valgrind valgrind
cc gcc
LIST
    ls /usr/lib/postgresql/*/bin/pgbench >/dev/null 2>&1 || echo postgresql
    [ -f /usr/include/stdio.h ] || echo libc6-dev
}

install_packages() {
    packages=$(missing | sort -u)
    [ -n "$packages" ] && have apt-get || return 0
    sudo=
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    echo "installing:" $packages
    # policy-rc.d: the packages' own services are not wanted, and would take CPU time from the rows
    policy=/usr/sbin/policy-rc.d
    made=
    if [ ! -e "$policy" ] && printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null 2>&1; then
        $sudo chmod 755 "$policy"
        made=1
    fi
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages >/dev/null 2>&1 ||
        { $sudo apt-get update >/dev/null 2>&1 &&
            $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages >/dev/null 2>&1; } ||
        echo "not all of these could be installed; their rows are skipped" >&2
    [ -z "$made" ] || $sudo rm -f "$policy"
}

list_only=
for a in "$@"; do
    case $a in --list | --help | -h) list_only=1 ;; esac
done

if [ -z "$list_only" ] && [ "${BENCH_INSTALL:-1}" = 1 ]; then
    install_packages
fi

lib=${SMCR_LIB:-}
if [ -z "$lib" ] && [ -z "$list_only" ]; then
    cargo build --release
    lib=${CARGO_TARGET_DIR:-target}/release/libsmcr.so
fi
if [ "$lib" = none ]; then
    lib=
elif [ -n "$lib" ] && [ ! -f "$lib" ]; then
    echo "no library at $lib" >&2
    exit 1
fi
unset SMCR_LIB LD_PRELOAD

bin=$root/bench-out/bin
if [ -z "$list_only" ]; then
    mkdir -p "$bin"
    for source in "$here"/c/*.c; do
        name=$(basename "$source" .c)
        if [ ! -e "$bin/$name" ] || [ -n "$(find "$source" "$here/c/common.h" -newer "$bin/$name")" ]; then
            ${CC:-cc} -O2 -Wall -Wextra -o "$bin/$name" "$source" -pthread
        fi
    done
fi

python=python3
[ -x /usr/bin/python3 ] && python=/usr/bin/python3
PYTHONDONTWRITEBYTECODE=1 exec "$python" "$here/bench.py" --bin "$bin" --lib "$lib" "$@"
