// A server with Ice's thread pool, whose threads take turns at one set, and clients whose calls are answered out of order. Compiled and run by
// threaded.py; Echo.h is made by slice2cpp from Echo.ice.
#include <Ice/Ice.h>
#include <cstdio>
#include <future>
#include <vector>
#include "Echo.h"

const char *AT = "tcp -h 127.0.0.1 -p 7531";

struct Twice : Test::Echo {
    Ice::ByteSeq twice(Ice::ByteSeq data, const Ice::Current &) override {
        Ice::ByteSeq answer(data);
        answer.insert(answer.end(), data.begin(), data.end());
        return answer;
    }
};

int main(int argc, char *argv[]) {
    Ice::InitializationData data;
    data.properties = Ice::createProperties();
    for (auto pool : {"Ice.ThreadPool.Server", "Ice.ThreadPool.Client"}) {
        data.properties->setProperty(std::string(pool) + ".Size", "4");
        data.properties->setProperty(std::string(pool) + ".SizeMax", "4");
    }
    data.properties->setProperty("Ice.MessageSizeMax", "4096");
    Ice::CommunicatorHolder ice(data);
    if (argc < 2) {
        auto adapter = ice->createObjectAdapterWithEndpoints("Echo", AT);
        adapter->add(std::make_shared<Twice>(), Ice::stringToIdentity("echo"));
        adapter->activate();
        ice->waitForShutdown();
        return 0;
    }
    int good = 0;
    for (int round = 0; round < 40; round++) {
        std::vector<std::pair<Ice::ByteSeq, std::future<Ice::ByteSeq>>> asked;
        std::vector<std::shared_ptr<Test::EchoPrx>> ways;
        for (int i = 0; i < 6; i++)
            ways.push_back(Ice::uncheckedCast<Test::EchoPrx>(ice->stringToProxy(std::string("echo:") + AT)->ice_connectionId(std::to_string(i + round / 10 * 6))));
        for (int i = 0; i < 300; i++) {
            Ice::ByteSeq body((i % 60 ? 700 : 300000) + i);
            for (size_t n = 0; n < body.size(); n++) body[n] = Ice::Byte(n * 31 + i + round);
            auto answer = ways[i % 6]->twiceAsync(body);
            asked.emplace_back(std::move(body), std::move(answer));
        }
        for (auto &[body, answer] : asked) {
            auto said = answer.get();
            good += said.size() == 2 * body.size() && std::equal(body.begin(), body.end(), said.begin()) && std::equal(body.begin(), body.end(), said.begin() + body.size());
        }
        if (round % 10 == 9)
            for (auto &way : ways) way->ice_getConnection()->close(Ice::ConnectionClose::GracefullyWithWait);
    }
    std::printf("%d\n", good);
}
