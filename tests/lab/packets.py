#!/usr/bin/env python3
"""What soft RoCE sent again, and not as it had sent it before: reads what `run.py --packets` has kept.

    tests/lab/packets.py FILE...

A requester gives each packet a sequence number, and what it sends again has to be the same packet. The library has no part in that:
it posts requests, numbers and repetitions are the network card's. Shows each packet whose number had another operation or length
before, and each negative acknowledgement but "out of sequence", with what was sent before it.
"""
import collections
import struct
import sys

OPERATIONS = {0: "SEND_FIRST", 2: "SEND_LAST", 4: "SEND_ONLY", 6: "WRITE_FIRST", 7: "WRITE_MIDDLE", 8: "WRITE_LAST", 9: "WRITE_LAST_IMM",
              10: "WRITE_ONLY", 11: "WRITE_ONLY_IMM", 17: "ACK"}
WITH_ADDRESS, WITH_IMMEDIATE = (6, 10, 11), (9, 11)
SHOWN = 20

Packet = collections.namedtuple("Packet", "time way psn operation length address total syndrome")


def packets(path):
    with open(path, "rb") as f:
        data = f.read()
    at = 24
    while at + 16 <= len(data):
        seconds, micros, kept, _ = struct.unpack_from("<IIII", data, at)
        frame = data[at + 16:at + 16 + kept]
        at += 16 + kept
        if len(frame) < 54 or frame[12:14] != b"\x08\x00" or frame[23] != 17 or frame[36:38] != b"\x12\xb7":
            continue
        operation, pad = frame[42], frame[43] >> 4 & 3
        source, target = (".".join(map(str, frame[i:i + 4])) for i in (26, 30))
        qpn, psn = int.from_bytes(frame[47:50]), int.from_bytes(frame[51:54])
        length = int.from_bytes(frame[38:40]) - 8 - 12 - 4 - pad
        address = total = syndrome = None
        if operation in WITH_ADDRESS and len(frame) >= 70:
            address, _, total = struct.unpack_from("!QII", frame, 54)
            length -= 16
        if operation in WITH_IMMEDIATE:
            length -= 4
        if operation == 17:
            syndrome, length = frame[54], 0
        yield Packet(seconds + micros / 1e6, (source, target, qpn), psn, operation, length, address, total, syndrome)


def text(p):
    where = f" of {p.total} at {p.address:x}" if p.total is not None else ""
    return f"{p.time:.6f} {p.way[0]} -> {p.way[1]} qp {p.way[2]} psn {p.psn} {OPERATIONS.get(p.operation, p.operation)} {p.length} B{where}"


def look(path):
    sent, last, wrong = collections.defaultdict(dict), collections.defaultdict(lambda: collections.deque(maxlen=SHOWN)), 0
    both = collections.defaultdict(int)
    for p in packets(path):
        pair = p.way[:2]
        if p.operation == 17:
            if p.syndrome & 0xe0 == 0x60 and p.syndrome != 0x60 or p.syndrome & 0xe0 == 0x20:
                what = {0x61: "invalid request", 0x62: "access error", 0x63: "operation error"}.get(p.syndrome, "receiver not ready")
                both[what] += 1
                if p.syndrome & 0xe0 == 0x60:
                    print(f"{p.time:.6f} {p.way[0]} -> {p.way[1]} qp {p.way[2]} psn {p.psn} NAK {what}; before it there:")
                    for way, before in last.items():
                        if way[:2] == pair[::-1]:
                            print("   ", "\n    ".join(text(b) for b in before))
            elif p.syndrome == 0x60:
                both["out of sequence"] += 1
            continue
        known = sent[p.way].get(p.psn)
        if known and (known.operation, known.length, known.total) != (p.operation, p.length, p.total):
            wrong += 1
            if wrong <= 40:
                print(f"not as before: {text(p)}\n       before: {text(known)}")
        both["sent again" if known else "sent"] += 1
        sent[p.way][p.psn] = p
        last[p.way].append(p)
    print(f"{path}: {dict(both)}, {wrong} sent again as another packet")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        look(name)
