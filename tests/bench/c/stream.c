/* Bulk. role=recv listens and measures, role=send connects and writes.
 *   size=65536 (per write) rsize=65536 (per read) secs=1.0 warm=0.3 nodelay=1
 *   n=0 (so many writes instead of secs: for counts)
 *   tick=0: the reader comes each so many ms and takes all there is
 *   both=1: each end has a thread that sends and one that receives on the same connection; with n, neither direction ends
 *   before the other, which would be half-closed for the rest */
#include "common.h"

static size_t size, rsize;
static double secs, warm;
static long g_writes;
static int g_fd, g_both, g_tick;
static _Atomic uint64_t g_received;

static void *sender(void *unused) {
    (void)unused;
    char *b = malloc(size);
    memset(b, 'x', size);
    uint64_t end = ticks() + (uint64_t)((warm + secs) * 1e9 / g_ns_per_tick);
    for (long i = 0; g_writes ? i < g_writes : ticks() < end; i++)
        if (send_all(g_fd, b, size)) die("send");
    while (g_both && g_received < (uint64_t)g_writes * size)
        usleep(1000);
    shutdown(g_fd, SHUT_WR);
    return NULL;
}

struct got {
    uint64_t bytes, all, ns, reads; /* bytes and reads: behind the warm-up */
};

static void *receiver(void *p) {
    struct got *g = p;
    char *b = malloc(rsize);
    memset(b, 0, rsize);
    uint64_t begin = 0, last = 0, wait = (uint64_t)(warm * 1e9 / g_ns_per_tick), start_at = ticks() + wait;
    for (;;) {
        ssize_t r = recv(g_fd, b, rsize, g_tick ? MSG_DONTWAIT : 0);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0 && errno == EAGAIN && g_tick) {
            usleep(1000 * (useconds_t)g_tick);
            continue;
        }
        if (r < 0) die("recv");
        if (r == 0) break;
        g->all += (uint64_t)r;
        g_received = g->all;
        last = ticks();
        if (begin) g->bytes += (uint64_t)r, g->reads++;
        else if (last >= start_at) begin = last;
    }
    g->ns = begin ? ticks_ns(last - begin) : 0;
    return NULL;
}

int main(int argc, char **argv) {
    start(argc, argv);
    ticks_calibrate();
    size = (size_t)argn("size", 65536);
    rsize = (size_t)argn("rsize", 65536);
    secs = argf("secs", 1.0);
    g_writes = argn("n", 0);
    warm = argf("warm", 0.3);
    int recv_role = !strcmp(arg("role", "recv"), "recv");
    g_both = (int)argn("both", 0);
    g_tick = (int)argn("tick", 0);
    struct got g = {0, 0, 0, 0};
    pthread_t t;
    if (recv_role) {
        g_fd = accept(listen_on((int)argn("port", 0), 0), NULL, NULL);
        if (g_fd < 0) die("accept");
        if (argn("nodelay", 1)) nodelay(g_fd);
    } else {
        g_fd = client_fd();
    }
    if (g_both) {
        if (pthread_create(&t, NULL, sender, NULL)) die("thread");
        receiver(&g);
        pthread_join(t, NULL);
    } else if (recv_role) {
        receiver(&g);
    } else {
        sender(NULL);
        char c;
        while (recv(g_fd, &c, 1, 0) > 0) {}
    }
    if (g_both || recv_role)
        printf("{\"bytes\":%llu,\"secs\":%.6f,\"payload\":%llu,\"reads\":%llu}\n", (unsigned long long)g.bytes, (double)g.ns / 1e9,
               (unsigned long long)g.all, (unsigned long long)g.reads);
    close(g_fd);
    return 0;
}
