/* Owns: lengths beyond the space of addresses: the kernel cuts what is too much for one call, or says EFAULT, before it looks at
 * the socket. */
#include "case.h"

static char buf[64 * KIB];
static const size_t lengths[] = {SIZE_MAX, SIZE_MAX - 5, (size_t)SSIZE_MAX + 1, SSIZE_MAX, SSIZE_MAX - MIB, (size_t)1 << 62, (size_t)1 << 48,
                                 (size_t)1 << 47, INT_MAX, INT_MAX - 4096 + 1, UINT_MAX};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static ssize_t one(int fd, int how, size_t n, int flags) {
    struct iovec v = {buf, n}, two[2] = {{buf, 2}, {buf + 2, n}};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1}, m2 = {.msg_iov = two, .msg_iovlen = 2};
    struct mmsghdr mm = {.msg_hdr = m};
    errno = 0;
    switch (how) {
    case 0:
        return read(fd, buf, n);
    case 1:
        return recv(fd, buf, n, flags);
    case 2:
        return recvfrom(fd, buf, n, flags, NULL, NULL);
    case 3:
        return readv(fd, &v, 1);
    case 4:
        return readv(fd, two, 2);
    case 5:
        return recvmsg(fd, &m, flags);
    case 6:
        return recvmsg(fd, &m2, flags);
    case 7:
        return recvmmsg(fd, &mm, 1, flags, NULL) == 1 ? (ssize_t)mm.msg_len : -1;
    case 8:
        return syscall(SYS_read, fd, buf, n);
    default:
        return preadv2(fd, two, 2, -1, 0);
    }
}
enum { WAYS = 10 };

/* All ways with all lengths: with bytes there, then without. Ten bytes lie there each time. */
static void receive_a(void) {
    int fd = conn();
    nonblocking(fd, 1);
    for (int how = 0; how < WAYS; how++)
        for (int i = 0; i < LENGTHS; i++) {
            meet();
            if (!(events(fd, POLLIN, 5000) & POLLIN))
                die("nothing came");
            memset(buf, 0, 20);
            ssize_t n = one(fd, how, lengths[i], 0);
            say("%d %zx: %zd %s '%.12s'", how, lengths[i], n, n < 0 ? err_name(errno) : "", buf);
            n = one(fd, how, lengths[i], MSG_PEEK);
            say("    again: %zd %s", n, n < 0 ? err_name(errno) : "");
            while (recv(fd, buf, sizeof buf, 0) > 0)
                ;
            n = one(fd, how, lengths[i], 0);
            say("    empty: %zd %s", n, n < 0 ? err_name(errno) : "");
        }
    R(shutdown(fd, SHUT_WR));
}
static void receive_b(void) {
    int fd = conn();
    for (int i = 0; i < WAYS * LENGTHS; i++) {
        meet();
        put(fd, "0123456789", 10);
    }
    R(recv(fd, buf, 1, 0));
}

/* A reader that waits is told before it does. */
static void waiting_a(void) {
    int fd = conn();
    for (int how = 0; how < WAYS; how++)
        for (int i = 0; i < 4; i++) {
            meet();
            ssize_t n = one(fd, how, lengths[i], 0);
            say("%d %zx: %zd %s", how, lengths[i], n, n < 0 ? err_name(errno) : "");
            meet();
            while (recv(fd, buf, sizeof buf, MSG_DONTWAIT) > 0)
                ;
        }
    R(shutdown(fd, SHUT_WR));
}
static void waiting_b(void) {
    int fd = conn();
    for (int i = 0; i < WAYS * 4; i++) {
        meet();
        settle();
        put(fd, "0123456789", 10);
        meet();
    }
    R(recv(fd, buf, 1, 0));
}

/* Sending: only what the kernel refuses as it is; what it begins ends where memory does. */
static void send_a(void) {
    int fd = conn();
    for (int i = 0; i < 8; i++) {
        struct iovec v = {buf, lengths[i]}, two[2] = {{buf, 2}, {buf + 2, lengths[i]}};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1}, m2 = {.msg_iov = two, .msg_iovlen = 2};
        struct mmsghdr mm[2] = {{.msg_hdr = {.msg_iov = two, .msg_iovlen = 1}}, {.msg_hdr = m2}};
        say("%zx", lengths[i]);
        R(write(fd, buf, lengths[i]));
        if (lengths[i] > SSIZE_MAX) { /* the only one is cut, if it is a length at all */
            R(writev(fd, &v, 1));
            R(sendmsg(fd, &m, 0));
        }
        R(writev(fd, two, 2));
        R(pwritev2(fd, two, 2, -1, 0));
        R(sendmsg(fd, &m2, 0));
        R(sendmmsg(fd, mm, 2, 0));
        R(syscall(SYS_write, fd, buf, lengths[i]));
    }
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void send_b(void) {
    int fd = conn();
    say("%zu", get(fd, buf, sizeof buf));
}

const struct test tests[] = {{"receive", receive_a, receive_b, 0}, {"waiting", waiting_a, waiting_b, 0}, {"send", send_a, send_b, 0}, {0}};
