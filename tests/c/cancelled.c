/* Owns: pthread_cancel of threads whose calls never sleep: each of these is a cancellation point all the same. And of those that
 * sleep in what is none. */
#include "sets.h"

static int fd, ep;

#define FOR_EVER(name, ...)                                                                                                                \
    static void *name(void *unused) {                                                                                                      \
        for (;;) {                                                                                                                         \
            __VA_ARGS__;                                                                                                                   \
        }                                                                                                                                  \
        return unused;                                                                                                                     \
    }
static char buf[64];
static struct pollfd one(void) { return (struct pollfd){fd, POLLIN, 0}; }
static struct iovec part(void) { return (struct iovec){buf, sizeof buf}; }
FOR_EVER(receives, recv(fd, buf, sizeof buf, MSG_DONTWAIT))
FOR_EVER(receives_message, { struct iovec v = part(); struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1}; recvmsg(fd, &m, MSG_DONTWAIT); })
FOR_EVER(peeks, recv(fd, buf, sizeof buf, MSG_PEEK))
FOR_EVER(polls, { struct pollfd p = one(); poll(&p, 1, 0); })
FOR_EVER(polls_ready, { struct pollfd p = one(); poll(&p, 1, -1); })
FOR_EVER(selects, { fd_set s; struct timeval t = {0}; FD_ZERO(&s); FD_SET(fd, &s); select(fd + 1, &s, NULL, NULL, &t); })
FOR_EVER(waits, { struct epoll_event e; epoll_wait(ep, &e, 1, 0); })
FOR_EVER(waits_ready, { struct epoll_event e; epoll_wait(ep, &e, 1, -1); })
FOR_EVER(echoes, { if (send(fd, buf, 8, MSG_NOSIGNAL) != 8 || recv(fd, buf, 8, MSG_WAITALL) != 8) die("echo"); })
FOR_EVER(echoes_parts, { struct iovec v = part(); if (writev(fd, &v, 1) != sizeof buf || recv(fd, buf, sizeof buf, MSG_WAITALL) != sizeof buf) die("echo"); })

static void is_cancelled(const char *name, void *(*how)(void *)) {
    pthread_t t;
    struct timespec until;
    void *result = NULL;
    MUST(-pthread_create(&t, NULL, how, NULL));
    usleep(20000);
    MUST(-pthread_cancel(t));
    MUST(clock_gettime(CLOCK_REALTIME, &until));
    until.tv_sec += 10;
    if (pthread_timedjoin_np(t, &result, &until) != 0)
        die(name);
    say("%s: %d", name, result == PTHREAD_CANCELED);
}
static void never_asleep_a(void) {
    fd = conn();
    ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    is_cancelled("recv", receives);
    is_cancelled("recvmsg", receives_message);
    is_cancelled("poll", polls);
    is_cancelled("select", selects);
    is_cancelled("epoll_wait", waits);
    meet();
    meet_settled();
    is_cancelled("peek, ready", peeks);
    is_cancelled("poll, ready", polls_ready);
    is_cancelled("epoll_wait, ready", waits_ready);
    R(recv(fd, buf, 5, 0));
    meet();
}
static void never_asleep_b(void) {
    int fd = conn();
    meet();
    put(fd, "fives", 5);
    meet_settled();
    meet();
}
static void echoes_a(void) {
    fd = conn();
    is_cancelled("send and recv", echoes);
    close(fd);
    fd = conn();
    is_cancelled("writev and recv", echoes_parts);
    close(fd);
}
static void echoes_b(void) {
    for (int i = 0; i < 2; i++) {
        int fd = conn();
        for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;)
            send(fd, buf, n, MSG_NOSIGNAL);
        close(fd);
    }
}

/* syscall(2) is no cancellation point, whatever it does: the call goes on to its end. */
static long came;
#define BY_NUMBER(name, ...)                                                                                                               \
    static void *name(void *unused) {                                                                                                      \
        came = syscall(__VA_ARGS__);                                                                                                       \
        for (;;)                                                                                                                           \
            pthread_testcancel();                                                                                                          \
        return unused;                                                                                                                     \
    }
static fd_set reads;
static struct pollfd polled;
static struct epoll_event told;
BY_NUMBER(number_select, SYS_select, fd + 1, &reads, NULL, NULL, NULL)
BY_NUMBER(number_pselect, SYS_pselect6, fd + 1, &reads, NULL, NULL, NULL, NULL)
BY_NUMBER(number_poll, SYS_poll, &polled, 1, -1)
BY_NUMBER(number_ppoll, SYS_ppoll, &polled, 1, NULL, NULL, 8)
BY_NUMBER(number_epoll, SYS_epoll_wait, ep, &told, 1, -1)
BY_NUMBER(number_recv, SYS_recvfrom, fd, buf, 5, MSG_WAITALL, NULL, NULL)
static const struct {
    const char *name;
    void *(*how)(void *);
} numbers[] = {{"select", number_select}, {"pselect6", number_pselect}, {"poll", number_poll},
               {"ppoll", number_ppoll},   {"epoll_wait", number_epoll}, {"recvfrom", number_recv}};
enum { NUMBERS = sizeof numbers / sizeof *numbers };
static void by_number_a(void) {
    fd = conn();
    ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    for (int i = 0; i < NUMBERS; i++) {
        pthread_t t;
        void *result = NULL;
        came = -2;
        FD_ZERO(&reads);
        FD_SET(fd, &reads);
        polled = one();
        MUST(-pthread_create(&t, NULL, numbers[i].how, NULL));
        usleep(20000);
        MUST(-pthread_cancel(t));
        settle();
        meet();
        MUST(-pthread_join(t, &result));
        say("%s = %ld, %d", numbers[i].name, came, result == PTHREAD_CANCELED);
        if (i < NUMBERS - 1)
            R(recv(fd, buf, 5, MSG_WAITALL));
    }
    meet();
}
static void by_number_b(void) {
    int fd = conn();
    for (int i = 0; i < NUMBERS; i++) {
        meet();
        put(fd, "fives", 5);
    }
    meet();
}

const struct test tests[] = {{"never_asleep", never_asleep_a, never_asleep_b, 0}, {"echoes", echoes_a, echoes_b, 0}, {"by_number", by_number_a, by_number_b, 0}, {0}};
