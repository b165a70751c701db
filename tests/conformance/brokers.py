"""Message brokers and what coordinates them. Each job is written as those of programs.py. Called by run.py, inside a `Bed`."""

import importlib.util
import textwrap

from bed import Skip, need


def mosquitto(bed):
    need("/usr/sbin/mosquitto", "mosquitto_pub", "mosquitto_sub")
    (bed.work / "m.conf").write_text("listener 7027 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
    bed.server("/usr/sbin/mosquitto", "-c", bed.work / "m.conf", port=7027)
    lines = "".join(f"{i} {'m%d' % i * 40}\n" for i in range(20000)).encode()
    (bed.work / "lines").write_bytes(lines)
    return bed.client("sh", "-c", textwrap.dedent("""
        for n in 1 2 3; do mosquitto_sub -p 7027 -q 1 -t t -C 20000 >out$n & done
        sleep 1
        mosquitto_pub -p 7027 -q 1 -t t -l <lines
        wait
        cat out1 out2 out3 | sha256sum
    """))


def rabbitmq(bed):
    need("/usr/sbin/rabbitmq-server")
    env = {"RABBITMQ_MNESIA_BASE": bed.work / "mnesia", "RABBITMQ_LOG_BASE": bed.work, "RABBITMQ_NODE_PORT": "7028",
           "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODENAME": "conformance@localhost", "HOME": bed.work,
           "RABBITMQ_ENABLED_PLUGINS_FILE": "/dev/null", "RABBITMQ_DIST_PORT": "7029"}
    bed.server("/usr/lib/rabbitmq/bin/rabbitmq-server", env={k: str(v) for k, v in env.items()}, port=7028)
    return bed.client("/usr/bin/python3", "-c", textwrap.dedent("""
        import hashlib, pika
        c = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", 7028)); ch = c.channel(); ch.queue_declare("q")
        h = hashlib.sha256()
        for i in range(3000):
            ch.basic_publish("", "q", (b"%d;" % i) * 300)
        for method, _, body in ch.consume("q", auto_ack=True):
            h.update(body)
            if method.delivery_tag == 3000:
                break
        print(h.hexdigest()); c.close()
    """))


def zookeeper(bed):
    """Three servers that elect one and agree on each change; one is stopped on the way."""
    need("java", "/usr/share/java/zookeeper.jar")
    if importlib.util.find_spec("kazoo") is None:
        raise Skip("not installed: python3-kazoo")
    servers = []
    for i in (1, 2, 3):
        data = bed.work / f"zk{i}"
        data.mkdir()
        (data / "myid").write_text(f"{i}\n")
        peers = "\n".join(f"server.{n}=127.0.0.1:{7050 + n}:{7060 + n}" for n in (1, 2, 3))
        (bed.work / f"zk{i}.cfg").write_text(f"tickTime=500\ninitLimit=20\nsyncLimit=20\ndataDir={data}\nclientPort={7040 + i}\n"
                                             f"clientPortAddress=127.0.0.1\nadmin.enableServer=false\n{peers}\n")
        servers.append(bed.server("java", "-Xmx128m", "-cp", f"{bed.work}:/usr/share/java/zookeeper.jar",
                                  "org.apache.zookeeper.server.quorum.QuorumPeerMain", bed.work / f"zk{i}.cfg"))
    for i in (1, 2, 3):
        bed.wait_for(7040 + i, 60)
    return bed.client("/usr/bin/python3", "-c", textwrap.dedent("""
        import hashlib, sys
        from kazoo.client import KazooClient
        clients = [KazooClient(f"127.0.0.1:{7040 + i}", timeout=20, connection_retry={"max_tries": -1}) for i in (1, 2, 3)]
        for c in clients:
            c.start(60)
        told = []
        clients[0].ensure_path("/data")
        clients[2].ChildrenWatch("/data", lambda names: told.append(len(names)))
        value = lambda i: hashlib.sha512(b"%d" % i).digest() * (i % 500 + 1)
        for i in range(600):
            clients[i % 2].create(f"/data/n{i:04}", value(i))
        for r in [clients[1].set_async(f"/data/n{i:04}", value(i + 1)) for i in range(600)]:
            r.get(60)
        clients[2].sync("/data")
        h = hashlib.sha256()
        for name in sorted(clients[2].get_children("/data")):
            data, stat = clients[2].get(f"/data/{name}")
            h.update(b"%s %d " % (name.encode(), stat.version) + data)
        assert told, "the watch told of nothing"
        print(h.hexdigest())
        for c in clients:
            c.stop()
    """))


def kafka(bed):
    """The broker that librdkafka brings, and kcat as producer and as consumer."""
    need("cc", "kcat", "/usr/include/librdkafka/rdkafka_mock.h")
    (bed.work / "broker.c").write_text(textwrap.dedent("""
        #include <librdkafka/rdkafka.h>
        #include <librdkafka/rdkafka_mock.h>
        #include <stdio.h>
        #include <unistd.h>
        int main(void) {
            char why[256];
            rd_kafka_t *own = rd_kafka_new(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), why, sizeof why);
            rd_kafka_mock_cluster_t *c = rd_kafka_mock_cluster_new(own, 3);
            rd_kafka_mock_topic_create(c, "t", 4, 1);
            FILE *f = fopen("brokers.new", "w");
            fputs(rd_kafka_mock_cluster_bootstraps(c), f);
            fclose(f);
            rename("brokers.new", "brokers");
            pause();
        }
    """))
    bed.quiet("cc", "-o", "broker", "broker.c", "-lrdkafka")
    bed.server(bed.work / "broker")
    (bed.work / "lines").write_text("".join(f"{i}:{'m%d' % i * 30}\n" for i in range(50000)))
    return bed.client("sh", "-ec", textwrap.dedent("""
        for n in $(seq 100); do [ -e brokers ] && break; sleep 0.1; done
        kcat -q -P -b $(cat brokers) -t t -K: -X acks=all -X linger.ms=1 <lines
        kcat -q -C -b $(cat brokers) -t t -o beginning -e -K: | sort | sha256sum
    """))


PROGRAMS = [mosquitto, rabbitmq, zookeeper, kafka]
