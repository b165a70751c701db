"""aiohttp: a server and a client session that posts over kept connections."""

import asyncio
import hashlib
import sys

from aiohttp import ClientSession, web


async def reverse(request):
    return web.Response(body=(await request.read())[::-1])


async def client():
    digest = hashlib.sha256()
    async with ClientSession() as session:
        for i in range(400):
            async with session.post("http://127.0.0.1:7040/", data=b"%d" % i * (1 + i * 20)) as answer:
                digest.update(await answer.read())
    print(digest.hexdigest())


if sys.argv[1] == "server":
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/", reverse)
    web.run_app(app, host="127.0.0.1", port=7040, print=None)
else:
    asyncio.run(client())
