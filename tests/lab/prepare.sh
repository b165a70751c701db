#!/bin/sh
# Makes what the guests boot from, once: installs the packages that are missing, fetches Debian's stock
# kernel 6.12 (soft RoCE and SMC-R as modules; the cloud kernels lack the first) and packs an initrd of
# busybox and six modules. Prints "version directory". Called by run.py.
#
#   LAB_CACHE    where it is kept (default: ~/.cache/smcr-lab)
#   LAB_KERNEL   another kernel, as in linux-image-$LAB_KERNEL
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/smcr-lab}
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$cache"
"$here/../deps.sh" lab >&2

version=${LAB_KERNEL:-}
if [ -z "$version" ]; then # the newest that is here, else what the meta package names
    version=$(cd "$cache" && ls -d 6.12.*/lib 2>/dev/null | sort -V | tail -1 | cut -d/ -f1)
fi
if [ -z "$version" ]; then
    named() { apt-cache depends linux-image-6.12-amd64 2>/dev/null | sed -n 's/.*Depends: linux-image-\(6\.12.*-amd64\)$/\1/p' | head -1; }
    version=$(named)
    [ -n "$version" ] || { apt-get -qq update >&2; version=$(named); }
    [ -n "$version" ] || { echo "no linux-image-6.12-amd64: is bookworm-security among apt's sources?" >&2; exit 1; }
fi
kernel=$cache/$version
if [ ! -d "$kernel/lib/modules/$version" ]; then
    echo "fetching Linux $version" >&2
    new=$(mktemp -d "$cache/new.XXXXXX")
    chmod 755 "$new"
    (cd "$new" && { apt-get -qq download "linux-image-$version" || { apt-get -qq update && apt-get -qq download "linux-image-$version"; }; }) >&2
    dpkg-deb -x "$new"/linux-image-*.deb "$new/root"
    depmod -b "$new/root" "$version"
    chmod -R a+rX "$new/root"
    mv "$new/root" "$kernel"
    rm -rf "$new"
fi

initrd=$cache/initrd-$version.gz
if [ ! -f "$initrd" ] || [ "$here/init" -nt "$initrd" ]; then
    tree=$(mktemp -d)
    mkdir -p "$tree/bin" "$tree/proc" "$tree/sys" "$tree/dev" "$tree/mods"
    cp "$(command -v busybox)" "$tree/bin/busybox"
    cp "$here/init" "$tree/init"
    chmod +x "$tree/init"
    for module in virtio_pci virtio_net 9pnet_virtio 9p overlay; do
        modprobe -d "$kernel" -S "$version" --show-depends "$module"
    done | awk '/^insmod/ && !seen[$2]++ {print $2}' | while read -r file; do
        name=$(basename "$file" .xz)
        case $file in *.xz) xz -dc "$file" >"$tree/mods/$name" ;; *) cp "$file" "$tree/mods/$name" ;; esac
        echo "$name" >>"$tree/mods/order"
    done
    (cd "$tree" && find . | cpio -o -H newc 2>/dev/null | gzip -1) >"$initrd.$$"
    mv "$initrd.$$" "$initrd"
    rm -rf "$tree"
fi
echo "$version $cache"
