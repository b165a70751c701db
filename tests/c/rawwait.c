/* Owns: waiters that the library never sees: poll and epoll by system calls that don't go through
 * libc, with reads and writes that do. They must wake up, and must not spin. */
#include "rawwait.h"

static char buf[256 * KIB];

static void look(int ep, int ms) {
    struct epoll_event e;
    int n = raw_wait(ep, &e, ms);
    say("raw epoll = %d %s", n, n == 1 ? epoll_text(e.events) : "");
}
static void send_n(int fd, int n) {
    memset(buf, 'x', n);
    put(fd, buf, n);
}
static void next(void) {
    meet();
    meet_settled();
}

static void level_a(void) {
    int fd = conn(), ep = raw_epoll();
    nonblocking(fd, 1);
    MUST(raw_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
    R(recv(fd, buf, 10, 0)); /* EAGAIN: now it would wait */
    look(ep, 30);
    meet();
    look(ep, 5000); /* sleeps, and is woken */
    R(recv(fd, buf, 40, 0));
    look(ep, 1000); /* a part is left: level-triggered tells again */
    look(ep, 1000);
    R(recv(fd, buf, 1000, 0));
    R(recv(fd, buf, 1000, 0));
    look(ep, 50); /* nothing: must not spin */
    meet();
    look(ep, 5000);
    R(recv(fd, buf, 100, 0)); /* exactly all, no EAGAIN seen */
    look(ep, 50);
    meet();
    look(ep, 5000);
    R(recv(fd, buf, 1000, 0));
    meet();
    look(ep, 5000); /* the end */
    R(recv(fd, buf, 10, 0));
}
static void level_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        meet();
        settle();
        send_n(fd, 100);
    }
    meet();
    settle();
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}

static void edge_a(void) {
    int fd = conn(), ep = raw_epoll();
    nonblocking(fd, 1);
    MUST(raw_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 1));
    R(recv(fd, buf, 10, 0));
    meet();
    look(ep, 5000);
    R(recv(fd, buf, 40, 0)); /* a part is left */
    meet();
    look(ep, 5000); /* more came: an edge */
    R(recv(fd, buf, 1000, 0));
    R(recv(fd, buf, 1000, 0));
    for (int i = 0; i < 20; i++) {
        meet();
        look(ep, 5000);
        R(recv(fd, buf, 1000, 0));
        R(recv(fd, buf, 1000, 0));
    }
    meet();
    look(ep, 5000);
    R(recv(fd, buf, 10, 0));
}
static void edge_b(void) {
    int fd = conn();
    for (int i = 0; i < 22; i++) {
        meet();
        settle();
        send_n(fd, 100);
    }
    meet();
    settle();
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}

/* Both directions from one raw edge-triggered loop, as rustix-based event loops do. */
static void loop(int trigger) {
    enum { TOTAL = 20 * MIB };
    int fd = conn(), ep = raw_epoll();
    unsigned mine = is_a ? 51 : 52, theirs = is_a ? 52 : 51, r = mine;
    uint64_t sent = 0, got = 0;
    int ended = 0;
    nonblocking(fd, 1);
    struct epoll_event e;
    MUST(raw_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | trigger, 1));
    uint32_t wanted = EPOLLIN | EPOLLOUT;
    while (!ended || sent < TOTAL) {
        for (int i = 0; i < 4 && !ended; i++) {
            ssize_t n = recv(fd, buf, rnd(&r) % sizeof buf + 1, 0);
            if (n < 0 && errno == EAGAIN)
                break;
            if (n < 0 || !matches(buf, n, got, theirs))
                die("loop: received");
            got += n;
            ended = n == 0;
            if (trigger)
                i = 0; /* edge-triggered must read to EAGAIN */
        }
        while (sent < TOTAL) {
            size_t len = rnd(&r) % sizeof buf + 1;
            if (len > TOTAL - sent)
                len = TOTAL - sent;
            fill(buf, len, sent, mine);
            ssize_t n = send(fd, buf, len, MSG_NOSIGNAL);
            if (n < 0 && errno == EAGAIN)
                break;
            if (n <= 0)
                die("loop: sent");
            sent += n;
            if (sent == TOTAL) {
                MUST(shutdown(fd, SHUT_WR));
                wanted = EPOLLIN;
                MUST(raw_ctl(ep, EPOLL_CTL_MOD, fd, wanted | trigger, 1));
            }
        }
        if ((!ended || sent < TOTAL) && raw_wait(ep, &e, 20000) != 1)
            die("loop: no event");
    }
    say("sent %llu got %llu", (unsigned long long)sent, (unsigned long long)got);
    meet();
}
static void loop_level(void) { loop(0); }
static void loop_edge(void) { loop(EPOLLET); }

static void raw_poll_a(void) {
    int fd = conn();
    nonblocking(fd, 1);
    for (int i = 0; i < 50; i++) {
        ssize_t n = recv(fd, buf, 100, 0);
        if (n >= 0)
            die("early");
        meet();
        if (raw_poll(fd, POLLIN, 5000) != POLLIN || recv(fd, buf, 40, 0) != 40 ||
            raw_poll(fd, POLLIN, 5000) != POLLIN || recv(fd, buf, 100, 0) != 60 ||
            raw_poll(fd, POLLIN, 0) != 0)
            die("raw poll");
    }
    say("50 times");
    meet();
    say("%s", poll_text(raw_poll(fd, POLLIN | POLLRDHUP, 5000)));
    R(recv(fd, buf, 10, 0));
}
static void raw_poll_b(void) {
    int fd = conn();
    for (int i = 0; i < 50; i++) {
        meet();
        send_n(fd, 100);
    }
    meet();
    settle();
    R(close(fd));
}

/* A raw waiter for room. */
static void room_a(void) {
    int fd = conn(), ep = raw_epoll(), edge = raw_epoll();
    nonblocking(fd, 1);
    MUST(raw_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLOUT, 1));
    MUST(raw_ctl(edge, EPOLL_CTL_ADD, fd, EPOLLOUT | EPOLLET, 1));
    look(ep, 1000);
    look(edge, 1000);
    for (int i = 0; i < 3; i++) {
        long all = 0;
        for (int calm = 0; calm < 3; calm++, settle())
            for (ssize_t n; (n = send(fd, buf, 50000, 0)) > 0; all += n)
                calm = 0;
        raw_wait(edge, &(struct epoll_event){0}, 0);
        look(ep, 50); /* full: must sleep, not spin */
        say("%s", poll_text(raw_poll(fd, POLLOUT, 30)));
        tell_pid((pid_t)all);
        look(edge, 10000);
        look(ep, 10000);
        hear();
    }
    meet();
}
static void room_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        long all = hear_pid();
        settle();
        while (all > 0)
            all -= get(fd, buf, all > (long)sizeof buf ? sizeof buf : (size_t)all);
        say("rest %d", now_in(fd));
        tell('d');
    }
    meet();
}

/* One that has sent what nobody reads yet, so that it sends through TCP, and takes less at each event than there is: from its first
 * read on it never sees EAGAIN, and is told of the rest all the same. */
enum { MUCH = 4 * MIB, STREAMS = 5 };
static void behind_a(void) {
    int fd = conn_cold(), ep = raw_epoll(), good = 1;
    nonblocking(fd, 1);
    MUST(raw_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
    long all = glut(fd);
    meet();
    struct epoll_event e;
    for (uint64_t o = 0; o < (uint64_t)STREAMS * MUCH;) {
        if (raw_wait(ep, &e, 10000) != 1)
            die("behind: no event");
        usleep(100); /* the other end is ahead */
        uint64_t at = o % MUCH;
        ssize_t n = recv(fd, buf, at + 3000 < MUCH ? 3000 : MUCH - at, 0);
        if (n < 0 && errno == EAGAIN)
            continue; /* what the event was for may be no payload: as select(2) says of Linux */
        good = good && n > 0 && matches(buf, n, at, 9);
        o += MUST(n);
    }
    say("whole %d", good);
    tell_pid((pid_t)all);
    meet();
}
static void behind_b(void) {
    int fd = conn_cold();
    meet();
    for (int i = 1; i < STREAMS; i++)
        put_stream(fd, MUCH, 9); /* it goes to memory on the way, and the last one is there */
    long before = lo_bytes();
    put_stream(fd, MUCH, 9);
    warmed(MUCH, lo_bytes() - before);
    for (long all = hear_pid(); all > 0;)
        all -= get(fd, buf, all > (long)sizeof buf ? sizeof buf : (size_t)all);
    meet();
}

/* A raw reader of the bytes themselves, on a connection that never read through libc. */
static void raw_read_a(void) {
    int fd = conn_cold();
    uint64_t got = 0;
    int good = 1;
    for (long n; (n = raw(SYS_read, fd, (long)buf, sizeof buf, 0, 0, 0)) > 0; got += n)
        good = good && matches(buf, n, got, 8);
    say("%llu whole %d", (unsigned long long)got, good);
    R(raw(SYS_write, fd, (long)"bye", 3, 0, 0, 0));
}
static void raw_read_b(void) {
    int fd = conn_cold();
    put_stream(fd, 10 * MIB, 8);
    R(shutdown(fd, SHUT_WR));
    say("%zu", get(fd, buf, 10));
}

/* A registered set is raw, but the wait is hooked, and the other way round. */
static void half_raw_a(void) {
    int fd = conn(), ep = raw_epoll(), other = epoll_create1(0);
    struct epoll_event e = {EPOLLIN, {.u64 = 5}};
    MUST(raw_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 5));
    MUST(epoll_ctl(other, EPOLL_CTL_ADD, fd, &e));
    for (int i = 0; i < 10; i++) {
        meet();
        int n = i % 2 ? epoll_wait(ep, &e, 1, 5000) : raw_wait(other, &e, 5000);
        say("%d %s %llu", n, epoll_text(e.events), (unsigned long long)e.data.u64);
        R(recv(fd, buf, 60, 0));
        n = i % 2 ? epoll_wait(ep, &e, 1, 5000) : raw_wait(other, &e, 5000);
        say("%d %s %llu", n, epoll_text(e.events), (unsigned long long)e.data.u64);
        R(recv(fd, buf, 60, 0));
        n = i % 2 ? epoll_wait(ep, &e, 1, 20) : raw_wait(other, &e, 20);
        say("%d", n);
    }
    next();
}
static void half_raw_b(void) {
    int fd = conn();
    for (int i = 0; i < 10; i++) {
        meet();
        settle();
        send_n(fd, 100);
    }
    next();
}

/* This end has shut down its sending, so the other's goes through TCP: what comes between a read that finds
 * nothing and the wait is payload, not a stale doorbell. */
enum { LITTLE = 30000 };
static void half_closed_a(void) {
    int fd = conn(), ep = raw_epoll(), good = 1;
    unsigned idle = 0;
    nonblocking(fd, 1);
    MUST(raw_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1));
    R(shutdown(fd, SHUT_WR));
    uint64_t o = 0;
    struct epoll_event e;
    for (;;) {
        ssize_t n = recv(fd, buf, 100, 0);
        if (n < 0 && errno == EAGAIN && (++idle % 1000 || raw_wait(ep, &e, 5000) == 1))
            continue; /* mostly without the wait: more reads that find nothing */
        if (n <= 0) {
            say("%llu bytes, whole %d, then %s", (unsigned long long)o, good, n == 0 ? "end" : err_name(errno));
            break;
        }
        good = good && matches(buf, n, o, 1);
        o += n;
    }
    meet();
}
static void half_closed_b(void) {
    int fd = conn(), one = 1;
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    R(recv(fd, buf, 1, 0));
    uint64_t o = 0;
    for (int i = 0; i < LITTLE; i++) {
        fill(buf, 1 + i % 7, o, 1);
        put(fd, buf, 1 + i % 7);
        o += 1 + i % 7;
        for (volatile int k = 0; k < i % 3000; k++) {
        }
    }
    R(shutdown(fd, SHUT_WR));
    meet();
}

const struct test tests[] = {{"level", level_a, level_b, 0},
                             {"edge", edge_a, edge_b, 0},
                             {"loop_level", loop_level, loop_level, 0},
                             {"loop_edge", loop_edge, loop_edge, 0},
                             {"poll", raw_poll_a, raw_poll_b, 0},
                             {"room", room_a, room_b, 0},
                             {"behind", behind_a, behind_b, 0},
                             {"read", raw_read_a, raw_read_b, COLD},
                             {"half_raw", half_raw_a, half_raw_b, 0},
                             {"half_closed", half_closed_a, half_closed_b, 0},
                             {0}};
