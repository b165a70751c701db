/* Many connections through one level-triggered epoll set; `active` of them carry one request each.
 *   conns=4000 active=32 size=64 secs=1.0 warm=20 (rounds on every connection, not counted)
 *   turn=1: the next request goes to the connection `active` further on, so that all speak in turn
 *   srvpid=P (its CPU time is in that reported)
 *   hold=1: after the warm-up print `settled` and the ns that took, stay idle in epoll_wait until stdin ends */
#include "common.h"

static char *in, *out;
static size_t size;
static uint64_t *sent_at;
static uint32_t *got, *left;
static int *fds, ep;
static unsigned long in_vain;
static long conns, step;

static void fire(long i) {
    sent_at[i] = ticks();
    if (send(fds[i], out, size, 0) != (ssize_t)size) die("send");
}

/* Serve events until `end` (0: until no connection has rounds left); the number of answers. */
static uint64_t run(uint64_t end, long waiting, struct hist *h) {
    struct epoll_event evs[64];
    uint64_t ops = 0, t = ticks();
    while (end ? t < end : waiting > 0) {
        int n = epoll_wait(ep, evs, 64, 5000);
        if (n < 0 && errno != EINTR) die("epoll_wait");
        if (n == 0) {
            errno = ETIMEDOUT;
            die("no answer within 5 s, %ld connections waiting", waiting);
        }
        t = ticks();
        for (int k = 0; k < n; k++) {
            long i = (long)evs[k].data.u64;
            ssize_t r = recv(fds[i], in, size - got[i], 0);
            if (r < 0 && errno == EAGAIN) {
                in_vain++; /* readable, said epoll_wait */
                continue;
            }
            if (r <= 0) die("recv");
            got[i] += (uint32_t)r;
            if (got[i] < size) continue;
            got[i] = 0;
            ops++;
            if (h) hist_add(h, ticks_ns(ticks() - sent_at[i]));
            if (left[i] && --left[i] == 0) waiting--;
            if (end || left[i]) fire(end ? (i + step) % conns : i);
        }
    }
    return ops;
}

int main(int argc, char **argv) {
    start(argc, argv);
    ticks_calibrate();
    conns = argn("conns", 4000);
    long active = argn("active", 32), warm = argn("warm", 20);
    double secs = argf("secs", 1.0);
    size = (size_t)argn("size", 64);
    in = calloc(1, size);
    out = calloc(1, size);
    sent_at = calloc((size_t)conns, 8);
    got = calloc((size_t)conns, 4);
    left = calloc((size_t)conns, 4);
    fds = calloc((size_t)conns, sizeof *fds);
    static struct hist h;
    ep = epoll_create1(0);
    if (ep < 0) die("epoll_create1");
    uint64_t t0 = ticks();
    for (long i = 0; i < conns; i++) {
        fds[i] = client_fd();
        nonblock(fds[i]);
        struct epoll_event e = {.events = EPOLLIN, .data.u64 = (uint64_t)i};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &e)) die("epoll_ctl");
    }
    /* Warm-up in groups, so that an answer never waits for thousands of others. */
    uint64_t all = 0;
    for (long g = 0; warm && g < conns; g += 250) {
        long m = conns - g < 250 ? conns - g : 250;
        for (long i = g; i < g + m; i++) {
            left[i] = (uint32_t)warm;
            fire(i);
        }
        all += run(0, m, NULL);
    }
    if (argn("hold", 0)) {
        struct epoll_event end = {.events = EPOLLIN, .data.u64 = ~0ull};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, 0, &end)) die("epoll_ctl");
        printf("settled %llu\n", (unsigned long long)ticks_ns(ticks() - t0));
        while (epoll_wait(ep, &end, 1, -1) < 1 || end.data.u64 != ~0ull) {}
        return 0;
    }
    pid_t srv = (pid_t)argn("srvpid", -1);
    uint64_t begin = ticks();
    step = argn("turn", 0) ? active : 0;
    for (long i = 0; i < active; i++) fire(step ? i : i * (conns / active));
    run(begin + (uint64_t)(0.1e9 / g_ns_per_tick), active, NULL);
    begin = ticks();
    uint64_t c0 = cpu_ns(0) + cpu_ns(srv);
    uint64_t ops = run(begin + (uint64_t)(secs * 1e9 / g_ns_per_tick), active, &h), t = ticks();
    printf("{\"ops\":%llu,\"all_ops\":%llu,\"in_vain\":%lu,\"secs\":%.6f,\"cpu_ns\":%llu,", (unsigned long long)ops,
           (unsigned long long)(ops + all), in_vain, (double)ticks_ns(t - begin) / 1e9, (unsigned long long)(cpu_ns(0) + cpu_ns(srv) - c0));
    hist_print(&h);
    printf("}\n");
    return 0;
}
