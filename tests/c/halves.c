/* Owns: one direction of a connection ends, by a shutdown of either kind, and what the other direction goes on to do meanwhile. */
#include "mortal.h"

static char buf[MIB];

/* ---- our own end of receiving is no end of the peer's ---- */

enum { PAIRS = 250, AHEAD = 1000, LARGE = 8 * MIB };

/* Receiving stays on TCP by its low-water mark, and sending goes to memory. What was sent lies unread there. */
static void on_tcp_b(void) {
    int fd = conn_cold();
    sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 2);
    for (int i = 0; i < PAIRS; i++) {
        put(fd, buf, 64);
        if (get(fd, buf, 64) != 64)
            die("early end");
    }
    put(fd, buf, AHEAD);
    meet_settled();
    R(shutdown(fd, SHUT_RD));
    R(recv(fd, buf, 10, 0));
    say("%s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    R(send(fd, "still", 5, MSG_NOSIGNAL));
    R(recv(fd, buf, 10, 0));
    meet();
    meet_settled(); /* the peer has sent nevertheless */
    R(recv(fd, buf, 10, 0));
    R(recv(fd, buf, 10, 0));
    R(shutdown(fd, SHUT_WR));
    meet();
}
static void on_tcp_a(void) {
    int fd = conn_cold();
    for (int i = 0; i < PAIRS; i++) {
        if (get(fd, buf, 64) != 64)
            die("early end");
        put(fd, buf, 64);
    }
    meet_settled();
    meet();
    say("%zu", get(fd, buf, AHEAD + 5));
    R(send(fd, "hello", 5, 0));
    meet_settled();
    R(recv(fd, buf, 10, 0));
    meet();
}

/* A sender that receives no more hears of the peer's death by what it sends. */
static void quiet(int fd) {}
static void dead_reader_b(void) { mortal(quiet); }
static void dead_reader_a(void) {
    int fd = conn();
    R(shutdown(fd, SHUT_RD));
    kill_peer();
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    settle();
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
}

/* It waits for room as others do, and stays where it is. */
static void slow_reader_b(void) {
    int fd = conn();
    R(shutdown(fd, SHUT_RD));
    put_stream(fd, LARGE, 3);
    payload(LARGE);
    R(shutdown(fd, SHUT_WR));
    meet();
}
static void slow_reader_a(void) {
    int fd = conn();
    uint64_t at = 0;
    int good = 1;
    for (ssize_t n; (n = recv(fd, buf, 64 * KIB, 0)) > 0; at += n) {
        good = good && matches(buf, n, at, 3);
        usleep(500);
    }
    say("%llu, whole %d", (unsigned long long)at, good);
    meet();
}

const struct test tests[] = {{"own_end_on_tcp", on_tcp_a, on_tcp_b, COLD | SWITCHES},
                             {"dead_reader", dead_reader_a, dead_reader_b, 0},
                             {"slow_reader", slow_reader_a, slow_reader_b, WHOLE},
                             {0}};
