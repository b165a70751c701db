"""What RDMA has done in the two guests so far: packets and work requests, by the packets that one guest sees (guest.sh), and completions, as soft RoCE
itself hands them over: a probe at `rxe_cq_post`, through which each one goes, into a kernel's queue as into a program's. Used by measure.py and
instructions.py."""
import json
import re

from guests import Failed

# Counters of guest.sh: packets, work requests, and those that took a receive there.
KINDS = {"roce": "packets", "requests": "work requests", "received": "received"}
# Of completions of sends and of receives (those of kernels and of programs have the same form), and of requests that failed: a queue that is
# given up hands back all that waited there, which nobody has sent.
COMPLETED = {"sent": "send completions", "taken": "receive completions", "failed": "failed"}
TRACING = "/sys/kernel/tracing"
# struct rxe_cqe begins with a number of 8 bytes, the status, and the operation.
PROBE = "p:lab/completed rdma_rxe:rxe_cq_post status=+8(%si):u32 operation=+12(%si):u32"
# Bit of an operation that is a receive (IB_WC_RECV).
RECEIVE = 1 << 7
BEGIN = (f"mountpoint -q {TRACING} || mount -t tracefs t {TRACING}; echo '{PROBE}' >>{TRACING}/kprobe_events && "
         f"echo 'hist:keys=operation,status' >{TRACING}/events/lab/completed/trigger")
LOOK = f"cat {TRACING}/events/lab/completed/hist {TRACING}/kprobe_profile"


def roce(lab):
    """What one guest has sent and got on RoCE."""
    text = lab.b.run("nft -j list counters table inet lab")
    found = {c["counter"]["name"]: c["counter"]["packets"] for c in json.loads(text)["nftables"] if "counter" in c}
    return {kind: found[kind] for kind in KINDS}


def count_completions(lab):
    """From here on, in both guests. It costs each completion a few instructions, over every medium."""
    for job in [guest.start(BEGIN) for guest in (lab.a, lab.b)]:
        job.done(30)


def completions(guest):
    """Of one guest, since [`count_completions`]."""
    text = guest.run(LOOK)
    missed = re.search(r"^\s*completed\s+\d+\s+(\d+)$", text, re.M)
    dropped = re.search(r"^\s*Dropped: (\d+)$", text, re.M)
    if not missed or not dropped or int(missed[1]) or int(dropped[1]):
        raise Failed(f"completions were not counted, or not all, in guest {guest.role}: {text[-500:]}")
    found = dict.fromkeys(COMPLETED, 0)
    for operation, status, hits in re.findall(r"^\{ operation: +(\d+), status: +(\d+) \} hitcount: +(\d+)\b", text, re.M):
        found["failed" if int(status) else "taken" if int(operation) & RECEIVE else "sent"] += int(hits)
    return found


def counted(lab):
    """All of it: packets and requests as one guest sees them, which are those of both, and completions of both guests."""
    both = [completions(guest) for guest in (lab.a, lab.b)]
    return roce(lab) | {kind: sum(found[kind] for found in both) for kind in COMPLETED}
