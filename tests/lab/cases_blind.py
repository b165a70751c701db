"""Programs that wait by inline system calls, which the library does not see: their connections are TCP's from the beginning, with a kernel at the other end as
well, which has no way back. Those that wait not at all have their links."""
import re

from cases_programs import PRELOAD, running
from guests import HERE
from lab import add

BLIND = "/lab/blind"


def server(client, port):
    def run(lab):
        job = running(lab.a, f"{BLIND} serve {lab.a.ip} {port}", "serving", **lab.env("smcr"))
        try:
            with lab.traffic() as traffic:
                text = lab.b.run(f"/usr/bin/python3 {HERE}/apps.py echoed {lab.a.ip} {port}", 60, LD_PRELOAD=PRELOAD[client], **lab.logged())
            total = int(re.search(r"ok (\d+)", text)[1])
            return traffic.went_over_tcp(total * 2)
        finally:
            job.kill()
    return run


def client(kind, how, port):
    def run(lab):
        job = running(lab.a, f"/usr/bin/python3 {HERE}/asyncio_echo.py serve {lab.a.ip} {port}", "serving", LD_PRELOAD=PRELOAD[kind], **lab.logged())
        try:
            with lab.traffic() as traffic:
                text = lab.b.run(f"{BLIND} {how} {lab.a.ip} {port} 5 40", 60, **lab.env("smcr"))
            total = int(re.search(r"ok (\d+)", text)[1])
            return (traffic.went_over_tcp if how == "run" else lambda n: traffic.went_over_rdma(n, 5))(total * 2)
        finally:
            job.kill()
    return run


for number, kind in enumerate(("smcr", "kernel")):
    add(f"blind: a server that waits unseen, {kind} client", server(kind, 4700 + number))
    add(f"blind: a client that waits unseen, {kind} server", client(kind, "run", 4710 + number))
    add(f"blind: a client that does not wait, {kind} server", client(kind, "spin", 4720 + number))
