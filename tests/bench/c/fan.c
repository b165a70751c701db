/* So many threads of one process, each with a connection of its own, blocking request and answer.
 *   threads=8 size=64 secs=1.0 warm=100 (rounds of each thread, not counted)
 *   srvpid=P (its CPU time is in that reported)
 *   hold=1: after the warm-up print `settled` and the ns that took, stay idle until stdin ends */
#include "common.h"

static size_t size;
static long warm;
static int hold;
static uint64_t g_end;
static double secs;
static pthread_barrier_t at_start, at_end;
struct part {
    uint64_t ops;
    char pad[120];
};

static void round_trip(int fd, char *b) {
    if (send_all(fd, b, size)) die("send");
    if (recv_all(fd, b, size) != 1) die("recv");
}

static void *work(void *p) {
    struct part *m = p;
    char *b = calloc(1, size);
    int fd = client_fd();
    for (long i = 0; i < warm; i++) round_trip(fd, b);
    pthread_barrier_wait(&at_start);
    if (!hold) {
        pthread_barrier_wait(&at_start); /* g_end is known */
        for (; ticks() < g_end; m->ops++) round_trip(fd, b);
    }
    pthread_barrier_wait(&at_end);
    close(fd);
    return NULL;
}

int main(int argc, char **argv) {
    start(argc, argv);
    ticks_calibrate();
    static struct part parts[256];
    pthread_t t[256];
    long n = argn("threads", 8);
    if (n > 256) n = 256;
    size = (size_t)argn("size", 64);
    warm = argn("warm", 100);
    hold = (int)argn("hold", 0);
    secs = argf("secs", 1.0);
    pthread_barrier_init(&at_start, NULL, (unsigned)n + 1);
    pthread_barrier_init(&at_end, NULL, (unsigned)n + 1);
    uint64_t t0 = ticks();
    for (long i = 0; i < n; i++)
        if (pthread_create(&t[i], NULL, work, &parts[i])) die("thread");
    pthread_barrier_wait(&at_start);
    pid_t srv = (pid_t)argn("srvpid", -1);
    uint64_t begin = ticks(), c0 = cpu_ns(0) + cpu_ns(srv), ops = 0;
    if (hold) {
        char c;
        printf("settled %llu\n", (unsigned long long)ticks_ns(begin - t0));
        while (read(0, &c, 1) > 0) {}
    } else {
        g_end = begin + (uint64_t)(secs * 1e9 / g_ns_per_tick);
        pthread_barrier_wait(&at_start);
    }
    pthread_barrier_wait(&at_end);
    uint64_t end = ticks(), c1 = cpu_ns(0) + cpu_ns(srv);
    for (long i = 0; i < n; i++) {
        pthread_join(t[i], NULL);
        ops += parts[i].ops;
    }
    if (!hold)
        printf("{\"ops\":%llu,\"all_ops\":%llu,\"secs\":%.6f,\"cpu_ns\":%llu}\n", (unsigned long long)ops,
               (unsigned long long)(ops + (uint64_t)(n * warm)), (double)ticks_ns(end - begin) / 1e9, (unsigned long long)(c1 - c0));
    return 0;
}
