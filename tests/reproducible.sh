#!/usr/bin/env bash
# Builds libsmcr.so twice, from copies of the sources in two directories with names of different length, and compares
# the files byte by byte.
#
#   tests/reproducible.sh
#
# Paths of the sources and of cargo's home are mapped to fixed ones; without that, debug lines and the build id differ,
# and nothing else. Called by `make reproducible`. Exit status 0: the same.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/.."
CARGO=${CARGO:-cargo}
home=${CARGO_HOME:-$HOME/.cargo}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

first=
for dir in "$work/a" "$work/another/directory/with/a/longer/name"; do
    mkdir -p "$dir"
    tar -c --exclude=./target --exclude=./.git . | tar -x -C "$dir"
    RUSTFLAGS="--remap-path-prefix=$dir=/smcr --remap-path-prefix=$home=/cargo" CARGO_TARGET_DIR=$dir/target \
        "$CARGO" build --release --locked -p smcr-preload --manifest-path "$dir/Cargo.toml"
    sum=$(sha256sum <"$dir/target/release/libsmcr.so")
    echo "${sum%% *}  $(stat -c %s "$dir/target/release/libsmcr.so") bytes, built in $dir"
    if [ -z "$first" ]; then
        first=$sum
    elif [ "$first" != "$sum" ]; then
        echo "reproducible.sh: the two differ" >&2
        exit 1
    fi
    rm -rf "$dir"
done
echo "the same, byte by byte"
