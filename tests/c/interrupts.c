/* Owns: signals that come while a call of the library polls or works, and not sleeps: each ends the call, as in the kernel, in
 * which it would have been all the time. And that the program's handlers are its own wherever it asks for them. */
#include "waiting.h"
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/time.h>
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* sigset */
#pragma GCC diagnostic ignored "-Wrestrict"

static char buf[64];
static volatile sig_atomic_t rings;
static void on_alarm(int s) { rings++; }
/* One that comes before the call ends nothing, natively as well. */
static volatile sig_atomic_t is_called, early;
static void on_soon(int s) {
    rings++;
    early += !is_called;
}

/* More is waited for than is there: each signal ends the call, at whatever instant of it. */
static atomic_int calls_made;
static atomic_int is_over;
static pthread_t caller;
static pid_t caller_id;

static void *each_signaller(void *missed) {
    for (unsigned i = 1; !is_over; i++) {
        int before = calls_made;
        while (waiting_state(caller_id) != 'S' && !is_over)
            ;
        for (volatile unsigned spin = i * 7919 % 200000; spin > 0; spin--)
            ;
        pthread_kill(caller, SIGUSR1);
        for (int ms = 0; calls_made == before && !is_over; ms++) {
            if (ms == 1000) {
                ++*(int *)missed;
                pthread_kill(caller, SIGUSR1);
                ms = 0;
            }
            usleep(1000);
        }
    }
    return NULL;
}
static void each_a(void) {
    int fd = conn();
    int whole = 0, missed = 0;
    pthread_t signaller;
    meet();
    meet_settled();
    on_signal(SIGUSR1, on_alarm, 0);
    caller = pthread_self();
    caller_id = gettid();
    MUST(-pthread_create(&signaller, NULL, each_signaller, &missed));
    while (calls_made < 300) {
        whole += recv(fd, buf, 10, MSG_WAITALL | MSG_PEEK) == 5;
        calls_made++;
    }
    is_over = 1;
    pthread_join(signaller, NULL);
    sigset_t now;
    MUST(sigprocmask(SIG_SETMASK, NULL, &now));
    say("%d of 300 with five bytes, %d signals missed, blocked %d", whole, missed, sigismember(&now, SIGUSR1));
    R(recv(fd, buf, 10, 0));
    meet();
}
static void each_b(void) {
    int fd = conn();
    meet();
    put(fd, "fives", 5);
    meet_settled();
    meet();
}

/* A signal that comes a moment after an answer was sent ends the wait for the next question, in each form of it. */
static int soon_wait(int how, int fd, int ep) {
    struct pollfd p = {fd, POLLIN, 0};
    struct epoll_event e;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    switch (how) {
    case 0: return recv(fd, buf, 10, 0);
    case 1: return poll(&p, 1, -1);
    case 2: return epoll_wait(ep, &e, 1, -1);
    default: return select(fd + 1, &set, NULL, NULL, NULL);
    }
}
static void soon_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(0));
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLIN, {.fd = fd}}));
    on_signal(SIGALRM, on_soon, 0);
    for (int how = 0; how < 4; how++) {
        int ended = 0;
        rings = early = 0;
        for (int round = 0; round < 40; round++) {
            for (int i = 0; i < 20; i++) {
                get(fd, buf, 10);
                put(fd, buf, 10);
            }
            /* The second one only if the first has ended nothing; later where many come before the call. */
            struct itimerval soon = {{0, 100000}, {0, 10 + round * 7 % 18 + early}}, never = {{0, 0}, {0, 0}};
            MUST(setitimer(ITIMER_REAL, &soon, NULL));
            is_called = 1;
            ended += soon_wait(how, fd, ep) == -1 && errno == EINTR;
            is_called = 0;
            MUST(setitimer(ITIMER_REAL, &never, NULL));
            meet();
        }
        /* Between there and the call's first instructions: a few, on a busy machine. */
        say("%d: %d of 40, missed %s", how, ended, rings - early - 40 > 18 ? "many" : "few");
        fprintf(stderr, "missed %d, and %d before the call\n", (int)rings - (int)early - 40, (int)early);
    }
    meet();
}
static void soon_b(void) {
    int fd = conn();
    for (int round = 0; round < 4 * 40; round++) {
        for (int i = 0; i < 20; i++) {
            put(fd, "0123456789", 10);
            get(fd, buf, 10);
        }
        meet();
    }
    meet();
}

/* What the program asks of its handlers is its own, however they were set. */
static void on_other(int s) { rings += 100; }
static void on_info(int s, siginfo_t *i, void *c) { rings += i->si_signo == s && i->si_value.sival_int == 7 && c ? 10 : -1000; }
static void names_a(void) {
    struct sigaction now, one = {.sa_handler = on_alarm, .sa_flags = SA_RESTART}, info = {.sa_sigaction = on_info, .sa_flags = SA_SIGINFO};
    sigaddset(&one.sa_mask, SIGUSR2);
    say("%d", signal(SIGUSR1, on_other) == SIG_DFL);
    say("%d", signal(SIGUSR1, on_alarm) == on_other);
    R(sigaction(SIGUSR1, NULL, &now));
    say("%d %d", now.sa_handler == on_alarm, !!(now.sa_flags & SA_RESTART));
    R(sigaction(SIGUSR1, &one, &now));
    struct sigaction *same = &one;
    R(sigaction(SIGUSR1, &one, same));
    say("%d %d %d", now.sa_handler == on_alarm, one.sa_handler == on_alarm, sigismember(&one.sa_mask, SIGUSR2));
    R(sigaction(SIGUSR1, &info, &now));
    say("%d", now.sa_handler == on_alarm);
    rings = 0;
    MUST(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 7}));
    say("rings %d", (int)rings);
    R(sigaction(SIGKILL, &one, NULL));
    R(sigaction(77, &one, NULL));
    R(sigaction(SIGUSR1, NULL, &now));
    say("%d %d", now.sa_sigaction == on_info, !!(now.sa_flags & SA_SIGINFO));
    say("%d", (void *)signal(SIGUSR1, SIG_IGN) == (void *)on_info);
    raise(SIGUSR1);
    say("%d", signal(SIGUSR1, SIG_DFL) == SIG_IGN);
    say("%d", sigset(SIGUSR1, on_other) == SIG_DFL);
    say("%d", sigset(SIGUSR1, SIG_HOLD) == on_other);
    struct sigaction once = {.sa_handler = on_other, .sa_flags = SA_RESETHAND};
    R(sigaction(SIGUSR2, &once, NULL));
    rings = 0;
    raise(SIGUSR2);
    R(sigaction(SIGUSR2, NULL, &now));
    say("rings %d, %d", (int)rings, now.sa_handler == SIG_DFL);
    meet();
}
static void names_b(void) { meet(); }

/* A signal that only the wait's mask lets in: a wait of no time lets it in as well, and one that always finds something does now and
 * then. */
static void masked_a(void) {
    int fd = conn(), ep = epoll_create1(0);
    sigset_t usr, none;
    sigemptyset(&none);
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    on_signal(SIGUSR1, on_alarm, SA_RESTART);
    MUST(sigprocmask(SIG_BLOCK, &usr, NULL));
    struct epoll_event e = {EPOLLIN, {.u64 = 1}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    struct pollfd p = {fd, POLLIN, 0};
    struct timespec now = {0, 0};
    for (int kind = 0; kind < 4; kind++) {
        rings = 0;
        kill(getpid(), SIGUSR1);
        fd_set r;
        FD_ZERO(&r);
        FD_SET(fd, &r);
        errno = 0;
        int n = kind == 0   ? ppoll(&p, 1, &now, &none)
                : kind == 1 ? pselect(fd + 1, &r, NULL, NULL, &now, &none)
                : kind == 2 ? epoll_pwait(ep, &e, 1, 20, &none)
                            : ppoll(&p, 1, NULL, &none);
        say("%d %s, rings %d", n, n < 0 ? err_name(errno) : "", (int)rings);
    }
    sigprocmask(SIG_UNBLOCK, &usr, NULL);
    meet();
}
static void masked_b(void) {
    int fd = conn();
    meet();
    close(fd);
}

const struct test tests[] = {{"each_one", each_a, each_b, SLOW}, {"soon_after", soon_a, soon_b, SLOW}, {"masked", masked_a, masked_b, 0}, {"names", names_a, names_b, COLD}, {0}};
