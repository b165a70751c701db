/* Owns: bytes and waits by the numbers of syscall(2) on connections in memory, mixed with libc's functions on the same descriptors. */
#include "sets.h"

static char buf[64 * KIB];

static void over(int fd) {
    R(syscall(SYS_shutdown, fd, SHUT_WR));
    R(syscall(SYS_recvfrom, fd, buf, 10L, 0L, NULL, NULL));
    meet();
}
static void echo_b(void) {
    echo_until_end(conn());
    meet();
}

/* ---- bytes ---- */

/* In two parts, as far as there are two. */
static struct msghdr in_parts(struct iovec v[2], void *p, size_t n) {
    v[0] = (struct iovec){p, n / 3};
    v[1] = (struct iovec){(char *)p + n / 3, n - n / 3};
    return (struct msghdr){.msg_iov = v, .msg_iovlen = 2};
}
enum { SENDS = 13, RECEIVES = 14 };
static long sends(int fd, void *p, size_t n, unsigned way) {
    struct iovec v[2];
    struct msghdr m = in_parts(v, p, n);
    struct mmsghdr mm = {.msg_hdr = m};
    long none = MSG_NOSIGNAL;
    switch (way % SENDS) {
    case 0: return send(fd, p, n, MSG_NOSIGNAL);
    case 1: return syscall(SYS_sendto, fd, p, n, none, NULL, 0L);
    case 2: return write(fd, p, n);
    case 3: return syscall(SYS_write, fd, p, n);
    case 4: return writev(fd, v, 2);
    case 5: return syscall(SYS_writev, fd, v, 2L);
    case 6: return sendmsg(fd, &m, MSG_NOSIGNAL);
    case 7: return syscall(SYS_sendmsg, fd, &m, none);
    case 8: return sendmmsg(fd, &mm, 1, MSG_NOSIGNAL) == 1 ? (long)mm.msg_len : -1;
    case 9: return syscall(SYS_sendmmsg, fd, &mm, 1L, none) == 1 ? (long)mm.msg_len : -1;
    case 10: return pwritev2(fd, v, 2, -1, 0);
    case 11: return syscall(SYS_pwritev2, fd, v, 2L, -1L, -1L, 0L);
    default: return syscall(SYS_sendto, fd, p, n, none | MSG_DONTWAIT, NULL, 0L);
    }
}
static long receives(int fd, void *p, size_t n, unsigned way) {
    struct iovec v[2];
    struct msghdr m = in_parts(v, p, n);
    struct mmsghdr mm = {.msg_hdr = m};
    switch (way % RECEIVES) {
    case 0: return recv(fd, p, n, 0);
    case 1: return syscall(SYS_recvfrom, fd, p, n, 0L, NULL, NULL);
    case 2: return read(fd, p, n);
    case 3: return syscall(SYS_read, fd, p, n);
    case 4: return readv(fd, v, 2);
    case 5: return syscall(SYS_readv, fd, v, 2L);
    case 6: return recvmsg(fd, &m, 0);
    case 7: return syscall(SYS_recvmsg, fd, &m, 0L);
    case 8: return recvmmsg(fd, &mm, 1, 0, NULL) == 1 ? (long)mm.msg_len : -1;
    case 9: return syscall(SYS_recvmmsg, fd, &mm, 1L, 0L, NULL) == 1 ? (long)mm.msg_len : -1;
    case 10: return preadv2(fd, v, 2, -1, 0);
    case 11: return syscall(SYS_preadv2, fd, v, 2L, -1L, -1L, 0L);
    case 12: return syscall(SYS_recvfrom, fd, p, n, (long)MSG_DONTWAIT, NULL, NULL);
    default: return syscall(SYS_recvfrom, fd, p, n, (long)MSG_PEEK, NULL, NULL) < 0 ? -1 : syscall(SYS_recvfrom, fd, p, n, 0L, NULL, NULL);
    }
}
/* What a socket refuses, whoever asks. */
static void refused(int fd, unsigned way) {
    char c[2];
    struct iovec v = {c, 1};
    long n = 0;
    errno = 0;
    switch (way % 6) {
    case 0: n = syscall(SYS_pread64, fd, c, 1L, 0L); break;
    case 1: n = syscall(SYS_pwrite64, fd, c, 1L, 0L); break;
    case 2: n = syscall(SYS_preadv, fd, &v, 1L, 0L, 0L); break;
    case 3: n = syscall(SYS_pwritev, fd, &v, 1L, 0L, 0L); break;
    case 4: n = syscall(SYS_preadv2, fd, &v, 1L, 0L, 0L, 0L); break;
    case 5: n = syscall(SYS_pwritev2, fd, &v, 1L, 7L, 0L, 0L); break;
    }
    if (n != -1 || errno != ESPIPE)
        die("not refused");
}
enum { MUCH = 3 * MIB };
static void puts_all(int fd, long all, unsigned seed) {
    unsigned r = seed;
    for (long o = 0; o < all;) {
        long most = rnd(&r) % 4 ? 1 + rnd(&r) % 3000 : 1 + rnd(&r) % sizeof buf, n = most < all - o ? most : all - o;
        unsigned way = rnd(&r);
        fill(buf, n, o, seed);
        if (way % 16 == 0)
            refused(fd, way >> 4);
        long m = sends(fd, buf, n, way);
        if (m < 0 && errno == EAGAIN) {
            events(fd, POLLOUT, 5000);
            continue;
        }
        if (m <= 0)
            die("sends");
        o += m;
    }
    payload(all);
}
static void gets_all(int fd, long all, unsigned seed) {
    static char in[64 * KIB];
    unsigned r = seed + 100;
    for (long o = 0; o < all;) {
        long most = rnd(&r) % 4 ? 1 + rnd(&r) % 3000 : 1 + rnd(&r) % sizeof in, n = most < all - o ? most : all - o;
        unsigned way = rnd(&r);
        if (way % 16 == 0)
            refused(fd, way >> 4);
        long m = receives(fd, in, n, way);
        if (m < 0 && errno == EAGAIN) {
            events(fd, POLLIN, 5000);
            continue;
        }
        if (m <= 0 || !matches(in, m, o, seed))
            die("receives");
        o += m;
    }
    say("%ld of stream %u: whole", all, seed);
}
static void *gets_beside(void *fd) {
    gets_all(*(int *)fd, MUCH, is_a ? 4 : 3);
    return NULL;
}
static void mixed(void) {
    int fd = conn();
    pthread_t t;
    is_a ? puts_all(fd, MUCH, 1) : gets_all(fd, MUCH, 1);
    is_a ? gets_all(fd, MUCH, 2) : puts_all(fd, MUCH, 2);
    unsigned sizes = 9;
    for (int i = 0; i < 300; i++) { /* there and back, of which each end knows the length */
        long n = 1 + rnd(&sizes) % (i % 5 ? 300 : 30000);
        for (int turn = 0; turn < 2; turn++)
            for (long o = 0, m; o < n; o += m) {
                if (turn != is_a)
                    fill(buf, n, 0, i);
                m = turn == is_a ? receives(fd, buf, n - o, i + o) : sends(fd, buf + o, n - o, i + o);
                if (m < 0 && errno == EAGAIN)
                    m = events(fd, turn == is_a ? POLLIN : POLLOUT, 5000) * 0;
                else if (m <= 0 || (turn == is_a && !matches(buf, m, o, i)))
                    die("there and back");
            }
    }
    MUST(-pthread_create(&t, NULL, gets_beside, &fd)); /* both directions at once */
    puts_all(fd, MUCH, is_a ? 3 : 4);
    pthread_join(t, NULL);
    meet();
}

/* Arguments wider than the kernel takes, and those that it refuses. */
static void wide_a(void) {
    int fd = conn(), n = -1;
    char text[] = "wide";
    struct iovec v = {text, 4}, w = {buf, 100};
    struct pollfd p = {fd, POLLIN, 0};
    long high = 1L << 32, wide = high | fd;
    R(syscall(SYS_write, wide, text, 4L));
    R(syscall(SYS_poll, &p, high | 1, 5000L));
    R(syscall(SYS_poll, &p, 1L, high | 5000));
    R(syscall(SYS_ppoll, &p, high | 1, NULL, NULL, 8L));
    for (int i = 0; i < 100 && (MUST(syscall(SYS_ioctl, wide, FIONREAD, &n)), n < 4); i++)
        settle();
    say("%d", n);
    n = -1;
    R(syscall(SYS_ioctl, fd, high | FIONREAD, &n));
    say("%d", n);
    R(syscall(SYS_readv, fd, &w, -1L));
    R(syscall(SYS_readv, fd, NULL, 1L));
    w.iov_len = 1;
    R(syscall(SYS_readv, fd, &w, high | 1));
    R(syscall(SYS_preadv2, fd, &w, high | 1, -1L, -1L, 0L));
    R(syscall(SYS_preadv2, fd, &w, 1L, -1L, -1L, high));
    R(syscall(SYS_recvfrom, wide, buf, 1L, high, NULL, NULL));
    R(syscall(SYS_writev, fd, &v, high | 1));
    R(get(fd, buf, 4));
    R(syscall(SYS_writev, fd, &v, 1025L));
    R(syscall(SYS_pwritev2, fd, &v, high | 1, -1L, -1L, 0L));
    R(get(fd, buf, 4));
    R(syscall(SYS_pwritev2, fd, &v, 1L, -1L, -1L, high));
    R(get(fd, buf, 4));
    R(syscall(SYS_sendto, fd, text, 4L, high, NULL, high));
    R(get(fd, buf, 4));
    R(syscall(SYS_fcntl, wide, high | F_GETFL) == fcntl(fd, F_GETFL));
    R(syscall(SYS_sendmsg, fd, NULL, 0L));
    R(syscall(SYS_recvmsg, fd, NULL, 0L));
    R(syscall(SYS_sendto, fd, NULL, 4L, 0L, NULL, 0L));
    R(syscall(SYS_recvfrom, -1L, buf, 4L, 0L, NULL, NULL));
    echo(fd, "then", 1);
    over(fd);
}

/* ---- waits ---- */

enum { WAITS = 12 };
static int level, second; /* the sets: by libc with its member by number, and the other way round */
static long waits(int fd, int which, int ms, const sigset_t *mask) {
    struct pollfd p = {fd, POLLIN | POLLRDHUP, 0};
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L}, *limit = ms < 0 ? NULL : &t;
    struct timeval tv = {ms / 1000, ms % 1000 * 1000L};
    const void *sized[2] = {mask, (void *)8};
    struct epoll_event e[4] = {{0}};
    fd_set r, w;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    w = r;
    long n = -2;
    int set = which % 2 ? second : level;
    errno = 0;
    switch (which) {
    case 0: n = syscall(SYS_poll, &p, 1L, (long)ms); break;
    case 1: n = syscall(SYS_ppoll, &p, 1L, limit, mask, 8L); break;
    case 2: n = syscall(SYS_select, fd + 1, &r, NULL, NULL, ms < 0 ? NULL : &tv); break;
    case 3: n = syscall(SYS_pselect6, fd + 1, &r, NULL, NULL, limit, mask ? sized : NULL); break;
    case 4: case 5: n = syscall(SYS_epoll_wait, set, e, 4L, (long)ms); break;
    case 6: case 7: n = syscall(SYS_epoll_pwait, set, e, 4L, (long)ms, mask, 8L); break;
    case 8: case 9: n = syscall(SYS_epoll_pwait2, set, e, 4L, limit, mask, 8L); break;
    case 10: n = epoll_wait(set, e, 4, ms); break;
    case 11:
        n = syscall(SYS_pselect6, fd + 1, &r, &w, NULL, limit, mask ? sized : NULL); break;
    }
    int error = errno;
    if (which < 2)
        say("%d: %ld %s %s", which, n, n < 0 ? err_name(error) : "", poll_text(p.revents));
    else if (which > 3 && which < 11)
        say("%d: %ld %s %s %d", which, n, n < 0 ? err_name(error) : "", epoll_text(n > 0 ? e[0].events : 0), n > 0 ? e[0].data.u32 : 0);
    else
        say("%d: %ld %s", which, n, n < 0 ? err_name(error) : n == 0 ? "none" : FD_ISSET(fd, &r) && which == 11 ? "both" : "some");
    return n;
}
static int has_mask(int which) { return which == 1 || which == 3 || (which > 5 && which < 10) || which == 11; }
static int sets_of(int fd) {
    struct epoll_event e = {EPOLLIN | EPOLLRDHUP, {.u32 = 5}};
    level = MUST(epoll_create1(EPOLL_CLOEXEC));
    R(syscall(SYS_epoll_ctl, level, ADD, fd, &e));
    second = MUST((int)syscall(SYS_epoll_create1, (long)EPOLL_CLOEXEC));
    return ctl(second, ADD, fd, EPOLLIN | EPOLLRDHUP, 6);
}
static void waits_a(void) {
    int fd = conn();
    R(sets_of(fd));
    for (int i = 0; i < WAITS; i++) {
        waits(fd, i, 0, NULL);
        waits(fd, i, 15, NULL);
        put(fd, "word", 4); /* which comes back */
        if (i == 11)
            events(fd, POLLIN, 10000);
        waits(fd, i, i % 2 ? 10000 : -1, NULL);
        R(get(fd, buf, 4));
    }
    MUST(shutdown(fd, SHUT_WR));
    for (int i = 0; i < WAITS; i++)
        waits(fd, i, 10000, NULL);
    R(syscall(SYS_epoll_ctl, level, DEL, fd, NULL));
    R(syscall(SYS_epoll_ctl, level, DEL, fd, NULL));
    R(syscall(SYS_epoll_wait, level, buf, 4L, 0L));
    R(syscall(SYS_epoll_create1, 1L));
    over(fd);
}

/* Signals that are let in for the time of the wait, with nothing there and with something. */
static volatile int signals;
static void counted(int sig) { signals += sig == SIGUSR1; }
static void masks_a(void) {
    int fd = conn();
    sigset_t all, open, pending;
    R(sets_of(fd));
    on_signal(SIGUSR1, counted, SA_RESTART);
    sigemptyset(&all);
    sigaddset(&all, SIGUSR1);
    sigprocmask(SIG_BLOCK, &all, &open);
    sigdelset(&open, SIGUSR1);
    for (int there = 0; there < 2; there++) {
        for (int i = 0; i < WAITS - 1; i++) {
            if (!has_mask(i))
                continue;
            raise(SIGUSR1);
            waits(fd, i, 10, &all);
            say("signals %d", signals);
            waits(fd, i, 10000, &open);
            say("signals %d", signals);
            sigpending(&pending);
            say("waits still %d", sigismember(&pending, SIGUSR1));
        }
        if (!there)
            put(fd, "word", 4);
        events(fd, POLLIN, 10000);
    }
    R(get(fd, buf, 4));
    sigprocmask(SIG_SETMASK, &open, NULL);
    say("signals %d", signals);
    over(fd);
}
/* What the kernel refuses of a wait before it looks for events. */
static void wrong_waits_a(void) {
    int fd = conn();
    struct epoll_event e[4];
    struct pollfd p = {fd, POLLOUT, 0};
    struct timespec t = {0, 0}, odd = {0, 1000000000}, less = {-1, 0};
    sigset_t mask;
    sigemptyset(&mask);
    R(sets_of(fd));
    R(ctl(second, MOD, fd, EPOLLOUT, 7));
    for (int i = 0; i < 2; i++) {
        int set = i ? second : level;
        R(syscall(SYS_epoll_pwait, set, e, 4L, 0L, &mask, 4L));
        R(syscall(SYS_epoll_pwait, set, e, 4L, 0L, &mask, 0L));
        R(syscall(SYS_epoll_pwait, set, e, 4L, 0L, &mask, 128L));
        R(syscall(SYS_epoll_pwait, set, e, 4L, 0L, NULL, 4L));
        R(syscall(SYS_epoll_pwait, set, e, 4L, 0L, (void *)16, 8L));
        R(syscall(SYS_epoll_pwait2, set, e, 4L, &t, &mask, 4L));
        R(syscall(SYS_epoll_pwait2, set, e, 4L, &t, NULL, 4L));
        R(syscall(SYS_epoll_pwait2, set, e, 4L, &odd, NULL, 8L));
        R(syscall(SYS_epoll_pwait2, set, e, 4L, &less, &mask, 8L));
        R(syscall(SYS_epoll_pwait2, set, e, 4L, (void *)16, NULL, 8L));
        R(syscall(SYS_epoll_wait, set, e, 0L, 0L));
        R(syscall(SYS_epoll_wait, set, e, -1L, 0L));
        R(syscall(SYS_epoll_wait, set, NULL, 4L, 0L));
        R(syscall(SYS_epoll_wait, set, e, (long)INT_MAX, 0L));
    }
    fd_set r;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    R(epoll_pwait(second, e, 4, 0, (void *)16));
    R(epoll_pwait2(second, e, 4, &t, (void *)16));
    R(epoll_pwait(second, NULL, 4, -1, &mask));
    R(epoll_pwait2(second, (void *)16, 4, NULL, &mask));
    R(epoll_wait(second, e, 4, 0));
    R(ppoll(&p, 1, &t, (void *)16));
    R(pselect(fd + 1, NULL, &r, NULL, &t, (void *)16));
    R(syscall(SYS_ppoll, &p, 1L, &t, (void *)16, 8L));
    R(syscall(SYS_ppoll, &p, 1L, &t, &mask, 4L));
    R(syscall(SYS_ppoll, &p, 1L, &t, NULL, 4L));
    R(syscall(SYS_epoll_wait, fd, e, 4L, 0L));
    R(syscall(SYS_epoll_wait, 999, e, 4L, 0L));
    R(syscall(SYS_epoll_ctl, level, 9, fd, e));
    R(syscall(SYS_epoll_ctl, level, MOD, fd, NULL));
    R(syscall(SYS_epoll_ctl, level, ADD, level, e));
    R(syscall(SYS_epoll_ctl, fd, ADD, level, e));
    R(syscall(SYS_epoll_ctl, level, ADD, 999, e));
    over(fd);
}

const struct test tests[] = {{"mixed", mixed, mixed, 0},
                             {"wide", wide_a, echo_b, 0},
                             {"waits", waits_a, echo_b, 0},
                             {"masks", masks_a, echo_b, 0},
                             {"wrong_waits", wrong_waits_a, echo_b, 0},
                             {0}};
