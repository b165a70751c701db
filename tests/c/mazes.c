/* Owns: random walks over epoll sets: sets in sets, connections under several numbers, whose closed ones leave ghosts, pipes, what is waited for while the other
 * end sends, poll and select around all of it, registrations by a ring of io_uring. The two ends take turns; a seed has one transcript. MAZE_SEED=N walks another way; what is sent
 * has arrived after MAZE_ARRIVES us (2000). */
#include "dice.h"
#include "ring.h"
#include "sets.h"

enum { CONNECTIONS = 4, NUMBERS = 3, SETS = 3, WALKS = 3, MOST = 20000, FIRST = 100, NONE = -1 };

static int at[CONNECTIONS][NUMBERS]; /* numbers of each connection, some of them closed */
static int sets[SETS], ends[2];      /* a set may be in those before it; a pipe */
static long piped;
static long sent[CONNECTIONS];
static int over[CONNECTIONS], gone[CONNECTIONS]; /* this end sends nothing more; the other one: 1, or has closed: 2 */
static int is_level; /* no edges, nothing told once: what is registered so shows a HUP once more, when it goes back to the kernel */
static unsigned marks; /* each registration says another one */
static int has_ring;   /* some come by a ring of io_uring, as libuv's */
static struct ring ring;
static char buf[64 * KIB];

/* ---- what there is ---- */

static int number_of(int c, int i) { return FIRST + c * NUMBERS + i; }
static int some_number(void) {
    return number_of((int)die_of(CONNECTIONS), (int)die_of(NUMBERS));
}
/* A number that is open, of this connection. */
static int open_of(int c) {
    for (int i = 0; i < NUMBERS; i++)
        if (at[c][i])
            return number_of(c, i);
    return NONE;
}
static const char *called(int fd) {
    static char text[4][24];
    static int turn;
    char *t = text[turn++ % 4];
    for (int s = 0; s < SETS; s++)
        if (fd == sets[s])
            return sprintf(t, "set %d", s), t;
    if (fd == ends[0])
        return "pipe";
    if (fd >= FIRST)
        return sprintf(t, "%d.%d", (fd - FIRST) / NUMBERS, (fd - FIRST) % NUMBERS), t;
    return "?";
}

/* ---- steps ---- */

static long moved; /* bytes of this step, and of which connection; or its end, which the other end is told */
static int of, ended;

static void sends(int c, long n) {
    int f = open_of(c);
    if (f == NONE || over[c] || sent[c] + n > MOST)
        return say("sends nothing by %d", c);
    long r = send(f, buf, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (gone[c] == 2)
        return say("sends by %d, which nobody reads", c); /* resets come when they come */
    say("send by %d: %ld of %ld", c, r, n);
    if (r > 0)
        of = c, moved = r;
}
static void receives(void) {
    int c = (int)die_of(CONNECTIONS), f = open_of(c);
    long n = die_of(3) ? MOST : 1 + die_of(40);
    if (f == NONE)
        return;
    long r = recv(f, buf, n, MSG_DONTWAIT | (die_of(5) ? 0 : MSG_PEEK));
    say("recv by %d: %ld %s", c, r, r < 0 ? err_name(errno) : "");
}
static void pipes(void) {
    if (piped == 0 || die_of(2))
        MUST(write(ends[1], "pipe", 4)), piped += 4, say("write into the pipe");
    else
        say("read from the pipe: %zd", read(ends[0], buf, 4)), piped -= 4;
}

static uint32_t interest(void) {
    static const uint32_t some[] = {EPOLLIN, EPOLLIN, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLOUT, 0, EPOLLOUT, EPOLLRDHUP};
    static const uint32_t how[] = {0, 0, EPOLLET, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT};
    uint32_t ev = some[die_of(7)], also = how[die_of(6)];
    if (is_level)
        return ev;
    return also & EPOLLET ? (ev & ~(uint32_t)EPOLLOUT) | also : ev | also;
}
static void changes(void) {
    static const int ops[] = {ADD, ADD, ADD, MOD, MOD, DEL};
    static const char *const names[] = {"", "ADD", "DEL", "MOD"};
    int s = (int)die_of(SETS), op = ops[die_of(6)], fd = some_number();
    unsigned which = die_of(8);
    if (which == 0)
        fd = ends[0];
    else if (which < 3 && s + 1 < SETS)
        fd = sets[s + 1 + (int)die_of((unsigned)(SETS - 1 - s))];
    uint32_t ev = interest();
    if (op == ADD && die_of(9) == 0)
        ev = EPOLLIN | EPOLLEXCLUSIVE;
    int is_set = fd == sets[1] || fd == sets[2];
    if (is_set)
        ev &= EPOLLIN | EPOLLONESHOT; /* of edges of a set there may be more: epoll_nested.c */
    int r = has_ring && die_of(3) ? ctl_by_ring(&ring, sets[s], op, fd, ev, ++marks) : ctl(sets[s], op, fd, ev, ++marks);
    say("set %d %s %s %s %#x as %x: %d %s", s, names[op], called(fd), epoll_text(ev), ev, marks, r, r < 0 ? err_name(errno) : "");
}
static void looks(void) {
    int s = (int)die_of(SETS);
    say("set %d", s);
    look(sets[s], die_of(6) ? 0 : 4);
}
/* One event at a time, until each has had its turn; as long as some are left the set is readable. */
static void sips(void) {
    enum { CALLS = 24 };
    int s = (int)die_of(SETS), n = 0, readable = 0, polls = (int)die_of(2);
    struct epoll_event e[CALLS + 1];
    char text[EVENTS_TEXT];
    for (int i = 0; i < CALLS && epoll_wait(sets[s], &e[n], 1, 0) == 1; i++) {
        int seen = 0;
        for (int k = 0; k < n; k++)
            seen |= e[k].data.u64 == e[n].data.u64;
        n += !seen;
        readable += polls && events(sets[s], POLLIN, 0);
        usleep(200); /* what the kernel alone knows has its turn now and then */
    }
    struct epoll_event rest[16];
    epoll_wait(sets[s], rest, 16, 0); /* behind a full array, here the kernel's have their turn by themselves */
    list_events(text, e, n);
    say("set %d, sips:%s, %d times more", s, text, readable);
}
static void polls(void) {
    struct pollfd p[4];
    char text[300] = "";
    int n = 1 + (int)die_of(4);
    for (int i = 0; i < n; i++)
        p[i] = (struct pollfd){die_of(3) ? some_number() : sets[die_of(SETS)], (short)(die_of(2) ? POLLIN : POLLIN | POLLRDHUP | POLLOUT), 0};
    int r = poll(p, n, 0);
    for (int i = 0; i < n; i++)
        sprintf(text + strlen(text), " %s:%s", called(p[i].fd), poll_text(p[i].revents));
    say("poll = %d%s", r, text);
}
static void selects(void) {
    fd_set r, w;
    FD_ZERO(&r);
    FD_ZERO(&w);
    for (int s = 0; s < SETS; s++)
        FD_SET(sets[s], &r);
    for (int c = 0; c < CONNECTIONS; c++)
        if (open_of(c) != NONE) {
            FD_SET(open_of(c), &r);
            FD_SET(open_of(c), &w);
        }
    int n = select(FIRST + CONNECTIONS * NUMBERS, &r, &w, NULL, &(struct timeval){0, 0});
    char text[300] = "";
    for (int f = 0; f < FIRST + CONNECTIONS * NUMBERS; f++)
        if (FD_ISSET(f, &r) || FD_ISSET(f, &w))
            sprintf(text + strlen(text), " %s%s%s", called(f), FD_ISSET(f, &r) ? "r" : "", FD_ISSET(f, &w) ? "w" : "");
    say("select = %d%s", n, text);
}
/* One number more or less of a connection that keeps another one. */
static void numbers(void) {
    int c = (int)die_of(CONNECTIONS), i = (int)die_of(NUMBERS), f = open_of(c), many = at[c][0] + at[c][1] + at[c][2];
    if (f == NONE)
        return;
    if (at[c][i]) {
        if (many > 1)
            close(number_of(c, i)), at[c][i] = 0, say("close %d.%d", c, i);
    } else if (die_of(2)) {
        MUST(dup2(f, number_of(c, i))), at[c][i] = 1, say("dup2 %d.%d", c, i);
    } else {
        placed(dup(f), number_of(c, i)), at[c][i] = 1, say("dup %d.%d", c, i);
    }
}
/* Where nothing is unread: what TCP answers to an end is an edge of that. */
static void shuts(void) {
    int c = (int)die_of(CONNECTIONS), f = open_of(c);
    if (f == NONE || over[c] || gone[c] || now_in(f))
        return;
    say("shutdown %d: %d", c, shutdown(f, SHUT_WR));
    over[c] = 1, of = c, ended = 1;
}
/* What nothing is unread of; a reset would pass what is on its way. */
static void closes(void) {
    int c = (int)die_of(CONNECTIONS), f = open_of(c);
    if (f == NONE || (gone[c] == 0 && sent[c] > 0) || now_in(f))
        return;
    for (int i = 0; i < NUMBERS; i++)
        if (at[c][i])
            close(number_of(c, i)), at[c][i] = 0;
    say("close %d", c);
    over[c] = 1, of = c, ended = 2;
}
/* A set is made anew; those that it was in lose it, as its members are lost to it. */
static void anew(void) {
    int s = (int)die_of(SETS), e = MUST(epoll_create1(EPOLL_CLOEXEC));
    if (die_of(2)) {
        MUST(dup3(e, sets[s], O_CLOEXEC)), close(e);
    } else {
        int was = sets[s];
        close(was), placed(e, was);
    }
    say("set %d anew", s);
}
static void in_a_child(void) {
    pid_t child = MUST(fork());
    if (child == 0) {
        looks();
        _exit(0);
    }
    wait_for(child);
    die_of(2);
}

/* A thread waits in a set while this one changes what is in there. */
static void *waits(void *set) {
    look(*(int *)set, 40);
    return NULL;
}
static void beside(void) {
    pthread_t waiter;
    int s = (int)die_of(SETS), set = sets[s];
    say("a thread waits for set %d", s);
    if (pthread_create(&waiter, NULL, waits, &set))
        die("thread");
    usleep(10000);
    if (die_of(4))
        changes();
    else
        numbers();
    pthread_join(waiter, NULL);
}

enum { SHUT = 1, CHILDREN = 2, ENDS = 4, THREADS = 8, RINGS = 16 };
static void step(unsigned kind) {
    unsigned which = die_of(100);
    if (kind & (SHUT | ENDS) && which < 3)
        shuts();
    else if (kind & ENDS && which < 5)
        closes();
    else if (kind & CHILDREN && which < 8)
        in_a_child();
    else if (kind & THREADS && which < 12)
        beside();
    else if (which < 18)
        sends((int)die_of(CONNECTIONS), die_of(4) ? 1 + die_of(50) : 1 + die_of(4000));
    else if (which < 32)
        receives();
    else if (which < 34)
        pipes();
    else if (which < 62)
        changes();
    else if (which < 79)
        looks();
    else if (which < 82)
        sips();
    else if (which < 88)
        polls();
    else if (which < 91)
        selects();
    else if (which < 98)
        numbers();
    else
        anew();
}

/* ---- turns ---- */

static void note(int is_mine) {
    if (is_mine)
        tell('s'), tell((char)of), tell((char)ended), sent[of] += moved;
    else {
        if (hear() != 's')
            die("step");
        int c = hear(), e = hear();
        if (e)
            gone[c] = e;
    }
}
/* One end waits, in a set or by poll, and the other one sends something meanwhile. */
static void meanwhile(int sends_here, unsigned c, unsigned s, unsigned by_poll) {
    if (sends_here) {
        hear();
        usleep(10000);
        sends((int)c, 3);
        note(1);
        hear();
    } else {
        tell('w');
        say("waits for set %u", s);
        if (by_poll)
            say("%s", poll_text(events(sets[s], POLLIN, 60)));
        else
            look(sets[s], 60);
        note(0);
        tell('w');
    }
}

static void walk(unsigned seed, unsigned kind) {
    seed += (unsigned)asked_for("MAZE", "SEED", 0);
    is_level = kind & (ENDS | CHILDREN);
    has_ring = kind & RINGS && make_ring(&ring, by_syscall, 16, 0);
    useconds_t arrives = (useconds_t)asked_for("MAZE", "ARRIVES", 2000);
    for (unsigned w = 0; w < WALKS; w++) {
        begin_round(seed, w);
        say("walk %u", w);
        for (int c = 0; c < CONNECTIONS; c++) {
            int s = conn_cold();
            sol_int(s, IPPROTO_TCP, TCP_NODELAY, 1);
            small_talk(s, rnd(&shared) % 3 || !is_level ? 40 : 0); /* a change of medium tells an edge again */
            placed(s, number_of(c, 0));
            at[c][0] = 1, at[c][1] = at[c][2] = 0;
            sent[c] = over[c] = gone[c] = 0;
        }
        for (int s = 0; s < SETS; s++)
            sets[s] = placed(MUST(epoll_create1(EPOLL_CLOEXEC)), FIRST - 10 + s);
        MUST(pipe2(ends, O_NONBLOCK | O_CLOEXEC));
        piped = 0;
        meet();
        unsigned steps = 100 + rnd(&shared) % 200;
        for (unsigned i = 0; i < steps; i++) {
            unsigned who = rnd(&shared) % 2, what = rnd(&shared) % 12, c = rnd(&shared) % CONNECTIONS, s = rnd(&shared) % SETS;
            of = 0, moved = ended = 0;
            if (what == 0) {
                say("%u:", i);
                meanwhile(who == (unsigned)is_a, c, s, rnd(&shared) % 3 == 0);
            } else if (who == (unsigned)is_a) {
                say("%u:", i);
                step(kind);
                usleep(moved || ended ? arrives : 0);
                note(1);
            } else {
                note(0);
            }
        }
        for (int f = FIRST - 10; f < FIRST + CONNECTIONS * NUMBERS; f++)
            close(f);
        close(ends[0]), close(ends[1]);
        meet();
    }
}

static void plain_1(void) { walk(1, 0); }
static void plain_2(void) { walk(2, 0); }
static void shut_1(void) { walk(3, SHUT); }
static void shut_2(void) { walk(4, SHUT); }
static void shut_3(void) { walk(510, SHUT); } /* an end, behind a change of medium */
static void ends_1(void) { walk(5, ENDS); }
static void ends_2(void) { walk(6, ENDS); }
static void threads_1(void) { walk(11, THREADS); }
static void threads_2(void) { walk(13, THREADS | ENDS); }
static void rings_1(void) { walk(20, RINGS); }
static void rings_2(void) { walk(21, RINGS | ENDS); }
static void children_1(void) { walk(9, CHILDREN); }
static void children_2(void) { walk(11, CHILDREN); }
static void children_3(void) { walk(8, CHILDREN | SHUT); }
static void children_4(void) { walk(316, CHILDREN | SHUT); } /* an end, behind a child's wait */

const struct test tests[] = {{"plain_1", plain_1, plain_1, COLD | SWITCHES},
                             {"plain_2", plain_2, plain_2, COLD | SWITCHES},
                             {"shut_1", shut_1, shut_1, COLD | SWITCHES},
                             {"shut_2", shut_2, shut_2, COLD | SWITCHES},
                             {"shut_3", shut_3, shut_3, COLD | SWITCHES},
                             {"ends_1", ends_1, ends_1, COLD | SWITCHES},
                             {"ends_2", ends_2, ends_2, COLD | SWITCHES},
                             {"threads_1", threads_1, threads_1, COLD | SWITCHES},
                             {"threads_2", threads_2, threads_2, COLD | SWITCHES},
                             {"rings_1", rings_1, rings_1, COLD | SWITCHES},
                             {"rings_2", rings_2, rings_2, COLD | SWITCHES},
                             {"children_1", children_1, children_1, COLD | SWITCHES},
                             {"children_2", children_2, children_2, COLD | SWITCHES},
                             {"children_3", children_3, children_3, COLD | SWITCHES},
                             {"children_4", children_4, children_4, COLD | SWITCHES},
                             {0}};
