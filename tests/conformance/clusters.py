"""Servers that talk to each other: what one is told has to arrive at the others. Jobs as in programs.py. Called by run.py, inside a `Bed`."""

import os
import textwrap
import time

from bed import PATIENCE, digest, need, patient
from programs import MIB, postgres_server


def redis_cluster(bed):
    """Three servers with a bus among them; then a quarter of the keys moves from one to another while they are asked for."""
    need("redis-server", "redis-cli", "redis-benchmark")
    ports = (7201, 7202, 7203)
    for port in ports:
        (bed.work / str(port)).mkdir()
        bed.server("redis-server", "--port", port, "--cluster-enabled", "yes", "--cluster-node-timeout", 15000, "--save", "", "--loglevel", "warning",
                   "--dir", bed.work / str(port), port=port)
    bed.client("redis-cli", "--cluster", "create", *[f"127.0.0.1:{p}" for p in ports], "--cluster-yes")
    wait_until(bed, lambda: all(b"cluster_state:ok" in bed.client("redis-cli", "-p", p, "cluster", "info") for p in ports))
    bed.client("redis-benchmark", "-p", 7201, "--cluster", "-c", 12, "-n", 40000, "-d", 512, "-t", "set,get", "-r", 10000, "-q")
    keys = "".join(f"SET k:{i} {'v%d' % i * 20}\n" for i in range(4000)).encode()
    bed.client("redis-cli", "-c", "-p", 7201, stdin=keys)
    one, two = [bed.client("redis-cli", "-p", p, "cluster", "myid").decode().strip() for p in ports[:2]]
    bed.client("redis-cli", "--cluster", "reshard", "127.0.0.1:7201", "--cluster-from", one, "--cluster-to", two, "--cluster-slots", 1400,
               "--cluster-pipeline", 40, "--cluster-yes")
    said = bed.client("redis-cli", "-c", "-p", 7203, stdin="".join(f"GET k:{i}\n" for i in range(4000)).encode())
    lines = [line for line in said.splitlines() if line.startswith(b"v")]
    return f"{len(lines)} {digest(b'|'.join(lines))}"


def postgresql_replication(bed):
    """A base copy, then the stream of changes to a second server, which answers the same as the first."""
    bins = postgres_server(bed)
    sql = lambda port, text: bed.client(f"{bins}/psql", "-h", "127.0.0.1", "-p", port, "-U", "postgres", "-qAtc", text)  # noqa: E731
    sql(7002, "create table t as select i, repeat(md5(i::text), 8) v from generate_series(1, 40000) i")
    standby = bed.work / "standby"
    bed.client(f"{bins}/pg_basebackup", "-h", "127.0.0.1", "-p", 7002, "-U", "postgres", "-D", standby, "-R", "-X", "stream", "-c", "fast")
    bed.quiet("chown", "-R", "postgres", standby)
    bed.server(f"{bins}/postgres", "-D", standby, "-h", "127.0.0.1", "-p", 7204, "-k", "", "-F", port=7204, user="postgres")
    for n in range(20):
        sql(7002, f"insert into t select i, repeat(md5(i::text), 8) from generate_series({40001 + n * 3000}, {43000 + n * 3000}) i")
    sql(7002, "update t set v = v || 'x' where i % 3 = 0")
    at = sql(7002, "select pg_current_wal_lsn()").decode().strip()
    wait_until(bed, lambda: sql(7204, f"select pg_last_wal_replay_lsn() >= '{at}'").strip() == b"t")
    answers = {sql(port, "select count(*), md5(string_agg(v, '' order by i)) from t") for port in (7002, 7204)}
    return " ".join(sorted(a.decode().strip() for a in answers))


def mariadb_server(bed, name, port, *options):
    data = bed.work / name
    data.mkdir()
    bed.quiet("chown", "mysql", data)
    bed.quiet("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=mysql", "--auth-root-authentication-method=normal",
              "--skip-test-db")
    bed.server("/usr/sbin/mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={data}/s", f"--port={port}", "--bind-address=127.0.0.1",
               "--user=mysql", f"--pid-file={data}/pid", *options, port=port)
    return lambda text: bed.client("mariadb", "--no-defaults", "--protocol=tcp", "-h127.0.0.1", f"-P{port}", "-uroot", "-N", "-B",
                                   stdin=text.encode(), seconds=240)


def mariadb_replication(bed):
    """The stream of changes to a second server."""
    need("/usr/sbin/mariadbd", "mariadb", "mariadb-install-db")
    first = mariadb_server(bed, "one", 7206, "--server-id=1", "--log-bin=log")
    second = mariadb_server(bed, "two", 7207, "--server-id=2", "--slave-net-timeout=60")
    first("create user r@'127.0.0.1' identified by 'r'; grant replication slave on *.* to r@'127.0.0.1'; create database d; "
          "create table d.t (i int primary key, v varchar(2000))")
    second("change master to master_host='127.0.0.1', master_port=7206, master_user='r', master_password='r', master_use_gtid=slave_pos; start slave")
    for n in range(12):
        first("insert into d.t values " + ",".join(f"({i},repeat('z{i}',100))" for i in range(n * 1000, n * 1000 + 1000)))
    first("update d.t set v = concat(v, 'x') where i % 3 = 0")
    ask = "select count(*), sum(crc32(v)) from d.t"
    wanted = first(ask)
    wait_until(bed, lambda: b"d" in second("show databases like 'd'") and b"t" in second("show tables from d") and second(ask) == wanted)
    return second(ask).decode().strip()


def glusterfs(bed):
    """A brick over TCP, of which each connection is told once by epoll and armed again, and a file system that writes to it and reads it."""
    need("/usr/sbin/glusterfsd", "fusermount3", "/dev/fuse")
    (bed.work / "brick").mkdir()
    mount = bed.work / "mount"
    mount.mkdir()
    (bed.work / "server.vol").write_text(textwrap.dedent(f"""
        volume posix
          type storage/posix
          option directory {bed.work}/brick
        end-volume
        volume locks
          type features/locks
          subvolumes posix
        end-volume
        volume threads
          type performance/io-threads
          subvolumes locks
        end-volume
        volume server
          type protocol/server
          option transport-type tcp
          option transport.socket.listen-port 7208
          option transport.socket.bind-address 127.0.0.1
          option auth.addr.threads.allow *
          subvolumes threads
        end-volume
    """))
    (bed.work / "client.vol").write_text(textwrap.dedent("""
        volume client
          type protocol/client
          option transport-type tcp
          option remote-host 127.0.0.1
          option remote-port 7208
          option remote-subvolume threads
        end-volume
    """))
    bed.server("/usr/sbin/glusterfsd", "-N", "-f", bed.work / "server.vol", "-l", bed.work / "server.log", port=7208)
    data = bed.file("data", 40 * MIB)
    # The mount is the accelerated client; what copies is not.
    said = bed.client("sh", "-ec", f"""
        /usr/sbin/glusterfs -N -f {bed.work}/client.vol -l {bed.work}/client.log --direct-io-mode=enable {mount} & p=$!
        for n in $(seq {patient(300)}); do grep -q {mount} /proc/mounts && break; sleep 0.1; done
        cp {data} mount/one & cp {data} mount/two & wait %2 %3
        for n in $(seq 200); do echo "file $n" > mount/f$n; done
        ls mount | wc -l; cat mount/f* | sha256sum; sha256sum < mount/one; sha256sum < mount/two
        umount mount; wait $p || true
    """)
    return digest(said) + f" {len(os.listdir(bed.work / 'brick'))}"


def wait_until(bed, holds, seconds=60):
    end = time.monotonic() + seconds * PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"it does not come to that: {bed.tail()}")
        time.sleep(0.2)


PROGRAMS = [redis_cluster, postgresql_replication, mariadb_replication, glusterfs]
