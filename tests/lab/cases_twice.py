"""The programs of `tests/c`, which `make test` runs on one host over shared memory: here their ends are in two guests, over RDMA. Each case has one transcript
natively, and the same with the library at both ends (`twice.py`)."""
import os
import re
import subprocess

from guests import HERE, Failed
from lab import LIB, add

SOURCES = os.path.join(HERE, "..", "c")
BUILT = os.path.realpath(os.path.join(HERE, "..", "..", "target", "lab-cases"))
TWICE = f"/usr/bin/python3 {HERE}/twice.py"
# Bytes take longer from guest to guest than from process to process. WALK_SEED=N and its like are the guests' too.
ENV = {"WALK_ARRIVES": "40000", **{name: value for name, value in os.environ.items() if name.endswith("_SEED")}}
# Cases that are to be comparable, and to have bytes on RoCE.
PROGRAMS = {"walks": 5, "calls": 7, "flags": 9, "close": 14, "children": 9, "execs": 9, "polling": 6, "stdio": 4, "handover": 6,
            "fds": 5, "unread": 9, "inherited": 20, "vforks": 12, "epoll_gone": 9, "entries": 6, "destroyed": 2, "ulp": 3, "streams": 7,
            "notices": 5, "privileges": 8, "signals": 7, "epoll_more": 7, "threads": 10, "unconnected": 4, "interrupts": 3, "splices": 9,
            "options": 10, "waits": 10, "lengths": 2, "peek_offsets": 4,
            "vectors": 9, "cancelled": 3}
# Of these not all: the others wait for what shared memory leaves in TCP, differ (docs/interpose.md), or take too long here.
ONLY = {"handover": "pass.*|exec_(with|without|unread|cloexec)|fork_exec_cat|listener.*", "fds": "unseen_closes?|reuse|by_syscall|ranges|high_numbers",
        "unread": "closed.*|half_closed(|_twice|_left|_left_whole|_inherited|_vfork|_spawn)",
        "inherited": "(fork_[^d]|vfork|spawn|several|back_unread).*",
        "destroyed": "waiting|unread", "threads": "(?!many_writers).*"}


def compiled(program):
    os.makedirs(BUILT, exist_ok=True)
    subprocess.run(["cc", "-std=gnu11", "-w", "-O1", "-g", "-pthread", "-o", f"{BUILT}/{program}", f"{program}.c", "case.c", "bytes.c"], cwd=SOURCES, check=True)
    return f"{BUILT}/{program}"


def same(program, least):
    """All of them, `least` over RDMA."""
    def run(lab):
        path = compiled(program)
        words = " ".join(f"{name}={value}" for name, value in {**ENV, **lab.logged()}.items())
        leads = lab.a.start(f"exec env {words} {TWICE} a {lab.a.ip} {LIB} {path} '{ONLY.get(program, '.*')}'").expect("leads", 30)
        follows = lab.b.start(f"exec env {words} {TWICE} b {lab.a.ip} {LIB} {path}")
        try:
            text = leads.done(1500)
        finally:
            for job in (leads, follows):
                if job.rc is None:
                    job.kill()
        lines = re.findall(r"^\w+::(\w+) (\w+) ?(.*)$", text, re.M)
        other = [f"{name}: {words[:300]}" for name, verdict, words in lines if verdict == "other"]
        if other:
            raise Failed(f"another transcript: {'; '.join(other)}")
        over_rdma = [name for name, verdict, words in lines if verdict == "same" and int(words.split()[0]) > 1000]
        if len(over_rdma) < least:
            raise Failed(f"no more than {len(over_rdma)} over RDMA: {[line[:2] for line in lines]}")
        verdicts = [verdict for _, verdict, _ in lines]
        rest = "".join(f", {verdicts.count(w)} {w}" for w in ("other", "unsteady", "unsound") if w in verdicts)
        return f"{len(lines)} cases, {verdicts.count('same')} the same, {len(over_rdma)} of them over RDMA{rest}"
    return run


for program, least in PROGRAMS.items():
    add(f"twice: {program}", same(program, least))
