/* Owns: whose an event is: members that share a data word, in memory and not, and a member that was told once and rests. */
#include "sets.h"
#include <sys/eventfd.h>

static char buf[100];

/* More than a few in memory, none of which was looked at for long. */
enum { MANY = 12, WORD = 7 };
static void many_a(void) {
    int fd[MANY], ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    for (int i = 0; i < MANY; i++) {
        fd[i] = conn();
        MUST(ctl(ep, ADD, fd[i], EPOLLIN, WORD));
    }
    meet();
    look(ep, 10000);
    R(recv(fd[0], buf, 5, 0));
    look(ep, 2500); /* all are cold */
    for (int i = 1; i < MANY; i++) {
        meet();
        look(ep, 10000);
        R(recv(fd[i], buf, 5, 0));
    }
    look(ep, 0);
}
static void many_b(void) {
    int fd[MANY];
    for (int i = 0; i < MANY; i++)
        fd[i] = conn();
    for (int i = 0; i < MANY; i++) {
        meet();
        put(fd[i], "fives", 5);
    }
    recv(fd[0], buf, 1, 0);
}

/* One in memory beside two of the kernel's. */
static void mixed_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(EPOLL_CLOEXEC)), p[2], other = MUST(eventfd(0, EFD_CLOEXEC));
    MUST(pipe(p));
    MUST(ctl(ep, ADD, fd, EPOLLIN, WORD));
    MUST(ctl(ep, ADD, p[0], EPOLLIN, WORD));
    MUST(ctl(ep, ADD, other, EPOLLIN, WORD));
    look(ep, 20);
    for (int i = 0; i < 3; i++) {
        MUST(write(i == 1 ? p[1] : other, &(uint64_t){1}, 8));
        look(ep, 10000);
        look(ep, 0);
        MUST(read(i == 1 ? p[0] : other, buf, 8));
        look(ep, 0);
        if (i == 1) { /* a member that was removed is no better */
            meet();
            meet_settled();
            look(ep, 1000);
            MUST(ctl(ep, DEL, fd, 0, 0));
        }
    }
    R(recv(fd, buf, 5, 0));
    meet();
}
static void mixed_b(void) {
    int fd = conn();
    meet();
    put(fd, "fives", 5);
    meet_settled();
    meet();
}

/* In a worker's hands when the connection goes back to TCP, and when it is reset. */
static void rests_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(ctl(ep, ADD, fd, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, 1));
    meet();
    look(ep, 10000);
    R(recv(fd, buf, 5, 0));
    FILE *f = fdopen(fd, "r");
    look(ep, 20);
    meet();
    meet_settled();
    look(ep, 200);
    look(ep, 0);
    MUST(ctl(ep, MOD, fd, EPOLLIN | EPOLLONESHOT, 2));
    look(ep, 1000);
    look(ep, 0);
    fclose(f);
}
static void rests_b(void) {
    int fd = conn();
    struct linger at_once = {1, 0};
    meet();
    put(fd, "fives", 5);
    meet();
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    close(fd);
    meet_settled();
}

/* The word of a pipe that was closed as a member, used again: told once on TCP, and not again when the connection has gone to memory. */
static void again_a(void) {
    int fd = conn_cold(), ep = MUST(epoll_create1(EPOLL_CLOEXEC)), p[2];
    MUST(pipe(p));
    MUST(ctl(ep, ADD, p[0], EPOLLIN, WORD));
    close(p[0]);
    close(p[1]);
    MUST(ctl(ep, ADD, fd, EPOLLIN | EPOLLONESHOT, WORD));
    meet();
    look(ep, 10000);
    R(recv(fd, buf, 5, MSG_WAITALL));
    warm(fd);
    meet();
    meet_settled();
    look(ep, 200);
    R(recv(fd, buf, 5, MSG_WAITALL));
    MUST(ctl(ep, MOD, fd, EPOLLIN | EPOLLONESHOT, WORD));
    look(ep, 20);
    meet();
    look(ep, 10000);
    look(ep, 20);
    R(recv(fd, buf, 5, MSG_WAITALL));
    meet();
}
static void again_b(void) {
    int fd = conn_cold();
    meet();
    put(fd, "fives", 5);
    warm(fd);
    meet();
    put(fd, "sixes", 5);
    meet_settled();
    meet();
    put(fd, "seven", 5);
    meet();
}

const struct test tests[] = {{"many", many_a, many_b, 0}, {"mixed", mixed_a, mixed_b, 0}, {"rests", rests_a, rests_b, 0},
                             {"again", again_a, again_b, 0}, {0}};
