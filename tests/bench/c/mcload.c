/* memcached load over its text protocol: nine gets to one set of 100 byte values, no pipelining.
 *   port= threads=2 conns=25 (per thread) secs=1.0 warm=0.3 keys=1000 */
#include "common.h"

/* "VALUE k00000 0 100", the value, "END", each with its end of line; "STORED" */
enum { VALUE = 100, GET_LEN = 20 + VALUE + 2 + 5, SET_LEN = 8 };
static double secs, warm;
static long g_conns, g_keys;
struct conn {
    int fd, want, have;
    uint64_t sent;
    char buf[256];
};
struct load {
    pthread_t t;
    uint64_t ops, all, misses;
    struct hist h;
    unsigned seed;
};

static void fire(struct load *l, struct conn *c, int set) {
    char req[256];
    int key = (int)(rand_r(&l->seed) % (unsigned)g_keys), n;
    if (set) {
        n = snprintf(req, sizeof req, "set k%05d 0 0 %d\r\n%0*d\r\n", key, VALUE, VALUE, key);
        c->want = SET_LEN;
    } else {
        n = snprintf(req, sizeof req, "get k%05d\r\n", key);
        c->want = GET_LEN;
    }
    c->have = 0;
    c->sent = ticks();
    if (send(c->fd, req, (size_t)n, 0) != n) die("send");
}

static void *run(void *p) {
    struct load *l = p;
    int ep = epoll_create1(0);
    struct conn *c = calloc((size_t)g_conns, sizeof *c);
    struct epoll_event evs[64];
    for (long i = 0; i < g_conns; i++) {
        c[i].fd = client_fd();
        nonblock(c[i].fd);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &c[i]};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, c[i].fd, &e)) die("epoll_ctl");
        fire(l, &c[i], 1);
    }
    uint64_t begin = ticks() + (uint64_t)(warm * 1e9 / g_ns_per_tick);
    uint64_t end = begin + (uint64_t)(secs * 1e9 / g_ns_per_tick), t = 0;
    while (t < end) {
        int n = epoll_wait(ep, evs, 64, 5000);
        if (n <= 0 && errno != EINTR) die("no answer within 5 s");
        t = ticks();
        for (int k = 0; k < n; k++) {
            struct conn *q = evs[k].data.ptr;
            ssize_t r = recv(q->fd, q->buf + q->have, sizeof q->buf - (size_t)q->have, 0);
            if (r < 0 && (errno == EAGAIN || errno == EINTR)) continue;
            if (r <= 0) die("recv");
            q->have += (int)r;
            int miss = q->have == 5 && !memcmp(q->buf, "END\r\n", 5);
            if (q->have < q->want && !miss) continue;
            if (q->have > q->want || memcmp(q->buf + q->have - 2, "\r\n", 2)) {
                errno = 0;
                die("a wrong answer of %d bytes: %.*s", q->have, q->have, q->buf);
            }
            l->misses += (uint64_t)miss;
            l->all++;
            if (t >= begin) {
                l->ops++;
                hist_add(&l->h, ticks_ns(ticks() - q->sent));
            }
            fire(l, q, l->all % 10 == 0);
        }
    }
    for (long i = 0; i < g_conns; i++) close(c[i].fd);
    return NULL;
}

int main(int argc, char **argv) {
    start(argc, argv);
    ticks_calibrate();
    secs = argf("secs", 1.0);
    warm = argf("warm", 0.3);
    g_conns = argn("conns", 25);
    g_keys = argn("keys", 1000);
    long n = argn("threads", 2);
    struct load *l = calloc((size_t)n, sizeof *l);
    for (long i = 0; i < n; i++) {
        l[i].seed = (unsigned)i + 1;
        if (pthread_create(&l[i].t, NULL, run, &l[i])) die("thread");
    }
    uint64_t ops = 0, all = 0, misses = 0;
    for (long i = 0; i < n; i++) {
        pthread_join(l[i].t, NULL);
        ops += l[i].ops;
        all += l[i].all;
        misses += l[i].misses;
        for (int k = 0; i && k < HN; k++) l[0].h.n[k] += l[i].h.n[k];
    }
    printf("{\"ops\":%llu,\"all_ops\":%llu,\"misses\":%llu,\"secs\":%.6f,", (unsigned long long)ops,
           (unsigned long long)all, (unsigned long long)misses, secs);
    hist_print(&l[0].h);
    printf("}\n");
    return 0;
}
