/* Owns: signals during calls that wait: EINTR, SA_RESTART, masks, handlers that use the same
 * connection, jumps out of handlers. */
#include "case.h"

static char buf[64 * KIB];
static volatile sig_atomic_t rings;
static int handler_fd;
static void on_alarm(int s) { rings++; }

/* A call that waits, interrupted once after 60 ms; nothing arrives meanwhile. */
#define INTERRUPTED(call)                                                                          \
    do {                                                                                           \
        rings = 0;                                                                                 \
        tick(60, 0);                                                                               \
        R(call);                                                                                   \
        say("rings %d", (int)rings);                                                               \
    } while (0)

static void eintr_a(void) {
    int fd = conn();
    struct iovec v = {buf, 9};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct pollfd p = {fd, POLLIN, 0};
    int ep = epoll_create1(0);
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    fd_set set;
    for (int restart = 0; restart < 2; restart++) {
        on_signal(SIGALRM, on_alarm, restart ? SA_RESTART : 0);
        say("restart %d", restart);
        if (!restart) {
            INTERRUPTED(recv(fd, buf, 9, 0));
            INTERRUPTED(read(fd, buf, 9));
            INTERRUPTED(readv(fd, &v, 1));
            INTERRUPTED(recvmsg(fd, &m, 0));
            INTERRUPTED(recv(fd, buf, 9, MSG_PEEK));
            INTERRUPTED(recv(fd, buf, 9, MSG_WAITALL));
        }
        /* These are interrupted whatever SA_RESTART says. */
        INTERRUPTED(poll(&p, 1, 5000));
        INTERRUPTED(ppoll(&p, 1, NULL, NULL));
        INTERRUPTED(epoll_wait(ep, &e, 1, 5000));
        INTERRUPTED(epoll_pwait(ep, &e, 1, -1, NULL));
        FD_ZERO(&set);
        FD_SET(fd, &set);
        INTERRUPTED(select(fd + 1, &set, NULL, NULL, NULL));
        FD_ZERO(&set);
        FD_SET(fd, &set);
        INTERRUPTED(pselect(fd + 1, &set, NULL, NULL, NULL, NULL));
        timeouts(fd, SO_RCVTIMEO, 5000); /* with a time-out recv is not restarted */
        INTERRUPTED(recv(fd, buf, 9, 0));
        timeouts(fd, SO_RCVTIMEO, 0);
    }
    meet();
}
static void eintr_b(void) {
    int fd = conn();
    (void)fd;
    meet();
}

/* With SA_RESTART recv goes on until data comes. */
static void restart_a(void) {
    int fd = conn();
    on_signal(SIGALRM, on_alarm, SA_RESTART);
    for (int i = 0; i < 4; i++) {
        rings = 0;
        meet();
        tick(5, 5);
        ssize_t n = i == 0   ? recv(fd, buf, 9, 0)
                    : i == 1 ? read(fd, buf, 9)
                    : i == 2 ? recv(fd, buf, 8, MSG_WAITALL)
                             : recv(fd, buf, 4, MSG_PEEK);
        tick(0, 0);
        say("%zd, rings %d", n, rings > 1);
    }
    say("%zu", get(fd, buf, 4));
    meet();
}
static void restart_b(void) {
    int fd = conn();
    for (int i = 0; i < 4; i++) {
        meet();
        settle();
        settle();
        put(fd, "data", 4);
        if (i == 2) {
            settle();
            put(fd, "more", 4);
        }
    }
    meet();
}

/* Of two handlers the one that runs says whether the call goes on; what it leaves in errno is the program's. */
static void on_other(int s) {}
static void either_a(void) {
    int fd = conn();
    for (int restart = 0; restart < 2; restart++) {
        on_signal(SIGALRM, on_alarm, restart ? SA_RESTART : 0);
        on_signal(SIGUSR1, on_other, restart ? 0 : SA_RESTART);
        for (int i = 0; i < 3; i++) {
            meet();
            tick(60, 0);
            R(i == 0 ? recv(fd, buf, 4, 0) : i == 1 ? read(fd, buf, 4) : recv(fd, buf, 4, MSG_WAITALL));
            meet();
            if (!restart)
                R(recv(fd, buf, 4, MSG_WAITALL));
        }
    }
    meet();
    tick(60, 0);
    R(recv(fd, buf, 4, 0)); /* the end */
}
static void either_b(void) {
    int fd = conn();
    for (int i = 0; i < 6; i++) {
        meet();
        if (i >= 3)
            usleep(150000);
        else
            meet();
        put(fd, "data", 4);
        if (i >= 3)
            meet();
    }
    meet();
    usleep(150000);
    close(fd);
}

/* A blocked send is interrupted: the count of what was taken, then EINTR. */
static void send_eintr_a(void) {
    int fd = conn();
    on_signal(SIGALRM, on_alarm, 0);
    char *big = calloc(1, 64 * MIB);
    tick(150, 0);
    ssize_t n = send(fd, big, 64 * MIB, 0), all = n;
    say("partial %d", n > 0 && n < 64 * MIB);
    tick(150, 0);
    n = send(fd, big, 64 * MIB, 0);
    /* Loopback may make a little more room, and so may a ring that nobody reads and that is left for TCP. */
    for (int more = 0; n > 0 && more < 4; more++) {
        all += n;
        tick(150, 0);
        n = send(fd, big, 64 * MIB, 0);
    }
    say("%zd %s", n, err_name(errno));
    tell_pid((pid_t)all);
    meet();
}
static void send_eintr_b(void) {
    int fd = conn();
    long all = hear_pid(), have = 0;
    while (have < all)
        have += get(fd, buf, all - have > (long)sizeof buf ? sizeof buf : (size_t)(all - have));
    say("rest %d", now_in(fd));
    meet();
}

/* A stream under a hail of signals: nothing lost, nothing doubled. */
static void hail_a(void) {
    int fd = conn();
    on_signal(SIGALRM, on_alarm, 0);
    tick(2, 2);
    put_stream(fd, 30 * MIB, 5);
    get_stream(fd, 30 * MIB, 6);
    tick(0, 0);
    say("rings %d", rings > 5);
    meet();
}
static void hail_b(void) {
    int fd = conn();
    on_signal(SIGALRM, on_alarm, SA_RESTART);
    tick(2, 2);
    get_stream(fd, 30 * MIB, 5);
    put_stream(fd, 30 * MIB, 6);
    tick(0, 0);
    say("rings %d", rings > 5);
    meet();
}

/* The signal is blocked but for the wait itself. */
static void masks_a(void) {
    int fd = conn();
    sigset_t alarm_only, none;
    sigemptyset(&none);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    on_signal(SIGALRM, on_alarm, 0);
    MUST(sigprocmask(SIG_BLOCK, &alarm_only, NULL));
    struct pollfd p = {fd, POLLIN, 0};
    struct timespec t = {5, 0}, soon = {0, 100 * 1000 * 1000};
    int ep = epoll_create1(0);
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    INTERRUPTED(ppoll(&p, 1, &t, &none));
    INTERRUPTED(epoll_pwait(ep, &e, 1, 5000, &none));
    INTERRUPTED(epoll_pwait2(ep, &e, 1, &t, &none));
    INTERRUPTED(pselect(fd + 1, &set, NULL, NULL, &t, &none));
    /* Blocked in the wait: it times out, the signal stays pending. */
    INTERRUPTED(ppoll(&p, 1, &soon, &alarm_only));
    INTERRUPTED(epoll_pwait(ep, &e, 1, 100, &alarm_only));
    /* Data and the pending signal together: the signal is delivered with the mask. */
    meet();
    meet_settled();
    rings = 0;
    int n = ppoll(&p, 1, &t, &none);
    say("ppoll %d %s, rings %d", n, n < 0 ? err_name(errno) : poll_text(p.revents), (int)rings);
    R(sigprocmask(SIG_UNBLOCK, &alarm_only, NULL));
    R(recv(fd, buf, 9, 0));
    meet();
}
static void masks_b(void) {
    int fd = conn();
    meet();
    put(fd, "data", 4);
    meet_settled();
    meet();
}

/* The handler writes to and reads from the connection that it interrupted. */
static void handler_io(int s) {
    int e = errno;
    rings++;
    send(handler_fd, "H", 1, MSG_DONTWAIT);
    errno = e;
}
static void handler_a(void) {
    int fd = conn();
    handler_fd = fd;
    on_signal(SIGALRM, handler_io, SA_RESTART);
    tick(3, 3);
    for (int i = 0; i < 30; i++) { /* in recv */
        if (recv(fd, buf, 1, 0) != 1)
            die("recv");
    }
    tick(0, 0);
    say("rings %d", rings > 2);
    tick(1, 1);
    fill(buf, 1, 0, 0);
    memset(buf, 'd', 1000);
    for (int i = 0; i < 3000; i++)
        put(fd, buf, 1000);
    tick(0, 0);
    R(shutdown(fd, SHUT_WR));
    tell_pid(rings);
    R(recv(fd, buf, 1, 0));
}
static void handler_b(void) {
    int fd = conn();
    for (int i = 0; i < 30; i++) {
        settle();
        put(fd, "x", 1);
    }
    long data = 0, handler = 0;
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;)
        for (ssize_t i = 0; i < n; i++)
            buf[i] == 'H' ? handler++ : data++;
    /* A handler's send may get EAGAIN in a full connection; it must never be doubled. */
    long sent = hear_pid();
    say("data %ld, from handlers: no more than sent %d", data, handler <= sent);
    close(fd);
}

/* The peer ends its stream in the middle of a send, and a handler above that send is the first who could notice. */
enum { ROUNDS = 12, BLOCK = 2 * MIB, BLOCKS = 4 };
static volatile sig_atomic_t again; /* a moment after it has returned: what it interrupts goes on in between */
static void send_one(int s) {
    int e = errno;
    struct itimerval soon = {{0, 0}, {0, 40}};
    rings++;
    send(handler_fd, "H", 1, MSG_NOSIGNAL);
    if (again)
        setitimer(ITIMER_REAL, &soon, NULL);
    errno = e;
}
static void ends_below_a(void) {
    static char block[BLOCK];
    int l = listen_on(PORT);
    memset(block, 'd', BLOCK);
    on_signal(SIGALRM, send_one, SA_RESTART);
    for (int i = 0; i < ROUNDS; i++) {
        meet();
        handler_fd = accept_from(l);
        warm(handler_fd);
        rings = 0;
        again = 1;
        raise(SIGALRM);
        for (int n = 0; n < BLOCKS; n++)
            put(handler_fd, block, BLOCK);
        again = 0;
        tick(0, 0);
        MUST(shutdown(handler_fd, SHUT_WR));
        if (recv(handler_fd, buf, 1, 0) != 0)
            die("recv");
        tell_pid(rings);
        close(handler_fd);
    }
    close(l);
}
static void ends_below_b(void) {
    unsigned seed = 8;
    int good = 0;
    for (int i = 0; i < ROUNDS; i++) {
        meet();
        int fd = dial(PORT);
        warm(fd);
        long data = 0, handler = 0, ends = rnd(&seed) % (BLOCK * (BLOCKS / 2));
        for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;) {
            for (ssize_t k = 0; k < n; k++)
                buf[k] == 'H' ? handler++ : data++;
            if (ends >= 0 && data > ends) {
                MUST(shutdown(fd, SHUT_WR));
                ends = -1;
            }
        }
        good += data == (long)BLOCK * BLOCKS && handler <= hear_pid();
        close(fd);
    }
    say("whole %d of %d", good, ROUNDS);
}

/* siglongjmp out of a recv, a send and a poll that wait; the connection goes on. */
static sigjmp_buf jump;
static void jump_out(int s) { siglongjmp(jump, 1); }
static void longjmp_a(void) {
    int fd = conn();
    on_signal(SIGALRM, jump_out, 0);
    if (!sigsetjmp(jump, 1)) {
        tick(60, 0);
        R(recv(fd, buf, 10, 0));
    }
    if (!sigsetjmp(jump, 1)) {
        tick(60, 0);
        R(recv(fd, buf, 10, MSG_PEEK));
    }
    if (!sigsetjmp(jump, 1)) {
        tick(60, 0);
        R(events(fd, POLLIN, 5000));
    }
    int ep = epoll_create1(0);
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    if (!sigsetjmp(jump, 1)) {
        tick(60, 0);
        R(epoll_wait(ep, &e, 1, 5000));
    }
    meet();
    R(epoll_wait(ep, &e, 1, 5000));
    say("%zu", get(fd, buf, 10));
    R(send(fd, "0123456789", 10, 0));
    meet();
}
static void longjmp_b(void) {
    int fd = conn();
    meet();
    put(fd, "0123456789", 10);
    say("%zu", get(fd, buf, 10));
    meet();
}

/* accept and connect under signals. */
static void accept_a(void) {
    int l = listen_on(PORT);
    on_signal(SIGALRM, on_alarm, 0);
    INTERRUPTED(accept(l, NULL, NULL));
    INTERRUPTED(accept4(l, NULL, NULL, SOCK_CLOEXEC));
    on_signal(SIGALRM, on_alarm, SA_RESTART);
    tick(5, 5);
    meet();
    int fd = accept(l, NULL, NULL);
    tick(0, 0);
    say("accepted %d", fd >= 0);
    warm(fd);
}
static void accept_b(void) {
    meet();
    settle();
    warm(dial(PORT));
}

const struct test tests[] = {{"eintr", eintr_a, eintr_b, 0},
                             {"restart", restart_a, restart_b, 0},
                             {"either", either_a, either_b, 0},
                             {"interrupted_send", send_eintr_a, send_eintr_b, 0},
                             {"hail", hail_a, hail_b, WHOLE},
                             {"masks", masks_a, masks_b, 0},
                             {"handler_io", handler_a, handler_b, 0},
                             {"ends_below_handler", ends_below_a, ends_below_b, 0},
                             {"longjmp", longjmp_a, longjmp_b, 0},
                             {"accept", accept_a, accept_b, 0},
                             {0}};
