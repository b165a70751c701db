"""Disks and file systems over the network whose servers have several threads on one epoll set. Jobs as in programs.py. Called by run.py, inside a `Bed`."""

import re
import textwrap

from bed import digest, need
from programs import MIB


def nfs_ganesha(bed):
    """Its RPC library's threads share one set, of which each connection is told once and armed again."""
    need("/usr/bin/ganesha.nfsd", "nfs-cp", "nfs-ls")
    export = bed.files("export", 8)
    (bed.work / "ganesha.conf").write_text(textwrap.dedent(f"""
        NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = 7520; MNT_Port = 7521; NLM_Port = 7522; Rquota_Port = 7523; Enable_NLM = false;
            Enable_RQUOTA = false; Enable_UDP = false; Plugins_Dir = "/usr/lib/x86_64-linux-gnu/ganesha"; }}
        NFSV4 {{ Graceless = true; RecoveryRoot = "{bed.work}/nfs"; Minor_Versions = 0, 1; Only_Numeric_Owners = true; }}
        EXPORT {{ Export_Id = 1; Path = {export}; Pseudo = /e; Access_Type = RW; Squash = None; SecType = sys; Transports = TCP; FSAL {{ Name = VFS; }} }}
        LOG {{ Default_Log_Level = WARN; }}
    """))
    (bed.work / "nfs").mkdir()
    bed.server("/usr/bin/ganesha.nfsd", "-F", "-f", bed.work / "ganesha.conf", "-L", "STDERR", "-p", bed.work / "pid", port=7520)
    url = "nfs://127.0.0.1/e/f{}?version=4&nfsport=7520"
    moves = "\n".join(f"nfs-cp '{url.format(i)}' got{i} & p=\"$p $!\"" for i in range(8))
    # Some end in the middle, by a kill.
    ends = "\n".join(f"timeout -s KILL 0.{i} nfs-cp '{url.format(7)}' cut{i} || true" for i in range(1, 5))
    bed.client("sh", "-ec", f"{moves}\n{ends}\nfor i in $p; do wait $i; done", seconds=200)
    return digest(b"".join((bed.work / f"got{i}").read_bytes() for i in range(8)))


def tgt(bed):
    """An iSCSI target, and the tests of libiscsi: which of them pass."""
    need("/usr/sbin/tgtd", "tgtadm", "iscsi-test-cu")
    disk = bed.file("disk", 48 * MIB)
    bed.server("/usr/sbin/tgtd", "-f", "-C", "7", "--iscsi", "portal=127.0.0.1:7525", port=7525)
    admin = ["tgtadm", "-C", "7", "--lld", "iscsi"]
    bed.quiet(*admin, "--op", "new", "--mode", "target", "--tid", 1, "-T", "iqn.t:d")
    bed.quiet(*admin, "--op", "new", "--mode", "logicalunit", "--tid", 1, "--lun", 1, "-b", disk)
    bed.quiet(*admin, "--op", "bind", "--mode", "target", "--tid", 1, "-I", "ALL")
    url = "iscsi://127.0.0.1:7525/iqn.t:d/1"
    said = bed.client("iscsi-test-cu", "-d", "-s", "-v", url, check=False, seconds=240).decode(errors="replace")
    tests = re.findall(r"^ +Test: (.*?) ?\.\.\.(?:.*\n(?! +Test:))*?.*(passed|FAILED)", said, re.M)
    return f"{len(tests)} {sum(how == 'passed' for _, how in tests)} {digest(str(tests).encode())}"


def qemu_nbd(bed):
    """Coroutines over sockets: a disk is read and written by eight connections."""
    need("qemu-nbd", "qemu-img", "qemu-io")
    disk = bed.file("disk", 64 * MIB)
    bed.server("qemu-nbd", "-f", "raw", "-b", "127.0.0.1", "-p", 7526, "-e", 8, "-t", "--cache=writeback", disk, port=7526)
    copies = "\n".join(f"qemu-img convert -f raw -O raw -W -m 8 nbd://127.0.0.1:7526 c{i} & p=\"$p $!\"" for i in range(3))
    bed.client("sh", "-ec", f"{copies}\nfor i in $p; do wait $i; done\nqemu-io -f raw -c 'aio_write -P 7 0 4M' -c 'aio_write -P 9 8M 4M' -c 'aio_write -P 11 16M 8M'"
               " -c aio_flush -c 'read -P 9 8M 4M' -c 'read -P 11 16M 8M' nbd://127.0.0.1:7526")
    return digest(b"".join((bed.work / f"c{i}").read_bytes() for i in range(3)) + disk.read_bytes())


PROGRAMS = [nfs_ganesha, tgt, qemu_nbd]
