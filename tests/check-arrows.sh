#!/usr/bin/env bash
# The rules of the house that a compiler does not know: layering, linkage, SAFETY comments, calls that
# would enter our own hooks, what the library depends on, file length, paths of somebody's machine, names in documents,
# how much the models do not cover.
#
#   tests/check-arrows.sh [libsmcr.so]
#
# Without an argument the library is looked for in the target directory, and its part is left out if it
# is not built. Exit status 0: clean (warnings are allowed), 1: a rule is broken. Needs bash, grep, awk,
# readelf, and cargo for what the library depends on.
set -u
shopt -s nullglob globstar
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

bad=0
breach() { printf '%s\n' "$1"; bad=1; }
# Prints what it reads, and counts it as a breach if it is anything at all.
breaches() { local line; while IFS= read -r line; do breach "$line"; done; }

preload=(preload/src/**/*.rs)
rust=(proto/**/*.rs preload/**/*.rs admin/**/*.rs tests/**/*.rs bpf/**/*.rs)
drop_generated() { # keeps the paths that are not below a target directory
    local path kept=()
    for path in "$@"; do [[ $path == */target/* ]] || kept+=("$path"); done
    printf '%s\n' "${kept[@]+"${kept[@]}"}"
}
mapfile -t rust < <(drop_generated "${rust[@]}")
mapfile -t texts < <(drop_generated ./*.md ./*.toml ./[M]akefile .ci/* {proto,preload,admin,tests,bpf,docs}/**/*.* \
    {proto,preload,admin,tests,bpf,docs}/**/[M]akefile)

# --- 1. Arrows between the folders of preload/src -------------------------------------------------
# An edge is `crate::X` in any position, `crate::{X, Y}` over several lines, or enough `super::` to
# reach the root. A folder or file that is not in the table is a breach: give it a place first.
[[ ${#preload[@]} -gt 0 ]] && breaches < <(awk '
BEGIN {
    base = "family fault config control layout log real"
    may["sys"] = "log"
    may["transport"] = "sys " base
    may["verbs"] = "sys " base
    may["link"] = "sys transport verbs " base
    may["engine"] = "sys transport link " base
    may["rendezvous"] = "sys transport verbs link engine " base
    may["table"] = "sys transport engine rendezvous " base
    may["ready"] = "sys transport engine table " base
    may["interpose"] = "sys transport engine rendezvous table ready " base
    n = split(base, b, " ")
    for (i = 1; i <= n; i++) may[b[i]] = "sys " base
    for (l in may) { allowed[l, l] = 1; n = split(may[l], m, " "); for (i = 1; i <= n; i++) allowed[l, m[i]] = 1 }
}
function edge(to) {
    # A lower-case name that is no layer is an item of lib.rs (a macro, a function): not an edge.
    if (!(to in may) || (layer, to) in allowed) return
    key = FILENAME ":" to
    if (key in told) return
    told[key] = 1
    printf "%s:%d: %s may not name %s\n", FILENAME, start, layer, to
}
function scan(text,    rest, list, depth, i, c, name, k, head) {
    rest = text
    while (match(rest, /(^|[^A-Za-z0-9_])crate::[ ]*(\{|[a-z_0-9]+)/)) {
        head = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
        if (head ~ /\{$/) {
            depth = 1; name = ""; fresh = 1
            for (i = 1; i <= length(rest) && depth > 0; i++) {
                c = substr(rest, i, 1)
                if (c == "{") depth++
                else if (c == "}") depth--
                if (depth == 1 && c == ",") { if (name != "") edge(name); name = ""; fresh = 1 }
                else if (depth == 1 && fresh && c ~ /[a-z_0-9]/) name = name c
                else if (name != "") fresh = 0
            }
            if (name != "") edge(name)
        } else { sub(/.*crate::[ ]*/, "", head); edge(head) }
    }
    rest = text
    while (match(rest, /(super::)+[a-z_0-9]+/)) {
        head = substr(rest, RSTART, RLENGTH); rest = substr(rest, RSTART + RLENGTH)
        k = gsub(/super::/, "", head)
        if (k == modules) edge(head)
    }
}
FNR == 1 {
    if (held != "") scan(held)
    held = ""
    path = FILENAME; sub(/^preload\/src\//, "", path)
    modules = split(path, part, "/")
    if (part[modules] == "mod.rs") modules--
    layer = part[1]; sub(/\.rs$/, "", layer)
    if (layer == "lib") { nextfile }
    if (!(layer in may)) { printf "%s: %s has no place in the table of tests/check-arrows.sh\n", FILENAME, layer; nextfile }
}
{
    sub(/\/\/.*/, "")
    if ($0 ~ /^[ ]*$/) next
    if (held == "") start = FNR
    held = held $0 " "
    if ($0 ~ /[;}]/ && !(held ~ /crate::[ ]*\{[^;]*$/)) { scan(held); held = "" }
}
END { if (held != "") scan(held) }
' "${preload[@]}")

# --- 2. Arrows between the packages ---------------------------------------------------------------
package() { # package FOLDER ALLOWED...: which of our own packages its Cargo.toml may name
    local folder=$1 name; shift
    [[ -f $folder/Cargo.toml ]] || return 0
    while IFS= read -r name; do
        [[ " $* " == *" $name "* ]] || breach "$folder/Cargo.toml: may not depend on $name"
    done < <(awk '/^\[/ { on = ($0 ~ /dependencies/) } on && /^smcr-[a-z]+/ { sub(/[ .=].*/, ""); print }' "$folder/Cargo.toml")
}
package proto
package bpf smcr-proto
package preload smcr-proto
package admin smcr-proto smcr-bpf
package tests smcr-proto smcr-bpf
if [[ -f proto/src/lib.rs ]]; then
    grep -q '^#!\[no_std\]' proto/src/lib.rs || breach 'proto/src/lib.rs: #![no_std] is missing'
    grep -q '^#!\[forbid(unsafe_code)\]' proto/src/lib.rs || breach 'proto/src/lib.rs: #![forbid(unsafe_code)] is missing'
fi
grep -qE '^(nix|rustix|redhook)\b' preload/Cargo.toml 2>/dev/null && breach 'preload/Cargo.toml: nix, rustix and redhook have no place in the library (docs/decisions)'

# What is mapped into every program, with what it depends on in turn. A new name needs a reason in docs/decisions first.
linked='bitflags libc once_cell pin-project-lite smcr-preload smcr-proto syscalls tracing tracing-core'
if [[ -n ${CARGO-} ]] || command -v cargo >/dev/null; then
    if tree=$("${CARGO:-cargo}" tree --locked -p smcr-preload -e normal --prefix none 2>&1); then
        found=$(awk 'NF { print $1 }' <<<"$tree" | sort -u | tr '\n' ' ')
        [[ $found == "$linked " ]] || breach "preload/Cargo.toml: the library is made of $found(in tests/check-arrows.sh: $linked)"
    else
        breach "what the library depends on cannot be told: $tree"
    fi
else
    echo 'note: cargo is not there, what the library depends on was not checked'
fi

# --- 3. Calls that would enter our own hooks ------------------------------------------------------
# Up to the tests, which are last in a file. Real libc functions are called through the table of
# pointers, never by name.
[[ ${#preload[@]} -gt 0 ]] && breaches < <(awk '
BEGIN {
    calls = "socket|socketpair|bind|listen|accept|accept4|connect|shutdown|[gs]etsockopt|getsockname|getpeername|read|readv|recv|recvfrom|recvmsg|recvmmsg|write|writev|send|sendto|sendmsg|sendmmsg|sendfile|splice|close|close_range|dup|dup2|dup3|fcntl|ioctl|poll|ppoll|select|pselect|epoll_(create|create1|ctl|wait|pwait|pwait2)|fork|vfork|posix_spawn|system|popen|fdopen|syscall|open|openat|printf|dprintf"
    rule = "(libc::(" calls ")[ ]*\\()|(std::(net|fs|process::Command|io::(stdin|stdout|stderr))([^A-Za-z_]|$))|((OwnedFd|eprintln!|println!|dbg!)([^A-Za-z_]|$))"
}
FNR == 1 { tests = 0; gate = 0 }
tests { next }
gate && /^[ ]*(pub(\(crate\))? )?mod / { tests = 1; next }
{ gate = ($0 ~ /^#\[cfg\((all\()?(test|loom)/) }
{ sub(/\/\/.*/, "") }
match($0, rule) { printf "%s:%d: %s enters our own hooks; use sys/\n", FILENAME, FNR, substr($0, RSTART, RLENGTH) }
' "${preload[@]}")

# --- 4. SAFETY in sight of each unsafe block ------------------------------------------------------
[[ ${#rust[@]} -gt 0 ]] && breaches < <(awk '
FNR == 1 { said = -99 }
/SAFETY/ { said = FNR }
{ code = $0; sub(/\/\/.*/, "", code); gsub(/"[^"]*"/, "", code) }
# A comment block counts from its last line.
$0 ~ /^[ ]*\/\// && said == FNR - 1 { said = FNR }
code ~ /(^|[^A-Za-z0-9_])unsafe[ ]*(\{|impl[ <])/ {
    if (FNR - said > 8) printf "%s:%d: unsafe without SAFETY in sight\n", FILENAME, FNR
    else said = FNR
}' "${rust[@]}")

# --- 5. Paths of somebody's machine ---------------------------------------------------------------
# The brackets keep this line from finding itself. ${TMPDIR:-/...} is the one way to name a default.
[[ ${#texts[@]} -gt 0 ]] && breaches < <(grep -HnIE '(^|[^A-Za-z0-9_.}-])/([w]ork|[r]oot|[h]ome/[a-z]+|[t]mp)/' "${texts[@]}" \
    | grep -v 'TMPDIR:-/' | awk '{ print substr($0, 1, 160) " (a path of one machine)" }')

# --- 6. What the library needs at load time, and defines -------------------------------------------------------
library=${1-}
if [[ -z $library ]]; then
    for library in "${CARGO_TARGET_DIR:-target}"/{release,debug}/libsmcr.so; do [[ -f $library ]] && break; library=; done
fi
if [[ -n $library ]]; then
    if ! dynamic=$(readelf -dW "$library" 2>/dev/null); then
        breach "$library: cannot be read"
    else
        # by preload/src/sys/unwinder.rs, which is for one processor
        [[ $(uname -m) == x86_64 ]] && unwinder=0 || unwinder=1
        breaches < <(awk -v lib="$library" -v unwinder=$unwinder '/\(NEEDED\)/ {
            gsub(/.*\[|\].*/, "")
            if ($0 !~ /^(libc\.so\.6|ld-linux.*)$/ && !(unwinder && $0 == "libgcc_s.so.1")) print lib ": needs " $0 " at load time; dlopen it when it is first used"
        }' <<<"$dynamic")
        while IFS= read -r symbol; do
            grep -qw -- "$symbol" docs/interpose.md || breach "$library: defines $symbol, of which docs/interpose.md says nothing"
        done < <(nm -D --defined-only "$library" | awk 'NF == 3 { print $3 }')
        while IFS= read -r symbol; do
            breach "$library: calls $symbol, its own, by a name that a program may have as well (preload/build.rs)"
        done < <(comm -12 <(nm -D --defined-only "$library" | awk '{ print $3 }' | sort -u) <(readelf -rW "$library" | awk 'NF > 4 { print $5 }' | sort -u))
    fi
else
    echo 'note: libsmcr.so is not built, its NEEDED entries and its symbols were not checked'
fi

# --- 7. Length, a warning only --------------------------------------------------------------------
[[ ${#rust[@]} -gt 0 ]] && awk '
FNR == 1 { if (file != "" && lines > 450) printf "warning: %s has %d lines (450)\n", file, lines; file = FILENAME }
{ lines = FNR }
END { if (lines > 450) printf "warning: %s has %d lines (450)\n", file, lines }' "${rust[@]}"

# --- 8. What documents name is there --------------------------------------------------------------
# Links with their headings, paths of ours in backquotes, targets of the Makefile, and each part of a::b: a word of the
# sources, or a file of them. CHANGELOG.md tells of what was.
mapfile -t documents < <(drop_generated ./*.md {proto,preload,admin,bpf,docs,tests,fuzz}/**/*.md | grep -v '^\./CHANGELOG\.md$')
mapfile -t sources < <(drop_generated {proto,preload,admin,tests,bpf,fuzz}/**/*.{rs,c,h,py,sh,toml,go})
names() { # prints document, line, kind and name, with tabs between them
    awk '
    FNR == 1 { fenced = 0 }
    /^```/ { fenced = !fenced }
    {
        rest = $0
        while (match(rest, /\]\([^)]+\)/)) {
            printf "%s\t%d\tlink\t%s\n", FILENAME, FNR, substr(rest, RSTART + 2, RLENGTH - 3)
            rest = substr(rest, RSTART + RLENGTH)
        }
        rest = $0
        while (match(rest, /`(proto|preload|admin|tests|bpf|docs|fuzz|\.ci)\/[A-Za-z0-9_.\/-]*`/)) {
            printf "%s\t%d\tpath\t%s\n", FILENAME, FNR, substr(rest, RSTART + 1, RLENGTH - 2)
            rest = substr(rest, RSTART + RLENGTH)
        }
        rest = $0
        while (match(rest, /`make [a-z][a-z-]*/)) {
            printf "%s\t%d\tmake\t%s\n", FILENAME, FNR, substr(rest, RSTART + 6, RLENGTH - 6)
            rest = substr(rest, RSTART + RLENGTH)
        }
        rest = fenced ? "" : $0
        while (match(rest, /[A-Za-z_][A-Za-z_0-9]*(::[a-zA-Z_0-9]+[*]?)+/)) {
            printf "%s\t%d\tname\t%s\n", FILENAME, FNR, substr(rest, RSTART, RLENGTH)
            rest = substr(rest, RSTART + RLENGTH)
        }
    }' "${documents[@]}"
}
has_heading() { # has_heading DOCUMENT ANCHOR: as GitHub makes anchors
    awk -v want="$2" '
    /^#+ / { sub(/^#+ /, ""); $0 = tolower($0); gsub(/[^a-z0-9 _-]/, ""); gsub(/ /, "-"); if ($0 == want) found = 1 }
    END { exit !found }' "$1"
}
known=" $(cat "${sources[@]}" | grep -oE '[A-Za-z_][A-Za-z_0-9]*' | sort -u | tr '\n' ' ') $(printf '%s\n' "${sources[@]##*/}" | sed 's/\..*//' | tr '\n' ' ') "
while IFS=$'\t' read -r document line kind name; do
    case $kind in
        link)
            [[ $name == *://* || $name == mailto:* ]] && continue
            target=${name%%#*}
            [[ -n $target ]] && target=${document%/*}/$target || target=$document
            if [[ ! -e $target ]]; then breach "$document:$line: no file $name"
            elif [[ $name == *'#'* ]] && ! has_heading "$target" "${name#*#}"; then breach "$document:$line: no heading $name"; fi ;;
        path) [[ -e $name || -e ${document%/*}/$name || $name == */ && -d $name ]] || breach "$document:$line: no file $name" ;;
        make) grep -qsE "^$name:" Makefile "${document%/*}/Makefile" || breach "$document:$line: no target $name of make" ;;
        name)
            for part in ${name//::/ }; do
                # FILE::TEST is none; decisions name what others have, too.
                [[ $part =~ ^[A-Z]+$ || $document == docs/decisions/* ]] && continue
                [[ $part == *'*' && $known == *" ${part%'*'}"* || $known == *" $part "* ]] || breach "$document:$line: nothing is called $part ($name)"
            done ;;
    esac
done < <(names)

# --- 9. How much the models do not cover ----------------------------------------------------------
# docs/readiness.md says how many lines name an ordering that matters; who adds many has to look whether a model has their form.
[[ ${#preload[@]} -gt 0 ]] && ordered=$(awk '
FNR == 1 { tests = 0; gate = 0 }
tests { next }
gate && /^[ ]*(pub(\(crate\))? )?mod / { tests = 1; next }
{ gate = ($0 ~ /^#\[cfg\((all\()?(test|loom)/) }
{ sub(/\/\/.*/, "") }
/^[ ]*(pub )?use / { next }
/(^|[^A-Za-z_])(Acquire|Release|AcqRel|SeqCst)([^A-Za-z_]|$)/ { n++ }
END { print n + 0 }' "${preload[@]}") && {
    said=$(grep -oE 'What the models cover\.\*\* [0-9]+ places' docs/readiness.md | grep -oE '[0-9]+')
    ((${said:-0} - 25 <= ordered && ordered <= ${said:-0} + 25)) ||
        breach "docs/readiness.md: says ${said:-nothing} places with an ordering stronger than Relaxed, there are $ordered"
}

((bad)) || echo 'arrows, packages, hooks, SAFETY, paths, linkage, documents: clean'
exit "$bad"
