#!/bin/sh
# redis over TCP and over smcr in one run: both rates, their ratio, and the proof that the payload
# left TCP (bytes on lo for each byte of payload that redis itself counted). Nothing is configured:
# the same two programs, once with LD_PRELOAD. Runs in a network namespace of its own.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin
if [ "${DEMO_INSIDE:-}" != 1 ]; then
    lib=${SMCR_LIB:-${CARGO_TARGET_DIR:-$here/../target}/release/libsmcr.so}
    [ -f "$lib" ] || { echo "$lib is not there: make build" >&2; exit 1; }
    user=-r
    [ "$(id -u)" = 0 ] && user=
    # shellcheck disable=SC2086
    exec env DEMO_INSIDE=1 DEMO_LIB="$(realpath "$lib")" unshare $user -n "$0"
fi
ip link set lo up

port=7000
work=$(mktemp -d)
server=
finish() {
    [ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
    rm -rf "$work"
}
trap 'finish || true' EXIT

lo() { awk -F'[: ]+' '/^ *lo:/ {print $3}' /proc/net/dev; }
net() { redis-cli -p $port info stats | tr -d '\r' | awk -F: '/^total_net_(in|out)put_bytes:/ {s += $2} END {printf "%.0f", s}'; }

# run MEDIUM PRELOAD: lines "clients test rate lo payload"
run() {
    preload=$2
    (cd "$work" && LD_PRELOAD=$preload exec redis-server --port $port --save '' --appendonly no --loglevel warning >server.log 2>&1) &
    server=$!
    until redis-cli -p $port ping >/dev/null 2>&1; do sleep 0.05; done
    for clients in 1 50; do
        for test in SET GET; do
            case "$clients $1" in "1 tcp") n=60000 ;; "50 tcp") n=200000 ;; *) n=600000 ;; esac
            lo0=$(lo) net0=$(net)
            LD_PRELOAD=$preload redis-benchmark -p $port --csv -c $clients -n $n -d 64 -t $test 2>/dev/null |
                awk -F'"' -v t="$test" '$2 ~ "^" t {print $4}' >"$work/rate"
            lo1=$(lo) net1=$(net)
            echo "$clients $test $(cat "$work/rate") $((lo1 - lo0)) $((net1 - net0))" >>"$work/$1"
        done
    done
    kill $server && wait $server 2>/dev/null || true
    server=
}

echo "redis-server and redis-benchmark, unmodified, on this machine ($(nproc) processors):"
echo
run tcp ""
run smcr "$DEMO_LIB"
paste -d' ' "$work/tcp" "$work/smcr" | awk '
    BEGIN {
        printf "%-8s %-5s %14s %14s %8s   %s\n", "clients", "test", "TCP req/s", "smcr req/s", "ratio",
               "bytes on lo per payload byte (TCP, smcr)"
    }
    {
        printf "%-8s %-5s %14.0f %14.0f %7.1fx   %.3f  %.4f\n", $1, $2, $3, $8, $8 / $3, $4 / $5, $9 / $10
        lo += $9; payload += $10
    }
    END {
        printf "\nOver smcr %.0f bytes crossed the loopback device for %.0f bytes of payload: %.2f %% stayed off TCP.\n",
               lo, payload, 100 - 100 * lo / payload
        exit lo * 20 > payload
    }' || { echo "The payload did not leave TCP." >&2; exit 1; }
