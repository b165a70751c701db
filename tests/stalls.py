#!/usr/bin/env python3
"""Takes all processors away together, now and then, for 2 to 300 ms, as a host does to a guest: runs a command meanwhile.

    tests/stalls.py COMMAND...       exit status: the command's

Called by `make stalls`. Needs root, for a process of real-time priority on each processor. SIGSTOP and the freezer of cgroups won't do: both
end epoll_wait(2) and others by EINTR, with TCP as well.
"""

import os
import random
import subprocess
import sys
import time

LENGTHS = [0.002, 0.005, 0.02, 0.1, 0.3]  # seconds
BETWEEN = (0.002, 0.08)


def take(cpu, seed, at, parent):
    """Never returns. Each processor's process begins at the same moment and draws the same numbers, so they act together."""
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    dice = random.Random(seed)
    while os.getppid() == parent:
        at += dice.uniform(*BETWEEN)
        time.sleep(max(0, at - time.monotonic()))
        at += dice.choice(LENGTHS)
        while time.monotonic() < at:
            pass
    os._exit(0)


def main():
    seed = int(os.environ.get("SMCR_TEST_SEED", time.time()))
    print("stalls: seed", seed, flush=True)
    here, begin, takers = os.getpid(), time.monotonic(), []
    for cpu in sorted(os.sched_getaffinity(0)):
        pid = os.fork()
        if pid == 0:
            take(cpu, seed, begin, here)
        takers.append(pid)
    try:
        status = subprocess.call(sys.argv[1:])
    finally:
        for pid in takers:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    sys.exit(status)


if __name__ == "__main__":
    main()
