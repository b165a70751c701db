"""The scoreboard as Markdown, docs/compatibility.md. Called by run.py."""

import pathlib
import re
import subprocess

import floors

FELL = "FELL BACK"
TESTS = pathlib.Path(__file__).resolve().parents[1]

HEAD = """# Compatibility

Written by `make conformance`; do not edit. Each program and each test suite runs in a network namespace of its own, natively and
with `LD_PRELOAD=libsmcr.so`; checksums of all data, counts, and the names of the tests that passed are compared. *Off TCP* is what
did not cross the loopback device under the library, against the native run of the same job, headers, start and all bytes before the
switch included. A row that is the same because everything stayed on TCP shows 0 %. *Strict* is both ends with `SMCR_STRICT=1`: a
connection that should have left TCP and does not is reset. How servers end that are asked to end is compared as well. Each row has a
floor (`tests/conformance/floors.py`), below which it is *FELL BACK*, a failure as any other.

Last run on kernel {machine}; {date}. The last column is the commit of the library that the row was run with.

"""

# Programs of which less than 95 % left TCP, and why.
WHY = {
    "redis_cluster": "the cluster is made, and the keys are moved, by many connections that end soon; and what each of the three servers tells the others",
    "postgresql_replication": "pg_basebackup forks a process that keeps its connection open, which stays on TCP (`fork-shared`); the stream of changes leaves it",
    "mariadb_replication": "what each new client sends by its first write, half a megabyte, is in TCP before there is anything else; the stream of changes leaves it",
    "mariadb_pool": "the table is read and written by clients that end soon",
    "dante": "its processes pass each connection on to one another: one that is passed while the one before holds it yet stays on TCP (`passed`)",
    "shadowsocks": "each file is a new connection at four ends",
    "hitch": "each file of those that come at once is a new connection, whose handshake is on TCP",
    "mariadb": "the result of one query, 0.8 MB, and one INSERT of 0.2 MB are sent at once on connections that are new",
    "openssl_tls": "the server sends at once, and what it has put into the socket buffers before the switch goes through TCP: 2 to 4 of 30 MB",
    "python_http": "one of twelve large files, if it is answered before the switch: it fits into the socket buffers",
    "squid_nginx": "one of eight large files, if it is answered before the switch: it fits into the socket buffers",
    "git_daemon": "the program that answers has the connection as stdin and stdout, and those stay on TCP",
    "inetd": "the program that answers has the connection as stdin and stdout, and those stay on TCP",
    "postgresql": "12 and 18 MB of COPY, each at once on a connection that is new",
    "haproxy_reload": "a new connection for each file, at both sides of the proxy: what is sent before the switch",
    "socket_activation": "a new connection for each file: what is sent before the switch",
    "socat_tcp": "one of the two servers runs `SYSTEM:`, whose child holds the connection as long as it lives (reason `fork-shared`)",
    "tinyproxy_nginx": "a connection for each file: what fits into the socket buffers before the switch is all there is. With 546f919, on a busy machine, 17 of 328 repetitions with both ends had a large file cut short: a server that closes while the other end begins to leave TCP reset it; with e445a16, as busy, none of 350",
    "kafka": "fetches of 1 MB from each of four partitions are answered at once on connections that are new, of 7 MB in all",
    "vsftpd": "one process takes the connection, another, in a network namespace and a sandbox of its own, serves it: it stays on TCP",
    "openldap": "four searches by 15 pages each, of which the first are answered before the switch",
    "bind9": "the transfer of the zone, 2.7 MB, is sent at once on a connection that is new",
    "dovecot": "a login process hands each connection to a process of another user, which cannot answer for it (`uid`)",
    "distcc": "a connection for each file: what fits into the socket buffers before the switch is all there is",
    "gunicorn": "answers of 1 MB on connections that are new, since workers end after 400 requests",
    "uwsgi": "the process in front has a new connection to the workers for each request",
    "php_fpm": "what each of a dozen connections sends before the switch, answers of up to 1 MB among it, of 26 MB in all",
    "nghttpd": "files of 3 MB and many small ones at once on connections that are new",
    "gdbserver": "it has SIGIO tell it of what comes (O_ASYNC), which keeps a connection on TCP",
    "rsyslog": "three senders with 1.1 MB each, at once on connections that are new",
    "postfix_mail": "eight connections with 1.1 MB each: what is sent before the switch",
    "iperf2": "six connections with 40 to 60 MB each, sent at once: what the socket buffers take before the switch",
    "nuttcp": "five connections with 20 to 60 MB each, sent at once: what the socket buffers take before the switch",
    "asio": "six connections with 24 MB each way, sent at once: what the socket buffers take before the switch",
    "gearman": "a new connection for each request of 70 KB to 2.8 MB: what fits into the socket buffers before the switch",
    "pgbouncer_takeover": "connections that were in memory are passed on (`passed`) and stay on TCP from then on; new ones leave it",
    "nginx_upgrade": "connections of 1.4 MB that end: below the 2 MiB that a port of short connections asks for; clients fetch as often as they can",
    "kamailio": "one process passes each connection to another for every request (`passed`): those stay on TCP",
    "coturn": "one of its two ends is UDP",
    "nfs_ganesha": "twelve files of 1 to 8 MB, each at once on a connection that is new",
    "qemu_nbd": "three copies of a disk by eight connections each, of which the first requests are answered before the switch",
    "thrift": "180 connections with 100 calls each, of which the first few are answered before the switch",
    "ice": "24 connections, each with calls of 300 KB that are sent at once",
    "proton": "the first messages of ten clients, half a megabyte, of 6 MB in all",
    "zeromq": "the flood of 5 MB begins on a new connection",
    "openssh": "the child that authenticates shares the connection with its parent; the stream moves some milliseconds after it has begun",
}

NOTES = """
Suites run with `SMCR_SWITCH_OPS=1`, so that connections go to memory after the first operation; by default most of a suite's
connections are too short to ever leave TCP. *Off TCP* is of one run each, of three and the best of them where the first
is below the floor; a suite that fills a socket until it blocks sends another amount each
time (CPython's test_ssl natively: 0.7 to 2.2 MB). A test is lost when it passes in each of three native runs and in none of three under the library.
*By chance* names those that were missing at first and are not lost, with how often they passed in those runs.

Where hardly anything leaves TCP:

{few}

redis's integration/replication, libmicrohttpd's testcurl and memcached's t passed 1, 1 and 2 fewer tests in the first of several repetitions, and lost none that
was missing in each. Why is not known. Repeated on a busy machine, testcurl passed 70 in each of three native runs and of three under the library.

socat's ENV_OPENSSL_CLIENT_X509_ISSUER lets a `sleep 1` and an `alarm(1)` run against each other, and wants the first to end first. Over TCP the end of the stream,
which starts the second, waits 45 ms for a delayed acknowledgement. In memory nothing does, and either may be first: alone the test passed in 2 of 7 runs, and
on a busy machine in 2 of 2.

redis's integration/psync2-reg and psync2 draw at random which replica follows which, and how often: their names are counted once, without numbers.

stress-ng does as many operations in both runs, where it was as many seconds before 2026-11-24: with more or less done under the library, bytes are no share.

What is known to differ, and why, is listed in [interpose.md](interpose.md).
"""


def markdown(found, order, earlier):
    """The scoreboard, in this order of names; a row that was not run here is as the earlier text has it, if it has it."""
    known = {name_in(line): line + "\n" for line in earlier.splitlines() if line.startswith("| ")}
    table = {}
    for kind, line_of in (("programs", program_line), ("suites", suite_line)):
        for row in found[kind]:
            line = line_of(row)
            if not row["verdict"].startswith("not run") or name_in(line) not in known:
                table[name_in(line)] = line
    lines = {kind: [{**known, **table}[name] for name in order[kind] if name in table or name in known] for kind in order}
    void = floors.SUITES_ON_TCP[floors.NONE]
    lines["suites"] = [line.replace("|  |", "| no TCP |") if name_in(line) in void else line for line in lines["suites"]]
    text = HEAD.format(**found) + totals(lines)
    if lines["programs"]:
        text += "## Programs\n\n| program | both ends | server only | client only | strict | off TCP | library |\n|---|---|---|---|---|---|---|\n"
        text += "".join(lines["programs"])
        low = [cells for cells in map(cells_of, lines["programs"]) if percent(cells[5]) is not None and percent(cells[5]) < 95]
        if low:
            text += "\nLess than 95 % left TCP, and why:\n\n"
            text += "".join(f"- {cells[0]}: {WHY.get(cells[0].replace(' ', '_'), 'not known')}.\n" for cells in low)
    if lines["suites"]:
        text += "\n## Suites\n\n| suite | passed natively | passed under the library | lost | off TCP | library |\n|---|---|---|---|---|---|\n"
        text += "".join(lines["suites"])
    few = ";\n".join(f"- {why}: {', '.join(names)}" for why, names in floors.SUITES_ON_TCP.items()) + "."
    return text + NOTES.replace("{few}", few)


def totals(lines):
    """What there is in all, and how much of it holds."""
    programs, suites = map(cells_of, lines["programs"]), map(cells_of, lines["suites"])
    programs = [cells for cells in programs if not cells[1].startswith("not run")]
    suites = [cells for cells in suites if cells[1].isdigit() and int(cells[1])]
    ends = [cell for cells in programs for cell in cells[1:5] if cell]
    natively, here = (sum(int(cells[n]) for cells in suites if cells[n].isdigit()) for n in (1, 2))
    sound = sum(cells[3].startswith("-") and FELL not in cells[4] for cells in suites)
    lost = sum(len(cells[3].split(",")) for cells in suites if not cells[3].startswith("-"))
    cases, known = twice()
    rows = [("run-twice cases (`make test`)", cases, cases, cases - known), ("programs", len(lines["programs"]), len(programs),
             sum(set(cells[1:5]) <= {"same", ""} and FELL not in cells[5] for cells in programs)),
            ("programs, by ends", 4 * len(lines["programs"]), len(ends), ends.count("same")), ("suites", len(lines["suites"]), len(suites), sound)]
    text = "| | in all | natively | the same under the library | share |\n|---|---|---|---|---|\n"
    text += "".join(f"| {what} | {all_of:,} | {ran:,} | {same:,} | {100 * same / ran:.1f} % |\n" for what, all_of, ran, same in rows if ran)
    shares = [percent(cells[5]) for cells in programs if percent(cells[5]) is not None]
    text += (f"\nIn the suites {natively:,} tests pass natively and {here:,} under the library ({lost} lost). Of {len(shares)} programs, "
             f"{sum(s >= 95 for s in shares)} have 95 % of their bytes off TCP and {sum(s >= 50 for s in shares)} have half of them. All run-twice cases hold natively, or "
             f"`make test` fails; the {known} that are known to differ are in [interpose.md](interpose.md).\n\n")
    return text


def twice():
    """How many run-twice cases there are, and how many are known to differ: from the tables of their sources."""
    source = (TESTS / "tests/twice.rs").read_text()
    programs, known = (re.findall(r'"([\w:]+)"', re.search(rf"const {table}: .*?\];", source, re.S)[0]) for table in ("PROGRAMS", "KNOWN"))
    cases = 0
    for program in programs:
        table = (TESTS / f"c/{program}.c").read_text().partition("const struct test tests[]")[2].partition("{0}")[0]
        cases += sum("ROLE" not in entry for entry in re.findall(r'\{"[^}]*', table))
    for script in re.findall(r'"(\w+\.py)"', source[source.index("const SCRIPTS"):source.index("fn main")]):
        said = subprocess.run(["/usr/bin/python3", TESTS / "py" / script, "list"], capture_output=True, text=True).stdout
        cases += len(said.splitlines())
    return cases, len(known)


def program_line(row):
    modes = " | ".join(cell(row, mode) for mode in ("both", "server", "client", "strict"))
    return f"| {row['name'].replace('_', ' ')} | {modes} | {share(row)} | {row['revision']} |\n"


def suite_line(row):
    native, both = count(row["native"]), count(row["both"])
    lost = ", ".join(row.get("lost") or ()) or (row["verdict"] if row["verdict"].startswith(("DIFFERS", "not run")) else "-")
    chance = ", ".join(f"{test} ({how})" for test, how in row.get("chance", {}).items())
    return f"| {row['name']} | {native} | {both} | {lost}{' by chance: ' if chance else ''}{chance.replace('|', '/')} | {share(row)} | {row['revision']} |\n"


def percent(cell):
    found = re.match(r"-?[\d.]+", cell)
    return float(found[0]) if found else None


def name_in(line):
    return cells_of(line)[0]


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def cell(row, mode):
    if row["verdict"].startswith("not run"):
        return row["verdict"]
    found = row["modes"].get(mode)
    if found is None:
        return ""
    if found.get("result") != row["modes"]["native"]["result"]:
        return found.get("failed", "other bytes")
    return "; ".join(row.get("ends", {}).get(mode, ())) or "same"


def count(found):
    return len(found["result"]["passed"]) if "result" in found else "-"


def share(row):
    fell = f" {FELL}" if row["verdict"].startswith("FELL BACK") else ""
    if row.get("off") is None:
        return ("no TCP" if row.get("native", {}).get("lo") == 0 else "") + fell
    return f"{100 * row['off']:.1f} %{fell}"
