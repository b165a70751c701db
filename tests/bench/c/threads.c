/* Many threads on one socket: `threads` writers at one end, as many readers at the other.
 *   role=recv listens, role=send connects; size=64 secs=1.0 warm=0.2 threads=4
 *   n=0 (so many writes of each thread instead of secs: for counts) */
#include "common.h"

static int g_fd;
static size_t size;
static long g_writes;
static uint64_t g_end, g_count_from;
struct part {
    uint64_t bytes, all;
    char pad[112];
};

static void *writer(void *unused) {
    (void)unused;
    char *b = calloc(1, size);
    for (long i = 0; g_writes ? i < g_writes : ticks() < g_end; i++)
        if (send_all(g_fd, b, size)) die("send");
    return NULL;
}

static void *reader(void *p) {
    struct part *m = p;
    char *b = calloc(1, size);
    for (;;) {
        ssize_t r = recv(g_fd, b, size, 0);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) die("recv");
        if (r == 0) return NULL;
        m->all += (uint64_t)r;
        uint64_t t = ticks();
        if (t >= g_count_from && t < g_end) m->bytes += (uint64_t)r;
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    ticks_calibrate();
    size = (size_t)argn("size", 64);
    long n = argn("threads", 4);
    g_writes = argn("n", 0);
    double secs = argf("secs", 1.0), warm = argf("warm", 0.2);
    if (n > 64) n = 64;
    int recv_role = !strcmp(arg("role", "recv"), "recv");
    static struct part parts[64];
    pthread_t t[64];
    if (recv_role) {
        g_fd = accept(listen_on((int)argn("port", 0), 0), NULL, NULL);
        if (g_fd < 0) die("accept");
    } else {
        g_fd = client_fd();
    }
    g_count_from = ticks() + (uint64_t)(warm * 1e9 / g_ns_per_tick);
    g_end = g_count_from + (uint64_t)(secs * 1e9 / g_ns_per_tick);
    for (long i = 0; i < n; i++)
        if (pthread_create(&t[i], NULL, recv_role ? reader : writer, &parts[i])) die("thread");
    for (long i = 0; i < n; i++) pthread_join(t[i], NULL);
    if (recv_role) {
        uint64_t bytes = 0, all = 0;
        for (long i = 0; i < n; i++) {
            bytes += parts[i].bytes;
            all += parts[i].all;
        }
        printf("{\"bytes\":%llu,\"secs\":%.6f,\"payload\":%llu}\n", (unsigned long long)bytes, secs, (unsigned long long)all);
    } else {
        char c;
        shutdown(g_fd, SHUT_WR);
        while (recv(g_fd, &c, 1, 0) > 0) {}
    }
    return 0;
}
