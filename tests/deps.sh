#!/bin/sh
# Installs what a target of the Makefile needs and this machine lacks: deps.sh build|test|demo|bench|conformance|lab|apps|all
# Debian's services are not started by it. Nothing is done, quickly, where everything is there.
set -eu

PATH=$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin

have() { command -v "$1" >/dev/null 2>&1 || [ -e "$1" ]; }

# program package, for each group
list() {
    case $1 in
    build) echo "cc gcc
pkg-config pkg-config" ;;
    demo) list build; echo "redis-server redis-server
redis-benchmark redis-tools
python3 python3
ip iproute2
unshare util-linux" ;;
    test) list demo; echo "redis-cli redis-tools
nginx nginx-light
wrk wrk
curl curl
iperf3 iperf3
memcached memcached
socat socat
nc netcat-openbsd
strace strace
gdb gdb
tclsh tcl
musl-gcc musl-tools
setpriv util-linux
stress-ng stress-ng
valgrind valgrind
/usr/lib/x86_64-linux-gnu/liburing.so.2 liburing2
/usr/lib/python3.11/test/test_socket.py libpython3.11-testsuite" ;;
    bench) list test; echo "haproxy haproxy" ;;
    conformance) list test; echo "haproxy haproxy
ct_run erlang-common-test
/usr/lib/erlang/usr/include/erl_nif.h erlang-dev
/usr/include/absl/time/time.h libabsl-dev
/usr/include/gtest/gtest.h libgtest-dev
/usr/include/gmock/gmock.h libgmock-dev
/usr/include/benchmark/benchmark.h libbenchmark-dev
/usr/include/sys/capability.h libcap-dev
systemd-socket-activate systemd
/usr/sbin/inetd openbsd-inetd
apache2 apache2
lighttpd lighttpd
squid squid
node nodejs
javac default-jdk-headless
/usr/lib/postgresql/15/bin/postgres postgresql
mariadbd mariadb-server
sshd openssh-server
scp openssh-client
rsync rsync
git git
openssl openssl
cmake cmake
c++ g++
tclsh8.6 tcl8.6
/usr/share/java/zookeeper.jar zookeeper
/usr/lib/python3/dist-packages/kazoo python3-kazoo
kcat kcat
vsftpd vsftpd
lftp lftp
/usr/sbin/slapd slapd
ldapadd ldap-utils
named bind9
dig bind9-dnsutils
/usr/lib/dovecot/imap dovecot-imapd
distccd distcc
sockperf sockperf
gunicorn gunicorn
uwsgi uwsgi-core
/usr/lib/uwsgi/plugins/python3_plugin.so uwsgi-plugin-python3
/usr/sbin/php-fpm8.2 php8.2-fpm
puma puma
/usr/share/java/tomcat10-embed-core.jar libtomcat10-embed-java
/usr/share/java/tomcat10-servlet-api.jar libtomcat10-java
nghttpd nghttp2-server
h2load nghttp2-client
h2o h2o
traffic_server trafficserver
glusterfsd glusterfs-server
fusermount3 fuse3
danted dante-server
ss-server shadowsocks-libev
hitch hitch
sniproxy sniproxy
nim nim
mcs mono-mcs
/usr/lib/mono/4.5/System.Core.dll libmono-system-core4.0-cil
tarantool tarantool
unbound unbound
dnsperf dnsperf
hledger-web hledger-web
mpicc libopenmpi-dev
mpirun openmpi-bin
nbdkit nbdkit
nbdcopy libnbd-bin
gdbserver gdbserver
/usr/sbin/rsyslogd rsyslog
logger bsdutils
/usr/sbin/smtp-sink postfix
ffmpeg ffmpeg
iperf iperf
nuttcp nuttcp
qperf qperf
beanstalkd beanstalkd
/usr/include/asio.hpp libasio-dev
gearmand gearman-job-server
/usr/sbin/kamailio kamailio
sipp sip-tester
turnserver coturn
ganesha.nfsd nfs-ganesha
/usr/lib/x86_64-linux-gnu/ganesha/libfsalvfs.so nfs-ganesha-vfs
nfs-cp libnfs-utils
/usr/sbin/tgtd tgt
iscsi-test-cu libiscsi-bin
qemu-nbd qemu-utils
thrift thrift-compiler
/usr/include/thrift/server/TNonblockingServer.h libthrift-dev
/usr/include/boost/version.hpp libboost-dev
slice2cpp zeroc-ice-compilers
/usr/include/Ice/Ice.h libzeroc-ice-dev
/usr/include/proton/proactor.h libqpid-proton11-dev
/usr/share/proton/examples/c/broker.c libqpid-proton11-dev-examples
gearman gearman-tools
erl erlang-base
/usr/include/librdkafka/rdkafka_mock.h librdkafka-dev
/usr/libexec/installed-tests/glib libglib2.0-tests
make make
go golang-go
ruby ruby
php php-cli
varnishd varnish
tinyproxy tinyproxy
stunnel4 stunnel4
nutcracker nutcracker
pgbouncer pgbouncer
mosquitto mosquitto
mosquitto_pub mosquitto-clients
rabbitmq-server rabbitmq-server
/usr/lib/python3/dist-packages/pika python3-pika
smbd samba
smbclient smbclient
/usr/lib/python3/dist-packages/grpc python3-grpcio
/usr/lib/python3/dist-packages/zmq python3-zmq
/usr/lib/python3/dist-packages/gevent python3-gevent
/usr/lib/python3/dist-packages/uvloop python3-uvloop
/usr/lib/python3/dist-packages/trio python3-trio
/usr/lib/python3/dist-packages/twisted python3-twisted
/usr/lib/python3/dist-packages/tornado python3-tornado
/usr/lib/python3/dist-packages/aiohttp python3-aiohttp
/usr/lib/python3/dist-packages/pip python3-pip
/usr/lib/python3/dist-packages/hamcrest python3-hamcrest
/usr/lib/python3/dist-packages/hypothesis python3-hypothesis
/usr/include/x86_64-linux-gnu/curl/curl.h libcurl4-openssl-dev
autoconf autoconf
automake automake
perl perl
/usr/include/event2/event.h libevent-dev
/usr/include/pcre2.h libpcre2-dev
/usr/include/openssl/ssl.h libssl-dev
/usr/include/zlib.h zlib1g-dev" ;;
    lab) list build; echo "python3 python3
ip iproute2
qemu-system-x86_64 qemu-system-x86
busybox busybox-static
cpio cpio
xz xz-utils
modprobe kmod
nft nftables
redis-server redis-server
redis-benchmark redis-tools
nginx nginx-light
wrk wrk
curl curl
iperf3 iperf3
setpriv util-linux" ;;
    # programs whose ends are in two guests (tests/lab/cases_apps.py)
    apps) echo "memcached memcached
/usr/lib/postgresql/15/bin/postgres postgresql
haproxy haproxy
openssl openssl
rsync rsync
sshd openssh-server
scp openssh-client
apache2 apache2
node nodejs
socat socat
nc netcat-openbsd
iperf iperf
varnishd varnish" ;;
    all) list bench; list lab; list apps; list conformance ;;
    *) echo "deps.sh: build, test, demo, bench, conformance, lab, apps or all" >&2; exit 2 ;;
    esac
}

missing=$(list "${1:-all}" | while read -r program package; do
    have "$program" || echo "$package"
done | sort -u | tr '\n' ' ')
# Libraries that the guests load at run time.
if [ "${1:-all}" = lab ] || [ "${1:-all}" = all ]; then
    for package in libibverbs1 ibverbs-providers librdmacm1; do
        dpkg-query -W -f '${Status}' $package 2>/dev/null | grep -q ' installed' || missing="$missing $package"
    done
fi
# Rust as Cargo.toml asks for it. Debian 12's own is too old; what it builds its browsers with is not (cargo-web, in bookworm-security).
need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
has_rust() {
    found=$("${CARGO:-cargo}" --version 2>/dev/null | sed 's/^cargo \([0-9.]*\).*/\1/')
    [ "$(printf '%s\n' "$need" "${found:-0}" | sort -V | head -n 1)" = "$need" ]
}
no_rust() {
    echo "Rust $need or later is needed, and ${found:-none} is here: https://rustup.rs installs it (this system's packages are older)" >&2
    exit 1
}
rust=
if ! has_rust; then
    if have rustup; then
        rustup toolchain install "$need" --profile minimal && rustup override set "$need" && has_rust || no_rust
    else
        rust=cargo-web
    fi
fi
# A compiler without the C library's headers is not enough.
[ -e /usr/include/stdlib.h ] || missing="$missing libc6-dev"

if [ -n "$missing$rust" ]; then
    root=
    if [ "$(id -u)" != 0 ]; then
        if ! have sudo; then
            echo "These packages are missing, and there is neither root nor sudo: $missing $rust" >&2
            exit 1
        fi
        root=sudo
    fi
    if ! have apt-get; then
        echo "These packages (Debian's names) are missing, and there is no apt-get: $missing $rust" >&2
        exit 1
    fi
    echo "installing: $missing $rust"
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then # no service starts by being installed
        printf '#!/bin/sh\nexit 101\n' | $root tee $policy >/dev/null
        $root chmod 755 $policy
        trap '$root rm -f $policy' EXIT
    fi
    install() { $root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@" >/dev/null; }
    # Lists of packages that are absent, or older than the archive: asked for once more.
    anew() { $root apt-get -qq update >/dev/null && install "$@"; }
    # shellcheck disable=SC2086  # several words
    [ -z "$missing" ] || install $missing || anew $missing
    # By itself: an archive that has none is told of below.
    [ -z "$rust" ] || { install "$rust" && has_rust; } || anew "$rust" || :
fi
[ -z "$rust" ] || has_rust || no_rust
