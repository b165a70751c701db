// A server with Thrift's non-blocking server, two threads on sets of their own and four that answer, and six clients at once. Compiled and run by
// threaded.py; Echo.h is made by thrift from `service Echo { binary twice(1: binary data) }`.
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
#include "gen-cpp/Echo.h"
#include <thrift/concurrency/ThreadFactory.h>
#include <thrift/concurrency/ThreadManager.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/server/TNonblockingServer.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TNonblockingServerSocket.h>
#include <thrift/transport/TSocket.h>

using namespace apache::thrift;
const int PORT = 7530;

struct Twice : EchoIf {
    void twice(std::string &answer, const std::string &data) override { answer = data + data; }
};

int serve() {
    auto workers = concurrency::ThreadManager::newSimpleThreadManager(4);
    workers->threadFactory(std::make_shared<concurrency::ThreadFactory>());
    workers->start();
    server::TNonblockingServer server(std::make_shared<EchoProcessor>(std::make_shared<Twice>()), std::make_shared<protocol::TBinaryProtocolFactory>(),
                                      std::make_shared<transport::TNonblockingServerSocket>("127.0.0.1", PORT), workers);
    server.setNumIOThreads(2);
    server.serve();
    return 0;
}

// `calls` calls, with a new connection after each hundred.
void talk(int who, int calls, int &good) {
    unsigned state = who * 7919 + 1;
    for (int call = 0; call < calls;) {
        auto socket = std::make_shared<transport::TSocket>("127.0.0.1", PORT);
        auto framed = std::make_shared<transport::TFramedTransport>(socket);
        EchoClient client(std::make_shared<protocol::TBinaryProtocol>(framed));
        framed->open();
        for (int n = 0; n < 100 && call < calls; n++, call++) {
            state = state * 1103515245 + 12345;
            std::string data((state >> 8) % (call % 50 ? 900 : 400000), '\0');
            for (size_t i = 0; i < data.size(); i++) data[i] = char(state + i * 31);
            std::string answer;
            client.twice(answer, data);
            good += answer == data + data;
        }
        framed->close();
    }
}

int main(int argc, char **) {
    if (argc < 2) return serve();
    std::vector<std::thread> threads;
    std::vector<int> good(6);
    for (int i = 0; i < 6; i++) threads.emplace_back([&good, i] { talk(i, 3000, good[i]); });
    int sum = 0;
    for (int i = 0; i < 6; i++) threads[i].join(), sum += good[i];
    std::printf("%d\n", sum);
}
