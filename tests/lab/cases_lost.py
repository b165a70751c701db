"""A kernel loses what it was to tell."""
import re
import time

from guests import Failed
from lab import CUT, MEND, case, payload, said


@case
def smcr_to_kernel_an_update_is_lost_by_a_signal(lab):
    """A reader of the kernel's takes the whole ring, and a signal ends its wait for a send slot: it never says so. See docs/wire.md."""
    lab.restart()
    mark = f"/lab/lost.{time.monotonic()}"
    with lab.traffic() as traffic:
        job = lab.client("smcr", lab.server("kernel"), "lost", 300_000, mark, PATIENCE=60).expect("up", 40)
        seen = lab.on_rdma("smcr", "kernel", number=21)
        time.sleep(1.5)  # its ring is full
        try:
            lab.a.run(f"{CUT}; touch {mark}")
            time.sleep(4)
        finally:
            lab.a.run(MEND)
        text = job.done(65)
    if float(re.search(r"held ([\d.]+) s", said(text))[1]) < 1:
        raise Failed(f"there were slots: {said(text)}")
    return f"{said(text)}; {traffic.went_over_rdma(payload(text), 21)}{seen}"
