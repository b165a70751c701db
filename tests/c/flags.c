/* Owns: the flags of send and recv: PEEK, WAITALL, DONTWAIT, TRUNC, MORE, OOB, ERRQUEUE, ZEROCOPY. */
#include "case.h"

static char buf[256 * KIB];

static void text(int fd, const char *s) { put(fd, s, strlen(s)); }
static long take(int fd, size_t len, int flags) {
    memset(buf, 0, 64);
    long n = recv(fd, buf, len, flags);
    int e = errno;
    say("recv(%zu, %#x) = %ld %s '%.*s'", len, flags, n, n < 0 ? err_name(e) : "",
        n > 0 && n < 64 ? (int)n : 0, buf);
    return n;
}

static void peek_a(void) {
    int fd = conn();
    take(fd, 4, MSG_PEEK | MSG_DONTWAIT);
    meet();
    meet_settled();
    take(fd, 4, MSG_PEEK);
    take(fd, 40, MSG_PEEK);
    say("FIONREAD %d, %s", now_in(fd), poll_text(events(fd, POLLIN, 0)));
    take(fd, 3, 0);
    take(fd, 40, MSG_PEEK | MSG_DONTWAIT);
    struct iovec v[2] = {{buf + 100, 2}, {buf + 200, 3}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    R(recvmsg(fd, &m, MSG_PEEK));
    say("'%.2s' '%.3s' flags %#x control %zu", buf + 100, buf + 200, m.msg_flags, m.msg_controllen);
    take(fd, 40, 0);
    take(fd, 40, MSG_PEEK | MSG_DONTWAIT);
    meet(); /* now blocks in a peek */
    take(fd, 2, MSG_PEEK);
    take(fd, 5, 0);
    meet_settled(); /* end of stream */
    take(fd, 5, MSG_PEEK);
    take(fd, 5, 0);
}
static void peek_b(void) {
    int fd = conn();
    meet();
    text(fd, "abcdefgh");
    meet_settled();
    meet();
    settle();
    text(fd, "ijkl");
    settle();
    shutdown(fd, SHUT_WR);
    meet_settled();
    R(recv(fd, buf, 1, 0));
}

static void waitall_a(void) {
    int fd = conn();
    meet();
    take(fd, 12, MSG_WAITALL); /* in three pieces */
    meet();
    take(fd, 6, MSG_WAITALL | MSG_PEEK);
    take(fd, 6, MSG_WAITALL);
    timeouts(fd, SO_RCVTIMEO, 150);
    meet_settled();
    take(fd, 10, MSG_WAITALL); /* partial, by timeout */
    take(fd, 10, MSG_WAITALL);
    timeouts(fd, SO_RCVTIMEO, 0);
    take(fd, 10, MSG_WAITALL | MSG_DONTWAIT);
    meet_settled();
    take(fd, 10, MSG_WAITALL | MSG_DONTWAIT);
    meet();
    take(fd, 10, MSG_WAITALL); /* partial, by the end */
    take(fd, 10, MSG_WAITALL);
}
static void waitall_b(void) {
    int fd = conn();
    meet();
    for (int i = 0; i < 3; i++) {
        settle();
        text(fd, "wxyz");
    }
    meet();
    settle();
    text(fd, "abc");
    settle();
    text(fd, "def");
    text(fd, "12345");
    meet_settled();
    settle();
    settle();
    settle();
    settle();
    settle();
    settle();
    settle();
    settle();
    settle();
    text(fd, "6789");
    meet_settled();
    meet();
    text(fd, "end");
    shutdown(fd, SHUT_WR);
    R(recv(fd, buf, 1, 0));
}

/* A WAITALL and a PEEK larger than any ring, over a stream. */
static void large_a(void) {
    int fd = conn();
    enum { N = sizeof buf };
    for (int i = 0; i < 40; i++) {
        if (i % 4 == 1) {
            ssize_t n = recv(fd, buf, N, MSG_PEEK);
            if (n <= 0 || !matches(buf, n, (uint64_t)i * N, 5))
                die("peek");
        }
        if (recv(fd, buf, N, MSG_WAITALL) != N || !matches(buf, N, (uint64_t)i * N, 5))
            die("waitall");
    }
    say("40 of %d", N);
}
static void large_b(void) {
    int fd = conn();
    put_stream(fd, 40 * sizeof buf, 5);
    R(recv(fd, buf, 1, 0));
}

static void trunc_a(void) {
    int fd = conn();
    meet_settled();
    strcpy(buf, "untouched");
    R(recv(fd, buf, 4, MSG_TRUNC));
    say("%s", buf);
    take(fd, 2, 0);
    R(recv(fd, NULL, 3, MSG_TRUNC));
    R(recv(fd, NULL, 100, MSG_TRUNC | MSG_PEEK));
    take(fd, 50, 0);
    R(recv(fd, NULL, 100, MSG_TRUNC | MSG_DONTWAIT));
    meet();
    long n, all = 0;
    while ((n = recv(fd, NULL, sizeof buf, MSG_TRUNC)) > 0)
        all += n;
    say("discarded %ld", all);
}
static void trunc_b(void) {
    int fd = conn();
    text(fd, "abcdefghijklmn");
    meet_settled();
    meet();
    put_stream(fd, 5 * MIB, 6);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}

static void more_a(void) {
    int fd = conn();
    R(send(fd, "one ", 4, MSG_MORE));
    R(send(fd, "two ", 4, MSG_MORE));
    R(send(fd, "three", 5, 0));
    meet_settled();
    meet();
    R(send(fd, "four", 4, MSG_MORE)); /* comes by itself in the end */
    meet(); /* after it came */
    sol_int(fd, IPPROTO_TCP, TCP_CORK, 1);
    R(send(fd, "five ", 5, 0));
    R(send(fd, "six", 3, 0));
    sol_int(fd, IPPROTO_TCP, TCP_CORK, 0);
    meet_settled();
    meet();
    sol_int(fd, IPPROTO_TCP, TCP_CORK, 1);
    for (int i = 0; i < 2000; i++)
        if (send(fd, "seven and eight and nine", 24, 0) != 24)
            die("cork");
    sol_int(fd, IPPROTO_TCP, TCP_CORK, 0);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void more_b(void) {
    int fd = conn();
    meet_settled();
    take(fd, 50, 0);
    meet();
    take(fd, 50, 0);
    meet();
    meet_settled();
    take(fd, 50, 0);
    meet();
    R(get(fd, buf, sizeof buf));
    close(fd);
}

static void oob_a(void) {
    int fd = conn();
    R(send(fd, "abc", 3, 0));
    R(send(fd, "XY!", 3, MSG_OOB));
    R(send(fd, "def", 3, 0));
    meet_settled();
    meet();
    R(send(fd, "ghi", 3, 0));
    R(send(fd, "?", 1, MSG_OOB));
    R(send(fd, "jkl", 3, 0));
    meet_settled();
    meet();
    put_stream(fd, 3 * MIB, 8);
    meet();
}
static void oob_b(void) {
    int fd = conn(), mark = -1;
    meet_settled();
    say("%s", poll_text(events(fd, POLLIN | POLLPRI, 0)));
    R(ioctl(fd, SIOCATMARK, &mark));
    R(sockatmark(fd));
    say("at mark %d", mark);
    take(fd, 50, 0);
    ioctl(fd, SIOCATMARK, &mark);
    say("at mark %d", mark);
    R(sockatmark(fd));
    take(fd, 1, MSG_OOB);
    take(fd, 1, MSG_OOB);
    take(fd, 50, 0);
    say("%s", poll_text(events(fd, POLLIN | POLLPRI, 0)));
    sol_int(fd, SOL_SOCKET, SO_OOBINLINE, 1);
    meet();
    meet_settled();
    take(fd, 50, 0);
    ioctl(fd, SIOCATMARK, &mark);
    say("at mark %d", mark);
    R(get(fd, buf, 4)); /* what lies behind the byte may come apart from it */
    say("%.4s", buf);
    meet();
    get_stream(fd, 3 * MIB, 8);
    meet();
}

/* The mark stands right behind what came before: a receive that has that ends there, whatever it wants, and so does a look. */
static void oob_at_once(int fd, const char *first, const char *second) {
    R(send(fd, first, 3, 0));
    settle();
    R(send(fd, "!", 1, MSG_OOB));
    R(send(fd, second, 3, 0));
    meet_settled();
    meet();
}
static void oob_at_once_a(void) {
    int fd = conn();
    oob_at_once(fd, "abc", "def");
    oob_at_once(fd, "ghi", "jkl");
    oob_at_once(fd, "mno", "pqr");
    put_stream(fd, 3 * MIB, 8);
    meet();
}
static void at_mark(int fd) {
    int mark = -1;
    R(ioctl(fd, SIOCATMARK, &mark));
    say("at mark %d, unread %d", mark, now_in(fd));
}
static void oob_at_once_b(void) {
    int fd = conn();
    meet_settled();
    say("%s", poll_text(events(fd, POLLIN | POLLPRI, 0)));
    at_mark(fd);
    take(fd, 50, MSG_PEEK);
    take(fd, 1, 0);
    at_mark(fd);
    take(fd, 50, 0);
    at_mark(fd);
    take(fd, 1, MSG_OOB);
    take(fd, 50, 0);
    at_mark(fd);
    take(fd, 50, MSG_DONTWAIT);
    meet();
    meet_settled();
    R(recv(fd, buf, 6, MSG_WAITALL));
    at_mark(fd);
    R(recv(fd, buf, 3, MSG_WAITALL));
    say("%.3s", buf);
    take(fd, 1, MSG_OOB);
    sol_int(fd, SOL_SOCKET, SO_OOBINLINE, 1);
    meet();
    meet_settled();
    R(recv(fd, buf, 7, MSG_WAITALL));
    at_mark(fd);
    R(recv(fd, buf, 4, MSG_WAITALL));
    say("%.4s", buf);
    meet();
    get_stream(fd, 3 * MIB, 8);
    meet();
}

static void errqueue_a(void) {
    int fd = conn();
    take(fd, 10, MSG_ERRQUEUE);
    take(fd, 10, MSG_ERRQUEUE | MSG_DONTWAIT);
    take(fd, 1, MSG_OOB);
    R(send(fd, "nosignal", 8, MSG_NOSIGNAL | MSG_DONTWAIT));
    R(send(fd, "confirm", 7, MSG_CONFIRM | MSG_EOR));
    meet();
}
static void errqueue_b(void) {
    int fd = conn();
    R(get(fd, buf, 15));
    say("%.15s", buf);
    meet();
}

/* MSG_ZEROCOPY: the completions count the sends. On loopback the kernel copies after all. */
static void zerocopy_a(void) {
    int fd = conn(), one = 1;
    if (R(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one)) == 0) {
        fill(buf, 20000, 0, 11);
        for (int i = 0; i < 3; i++)
            R(send(fd, buf, 20000, MSG_ZEROCOPY));
    }
    meet_settled();
    say("%s", poll_text(events(fd, POLLIN, 500)));
    char control[128];
    int completed = 0;
    for (;;) {
        struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
            break;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        uint32_t *e = (void *)CMSG_DATA(c); /* sock_extended_err: info and data at words 2 and 3 */
        completed += e[3] - e[2] + 1;
    }
    say("completed %d", completed);
    meet();
}
/* Completions that the program does not fetch: a receive waits as ever. */
static int queued_fd;
static void *receives(void *p) {
    char c;
    R(recv(queued_fd, &c, 1, 0));
    say("busy: %d", cpu_ns() > 200000000);
    return NULL;
}
static void queued_a(void) {
    pthread_t t;
    int one = 1;
    queued_fd = conn();
    R(setsockopt(queued_fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one));
    R(send(queued_fd, buf, 20000, MSG_ZEROCOPY));
    MUST(-pthread_create(&t, NULL, receives, NULL));
    usleep(600000);
    meet();
    pthread_join(t, NULL);
}
static void queued_b(void) {
    int fd = conn();
    get(fd, buf, 20000);
    meet();
    put(fd, "x", 1);
    R(recv(fd, buf, 1, 0));
}

static void zerocopy_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++)
        got(fd, buf, 20000, 0, 11);
    meet_settled();
    meet();
}

static ssize_t readv_peek(int fd, struct iovec *v, int n) {
    struct msghdr m = {.msg_iov = v, .msg_iovlen = n};
    return recvmsg(fd, &m, MSG_PEEK);
}

/* A peek that must span what came by TCP and what comes after the switch, and after the one back to TCP. */
static void peek_growing_a(void) {
    static struct iovec pieces[60];
    int fd = conn_cold();
    int good = 1;
    for (int i = 1; i <= 60; i++) {
        meet();
        while (now_in(fd) < i * 100)
            sched_yield();
        ssize_t n = recv(fd, buf, sizeof buf, MSG_PEEK);
        good = good && n == i * 100 && matches(buf, n, 0, 12);
        good = good && recv(fd, NULL, sizeof buf, MSG_PEEK | MSG_TRUNC) == n;
        pieces[i - 1] = (struct iovec){buf + (i - 1) * 100, 100};
        memset(buf, 0, n);
        good = good && readv_peek(fd, pieces, i) == n && matches(buf, n, 0, 12);
    }
    say("whole %d, %zu", good, get(fd, buf, 6000));
    say("whole %d", matches(buf, 6000, 0, 12));
    meet();
}
static void growing_b(int last) {
    int fd = conn_cold();
    char part[100];
    for (int i = 0; i < 60; i++) {
        fill(part, 100, i * 100, 12);
        if (send(fd, part, 100, i < last ? 0 : MSG_ZEROCOPY) != 100) /* to TCP, and it stays there */
            die("send");
        meet();
    }
    meet();
}
static void peek_growing_b(void) { growing_b(60); }
static void peek_of_three_b(void) { growing_b(50); }

const struct test tests[] = {{"peek", peek_a, peek_b, 0},
                             {"waitall", waitall_a, waitall_b, 0},
                             {"large_waitall", large_a, large_b, 0},
                             {"trunc", trunc_a, trunc_b, 0},
                             {"more_and_cork", more_a, more_b, 0},
                             {"oob", oob_a, oob_b, 0},
                             {"oob_at_once", oob_at_once_a, oob_at_once_b, 0},
                             {"errqueue", errqueue_a, errqueue_b, 0},
                             {"zerocopy", zerocopy_a, zerocopy_b, 0},
                             {"queued", queued_a, queued_b, 0},
                             {"peek_growing", peek_growing_a, peek_growing_b, COLD | SWITCHES},
                             {"peek_of_three", peek_growing_a, peek_of_three_b, COLD | SWITCHES},
                             {0}};
