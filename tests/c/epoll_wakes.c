/* Owns: whom an event wakes, and how often it is told: exclusive and one-shot registrations, several sets and threads,
 * the turns of many descriptors, low-water marks. */
#include "sets.h"
#include "waiting.h"

static char buf[64 * KIB];

/* Threads that wait, each in its set, and count. */
enum { WAITERS = 4 };
static int told;
static pid_t tids[WAITERS];
static void *wait_in(void *set) {
    static int next;
    __atomic_store_n(&tids[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % WAITERS], gettid(), __ATOMIC_RELEASE);
    struct epoll_event e;
    if (epoll_wait((int)(intptr_t)set, &e, 1, 1500) == 1)
        __atomic_add_fetch(&told, 1, __ATOMIC_SEQ_CST);
    return NULL;
}
static void start(pthread_t *t, const int *sets) {
    told = 0;
    memset(tids, 0, sizeof tids);
    for (int i = 0; i < WAITERS; i++)
        MUST(-pthread_create(&t[i], NULL, wait_in, (void *)(intptr_t)sets[i]));
    for (int i = 0, calm = 0; i < WAITERS; i += calm == 5, usleep(1000)) { /* who is late finds the event, and needs no waking */
        pid_t tid = __atomic_load_n(&tids[i], __ATOMIC_ACQUIRE);
        calm = calm < 5 && tid && waiting_state(tid) == 'S' ? calm + 1 : 0;
    }
    meet(); /* now it comes */
}
static int all_told(pthread_t *t) {
    for (int i = 0; i < WAITERS; i++)
        pthread_join(t[i], NULL);
    return told;
}
static void bytes_b(int times) {
    int fd = conn();
    for (int i = 0; i < times; i++) {
        meet();
        put(fd, "x", 1);
    }
    R(recv(fd, buf, 1, 0));
}

/* A set of their own each, exclusive: one of them is told; without it everybody is. */
static void exclusive_a(void) {
    int fd = conn(), sets[WAITERS];
    pthread_t t[WAITERS];
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < WAITERS; i++)
            sets[i] = set_of(fd, EPOLLIN | (kind ? 0 : EPOLLEXCLUSIVE));
        start(t, sets);
        int n = all_told(t);
        say("%s: %d of %d", kind ? "shared" : "exclusive", n, WAITERS);
        R(recv(fd, buf, 10, 0));
        for (int i = 0; i < WAITERS; i++)
            close(sets[i]);
    }
}
static void exclusive_b(void) { bytes_b(2); }

/* The same for a listener, which never is in memory. */
static void exclusive_listener_a(void) {
    int l = listen_on(PORT), sets[WAITERS];
    pthread_t t[WAITERS];
    for (int i = 0; i < WAITERS; i++)
        sets[i] = set_of(l, EPOLLIN | EPOLLEXCLUSIVE);
    start(t, sets);
    int n = all_told(t);
    say("%d of %d", n, WAITERS);
    int fd = accept_from(l);
    warm(fd);
    R(recv(fd, buf, 1, 0));
}
static void exclusive_listener_b(void) {
    meet();
    int fd = dial(PORT);
    warm(fd);
    close(fd);
}

/* One set for all: one-shot and edge-triggered tell one thread, level-triggered tells all. */
static void one_set_a(void) {
    int fd = conn(), ep = set_of(fd, 0), sets[WAITERS] = {ep, ep, ep, ep};
    static const uint32_t kinds[] = {EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLET, EPOLLIN};
    pthread_t t[WAITERS];
    for (int i = 0; i < 3; i++) {
        MUST(ctl(ep, MOD, fd, kinds[i], fd));
        start(t, sets);
        say("kind %d: told %d", i, all_told(t));
        R(recv(fd, buf, 10, 0));
    }
}
static void one_set_b(void) { bytes_b(3); }

/* That nothing is told a second time. Of what lies unread an edge is, when a connection changes its medium (docs/readiness.md). */
static void look_again(int ep) {
    struct epoll_event e;
    if (getenv("SMCR_FLIP"))
        epoll_wait(ep, &e, 1, 20);
    else
        look(ep, 20);
}

/* One arrival, several sets, each with its own trigger: each is told by its own rule. */
static void triggers_a(void) {
    int fd = conn(), level = set_of(fd, EPOLLIN), edge = set_of(fd, EPOLLIN | EPOLLET), again = set_of(fd, EPOLLIN | EPOLLET);
    int once = set_of(fd, EPOLLIN | EPOLLONESHOT), twin = MUST(dup(fd));
    MUST(ctl(level, ADD, twin, EPOLLIN, 7));
    for (int i = 0; i < 3; i++) {
        meet();
        meet_settled();
        for (int k = 0; k < 2; k++) {
            look(level, 200); /* both descriptors of it */
            k ? look_again(edge) : look(edge, 20);
            look(once, 20);
        }
        R(recv(fd, buf, 3, 0)); /* of five */
        look(level, 200);
        look_again(edge);
    }
    look(again, 200); /* three arrivals, one look */
    look_again(again);
    R(get(fd, buf, 6));
    look(level, 20);
}
static void triggers_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        meet();
        put(fd, "fives", 5);
        meet_settled();
    }
    R(recv(fd, buf, 1, 0));
}

/* Told once, over TCP, and not armed again: also after the connection has moved to memory nothing is told. */
static void once_before_a(void) {
    int fd = conn_cold(), once = set_of(fd, EPOLLIN | EPOLLONESHOT), twin = MUST(dup(fd));
    MUST(ctl(once, ADD, twin, EPOLLIN | EPOLLONESHOT, 7));
    meet_settled();
    look(once, 1000);
    look(once, 20);
    R(recv(fd, buf, 5, 0));
    warm(fd);
    meet_settled();
    look(once, 200);
    MUST(ctl(once, MOD, twin, EPOLLIN | EPOLLONESHOT, 7));
    look(once, 1000);
    look(once, 20);
    R(recv(fd, buf, 10, 0));
}
static void once_before_b(void) {
    int fd = conn_cold();
    put(fd, "first", 5);
    meet_settled();
    warm(fd);
    put(fd, "second", 6);
    meet_settled();
    R(recv(fd, buf, 1, 0));
}

/* Level-triggered, all ready, nobody reads: each has its turn, one never twice before another has been once. */
enum { MANY = 12, AT_ONCE = 4 };
static void turns_a(void) {
    int l = listen_on(PORT), fd[MANY], ep = MUST(epoll_create1(0));
    meet();
    for (int i = 0; i < MANY; i++) {
        fd[i] = accept_from(l);
        warm(fd[i]);
        MUST(ctl(ep, ADD, fd[i], EPOLLIN, i));
    }
    meet();
    meet_settled();
    int often[MANY] = {0}, most = 0, least = 1000;
    struct epoll_event e[AT_ONCE];
    for (int i = 0; i < 10 * MANY / AT_ONCE; i++)
        for (int n = epoll_wait(ep, e, AT_ONCE, 1000); n-- > 0;)
            often[e[n].data.u64]++;
    for (int i = 0; i < MANY; i++) {
        most = often[i] > most ? often[i] : most;
        least = often[i] < least ? often[i] : least;
    }
    say("of 120 turns: from %d to %d", least, most);
    /* One that always has something does not hide the others. */
    for (int i = 1; i < MANY; i++)
        MUST(recv(fd[i], buf, 10, 0));
    for (int i = 1; i < MANY; i++) {
        meet(); /* number i gets a byte */
        meet_settled();
        int seen = 0;
        for (int k = 0; k < 4 && !seen; k++)
            seen = epoll_wait(ep, e, 1, 1000) == 1 && e->data.u64 == (uint64_t)i;
        say("%d was told: %d", i, seen);
        MUST(recv(fd[i], buf, 10, 0));
    }
    meet();
}
static void turns_b(void) {
    int fd[MANY];
    meet();
    for (int i = 0; i < MANY; i++) {
        fd[i] = dial(PORT);
        warm(fd[i]);
    }
    meet();
    for (int i = 0; i < MANY; i++)
        put(fd[i], "x", 1);
    meet_settled();
    for (int i = 1; i < MANY; i++) {
        meet();
        put(fd[i], "y", 1);
        meet_settled();
    }
    meet();
}

/* A set that parent and child both wait in. */
static void both_wait_a(void) {
    int fd = conn(), ep = set_of(fd, EPOLLIN);
    pid_t child = fork();
    if (child == 0) {
        look(ep, 5000);
        _exit(0);
    }
    settle();
    meet();
    struct epoll_event e;
    int n = epoll_wait(ep, &e, 1, 5000);
    wait_for(child);
    say("parent %d", n);
    R(recv(fd, buf, 10, 0));
    look(ep, 20);
    echo(fd, "parent", 1);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void both_wait_b(void) {
    int fd = conn();
    meet();
    settle();
    put(fd, "x", 1);
    echo_until_end(fd);
}

/* SO_RCVLOWAT: no event below the mark, in a set of either trigger and in select. */
static void low_water_a(void) {
    int fd = conn(), level = set_of(fd, EPOLLIN), edge = set_of(fd, EPOLLIN | EPOLLET);
    sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 10);
    for (int i = 0; i < 4; i++) { /* four bytes each time */
        meet();
        meet_settled();
        fd_set r;
        FD_ZERO(&r);
        FD_SET(fd, &r);
        say("select %d", select(fd + 1, &r, NULL, NULL, &(struct timeval){0, 20000}));
        look(level, 20);
        look(edge, 20);
    }
    R(recv(fd, buf, 9, 0));
    look(level, 20);
    meet();
    look(level, 20);
    R(shutdown(fd, SHUT_WR));
    meet_settled();
    look(level, 1000); /* the end counts below the mark too */
    R(recv(fd, buf, 10, 0));
    R(recv(fd, buf, 10, 0));
}
static void low_water_b(void) {
    int fd = conn();
    for (int i = 0; i < 4; i++) {
        meet();
        put(fd, "four", 4);
        meet_settled();
    }
    meet();
    R(recv(fd, buf, 1, 0));
    R(shutdown(fd, SHUT_WR));
    meet_settled();
}

/* The mark is lowered to what is there: an edge, also the second time, and it wakes whoever sleeps. */
static int lowered, lowered_level, lowered_edge;
static long w_poll(void) { return events(lowered, POLLIN, 10000); }
static long w_level(void) { return epoll_wait(lowered_level, &(struct epoll_event){0}, 1, 10000); }
static long w_edge(void) { return epoll_wait(lowered_edge, &(struct epoll_event){0}, 1, 10000); }
static void mark_a(void) {
    struct waiting w[3];
    lowered = conn(), lowered_level = set_of(lowered, EPOLLIN), lowered_edge = set_of(lowered, EPOLLIN | EPOLLET);
    sol_int(lowered, SOL_SOCKET, SO_RCVLOWAT, 10);
    meet();
    meet_settled();
    look(lowered_level, 20);
    look(lowered_edge, 20);
    for (int i = 0; i < 2; i++) {
        sol_int(lowered, SOL_SOCKET, SO_RCVLOWAT, 4 - i);
        look(lowered_level, 1000);
        look(lowered_edge, 20);
        look(lowered_edge, 20);
    }
    sol_int(lowered, SOL_SOCKET, SO_RCVLOWAT, 5);
    look(lowered_level, 20);
    look(lowered_edge, 20);
    waiting_start(&w[0], "poll", w_poll);
    waiting_start(&w[1], "level", w_level);
    waiting_start(&w[2], "edge", w_edge);
    sol_int(lowered, SOL_SOCKET, SO_RCVLOWAT, 3);
    for (int i = 0; i < 3; i++)
        say("%s: %ld", w[i].name, waiting_is_over(&w[i], 5000) ? w[i].result : -2);
    R(recv(lowered, buf, 10, 0));
}
static void mark_b(void) {
    int fd = conn();
    meet();
    put(fd, "four", 4);
    meet_settled();
    R(recv(fd, buf, 1, 0));
}

/* A set in a set, the outer one edge-triggered: one event for each arrival. */
static void nested_edge_a(void) {
    int fd = conn(), inner = set_of(fd, EPOLLIN | EPOLLET), outer = set_of(inner, EPOLLIN | EPOLLET);
    look(outer, 20);
    for (int i = 0; i < 3; i++) {
        meet();
        meet_settled();
        look(outer, 1000);
        look(outer, 20);
        look(inner, 1000);
        look(inner, 20);
        R(recv(fd, buf, 10, 0));
    }
}
static void nested_edge_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        meet();
        put(fd, "x", 1);
        meet_settled();
    }
    R(recv(fd, buf, 1, 0));
}

/* Who waits for data is not woken by a peer that reads, though it has waited for room before. */
enum { FULL = 4 * MIB };
static int of_reads, reads_set, is_sent;
static void send_full(int by_set) {
    struct epoll_event e;
    for (long n, sent = 0; sent < FULL; sent += n > 0 ? n : 0) {
        n = send(of_reads, buf, FULL - sent < (long)sizeof buf ? FULL - sent : (long)sizeof buf, MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN)
            die("send");
        if (n < 0)
            by_set ? epoll_wait(reads_set, &e, 1, -1) : events(of_reads, POLLOUT, -1);
    }
    if (by_set)
        MUST(ctl(reads_set, MOD, of_reads, EPOLLIN, of_reads));
    __atomic_store_n(&is_sent, 1, __ATOMIC_RELEASE);
}
static long by_poll(void) {
    send_full(0);
    return events(of_reads, POLLIN, -1);
}
static long by_epoll(void) {
    struct epoll_event e;
    send_full(1);
    return epoll_wait(reads_set, &e, 1, -1);
}
static long times_asleep(pid_t tid) {
    char path[64], line[128];
    long n = -1;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "voluntary_ctxt_switches: %ld", &n) != 1) {
    }
    if (f)
        fclose(f);
    return n;
}
/* The same, when nothing of its own wakes it any more: a set is put in order after a second. */
static long when_calm(pid_t tid) {
    usleep(1200000);
    for (;;) {
        long n = times_asleep(tid);
        usleep(100000);
        if (times_asleep(tid) == n)
            return n;
    }
}
static void reads_a(void) {
    int fd = of_reads = conn();
    for (int by_set = 0; by_set < 2; by_set++) {
        if (by_set)
            reads_set = set_of(fd, EPOLLIN | EPOLLOUT);
        is_sent = 0;
        struct waiting w;
        waiting_start(&w, by_set ? "epoll" : "poll", by_set ? by_epoll : by_poll);
        while (!__atomic_load_n(&is_sent, __ATOMIC_ACQUIRE))
            usleep(1000);
        meet();
        put(fd, "x", 1);
        long before = when_calm(w.tid);
        meet();
        meet_settled();
        say("%s %s", w.name, times_asleep(w.tid) == before ? "sleeps on" : "was woken");
        meet();
        say("over %d", waiting_is_over(&w, 20000));
        R(recv(fd, buf, 1, 0));
    }
}
static void reads_b(void) {
    int fd = conn();
    for (int sets = 0; sets < 2; sets++) {
        for (long n, got = 0; got < FULL; got += n) {
            n = MUST(recv(fd, buf, FULL - got < (long)sizeof buf ? FULL - got : (long)sizeof buf, 0));
            usleep(2000);
        }
        meet();
        meet();
        R(recv(fd, buf, 1, 0));
        meet_settled();
        meet();
        put(fd, "y", 1);
    }
}

const struct test tests[] = {{"exclusive", exclusive_a, exclusive_b, 0},
                             {"exclusive_listener", exclusive_listener_a, exclusive_listener_b, 0},
                             {"one_set", one_set_a, one_set_b, 0},
                             {"once_before", once_before_a, once_before_b, 0},
                             {"triggers", triggers_a, triggers_b, 0},
                             {"turns", turns_a, turns_b, 0},
                             {"both_wait", both_wait_a, both_wait_b, 0},
                             {"low_water", low_water_a, low_water_b, 0},
                             {"low_water_lowered", mark_a, mark_b, 0},
                             {"nested_edge", nested_edge_a, nested_edge_b, 0},
                             {"reads", reads_a, reads_b, 0},
                             {0}};
