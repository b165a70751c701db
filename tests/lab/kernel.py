#!/usr/bin/env python3
"""The kernel's SMC through netlink, as smc-tools do it; runs in the guests.

    kernel.py ueid-add EID | ueid-del EID | pnet-add NAME ETH IBDEV PORT | diag | groups | counters
"""
import glob
import json
import os
import socket
import struct
import sys

REQUEST, ACK, DUMP = 1, 4, 0x300
MODES = ("SMCR", "TCP", "SMCD")
STATES = {1: "ACTIVE", 2: "INIT", 7: "CLOSED", 10: "LISTEN", 20: "PEERCLOSEWAIT1", 21: "PEERCLOSEWAIT2",
          22: "APPCLOSEWAIT1", 23: "APPCLOSEWAIT2", 24: "APPFINCLOSEWAIT", 25: "PEERFINCLOSEWAIT",
          26: "PEERABORTWAIT", 27: "PROCESSABORT"}


def attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def attributes(data):
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            return
        yield kind & 0x3FFF, data[at + 4:at + length]
        at += (length + 3) & ~3


class Netlink:
    def __init__(self, protocol):
        self.sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self.sock.bind((0, 0))
        self.sock.settimeout(5)

    def ask(self, kind, flags, body):
        self.sock.send(struct.pack("=IHHII", 16 + len(body), kind, flags | REQUEST, 1, 0) + body)
        answers = []
        while True:
            data, at = self.sock.recv(262144), 0
            while at < len(data):
                length, got = struct.unpack_from("=IH", data, at)
                body, at = data[at + 16:at + length], at + ((length + 3) & ~3)
                if got == 3:
                    return answers
                if got == 2:
                    error = -struct.unpack_from("=i", body)[0]
                    if error:
                        raise OSError(error, os.strerror(error))
                    return answers
                answers.append(body)
                if not flags & (DUMP | ACK):
                    return answers


class Generic(Netlink):
    def __init__(self, family):
        super().__init__(16)
        answer = self.ask(16, 0, struct.pack("=BBH", 3, 1, 0) + attribute(2, family.encode() + b"\0"))
        self.family = next(struct.unpack("=H", v)[0] for k, v in attributes(answer[0][4:]) if k == 1)

    def command(self, number, body=b"", flags=ACK):
        return [a[4:] for a in self.ask(self.family, flags, struct.pack("=BBH", number, 1, 0) + body)]


def ueid(add, eid):
    Generic("SMC_GEN_NETLINK").command(10 if add else 11, attribute(1, eid.encode().ljust(32) + b"\0"))


def pnet(name, eth, ib, port):
    body = attribute(1, name.encode() + b"\0") + attribute(2, eth.encode() + b"\0")
    Generic("SMC_PNETID").command(2, body + attribute(3, ib.encode() + b"\0") + attribute(4, bytes([int(port)])))


def diag():
    """All AF_SMC sockets."""
    found = []
    for body in Netlink(4).ask(20, DUMP, struct.pack("=B2xB48x", 43, 0x1F)):
        _, state, mode, _ = struct.unpack_from("=BBBB", body)
        ports = struct.unpack_from("!HH", body, 4)
        names = [socket.inet_ntoa(body[at:at + 4]) for at in (8, 24)]
        one = {"state": STATES.get(state, state), "mode": MODES[mode],
               "local": f"{names[0]}:{ports[0]}", "peer": f"{names[1]}:{ports[1]}"}
        for kind, value in attributes(body[72:]):
            if kind == 5:
                one["reason"], one["peer_diagnosis"] = (f"{n:08x}" for n in struct.unpack_from("=II", value))
            elif kind == 1:
                one["token"], one["sndbuf"], one["rmb"], one["peer_rmb"] = struct.unpack_from("=IIII", value)
            elif kind == 2:
                one["role"] = value[146]
                one["peer_gid"] = value[106:146].split(b"\0")[0].decode()
        found.append(one)
    return found


def groups():
    """SMC-R link groups: id, number of connections, role."""
    found = []
    for body in Generic("SMC_GEN_NETLINK").command(2, flags=DUMP):
        for _, nest in attributes(body):
            fields = {kind: int.from_bytes(v, "little") if len(v) in (1, 2, 4, 8) else None for kind, v in attributes(nest)}
            found.append({"id": fields.get(1), "role": fields.get(2), "connections": fields.get(6)})
    return found


def counters():
    """Bytes that this guest's IP layer has seen of RoCE and of the tests' TCP ports, work requests among them, and what its RoCE devices have counted."""
    import subprocess
    text = subprocess.run(["nft", "-j", "list", "counters", "table", "inet", "lab"], capture_output=True, check=True).stdout
    found = {c["counter"]["name"]: c["counter"] for c in json.loads(text)["nftables"] if "counter" in c}
    return {**{name: counter["bytes"] for name, counter in found.items()}, "requests": found["requests"]["packets"], "devices": devices()}


def devices():
    """What each RoCE device has counted by itself: "DEVICE COUNTER"."""
    found = {}
    for path in glob.glob("/sys/class/infiniband/*/ports/1/hw_counters/*"):
        with open(path) as f:
            text = f.read().strip()
        if text.isdigit():
            found[f"{path.split('/')[4]} {os.path.basename(path)}"] = int(text)
    return found


def main(command, *rest):
    if command in ("ueid-add", "ueid-del"):
        ueid(command == "ueid-add", *rest)
    elif command == "pnet-add":
        pnet(*rest)
    else:
        print(json.dumps({"diag": diag, "groups": groups, "counters": counters}[command]()))


if __name__ == "__main__":
    main(*sys.argv[1:])
