/* Owns: what all cases of epoll say in short. */
#pragma once
#include "case.h"

enum { ADD = EPOLL_CTL_ADD, MOD = EPOLL_CTL_MOD, DEL = EPOLL_CTL_DEL };

static inline int ctl(int ep, int op, int fd, uint32_t ev, uint64_t data) {
    struct epoll_event e = {ev, {.u64 = data}};
    return epoll_ctl(ep, op, fd, &e);
}

/* A new set of this one, under its own number. */
static inline int set_of(int fd, uint32_t ev) {
    int ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(ctl(ep, ADD, fd, ev, fd));
    return ep;
}

/* The order in which events are shown. */
static inline int by_data(const void *a, const void *b) {
    const struct epoll_event *x = a, *y = b;
    return x->data.u64 < y->data.u64 ? -1 : x->data.u64 > y->data.u64;
}

/* Which events, and whose. */
enum { EVENTS_TEXT = 1000 };
static inline void list_events(char text[EVENTS_TEXT], struct epoll_event *e, int n) {
    *text = 0;
    if (n > 0)
        qsort(e, n, sizeof *e, by_data);
    for (int i = 0; i < n; i++)
        sprintf(text + strlen(text), " %s:%llx", epoll_text(e[i].events), (unsigned long long)e[i].data.u64);
}

/* One wait, and how many they are. */
static inline int look(int ep, int ms) {
    struct epoll_event e[16];
    int n = epoll_wait(ep, e, 16, ms);
    char text[EVENTS_TEXT];
    list_events(text, e, n);
    say("epoll_wait(%d) = %d%s%s", ms, n, text, n < 0 ? err_name(errno) : "");
    return n;
}
