/* Owns: epoll by system calls that don't go through libc. */
#pragma once
#include "case.h"

static inline int raw_epoll(void) { return (int)raw(SYS_epoll_create1, 0, 0, 0, 0, 0, 0); }
static inline int raw_ctl(int ep, int op, int fd, uint32_t ev, uint64_t data) {
    struct epoll_event e = {ev, {.u64 = data}};
    return (int)raw(SYS_epoll_ctl, ep, op, fd, (long)&e, 0, 0);
}
static inline int raw_wait(int ep, struct epoll_event *e, int ms) {
    return (int)raw(SYS_epoll_pwait, ep, (long)e, 1, ms, 0, 8);
}

/* A connection whose listening end has waited by raw poll alone, and was never refused: of its reader the library knows nothing.
 * It is warmed up as by conn(). */
static inline int conn_raw(void) {
    enum { SMALL = 50, ALL = 250, SIZE = 8 * KIB };
    static char buf[SIZE];
    int fd = conn_cold();
    long before = lo_bytes(), through = 0;
    for (int i = 0; i < ALL; i++) {
        size_t n = i < SMALL ? 64 : SIZE;
        if (is_a) {
            for (size_t have = 0; have < n;) {
                if (raw_poll(fd, POLLIN, 5000) != POLLIN)
                    die("raw warm-up: no event");
                ssize_t r = recv(fd, buf + have, n - have, 0);
                if (r <= 0)
                    die("raw warm-up");
                have += r;
            }
            put(fd, buf, n);
        } else {
            fill(buf, n, i, 1);
            put(fd, buf, n);
            if (get(fd, buf, n) != n || !matches(buf, n, i, 1))
                die("raw warm-up");
        }
        through += 2 * n;
    }
    if (!is_a)
        warmed(through, lo_bytes() - before);
    settle();
    return fd;
}
