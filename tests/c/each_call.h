/* Owns: every call that waits for data, an event or room, as a table. Used by the cases of what ends such a wait: waits.c, expires.c. */
#pragma once
#include "case.h"

static char buf[64 * KIB];

typedef long (*waiter)(int fd);

/* ---- calls that wait for three bytes ---- */

static struct iovec three = {buf, 3};
static long w_recv(int fd) { return recv(fd, buf, 3, 0); }
static long w_read(int fd) { return read(fd, buf, 3); }
static long w_readv(int fd) { return readv(fd, &three, 1); }
static long w_recvfrom(int fd) { return recvfrom(fd, buf, 3, 0, NULL, NULL); }
static long w_recvmsg(int fd) { return recvmsg(fd, &(struct msghdr){.msg_iov = &three, .msg_iovlen = 1}, 0); }
static long w_recvmmsg(int fd) {
    return recvmmsg(fd, &(struct mmsghdr){.msg_hdr = {.msg_iov = &three, .msg_iovlen = 1}}, 1, 0, NULL);
}
static long w_preadv2(int fd) { return preadv2(fd, &three, 1, -1, 0); }
static long w_waitall(int fd) { return recv(fd, buf, 3, MSG_WAITALL); }
static long w_peek(int fd) { return recv(fd, buf, 3, MSG_PEEK); }
static int pipes[2];
static long w_splice(int fd) { return splice(fd, NULL, pipes[1], NULL, 3, 0); }

/* ---- calls that wait for an event ---- */

static short wanted = POLLIN;
static int set;
static long w_poll(int fd) { return poll(&(struct pollfd){fd, wanted, 0}, 1, 20000); }
static long w_ppoll(int fd) { return ppoll(&(struct pollfd){fd, wanted, 0}, 1, NULL, NULL); }
static long by_sets(int fd, int p) {
    fd_set of;
    FD_ZERO(&of);
    FD_SET(fd, &of);
    fd_set *r = wanted == POLLIN ? &of : NULL, *w = r ? NULL : &of;
    return p ? pselect(fd + 1, r, w, NULL, NULL, NULL) : select(fd + 1, r, w, NULL, NULL);
}
static long w_select(int fd) { return by_sets(fd, 0); }
static long w_pselect(int fd) { return by_sets(fd, 1); }
static struct epoll_event some[1];
static long w_epoll_wait(int fd) { return epoll_wait(set, some, 1, -1); }
static long w_epoll_pwait(int fd) { return epoll_pwait(set, some, 1, 20000, NULL); }
static long w_epoll_pwait2(int fd) { return epoll_pwait2(set, some, 1, NULL, NULL); }

/* ---- calls that wait for room for ten bytes ---- */

static struct iovec ten = {buf, 10};
static long w_send(int fd) { return send(fd, buf, 10, 0); }
static long w_write(int fd) { return write(fd, buf, 10); }
static long w_writev(int fd) { return writev(fd, &ten, 1); }
static long w_sendto(int fd) { return sendto(fd, buf, 10, 0, NULL, 0); }
static long w_sendmsg(int fd) { return sendmsg(fd, &(struct msghdr){.msg_iov = &ten, .msg_iovlen = 1}, 0); }
static long w_sendmmsg(int fd) {
    return sendmmsg(fd, &(struct mmsghdr){.msg_hdr = {.msg_iov = &ten, .msg_iovlen = 1}}, 1, 0);
}
static long w_pwritev2(int fd) { return pwritev2(fd, &ten, 1, -1, 0); }
/* The pipe has what it gives; on a full connection it keeps it. */
static long w_splice_in(int fd) {
    if (now_in(pipes[0]) < 10)
        MUST(write(pipes[1], buf, 10));
    return splice(pipes[0], NULL, fd, NULL, 10, 0);
}
static int file;
static long w_sendfile(int fd) { return sendfile(fd, file, &(off_t){0}, 10); }

struct call {
    const char *name;
    waiter wait;
};
#define CALL(name) {#name, w_##name}
static const struct call receives[] = {CALL(recv),     CALL(read),    CALL(readv), CALL(recvfrom), CALL(recvmsg), CALL(recvmmsg),
                                       CALL(preadv2),  CALL(waitall), CALL(peek),  CALL(splice),   {0}},
                         events_in[] = {CALL(poll),    CALL(ppoll),       CALL(select),      CALL(pselect), CALL(epoll_wait),
                                        CALL(epoll_pwait), CALL(epoll_pwait2), {0}},
                         sends[] = {CALL(send), CALL(write), CALL(writev), CALL(sendto), CALL(sendmsg), CALL(sendmmsg), CALL(pwritev2),
                                    CALL(splice_in), CALL(sendfile), {0}};

/* Everything that the calls need, for this connection. */
static int ready(int fd) {
    MUST(pipe(pipes));
    MUST(set = epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = wanted}));
    MUST(file = memfd_create("file", MFD_CLOEXEC));
    MUST(ftruncate(file, 100));
    return fd;
}
