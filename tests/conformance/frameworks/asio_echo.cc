/* Owns: an echo server and six clients on Asio: edge-triggered sets, four threads that wait and write in turn, readers that take
 * their time. Run by tools.py, the client with an argument. */
#include <asio.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>
using asio::ip::tcp;
/* Sends back what comes, and reads on only when it is sent. */
struct Echo : std::enable_shared_from_this<Echo> {
    tcp::socket s;
    std::vector<char> buf = std::vector<char>(1 << 18);
    explicit Echo(tcp::socket t) : s(std::move(t)) {}
    void read() {
        s.async_read_some(asio::buffer(buf), [me = shared_from_this()](asio::error_code e, size_t n) {
            if (!e)
                asio::async_write(me->s, asio::buffer(me->buf, n), [me](asio::error_code e, size_t) { if (!e) me->read(); });
        });
    }
};
static void serve(tcp::acceptor &a) {
    a.async_accept([&a](asio::error_code e, tcp::socket s) {
        if (!e)
            std::make_shared<Echo>(std::move(s))->read();
        serve(a);
    });
}
/* One thread's worth of asking: writes on and on, reads later and in its own time. */
struct Ask : std::enable_shared_from_this<Ask> {
    enum { TOTAL = 24 << 20 };
    tcp::socket s;
    asio::steady_timer pause;
    std::vector<char> out = std::vector<char>(300000), in = std::vector<char>(200000);
    size_t sent = 0, got = 0, seed;
    unsigned sum = 0;
    Ask(asio::io_context &io, size_t n) : s(asio::make_strand(io)), pause(s.get_executor()), seed(n) {}
    static char at(size_t seed, size_t i) { return (char)((i * 2654435761u >> 13) + seed); }
    void write() {
        size_t n = std::min(out.size(), TOTAL - sent);
        if (n == 0)
            return;
        for (size_t i = 0; i < n; i++)
            out[i] = at(seed, sent + i);
        asio::async_write(s, asio::buffer(out, n), [me = shared_from_this()](asio::error_code e, size_t n) { if (e) std::abort(); me->sent += n; me->write(); });
    }
    void read() {
        s.async_read_some(asio::buffer(in), [me = shared_from_this()](asio::error_code e, size_t n) {
            if (e)
                std::abort();
            for (size_t i = 0; i < n; i++) {
                if (me->in[i] != at(me->seed, me->got + i))
                    std::abort();
                me->sum = me->sum * 31 + (unsigned char)me->in[i];
            }
            if ((me->got += n) == TOTAL)
                return;
            if (me->got / 1000000 == (me->got - n) / 1000000)
                return me->read();
            me->pause.expires_after(std::chrono::milliseconds(3 + me->seed));
            me->pause.async_wait([me](asio::error_code) { me->read(); });
        });
    }
};
int main(int argc, char **argv) {
    asio::io_context io;
    tcp::endpoint at(asio::ip::address_v4::loopback(), 7116);
    std::unique_ptr<tcp::acceptor> a;
    std::vector<std::shared_ptr<Ask>> asks;
    if (argc > 1) {
        for (int i = 0; i < 6; i++) {
            asks.push_back(std::make_shared<Ask>(io, i));
            asks[i]->s.connect(at);
            asio::post(asks[i]->s.get_executor(), [k = asks[i]] { k->write(); k->read(); });
        }
    } else {
        a = std::make_unique<tcp::acceptor>(io, at);
        serve(*a);
    }
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&io] { io.run(); });
    for (auto &t : threads)
        t.join();
    for (auto &k : asks)
        std::printf("%zu %zu %x\n", k->sent, k->got, k->sum);
}
