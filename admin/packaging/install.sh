#!/bin/sh
# Copies a release build and what is made from it below $DESTDIR$PREFIX, or removes it from there: install.sh install|uninstall.
# Called by `make install`, `make uninstall` and deb.sh, which say DESTDIR, PREFIX (/usr/local), LIBDIR (PREFIX/lib) and ZSHDIR.
# Each file gets its place by a rename, so that programs which have the library mapped go on with the old one.
set -eu
cd "$(dirname "$0")/../.."

release=${CARGO_TARGET_DIR:-target}/release
packaging=admin/packaging
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
zshdir=${ZSHDIR:-$prefix/share/zsh/site-functions}
root=${DESTDIR:-}
man=$prefix/share/man
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

[ -x "$release/smcrctl" ] && [ -e "$release/libsmcr.so" ] || { echo "install.sh: nothing is built below $release: make build" >&2; exit 1; }
case ${1:-} in
install)
    put() { # mode, file, place
        install -D -m "$1" "$2" "$root$3.new"
        mv -f "$root$3.new" "$root$3"
    } ;;
uninstall) put() { rm -f "$root$3"; } ;;
*) echo "usage: install.sh install|uninstall" >&2; exit 2 ;;
esac

stripped() { strip --strip-debug -o "$work/$1" "$release/$1" && echo "$work/$1"; }
# The units start smcrctl where it is.
at_prefix() { sed "s|/usr/bin/|$prefix/bin/|" "$packaging/$1" >"$work/unit" && echo "$work/unit"; }

put 755 "$(stripped smcrctl)" "$prefix/bin/smcrctl"
put 644 "$(stripped libsmcr.so)" "$libdir/libsmcr.so"
put 644 "$(at_prefix smcr.service)" "$prefix/lib/systemd/system/smcr.service"
put 644 "$(at_prefix smcr-network.service)" "$prefix/lib/systemd/system/smcr-network.service"
put 644 "$(at_prefix user/smcr.service)" "$prefix/lib/systemd/user/smcr.service"
put 644 $packaging/smcr.toml "$prefix/share/doc/smcr/examples/smcr.toml"
put 644 README.md "$prefix/share/doc/smcr/README.md"
put 644 docs/operating.md "$prefix/share/doc/smcr/operating.md"

# Made from the command line's own description, and the tables of settings.
"$release/smcrctl" man "$work/man"
for page in "$work"/man/*; do
    put 644 "$page" "$man/man${page##*.}/${page##*/}"
done
for shell in bash zsh fish; do "$release/smcrctl" completions $shell >"$work/$shell"; done
put 644 "$work/bash" "$prefix/share/bash-completion/completions/smcrctl"
put 644 "$work/zsh" "$zshdir/_smcrctl"
put 644 "$work/fish" "$prefix/share/fish/vendor_completions.d/smcrctl.fish"

[ "$1" = install ] || rmdir -p --ignore-fail-on-non-empty "$root$prefix/share/doc/smcr/examples" 2>/dev/null || :
# The loader finds /usr/local/lib by its cache alone.
[ -n "$root" ] || [ "$(id -u)" != 0 ] || PATH=$PATH:/sbin:/usr/sbin ldconfig
