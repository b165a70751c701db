/* Short connections: connect, one byte each way, close.
 *   rounds=1 (so often; only with seq and threads)
 *   pattern=seq|threads|epoll n=2000 par=8 (threads or connections at once)
 *   closer=client|server (who closes first; the server program is told the same) */
#include "common.h"

static int g_port, g_server_closes;
static long g_each, g_rounds;
static const char *g_host;

static void one(void) {
    char c = 'a';
    int fd = connect_to(g_host, g_port);
    for (long i = 0; i < g_rounds; i++) {
        if (send(fd, &c, 1, 0) != 1) die("send");
        if (recv(fd, &c, 1, 0) != 1) die("recv");
    }
    if (g_server_closes && recv(fd, &c, 1, 0) != 0) die("no end of file");
    close(fd);
}

static void *worker(void *unused) {
    (void)unused;
    for (long i = 0; i < g_each; i++) one();
    return NULL;
}

static void open_next(int ep) {
    struct sockaddr_in a = addr_of(g_host, g_port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0) die("socket");
    if (connect(fd, (struct sockaddr *)&a, sizeof a) && errno != EINPROGRESS) die("connect");
    struct epoll_event e = {.events = EPOLLOUT, .data.fd = fd};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e)) die("epoll_ctl");
}

static void by_epoll(long n, long par) {
    int ep = epoll_create1(0);
    long opened = 0, done = 0;
    struct epoll_event evs[64];
    char c = 'a';
    for (; opened < par && opened < n; opened++) open_next(ep);
    while (done < n) {
        int k = epoll_wait(ep, evs, 64, 5000);
        if (k <= 0 && errno != EINTR) die("epoll_wait: %ld of %ld done", done, n);
        for (int i = 0; i < k; i++) {
            int fd = evs[i].data.fd;
            if (evs[i].events & EPOLLOUT) {
                if (send(fd, &c, 1, 0) != 1) die("send");
                struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
                if (epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e)) die("epoll_ctl");
                continue;
            }
            ssize_t r = recv(fd, &c, 1, 0);
            if (r < 0 && errno == EAGAIN) continue;
            if (r < 0 || (r == 0 && !g_server_closes)) die("recv");
            if (r == 1 && g_server_closes) continue;
            close(fd);
            done++;
            if (opened < n) {
                open_next(ep);
                opened++;
            }
        }
    }
    close(ep);
}

int main(int argc, char **argv) {
    start(argc, argv);
    long n = argn("n", 2000), par = argn("par", 8), warm = argn("warm", 50);
    const char *pattern = arg("pattern", "seq");
    g_rounds = argn("rounds", 1);
    g_host = arg("host", "127.0.0.1");
    g_port = (int)argn("port", 0);
    g_server_closes = !strcmp(arg("closer", "client"), "server");
    for (long i = 0; i < warm; i++) one();
    uint64_t c0 = cpu_ns(0), t0 = now_ns();
    if (!strcmp(pattern, "threads")) {
        pthread_t t[64];
        if (par > 64) par = 64;
        g_each = n / par;
        n = g_each * par;
        for (long i = 0; i < par; i++)
            if (pthread_create(&t[i], NULL, worker, NULL)) die("thread");
        for (long i = 0; i < par; i++) pthread_join(t[i], NULL);
    } else if (!strcmp(pattern, "epoll")) {
        by_epoll(n, par);
    } else {
        g_each = n;
        worker(NULL);
    }
    uint64_t t1 = now_ns();
    printf("{\"ops\":%ld,\"all_ops\":%ld,\"secs\":%.6f,\"payload\":%ld,\"cpu_ns\":%llu}\n", n, n + warm,
           (double)(t1 - t0) / 1e9, 2 * (n + warm) * g_rounds, (unsigned long long)(cpu_ns(0) - c0));
    return 0;
}
