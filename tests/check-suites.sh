#!/usr/bin/env bash
# Checks tests/suites.sh itself, with a cargo that only says what cargo would: what failed once and passes at the second attempt is
# passed where a slow machine may have made it, and nowhere else. Part of the suite `arrows`. Needs bash.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/cargo" <<'FAKE'
#!/usr/bin/env bash
fails() { # NAME ERROR...
    printf 'test %s ... FAILED\n\nfailures:\n\n---- %s stdout ----\nonly slow: printed before\n' "$1" "$1"
    printf '%s\n' "${@:2}" 'Stack backtrace:' '   0: only slow: a frame'
    printf '\nfailures:\n    %s\n\ntest result: FAILED. 3 passed; 1 failed; 0 ignored\n' "$1"
    exit 101
}
case "$*" in
    *--no-run*) exit 0 ;;
    *--exact*)
        if [ "$KIND" = other ]; then printf 'test result: ok. 0 passed; 0 failed\n'; else printf 'test it::holds ... ok\n'; fi
        exit 0
        ;;
esac
case $KIND in
    slow | other) fails it::holds 'Error: SEED=1' '' 'Caused by:' '    0: a line' '    1: only slow: 1 of 2 connections were in memory' ;;
    wrong) fails it::holds 'Error: SEED=1' '' 'Caused by:' '    0: a line' '    1: other bytes than were sent' ;;
    hung) fails it::holds 'Error: the connections end: not within the deadline' ;;
    leak) fails it::holds 'Error: the survivor leaks: ["regions: 1 before, 2 now"]' ;;
    panic) fails it::holds "thread 'it::holds' panicked at tests/it.rs:1:1:" ;;
    crash)
        printf "error: test failed\n  process didn't exit successfully: \`it\` (signal: 11, SIGSEGV: invalid memory reference)\n"
        fails it::holds 'Error: only slow: 1 of 2 connections were in memory'
        ;;
    mimic) printf 'test it::holds   ... FAILED\n\nfailures:\n\n---- it::holds ----\nlibrary: only slow: 7 %% on lo\n\nfailures:\n    it::holds\n' && exit 101 ;;
    again) printf 'test it::holds ... ok\nholds: passed at attempt 2\n' ;;
esac
FAKE
chmod +x "$dir/cargo"
errors=0
# SUITE KIND WANTED: what the summary is to say of the suite.
holds() {
    local said
    said=$(env -u SMCR_FLIP KIND="$2" CARGO="$dir/cargo" tests/suites.sh "$1" 2>&1)
    local code=$? line
    line=$(sed -n "s/^$1  *[0-9]* s  //p" <<<"$said" | tail -1)
    if [ "$line" != "$3" ] || { [ "$3" = FAILED ] && [ $code -eq 0 ]; } || { [ "$3" != FAILED ] && [ $code -ne 0 ]; }; then
        printf 'tests/suites.sh: %s that failed so: %s: "%s" (%d) in place of "%s"\n' "$1" "$2" "$line" $code "$3" >&2
        errors=1
    fi
}
holds kills slow 'passed, at a later attempt: it::holds'
holds memcheck mimic 'passed, at a later attempt: it::holds'
holds twice again 'passed, at a later attempt: holds'
for kind in other wrong hung leak panic crash; do holds kills $kind FAILED; done
holds units panic FAILED
holds twice hung FAILED
exit $errors
