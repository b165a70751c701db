#!/usr/bin/env bash
# Runs suites of tests one after the other, each with a deadline, and prints a summary at the end.
#
#   tests/suites.sh SUITE...      a suite is arrows, units, strict, conformance, lab, or a test of the crate smcr-tests
#
# Called by `make test` and its relatives. Exit status 0: all passed. Needs bash, cargo and timeout.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
CARGO=${CARGO:-cargo}

# Seconds after which a suite is stopped: several times what it takes on two processors.
deadline() {
    case $1 in
        twice) echo 700 ;;
        units | programs_redis | programs_nginx | faults | memcheck | conformance) echo 400 ;;
        lab) echo 900 ;;
        *) echo 240 ;;
    esac
}

run() {
    case $1 in
        arrows) timeout "$(deadline "$1")" tests/check-arrows.sh ;;
        units) timeout "$(deadline "$1")" "$CARGO" test -p smcr-proto -p smcr-admin -p smcr-preload --no-fail-fast ;;
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
        *) timeout "$(deadline "$1")" "$CARGO" test -p smcr-tests --test "$1" ;;
    esac
}

# In the groups in which they run: with other packages beside them, those that they share have other features, and all is compiled twice.
for group in "-p smcr-proto -p smcr-admin -p smcr-preload" "-p smcr-model" "-p smcr-tests"; do
    # shellcheck disable=SC2086  # several words
    "$CARGO" test $group --no-run || exit 1
done
status=0
summary=()
for suite in "$@"; do
    printf '\n== %s\n' "$suite"
    begin=$SECONDS
    run "$suite"
    code=$?
    case $code in
        0) word=passed ;;
        77) word='left out: no guests can be had here' ;;
        124) word='FAILED (deadline)' status=1 ;;
        *) word=FAILED status=1 ;;
    esac
    summary+=("$(printf '%-18s %4d s  %s' "$suite" $((SECONDS - begin)) "$word")")
done
printf '\n== summary (%d s)\n' "$SECONDS"
printf '%s\n' "${summary[@]}"
exit $status
