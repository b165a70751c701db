/* Owns: two readers and two writers on one non-blocking connection at once, at both ends, in each form of waiting. A writer's bytes count up, so a piece
 * that one call has read says whether it is whole; the sums of both readers say whether all came, once. */
#include "sets.h"

enum { HANDS = 2, MOST = 8000, EACH = 2 * MIB };

static int the_fd, the_set[2], writers_left;
static long sums[HANDS][256];

struct hand {
    pthread_t thread;
    int which, form;
    int set;       /* its own, or the one of all readers or writers */
    uint32_t asks; /* EPOLLIN or EPOLLOUT */
};
enum { POLL, LEVEL, EDGE, SHARED, AGAIN }; /* AGAIN tries again and again */

static void wait_by(struct hand *h) {
    struct epoll_event e;
    if (h->form == AGAIN)
        sched_yield();
    else if (h->form == POLL)
        MUST(poll(&(struct pollfd){the_fd, h->asks == EPOLLIN ? POLLIN : POLLOUT, 0}, 1, -1));
    else
        MUST(epoll_wait(h->set, &e, 1, -1));
}

/* Seven bits count, the highest is the writer's. */
static void *writes(void *p) {
    struct hand *h = p;
    unsigned dice = 77 + h->which + 10 * is_a;
    unsigned char piece[MOST + 128];
    for (int i = 0; i < MOST + 128; i++)
        piece[i] = (unsigned char)(h->which << 7 | (i & 127));
    for (long at = 0; at < EACH;) {
        long n = 1 + rnd(&dice) % MOST, r;
        n = n < EACH - at ? n : EACH - at;
        if (rnd(&dice) % 2) {
            struct iovec v[2] = {{piece + (at & 127), n / 2}, {piece + (at & 127) + n / 2, n - n / 2}};
            r = writev(the_fd, v, 2);
        } else {
            r = send(the_fd, piece + (at & 127), n, MSG_NOSIGNAL);
        }
        if (r > 0)
            at += r;
        else if (r < 0 && errno == EAGAIN)
            wait_by(h);
        else
            die("a writer");
    }
    if (__atomic_sub_fetch(&writers_left, 1, __ATOMIC_ACQ_REL) == 0)
        MUST(shutdown(the_fd, SHUT_WR));
    return NULL;
}

static void *reads(void *p) {
    struct hand *h = p;
    unsigned dice = 99 + h->which + 10 * is_a;
    unsigned char piece[MOST];
    for (;;) {
        long n = 1 + rnd(&dice) % MOST, r;
        if (rnd(&dice) % 2) {
            struct iovec v[2] = {{piece, n / 3}, {piece + n / 3, n - n / 3}};
            r = readv(the_fd, v, 2);
        } else {
            r = recv(the_fd, piece, n, 0);
        }
        if (r == 0)
            return NULL;
        if (r < 0 && errno != EAGAIN)
            die("a reader");
        if (r < 0) {
            wait_by(h);
            continue;
        }
        int next[2] = {-1, -1};
        for (long i = 0; i < r; i++) {
            int whose = piece[i] >> 7;
            if (next[whose] >= 0 && piece[i] % 128 != next[whose])
                die("a torn piece");
            next[whose] = (piece[i] + 1) % 128;
            sums[h->which][piece[i]]++;
        }
    }
}

static void crowd(int form) {
    static struct hand hands[2 * HANDS];
    the_fd = conn();
    nonblocking(the_fd, 1);
    memset(sums, 0, sizeof sums);
    writers_left = HANDS;
    for (int out = 0; out < 2; out++)
        the_set[out] = set_of(the_fd, out ? EPOLLOUT : EPOLLIN);
    meet();
    for (int i = 0; i < 2 * HANDS; i++) {
        uint32_t asks = i < HANDS ? EPOLLIN : EPOLLOUT;
        hands[i] = (struct hand){.which = i % HANDS, .form = form, .asks = asks};
        hands[i].set = form == SHARED ? the_set[i >= HANDS] : set_of(the_fd, asks | (form == EDGE ? EPOLLET : 0));
        MUST(-pthread_create(&hands[i].thread, NULL, i < HANDS ? reads : writes, &hands[i]));
    }
    long all = 0, good = 1;
    for (int i = 0; i < 2 * HANDS; i++)
        pthread_join(hands[i].thread, NULL);
    for (int b = 0; b < 256; b++) {
        long n = sums[0][b] + sums[1][b];
        all += n;
        good = good && n == EACH / 128;
    }
    say("form %d: %ld bytes, each as often as it was written: %ld", form, all, good);
    meet();
}
static void by_poll(void) { crowd(POLL); }
static void by_level(void) { crowd(LEVEL); }
static void by_edge(void) { crowd(EDGE); }
static void by_shared(void) { crowd(SHARED); }
static void by_trying(void) { crowd(AGAIN); }

const struct test tests[] = {{"poll", by_poll, by_poll, 0},       {"level", by_level, by_level, 0},    {"edge", by_edge, by_edge, 0},
                             {"shared", by_shared, by_shared, 0}, {"trying", by_trying, by_trying, 0}, {0}};
