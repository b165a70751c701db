/* Owns: pools of threads that hand connections about: from set to set, to a thread that lets them rest, from reading to writing. What is
 * told once (EPOLLONESHOT) is in one pair of hands, nothing is lost, and nobody waits for ever. */
#include "sets.h"
#include <stdatomic.h>
#include <sys/eventfd.h>

enum { CLIENTS = 6, EACH = 8, ROUNDS = 25, MOST = 30000, SETS = 2, WORKERS = 4, ALL = CLIENTS * EACH, STOP = 1 << 20 };
enum { FREE, ARMED, HELD };                /* of a slot */
enum { MOVES = 1, RESTS = 2, PARTS = 4 }; /* what the pool does with what it has: to another set; DEL, and ADD later; leaves some unread */

static struct slot {
    atomic_int state;
    int fd, set;
    unsigned chance;
    size_t full; /* bytes to be sent back */
    char buf[8192];
} slots[CLIENTS];
static atomic_int unasked, ended;
static int set[SETS], stop, rest[2];
static unsigned tricks;
static uint32_t edges;

static unsigned roll(unsigned *chance, unsigned below) { return (*chance = *chance * 1103515245 + 12345) / 65536 % below; }

static uint32_t wants(struct slot *s) { return EPOLLONESHOT | EPOLLRDHUP | edges | (s->full ? EPOLLOUT : EPOLLIN); }
static void arm(struct slot *s, int op, int to) {
    uint32_t how = wants(s);
    int fd = s->fd;
    s->set = to;
    s->state = ARMED;
    MUST(ctl(set[to], op, fd, how, s - slots));
}
/* Echoes; 0 at the end. */
static int works_on(struct slot *s) {
    if (!s->full) {
        size_t most = tricks & PARTS ? 1 + roll(&s->chance, sizeof s->buf) : sizeof s->buf;
        ssize_t n = recv(s->fd, s->buf, most, MSG_DONTWAIT);
        if (n == 0)
            return 0;
        if (n < 0 && errno != EAGAIN)
            die("recv");
        s->full = n > 0 ? n : 0;
    }
    ssize_t n = s->full ? send(s->fd, s->buf, s->full, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    if (n > 0) {
        memmove(s->buf, s->buf + n, s->full - n);
        s->full -= n;
    }
    return 1;
}
static void *works(void *of) {
    int mine = (long)of % SETS, waits = (long)of < SETS;
    struct epoll_event e[4];
    for (;;) {
        int n = epoll_wait(set[mine], e, 4, waits ? 10000 : 0);
        if (!waits && n == 0)
            usleep(100);
        for (int i = 0; i < n; i++) {
            if (e[i].data.u64 == STOP)
                return NULL;
            struct slot *s = &slots[e[i].data.u64];
            int was = ARMED;
            if (!atomic_compare_exchange_strong(&s->state, &was, HELD)) {
                unasked++;
                continue;
            }
            if (!works_on(s)) {
                int fd = s->fd;
                s->state = FREE;
                close(fd);
                if (++ended == ALL)
                    MUST(write(stop, &(uint64_t){1}, 8));
                continue;
            }
            unsigned trick = roll(&s->chance, 4);
            if (trick == 0 && tricks & MOVES) {
                MUST(ctl(set[s->set], DEL, s->fd, 0, 0));
                arm(s, ADD, !s->set);
            } else if (trick == 1 && tricks & RESTS) {
                MUST(ctl(set[s->set], DEL, s->fd, 0, 0));
                MUST(write(rest[1], &s, sizeof s));
            } else {
                arm(s, MOD, s->set);
            }
        }
    }
}
static void *lets_rest(void *unused) {
    struct slot *s;
    while (read(rest[0], &s, sizeof s) == sizeof s && s) {
        usleep(roll(&s->chance, 300));
        arm(s, ADD, s->set);
    }
    return unused;
}

static void pool(unsigned what, uint32_t how) {
    pthread_t t[WORKERS], r;
    struct slot *none = NULL;
    tricks = what;
    edges = how;
    stop = MUST(eventfd(0, EFD_CLOEXEC));
    MUST(pipe(rest));
    for (int i = 0; i < SETS; i++) {
        set[i] = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(ctl(set[i], ADD, stop, EPOLLIN, STOP));
    }
    int listener = listen_on(PORT + 1);
    meet();
    for (long i = 0; i < WORKERS; i++)
        pthread_create(&t[i], NULL, works, (void *)i);
    pthread_create(&r, NULL, lets_rest, NULL);
    for (int n = 0; n < ALL; n++) {
        int fd = accept_from(listener), i = 0;
        while (slots[i].state != FREE)
            i = (i + 1) % CLIENTS, sched_yield();
        slots[i].fd = fd;
        slots[i].chance = n;
        arm(&slots[i], ADD, n % SETS);
    }
    for (int i = 0; i < WORKERS; i++)
        pthread_join(t[i], NULL);
    MUST(write(rest[1], &none, sizeof none));
    pthread_join(r, NULL);
    say("%d connections, %d events that nobody asked for", (int)ended, (int)unasked);
    meet();
}
static void plain_a(void) { pool(0, 0); }
static void moves_a(void) { pool(MOVES, 0); }
static void rests_a(void) { pool(RESTS | PARTS, 0); }
static void all_a(void) { pool(MOVES | RESTS | PARTS, 0); }
static void all_edges_a(void) { pool(MOVES | RESTS | PARTS, EPOLLET); }

/* Sends while it receives, so that rings get full. */
struct call {
    unsigned chance;
    int right, wrong;
    pthread_t thread;
};
static void *asks(void *of) {
    struct call *c = of;
    char out[MOST], in[MOST];
    struct timeval most = {20, 0};
    for (int n = 0; n < EACH; n++) {
        int fd = dial(PORT + 1);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
        uint64_t at = 0;
        for (int i = 0; i < ROUNDS; i++) {
            size_t len = 1 + roll(&c->chance, roll(&c->chance, 3) ? 400 : MOST);
            fill(out, len, at, c->chance);
            put(fd, out, len);
            ssize_t got = recv(fd, in, len, MSG_WAITALL);
            *(got == (ssize_t)len && !memcmp(in, out, len) ? &c->right : &c->wrong) += 1;
            at += len;
        }
        close(fd);
    }
    return NULL;
}
static void clients_b(void) {
    static struct call calls[CLIENTS];
    int right = 0, wrong = 0;
    meet();
    for (int i = 0; i < CLIENTS; i++) {
        calls[i] = (struct call){.chance = i};
        pthread_create(&calls[i].thread, NULL, asks, &calls[i]);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(calls[i].thread, NULL);
        right += calls[i].right;
        wrong += calls[i].wrong;
    }
    say("%d answers, %d wrong or late", right, wrong);
    meet();
}

const struct test tests[] = {{"plain", plain_a, clients_b, COLD | SWITCHES},
                             {"moves", moves_a, clients_b, COLD | SWITCHES},
                             {"rests", rests_a, clients_b, COLD | SWITCHES},
                             {"all", all_a, clients_b, COLD | SWITCHES},
                             {"all_edges", all_edges_a, clients_b, COLD | SWITCHES},
                             {0}};
