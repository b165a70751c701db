/* Owns: what a set owes members in memory beside others and beside time: their turn, waits as short as asked for, an end at the first
 * look, and edges of what was asked for alone. */
#include "looks.h"

static char buf[100];

/* Descriptors of the kernel's that stay ready, and room for one event: who is in memory has its turn. */
static void turn_a(void) {
    int fd = conn(), ep = epoll_create1(0), p[2][2], told[3] = {0};
    for (int i = 0; i < 2; i++) {
        MUST(pipe(p[i]));
        MUST(ctl(ep, ADD, p[i][0], EPOLLIN, 1 + i));
    }
    MUST(ctl(ep, ADD, fd, EPOLLIN, 0));
    look(ep, 0);
    for (int i = 0; i < 2; i++)
        MUST(write(p[i][1], "x", 1));
    meet();
    meet_settled();
    for (int i = 0; i < 30; i++) {
        struct epoll_event e;
        if (epoll_wait(ep, &e, 1, i % 2 ? 0 : 1000) == 1)
            told[e.data.u64]++;
        usleep(1000);
    }
    for (int i = 0; i < 3; i++)
        say("%d: %s", i, told[i] > 5 ? "often" : told[i] ? "seldom" : "never");
    R(recv(fd, buf, 5, 0));
    meet();
}
static void turn_b(void) {
    int fd = conn();
    meet();
    put(fd, "fives", 5);
    meet_settled();
    meet();
}

/* Times shorter than a millisecond. */
enum { WAITS = 3000, LONGEST_S = 2 };
static void short_waits(int hot) {
    int fd = conn(), ep = epoll_create1(0);
    struct epoll_event e;
    struct timespec t = {0, 50 * 1000}, from, to;
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    look(ep, hot ? 0 : 1300);
    MUST(clock_gettime(CLOCK_MONOTONIC, &from));
    for (int i = 0; i < WAITS; i++)
        if (epoll_pwait2(ep, &e, 1, &t, NULL) != 0)
            die("epoll_pwait2");
    MUST(clock_gettime(CLOCK_MONOTONIC, &to));
    long took = (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000;
    say("short: %d, waited: %d", took < LONGEST_S * 1000, took >= WAITS / 20);
    t = (struct timespec){0, 300 * 1000 * 1000};
    meet();
    R(epoll_pwait2(ep, &e, 1, &t, NULL));
    R(recv(fd, buf, 5, 0));
    meet();
}
static void short_a(void) { short_waits(1); }
static void short_cold_a(void) { short_waits(0); }
static void short_b(void) {
    int fd = conn();
    meet();
    put(fd, "fives", 5);
    meet();
}

/* The end is there: a look that takes no time tells it at once. */
static void end_at_once(uint32_t asked) {
    int fd = conn(), ep = epoll_create1(0);
    MUST(ctl(ep, ADD, fd, asked, 1));
    for (int i = 0; i < 3; i++)
        look(ep, 0);
    meet();
    meet_settled();
    look(ep, 0);
    look(ep, 0);
    R(recv(fd, buf, 1, 0));
}
static void end_level_a(void) { end_at_once(EPOLLIN | EPOLLRDHUP); }
static void end_alone_a(void) { end_at_once(EPOLLRDHUP); }
static void end_edge_a(void) { end_at_once(EPOLLIN | EPOLLRDHUP | EPOLLET); }
static void end_b(void) {
    int fd = conn();
    meet();
    shutdown(fd, SHUT_WR);
    meet_settled();
    recv(fd, buf, 1, 0);
}

/* The end was there when its set told of data: a look that takes no time tells it as soon as these are read, to whoever reads them. */
static void end_behind(uint32_t asked) {
    int fd = conn(), ep = epoll_create1(0);
    MUST(ctl(ep, ADD, fd, asked, 1));
    look(ep, 0);
    meet();
    meet_settled();
    for (int i = 0; i < 3; i++)
        look(ep, 0);
    R(recv(fd, buf, 20, MSG_PEEK));
    R(recv(fd, buf, 5, 0));
    look(ep, 0);
    R(recv(fd, buf, 5, 0));
    for (int i = 0; i < 3; i++)
        look(ep, 0);
    R(recv(fd, buf, 5, 0));
    look(ep, 0);
    meet();
}
static void end_behind_a(void) { end_behind(EPOLLIN); }
static void end_behind_rdhup_a(void) { end_behind(EPOLLIN | EPOLLRDHUP); }
static void two_fives(int ends) {
    int fd = conn();
    meet();
    put(fd, "fivesfives", 10);
    if (ends)
        shutdown(fd, SHUT_WR);
    meet_settled();
    meet();
}
static void end_behind_b(void) { two_fives(1); }

/* One's own end, which a level shows as well. */
static void own_end_a(void) {
    int fd = conn(), ep = epoll_create1(0);
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    look(ep, 0);
    meet();
    meet_settled();
    R(shutdown(fd, SHUT_RD));
    for (int i = 0; i < 3; i++)
        look(ep, 0);
    R(recv(fd, buf, 10, 0));
    for (int i = 0; i < 3; i++)
        look(ep, 0);
    meet();
}
static void own_end_b(void) { two_fives(0); }

/* What comes by TCP was there when its set told of what lies in memory before that. */
static void tcp_behind(uint32_t asked) {
    int fd = conn(), ep = epoll_create1(0);
    MUST(ctl(ep, ADD, fd, asked, 1));
    look(ep, 0);
    meet();
    meet_settled();
    for (int i = 0; i < 3; i++)
        look(ep, 0);
    R(recv(fd, buf, 5, 0));
    look(ep, 0);
    R(recv(fd, buf, 5, 0));
    look(ep, 0);
    meet();
}
static void tcp_behind_a(void) { tcp_behind(EPOLLIN); }
static void tcp_behind_rdhup_a(void) { tcp_behind(EPOLLIN | EPOLLRDHUP); }
static void tcp_behind_b(void) {
    int fd = conn();
    meet();
    put(fd, "fives", 5);
    union {
        struct cmsghdr h;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.h = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SO_TIMESTAMPING}}; /* of nothing; it is for the kernel's TCP */
    struct iovec v = {"fives", 5};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    R(sendmsg(fd, &m, 0));
    meet_settled();
    meet();
}

/* Edges of room alone: what arrives is none, an end is, and so is one's own. */
static void *ends_later(void *fd) {
    settle();
    MUST(shutdown(*(int *)fd, SHUT_WR));
    return NULL;
}
static void room_alone_a(void) {
    int fd = conn(), ep = epoll_create1(0);
    pthread_t t;
    MUST(ctl(ep, ADD, fd, EPOLLOUT | EPOLLET, 1));
    look(ep, 1000);
    for (int i = 0; i < 4; i++) {
        if (i == 2) {
            MUST(ctl(ep, MOD, fd, EPOLLOUT | EPOLLRDHUP | EPOLLET, 2));
            look(ep, 1000);
        }
        next();
        look(ep, i % 2 ? 20 : 0);
    }
    R(recv(fd, buf, 20, 0));
    look(ep, 20);
    pthread_create(&t, NULL, ends_later, &fd);
    look(ep, 10000);
    pthread_join(t, NULL);
    look(ep, 0);
    MUST(shutdown(fd, SHUT_WR));
    look(ep, 0);
    meet();
    meet_settled();
    look(ep, 1000);
}
static void room_alone_b(void) {
    int fd = conn();
    fives(fd, 4);
    meet();
    shutdown(fd, SHUT_WR);
    meet_settled();
}

const struct test tests[] = {{"turn", turn_a, turn_b, 0},
                             {"short", short_a, short_b, 0},
                             {"short_cold", short_cold_a, short_b, 0},
                             {"end_level", end_level_a, end_b, 0},
                             {"end_alone", end_alone_a, end_b, 0},
                             {"end_edge", end_edge_a, end_b, 0},
                             {"end_behind", end_behind_a, end_behind_b, 0},
                             {"end_behind_rdhup", end_behind_rdhup_a, end_behind_b, 0},
                             {"own_end", own_end_a, own_end_b, 0},
                             {"tcp_behind", tcp_behind_a, tcp_behind_b, 0},
                             {"tcp_behind_rdhup", tcp_behind_rdhup_a, tcp_behind_b, 0},
                             {"room_alone", room_alone_a, room_alone_b, 0},
                             {0}};
