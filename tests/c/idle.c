/* Owns: programs that wait, each in another way, after their connection has moved to memory. They
 * end when they are killed; the harness counts what they use meanwhile. */
#include "case.h"

static char buf[100];

static int ready(void) {
    int fd = conn();
    say("idle");
    return fd;
}
static void in_recv(void) { R(recv(ready(), buf, 100, 0)); }
static void in_poll(void) { R(events(ready(), POLLIN, -1)); }
static void in_select(void) {
    int fd = ready();
    fd_set r;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    R(select(fd + 1, &r, NULL, NULL, NULL));
}
static void in_epoll(uint32_t flags, int unseen) {
    int fd = conn(), ep = epoll_create1(0);
    struct epoll_event e = {EPOLLIN | flags, {.fd = fd}};
    if (unseen)
        MUST(raw(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, fd, (long)&e, 0, 0));
    else
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    nonblocking(fd, 1);
    R(recv(fd, buf, 1, 0));
    say("idle");
    if (unseen)
        R(raw(SYS_epoll_pwait, ep, (long)&e, 1, -1, 0, 8));
    else
        R(epoll_wait(ep, &e, 1, -1));
}
static void in_epoll_level(void) { in_epoll(0, 0); }
static void in_epoll_edge(void) { in_epoll(EPOLLET, 0); }
static void in_raw_epoll(void) { in_epoll(0, 1); }
static void in_pause(void) {
    ready();
    pause();
}
/* The peer's buffers are full and it doesn't read. */
static void in_send(void) {
    char *big = calloc(1, 64 * MIB);
    int fd = ready();
    R(send(fd, big, 64 * MIB, 0));
}
/* Bytes that nobody reads wait here. */
static void unread(void) {
    int fd = conn();
    put(fd, "unread", 6);
    say("idle");
    pause();
}
/* A hundred idle connections in one set. */
static void many(void) {
    int l = is_a ? listen_on(PORT) : -1, ep = epoll_create1(0);
    meet();
    for (int i = 0; i < 100; i++) {
        int fd = is_a ? accept_from(l) : dial(PORT);
        if (i < 10)
            warm(fd);
        struct epoll_event e = {EPOLLIN, {.fd = fd}};
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    }
    say("idle");
    struct epoll_event e;
    R(epoll_wait(ep, &e, 1, -1));
}

const struct test tests[] = {{"recv", in_recv, in_recv, 0},
                             {"poll", in_poll, in_poll, 0},
                             {"select", in_select, in_select, 0},
                             {"epoll_level", in_epoll_level, in_epoll_level, 0},
                             {"epoll_edge", in_epoll_edge, in_epoll_edge, 0},
                             {"raw_epoll", in_raw_epoll, in_raw_epoll, 0},
                             {"pause", in_pause, in_recv, 0},
                             {"send", in_send, in_pause, 0},
                             {"unread", unread, unread, 0},
                             {"many", many, many, 0},
                             {0}};
