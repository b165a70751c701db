#!/usr/bin/env python3
"""The program that both ends of a case run; it knows nothing of the medium under it.

    peer.py serve ADDRESS PORT                   serves until it is killed
    peer.py OPERATION ADDRESS PORT [ARGUMENT]... one client; prints a line "ok ..." or fails

AF=43 makes it a program of the kernel's AF_SMC, else it is a plain TCP program. A client sends one line
of JSON that says what the server shall do on this connection; what is sent either way is a pattern that
shows each lost, doubled or misplaced byte. Operations are functions of `peer_clients.py`, `peer_calls.py`, `peer_changes.py`,
`peer_process.py` and `peer_urgent.py`.
"""
import faulthandler
import signal
import sys

import peer_calls
import peer_changes
import peer_clients
import peer_process
import peer_urgent
from flow import PATIENCE, PAYLOAD
from peer_server import serve


def main(operation, address, port, *rest):
    if operation in ("serve", "slowly"):
        serve(address, port, *rest)
    faulthandler.register(signal.SIGALRM, chain=True)  # says where
    signal.alarm(PATIENCE)  # a hang is a failure of this case, and no more
    run = next(getattr(module, operation) for module in (peer_clients, peer_calls, peer_changes, peer_process, peer_urgent) if hasattr(module, operation))
    print("ok", run(address, int(port), *rest), flush=True)
    print("payload", sum(PAYLOAD), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
