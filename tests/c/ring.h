/* Owns: a ring of io_uring, as programs have it that use no liburing: made and entered by `call`, which is syscall(2), or raw() that nobody sees. */
#pragma once
#include "case.h"
#include <linux/io_uring.h>

enum { NO_ARRAY = 1 << 16 }; /* IORING_SETUP_NO_SQARRAY, of Linux 6.6 */

typedef long ring_call(long n, long a, long b, long c, long d, long e, long f);
struct ring {
    ring_call *call;
    int fd;
    unsigned entries, *sq_tail, *sq_array, *cq_head, *cq_tail;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    unsigned cq_mask;
};

static inline long by_syscall(long n, long a, long b, long c, long d, long e, long f) {
    long r = syscall(n, a, b, c, d, e, f);
    return r < 0 ? -errno : r;
}

/* False where the kernel has no such ring for this process: then each run says so. */
static inline int make_ring(struct ring *r, ring_call *call, unsigned entries, unsigned flags) {
    struct io_uring_params p = {.flags = flags};
    r->call = call;
    r->fd = (int)call(SYS_io_uring_setup, entries, (long)&p, 0, 0, 0, 0);
    if (r->fd < 0) {
        say("no io_uring with %#x", flags);
        return 0;
    }
    size_t sq = p.sq_off.array + p.sq_entries * 4, cq = p.cq_off.cqes + p.cq_entries * sizeof *r->cqes;
    int shared = MAP_SHARED | MAP_POPULATE;
    char *s = mmap(NULL, sq < cq ? cq : sq, PROT_READ | PROT_WRITE, shared, r->fd, IORING_OFF_SQ_RING); /* both, since 5.4 */
    r->sqes = mmap(NULL, p.sq_entries * sizeof *r->sqes, PROT_READ | PROT_WRITE, shared, r->fd, IORING_OFF_SQES);
    if (s == MAP_FAILED || (void *)r->sqes == MAP_FAILED)
        die("mmap of the ring");
    r->entries = p.sq_entries;
    r->sq_tail = (unsigned *)(s + p.sq_off.tail);
    r->sq_array = flags & NO_ARRAY ? NULL : (unsigned *)(s + p.sq_off.array);
    r->cq_head = (unsigned *)(s + p.cq_off.head);
    r->cq_tail = (unsigned *)(s + p.cq_off.tail);
    r->cq_mask = *(unsigned *)(s + p.cq_off.ring_mask);
    r->cqes = (struct io_uring_cqe *)(s + p.cq_off.cqes);
    return 1;
}

/* One more entry; the ring must have room. */
static inline void ring_add(struct ring *r, struct io_uring_sqe e) {
    unsigned tail = *r->sq_tail, at = tail & (r->entries - 1), place = at;
    if (r->sq_array) {
        place = r->entries - 1 - at; /* the array says where */
        r->sq_array[at] = place;
    }
    r->sqes[place] = e;
    __atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
}
static inline long ring_enter(struct ring *r, unsigned n) { return r->call(SYS_io_uring_enter, r->fd, n, n, IORING_ENTER_GETEVENTS, 0, 8); }
/* The next completion: its result, and whose it is. */
static inline int ring_next(struct ring *r, uint64_t *whose) {
    unsigned head = *r->cq_head;
    if (head == __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE))
        die("no completion");
    const struct io_uring_cqe *e = &r->cqes[head & r->cq_mask];
    int result = e->res;
    if (whose)
        *whose = e->user_data;
    __atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
    return result;
}
/* One request, and what it gives. */
static inline int ring_does(struct ring *r, struct io_uring_sqe e) {
    ring_add(r, e);
    if (ring_enter(r, 1) != 1)
        die("io_uring_enter");
    return ring_next(r, NULL);
}

static inline struct io_uring_sqe ring_ctl(int ep, int op, int fd, struct epoll_event *e) {
    return (struct io_uring_sqe){.opcode = IORING_OP_EPOLL_CTL, .fd = ep, .len = (unsigned)op, .off = (unsigned)fd, .addr = (uintptr_t)e};
}
/* epoll_ctl, by the ring. */
static inline int ctl_by_ring(struct ring *r, int ep, int op, int fd, uint32_t ev, uint64_t data) {
    struct epoll_event e = {ev, {.u64 = data}};
    int result = ring_does(r, ring_ctl(ep, op, fd, &e));
    errno = result < 0 ? -result : errno;
    return result < 0 ? -1 : result;
}
