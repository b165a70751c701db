"""Frameworks that programs are written with: each job runs one of frameworks/*.py as server and as client."""

import importlib.util
import pathlib

from bed import Skip

FOLDER = pathlib.Path(__file__).resolve().parent / "frameworks"
# Script and the package that it needs, as Debian's Python sees it.
SCRIPTS = {"grpc_calls": "grpc", "zeromq": "zmq", "gevent_echo": "gevent", "uvloop_echo": "uvloop", "trio_echo": "trio",
           "twisted_echo": "twisted", "tornado_websocket": "tornado", "aiohttp_posts": "aiohttp"}


def job(script, package):
    def run(bed):
        if importlib.util.find_spec(package) is None:
            raise Skip(f"not installed: python3-{package}")
        path = FOLDER / f"{script}.py"
        bed.server("/usr/bin/python3", path, "server", port=7040)
        return bed.client("/usr/bin/python3", path, "client")

    run.__name__ = script
    return run


PROGRAMS = [job(script, package) for script, package in SCRIPTS.items()]
