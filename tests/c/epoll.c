/* Owns: epoll to the letter on one connection: level, edge, one-shot, its errors, its HUP and
 * RDHUP, fds that leave sets, registration before and after the connection moves to memory. */
#include "sets.h"

static char buf[256 * KIB];

#define DATA 0x1234567890abcdefULL

static void send_n(int fd, int n) {
    memset(buf, 'x', n);
    put(fd, buf, n);
}
/* The helper end: at each meeting it sends what it is told; 0 shuts down, a negative number ends. */
static void sender_b(const int *script) {
    int fd = conn();
    for (; *script >= 0; script++) {
        meet();
        if (*script)
            send_n(fd, *script);
        else
            MUST(shutdown(fd, SHUT_WR));
        meet_settled();
    }
    meet();
}
static void next(void) {
    meet();
    meet_settled();
}

static void level_a(void) {
    int fd = conn(), ep = epoll_create1(EPOLL_CLOEXEC);
    R(ctl(ep, ADD, fd, EPOLLIN, DATA));
    look(ep, 0);
    look(ep, 30);
    next();
    look(ep, 1000);
    look(ep, 1000); /* still */
    R(recv(fd, buf, 40, 0));
    look(ep, 1000); /* 60 left */
    R(recv(fd, buf, 1000, 0));
    look(ep, 30);
    R(ctl(ep, MOD, fd, EPOLLIN | EPOLLOUT, 5));
    look(ep, 1000);
    next();
    look(ep, 1000);
    R(ctl(ep, MOD, fd, EPOLLOUT, 6));
    look(ep, 1000);
    R(ctl(ep, MOD, fd, 0, 7));
    look(ep, 30);
    R(ctl(ep, MOD, fd, EPOLLIN | EPOLLRDHUP, 8));
    next(); /* end */
    look(ep, 1000);
    R(recv(fd, buf, 1000, 0));
    look(ep, 1000);
    R(recv(fd, buf, 1000, 0));
    R(shutdown(fd, SHUT_WR));
    look(ep, 1000);
    R(ctl(ep, DEL, fd, 0, 0));
    look(ep, 0);
    meet();
}
static void level_b(void) { sender_b((int[]){100, 50, 0, -1}); }

static void edge_a(void) {
    int fd = conn(), ep = epoll_create1(0);
    R(ctl(ep, ADD, fd, EPOLLIN | EPOLLET, DATA));
    look(ep, 30);
    next();
    look(ep, 1000);
    look(ep, 30); /* one edge */
    R(recv(fd, buf, 40, 0));
    look(ep, 30); /* none for the rest */
    next();
    look(ep, 1000); /* new data, new edge */
    look(ep, 30);
    R(recv(fd, buf, 1000, MSG_PEEK));
    look(ep, 30);
    R(ctl(ep, MOD, fd, EPOLLIN | EPOLLET, 2)); /* MOD is an edge if it is ready */
    look(ep, 1000);
    look(ep, 30);
    R(recv(fd, buf, 1000, 0));
    R(ctl(ep, MOD, fd, EPOLLIN | EPOLLET, 3));
    look(ep, 30);
    next();
    R(recv(fd, buf, 1000, 0)); /* read before the wait: no event may be left over, or one is */
    R(recv(fd, buf, 1000, MSG_DONTWAIT));
    R(ctl(ep, MOD, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 4));
    look(ep, 30);
    next(); /* end */
    look(ep, 1000);
    look(ep, 30);
    R(ctl(ep, MOD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 5));
    look(ep, 1000);
    look(ep, 30);
    meet();
}
static void edge_b(void) { sender_b((int[]){100, 50, 30, 0, -1}); }

static void oneshot_a(void) {
    int fd = conn(), ep = epoll_create1(0);
    R(ctl(ep, ADD, fd, EPOLLIN | EPOLLONESHOT, DATA));
    next();
    look(ep, 1000);
    look(ep, 30);
    next();
    look(ep, 30); /* disarmed */
    R(ctl(ep, MOD, fd, EPOLLIN | EPOLLONESHOT, 2));
    look(ep, 1000);
    R(recv(fd, buf, 1000, 0));
    R(ctl(ep, MOD, fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 3));
    look(ep, 30);
    next();
    look(ep, 1000);
    look(ep, 30);
    R(ctl(ep, MOD, fd, EPOLLOUT | EPOLLONESHOT, 4));
    look(ep, 1000);
    look(ep, 30);
    next(); /* end while disarmed: not even HUP or RDHUP */
    look(ep, 30);
    R(ctl(ep, MOD, fd, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, 5));
    look(ep, 1000);
    meet();
}
static void oneshot_b(void) { sender_b((int[]){100, 50, 30, 0, -1}); }

static void errors_a(void) {
    int fd = conn(), ep = epoll_create(1), file = memfd_create("f", 0);
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    R(ctl(ep, MOD, fd, EPOLLIN, 1));
    R(ctl(ep, DEL, fd, EPOLLIN, 1));
    R(ctl(ep, ADD, fd, EPOLLIN, 1));
    R(ctl(ep, ADD, fd, EPOLLIN, 1));
    R(ctl(ep, ADD, file, EPOLLIN, 1));
    R(ctl(ep, ADD, 999, EPOLLIN, 1));
    R(ctl(ep, 17, fd, EPOLLIN, 1));
    R(ctl(fd, ADD, ep, EPOLLIN, 1));
    R(ctl(ep, ADD, ep, EPOLLIN, 1));
    R(ctl(999, ADD, fd, EPOLLIN, 1));
    R(ctl(ep, MOD, fd, EPOLLIN | EPOLLEXCLUSIVE, 1));
    R(epoll_ctl(ep, ADD, fd, NULL));
    R(epoll_wait(ep, &e, 0, 0));
    R(epoll_wait(ep, &e, -1, 0));
    R(epoll_wait(fd, &e, 1, 0));
    R(epoll_wait(999, &e, 1, 0));
    R(epoll_wait(ep, NULL, 1, 0));
    R(epoll_create(0));
    R(epoll_create1(77));
    R(epoll_ctl(ep, DEL, fd, NULL));
    R(epoll_ctl(ep, DEL, fd, NULL));
    R(ctl(ep, ADD, fd, EPOLLIN | EPOLLEXCLUSIVE, 1));
    R(ctl(ep, MOD, fd, EPOLLIN, 1));
    R(ctl(ep, DEL, fd, 0, 0));
    R(ctl(ep, ADD, fd, EPOLLIN, 2));
    next();
    look(ep, 1000);
    meet();
}
static void errors_b(void) { sender_b((int[]){10, -1}); }

/* Registered while the connection is new and on TCP; it moves while it is in the set. */
static void before_a(void) {
    int fd = conn_cold(), ep = epoll_create1(0), edge = epoll_create1(0);
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    MUST(ctl(edge, ADD, fd, EPOLLIN | EPOLLOUT | EPOLLET, 2));
    warm(fd);
    look(ep, 30);
    say("edges %d", epoll_wait(edge, &(struct epoll_event){0}, 1, 1000));
    look(edge, 30);
    next();
    look(ep, 1000);
    look(edge, 1000);
    look(edge, 30);
    R(recv(fd, buf, 100, 0));
    look(ep, 30);
    next();
    look(ep, 1000);
    look(edge, 1000);
    meet();
}
static void before_b(void) {
    int fd = conn_cold();
    warm(fd);
    for (int i = 0; i < 2; i++) {
        meet();
        send_n(fd, 100);
        meet_settled();
    }
    meet();
}

/* The warm-up itself through an edge-triggered set: an event for each arrival, none lost. */
static void pingpong(int fd, int et) {
    int ep = epoll_create1(0);
    nonblocking(fd, 1);
    struct epoll_event e;
    MUST(ctl(ep, ADD, fd, EPOLLIN | (et ? EPOLLET : 0), 9));
    long before = is_a ? 0 : lo_bytes();
    enum { ROUNDS = 2000, SIZE = 2000 };
    for (int i = 0; i < ROUNDS; i++) {
        if (!is_a)
            send_n(fd, SIZE);
        size_t have = 0;
        while (have < SIZE) {
            ssize_t n = recv(fd, buf, SIZE - have, 0);
            if (n == 0 || (n < 0 && errno != EAGAIN))
                die("recv");
            if (n > 0)
                have += n;
            else if (epoll_wait(ep, &e, 1, 10000) != 1 || e.events != EPOLLIN || e.data.u64 != 9)
                die("epoll_wait");
        }
        if (is_a)
            send_n(fd, SIZE);
    }
    if (!is_a)
        warmed(2 * ROUNDS * SIZE, lo_bytes() - before);
    say("%d rounds", ROUNDS);
    meet();
}
static void pingpong_level(void) { pingpong(conn_cold(), 0); }
static void pingpong_edge(void) { pingpong(conn_cold(), 1); }

/* EPOLLOUT: full, then room again, in both triggers. */
static void writable_a(void) {
    int fd = conn(), level = epoll_create1(0), edge = epoll_create1(0);
    MUST(ctl(level, ADD, fd, EPOLLOUT, 1));
    MUST(ctl(edge, ADD, fd, EPOLLOUT | EPOLLET, 2));
    look(level, 1000);
    look(edge, 1000);
    look(edge, 30);
    nonblocking(fd, 1);
    for (int i = 0; i < 4; i++) {
        long all = 0;
        /* Long enough for a sender that waits to be let into TCP's buffers: then it is full for good. */
        for (int calm = 0; calm < 8; calm++, settle())
            for (ssize_t n; (n = send(fd, buf, 50000, 0)) > 0; all += n)
                calm = 0;
        look(level, 30);
        epoll_wait(edge, &(struct epoll_event){0}, 1, 0); /* one may have come while filling */
        look(edge, 30);
        tell_pid((pid_t)all);
        hear();
        look(level, 5000);
        look(edge, 5000);
        look(edge, 30);
    }
    meet();
}
static void writable_b(void) {
    int fd = conn();
    for (int i = 0; i < 4; i++) {
        for (long all = hear_pid(); all > 0;)
            all -= get(fd, buf, all > (long)sizeof buf ? sizeof buf : (size_t)all);
        say("rest %d", now_in(fd));
        settle();
        tell('d');
    }
    meet();
}

/* Closing removes from the sets, but only the last descriptor of it. */
static void closed_a(void) {
    int fd = conn(), ep = epoll_create1(0);
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    int twin = MUST(dup(fd));
    next();
    look(ep, 1000);
    R(close(fd));
    look(ep, 1000); /* the description lives on in twin */
    R(ctl(ep, DEL, fd, 0, 0));
    R(ctl(ep, DEL, twin, 0, 0));
    R(ctl(ep, ADD, twin, EPOLLIN, 2));
    say("%d", epoll_wait(ep, (struct epoll_event[4]){}, 4, 1000));
    R(recv(twin, buf, 1000, 0));
    look(ep, 30);
    next();
    say("%d", epoll_wait(ep, (struct epoll_event[4]){}, 4, 1000));
    R(close(twin));
    look(ep, 30);
    meet();
}
static void closed_b(void) {
    int fd = conn();
    for (int i = 0; i < 2; i++) {
        meet();
        send_n(fd, 20);
        meet_settled();
    }
    meet();
    R(recv(fd, buf, 1, 0)); /* A left 20 bytes unread */
}

/* RST, and both directions shut: ERR, HUP, RDHUP. */
static void reset_a(void) {
    int fd = conn(), ep = epoll_create1(0), edge = epoll_create1(0);
    MUST(ctl(ep, ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1));
    MUST(ctl(edge, ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 2));
    look(edge, 1000);
    meet();
    meet_settled();
    look(ep, 1000);
    look(edge, 1000);
    look(edge, 30);
    R(recv(fd, buf, 10, 0));
    look(ep, 1000);
    R(recv(fd, buf, 10, 0));
    MUST(ctl(ep, MOD, fd, 0, 3));
    look(ep, 1000); /* HUP is always told */
}
static void reset_b(void) {
    int fd = conn();
    meet();
    struct linger l = {1, 0};
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    R(close(fd));
    meet();
}

/* A set for sending, closed when all is sent, and another one for the answer, many times: the peer still takes what
 * the first one waited for when the second one sleeps. */
enum { REQUEST = MIB, LATE = 48 * KIB };
static void one_by_one_a(void) {
    int fd = conn();
    char *b = malloc(REQUEST);
    for (int i = 0; i < 30; i++) {
        get(fd, b, REQUEST - LATE);
        usleep(5000);
        get(fd, b + REQUEST - LATE, LATE);
        if (!matches(b, REQUEST, 0, i))
            die("request");
        put(fd, b, 1);
    }
    free(b);
    meet();
}
static void one_by_one_b(void) {
    int fd = conn(), answers = 0;
    char *b = malloc(REQUEST);
    nonblocking(fd, 1);
    for (int i = 0; i < 30; i++) {
        fill(b, REQUEST, 0, i);
        for (int wanted = EPOLLOUT; wanted; wanted = wanted == EPOLLOUT ? EPOLLIN : 0) {
            int ep = MUST(epoll_create1(EPOLL_CLOEXEC));
            struct epoll_event e = {wanted, {.fd = fd}};
            MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
            for (size_t sent = 0; wanted == EPOLLOUT && sent < REQUEST;) {
                ssize_t n = send(fd, b + sent, REQUEST - sent, 0);
                if (n > 0)
                    sent += n;
                else if (epoll_wait(ep, &e, 1, 5000) != 1)
                    die("no room");
            }
            if (wanted == EPOLLIN && epoll_wait(ep, &e, 1, 5000) == 1)
                answers += recv(fd, b, 1, 0);
            close(ep);
        }
    }
    free(b);
    say("%d answers", answers);
    meet();
}

const struct test tests[] = {{"level", level_a, level_b, 0},
                             {"edge", edge_a, edge_b, 0},
                             {"oneshot", oneshot_a, oneshot_b, 0},
                             {"errors", errors_a, errors_b, 0},
                             {"registered_before", before_a, before_b, 0},
                             {"pingpong_level", pingpong_level, pingpong_level, 0},
                             {"pingpong_edge", pingpong_edge, pingpong_edge, 0},
                             {"writable", writable_a, writable_b, 0},
                             {"closed", closed_a, closed_b, 0},
                             {"reset", reset_a, reset_b, 0},
                             {"one_by_one", one_by_one_a, one_by_one_b, 0},
                             {0}};
