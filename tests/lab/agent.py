"""The guest's end of the command channel: a virtio port that carries one JSON object per line.

    {"id": N, "run": "shell text", "env": {...}}   starts it in a session of its own
    {"id": N, "kill": SIGNAL}                      signals that whole session
    {"id": N, "input": "text"}                     writes to its standard input
    {"stood": true}                                asks for how long this guest has stood still at most since it was asked last
    {"off": true}                                  ends the agent, and with it the guest
and answers {"ready": true}, {"id": N, "out": "text"}, {"id": N, "rc": STATUS}, {"stood": SECONDS}.
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
    jobs, pending, over, stood = {}, b"", asyncio.Event(), 0.0

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

    async def beat():
        """Each moment in which this does not run is one in which the processors of this guest did not, or were all taken."""
        nonlocal stood
        while True:
            began = loop.time()
            await asyncio.sleep(0.1)
            stood = max(stood, loop.time() - began - 0.1)

    def handle(message):
        nonlocal stood
        if message.get("off"):
            over.set()
        elif "stood" in message:
            say(stood=stood)
            stood = 0.0
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
    beats = loop.create_task(beat())
    say(ready=True)
    await over.wait()
    beats.cancel()
    for job in jobs.values():
        if job.returncode is None:
            try:
                os.killpg(job.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


asyncio.run(main())
