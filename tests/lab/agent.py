"""The guest's end of the command channel: a virtio port that carries one JSON object per line.

    {"id": N, "run": "shell text", "env": {...}}   starts it in a session of its own
    {"id": N, "kill": SIGNAL}                      signals that whole session
    {"id": N, "input": "text"}                     writes to its standard input
    {"off": true}                                  ends the agent, and with it the guest
and answers {"ready": true}, {"id": N, "out": "text"}, {"id": N, "rc": STATUS}.
"""
import asyncio
import codecs
import glob
import json
import os
import signal


async def main():
    port = os.open(glob.glob("/dev/vport*")[0], os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    loop = asyncio.get_running_loop()
    jobs, pending, over = {}, b"", asyncio.Event()

    def say(**message):
        data = json.dumps(message).encode() + b"\n"
        os.set_blocking(port, True)
        while data:
            data = data[os.write(port, data):]
        os.set_blocking(port, False)

    async def run(number, text, env):
        job = await asyncio.create_subprocess_exec(
            "/bin/bash", "-c", text, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, start_new_session=True, env={**os.environ, **env})
        jobs[number] = job
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        while data := await job.stdout.read(65536):
            say(id=number, out=decode(data))
        say(id=number, rc=await job.wait())

    def handle(message):
        if message.get("off"):
            over.set()
        elif "run" in message:
            loop.create_task(run(message["id"], message["run"], message.get("env", {})))
        elif job := jobs.get(message["id"]):
            if "input" in message:
                job.stdin.write(message["input"].encode())
            else:
                try:
                    os.killpg(job.pid, message["kill"])
                except ProcessLookupError:
                    pass

    def readable():
        nonlocal pending
        try:
            pending += os.read(port, 65536)
        except BlockingIOError:
            return
        *lines, pending = pending.split(b"\n")
        for line in lines:
            handle(json.loads(line))

    loop.add_reader(port, readable)
    say(ready=True)
    await over.wait()
    for job in jobs.values():
        if job.returncode is None:
            try:
                os.killpg(job.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


asyncio.run(main())
