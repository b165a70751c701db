"""Tornado: a WebSocket with messages of many sizes."""

import asyncio
import hashlib
import sys

import tornado.web
import tornado.websocket


class Reverse(tornado.websocket.WebSocketHandler):
    def on_message(self, raw):
        self.write_message(raw[::-1], binary=True)


async def main():
    if sys.argv[1] == "server":
        tornado.web.Application([("/", Reverse)]).listen(7040, "127.0.0.1")
        await asyncio.Event().wait()
    digest = hashlib.sha256()
    socket = await tornado.websocket.websocket_connect("ws://127.0.0.1:7040/", max_message_size=1 << 24)
    for raw in [*(b"%d" % size * size for size in range(1, 2500, 5)), b"x" * 5_000_000]:
        await socket.write_message(raw, binary=True)
        digest.update(await socket.read_message())
    print(digest.hexdigest())


asyncio.run(main())
