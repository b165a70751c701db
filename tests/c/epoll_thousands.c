/* Owns: sets of two thousand connections at both ends, of which a few are active: each arrival is told, once, and of no other; by level, by
 * edge, one-shot, in waits with little room, and to the end of half of them. */
#include "sets.h"
#include <sys/resource.h>

enum { N = 2000, SIZE = 300, FEW_MOVE = 12, ALL_MOVE = 18, PICKS = 600, MOST_PICKED = 8, LEFT = 40, ROOM = 256 };

static int fds[N], the_set;
static unsigned char told[N]; /* since the last look */
static char buf[64 * KIB];
static uint32_t asks;
static unsigned rounds; /* in which all speak; with few of them most stay on TCP */
static long odd; /* events of which nothing came */

static void has_room(void) {
    struct rlimit r;
    MUST(getrlimit(RLIMIT_NOFILE, &r));
    rlim_t need = N + 1000; /* the library has some of its own */
    if (r.rlim_cur < need)
        r.rlim_cur = need;
    if (r.rlim_max < need)
        r.rlim_max = need; /* root may */
    MUST(setrlimit(RLIMIT_NOFILE, &r));
}
static void begin(uint32_t events) {
    asks = events;
    has_room();
    the_set = MUST(epoll_create1(EPOLL_CLOEXEC));
    int l = is_a ? listen_on(PORT) : -1;
    if (is_a)
        MUST(listen(l, N)); /* one that is turned away comes again after a second */
    meet();
    for (int i = 0; i < N; i++) {
        fds[i] = is_a ? accept_from(l) : dial(PORT);
        nonblocking(fds[i], 1);
        MUST(ctl(the_set, ADD, fds[i], asks, i));
    }
    if (is_a)
        close(l);
    meet();
}
/* What is told of `count` arrivals, each read to its end; of more than that, or twice of one, is counted. */
static void arrivals(long count, unsigned round) {
    struct epoll_event e[ROOM];
    memset(told, 0, sizeof told);
    for (long left = count; left > 0;) {
        int n = MUST(epoll_wait(the_set, e, ROOM, 20000));
        if (n == 0)
            die("an arrival was not told");
        for (int i = 0; i < n; i++) {
            int which = (int)e[i].data.u64;
            ssize_t m = recv(fds[which], buf, sizeof buf, 0);
            if (m < 0 && errno == EAGAIN) {
                odd++;
                continue;
            }
            if (m != SIZE || !matches(buf, SIZE, (uint64_t)round << 20 | which, is_a ? 1 : 2) || told[which]++)
                die("another message");
            if (asks & EPOLLONESHOT)
                MUST(ctl(the_set, MOD, fds[which], asks, which));
            left--;
        }
    }
    struct epoll_event none;
    odd += MUST(epoll_wait(the_set, &none, 1, 0));
}
static void message(int which, unsigned round) {
    fill(buf, SIZE, (uint64_t)round << 20 | which, is_a ? 2 : 1);
    if (send(fds[which], buf, SIZE, MSG_NOSIGNAL) != SIZE)
        die("send");
}
/* Different ones, at random; both ends know the dice. */
static int picked(unsigned *dice, int *which) {
    int n = 1 + rnd(dice) % MOST_PICKED;
    for (int i = 0; i < n; i++) {
        which[i] = rnd(dice) % 4 ? (int)(rnd(dice) % 50 * (N / 50)) : (int)(rnd(dice) % N);
        for (int k = 0; k < i; k++)
            if (which[k] == which[i]) {
                i--;
                break;
            }
    }
    return n;
}
/* All of them, so that they are worth memory; then a few at a time. */
static void talk(void) {
    unsigned dice = 5;
    int which[MOST_PICKED];
    for (unsigned round = 0; round < rounds + PICKS; round++) {
        int n = round < rounds ? N : picked(&dice, which);
        for (int answers = 0; answers < 2; answers++)
            if (answers != is_a) {
                arrivals(n, round);
                for (int i = 0; round >= rounds && i < n; i++)
                    if (!told[which[i]])
                        die("another one was told");
            } else {
                for (int i = 0; i < n; i++)
                    message(round < rounds ? i : which[i], round);
            }
        if (round == rounds - 1) {
            meet_settled();
            say("all: events without data %ld", odd);
        }
    }
    say("a few: events without data %ld", odd);
    payload((uint64_t)rounds * N * SIZE);
    meet();
}
/* What is not read: each wait has room for less than there are, and all have their turn; told again by level alone. */
static void little_room(void) {
    struct epoll_event e[16];
    if (!is_a) {
        for (int i = 0; i < LEFT; i++)
            message(i * (N / LEFT), 0);
        meet_settled();
        meet();
        return;
    }
    meet_settled();
    memset(told, 0, sizeof told);
    int all = 0, events = 0;
    for (int wait = 0; wait < 1000 && all < LEFT; wait++) {
        int n = MUST(epoll_wait(the_set, e, 16, 0));
        events += n;
        for (int i = 0; i < n; i++)
            all += !told[e[i].data.u64]++;
    }
    /* By level some may be told again before others; a change of medium may tell an edge again. */
    say("told %d, more events %d", all, asks & (EPOLLET | EPOLLONESHOT) && !getenv("SMCR_FLIP") ? events - all : 0);
    if (!getenv("SMCR_FLIP"))
        say("then some: %d", MUST(epoll_wait(the_set, e, 16, 0)) > 0);
    for (int i = 0; i < LEFT; i++)
        if (get(fds[i * (N / LEFT)], buf, SIZE) != SIZE || (asks & EPOLLONESHOT && ctl(the_set, MOD, fds[i * (N / LEFT)], asks, i * (N / LEFT)) != 0))
            die("what was left");
    say("then %d", MUST(epoll_wait(the_set, e, 16, 0)));
    meet();
}
/* Every other one ends, in another order; the rest goes on. */
static void ends(void) {
    unsigned round = rounds + PICKS;
    for (int i = 0; i < N; i++) {
        int which = i * 7 % N;
        if (!is_a && which % 2)
            MUST(close(fds[which]));
    }
    if (is_a) {
        struct epoll_event e[ROOM];
        memset(told, 0, sizeof told);
        for (int left = N / 2; left > 0;) {
            int n = MUST(epoll_wait(the_set, e, ROOM, 20000));
            if (n == 0)
                die("an end was not told");
            for (int i = 0; i < n; i++) {
                int which = (int)e[i].data.u64;
                if (which % 2 == 0 || told[which]++ || recv(fds[which], buf, 1, 0) != 0 || !(e[i].events & EPOLLRDHUP))
                    die("another end");
                MUST(close(fds[which]));
                left--;
            }
        }
        say("more: %d", MUST(epoll_wait(the_set, e, ROOM, 0)));
    }
    meet();
    for (int answers = 0; answers < 2; answers++)
        if (answers != is_a)
            arrivals(N / 2, round);
        else
            for (int i = 0; i < N; i += 2)
                message(i, round);
    say("in the end: events without data %ld", odd);
    meet();
}
static void all_of_it(uint32_t events, unsigned n) {
    rounds = n;
    begin(events | EPOLLIN | EPOLLRDHUP);
    talk();
    little_room();
    ends();
}
static void level(void) { all_of_it(0, ALL_MOVE); }
static void level_mixed(void) { all_of_it(0, FEW_MOVE); }
static void edge(void) { all_of_it(EPOLLET, ALL_MOVE); }
static void edge_mixed(void) { all_of_it(EPOLLET, FEW_MOVE); }
static void once(void) { all_of_it(EPOLLONESHOT, FEW_MOVE); }

const struct test tests[] = {{"level", level, level, COLD | SWITCHES},
                             {"level_mixed", level_mixed, level_mixed, COLD | SWITCHES},
                             {"edge", edge, edge, COLD | SWITCHES},
                             {"edge_mixed", edge_mixed, edge_mixed, COLD | SWITCHES},
                             {"once", once, once, COLD | SWITCHES},
                             {0}};
