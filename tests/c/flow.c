/* Owns: flow control: partial writes until EAGAIN, blocked writers, send timeouts, streams of many
 * megabytes with random sizes in both directions at once. */
#include "case.h"

static char big[4 * MIB];

/* Fills the pipe of fd until EAGAIN; the total. */
static long stuff(int fd, uint64_t from, unsigned seed) {
    long all = 0;
    for (;;) {
        fill(big, 10007, from + all, seed);
        ssize_t n = send(fd, big, 10007, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            return all;
        if (n <= 0)
            die("stuff");
        all += n;
    }
}

static void tell_long(long v) { tell_pid((pid_t)v); }

static void until_full_a(void) {
    int fd = conn();
    nonblocking(fd, 1);
    uint64_t all = 0;
    for (int round = 0; round < 5; round++) {
        /* Loopback moves bytes on by itself: full is what stays full. */
        long n = stuff(fd, all, 2);
        settle();
        n += stuff(fd, all + n, 2);
        settle();
        n += stuff(fd, all + n, 2);
        say("full: more than 10,000: %d, %s", n > 10000, poll_text(events(fd, POLLOUT, 0)));
        R(send(fd, big, 10, MSG_DONTWAIT));
        R(write(fd, big, 10));
        tell_long(n);
        all += n;
        hear();
        say("%s", poll_text(events(fd, POLLOUT, 5000)));
    }
    R(shutdown(fd, SHUT_WR));
    R(events(fd, POLLIN, -1) & POLLIN);
    meet();
}
static void until_full_b(void) {
    int fd = conn();
    uint64_t all = 0;
    for (int round = 0; round < 5; round++) {
        long n = hear_pid();
        int good = 1;
        for (long o = 0; o < n;) {
            size_t len = n - o > 50000 ? 50000 : n - o;
            if (get(fd, big, len) != len)
                die("early end");
            good = good && matches(big, len, all + o, 2);
            o += len;
        }
        all += n;
        say("whole %d, rest %d", good, now_in(fd));
        tell('d');
    }
    R(recv(fd, big, 1, 0));
    R(shutdown(fd, SHUT_WR));
    meet();
}

/* One send of 4 MiB blocks until the reader has made room, and returns the whole count. */
static void blocked_a(void) {
    int fd = conn();
    fill(big, sizeof big, 0, 3);
    R(send(fd, big, sizeof big, 0));
    fill(big, sizeof big, 0, 4);
    R(write(fd, big, sizeof big));
    struct iovec v[3] = {{big, 1000}, {big + 1000, MIB}, {big + 1000 + MIB, sizeof big - MIB - 1000}};
    R(writev(fd, v, 3));
    payload(3 * sizeof big);
    meet();
}
static void blocked_b(void) {
    int fd = conn();
    settle();
    for (int i = 0; i < 3; i++)
        got(fd, big, sizeof big, 0, i ? 4 : 3);
    meet();
}

static void send_timeout_a(void) {
    int fd = conn();
    timeouts(fd, SO_SNDTIMEO, 200);
    long n, all = 0;
    fill(big, sizeof big, 0, 3);
    while ((n = send(fd, big + all % 1000, MIB, MSG_NOSIGNAL)) > 0)
        all += n;
    say("then %ld %s", n, err_name(errno));
    tell_long(all);
    hear();
    R(send(fd, big, 100, 0));
    meet();
}
static void send_timeout_b(void) {
    int fd = conn();
    long all = hear_pid();
    while (all > 0) {
        size_t len = all > (long)sizeof big ? sizeof big : (size_t)all;
        if (get(fd, big, len) != len)
            die("early end");
        all -= len;
    }
    say("rest %d", now_in(fd));
    tell('d');
    R(get(fd, big, 100));
    meet();
}

/* One limit for the whole of a send, of which the end goes through TCP to a slow reader: each part of that would wait for less. */
static void timed_whole_a(void) {
    static char some[700 * KIB];
    int fd = conn();
    struct pollfd told = {3, POLLIN, 0}; /* the other end, as in unread.c */
    meet();
    wait_for_spill(fd);
    while (poll(&told, 1, 150) == 0)
        get(fd, some, sizeof some);
    hear();
    while (get(fd, some, sizeof some) == sizeof some)
        ;
    meet();
}
static void timed_whole_b(void) {
    enum { ALL = 300 * MIB };
    int fd = conn();
    char *p = mmap(NULL, ALL, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct timespec from, to;
    timeouts(fd, SO_SNDTIMEO, 1000);
    meet();
    clock_gettime(CLOCK_MONOTONIC, &from);
    ssize_t n = send(fd, p, ALL, 0);
    clock_gettime(CLOCK_MONOTONIC, &to);
    say("a part %d in time %d", n > 0 && n < ALL, to.tv_sec - from.tv_sec < 10);
    tell('.');
    R(shutdown(fd, SHUT_WR));
    meet();
}

static void *put_40(void *fd) {
    put_stream(*(int *)fd, 40 * MIB, is_a ? 31 : 32);
    return NULL;
}
static void both_ways(void) {
    int fd = conn();
    pthread_t t;
    pthread_create(&t, NULL, put_40, &fd);
    get_stream(fd, 40 * MIB, is_a ? 32 : 31);
    pthread_join(t, NULL);
    meet();
}

/* Random sizes, non-blocking in both directions, from one thread. */
static void duplex(void) {
    enum { TOTAL = 30 * MIB, MOST = 300 * KIB };
    int fd = conn();
    unsigned mine = is_a ? 41 : 42, theirs = is_a ? 42 : 41, r = mine;
    uint64_t sent = 0, got = 0;
    nonblocking(fd, 1);
    int ep = epoll_create1(0);
    struct epoll_event e = {EPOLLIN | EPOLLOUT | EPOLLET, {.u64 = 77}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    while (sent < TOTAL || got < TOTAL) {
        int moved = 0;
        for (ssize_t n; got < TOTAL && (n = recv(fd, big, rnd(&r) % MOST + 1, 0)) != -1; got += n) {
            if (n == 0 || !matches(big, n, got, theirs))
                die("duplex: received");
            moved = 1;
        }
        while (sent < TOTAL) {
            size_t len = rnd(&r) % MOST + 1;
            if (len > TOTAL - sent)
                len = TOTAL - sent;
            fill(big, len, sent, mine);
            ssize_t n = send(fd, big, len, MSG_NOSIGNAL);
            if (n < 0 && errno == EAGAIN)
                break;
            if (n <= 0)
                die("duplex: sent");
            sent += n;
            moved = 1;
        }
        if (!moved && (sent < TOTAL || got < TOTAL))
            if (epoll_wait(ep, &e, 1, 20000) != 1 || e.data.u64 != 77)
                die("duplex: epoll_wait");
    }
    payload(TOTAL);
    say("%d both ways", TOTAL);
    meet();
}

/* One byte at a time, and replies to each. */
static void single(void) {
    int fd = conn();
    char c;
    for (int i = 0; i < 3000; i++) {
        if (is_a) {
            c = (char)i;
            if (send(fd, &c, 1, 0) != 1 || recv(fd, &c, 1, 0) != 1 || c != (char)(i + 1))
                die("single");
        } else {
            if (read(fd, &c, 1) != 1)
                die("single");
            c++;
            if (write(fd, &c, 1) != 1)
                die("single");
        }
    }
    say("3000 there and back");
    meet();
}

/* Small buffers, set by the program before the connection, bound what is in flight. */
static void small_buffers_a(void) {
    int l = listen_on(PORT);
    meet();
    int fd = accept_from(l);
    sol_int(fd, SOL_SOCKET, SO_SNDBUF, 32 * KIB);
    warm(fd);
    nonblocking(fd, 1);
    long n = stuff(fd, 0, 2);
    settle();
    n += stuff(fd, n, 2);
    settle();
    n += stuff(fd, n, 2);
    say("in flight at most 1 MB: %d", n <= 1000000);
    tell_long(n);
    hear();
}
static void small_buffers_b(void) {
    meet();
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    sol_int(fd, SOL_SOCKET, SO_RCVBUF, 32 * KIB);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(connect(fd, (void *)&to, sizeof to));
    warm(fd);
    long n = hear_pid();
    for (long o = 0; o < n; o += 1000) {
        size_t len = n - o > 1000 ? 1000 : n - o;
        if (get(fd, big, len) != len || !matches(big, len, o, 2))
            die("small_buffers");
    }
    say("whole, rest %d", now_in(fd));
    tell('d');
}

/* 1 MiB of an echo is sent before any of it is read: TCP's buffers take it, and two rings would not. */
enum { AHEAD = MIB };
static char all[AHEAD];

static void wait_until(int fd, short events) {
    struct pollfd p = {.fd = fd, .events = events};
    MUST(poll(&p, 1, -1));
}
static void put_polling(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t k = send(fd, p, n, MSG_DONTWAIT);
        if (k < 0 && errno == EAGAIN)
            wait_until(fd, POLLOUT);
        else {
            p += MUST(k);
            n -= k;
        }
    }
}
static void ahead_b(void (*put_all)(int, const char *, size_t)) {
    int fd = conn();
    static char back[AHEAD];
    for (int i = 0; i < 3; i++) {
        fill(all, AHEAD, 0, i);
        put_all(fd, all, AHEAD);
        size_t n = get(fd, back, AHEAD);
        say("%zu back, %s", n, n == AHEAD && !memcmp(all, back, n) ? "whole" : "DIFFERENT");
    }
    R(close(fd));
    meet();
}
static void put_blocking(int fd, const char *p, size_t n) { put(fd, p, n); }
static void ahead_blocking_b(void) { ahead_b(put_blocking); }
static void ahead_polling_b(void) { ahead_b(put_polling); }
static void ahead_blocking_a(void) {
    int fd = conn();
    for (ssize_t n; (n = recv(fd, all, 64 * KIB, 0)) > 0;)
        put(fd, all, n);
    R(close(fd));
    meet();
}
/* The other end resets when it ends (SO_LINGER), and does not end yet. */
static void linger_a(void) {
    int fd = conn();
    struct linger l = {1, 0};
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    meet();
    meet();
    got(fd, all, AHEAD, 0, 5);
    meet();
}
static void linger_b(void) {
    int fd = conn();
    meet();
    fill(all, AHEAD, 0, 5);
    put(fd, all, AHEAD);
    meet();
    meet();
}
static void ahead_polling_a(void) {
    int fd = conn();
    for (;;) {
        ssize_t n = recv(fd, all, 64 * KIB, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            wait_until(fd, POLLIN);
        else if (MUST(n) == 0)
            break;
        else
            put_polling(fd, all, n);
    }
    R(close(fd));
    meet();
}
/* A server that waits for room alone while it owes an answer. */
static void ahead_epoll_a(void) {
    int fd = conn(), set = MUST(epoll_create1(0));
    size_t have = 0, sent = 0;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN}));
    for (;;) {
        struct epoll_event e;
        MUST(epoll_wait(set, &e, 1, -1));
        if (have == sent) {
            sent = 0;
            if ((have = MUST(recv(fd, all, 64 * KIB, MSG_DONTWAIT))) == 0)
                break;
        }
        ssize_t n = send(fd, all + sent, have - sent, MSG_DONTWAIT);
        sent += n < 0 && errno == EAGAIN ? 0 : MUST(n);
        e.events = have == sent ? EPOLLIN : EPOLLOUT;
        MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &e));
    }
    close(set);
    R(close(fd));
    meet();
}

/* One that passes on to a slow reader: both rings are full for long, but this end reads, a little at a time, so the two do
 * not wait for each other. It asks for room by an entry of poll that does not ask for data, as socat does. */
static void slow_relay_a(void) {
    int fd = conn();
    static char part[8 * KIB];
    for (ssize_t n; (n = recv(fd, part, sizeof part, 0)) > 0;)
        put(fd, part, n);
    close(fd);
}
static void slow_relay_b(void) {
    int fd = conn();
    uint64_t sent = 0, back = 0, all = 4 * MIB;
    nonblocking(fd, 1);
    for (int round = 0; back < all; round++) {
        if (sent < all) {
            size_t part = all - sent < 64 * KIB ? all - sent : 64 * KIB; /* what comes back beyond would be no end */
            fill(big, part, sent, 5);
            ssize_t n = events(fd, POLLOUT, round < 30 ? 3 : 1) & POLLOUT ? send(fd, big, part, 0) : 0;
            sent += n > 0 ? n : 0;
        }
        for (int i = 0; i < (round < 30 ? 1 : 64); i++) { /* slowly at first */
            ssize_t n = recv(fd, big, 2 * KIB, 0);
            if (n > 0 && !matches(big, n, back, 5))
                die("other bytes");
            back += n > 0 ? n : 0;
        }
    }
    payload(2 * all);
    R(shutdown(fd, SHUT_WR));
    nonblocking(fd, 0);
    R(recv(fd, big, 1, 0));
    close(fd);
}

const struct test tests[] = {{"until_full", until_full_a, until_full_b, 0},
                             {"blocked_send", blocked_a, blocked_b, WHOLE},
                             {"send_timeout", send_timeout_a, send_timeout_b, 0},
                             {"send_timeout_whole", timed_whole_a, timed_whole_b, 0},
                             {"both_ways", both_ways, both_ways, WHOLE},
                             {"duplex_epoll", duplex, duplex, WHOLE},
                             {"single_bytes", single, single, 0},
                             {"small_buffers", small_buffers_a, small_buffers_b, 0},
                             {"ahead_blocking", ahead_blocking_a, ahead_blocking_b, 0},
                             {"ahead_polling", ahead_polling_a, ahead_polling_b, 0},
                             {"ahead_of_linger", linger_a, linger_b, 0},
                             {"slow_relay", slow_relay_a, slow_relay_b, WHOLE},
                             {"ahead_epoll", ahead_epoll_a, ahead_polling_b, 0},
                             {0}};
