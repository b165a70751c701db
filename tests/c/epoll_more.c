/* Owns: epoll with more than one of something: sets, waiters, threads, descriptors, processes. */
#include "sets.h"

static char buf[64 * KIB];

/* MOD, ADD and DEL from another thread while one waits. */
struct later {
    int ep, op, fd;
    uint32_t ev;
};
static void *do_later(void *p) {
    struct later *l = p;
    settle();
    settle();
    MUST(ctl(l->ep, l->op, l->fd, l->ev, 0x20 + l->op));
    return NULL;
}
static void changed_a(void) {
    int fd = conn(), ep = epoll_create1(0);
    pthread_t t;
    struct later l = {ep, ADD, fd, EPOLLOUT};
    pthread_create(&t, NULL, do_later, &l);
    look(ep, 5000); /* an empty set; the ADD of a ready one wakes it */
    pthread_join(t, NULL);
    MUST(ctl(ep, MOD, fd, EPOLLIN, 1));
    l.op = MOD;
    l.ev = EPOLLIN | EPOLLOUT;
    pthread_create(&t, NULL, do_later, &l);
    look(ep, 5000);
    pthread_join(t, NULL);
    MUST(ctl(ep, MOD, fd, EPOLLIN, 1));
    meet();
    meet_settled(); /* data is there */
    MUST(ctl(ep, MOD, fd, 0, 1));
    l.ev = EPOLLIN;
    pthread_create(&t, NULL, do_later, &l);
    look(ep, 5000);
    pthread_join(t, NULL);
    l.op = DEL;
    MUST(recv(fd, buf, 100, 0));
    pthread_create(&t, NULL, do_later, &l);
    look(ep, 300);
    pthread_join(t, NULL);
    meet();
    meet_settled(); /* data, but not in the set */
    look(ep, 50);
    R(recv(fd, buf, 100, 0));
}
static void changed_b(void) {
    int fd = conn();
    for (int i = 0; i < 2; i++) {
        meet();
        put(fd, "data", 4);
        meet_settled();
    }
    R(recv(fd, buf, 1, 0));
}

static void nested_a(void) {
    int fd = conn(), inner = epoll_create1(0), outer = epoll_create1(0);
    MUST(ctl(inner, ADD, fd, EPOLLIN, 1));
    MUST(ctl(outer, ADD, inner, EPOLLIN, 2));
    look(outer, 30);
    say("%s", poll_text(events(inner, POLLIN, 0)));
    meet();
    look(outer, 5000); /* waits in the outer one */
    look(inner, 1000);
    say("%s", poll_text(events(inner, POLLIN, 0)));
    look(outer, 1000);
    R(recv(fd, buf, 100, 0));
    look(outer, 30);
    look(inner, 30);
    meet();
    say("%s", poll_text(events(inner, POLLIN, 5000)));
    look(outer, 1000);
    R(recv(fd, buf, 100, 0));
    say("%s", poll_text(events(inner, POLLIN, 0)));
    R(ctl(inner, ADD, outer, EPOLLIN, 3));
    meet();
}
static void nested_b(void) {
    int fd = conn();
    for (int i = 0; i < 2; i++) {
        meet();
        settle();
        put(fd, "data", 4);
    }
    meet();
}

/* A listener is a member once. */
static void listener_twice_a(void) {
    int l = listen_on(PORT), ep = epoll_create1(0);
    R(ctl(ep, ADD, l, EPOLLIN, 1));
    R(ctl(ep, ADD, l, EPOLLIN | EPOLLET, 2));
    meet();
    look(ep, 5000);
    look(ep, 0);
    int fd = accept_from(l);
    R(ctl(ep, DEL, l, 0, 0));
    R(ctl(ep, ADD, l, EPOLLIN, 3));
    close(l);
    echo(fd, "accepted", 3);
    close(fd);
}
static void listener_twice_b(void) {
    meet();
    echo_until_end(dial(PORT));
}

/* Connections, a pipe, an eventfd-like Unix socket and a listener in one set. */
static void mixture_a(void) {
    int l = listen_on(PORT), ep = epoll_create1(0), pipes[2], fd[3];
    meet();
    for (int i = 0; i < 3; i++) {
        fd[i] = accept_from(l);
        warm(fd[i]);
        MUST(ctl(ep, ADD, fd[i], EPOLLIN, 0x10 + i));
    }
    MUST(pipe(pipes));
    MUST(ctl(ep, ADD, pipes[0], EPOLLIN, 0x20));
    MUST(ctl(ep, ADD, l, EPOLLIN, 0x30));
    look(ep, 30);
    MUST(write(pipes[1], "p", 1));
    look(ep, 1000);
    meet();
    meet_settled();
    look(ep, 1000); /* pipe, listener, two connections */
    struct epoll_event one;
    unsigned seen = 0;
    for (int i = 0; i < 40; i++) /* maxevents 1: each gets its turn */
        if (epoll_wait(ep, &one, 1, 0) == 1)
            seen |= one.data.u64 == 0x10 ? 1 : one.data.u64 == 0x12 ? 2 : one.data.u64 == 0x20 ? 4 : 8;
    say("seen %x", seen);
    MUST(read(pipes[0], buf, 1));
    MUST(recv(fd[0], buf, 10, 0));
    look(ep, 1000);
    MUST(recv(fd[2], buf, 10, 0));
    close(accept_from(l));
    look(ep, 30);
    meet();
    look(ep, 5000); /* woken by the pipe's writer below? no: by connection 1 */
    meet();
}
static void mixture_b(void) {
    int fd[3];
    meet();
    for (int i = 0; i < 3; i++) {
        fd[i] = dial(PORT);
        warm(fd[i]);
    }
    meet();
    put(fd[0], "zero", 4);
    put(fd[2], "two", 3);
    int extra = dial(PORT);
    meet_settled();
    meet();
    settle();
    put(fd[1], "one", 3);
    meet();
    close(extra);
}

/* The same fd in two sets and in poll, with several threads: everyone is told. */
static int wake_pipe[2];
static void *wait_in(void *p) {
    struct epoll_event e;
    int n = epoll_wait((int)(intptr_t)p, &e, 1, 10000);
    char c = n == 1 && e.events == EPOLLIN ? 'y' : 'n';
    MUST(write(wake_pipe[1], &c, 1));
    return NULL;
}
static void *wait_poll(void *p) {
    char c = events((int)(intptr_t)p, POLLIN, 10000) == POLLIN ? 'y' : 'n';
    MUST(write(wake_pipe[1], &c, 1));
    return NULL;
}
static void everyone_a(void) {
    int fd = conn(), e1 = epoll_create1(0), e2 = epoll_create1(0);
    pthread_t t[4];
    char told[5] = "";
    MUST(pipe(wake_pipe));
    MUST(ctl(e1, ADD, fd, EPOLLIN, 1));
    MUST(ctl(e2, ADD, fd, EPOLLIN, 2));
    pthread_create(&t[0], NULL, wait_in, (void *)(intptr_t)e1);
    pthread_create(&t[1], NULL, wait_in, (void *)(intptr_t)e2);
    pthread_create(&t[2], NULL, wait_in, (void *)(intptr_t)e1);
    pthread_create(&t[3], NULL, wait_poll, (void *)(intptr_t)fd);
    settle();
    meet();
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    MUST(read(wake_pipe[0], told, 4));
    say("told %s", told);
    R(recv(fd, buf, 10, 0));
    look(e1, 30);
    look(e2, 30);
}
static void everyone_b(void) {
    int fd = conn();
    meet();
    settle();
    put(fd, "x", 1);
    R(recv(fd, buf, 1, 0));
}

/* Edge-triggered, three threads on one set: each arrival wakes exactly one. */
static int herd_ep;
static void *herd(void *p) {
    struct epoll_event e;
    int n;
    while ((n = epoll_wait(herd_ep, &e, 1, -1)) == 1 && e.data.u64 == 1)
        __atomic_add_fetch((int *)p, 1, __ATOMIC_SEQ_CST);
    return NULL;
}
static void herd_a(void) {
    int fd = conn(), woken = 0, stop[2];
    pthread_t t[3];
    herd_ep = epoll_create1(0);
    MUST(ctl(herd_ep, ADD, fd, EPOLLIN | EPOLLET, 1));
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, herd, &woken);
    for (int i = 0; i < 20; i++) {
        meet();
        for (int k = 0; k < 100 && __atomic_load_n(&woken, __ATOMIC_SEQ_CST) <= i; k++)
            settle();
        meet();
    }
    settle();
    int all = __atomic_load_n(&woken, __ATOMIC_SEQ_CST);
    say("woken %d", getenv("SMCR_FLIP") && all > 20 ? 20 : all); /* a change of medium may tell an edge again */
    MUST(pipe(stop));
    MUST(ctl(herd_ep, ADD, stop[0], EPOLLIN, 2));
    MUST(write(stop[1], "s", 1));
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    say("%zu", get(fd, buf, 100));
}
static void herd_b(void) {
    int fd = conn();
    for (int i = 0; i < 20; i++) {
        meet();
        put(fd, "tick.", 5);
        meet();
    }
    R(recv(fd, buf, 1, 0));
}

/* Two hundred connections, few of them active; every arrival is reported once (of thousands: epoll_thousands.c). */
static void many_a(void) {
    enum { N = 200 };
    static int fd[N];
    int l = listen_on(PORT), ep = epoll_create1(0);
    meet();
    for (int i = 0; i < N; i++) {
        fd[i] = accept_from(l);
        MUST(ctl(ep, ADD, fd[i], EPOLLIN, i));
        nonblocking(fd[i], 1);
    }
    meet();
    long left = 3000, odd = 0;
    struct epoll_event e[16];
    while (left > 0) {
        int n = epoll_wait(ep, e, 16, 20000);
        if (n <= 0)
            die("epoll_wait");
        for (int i = 0; i < n; i++) {
            ssize_t m = recv(fd[e[i].data.u64], buf, 1000, 0);
            if (m < 0) {
                odd++;
                continue;
            }
            put(fd[e[i].data.u64], buf, m);
            left -= m == 1000;
            if (m != 1000)
                die("size");
        }
    }
    say("events without data %ld", odd);
    meet();
}
static void many_b(void) {
    enum { N = 200 };
    static int fd[N];
    unsigned r = 5;
    meet();
    for (int i = 0; i < N; i++)
        fd[i] = dial(PORT);
    meet();
    for (int i = 0; i < 3000; i++) {
        int one = i < 1000 ? (int)(rnd(&r) % 8) : (int)(rnd(&r) % N);
        fill(buf, 1000, i, 3);
        put(fd[one], buf, 1000);
        if (get(fd[one], buf, 1000) != 1000 || !matches(buf, 1000, i, 3))
            die("echo");
    }
    say("3000 echoes");
    meet();
}

/* A set inherited over fork: the child waits in it. */
static void inherited_a(void) {
    int fd = conn(), ep = epoll_create1(0);
    MUST(ctl(ep, ADD, fd, EPOLLIN, 7));
    pid_t child = fork();
    if (child == 0) {
        look(ep, 10000);
        R(recv(fd, buf, 100, 0));
        R(send(fd, "from the child", 14, 0));
        _exit(0);
    }
    settle();
    meet();
    int status;
    waitpid(child, &status, 0);
    say("child %d", status);
    look(ep, 30);
    meet();
    look(ep, 5000);
    R(recv(fd, buf, 100, 0));
}
static void inherited_b(void) {
    int fd = conn();
    meet();
    put(fd, "to the child", 12);
    say("%zu", get(fd, buf, 14));
    meet();
    put(fd, "to the parent", 13);
    R(recv(fd, buf, 1, 0));
}

/* Both ends idle for longer than a second, again and again: what an idle connection gives back is not
 * missed when it goes on. */
static size_t amount(int round) {
    static const size_t of[] = {100, 40000, 1, 60000};
    return of[round];
}
static void give(int fd, int round) {
    fill(buf, amount(round), 0, round + 1);
    put(fd, buf, amount(round));
}
static void take(int fd, int round) {
    size_t n = get(fd, buf, amount(round));
    say("%zu bytes, %s", n, matches(buf, n, 0, round + 1) ? "as sent" : "others");
}
static void rested_a(void) {
    int fd = conn(), ep = epoll_create1(0);
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    for (int i = 0; i < 4; i++) {
        look(ep, 5000);
        take(fd, i);
        give(fd, i);
    }
}
static void rested_b(void) {
    int fd = conn(), ep = epoll_create1(0);
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    for (int i = 0; i < 4; i++) {
        look(ep, 1500);
        give(fd, i);
        look(ep, 5000);
        take(fd, i);
    }
}

/* One direction is on TCP, since this end has shut down its sending: each arrival is an edge of its own,
 * also where nobody looked in between. */
static void edge_half_closed_a(void) {
    int fd = conn(), ep = epoll_create1(0), good = 1;
    struct epoll_event e = {EPOLLIN | EPOLLET, {.fd = fd}};
    char some[64];
    nonblocking(fd, 1);
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    R(epoll_wait(ep, &e, 1, 20));
    R(shutdown(fd, SHUT_WR));
    meet();
    for (int i = 0; i < 10; i++) {
        meet_settled();
        good = good && epoll_wait(ep, &e, 1, 3000) == 1;
        ssize_t n, all = 0;
        while ((n = recv(fd, some, sizeof some, 0)) > 0)
            all += n;
        good = good && all == 100 && n < 0 && errno == EAGAIN;
        meet();
    }
    say("an event for each: %d", good);
}
static void edge_half_closed_b(void) {
    int fd = conn();
    char some[100];
    meet();
    R(recv(fd, some, 1, 0));
    for (int i = 0; i < 10; i++) {
        fill(some, sizeof some, i, 1);
        put(fd, some, sizeof some);
        meet_settled();
        meet();
    }
}

const struct test tests[] = {{"listener_twice", listener_twice_a, listener_twice_b, COLD},
                             {"changed_while_waiting", changed_a, changed_b, 0},
                             {"nested", nested_a, nested_b, 0},
                             {"mixture", mixture_a, mixture_b, 0},
                             {"everyone_is_told", everyone_a, everyone_b, 0},
                             {"edge_herd", herd_a, herd_b, 0},
                             {"many", many_a, many_b, COLD | SWITCHES},
                             {"inherited", inherited_a, inherited_b, 0},
                             {"rested", rested_a, rested_b, 0},
                             {"edge_half_closed", edge_half_closed_a, edge_half_closed_b, 0},
                             {0}};
