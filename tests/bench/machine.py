"""What the machine is, its loopback counters, its own network namespace, and a CPU quota if one can be made."""

import ctypes
import fcntl
import os
import platform
import socket
import struct
import time

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def _write(path, text):
    with open(path, "w") as f:
        f.write(text)


def _read(path, default=""):
    try:
        with open(path) as f:
            return f.read().strip()
    except OSError:
        return default


def own_netns():
    """Move into a network namespace of our own, so that `lo` carries this bench alone. True if that worked."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET) != 0:
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            return False
        try:
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", "%d %d 1" % (uid, uid))
            _write("/proc/self/gid_map", "%d %d 1" % (gid, gid))
        except OSError:
            pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        req = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(s, SIOCGIFFLAGS, req))[1]
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
    for name, value in (("ip_local_port_range", "2048 65000"), ("tcp_max_syn_backlog", "8192")):
        try:
            _write("/proc/sys/net/ipv4/" + name, value)
        except OSError:
            pass
    return True


class Lo:
    """Bytes and packets on lo. /proc/self/net, as /sys shows the namespace that mounted it."""

    HEADERS = 20 + 32  # IPv4, TCP with time stamps (lo counts no Ethernet header); a GSO packet counts once

    def __init__(self):
        self.bytes, self.packets = self._now()

    @staticmethod
    def _now():
        for ln in _read("/proc/self/net/dev").splitlines():
            name, _, rest = ln.partition(":")
            if name.strip() == "lo":
                v = rest.split()
                return int(v[8]), int(v[9])
        return 0, 0

    def since(self):
        """(bytes, packets, payload) since this object was made."""
        b, p = self._now()
        b, p = b - self.bytes, p - self.packets
        return b, p, max(0, b - p * self.HEADERS)


class Load:
    """CPU time that others used meanwhile, as a share of all processors (busy in /proc/stat, less our own)."""

    def __init__(self, own):
        self.own = own
        self.t0, self.busy0, self.own0 = time.monotonic(), self._busy(), own()

    @staticmethod
    def _busy():
        v = [int(x) for x in _read("/proc/stat").splitlines()[0].split()[1:9]]
        user, nice, system, _idle, _io, irq, soft, steal = v
        return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")

    def outside(self):
        wall = (time.monotonic() - self.t0) * (os.cpu_count() or 1)
        other = (self._busy() - self.busy0) - (self.own() - self.own0)
        return max(0.0, min(1.0, other / wall)) if wall > 0 else 0.0


def wait_quiet(own, seconds):
    """Until others use less than 5 % of the machine for 0.3 s, or the time is over."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        load = Load(own)
        time.sleep(0.3)
        if load.outside() < 0.05:
            return


class Quota:
    """A cgroup with `percent` of one processor; .path is None where none can be made."""

    def __init__(self, percent):
        self.path = None
        name = "smcr-bench-%d" % os.getpid()
        period = 100000
        quota = period * percent // 100
        for root, files in (
            ("/sys/fs/cgroup", {"cpu.max": "%d %d" % (quota, period)}),
            ("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": str(quota)}),
        ):
            path = os.path.join(root, name)
            try:
                if not os.path.exists(os.path.join(root, "cgroup.procs")):
                    continue
                os.mkdir(path)
                for f, v in files.items():
                    if not os.path.exists(os.path.join(path, f)):
                        raise OSError("no " + f)
                    _write(os.path.join(path, f), v)
                self.path = path
                return
            except OSError:
                if os.path.isdir(path):
                    os.rmdir(path)

    def close(self):
        for _ in range(100):
            if not self.path:
                return
            try:
                os.rmdir(self.path)
                self.path = None
            except OSError:
                time.sleep(0.02)


def describe(netns):
    cpu = {}
    for ln in _read("/proc/cpuinfo").splitlines():
        k, _, v = ln.partition(":")
        cpu.setdefault(k.strip(), v.strip())
    model = cpu.get("model name") or cpu.get("Processor") or platform.machine()
    memory = next((ln.split()[1] for ln in _read("/proc/meminfo").splitlines() if ln.startswith("MemTotal")), "0")
    os_name = dict(ln.split("=", 1) for ln in _read("/etc/os-release").splitlines() if "=" in ln).get("PRETTY_NAME", "?")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "virtual": "hypervisor" in cpu.get("flags", "").split(),
        "memory_mib": int(memory) // 1024,
        "kernel": platform.release().split("-")[0],
        "arch": platform.machine(),
        "os": os_name.strip('"'),
        "libc": " ".join(platform.libc_ver()),
        "clocksource": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "load_average_at_start": _read("/proc/loadavg"),
        "own_network_namespace": netns,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
