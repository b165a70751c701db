"""gRPC: single calls and a stream both ways (its core sets TCP_INQ and waits in epoll from several threads)."""

import hashlib
import sys
from concurrent import futures

import grpc

ADDRESS = "127.0.0.1:7040"


def same(raw):
    return raw


class Calls(grpc.GenericRpcHandler):
    def service(self, call):
        if call.method == "/t/one":
            return grpc.unary_unary_rpc_method_handler(lambda raw, _: raw[::-1], same, same)
        return grpc.stream_stream_rpc_method_handler(lambda all, _: (raw[::-1] for raw in all), same, same)


if sys.argv[1] == "server":
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Calls(),))
    server.add_insecure_port(ADDRESS)
    server.start()
    server.wait_for_termination()
channel = grpc.insecure_channel(ADDRESS)
one, digest = channel.unary_unary("/t/one", same, same), hashlib.sha256()
for i in range(1500):
    digest.update(one(b"%d" % i * 50, wait_for_ready=True))
for raw in channel.stream_stream("/t/many", same, same)(iter([bytes([i % 256]) * 60000 for i in range(300)])):
    digest.update(raw)
print(digest.hexdigest())
