/* Owns: members of a set that have been silent for so long that nobody looks at them, and what calls the set for one of them. */
#include "sets.h"

enum { MANY = 12, WORD = 100, TURNS = 20000, ROUNDS = 80, LONG = 600 };

static int fds[MANY];
static char buf[4096];

/* All of them, at either end. */
static void make_all(void) {
    int first = conn(), l = is_a ? listen_on(PORT + 1) : -1;
    meet();
    fds[0] = first;
    for (int i = 1; i < MANY; i++) {
        fds[i] = is_a ? accept_from(l) : dial(PORT + 1);
        warm(fds[i]);
    }
    if (is_a)
        close(l);
}

static int set_of_all(uint32_t how) {
    int ep = MUST(epoll_create1(0));
    for (int i = 0; i < MANY; i++)
        MUST(ctl(ep, ADD, fds[i], EPOLLIN | how, i));
    return ep;
}

static long now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* It is asked so often and for so long in vain that it looks at none of them from there on. */
static int rest(int ep) {
    int n = 0;
    long until = now_us() + 5000;
    for (int i = 0; i < 1000 || now_us() < until; i++)
        n |= epoll_wait(ep, &(struct epoll_event){0}, 1, 0);
    return n;
}

static int turn(long i) { return (int)(i * 37 % MANY); }

/* Echoes what comes until nothing has for a while. */
static void echo_all(int ep, uint32_t how) {
    struct epoll_event e[16];
    long words = 0, wrong = 0;
    for (int n; words < TURNS && (n = epoll_wait(ep, e, 16, 5000)) > 0;)
        for (int k = 0; k < n; k++) {
            int fd = fds[e[k].data.u64];
            for (;;) {
                ssize_t r = recv(fd, buf, WORD, MSG_DONTWAIT);
                if (r != WORD)
                    break;
                wrong += !matches(buf, WORD, 0, (unsigned)e[k].data.u64);
                put(fd, buf, WORD);
                words++;
                if (!how)
                    break;
            }
        }
    say("%ld words, %ld wrong", words, wrong);
}

/* Speaks by one after another, so many of them at a time, and takes the answers. */
static void speak_all(int ep, int at_once) {
    struct epoll_event e[16];
    long said = 0, heard = 0, wrong = 0, before = lo_bytes();
    char word[MANY][WORD];
    for (int i = 0; i < MANY; i++)
        fill(word[i], WORD, 0, i);
    for (; said < at_once; said++)
        put(fds[turn(said)], word[turn(said)], WORD);
    while (heard < TURNS) {
        int n = epoll_wait(ep, e, 16, 5000);
        if (n <= 0)
            break;
        for (int k = 0; k < n; k++) {
            int i = (int)e[k].data.u64;
            ssize_t r = recv(fds[i], buf, WORD, MSG_DONTWAIT);
            wrong += r != WORD || !matches(buf, WORD, 0, i);
            heard++;
            if (said < TURNS) {
                put(fds[turn(said)], word[turn(said)], WORD);
                said++;
            }
        }
    }
    say("%ld heard, %ld wrong", heard, wrong);
    warmed(heard * WORD * 2, lo_bytes() - before);
}

static void turns_a(void) {
    make_all();
    echo_all(set_of_all(0), 0);
    meet();
}
static void turns_b(void) {
    make_all();
    speak_all(set_of_all(0), 1);
    meet();
}
/* Each speaks a word now and then; nobody needs a byte on TCP to hear it. */
static void seldom_a(void) {
    make_all();
    int ep = set_of_all(0);
    struct epoll_event e;
    for (int i = 0; i < ROUNDS; i++) {
        if (rest(ep))
            say("early");
        meet();
        for (int k = 0; k < MANY; k++) {
            if (epoll_wait(ep, &e, 1, 5000) != 1)
                die("a word");
            got(fds[e.data.u64], buf, LONG, 0, (unsigned)e.data.u64);
            put(fds[e.data.u64], buf, LONG);
        }
        meet();
    }
}
static void seldom_b(void) {
    make_all();
    int ep = set_of_all(0);
    long before = lo_bytes();
    for (int i = 0; i < ROUNDS; i++) {
        if (rest(ep))
            say("early");
        meet();
        for (int k = 0; k < MANY; k++) {
            int at = (k * 5 + i) % MANY;
            fill(buf, LONG, 0, at);
            put(fds[at], buf, LONG);
            look(ep, 5000);
            got(fds[at], buf, LONG, 0, at);
        }
        meet();
    }
    warmed(ROUNDS * MANY * LONG * 2, lo_bytes() - before);
}

static void edges_a(void) {
    make_all();
    echo_all(set_of_all(EPOLLET), EPOLLET);
    meet();
}
static void edges_b(void) {
    make_all();
    speak_all(set_of_all(0), 8);
    meet();
}

/* What may come of one that nobody looks at, one after another. */
static void kinds(uint32_t how) {
    make_all();
    int ep = set_of_all(how | EPOLLRDHUP | EPOLLPRI), n = 0;
    look(ep, 0);
    for (; n < 7; n++) {
        if (rest(ep) != (n > 1))
            say("%d: it tells otherwise", n);
        meet();
        meet_settled();
        look(ep, 1000);
        R(recv(fds[n], buf, 100, MSG_DONTWAIT));
        R(recv(fds[n], buf, 100, MSG_DONTWAIT | MSG_OOB));
        if (n != 1)
            MUST(ctl(ep, DEL, fds[n], 0, 0));
    }
    meet();
}
static void level_a(void) { kinds(0); }
static void edge_a(void) { kinds(EPOLLET); }
static void kinds_b(void) {
    make_all();
    for (int n = 0; n < 7; n++) {
        meet();
        struct linger l = {1, 0};
        switch (n) {
        case 0: put(fds[n], "fives", 5); break;
        case 1: MUST(shutdown(fds[n], SHUT_WR)); break;
        case 2: MUST(send(fds[n], "o", 1, MSG_OOB)); break;
        case 3:
            MUST(setsockopt(fds[n], SOL_SOCKET, SO_LINGER, &l, sizeof l));
            MUST(close(fds[n]));
            break;
        case 4: MUST(close(fds[n])); break;
        case 5:
            put(fds[n], "fives", 5);
            MUST(close(fds[n]));
            break;
        case 6: put(fds[n], buf, sizeof buf); break;
        }
        meet_settled();
    }
    meet();
}

/* What the program does with them while they rest, and then all speak. */
static void changes_a(void) {
    make_all();
    int ep = set_of_all(0), other = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    look(ep, 0);
    look(other, 0);
    rest(ep);
    MUST(ctl(ep, MOD, fds[0], EPOLLIN, 1000));
    MUST(ctl(ep, DEL, fds[1], 0, 0));
    MUST(ctl(ep, DEL, fds[2], 0, 0));
    MUST(ctl(ep, ADD, fds[2], EPOLLIN, 1002));
    int twin = MUST(dup(fds[3]));
    close(fds[3]); /* a member that nobody can name */
    MUST(dup2(twin, fds[4])); /* and one that is closed, whose number is another's */
    MUST(ctl(other, ADD, fds[5], EPOLLIN, 5));
    MUST(ctl(ep, MOD, fds[6], EPOLLIN | EPOLLOUT, 1006));
    MUST(ctl(ep, MOD, fds[7], 0, 7));
    MUST(ctl(ep, MOD, fds[8], EPOLLIN | EPOLLONESHOT, 8));
    for (int i = 9; i < MANY; i++)
        MUST(ctl(ep, DEL, fds[i], 0, 0));
    meet();
    meet_settled();
    look(ep, 1000);
    look(other, 1000);
    for (int i = 0; i < 9; i++)
        if (i != 3)
            say("%d: %zd", i, recv(fds[i], buf, 100, MSG_DONTWAIT));
    R(recv(twin, buf, 100, MSG_DONTWAIT));
    look(ep, 50);
    MUST(ctl(ep, MOD, fds[6], EPOLLIN, 6));
    rest(ep);
    MUST(ctl(outer, ADD, ep, EPOLLIN, 99)); /* from here on the kernel looks */
    meet();
    meet_settled();
    look(outer, 1000);
    look(ep, 1000);
    meet();
}
static void changes_b(void) {
    make_all();
    for (int times = 0; times < 2; times++) {
        meet();
        for (int i = 0; i < 9; i++)
            if (i != 4)
                put(fds[i], "fives", 5);
        meet_settled();
    }
    meet();
}

/* A child waits for one of them while its parent's set rests, and both are told. */
static void child_a(void) {
    make_all();
    int ep = set_of_all(0);
    look(ep, 0);
    for (int i = 0; i < 3; i++) {
        rest(ep);
        pid_t pid = MUST(fork());
        if (!pid) {
            say("child: %s", poll_text(events(fds[i], POLLIN, 5000)));
            _exit(0);
        }
        settle();
        meet();
        meet_settled();
        wait_for(pid);
        look(ep, 1000);
        R(recv(fds[i], buf, 100, MSG_DONTWAIT));
    }
    rest(ep);
    meet();
    meet_settled();
    look(ep, 1000);
    meet();
}
static void child_b(void) {
    make_all();
    for (int i = 0; i < 4; i++) {
        meet();
        put(fds[i], "fives", 5);
        meet_settled();
    }
    meet();
}

/* Threads sleep in the set while it rests. */
static void *waits(void *p) {
    struct epoll_event e;
    int n = epoll_wait(*(int *)p, &e, 1, 5000);
    return (void *)(long)(n == 1 ? (long)e.data.u64 : -1);
}
static void threads_a(void) {
    make_all();
    int ep = set_of_all(EPOLLONESHOT);
    look(ep, 0);
    for (int i = 0; i < MANY / 2; i++) {
        rest(ep);
        pthread_t t[2];
        void *r[2];
        for (int k = 0; k < 2; k++)
            MUST(-pthread_create(&t[k], NULL, waits, &ep));
        settle();
        meet();
        for (int k = 0; k < 2; k++)
            MUST(-pthread_join(t[k], &r[k]));
        long one = (long)r[0], two = (long)r[1];
        say("%ld %ld", one < two ? one : two, one < two ? two : one);
        for (int k = 0; k < 2; k++)
            R(recv(fds[i * 2 + k], buf, 100, MSG_DONTWAIT));
        meet();
    }
}
static void threads_b(void) {
    make_all();
    for (int i = 0; i < MANY / 2; i++) {
        meet();
        put(fds[i * 2], "fives", 5);
        put(fds[i * 2 + 1], "fives", 5);
        meet();
    }
}

const struct test tests[] = {{"turns", turns_a, turns_b, 0},
                             {"seldom", seldom_a, seldom_b, 0},
                             {"edges", edges_a, edges_b, 0},
                             {"level", level_a, kinds_b, 0},
                             {"edge", edge_a, kinds_b, 0},
                             {"changes", changes_a, changes_b, 0},
                             {"child", child_a, child_b, 0},
                             {"threads", threads_a, threads_b, 0},
                             {0}};
