# Echo on Nim's asyncdispatch, without its buffers (a buffered recv waits for all that it asks for): twelve clients in one loop, each of which sends while it receives.
import std/[asyncdispatch, asyncnet, os, strutils, sha1]

const port = Port(7042)

proc message(n, i: int): string =
  ($n & "-" & $i & ";").repeat(1 + (i * 37) mod 4000)

proc serve(peer: AsyncSocket) {.async.} =
  while true:
    let said = await peer.recv(65536)
    if said.len == 0: break
    await peer.send(said)
  peer.close()

proc server() {.async.} =
  let listener = newAsyncSocket(buffered = false)
  listener.setSockOpt(OptReuseAddr, true)
  listener.bindAddr(port, "127.0.0.1")
  listener.listen()
  while true:
    asyncCheck serve(await listener.accept())

proc sendAll(s: AsyncSocket, n: int) {.async.} =
  for i in 0 ..< 150:
    await s.send(message(n, i))

proc client(n: int): Future[string] {.async.} =
  let s = newAsyncSocket(buffered = false)
  await s.connect("127.0.0.1", port)
  let sending = sendAll(s, n)
  var all = ""
  for i in 0 ..< 150:
    let want = message(n, i)
    var got = ""
    while got.len < want.len:
      let more = await s.recv(want.len - got.len)
      doAssert more.len > 0
      got.add more
    doAssert got == want
    all.add $secureHash(got)
  await sending
  s.close()
  return $secureHash(all)

if paramStr(1) == "server":
  waitFor server()
else:
  var all: seq[Future[string]]
  for n in 0 ..< 12: all.add client(n)
  echo (waitFor all(all)).join(" ")
