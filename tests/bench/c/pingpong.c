/* Blocking request and answer on one connection.
 *   size=64 secs=1.0 n=0 (n counted rounds instead of secs) warm=3000 (rounds not counted)
 *   think_us=0 (sleep between rounds, not part of the latency) compute_us=0 (the same, computing)
 *   srvpid=P (its CPU time is reported) */
#include "common.h"

static char *out, *in;
static size_t size;
static uint64_t seq;

static void round_trip(int fd) {
    seq++;
    memcpy(out, &seq, size < 8 ? size : 8);
    if (send_all(fd, out, size)) die("send");
    if (recv_all(fd, in, size) != 1) die("recv");
    if (memcmp(out, in, size < 8 ? size : 8)) {
        errno = 0;
        die("the answer to round %llu is another one", (unsigned long long)seq);
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    ticks_calibrate();
    size = (size_t)argn("size", 64);
    out = calloc(1, size);
    in = calloc(1, size);
    long warm = argn("warm", 3000), n = argn("n", 0), think = argn("think_us", 0);
    uint64_t compute = (uint64_t)((double)argn("compute_us", 0) * 1e3 / g_ns_per_tick);
    double secs = argf("secs", 1.0);
    pid_t srv = (pid_t)argn("srvpid", -1);
    struct timespec ts = {think / 1000000, think % 1000000 * 1000};
    static struct hist h;
    if (think) prctl(PR_SET_TIMERSLACK, 1);

    int fd = client_fd();
    for (long i = 0; i < warm; i++) round_trip(fd);
    for (int i = 0; think && i < 3; i++) {
        nanosleep(&ts, NULL);
        round_trip(fd);
    }

    uint64_t c0 = cpu_ns(0), s0 = cpu_ns(srv);
    uint64_t begin = ticks(), end = begin + (uint64_t)(secs * 1e9 / g_ns_per_tick), t0 = begin, t1 = begin;
    long rounds = 0;
    while (n ? rounds < n : t1 < end) {
        if (think) {
            nanosleep(&ts, NULL);
            t0 = ticks();
        }
        while (compute && ticks() - t0 < compute);
        if (compute) t0 = ticks();
        round_trip(fd);
        t1 = ticks();
        hist_add(&h, ticks_ns(t1 - t0));
        t0 = t1;
        rounds++;
    }
    uint64_t c1 = cpu_ns(0), s1 = cpu_ns(srv);
    printf("{\"ops\":%ld,\"all_ops\":%ld,\"secs\":%.6f,\"payload\":%llu,\"cpu_ns\":%llu,", rounds, rounds + warm,
           (double)ticks_ns(t1 - begin) / 1e9, (unsigned long long)(seq * size * 2), (unsigned long long)(c1 - c0 + s1 - s0));
    hist_print(&h);
    printf("}\n");
    close(fd);
    return 0;
}
