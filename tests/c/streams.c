/* Owns: what must hold when a connection moves between TCP and memory in the middle of use: under
 * Nagle and cork, with sizes from one byte up, with waiters of every kind, with many connections.
 * These are the cases that SMCR_FLIP is for. */
#include "case.h"

static char buf[256 * KIB];

/* Both directions from one loop, while sizes wander from 1 byte to 128 KB; now and then a peek. */
static void wander(int fd, int more) {
    enum { TOTAL = 12 * MIB };
    unsigned mine = is_a ? 61 : 62, theirs = is_a ? 62 : 61, r = mine;
    uint64_t sent = 0, got = 0;
    nonblocking(fd, 1);
    for (int turn = 0; sent < TOTAL || got < TOTAL; turn++) {
        unsigned most = 1u << (turn / 20 % 18);
        if (sent < TOTAL) {
            size_t len = rnd(&r) % most + 1;
            if (len > TOTAL - sent)
                len = TOTAL - sent;
            fill(buf, len, sent, mine);
            ssize_t n = send(fd, buf, len, MSG_NOSIGNAL | (more && rnd(&r) % 3 ? MSG_MORE : 0));
            if (n < 0 && errno != EAGAIN)
                die("send");
            sent += n > 0 ? n : 0;
            if (sent == TOTAL) { /* out with what is held back */
                sol_int(fd, IPPROTO_TCP, TCP_CORK, 0);
                sol_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
            }
        }
        if (got < TOTAL) {
            int peek = rnd(&r) % 9 == 0;
            ssize_t n = recv(fd, buf, rnd(&r) % most + 1, peek ? MSG_PEEK : 0);
            if (n == 0 || (n < 0 && errno != EAGAIN))
                die("recv");
            if (n > 0 && !matches(buf, n, got, theirs))
                die("bytes differ");
            if (n > 0 && !peek)
                got += n;
        }
        if (turn % 7 == 0)
            events(fd, (got < TOTAL ? POLLIN : 0) | (sent < TOTAL ? POLLOUT : 0), 1);
    }
    payload(TOTAL);
    say("%d both ways", TOTAL);
    meet();
}
static void plain(void) { wander(conn(), 0); }
static void nodelay(void) {
    int fd = conn();
    sol_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    wander(fd, 0);
}
static void more(void) { wander(conn(), 1); }
static void cork(void) {
    int fd = conn();
    sol_int(fd, IPPROTO_TCP, TCP_CORK, 1);
    wander(fd, 0);
}
static void cold(void) { wander(conn_cold(), 0); }
static void peer_small_buffers(void) {
    int fd = conn();
    sol_int(fd, SOL_SOCKET, SO_RCVBUF, 64 * KIB);
    sol_int(fd, SOL_SOCKET, SO_SNDBUF, 64 * KIB);
    wander(fd, 0);
}

/* Records of random length with their length and number before them, answered one by one. */
static void records(void) {
    int fd = conn();
    unsigned r = 99;
    static char record[100 * KIB];
    long all = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        uint32_t len = rnd(&r) % 10 ? rnd(&r) % 500 : rnd(&r) % sizeof record, head[2] = {i, len};
        if (is_a) {
            fill(record, len, i, 5);
            struct iovec v[2] = {{head, sizeof head}, {record, len}};
            ssize_t n = writev(fd, v, 2);
            if (n < 0)
                die("writev");
            if ((size_t)n < sizeof head + len)
                put(fd, record + n - sizeof head, sizeof head + len - n);
            if (recv(fd, head, 4, MSG_WAITALL) != 4 || head[0] != i)
                die("answer");
        } else {
            if (recv(fd, head, sizeof head, MSG_WAITALL) != sizeof head || head[0] != i)
                die("head");
            if (len && recv(fd, record, len, MSG_WAITALL) != (ssize_t)len)
                die("body");
            if (!matches(record, len, i, 5))
                die("bytes differ");
            put(fd, &i, 4);
        }
        all += len;
    }
    payload(all / 2);
    say("%ld bytes", all);
    meet();
}

/* Many connections at once, from one epoll loop, each with a stream of its own both ways. */
enum { MANY = 24, EACH = 700 * KIB };
static void many(void) {
    static int fd[MANY];
    static uint64_t sent[MANY], got[MANY];
    int l = is_a ? listen_on(PORT) : -1, ep = epoll_create1(0), open = MANY;
    meet();
    for (int i = 0; i < MANY; i++) {
        fd[i] = is_a ? accept_from(l) : dial(PORT);
        warm(fd[i]);
        nonblocking(fd[i], 1);
        struct epoll_event e = {EPOLLIN | EPOLLOUT | (i % 2 ? EPOLLET : 0), {.u32 = i}};
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd[i], &e));
    }
    unsigned r = is_a;
    while (open > 0) {
        struct epoll_event e[8];
        int n = epoll_wait(ep, e, 8, 20000);
        if (n <= 0)
            die("epoll_wait");
        for (int k = 0; k < n; k++) {
            int i = e[k].data.u32;
            int s = fd[i], mine = i * 2 + is_a, theirs = i * 2 + !is_a, ended = 0;
            for (;;) {
                ssize_t m = recv(s, buf, rnd(&r) % 50000 + 1, 0);
                if (m < 0 && errno == EAGAIN)
                    break;
                if (m < 0 || !matches(buf, m, got[i], theirs))
                    die("recv");
                if (m == 0) {
                    ended = 1;
                    break;
                }
                got[i] += m;
            }
            while (sent[i] < EACH) {
                size_t len = rnd(&r) % 50000 + 1;
                if (len > EACH - sent[i])
                    len = EACH - sent[i];
                fill(buf, len, sent[i], mine);
                ssize_t m = send(s, buf, len, MSG_NOSIGNAL);
                if (m < 0 && errno == EAGAIN)
                    break;
                if (m < 0)
                    die("send");
                sent[i] += m;
                if (sent[i] == EACH) {
                    struct epoll_event in = {EPOLLIN | (i % 2 ? EPOLLET : 0), {.u32 = i}};
                    MUST(epoll_ctl(ep, EPOLL_CTL_MOD, s, &in));
                    MUST(shutdown(s, SHUT_WR));
                }
            }
            if (ended && sent[i] == EACH) {
                if (got[i] != EACH)
                    die("early end");
                MUST(epoll_ctl(ep, EPOLL_CTL_DEL, s, NULL));
                close(s);
                open--;
            }
        }
    }
    payload((uint64_t)MANY * EACH);
    say("%d streams of %d both ways", MANY, EACH);
    meet();
}

/* Short connections, too short to be worth anything; every byte arrives, and every end. */
static void short_ones(void) {
    int l = is_a ? listen_on(PORT) : -1;
    meet();
    long all = 0;
    for (int i = 0; i < 400; i++) {
        int fd = is_a ? accept_from(l) : dial(PORT);
        if (!is_a) {
            put(fd, "q", 1);
            all += get(fd, buf, 100);
        } else {
            if (get(fd, buf, 1) != 1)
                die("question");
            put(fd, "answer", 6);
        }
        close(fd);
    }
    say("%ld", all);
    meet();
}

/* One thread has both ends, and the connecting one only receives. */
static void from_itself(void) {
    int listener = listen_on(PORT), to = dial(PORT), fd = accept_from(listener);
    long all = 0;
    for (int i = 0; i < 100; i++) {
        memset(buf, i, 1000);
        put(fd, buf, 1000);
        memset(buf, 0, 1000);
        all += get(to, buf, 1000);
        for (int k = 0; k < 1000; k++)
            if (buf[k] != i)
                die("other bytes");
    }
    say("%ld", all);
    meet();
}

const struct test tests[] = {{"wander", plain, plain, WHOLE},
                             {"wander_nodelay", nodelay, nodelay, WHOLE},
                             {"wander_more", more, more, 0},
                             {"wander_cork", cork, cork, 0},
                             {"wander_cold", cold, cold, COLD | SWITCHES},
                             {"wander_small_buffers", peer_small_buffers, peer_small_buffers, 0},
                             {"records", records, records, WHOLE},
                             {"many", many, many, WHOLE},
                             {"from_itself", from_itself, meet, COLD | SWITCHES},
                             {"short", short_ones, short_ones, COLD},
                             {0}};
