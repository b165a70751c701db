/* Owns: poll, ppoll, select, pselect: what they report, alone and with other kinds of fds. */
#include "case.h"
#include <sched.h>

static char buf[256 * KIB];

static void send_n(int fd, int n) {
    memset(buf, 'x', n);
    put(fd, buf, n);
}

static void poll_a(void) {
    int fd = conn(), pipes[2];
    MUST(pipe(pipes));
    struct pollfd p[4] = {{fd, POLLIN | POLLRDHUP, 0}, {pipes[0], POLLIN, 0}, {-1, POLLIN, 0},
                          {998, POLLIN, 0}};
    R(poll(p, 3, 0));
    R(poll(p, 3, 30));
    R(poll(p, 4, 1000));
    say("%s", poll_text(p[3].revents));
    R(poll(NULL, 0, 10));
    struct timespec t = {0, 20 * 1000 * 1000}, wrong = {0, -5};
    R(ppoll(p, 3, &t, NULL));
    R(ppoll(p, 3, &wrong, NULL));
    meet();
    R(poll(p, 3, 5000)); /* woken by the connection */
    say("%s %s", poll_text(p[0].revents), poll_text(p[1].revents));
    MUST(write(pipes[1], "p", 1));
    R(poll(p, 3, -1));
    say("%s %s", poll_text(p[0].revents), poll_text(p[1].revents));
    R(recv(fd, buf, 60, 0));
    R(poll(p, 1, 0));
    R(recv(fd, buf, 60, 0));
    R(poll(p, 1, 30));
    p[0].events = POLLOUT;
    R(poll(p, 1, 1000));
    say("%s", poll_text(p[0].revents));
    p[0].events = POLLIN | POLLRDNORM | POLLRDBAND | POLLPRI | POLLOUT | POLLWRNORM;
    R(poll(p, 1, 1000));
    say("%x", p[0].revents);
    p[0].events = 0;
    R(poll(p, 1, 30));
    MUST(read(pipes[0], buf, 1));
    p[0].events = POLLIN | POLLRDHUP;
    meet();
    R(poll(p, 2, 5000)); /* woken by the end */
    say("%s", poll_text(p[0].revents));
    R(shutdown(fd, SHUT_WR));
    p[0].events = 0;
    R(poll(p, 1, 1000));
    say("%s", poll_text(p[0].revents));
    /* The same fd twice. */
    p[0] = (struct pollfd){fd, POLLIN, 0};
    p[1] = (struct pollfd){fd, POLLOUT, 0};
    R(poll(p, 2, 1000));
    say("%s %s", poll_text(p[0].revents), poll_text(p[1].revents));
    close(fd);
    R(poll(p, 1, 0));
    say("%s", poll_text(p[0].revents));
}
static void poll_b(void) {
    int fd = conn();
    meet();
    settle();
    send_n(fd, 100);
    meet();
    settle();
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}

static void show(const char *what, int n, int fd, fd_set *r, fd_set *w, fd_set *x) {
    say("%s = %d r%d w%d x%d", what, n, r && FD_ISSET(fd, r), w && FD_ISSET(fd, w),
        x && FD_ISSET(fd, x));
}
static void select_a(void) {
    int fd = conn(), pipes[2];
    MUST(pipe(pipes));
    fd_set every, r, w, x;
    struct timeval t;
    FD_ZERO(&every);
    FD_SET(fd, &every);
    FD_SET(pipes[0], &every);
#define SETS()                                                                                     \
    do {                                                                                           \
        r = w = x = every;                                                                         \
        t = (struct timeval){5, 0};                                                                \
    } while (0)
    int most = (fd > pipes[0] ? fd : pipes[0]) + 1;
    SETS();
    show("select rwx", select(most, &r, &w, &x, &t), fd, &r, &w, &x);
    SETS();
    t = (struct timeval){0, 30000};
    show("select r", select(most, &r, NULL, &x, &t), fd, &r, NULL, &x);
    say("time left %ld", t.tv_sec * 1000000 + t.tv_usec);
    meet();
    SETS();
    show("select r", select(most, &r, NULL, NULL, &t), fd, &r, NULL, NULL);
    say("time left %d", t.tv_sec >= 3);
    SETS();
    show("select rw", select(most, &r, &w, NULL, NULL), fd, &r, &w, NULL);
    SETS();
    struct timespec ts = {5, 0};
    show("pselect rw", pselect(most, &r, &w, NULL, &ts, NULL), fd, &r, &w, NULL);
    R(recv(fd, buf, 1000, 0));
    SETS();
    t = (struct timeval){0, 0};
    show("select now", select(most, &r, NULL, NULL, &t), fd, &r, NULL, NULL);
    SETS();
    MUST(write(pipes[1], "p", 1));
    show("select pipe", select(most, &r, NULL, NULL, &t), fd, &r, NULL, NULL);
    say("pipe %d", FD_ISSET(pipes[0], &r) != 0);
    MUST(read(pipes[0], buf, 1));
    SETS();
    FD_SET(60, &r);
    R(select(61, &r, NULL, NULL, &t));
    SETS();
    t = (struct timeval){-1, 0};
    R(select(most, &r, NULL, NULL, &t));
    R(select(-1, NULL, NULL, NULL, NULL));
    t = (struct timeval){0, 10000};
    R(select(0, NULL, NULL, NULL, &t));
    meet();
    SETS();
    show("select end", select(most, &r, NULL, NULL, &t), fd, &r, NULL, NULL);
    R(recv(fd, buf, 10, 0));
    R(shutdown(fd, SHUT_WR));
    SETS();
    show("select end", select(most, &r, &w, &x, &t), fd, &r, &w, &x);
}
static void select_b(void) {
    int fd = conn();
    meet();
    settle();
    send_n(fd, 100);
    meet();
    settle();
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}

/* Full and room again, by poll and by select. */
static void room_a(void) {
    int fd = conn();
    nonblocking(fd, 1);
    for (int i = 0; i < 4; i++) {
        long all = 0;
        for (int calm = 0; calm < 3; calm++, settle())
            for (ssize_t n; (n = send(fd, buf, 50000, 0)) > 0; all += n)
                calm = 0;
        say("%s", poll_text(events(fd, POLLOUT, 30)));
        tell_pid((pid_t)all);
        if (i % 2) {
            say("%s", poll_text(events(fd, POLLOUT, 10000)));
        } else {
            fd_set w;
            FD_ZERO(&w);
            FD_SET(fd, &w);
            R(select(fd + 1, NULL, &w, NULL, NULL));
        }
        hear();
    }
    meet();
}
static void room_b(void) {
    int fd = conn();
    for (int i = 0; i < 4; i++) {
        long all = hear_pid();
        settle();
        while (all > 0)
            all -= get(fd, buf, all > (long)sizeof buf ? sizeof buf : (size_t)all);
        say("rest %d", now_in(fd));
        tell('d');
    }
    meet();
}

/* A warm-up in which every receive is preceded by a wait of this kind. */
static void echo_with(int kind) {
    int fd = conn_cold();
    nonblocking(fd, 1);
    enum { ROUNDS = 1500, SIZE = 2000 };
    long before = is_a ? 0 : lo_bytes();
    for (int i = 0; i < ROUNDS; i++) {
        if (!is_a)
            send_n(fd, SIZE);
        for (size_t have = 0; have < SIZE;) {
            struct pollfd p = {fd, POLLIN, 0};
            struct timespec t = {10, 0};
            struct timeval tv = {10, 0};
            fd_set r;
            FD_ZERO(&r);
            FD_SET(fd, &r);
            int n = kind == 0   ? poll(&p, 1, 10000)
                    : kind == 1 ? ppoll(&p, 1, &t, NULL)
                    : kind == 2 ? select(fd + 1, &r, NULL, NULL, &tv)
                                : pselect(fd + 1, &r, NULL, NULL, &t, NULL);
            if (n != 1)
                die("wait");
            ssize_t m = recv(fd, buf, SIZE - have, 0);
            if (m <= 0)
                die("recv after the wait");
            have += m;
        }
        if (is_a)
            send_n(fd, SIZE);
    }
    if (!is_a)
        warmed(2 * ROUNDS * SIZE, lo_bytes() - before);
    say("%d rounds", ROUNDS);
    meet();
}
static void echo_poll(void) { echo_with(0); }
static void echo_ppoll(void) { echo_with(1); }
static void echo_select(void) { echo_with(2); }
static void echo_pselect(void) { echo_with(3); }

/* Both ends in one process: the accepting one is in a poll or select since before its connection was served in memory, while the other
 * thread, in waits of its own, takes the offer and the proof. What comes then wakes the first all the same. */
enum { TIMES = 600, PART = 100 };
static int listener, way, lost, patience = 3; /* s */
static int waits(int fd) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval t = {patience, 0};
    return way ? select(fd + 1, &set, NULL, NULL, &t) : events(fd, POLLIN, patience * 1000) != 0;
}
static void *accepts(void *unused) {
    char mine[PART] = {0};
    for (int i = 0; i < TIMES; i++) {
        int fd = accept_from(listener);
        nonblocking(fd, 1);
        for (int have = 0; have < 3 * PART;) {
            ssize_t n = recv(fd, mine, PART, 0);
            if (n > 0) {
                have += n;
                put(fd, mine, PART);
            } else {
                lost += waits(fd) != 1;
            }
        }
        close(fd);
    }
    return unused;
}
static void look_on(void) {
    for (int n = 0; n < 20; n++)
        events(listener, 0, 0);
}
static void beside(int by_select) {
    pthread_t other;
    way = by_select;
    listener = listen_on(PORT);
    pthread_create(&other, NULL, accepts, NULL);
    for (int i = 0; i < TIMES; i++) {
        int fd = dial(PORT);
        for (int k = 0; k < 3; k++) {
            send_n(fd, PART);
            look_on();
            if (get(fd, buf, PART) != PART)
                die("get");
            usleep(200); /* the other one falls asleep */
            look_on();
            usleep(200);
        }
        close(fd);
    }
    pthread_join(other, NULL);
    say("%d waits in vain", lost);
    meet();
}
static void poll_beside(void) { beside(0); }
static void select_beside(void) { beside(1); }

/* A thread that looks on by poll or select since before the connection was served in memory, and comes too late for what another one
 * reads. It is called all the same once that one reads no more. */
enum { HANDED = 100, ROUNDS_OF_ONE = 30 };
static volatile int rests;
static void *looks_on(void *p) {
    struct sched_param none = {0};
    MUST(sched_setscheduler(0, SCHED_IDLE, &none)); /* on the one processor of all: what has come is gone before it looks */
    int fd = *(int *)p;
    while (!rests)
        lost += waits(fd) != 1;
    return NULL;
}
static void handed(int by_select) {
    pthread_t other;
    way = by_select;
    patience = 10;
    listener = listen_on(PORT);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    sched_setaffinity(0, sizeof one, &one);
    for (int i = 0; i < HANDED; i++) {
        int to = dial(PORT), fd = accept_from(listener);
        rests = 0;
        pthread_create(&other, NULL, looks_on, &fd);
        usleep(500); /* it sleeps */
        for (int k = 0; k < ROUNDS_OF_ONE; k++) {
            send_n(to, PART);
            if (get(fd, buf, PART) != PART)
                die("get");
            send_n(fd, PART);
            if (get(to, buf, PART) != PART)
                die("get the answer");
        }
        rests = 1;
        send_n(to, PART);
        pthread_join(other, NULL);
        close(to);
        close(fd);
    }
    say("%d waits in vain", lost);
    meet();
}
static void poll_handed(void) { handed(0); }
static void select_handed(void) { handed(1); }

/* A low-water mark that is reached by what lies in memory and what has come through TCP behind that together. */
static void low_water_a(void) {
    static char all[4000];
    int fd = conn(), ep = MUST(epoll_create1(0));
    struct epoll_event e = {.events = EPOLLIN};
    sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 2000);
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    meet();
    meet_settled();
    say("below: %s %d", poll_text(events(fd, POLLIN, 30)), epoll_wait(ep, &e, 1, 30));
    meet();
    meet_settled();
    say("above: %s %d", poll_text(events(fd, POLLIN, 2000)), epoll_wait(ep, &e, 1, 2000));
    say("%d", now_in(fd));
    R(recv(fd, all, sizeof all, 0));
    say("after: %s %d", poll_text(events(fd, POLLIN, 30)), epoll_wait(ep, &e, 1, 30));
    meet();
}
static void low_water_b(void) {
    static char all[1500];
    int fd = conn();
    meet();
    R(send(fd, all, 1500, 0));
    meet_settled();
    meet();
    R(send(fd, all, 600, MSG_ZEROCOPY)); /* keeps to TCP from here on */
    meet_settled();
    meet();
}

/* What select leaves of a set's last word, and a time that can't be written, of which by number alone nothing is said. */
static void leaves_a(void) {
    static const struct timespec t = {0, 1000000};
    static const struct timeval tv = {0, 1000};
    enum { BEHIND = 62 };
    int fd = conn();
    struct pollfd p = {fd, POLLIN, 0};
    fd_set set;
    R(syscall(SYS_ppoll, &p, 1, &t, NULL, 8));
    FD_ZERO(&set);
    FD_SET(fd, &set);
    R(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, &t, NULL));
    FD_SET(fd, &set);
    R(syscall(SYS_select, fd + 1, &set, NULL, NULL, &tv));
    say("%ld %ld", t.tv_nsec, tv.tv_usec);
    meet();
    for (int i = 0; i < 2; i++) {
        FD_ZERO(&set);
        FD_SET(fd, &set);
        FD_SET(BEHIND, &set);
        R(select(fd + 1, i ? NULL : &set, i ? &set : NULL, NULL, NULL));
        say("%d %d", FD_ISSET(fd, &set), FD_ISSET(BEHIND, &set));
    }
    meet();
}
static void leaves_b(void) {
    int fd = conn();
    meet();
    put(fd, "fives", 5);
    meet();
}

/* By two numbers, and for no input: the other end gives the connection away meanwhile, for which this one has something to do. */
static void uncalled_a(int unread) {
    int fd = conn(), other = MUST(dup(fd));
    struct pollfd two[2] = {{fd, POLLRDHUP, 0}, {other, POLLRDHUP, 0}};
    meet();
    R(poll(two, 2, 3000));
    meet();
    if (unread)
        R(recv(fd, buf, 5, MSG_WAITALL));
    echo(fd, "after", 3);
    meet();
}
static void uncalled_b(int unread) {
    int fd = conn(), pair[2];
    union {
        char room[CMSG_SPACE(sizeof fd)];
        struct cmsghdr align;
    } control = {0};
    struct iovec one = {buf, 1};
    struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    meet_settled();
    if (unread)
        put(fd, "fives", 5);
    settle(); /* it sleeps */
    struct timespec from, to;
    MUST(clock_gettime(CLOCK_MONOTONIC, &from));
    R(sendmsg(pair[0], &m, 0));
    MUST(clock_gettime(CLOCK_MONOTONIC, &to));
    say("soon: %d", (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000 < 1000);
    meet();
    put(fd, buf, get(fd, buf, 20000));
    meet();
}
static void uncalled_empty_a(void) { uncalled_a(0); }
static void uncalled_empty_b(void) { uncalled_b(0); }
static void uncalled_unread_a(void) { uncalled_a(1); }
static void uncalled_unread_b(void) { uncalled_b(1); }

const struct test tests[] = {{"poll", poll_a, poll_b, 0},
                             {"select", select_a, select_b, 0},
                             {"room", room_a, room_b, 0},
                             {"echo_poll", echo_poll, echo_poll, 0},
                             {"echo_ppoll", echo_ppoll, echo_ppoll, 0},
                             {"echo_select", echo_select, echo_select, 0},
                             {"echo_pselect", echo_pselect, echo_pselect, 0},
                             {"poll_beside", poll_beside, meet, COLD | SWITCHES},
                             {"select_beside", select_beside, meet, COLD | SWITCHES},
                             {"poll_handed", poll_handed, meet, COLD | SWITCHES},
                             {"select_handed", select_handed, meet, COLD | SWITCHES},
                             {"low_water_behind", low_water_a, low_water_b, 0},
                             {"leaves", leaves_a, leaves_b, 0},
                             {"uncalled_empty", uncalled_empty_a, uncalled_empty_b, 0},
                             {"uncalled_unread", uncalled_unread_a, uncalled_unread_b, 0},
                             {0}};
