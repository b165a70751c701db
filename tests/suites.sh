#!/usr/bin/env bash
# Runs suites of tests one after the other, each with a deadline, and prints a summary at the end.
#
#   tests/suites.sh SUITE...      a suite is arrows, units, strict, conformance, lab, or a test of the crate smcr-tests
#
# With SMCR_FLIP=MEAN_BYTES,SEED in the environment (`make flip`) every program of a suite inherits it, and its connections move
# between memory and TCP at random bytes. Then a case does not ask how much left TCP (`process::flipping` in tests/src), and a suite
# with no other subject is left out (`steady` below).
#
# Random tests have other seeds each time, which are printed; SMCR_TEST_SEED (programs) and SMCR_FUZZ_SEED (parsers) repeat a run.
#
# Called by `make test` and its relatives. Exit status 0: all passed. Needs bash, cargo and timeout.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
CARGO=${CARGO:-cargo}
export SMCR_TEST_SEED=${SMCR_TEST_SEED:-$((RANDOM * 32768 + RANDOM))}
export SMCR_FUZZ_SEED=${SMCR_FUZZ_SEED:-$((RANDOM * 32768 + RANDOM))}
seeds="SMCR_TEST_SEED=$SMCR_TEST_SEED SMCR_FUZZ_SEED=$SMCR_FUZZ_SEED"

# Seconds after which a suite is stopped: several times what it takes on two processors.
deadline() {
    local seconds
    case $1 in
        twice) seconds=900 ;;
        units | programs_redis | programs_nginx | faults | memcheck | conformance) seconds=400 ;;
        lab) seconds=900 ;;
        *) seconds=240 ;;
    esac
    if [ -n "${SMCR_FLIP:-}" ]; then seconds=$((2 * seconds)); fi
    echo $seconds
}

# Why a suite has nothing to show while connections flip; empty: it has.
steady() {
    case $1 in
        arrows | units | models) echo 'starts no programs with the library' ;;
        lab) echo 'between hosts: over a link SMCR_FLIP moves nothing' ;;
        bulk) echo 'sets SMCR_FLIP itself, for the pace of copies' ;;
        strict) echo 'asks that connections are in memory; its cases are in twice' ;;
    esac
}

run() {
    if [ -n "${SMCR_FLIP:-}" ] && [ -n "$(steady "$1")" ]; then return 78; fi
    case $1 in
        arrows) timeout "$(deadline "$1")" tests/check-arrows.sh && timeout "$(deadline "$1")" tests/check-suites.sh ;;
        units)
            timeout "$(deadline "$1")" "$CARGO" test -p smcr-proto -p smcr-admin -p smcr-preload -p smcr-bpf --no-fail-fast &&
                PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 tests/bench/test_verdicts.py
            ;;
        # Between two emulated hosts: what needs root and QEMU is left out where they cannot be had, and says so.
        lab)
            if ! timeout 600 tests/lab/prepare.sh >/dev/null; then return 77; fi
            timeout "$(deadline "$1")" tests/lab/run.py --short
            ;;
        # Suites of others that end within seconds; `make conformance` runs all.
        conformance) timeout "$(deadline "$1")" /usr/bin/python3 tests/conformance/run.py --quick ;;
        models) timeout "$(deadline "$1")" "$CARGO" test -p smcr-model ;;
        # What measures how much left TCP runs alone: two at a time would take each other's processor. Strict: a
        # connection that should have left TCP and does not is reset.
        programs_*) SMCR_STRICT=1 timeout "$(deadline "$1")" "$CARGO" test -p smcr-tests --test "$1" -- --test-threads=1 ;;
        # The same for Python's sockets, selectors and asyncio.
        strict) SMCR_STRICT=1 timeout "$(deadline "$1")" "$CARGO" test -p smcr-tests --test twice -- echo:: ;;
        # Random values in the shared memory while it is read and written.
        hostile_random) timeout "$(deadline "$1")" "$CARGO" test -p smcr-tests --test hostile -- random_values ;;
        # Their cases wait for most of their time.
        twice) timeout "$(deadline "$1")" "$CARGO" test -p smcr-tests --test twice -- --test-threads=8 ;;
        faults) timeout "$(deadline "$1")" "$CARGO" test -p smcr-tests --test faults -- --test-threads=6 ;;
        *) timeout "$(deadline "$1")" "$CARGO" test -p smcr-tests --test "$1" ;;
    esac
}

# In the groups in which they run: with other packages beside them, those that they share have other features, and all is compiled twice.
for group in "-p smcr-proto -p smcr-admin -p smcr-preload" "-p smcr-model" "-p smcr-tests"; do
    # shellcheck disable=SC2086  # several words
    "$CARGO" test $group --no-run || exit 1
done
# Names of the tests that failed in a log.
failures() {
    sed -nE 's/^test (.+[^ ]) +\.\.\. FAILED.*/\1/p' "$1" | sort -u
}

# Of those, the ones that say themselves that a slow machine may be all that was wrong (tests/src/slow.rs): in the section of the log that
# tells of a test, in the error itself and not in what was printed before it.
only_slow() {
    awk '/^---- .* stdout ----$/ { name = $0; sub(/^---- /, "", name); sub(/ stdout ----$/, "", name); error = 0; next }
         /^---- .* ----$/ { name = $0; sub(/^---- /, "", name); sub(/ ----$/, "", name); error = 1; next }
         /^(failures:|test result:|Stack backtrace:)/ { name = ""; next }
         name != "" && /^Error: / { error = 1 }
         name != "" && error && /only slow: / { print name }' "$1" | sort -u
}

# Whether each test of the group has come to its end: none crashed, and took the others with it.
all_ended() {
    ! grep -qE 'process didn.t exit successfully: .*\(signal: |has overflowed its stack|^fatal runtime error' "$1"
}

# Of a suite that failed: what did, once more, up to three tests, where each says that it may be the machine's speed. A wrong byte, a
# hang, a crash or a leak that was seen once is a failure. What passes then is named in the summary, for it is to be looked at all the
# same. Status as `run`.
again() {
    local failed name strict=() packages=(-p smcr-tests --test "$1")
    case $1 in
        arrows | units | models | lab | conformance) return 1 ;; # nothing in them says so
        twice | strict) return 1 ;;                              # have attempts of their own
        hostile_random) packages=(-p smcr-tests --test hostile) ;;
        programs_*) strict=(env SMCR_STRICT=1) ;;
    esac
    mapfile -t failed < <(failures "$2")
    if [ "${#failed[@]}" -eq 0 ] || [ "${#failed[@]}" -gt 3 ] || ! all_ended "$2"; then return 1; fi
    for name in "${failed[@]}"; do
        only_slow "$2" | grep -qxF -- "$name" || return 1
    done
    printf '\n== %s: once more: %s\n' "$1" "${failed[*]}"
    first+=("$(grep 'only slow: ' "$2" | sort -u | sed "s/^/$1: /")")
    timeout "$(deadline "$1")" "${strict[@]}" "$CARGO" test "${packages[@]}" -- --test-threads=1 --exact "${failed[@]}" 2>&1 | tee "$second"
    if [ "${PIPESTATUS[0]}" -ne 0 ]; then return 1; fi
    # Each has run, and no other one in its place.
    for name in "${failed[@]}"; do
        sed -nE 's/^test (.+[^ ]) +\.\.\. ok$/\1/p' "$second" | grep -qxF -- "$name" || return 1
    done
    passed_later=${failed[*]}
}

status=0
summary=()
first=()
log=$(mktemp)
second=$(mktemp)
trap 'rm -f "$log" "$second"' EXIT
echo "== seeds: $seeds"
if [ -n "${SMCR_FLIP:-}" ]; then echo "== connections flip: SMCR_FLIP=$SMCR_FLIP"; fi
for suite in "$@"; do
    printf '\n== %s\n' "$suite"
    begin=$SECONDS
    run "$suite" 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    # The cases that twice has run again, which it does with none that hung, crashed or had other bytes.
    passed_later=$(sed -nE 's/^([a-z_0-9]+): passed at attempt [0-9]+$/\1/p' "$log" | paste -sd ' ')
    if [ "$code" -eq 101 ] && again "$suite" "$log"; then code=0; fi
    case $code in
        0) word=passed${passed_later:+, at a later attempt: $passed_later} ;;
        77) word='left out: no guests can be had here' ;;
        78) word="left out: $(steady "$suite")" ;;
        124) word='FAILED (deadline)' status=1 ;;
        *) word=FAILED status=1 ;;
    esac
    summary+=("$(printf '%-18s %4d s  %s' "$suite" $((SECONDS - begin)) "$word")")
done
printf '\n== summary (%d s), %s%s\n' "$SECONDS" "$seeds" "${SMCR_FLIP:+, SMCR_FLIP=$SMCR_FLIP}"
printf '%s\n' "${summary[@]}"
if [ "${#first[@]}" -gt 0 ]; then printf '\n== what the first attempts said\n%s\n' "${first[@]}"; fi
exit $status
