"""Programs that wait by inline system calls, which the library does not see: their connections are TCP's from the beginning, with a kernel at the other end as
well, which has no way back. Those that wait not at all have their links. And connections that nobody uses, which end as TCP's do."""
from cases_programs import PRELOAD, moved, running
from guests import HERE, Failed
from lab import add

BLIND = "/lab/blind"
APPS = f"/usr/bin/python3 {HERE}/apps.py"


def server(client, port):
    def run(lab):
        job = running(lab.a, f"{BLIND} serve {lab.a.ip} {port}", "serving", **lab.env("smcr"))
        try:
            total, traffic = moved(lab, f"{APPS} echoed {lab.a.ip} {port}", LD_PRELOAD=PRELOAD[client], **lab.logged())
            return traffic.went_over_tcp(total * 2)
        finally:
            job.kill()
    return run


def client(kind, how, port):
    def run(lab):
        job = running(lab.a, f"/usr/bin/python3 {HERE}/asyncio_echo.py serve {lab.a.ip} {port}", "serving", LD_PRELOAD=PRELOAD[kind], **lab.logged())
        try:
            total, traffic = moved(lab, f"{BLIND} {how} {lab.a.ip} {port} 5 40", **lab.env("smcr"))
            if how == "run":
                return traffic.went_over_tcp(total * 2)
            # Of one that is not run for a moment it is not known whether it waits.
            if traffic.rdma < total:
                raise Failed(f"less than half of {total * 2:,} B: {traffic}")
            return f"payload {total * 2:,} B: {traffic}"
        finally:
            job.kill()
    return run


for number, kind in enumerate(("smcr", "kernel")):
    add(f"blind: a server that waits unseen, {kind} client", server(kind, 4700 + number))
    add(f"blind: a client that waits unseen, {kind} server", client(kind, "run", 4710 + number))
    add(f"blind: a client that does not wait, {kind} server", client(kind, "spin", 4720 + number))


def unused(server, client, serves, runs, port, more=""):
    """Both programs natively and with a medium: they hear the same."""
    def run(lab):
        heard = []
        for kinds in (("tcp", "tcp"), (server, client)):
            job = running(lab.a, f"{APPS} {serves} {lab.a.ip} {port}", "serving", LD_PRELOAD=PRELOAD[kinds[0]], **lab.logged())
            try:
                with lab.traffic() as traffic:
                    lab.b.run(f"{APPS} {runs} {lab.a.ip} {port} {more}", 60, LD_PRELOAD=PRELOAD[kinds[1]], **lab.logged())
                heard.append(job.done(30))
            finally:
                if job.rc is None:
                    job.kill()
        if heard[0] != heard[1]:
            raise Failed(f"{heard[1].split()}, natively {heard[0].split()}")
        proof = f"; {traffic.went_over_rdma(4 * 150, 4)}" if runs == "counted" else ""
        return f"{' '.join(heard[0].split())} both times{proof}"
    return run


add("unused: connections are opened and ended", unused("smcr", "smcr", "hears", "knocks", 4730, 4))
for number, pair in enumerate((("smcr", "smcr"), ("smcr", "kernel"), ("kernel", "smcr"))):
    add(f"unused: FIONREAD comes first, {pair[1]} client, {pair[0]} server", unused(*pair, "counts", "counted", 4750 + number))
for number, kind in enumerate(("smcr", "kernel")):
    add(f"unused: a server closes what it accepts, {kind} client", unused("smcr", kind, "slams", "slammed", 4740 + 2 * number))
