"""The only link to a kernel dies under an established connection: there is no way back from a kernel's SMC-R, so both ends hear of it (docs/wire.md),
nobody waits for ever, and the next connections work, over TCP while RoCE does not pass. Last of all cases: what soft RoCE repeats to a queue pair
that has gone stays in the kernel."""
import re

from guests import Failed
from lab import add, said


def dies(client, server, writes):
    def run(lab):
        lab.restart()
        to = lab.server(server)
        job = lab.client(client, to, "bereft", writes, PATIENCE=240).expect("up", 40)
        began = lab.on_rdma(client, server)
        with lab.cut_off():
            job.expect("saw ", 100)
            text = job.done(245)
        mine, took = re.search(r"^saw (\w+) after ([\d.]+) s", text, re.M).groups()
        theirs = re.search(r"server saw (\w+)", said(text))[1]
        ours, kernel = (mine, theirs) if client == "smcr" else (theirs, mine)
        # Who notices first aborts, and its TCP resets that of the other.
        aborted = re.compile("ECONN(ABORTED|RESET)")
        if not aborted.fullmatch(ours) or not aborted.fullmatch(kernel) or ours == kernel == "ECONNRESET":
            raise Failed(f"libsmcr saw {ours}, the kernel {kernel}, the client after {took} s")
        again = lab.client(client, to, "one", 65537, PATIENCE=60).done(65)
        return f"libsmcr saw {ours}, the kernel {kernel}, the client after {took} s{began}; then {said(again)}"
    return run


for pair in (("smcr", "kernel"), ("kernel", "smcr")):
    for writes, words in (("writes", "the client writes"), ("", "nobody writes")):
        add(f"the link to a kernel dies: {' -> '.join(pair)}, {words}", dies(*pair, writes))
