/* Owns: what all cases of epoll say in short. */
#pragma once
#include "case.h"

enum { ADD = EPOLL_CTL_ADD, MOD = EPOLL_CTL_MOD, DEL = EPOLL_CTL_DEL };

static inline int ctl(int ep, int op, int fd, uint32_t ev, uint64_t data) {
    struct epoll_event e = {ev, {.u64 = data}};
    return epoll_ctl(ep, op, fd, &e);
}

/* The order in which events are shown. */
static inline int by_data(const void *a, const void *b) {
    const struct epoll_event *x = a, *y = b;
    return x->data.u64 < y->data.u64 ? -1 : x->data.u64 > y->data.u64;
}
