/* Owns: epoll sets that others wait for, by another set or by poll: what lies there before anybody does, and what a call on the inner set
 * leaves of what the outer one is about. */
#include "sets.h"
#include "waiting.h"

static char buf[64 * KIB];

/* A connection in memory and a set of it that was waited in; then something lies there. */
struct lying {
    int fd, inner;
};
static struct lying lies(uint32_t ev) {
    int fd = conn(), inner = set_of(fd, ev);
    look(inner, 20);
    meet();
    meet_settled();
    return (struct lying){fd, inner};
}

/* The same, but the set comes when it lies there. */
static struct lying alone(uint32_t ev) {
    int fd = conn();
    meet();
    meet_settled();
    return (struct lying){fd, set_of(fd, ev)};
}

/* What comes behind that is told to the outer set as ever. */
static void goes_on(int outer, int fd) {
    for (int i = 0; i < 2; i++) {
        meet();
        meet_settled();
        look(outer, 1000);
        R(recv(fd, buf, 100, 0));
    }
}

/* ---- what is there already: for poll, and for another set; behind the one before, something new ---- */

static void there(int waited, uint32_t ev, int by_poll) {
    struct lying l = waited ? lies(ev) : alone(ev);
    int fd = l.fd, inner = l.inner, outer = by_poll ? -1 : set_of(inner, EPOLLIN);
    for (int i = 0; i < 2; i++) {
        if (by_poll)
            say("%s", poll_text(events(inner, POLLIN, 3000)));
        else
            look(outer, 3000);
        look(inner, 1000);
        R(recv(fd, buf, 100, 0));
        say("%s", poll_text(events(inner, POLLIN, 20)));
        meet();
        meet_settled();
    }
    look(inner, 1000);
    R(recv(fd, buf, 100, 0));
}
static void sends_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        meet();
        put(fd, "data", 4);
        meet_settled();
    }
    R(recv(fd, buf, 1, 0));
}
static void added_polled_a(void) { there(0, EPOLLIN, 1); }
static void added_nested_a(void) { there(0, EPOLLIN, 0); }
static void waited_polled_a(void) { there(1, EPOLLIN, 1); }
static void waited_nested_a(void) { there(1, EPOLLIN, 0); }
static void waited_edge_a(void) { there(1, EPOLLIN | EPOLLET, 0); }

/* ---- a set in which nobody has waited yet, by looks without time ---- */

static void at_once_a(void) {
    struct lying l = alone(EPOLLIN);
    int fd = l.fd, inner = l.inner;
    fd_set r;
    FD_ZERO(&r);
    FD_SET(inner, &r);
    say("select %d", select(inner + 1, &r, NULL, NULL, &(struct timeval){0, 0}));
    say("%s", poll_text(events(inner, POLLIN, 0)));
    R(recv(fd, buf, 2, 0));
    say("%s", poll_text(events(inner, POLLIN, 0)));
    R(recv(fd, buf, 2, 0));
    say("%s", poll_text(events(inner, POLLIN, 0)));
    for (int i = 0; i < 2; i++) {
        meet();
        meet_settled();
        say("%s", poll_text(events(inner, POLLIN, 0)));
        R(recv(fd, buf, 100, 0));
    }
}

/* ---- what is there is left there, and the interest in it changes ---- */

static void lingers(uint32_t ev) {
    struct lying l = lies(ev);
    int fd = l.fd, inner = l.inner;
    int outer = set_of(inner, EPOLLIN);
    for (int i = 0; i < 2; i++) {
        look(outer, 1000);
        look(inner, 1000);
        look(outer, 20);
        look(inner, 20);
        MUST(ctl(inner, MOD, fd, EPOLLRDHUP, 2));
        look(outer, 20);
        look(inner, 20);
        MUST(ctl(inner, MOD, fd, ev, 3));
        look(outer, 1000);
        if (i == 0)
            look(inner, 1000);
        MUST(ctl(inner, DEL, fd, 0, 0));
        look(outer, 20);
        MUST(ctl(inner, ADD, fd, ev, 4));
    }
    R(recv(fd, buf, 100, 0));
    look(outer, 20);
    for (int i = 0; i < 2; i++) {
        meet();
        meet_settled();
        look(outer, 1000);
        look(inner, 1000);
        R(recv(fd, buf, 100, 0));
        if (ev & EPOLLONESHOT)
            MUST(ctl(inner, MOD, fd, ev, 5));
        look(outer, 20);
    }
}
static void lingers_a(void) { lingers(EPOLLIN); }
static void lingers_edge_a(void) { lingers(EPOLLIN | EPOLLET); }
static void lingers_once_a(void) { lingers(EPOLLIN | EPOLLONESHOT); }

/* ---- interest that begins in a set that nobody has waited in ---- */

static void begins_a(void) {
    struct lying l = alone(EPOLLOUT);
    int fd = l.fd, inner = l.inner, outer = set_of(inner, EPOLLIN);
    MUST(ctl(inner, MOD, fd, 0, 1));
    look(outer, 20);
    MUST(ctl(inner, MOD, fd, EPOLLIN, 1));
    look(outer, 3000);
    R(recv(fd, buf, 100, 0));
    look(outer, 20);
    goes_on(outer, fd);
}

/* ---- interest in urgent bytes alone ---- */

static void urgent_a(void) {
    struct lying l = lies(EPOLLIN);
    int fd = l.fd, inner = l.inner;
    int outer = set_of(inner, EPOLLIN);
    look(outer, 1000);
    MUST(ctl(inner, MOD, fd, EPOLLPRI | EPOLLRDHUP, 1));
    for (int i = 0; i < 2; i++) {
        say("%s", poll_text(events(inner, POLLIN, 20)));
        look(inner, 0);
    }
    R(recv(fd, buf, 100, 0));
    MUST(ctl(inner, MOD, fd, EPOLLIN, 1));
    goes_on(outer, fd);
}

/* ---- a set around it that tells of edges alone, while something is left ---- */

static void outer_edge_a(void) {
    struct lying l = lies(EPOLLIN);
    int fd = l.fd, inner = l.inner;
    int outer = set_of(inner, EPOLLIN | EPOLLET);
    look(outer, 1000);
    for (int i = 0; i < 3; i++) {
        look(outer, 20);
        look(inner, 20);
    }
    MUST(ctl(outer, MOD, inner, EPOLLIN, 1));
    for (int i = 0; i < 2; i++) {
        look(outer, 1000);
        look(inner, 20);
    }
    R(recv(fd, buf, 100, 0));
    look(outer, 20);
    goes_on(outer, fd);
}

/* ---- a child waits in the set of its parent ---- */

static void child_a(void) {
    struct lying l = lies(EPOLLIN);
    int fd = l.fd, inner = l.inner;
    for (int i = 0; i < 3; i++) {
        pid_t child = MUST(fork());
        if (child == 0) {
            look(inner, 3000);
            R(recv(fd, buf, 100, 0));
            look(inner, 20);
            _exit(0);
        }
        wait_for(child);
        if (i == 2)
            break;
        meet();
        meet_settled();
    }
}

/* ---- of two that are ready the inner call takes one: the outer set tells of the other ---- */

static void one_by_one(uint32_t ev) {
    int l = listen_on(PORT), fds[2], inner = MUST(epoll_create1(0)), outer = set_of(inner, EPOLLIN);
    meet();
    for (int i = 0; i < 2; i++) {
        warm(fds[i] = accept_from(l));
        MUST(ctl(inner, ADD, fds[i], ev, i));
    }
    look(outer, 20);
    for (int i = 0; i < 3; i++) {
        meet();
        meet_settled();
        for (int k = 0; k < 2; k++) {
            struct epoll_event e;
            look(outer, 3000);
            if (R(epoll_wait(inner, &e, 1, 1000)) != 1)
                continue;
            R(recv(fds[e.data.u64], buf, 100, 0));
            if (ev & EPOLLONESHOT)
                MUST(ctl(inner, MOD, fds[e.data.u64], ev, e.data.u64));
        }
        look(outer, 20);
    }
}
static void one_by_one_b(void) {
    int fds[2];
    meet();
    for (int i = 0; i < 2; i++)
        warm(fds[i] = dial(PORT));
    for (int i = 0; i < 3; i++) {
        meet();
        for (int k = 0; k < 2; k++)
            put(fds[k], "data", 4);
        meet_settled();
    }
    R(recv(fds[0], buf, 1, 0));
}
static void one_by_one_level_a(void) { one_by_one(EPOLLIN); }
static void one_by_one_edge_a(void) { one_by_one(EPOLLIN | EPOLLET); }
static void one_by_one_once_a(void) { one_by_one(EPOLLIN | EPOLLONESHOT); }

/* A thread waits for a set that has no member yet; then one comes, with something unread or before that. */
static int empty;
static long polls_empty(void) {
    struct pollfd p = {empty, POLLIN, 0};
    int n = poll(&p, 1, 10000);
    return n * 1000 + p.revents;
}
static long selects_empty(void) {
    fd_set r;
    FD_ZERO(&r);
    FD_SET(empty, &r);
    return select(empty + 1, &r, NULL, NULL, &(struct timeval){10, 0});
}
static void first_member(long (*call)(void), int is_late) {
    int fd = conn();
    struct waiting w;
    empty = MUST(epoll_create1(0));
    meet();
    if (!is_late)
        meet_settled();
    waiting_start(&w, "the set", call);
    MUST(ctl(empty, ADD, fd, EPOLLIN, 1));
    if (is_late) {
        look(empty, 1);
        meet_settled();
    }
    say("over: %d", waiting_is_over(&w, 15000));
    say("%ld", w.result);
    look(empty, 1000);
    R(recv(fd, buf, 10, 0));
    meet();
}
static void first_polled_a(void) { first_member(polls_empty, 0); }
static void first_selected_a(void) { first_member(selects_empty, 0); }
static void first_late_a(void) { first_member(polls_empty, 1); }
static void first_b(void) {
    int fd = conn();
    meet();
    put(fd, "data", 4);
    meet_settled();
    meet();
}
/* As above, but the bytes come when the thread sleeps and the set was looked at. */
static void first_late_b(void) {
    int fd = conn();
    meet();
    meet_settled();
    put(fd, "data", 4);
    meet();
}

const struct test tests[] = {{"added_polled", added_polled_a, sends_b, 0},
                             {"added_nested", added_nested_a, sends_b, 0},
                             {"waited_polled", waited_polled_a, sends_b, 0},
                             {"waited_nested", waited_nested_a, sends_b, 0},
                             {"waited_edge", waited_edge_a, sends_b, 0},
                             {"at_once", at_once_a, sends_b, 0},
                             {"lingers", lingers_a, sends_b, 0},
                             {"lingers_edge", lingers_edge_a, sends_b, 0},
                             {"lingers_once", lingers_once_a, sends_b, 0},
                             {"begins", begins_a, sends_b, 0},
                             {"urgent", urgent_a, sends_b, 0},
                             {"outer_edge", outer_edge_a, sends_b, 0},
                             {"child", child_a, sends_b, 0},
                             {"first_polled", first_polled_a, first_b, 0},
                             {"first_selected", first_selected_a, first_b, 0},
                             {"first_late", first_late_a, first_late_b, 0},
                             {"one_by_one_level", one_by_one_level_a, one_by_one_b, 0},
                             {"one_by_one_edge", one_by_one_edge_a, one_by_one_b, 0},
                             {"one_by_one_once", one_by_one_once_a, one_by_one_b, 0},
                             {0}};
