#!/bin/sh
# Installs the package named, uses it, removes and purges it, in a copy of this system that vanishes
# afterwards (an overlay in an own mount namespace; no service starts), behind what `make install` copies. `make test-deb`; needs root.
set -eu
package=$(readlink -f "$1")
if [ "${SMCR_DEB_INSIDE:-}" != 1 ]; then
    exec env SMCR_DEB_INSIDE=1 unshare --mount --net --pid --fork --propagation private "$0" "$package"
fi

work=$(mktemp -d)
trap 'umount -lR "$work" 2>/dev/null; rmdir "$work" 2>/dev/null' EXIT
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root"
root=$work/root
mount -t proc proc "$root/proc"
for dir in dev run sys tmp; do mount -t tmpfs tmpfs "$root/$dir"; done
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/urandom" c 1 9
mknod -m 666 "$root/dev/zero" c 1 5
mkdir "$root/dev/shm"
ip link set lo up
cp "$package" "$root/smcr.deb"

inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"; }
# Under set -e a command behind `!` fails nothing.
not() { if inside "$@"; then echo "not expected: $*"; exit 1; fi; }
step() { echo "ok  $1"; }
files() { (cd "$root" && find usr etc var/lib/systemd -xdev \( -name '*smcr*' \) -print 2>/dev/null | sort); }
before=$(files)

install=$(dirname "$(readlink -f "$0")")/install.sh
DESTDIR=$root "$install" install
inside /usr/local/bin/smcrctl check >"$work/check" || { echo "check finds this bad:"; cat "$work/check"; exit 1; }
grep -q '/usr/local/lib/libsmcr.so' "$work/check" || { cat "$work/check"; exit 1; }
DESTDIR=$root "$install" uninstall
[ "$before" = "$(files)" ] || { echo "left behind:"; files; exit 1; }
step "make install, and uninstall"

inside dpkg -i /smcr.deb >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
step "installed $(inside dpkg-query -W smcr)"
[ -z "$(inside dpkg -V smcr)" ]
step "files are as packed"
inside smcrctl --version
inside smcrctl check >"$work/check" || { echo "check finds this bad:"; cat "$work/check"; exit 1; }
grep -q 'ok .*library.*loads' "$work/check" || { cat "$work/check"; exit 1; }
step "check finds and loads the library"
inside test -e /etc/systemd/system/multi-user.target.wants/smcr.service
inside test -e /etc/systemd/system/network-online.target.wants/smcr-network.service
step "the units are enabled"
inside smcrctl set port_range_list=6379 >/dev/null
inside grep -q 6379 /etc/smcr/smcr.toml
inside rm /run/smcr/control
inside sh -c "$(sed -n 's/^ExecStart=//p' "$root/usr/lib/systemd/system/smcr.service")" >/dev/null
inside smcrctl config show --origin | grep -q '6379'
step "the unit's command loads the settings after a start of the machine"
inside test -s /usr/share/man/man1/smcrctl.1.gz -a -s /usr/share/man/man1/smcrctl-drain.1.gz
inside sh -c 'zcat /usr/share/man/man1/smcrctl-stats.1.gz | grep -q interval'
inside sh -c 'zcat /usr/share/man/man7/smcr.7.gz | grep -q SMCR_LOG_FILE && zcat /usr/share/man/man5/smcr.toml.5.gz | grep -q max_memory'
inside bash -c '. /usr/share/bash-completion/completions/smcrctl && complete -p smcrctl' >/dev/null
step "man pages and completions"
inside smcrctl unset port_range_list >/dev/null
inside smcrctl bench --time 0.3 --json >"$work/bench" 2>/dev/null
inside grep -q . /usr/share/doc/smcr/operating.md
grep -q ping "$work/bench"
step "bench: $(tr -d ' \n' <"$work/bench" | cut -c1-200)"
inside dpkg -i /smcr.deb >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
step "installed once more"
# With a systemd that only notes what it is asked: a policy against it, or a disabled unit, is respected.
mkdir -p "$root/run/systemd/system"
[ ! -e "$root/usr/bin/systemctl" ] || mv "$root/usr/bin/systemctl" "$work/systemctl"
printf '%s\n' '#!/bin/sh' 'echo "$*" >>/run/asked' 'case $* in *is-enabled*) echo enabled ;; esac' >"$root/usr/bin/systemctl"
printf '%s\n' '#!/bin/sh' 'exit 101' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/bin/systemctl" "$root/usr/sbin/policy-rc.d"
inside dpkg -i /smcr.deb >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
inside grep -q daemon-reload /run/asked
not grep -q restart /run/asked
rm "$root/usr/sbin/policy-rc.d"
inside dpkg -i /smcr.deb >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
inside grep -q 'restart.*smcr.service' /run/asked
rm -r "$root/run/systemd" "$root/usr/bin/systemctl"
[ ! -e "$work/systemctl" ] || mv "$work/systemctl" "$root/usr/bin/systemctl"
step "its unit is restarted where policy allows it"
inside dpkg -r smcr >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
not test -e /usr/bin/smcrctl
inside test -e /etc/smcr/smcr.toml
step "removed; the settings stay"
inside dpkg -P smcr >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
after=$(files)
[ "$before" = "$after" ] || { echo "left behind:"; echo "$after"; exit 1; }
step "purged; nothing is left"
