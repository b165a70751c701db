/* Owns: what comes to a set while a thread sleeps in it, since before there was anything in memory: connections that another set or
 * blocking calls have served, and room in one that came to memory meanwhile. */
#include "sets.h"
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

static int ep;
static atomic_int told, edges;

/* One round of an event loop after another, until a descriptor of 0. */
static void *serves(void *unused) {
    for (;;) {
        struct epoll_event e;
        char b[8];
        if (epoll_wait(ep, &e, 1, -1) != 1)
            continue;
        if (e.data.u64 == 0)
            return unused;
        if (recv((int)e.data.u64, b, sizeof b, MSG_DONTWAIT) > 0)
            told++;
    }
}
/* A set with a thread that sleeps in it, and nothing of TCP. */
static pthread_t sleeps_in_it(void *(*how)(void *), int *other) {
    pthread_t t;
    ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    if (other) {
        *other = MUST(eventfd(0, EFD_CLOEXEC));
        MUST(ctl(ep, ADD, *other, EPOLLIN, 0));
    }
    MUST(-pthread_create(&t, NULL, how, NULL));
    settle();
    return t;
}
static void wait_for_told(atomic_int *what, int n) {
    for (int i = 0; i < 10000 && *what < n; i++)
        usleep(1000);
    say("%d", *what >= n);
}

enum { SETS, CALLS, BACK };
/* Two connections; the one that comes second gets data, and then the first. */
static void handed(int by) {
    int fd[2] = {conn(), conn()}, other;
    char b;
    pthread_t t = sleeps_in_it(serves, &other);
    if (by == SETS) {
        int before = MUST(epoll_create1(EPOLL_CLOEXEC));
        for (int i = 0; i < 2; i++)
            MUST(ctl(before, ADD, fd[i], EPOLLIN, i));
        meet();
        meet_settled();
        look(before, 1000);
        for (int i = 0; i < 2; i++)
            R(recv(fd[i], &b, 1, MSG_DONTWAIT));
        look(before, 20);
        for (int i = 0; i < 2; i++)
            MUST(ctl(before, DEL, fd[i], 0, 0));
    }
    if (by == BACK) { /* members for a moment, and then read by calls that sleep */
        for (int i = 0; i < 2; i++)
            MUST(ctl(ep, ADD, fd[i], EPOLLIN, fd[i]));
        for (int i = 0; i < 2; i++)
            MUST(ctl(ep, DEL, fd[i], 0, 0));
        meet();
        for (int i = 0; i < 2; i++)
            R(recv(fd[i], &b, 1, 0));
        meet_settled();
    }
    for (int i = 0; i < 2; i++)
        MUST(ctl(ep, ADD, fd[i], EPOLLIN, fd[i]));
    settle();
    meet();
    wait_for_told(&told, 1);
    meet();
    wait_for_told(&told, 2);
    MUST(write(other, &(uint64_t){1}, 8));
    pthread_join(t, NULL);
    meet();
}
static void handed_by_set_a(void) { handed(SETS); }
static void handed_by_calls_a(void) { handed(CALLS); }
static void handed_back_a(void) { handed(BACK); }
static void to(int by) {
    int fd[2] = {conn(), conn()};
    if (by != CALLS) {
        meet();
        settle();
        put(fd[0], "x", 1);
        put(fd[1], "x", 1);
        meet_settled();
    }
    meet();
    put(fd[1], "y", 1);
    meet();
    put(fd[0], "y", 1);
    meet();
}
static void to_set_b(void) { to(SETS); }
static void to_calls_b(void) { to(CALLS); }
static void back_b(void) { to(BACK); }

/* The thread has slept since the connection was new, and nothing arrives at it (the sender is who connects); what it hears of room is all that the sending thread goes by. */
enum { ROUNDS = 8 };
static char buf[64 * KIB];
static void *hears_edges(void *unused) {
    for (;;) {
        struct epoll_event e;
        if (epoll_wait(ep, &e, 1, -1) == 1) {
            if (e.events & EPOLLRDHUP)
                return unused;
            edges += (e.events & EPOLLOUT) != 0;
        }
    }
}
static void full_b(void) {
    int fd = conn_cold();
    nonblocking(fd, 1);
    ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(ctl(ep, ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1));
    pthread_t t;
    MUST(-pthread_create(&t, NULL, hears_edges, NULL));
    wait_for_told(&edges, 1);
    for (int i = 0; i < ROUNDS; i++) {
        int before, sent;
        do { /* until it stays full */
            before = edges;
            sent = 0;
            while (send(fd, buf, sizeof buf, MSG_NOSIGNAL) > 0)
                sent++;
            settle();
        } while (sent);
        meet();
        wait_for_told(&edges, before + 1);
        meet();
    }
    MUST(shutdown(fd, SHUT_WR));
    meet();
    pthread_join(t, NULL);
}
static void reads_a(void) {
    int fd = conn_cold();
    for (int i = 0; i < ROUNDS; i++) {
        meet();
        while (events(fd, POLLIN, 300) & POLLIN)
            MUST(recv(fd, buf, sizeof buf, 0));
        meet();
    }
    meet();
    while (recv(fd, buf, sizeof buf, 0) > 0) {
    }
}

/* ---- threads that wait in a set since before its first member ---- */

enum { WORKERS = 4 };
static atomic_int served;
static sem_t taken;

/* One that was told to wait does so until another one has taken what it waits for. */
static void *works(void *unused) {
    struct epoll_event e;
    while (epoll_wait(ep, &e, 1, -1) == 1 && e.events == EPOLLIN) {
        char c = 0;
        MUST(recv((int)e.data.u64, &c, 1, 0));
        if (c == 'w')
            MUST(sem_wait(&taken));
        if (c == 't')
            MUST(sem_post(&taken));
        MUST(ctl(ep, MOD, (int)e.data.u64, EPOLLIN | EPOLLONESHOT, e.data.u64));
        served++;
    }
    say("another event");
    return unused;
}
static void first_a(void) {
    pthread_t t;
    int fd[2] = {conn(), conn()};
    MUST(sem_init(&taken, 0, 0));
    ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    for (int i = 0; i < WORKERS; i++)
        MUST(-pthread_create(&t, NULL, works, NULL));
    settle();
    meet();
    meet_settled(); /* there already when it becomes a member */
    for (int i = 0; i < 2; i++)
        MUST(ctl(ep, ADD, fd[i], EPOLLIN | EPOLLONESHOT, fd[i]));
    wait_for_told(&served, 1);
    for (int i = 0; i < 10; i++) {
        meet();
        wait_for_told(&served, 3 + 2 * i);
    }
}
static void first_b(void) {
    int fd[2] = {conn(), conn()};
    meet();
    put(fd[0], "x", 1);
    meet_settled();
    for (int i = 0; i < 10; i++) {
        meet();
        put(fd[i % 2], "w", 1);
        settle();
        put(fd[1 - i % 2], "t", 1);
    }
    char c;
    R(recv(fd[0], &c, 1, 0));
}

const struct test tests[] = {{"handed_by_set", handed_by_set_a, to_set_b, 0},
                             {"handed_by_calls", handed_by_calls_a, to_calls_b, 0},
                             {"handed_back", handed_back_a, back_b, 0},
                             {"first_member", first_a, first_b, 0},
                             {"room", reads_a, full_b, COLD | SWITCHES},
                             {0}};
