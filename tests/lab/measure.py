#!/usr/bin/env python3
"""Between the two guests, one program over TCP, Debian's librspreload, the kernel's SMC-R and libsmcr.

    tests/lab/measure.py [-n REPETITIONS] [-k WORDS]... [--limit SECONDS] [--no-redis] [--out DIR] [--write docs/rdma-measured.md]

Prints the tables of docs/rdma-measured.md: medians of interleaved repetitions, as ratios to TCP, and for each message the work requests,
the completions of sends and of receives, and the packets of RoCE, acknowledgements among them. Emulated processors make only the order among
the RDMA paths meaningful, and the counts. What hangs, or ends, over one medium is "fails" for that row of it, and the rest goes on; a cell says so
where only some of its repetitions went well. librspreload's server, which stops to answer now and then, is started anew for each row, and so is another
one after a failure.
"""
import argparse
import itertools
import json
import os
import re
import statistics
import sys
import time

from counts import COMPLETED, KINDS, count_completions, counted
from guests import Failed
from lab import KERNEL, LIB, Lab
from run import boot, dead_of

RSOCKET = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"
SHIM = "/usr/local/lib/smcrun.so"
# Set by env(1) for the program alone: bash crashes under librspreload.
MEDIA = {"TCP": "", "librspreload": f"LD_PRELOAD={RSOCKET}", "kernel SMC-R": "AF=43", "libsmcr": f"LD_PRELOAD={LIB}"}
REDIS = {**MEDIA, "kernel SMC-R": f"LD_PRELOAD={SHIM}"}
# Media whose server serves one row.
BRIEF = {"librspreload"}
# No two servers have one: a server that can't be killed keeps it.
PORTS = itertools.count(5400)
ROUNDS, STREAM, CONNECTS, REQUESTS = 1000, 16 << 20, 30, 2000
# Exchanges of messages that are as large as half a ring, and that are many rings.
LARGE, HUGE = 100, 20
# RoCE packets of a connection at least: 16 bytes and one byte there, one back.
CONNECTED = 3
SHOWN = {kind: {**KINDS, **COMPLETED}[kind] for kind in ("requests", "sent", "taken", "roce")}


class Row:
    """`arguments`: the bench program's, and which of the numbers it prints; `messages`: by how many what was counted is divided; `least`: RoCE
    packets for each, without which it was TCP."""
    def __init__(self, name, unit, faster_is_more, arguments, pick, messages, least=1):
        self.name, self.unit, self.more, self.arguments, self.pick, self.messages, self.least = name, unit, faster_is_more, arguments, pick, messages, least
        self.values, self.counts, self.failed = ({m: [] for m in MEDIA} for _ in range(3))

    def run(self, servers, medium, limit):
        """One repetition."""
        server = servers.of(medium)
        self.measure(servers.lab, medium, limit, f"/lab/bench {self.arguments[0]} {servers.lab.a.ip} {server.port} {' '.join(map(str, self.arguments[1:]))}",
                     lambda text: text.split()[self.pick])

    def measure(self, lab, medium, limit, text, value):
        """What has fallen back is no measurement of this medium."""
        before = counted(lab)
        out = lab.b.run(f"exec env {self.environment(medium)} {text}", limit)
        counts = {kind: (n - before[kind]) / self.messages for kind, n in counted(lab).items()}
        if medium != "TCP" and counts["roce"] < self.least:
            raise Failed(f"on TCP: {counts['roce']:.1f} packets of RoCE each")
        self.values[medium].append(float(value(out)))
        self.counts[medium].append(counts)

    def environment(self, medium):
        return MEDIA[medium]


class Redis(Row):
    """One command of redis-benchmark; a server of its own, which has the key already."""
    def __init__(self, name):
        super().__init__(f"redis {name}, -c 10", "1/s", True, [], 0, 2 * REQUESTS)
        self.command = name

    def environment(self, medium):
        return REDIS[medium]

    def run(self, servers, medium, limit):
        lab, port = servers.lab, next(PORTS)
        server = lab.a.start(f"exec env {REDIS[medium]} redis-server --port {port} --bind {lab.a.ip} --protected-mode no --save '' --dir /run/lab")
        try:
            server.expect("Ready to accept", 12)
            client = f"redis-benchmark -h {lab.a.ip} -p {port}"
            lab.b.run(f"exec env {REDIS[medium]} {client} -c 1 -n 10 -t set --csv", limit)
            self.measure(lab, medium, limit, f"{client} -c 10 -n {REQUESTS} -t {self.command.lower()} --csv",
                         lambda text: re.search(rf'"{self.command}","([\d.]+)"', text)[1])
        finally:
            end(server)


class Servers:
    """The bench program's server of each medium, where it runs."""
    def __init__(self, lab):
        self.lab, self.running = lab, {}

    def of(self, medium):
        job = self.running.get(medium)
        if not job or job.rc is not None:
            port = next(PORTS)
            job = self.lab.a.start(f"exec env {MEDIA[medium]} /lab/bench serve {self.lab.a.ip} {port}").expect("serving", 30)
            job.port = port
            self.running[medium] = job
        return job

    def end(self, medium):
        if job := self.running.pop(medium, None):
            end(job)


def end(job):
    """One that can't be ended is left: nobody uses its port again."""
    try:
        if job.rc is None:
            job.kill()
    except Failed as error:
        print(error, file=sys.stderr, flush=True)


class Measurement:
    def __init__(self, guests, rows, limit):
        self.guests, self.rows, self.limit = guests, rows, limit
        self.prepare()

    def prepare(self):
        lab = Lab(self.guests)
        lab.set_up()
        count_completions(lab)
        self.servers = Servers(lab)

    def repeat(self):
        """Each row over each medium, once."""
        for row, medium in itertools.product(self.rows, MEDIA):
            try:
                row.run(self.servers, medium, self.limit)
            except (Failed, AttributeError, IndexError, ValueError) as error:  # the program has said something else than a number
                row.failed[medium].append(error)
                print(f"{medium}, {row.name}: {error}", file=sys.stderr, flush=True)
                self.after_failure(medium)
            else:
                if medium in BRIEF:
                    self.servers.end(medium)

    def after_failure(self, medium):
        """The medium gets another server, and all of them other guests where one is dead."""
        dead = dead_of(self.servers.lab)
        if dead:
            print(f"guests {dead} are dead: booted again", file=sys.stderr, flush=True)
            self.guests.boot_again()
            self.prepare()
        else:
            self.servers.end(medium)


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("-n", type=int, default=3, help="repetitions")
    parse.add_argument("-k", action="append", default=[], help="only rows whose name has this; may be repeated")
    parse.add_argument("--limit", type=float, default=60, help="seconds that a row may take over one medium")
    parse.add_argument("--out")
    parse.add_argument("--no-redis", action="store_true")
    parse.add_argument("--write", help="put the tables into this file, after each repetition; what follows its line '## What it says' stays")
    args = parse.parse_args()
    rows = [
        Row("1 B ping-pong, p50", "us", False, ["ping", 1, ROUNDS], 0, ROUNDS * 2.2),
        Row("64 B ping-pong, p50", "us", False, ["ping", 64, ROUNDS], 0, ROUNDS * 2.2),
        Row("64 KiB ping-pong, p50", "us", False, ["ping", 64 << 10, LARGE], 0, LARGE * 2.2),
        Row("1 MiB ping-pong, p50", "us", False, ["ping", 1 << 20, HUGE], 0, HUGE * 2.2),
        Row("64 KiB stream", "MB/s", True, ["stream", 65536, STREAM], 0, STREAM / 65536),
        Row("connect()", "us", False, ["connect", CONNECTS], 0, CONNECTS, CONNECTED),
        Row("connect(), 1 B there and back", "us", False, ["connect", CONNECTS], 1, CONNECTS, CONNECTED),
        *([] if args.no_redis else [Redis("SET"), Redis("GET")]),
    ]
    rows = [row for row in rows if not args.k or any(word in row.name for word in args.k)]
    if not rows:
        parse.error(f"no row has {args.k} in its name")
    with boot(args.out, bench=True) as guests:
        measurement = Measurement(guests, rows, args.limit)
        for number in range(1, args.n + 1):
            measurement.repeat()
            print(f"after {number} of {args.n} repetitions:\n{tables(rows)}\n", flush=True)
            if args.write:
                write(args.write, guests.kernel, number, tables(rows))
        modes = sorted({d["mode"] for d in json.loads(measurement.servers.lab.a.run(f"{KERNEL} diag"))})
    print(f"kernel's diagnosis of its sockets: {modes}", file=sys.stderr)


HEAD = """# RDMA measured

`tests/lab/measure.py` in the lab (two guests, emulated processors, soft RoCE, Linux {kernel}): one program, the same for every medium. Medians of {n} interleaved
repetitions on {date}, on a host with a load of {load:.0f} on {processors} processors, which the guests share: absolute times mean nothing, ratios little where the load is high; the
counts are exact.

{tables}

(A message is one way: a request of redis is one, its answer another. Counted in both guests, for both directions: work requests posted, completions of sends and of receives that soft RoCE
handed over, those of requests that failed left out, and packets, acknowledgements among them. For connect() they are those of connect, 16 bytes and one byte there, one back, and close; librspreload's
completions and packets have its connection manager's datagrams among them, its work requests have not.)

"""
KEEP = "## What it says\n"


def write(path, kernel, n, text):
    with open(path) as f:
        kept = f.read().partition(KEEP)[2]
    head = HEAD.format(kernel=kernel, n=n, date=time.strftime("%d %B %Y"), load=os.getloadavg()[2], processors=os.cpu_count(), tables=text)
    with open(path, "w") as f:
        f.write(head + KEEP + kept)


def tables(rows):
    """Times, and what was counted."""
    names = list(MEDIA)[1:]
    rule = "|---|" + "---|" * len(names)
    times = ["| | TCP | " + " | ".join(f"{n}, ratio to TCP" for n in names) + " |", rule + "---|"]
    counts = [f"| {', '.join(SHOWN.values())} for each message | " + " | ".join(names) + " |", rule]
    for row in rows:
        base = statistics.median(row.values["TCP"]) if row.values["TCP"] else None
        scale = {"us": 1e-3, "MB/s": 1e-6, "1/s": 1}[row.unit]
        first = f"{base * scale:,.0f} {row.unit}" if base else "fails" if row.failed["TCP"] else "-"
        times.append(f"| {row.name} | {first} | " + " | ".join(cell(row, medium, base) for medium in names) + " |")
        counts.append(f"| {row.name} | " + " | ".join(numbers(row.counts[medium]) for medium in names) + " |")
    return "\n".join([*times, "", *counts])


def cell(row, medium, base):
    values, failed = row.values[medium], len(row.failed[medium])
    if not values or not base:
        return "fails" if failed else "-"
    some = f", {len(values)} of {len(values) + failed}" if failed else ""
    return f"{statistics.median(values) / base:.2f} ({'rate' if row.more else 'time'}{some})"


def numbers(counts):
    return " / ".join(f"{statistics.median(c[kind] for c in counts):.2f}" for kind in SHOWN) if counts else "-"


if __name__ == "__main__":
    main()
