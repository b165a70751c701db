/* Owns: how much a receiving or sending call moves before it returns: low-water marks of every size, MSG_WAITALL that is
 * interrupted, timed out or reset in the middle, many messages of which a part fits; time-outs set in other ways; handlers
 * that are there for one signal only; what a message says beside its bytes. */
#include "case.h"
#include <sys/uio.h>

static char buf[2 * MIB];
static volatile sig_atomic_t rings;
static void on_alarm(int s) { rings++; }

static int low_water(int fd) {
    int v = -77;
    socklen_t l = sizeof v;
    MUST(getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &v, &l));
    return v;
}
/* The helper end: sends, when it is told to, what it is told; 0 is the end, -1 a reset. */
static void sender_b(const int *amounts) {
    int fd = conn();
    for (; *amounts > -2; amounts++) {
        meet();
        if (*amounts > 0) {
            fill(buf, *amounts, 0, 1);
            put(fd, buf, *amounts);
        } else if (*amounts == 0) {
            MUST(shutdown(fd, SHUT_WR));
        } else {
            MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)));
            close(fd);
        }
        meet_settled();
    }
    meet();
}
static void next(void) {
    meet();
    meet_settled();
}
/* For the other side's next. */
static void give(int fd, size_t n) {
    meet();
    put(fd, buf, n);
    meet_settled();
}

/* ---- low-water marks ---- */

static void marks_a(void) {
    int fd = conn(), set = MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    static const int values[] = {0, 1, 2, 4096, 65536, 1000000, INT_MAX, -1, -100, 1};
    for (int i = 0; i < 10; i++) {
        R(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &values[i], sizeof values[i]));
        say("%d: %d", values[i], low_water(fd));
    }
    /* More than any ring holds at once. */
    for (int i = 0; i < 3; i++) {
        sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 500000);
        meet();
        if (i == 0)
            say("%s", poll_text(events(fd, POLLIN, 10000)));
        else if (i == 1)
            R(epoll_wait(set, &e, 1, 10000));
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        say("enough %d", n >= 500000);
        sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
        n += get(fd, buf + n, 600000 - n);
        say("whole %d", matches(buf, n, 0, 1));
        meet_settled();
    }
    /* Less than the mark, for as long as the time-out. */
    sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 10);
    timeouts(fd, SO_RCVTIMEO, 150);
    next();
    R(recv(fd, buf, 100, 0));
    R(recv(fd, buf, 100, 0));
    next();
    R(recv(fd, buf, 3, 0));
    R(recv(fd, buf, 100, MSG_DONTWAIT));
    next();
    R(recv(fd, buf, 100, MSG_PEEK));
    R(read(fd, buf, 100));
    next(); /* four, and the end */
    R(recv(fd, buf, 100, 0));
    R(recv(fd, buf, 100, 0));
    meet();
}
static void marks_b(void) { sender_b((int[]){600000, 600000, 600000, 4, 4, 4, 0, -2}); }

/* A mark that is there before the connection moves to memory, or comes while it does: nothing that leads it there may lie
 * below the mark. */
enum { EARLY = 24, PAIRS = 60 };
static void early_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < EARLY; i++) {
        int fd = accept_from(l);
        for (int k = 0; k < PAIRS; k++) {
            if (k == i)
                sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 64);
            if (i % 3 == 1 && !(events(fd, POLLIN, 10000) & POLLIN))
                die("no event");
            if (get(fd, buf, 64) != 64)
                die("early end");
            put(fd, buf, 64);
        }
        say("%d", low_water(fd));
        sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
        warm(fd);
        close(fd);
    }
}
static void early_b(void) {
    meet();
    for (int i = 0; i < EARLY; i++) {
        int fd = dial(PORT);
        for (int k = 0; k < PAIRS; k++) {
            put(fd, buf, 64);
            if (get(fd, buf, 64) != 64)
                die("early end");
        }
        warm(fd);
        R(recv(fd, buf, 1, 0));
        close(fd);
    }
}

/* ---- MSG_WAITALL in the middle ---- */

static void all_a(void) {
    int fd = conn();
    for (int restart = 0; restart < 2; restart++) {
        on_signal(SIGALRM, on_alarm, restart ? SA_RESTART : 0);
        for (int peek = 0; peek < 2; peek++) {
            next(); /* five bytes of ten */
            rings = 0;
            tick(60, 0);
            ssize_t n = recv(fd, buf, 10, MSG_WAITALL | (peek ? MSG_PEEK : 0));
            say("restart %d, peek %d: %zd %s, rings %d, left %d", restart, peek, n, n < 0 ? err_name(errno) : "", (int)rings, now_in(fd));
            if (peek)
                get(fd, buf, 5);
        }
    }
    timeouts(fd, SO_RCVTIMEO, 120);
    next();
    R(recv(fd, buf, 10, MSG_WAITALL | MSG_PEEK));
    R(recv(fd, buf, 10, MSG_WAITALL));
    R(recv(fd, buf, 10, MSG_WAITALL));
    timeouts(fd, SO_RCVTIMEO, 0);
    struct iovec v[3] = {{buf, 3}, {NULL, 0}, {buf + 3, 7}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
    next();
    tick(60, 0);
    R(recvmsg(fd, &m, MSG_WAITALL));
    meet();
    R(recv(fd, buf, 10, MSG_WAITALL)); /* five bytes, and a reset while it waits */
    R(recv(fd, buf, 10, MSG_WAITALL));
    R(recv(fd, buf, 10, MSG_WAITALL));
    meet();
}
static void all_b(void) {
    int fd = conn();
    for (int i = 0; i < 6; i++) {
        meet();
        put(fd, "fives", 5);
        meet_settled();
    }
    meet();
    put(fd, "fives", 5);
    settle();
    settle();
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)));
    close(fd);
    meet();
}

/* ---- time-outs of 64 bits, and ones beyond all bounds ---- */

enum { RCVTIMEO_NEW = 66, SNDTIMEO_NEW = 67, SNDBUFFORCE = 32 };
static void new_timeouts_a(void) {
    int fd = conn();
    struct {
        int64_t s, us;
    } t = {0, 120000};
    R(setsockopt(fd, SOL_SOCKET, RCVTIMEO_NEW, &t, sizeof t));
    R(recv(fd, buf, 10, 0));
    R(recv(fd, buf, 10, MSG_PEEK));
    struct timeval far = {LONG_MAX / 100000, 0}, old;
    socklen_t l = sizeof old;
    R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &far, sizeof far));
    R(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &old, &l));
    meet();
    R(recv(fd, buf, 10, 0)); /* it comes after a while */
    R(setsockopt(fd, SOL_SOCKET, SNDTIMEO_NEW, &t, sizeof t));
    glut(fd);
    R(send(fd, buf, 10000, 0));
    R(send(fd, buf, 10000, 0));
    meet();
}
static void new_timeouts_b(void) {
    int fd = conn();
    meet();
    for (int i = 0; i < 5; i++)
        settle();
    put(fd, "later", 5);
    meet();
}

/* ---- handlers for one signal only ---- */

static void on_alarm_once(int s) {
    rings++;
    struct sigaction none = {.sa_handler = SIG_IGN};
    sigaction(SIGALRM, &none, NULL);
}
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* siginterrupt */
typedef void (*handler)(int);
extern handler __sysv_signal(int, handler);
static void once_a(void) {
    int fd = conn();
    struct sigaction reset = {.sa_handler = on_alarm, .sa_flags = SA_RESETHAND}, away = {.sa_handler = on_alarm_once};
    struct sigaction calm = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    for (int i = 0; i < 8; i++) {
        MUST(sigaction(SIGALRM, &calm, NULL));
        meet(); /* a byte will come, late: with SA_RESTART only it is read */
        rings = 0;
        int interrupts = i % 2;
        if (interrupts && i == 1)
            MUST(sigaction(SIGALRM, &reset, NULL));
        else if (interrupts && i == 3)
            MUST(sigaction(SIGALRM, &away, NULL));
        else if (interrupts && i == 5)
            __sysv_signal(SIGALRM, on_alarm);
        else if (interrupts)
            MUST(siginterrupt(SIGALRM, 1));
        tick(60, 0);
        ssize_t n = recv(fd, buf, 1, 0);
        say("%d: %zd %s, rings %d", i, n, n < 0 ? err_name(errno) : "", (int)rings);
        MUST(sigaction(SIGALRM, &calm, NULL));
        if (n < 0)
            R(recv(fd, buf, 1, 0));
        MUST(siginterrupt(SIGALRM, 0));
    }
    meet();
}
static void once_b(void) {
    int fd = conn();
    for (int i = 0; i < 8; i++) {
        meet();
        for (int k = 0; k < 4; k++)
            settle();
        put(fd, "x", 1);
    }
    meet();
}

/* ---- many messages, of which a part fits ---- */

enum { MESSAGES = 1000, EACH = 9000 };
static struct mmsghdr msgs[MESSAGES];
static struct iovec parts[MESSAGES];
static void part_a(void) {
    int fd = conn();
    for (int i = 0; i < MESSAGES; i++) {
        parts[i] = (struct iovec){buf + i, EACH};
        msgs[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[i], .msg_iovlen = 1}, .msg_len = 77};
    }
    fill(buf, MESSAGES + EACH, 0, 1);
    long all = 0;
    for (int i = 0; i < 5; i++) {
        int n = sendmmsg(fd, msgs, MESSAGES, MSG_DONTWAIT), whole = 1;
        for (int k = 0; k < n - 1; k++)
            whole = whole && msgs[k].msg_len == EACH;
        for (int k = 0; k < n; k++)
            all += msgs[k].msg_len;
        if (i == 0)
            say("some %d, not all %d", n > 0, n < MESSAGES);
        say("whole but the last %d, the one behind untouched %d", whole, n < 0 || n == MESSAGES || msgs[n].msg_len == 77);
        for (int k = 0; k < MESSAGES; k++)
            msgs[k].msg_len = 77;
        settle();
    }
    tell_pid((pid_t)all);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void part_b(void) {
    int fd = conn();
    long all = hear_pid(), have = 0;
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0; have += n) {
    }
    say("all %d", have == all);
    close(fd);
}

/* ---- what a message says beside its bytes ---- */

static void show(int fd, size_t len, int flags) {
    char name[40] = "untouched", control[64];
    struct iovec v[2] = {{buf, len / 2}, {buf + len / 2, len - len / 2}};
    struct msghdr m = {.msg_name = name, .msg_namelen = sizeof name, .msg_iov = v, .msg_iovlen = 2,
                       .msg_control = control, .msg_controllen = sizeof control, .msg_flags = 0x7777};
    long n = recvmsg(fd, &m, flags);
    int e = errno;
    say("%ld %s: flags %#x, name %s, length %d, control %zu", n, n < 0 ? err_name(e) : "", n < 0 ? 0 : m.msg_flags, name,
        n < 0 ? 0 : (int)m.msg_namelen, n < 0 ? 0 : m.msg_controllen);
    for (struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
        say("  level %d, type %d, %zu", c->cmsg_level, c->cmsg_type, (size_t)c->cmsg_len);
}
static void beside_a(void) {
    int fd = conn();
    next(); /* a hundred */
    show(fd, 4, 0);
    show(fd, 4, MSG_PEEK);
    show(fd, 4, MSG_TRUNC);
    show(fd, 4, MSG_TRUNC | MSG_PEEK);
    show(fd, 4, MSG_CMSG_CLOEXEC);
    show(fd, 4, MSG_WAITALL);
    show(fd, 4, MSG_DONTROUTE | MSG_EOR);
    show(fd, 0, 0);
    show(fd, 4, MSG_OOB);
    show(fd, 4, MSG_ERRQUEUE);
    show(fd, 4, MSG_OOB | MSG_ERRQUEUE);
    show(fd, 4, -1);
    struct sockaddr_in from;
    socklen_t len = -1;
    R(recvfrom(fd, buf, 2, 0, (void *)&from, &len));
    R(recvfrom(fd, buf, 2, 0, (void *)&from, NULL));
    R(recvfrom(fd, buf, 2, 0, NULL, (void *)1));
    len = 3;
    R(recvfrom(fd, buf, 2, 0, (void *)&from, &len));
    say("length %d, left %d", (int)len, now_in(fd));
    get(fd, buf, now_in(fd));
    meet();
    warm(fd);
    static const int stamps[] = {SO_TIMESTAMP, SO_TIMESTAMPNS, 63, 64};
    for (int i = 0; i < 4; i++) {
        sol_int(fd, SOL_SOCKET, stamps[i], 1);
        settle(); /* the kernel begins to take them a little later */
        next();
        show(fd, 4, 0);
        show(fd, 4, MSG_PEEK);
        show(fd, 96, MSG_DONTWAIT);
        sol_int(fd, SOL_SOCKET, stamps[i], 0);
    }
    next();
    show(fd, 4, MSG_DONTWAIT);
    meet();
}
/* Its time is asked for, and never looked at: as iperf does. Where it is looked at, it is there. */
static void stamps_unused_a(void) {
    int fd = conn_cold();
    sol_int(fd, SOL_SOCKET, SO_TIMESTAMP, 1);
    warm(fd);
}
static void stamps_unused_b(void) { warm(conn_cold()); }
static void stamps_a(void) {
    int fd = conn_cold();
    sol_int(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
    settle();
    for (int i = 0; i < 5; i++) {
        next();
        R(recv(fd, buf, 50, 0));
        show(fd, 96, MSG_DONTWAIT);
    }
}
static void stamps_b(void) {
    int fd = conn_cold();
    for (int i = 0; i < 5; i++)
        give(fd, 100);
}
/* What one option needs of TCP, while the peer, in no call, has sent what is unread. */
static void stamped_late_a(void) {
    int fd = conn();
    next();
    sol_int(fd, SOL_SOCKET, SO_TIMESTAMPING, 8);
    R(recv(fd, buf, 60, MSG_DONTWAIT));
    R(recv(fd, buf, 60, MSG_DONTWAIT));
    R(recv(fd, buf, 60, MSG_DONTWAIT));
    next();
    R(recv(fd, buf, 200, MSG_WAITALL));
    meet();
    echo(fd, "after", 3);
}
static void stamped_late_b(void) {
    int fd = conn();
    give(fd, 100);
    give(fd, 200);
    meet();
    echo(fd, "after", 3);
}
static void beside_b(void) {
    int fd = conn();
    for (int i = 0; i < 5; i++) {
        give(fd, 100);
        if (i == 0) {
            meet();
            warm(fd);
        }
    }
    meet();
    R(shutdown(fd, SHUT_WR));
    meet_settled();
    meet();
}

const struct test tests[] = {{"low_water", marks_a, marks_b, 0},
                             {"low_water_early", early_a, early_b, COLD | SWITCHES},
                             {"wait_for_all", all_a, all_b, 0},
                             {"new_timeouts", new_timeouts_a, new_timeouts_b, 0},
                             {"handlers_for_once", once_a, once_b, 0},
                             {"part_of_many", part_a, part_b, 0},
                             {"beside_the_bytes", beside_a, beside_b, 0},
                             {"stamped_late", stamped_late_a, stamped_late_b, 0},
                             {"stamps", stamps_a, stamps_b, COLD},
                             {"stamps_unused", stamps_unused_a, stamps_unused_b, 0},
                             {0}};
