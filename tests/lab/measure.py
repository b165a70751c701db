#!/usr/bin/env python3
"""Between the two guests, one program over TCP, Debian's librspreload, the kernel's SMC-R and libsmcr.

    tests/lab/measure.py [-n REPETITIONS] [--out DIR] [--write docs/rdma-measured.md]

Prints the table of docs/rdma-measured.md: medians of interleaved repetitions, as ratios to TCP, and for
each message the work requests, the receives that they took, and the packets of RoCE, acknowledgements among them. Emulated processors make only the order among the RDMA
paths meaningful, and the counts.
"""
import argparse
import json
import os
import re
import statistics
import sys
import time

from guests import Failed
from lab import KERNEL, LIB, Lab
from run import boot

RSOCKET = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"
SHIM = "/usr/local/lib/smcrun.so"
# Set by env(1) for the program alone: bash crashes under librspreload.
MEDIA = {"TCP": "", "librspreload": f"LD_PRELOAD={RSOCKET}", "kernel SMC-R": "AF=43", "libsmcr": f"LD_PRELOAD={LIB}"}
REDIS = {**MEDIA, "kernel SMC-R": f"LD_PRELOAD={SHIM}"}
PORT = {name: 5400 + i for i, name in enumerate(MEDIA)}
ROUNDS, STREAM, CONNECTS, REQUESTS = 1000, 16 << 20, 30, 2000
# Exchanges of messages that are as large as half a ring, and that are many rings.
LARGE, HUGE = 100, 20
# RoCE packets of a connection at least: 16 bytes and one byte there, one back. An exchange of redis has 2.
CONNECTED = 3


KINDS = {"roce": "packets", "requests": "work requests", "received": "received"}


def roce(lab):
    """What one guest has sent and got on RoCE: packets, work requests, and those that took a receive there."""
    text = lab.b.run("nft -j list counters table inet lab")
    found = {c["counter"]["name"]: c["counter"]["packets"] for c in json.loads(text)["nftables"] if "counter" in c}
    return {kind: found[kind] for kind in KINDS}


class Row:
    """`messages`: by how many what was counted is divided; `least`: RoCE packets for each, without which it was TCP; `is_counted`: the table shows them."""
    def __init__(self, name, unit, faster_is_more, arguments, pick, messages, least=1, is_counted=True):
        self.name, self.unit, self.more, self.arguments, self.pick, self.messages = name, unit, faster_is_more, arguments, pick, messages
        self.values, self.counts, self.least, self.is_counted = {m: [] for m in MEDIA}, {}, least, is_counted

    def run(self, lab, medium):
        before = roce(lab)
        text = lab.b.run(f"exec env {MEDIA[medium]} /lab/bench {self.arguments[0]} {lab.a.ip} {PORT[medium]} {' '.join(map(str, self.arguments[1:]))}", 60)
        if self.went(lab, medium, before):
            self.note(medium, float(text.split()[self.pick]))

    def went(self, lab, medium, before):
        """Whether it went over RoCE since then, which is counted; what has fallen back is no measurement of this medium."""
        counts = {kind: (n - before[kind]) / self.messages for kind, n in roce(lab).items()}
        if medium != "TCP" and counts["roce"] < self.least:
            print(f"{medium}, {self.name}: on TCP, left out: {counts['roce']:.1f} packets of RoCE each", file=sys.stderr, flush=True)
            return False
        if self.is_counted:
            self.counts[medium] = counts
        return True

    def note(self, medium, value):
        self.values[medium].append(value)


def redis(lab, medium, rows):
    server = lab.a.start(f"exec env {REDIS[medium]} redis-server --port {PORT[medium] + 100} --bind {lab.a.ip} --protected-mode no --save '' --dir /run/lab")
    server.expect("Ready to accept", 12)
    try:
        before = roce(lab)
        text = lab.b.run(f"exec env {REDIS[medium]} redis-benchmark -h {lab.a.ip} -p {PORT[medium] + 100} -c 10 -n {REQUESTS} -t set,get --csv", 60)
        if rows["SET"].went(lab, medium, before):
            for name, rate in re.findall(r'"(SET|GET)","([\d.]+)"', text):
                rows[name].note(medium, float(rate))
    finally:
        server.kill()


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("-n", type=int, default=3)
    parse.add_argument("--out")
    parse.add_argument("--no-redis", action="store_true")
    parse.add_argument("--write", help="put the table into this file; what follows its line '## What it says' stays")
    args = parse.parse_args()
    rows = [
        Row("1 B ping-pong, p50", "us", False, ["ping", 1, ROUNDS], 0, ROUNDS * 2.2),
        Row("64 B ping-pong, p50", "us", False, ["ping", 64, ROUNDS], 0, ROUNDS * 2.2),
        Row("64 KiB ping-pong, p50", "us", False, ["ping", 64 << 10, LARGE], 0, LARGE * 2.2),
        Row("1 MiB ping-pong, p50", "us", False, ["ping", 1 << 20, HUGE], 0, HUGE * 2.2),
        Row("64 KiB stream", "MB/s", True, ["stream", 65536, STREAM], 0, STREAM / 65536),
        Row("connect()", "us", False, ["connect", CONNECTS], 0, CONNECTS, CONNECTED),
        Row("connect(), 1 B there and back", "us", False, ["connect", CONNECTS], 1, CONNECTS, CONNECTED, is_counted=False),
    ]
    set_get = {name: Row(f"redis {name}, -c 10", "1/s", True, [], 0, 2 * REQUESTS, 2, is_counted=False) for name in ("SET", "GET")}
    failures = {}
    with boot(args.out, bench=True) as guests:
        lab = Lab(guests)
        lab.set_up()
        servers = {}
        for medium in MEDIA:
            servers[medium] = lab.a.start(f"exec env {MEDIA[medium]} /lab/bench serve {lab.a.ip} {PORT[medium]}").expect("serving", 30)
        for number in range(args.n):
            for medium in MEDIA:
                for row in rows:
                    attempt(failures, row, medium, lambda: row.run(lab, medium))
                if not args.no_redis:
                    attempt(failures, set_get["SET"], medium, lambda: redis(lab, medium, set_get))
            print(f"after {number + 1} of {args.n} repetitions:\n{table([*rows, *set_get.values()], failures)}\n", flush=True)
        if args.write:
            write(args.write, guests.kernel, args.n, table([*rows, *set_get.values()], failures))
        proof = [f"kernel's diagnosis of its sockets: {sorted({d['mode'] for d in json.loads(lab.a.run(f'{KERNEL} diag'))})}"]
    print("\n".join(proof), file=sys.stderr)


HEAD = """# RDMA measured

`tests/lab/measure.py` in the lab (two guests, emulated processors, soft RoCE, Linux {kernel}): one program, the same for every medium. Medians of {n} interleaved
repetitions on {date}, on a host with a load of {load:.0f} on {processors} processors, which the guests share: absolute times mean nothing, ratios little where the load is high; the
counts are exact.

{table}

(A message is one way. Counted in one guest for both directions: work requests posted, receives that they took at the other end, and packets, acknowledgements among
them. For connect() they are those of connect, 16 bytes and one byte there, one back, and close.)

"""
KEEP = "## What it says\n"


def write(path, kernel, n, text):
    with open(path) as f:
        kept = f.read().partition(KEEP)[2]
    head = HEAD.format(kernel=kernel, n=n, date=time.strftime("%d %B %Y"), load=os.getloadavg()[2], processors=os.cpu_count(), table=text)
    with open(path, "w") as f:
        f.write(head + KEEP + kept)


def attempt(failures, row, medium, function):
    if (row.name, medium) in failures:
        return
    try:
        function()
    except Failed as error:
        failures[row.name, medium] = str(error)
        print(f"{medium}, {row.name}: {error}", file=sys.stderr, flush=True)


def table(rows, failures):
    names = list(MEDIA)
    out = ["| | TCP | " + " | ".join(f"{n}, ratio to TCP" for n in names[1:]) + " | work requests, receives and RoCE packets per message |",
           "|---|---|" + "---|" * len(names)]
    for row in rows:
        middle = {m: statistics.median(v) for m, v in row.values.items() if v}
        base = middle.get("TCP", 0)
        scale = {"us": 1e-3, "MB/s": 1e-6, "1/s": 1}[row.unit]
        cells = [f"{base * scale:,.0f} {row.unit}"]
        for medium in names[1:]:
            if medium in middle and base:
                cells.append(f"{middle[medium] / base:.2f} ({'rate' if row.more else 'time'})")
            else:
                cells.append("fails" if (row.name, medium) in failures else "-")
        counts = ", ".join(f"{m} " + "/".join(f"{row.counts[m][kind]:.1f}" for kind in ("requests", "received", "roce"))
                           for m in names[1:] if m in row.counts)
        out.append(f"| {row.name} | " + " | ".join(cells) + f" | {counts} |")
    return "\n".join(out)


if __name__ == "__main__":
    main()
