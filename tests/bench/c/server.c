/* Echo server.
 *   mode=block  one connection after the other, blocking calls
 *   mode=epoll  one thread, level-triggered epoll
 *   workers=N   N processes forked after listen(), each with its own epoll set
 *   maxconn=N   a worker stops accepting after N connections (an even spread)
 *   closer=server  close after the first answer, else wait for the client's end
 *   serve=N     exit after N connections (mode=epoll: after N of them have ended) */
#include "common.h"

static int g_closer;
static volatile sig_atomic_t g_stop;
static void on_term(int sig) { g_stop = sig; }
static long g_maxconn;

static void serve_block(int lfd) {
    static char buf[1 << 16];
    long serve = argn("serve", 0);
    for (long i = 0; !serve || i < serve; i++) {
        int fd = accept(lfd, NULL, NULL);
        if (fd < 0) die("accept");
        nodelay(fd);
        for (;;) {
            ssize_t r = recv(fd, buf, sizeof buf, 0);
            if (r < 0 && errno == EINTR) continue;
            if (r <= 0 || send_all(fd, buf, (size_t)r) || g_closer) break;
        }
        close(fd);
    }
}

/* The replies are small and one at a time: a full send buffer is an error here. */
static int echo_ready(int fd) {
    static char buf[1 << 16];
    ssize_t r = recv(fd, buf, sizeof buf, 0);
    if (r < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (r <= 0) return -1;
    if (send(fd, buf, (size_t)r, 0) != r) die("send");
    return g_closer ? -1 : 0;
}

static void serve_epoll(int lfd) {
    int ep = epoll_create1(0);
    long accepted = 0, ended = 0, serve = argn("serve", 0);
    struct epoll_event ev = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.fd = lfd}, evs[64];
    if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, lfd, &ev)) die("epoll_ctl");
    for (;;) {
        int n = epoll_wait(ep, evs, 64, -1);
        if (n < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < n; i++) {
            int fd = evs[i].data.fd;
            if (fd != lfd) {
                if (!echo_ready(fd)) continue;
                close(fd);
                if (++ended == serve) exit(0);
                continue;
            }
            while ((fd = accept4(lfd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                nodelay(fd);
                struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
                if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e)) die("epoll_ctl");
                if (g_maxconn && ++accepted == g_maxconn) {
                    epoll_ctl(ep, EPOLL_CTL_DEL, lfd, NULL);
                    break;
                }
            }
        }
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    int ep = !strcmp(arg("mode", "block"), "epoll");
    long workers = argn("workers", 0);
    g_closer = !strcmp(arg("closer", "client"), "server");
    g_maxconn = argn("maxconn", 0);
    int lfd = listen_on((int)argn("port", 0), ep ? SOCK_NONBLOCK : 0);
    if (workers) {
        pid_t pids[64];
        if (workers > 64) workers = 64;
        for (long i = 0; i < workers; i++) {
            if ((pids[i] = fork()) < 0) die("fork");
            if (pids[i] == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                serve_epoll(lfd);
            }
        }
        struct sigaction sa = {.sa_handler = on_term};
        sigaction(SIGTERM, &sa, NULL);
        while (!g_stop && wait(NULL) > 0) {}
        /* waited for, so that their CPU time is in ours */
        for (long i = 0; i < workers; i++) kill(pids[i], SIGTERM);
        while (wait(NULL) > 0) {}
        return 0;
    }
    if (ep) serve_epoll(lfd);
    serve_block(lfd);
    return 0;
}
