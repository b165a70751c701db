"""Twisted, on its default reactor (epoll)."""

import hashlib
import sys

from twisted.internet import protocol, reactor

left = 10


class Echo(protocol.Protocol):
    def dataReceived(self, raw):
        self.transport.write(raw)


class Client(protocol.Protocol):
    def connectionMade(self):
        self.digest, self.turn = hashlib.sha256(), 0
        self.ask()

    def ask(self):
        if self.turn == 200:
            print(self.digest.hexdigest())
            return self.transport.loseConnection()
        self.raw, self.got = b"%d" % self.turn * (1 + (self.turn * 37) % 3000), b""
        self.turn += 1
        self.transport.write(self.raw)

    def dataReceived(self, raw):
        self.got += raw
        if len(self.got) >= len(self.raw):
            assert self.got == self.raw
            self.digest.update(self.got)
            self.ask()

    def connectionLost(self, reason):
        global left
        left -= 1
        if left == 0:
            reactor.stop()


if sys.argv[1] == "server":
    reactor.listenTCP(7040, protocol.Factory.forProtocol(Echo), interface="127.0.0.1")
else:
    for _ in range(left):
        reactor.connectTCP("127.0.0.1", 7040, protocol.ClientFactory.forProtocol(Client))
reactor.run()
