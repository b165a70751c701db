#!/bin/sh
# Builds target/smcr_VERSION_ARCH.deb from a release build; called by `make deb`. Needs dpkg-deb, readelf,
# gzip and git or SOURCE_DATE_EPOCH. The same sources give the same bytes.
set -eu
cd "$(dirname "$0")/../.."

out=${CARGO_TARGET_DIR:-target}
packaging=admin/packaging
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
arch=$(dpkg --print-architecture)
triplet=$(uname -m)-linux-gnu
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || echo 0)}"
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
put() { install -D -m "$1" "$2" "$root/$3"; } # mode, file, place

DESTDIR=$root PREFIX=/usr LIBDIR=/usr/lib/$triplet ZSHDIR=/usr/share/zsh/vendor-completions $packaging/install.sh install
put 644 CHANGELOG.md usr/share/doc/smcr/changelog
put 644 $packaging/copyright usr/share/doc/smcr/copyright
gzip -9n "$root"/usr/share/man/man?/* "$root/usr/share/doc/smcr/changelog"

# What the two files ask of the loader.
needs() { readelf -dW "$root/usr/bin/smcrctl" "$root/usr/lib/$triplet/libsmcr.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u; }
glibc=$(readelf -VW "$root/usr/bin/smcrctl" "$root/usr/lib/$triplet/libsmcr.so" |
    grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1)
depends="libc6 (>= $glibc)"
for library in $(needs); do
    case $library in
    libc.so.6 | libm.so.6 | libpthread.so.0 | libdl.so.2 | ld-linux*) ;;
    libgcc_s.so.1) depends="$depends, libgcc-s1" ;;
    *) echo "deb.sh: no package is known for $library" >&2; exit 1 ;;
    esac
done

mkdir "$root/DEBIAN"
for script in postinst prerm postrm; do
    install -m 755 $packaging/$script "$root/DEBIAN/$script"
done
cat >"$root/DEBIAN/control" <<CONTROL
Package: smcr
Version: $version
Architecture: $arch
Maintainer: The smcr authors <smcr@example.invalid>
Installed-Size: $(du -ks --exclude=DEBIAN "$root" | cut -f1)
Depends: $depends
Recommends: rdma-core
Section: net
Priority: optional
Homepage: $(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
Description: makes unmodified TCP programs faster
 LD_PRELOAD=libsmcr.so makes a TCP program faster without a change: once it is
 certain that the process at the other end has the library too, the payload
 leaves TCP and goes through shared memory. Everything else stays plain TCP.
 .
 smcrctl switches, restricts, explains and measures it.
CONTROL
(cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$work/md5sums"
install -m 644 "$work/md5sums" "$root/DEBIAN/md5sums"
chmod -R u=rwX,go=rX "$root"
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
package=$out/smcr_${version}_$arch.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
echo "$package"
