"""What languages bring along to serve many connections at once: one program of frameworks/ for each, as server and as client. Jobs as in
programs.py. Called by run.py, inside a `Bed`.
"""

from bed import digest, need
from frameworks import FOLDER


def nim(bed):
    need("nim", "cc")
    bed.quiet("nim", "c", "-d:release", "--hints:off", f"--nimcache:{bed.work}/cache", f"--out:{bed.work}/echo", FOLDER / "echo.nim")
    bed.server(bed.work / "echo", "server", port=7042)
    return bed.client(bed.work / "echo", "client")


def mono(bed):
    need("mcs", "mono")
    bed.quiet("mcs", f"-out:{bed.work}/echo.exe", FOLDER / "echo.cs")
    bed.server("mono", "echo.exe", "server", port=7043)
    return bed.client("mono", "echo.exe", "client")


def tarantool(bed):
    need("tarantool")
    bed.server("tarantool", FOLDER / "box.lua", "server", bed.work, port=7044)
    return bed.client("tarantool", FOLDER / "box.lua", "client")


def haskell(bed):
    """hledger-web, asked for what it keeps, by the runtime's own event manager."""
    need("hledger-web", "curl", "wrk")
    (bed.work / "j").write_text("".join(f"2026-01-01 shop {i}\n  food:{i % 40}  {i}\n  cash\n\n" for i in range(300)))
    bed.server("hledger-web", "-f", bed.work / "j", "--serve-api", "--host", "127.0.0.1", "--port", 7045, "--capabilities=view", port=7045)
    pages = [bed.client("curl", "-sS", *[f"http://127.0.0.1:7045/{page}"] * 6) for page in ("accountnames", "prices", "commodities")]
    out = bed.client("wrk", "-t", 1, "-c", 8, "-d", "2s", "http://127.0.0.1:7045/accountnames").decode()
    return digest(b"".join(pages)) + "".join(line for line in out.splitlines() if "errors" in line or "Non-2xx" in line)


PROGRAMS = [nim, mono, tarantool, haskell]
