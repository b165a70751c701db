/* Owns: one look at an epoll set, with all that it tells in order, and an end that sends between the looks. */
#pragma once
#include "sets.h"

static void look(int ep, int ms) {
    struct epoll_event e[16];
    int n = epoll_wait(ep, e, 16, ms);
    char text[600] = "";
    if (n > 0)
        qsort(e, n, sizeof *e, by_data);
    for (int i = 0; i < n; i++)
        sprintf(text + strlen(text), " %x:%llx", e[i].events, (unsigned long long)e[i].data.u64);
    say("epoll_wait = %d%s", n, text);
}
static void next(void) {
    meet();
    meet_settled();
}
/* Five bytes before each look, and then the end. */
static void fives(int fd, int times) {
    for (int i = 0; i < times; i++) {
        meet();
        put(fd, "fives", 5);
        meet_settled();
    }
    char c;
    R(recv(fd, &c, 1, 0));
}
