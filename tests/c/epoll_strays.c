/* Owns: numbers of members that come to stand for another file: one whose close nobody told the set of, and in which of many sets a socket
 * is that is closed. */
#include "sets.h"

static char buf[100];

static void next(void) {
    meet();
    meet_settled();
}

static void number_is(const char *what, int fd, int one, int other) { say("%s: %d", what, fd == one || fd == other); }

/* Members that are no sockets go with their last descriptor; a connection has their numbers, and is in another set, or in none. */
static void number_a(void) {
    int ep = epoll_create1(0), other = epoll_create1(0), p[2];
    MUST(pipe(p));
    MUST(ctl(ep, ADD, p[0], EPOLLIN, 77));
    MUST(ctl(ep, ADD, p[1], EPOLLIN | EPOLLET, 78));
    look(ep, 0);
    close(p[0]);
    close(p[1]);
    int fd = conn();
    number_is("the number of a pipe", fd, p[0], p[1]);
    MUST(ctl(other, ADD, fd, EPOLLIN, 1));
    look(other, 0);
    look(ep, 0);
    next();
    look(ep, 50);
    look(other, 1000);
    R(recv(fd, buf, 5, 0));
    R(ctl(ep, DEL, fd, 0, 0));
    R(ctl(ep, ADD, fd, EPOLLIN, 3));
    next();
    look(ep, 1000);
    R(recv(fd, buf, 5, 0));
    meet();
}
static void number_b(void) {
    int fd = conn();
    for (int i = 0; i < 2; i++) {
        meet();
        put(fd, "fives", 5);
        meet_settled();
    }
    meet();
}

/* A connection that is a member is closed by a system call; the next one has its number. */
static void unseen_a(void) {
    int ep = epoll_create1(0), fd = conn(), l = listen_on(PORT + 1);
    MUST(ctl(ep, ADD, fd, EPOLLIN, 77));
    look(ep, 0);
    raw(SYS_close, fd, 0, 0, 0, 0, 0);
    meet();
    int again = accept_from(l);
    number_is("its number", again, fd, fd);
    warm(again);
    next();
    look(ep, 50);
    R(recv(again, buf, 5, 0));
    R(ctl(ep, ADD, again, EPOLLIN, 4));
    next();
    look(ep, 1000);
    R(recv(again, buf, 5, 0));
    meet();
}
static void unseen_b(void) {
    conn();
    meet();
    int fd = dial(PORT + 1);
    warm(fd);
    for (int i = 0; i < 2; i++) {
        meet();
        put(fd, "fives", 5);
        meet_settled();
    }
    meet();
}

/* Members come and go that the kernel takes out itself. The set does not grow by them. */
static long kilobytes(void) {
    char text[4096];
    int f = MUST(open("/proc/self/status", O_RDONLY));
    ssize_t n = MUST(read(f, text, sizeof text - 1));
    close(f);
    text[n] = 0;
    char *at = strstr(text, "VmData:");
    return at ? atol(at + 7) : 0;
}
static void many_a(void) {
    enum { TIMES = 20000 };
    int fd = conn(), ep = epoll_create1(0), p[2];
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    look(ep, 0);
    long before = kilobytes();
    for (int i = 0; i < TIMES; i++) {
        MUST(pipe(p));
        MUST(ctl(ep, ADD, p[0], EPOLLIN, 1000 + i));
        close(p[0]);
        close(p[1]);
    }
    say("grown: %d", kilobytes() - before > 1024);
    next();
    look(ep, 1000);
    R(recv(fd, buf, 5, 0));
    meet();
}
static void many_b(void) {
    int fd = conn();
    meet();
    put(fd, "fives", 5);
    meet_settled();
    meet();
}

/* Of many sets one or two have the socket that is closed, by the number or by a duplicate's; others have it no more. */
enum { SETS = 60 };
static void sets_a(void) {
    int ep[SETS], fd = conn(), twin = MUST(dup(fd));
    for (int i = 0; i < SETS; i++) {
        ep[i] = MUST(epoll_create1(0));
        MUST(ctl(ep[i], ADD, i % 3 ? fd : twin, EPOLLIN, i));
        if (i % 2)
            look(ep[i], 0);
        if (i != 7 && i != 9)
            MUST(ctl(ep[i], DEL, i % 3 ? fd : twin, 0, 0));
    }
    next();
    look(ep[7], 1000); /* by the number */
    look(ep[9], 1000); /* by the duplicate's */
    close(fd);
    look(ep[7], 1000);
    look(ep[9], 1000);
    int other = MUST(open("/dev/null", O_RDONLY));
    number_is("its number", other, fd, fd);
    R(recv(twin, buf, 5, 0));
    close(twin);
    for (int i = 0; i < SETS; i++)
        if (epoll_wait(ep[i], &(struct epoll_event){0}, 1, 0) != 0)
            say("%d tells", i);
    for (int i = 0; i < SETS; i++)
        close(ep[i]);
    fd = conn();
    for (int i = 0; i < SETS; i++)
        ep[i] = MUST(epoll_create1(0));
    MUST(ctl(ep[3], ADD, fd, EPOLLIN, 5));
    next();
    look(ep[3], 1000);
    close(fd);
    fd = conn();
    next();
    look(ep[3], 50);
    R(recv(fd, buf, 5, 0));
    meet();
}
static void sets_b(void) {
    for (int i = 0; i < 3; i++) {
        int fd = conn();
        meet();
        put(fd, "fives", 5);
        meet_settled();
    }
    meet();
}

const struct test tests[] = {{"number", number_a, number_b, 0},
                             {"unseen", unseen_a, unseen_b, 0},
                             {"many", many_a, many_b, 0},
                             {"sets", sets_a, sets_b, 0},
                             {0}};
