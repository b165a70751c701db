/* Owns: thousands of connections that open and close all the time, each with bytes that are checked.
 *   churn serve PORT                          echoes, one thread, epoll, until it is killed
 *   churn call PORT CONNECTIONS SECONDS SEED  four threads hold that many between them, and in the end none
 * The caller tells what it did: "opened N, exchanges N, bytes N, refused N"; exit 0 if all bytes were right. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, MOST = 3000, ADDRESSES = 32 };

static int port, each;
static uint64_t ends, seed;
static _Atomic uint64_t opened, exchanges, bytes, refused;

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}
static uint64_t roll(uint64_t *state, uint64_t below) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % below;
}
static void fail(const char *what, int fd) {
    fprintf(stderr, "%s on %d: %s\n", what, fd, strerror(errno));
    exit(1);
}

static void serve(void) {
    int l = socket(AF_INET, SOCK_STREAM, 0), one = 1, ep = epoll_create1(0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct epoll_event e = {EPOLLIN, {.fd = l}}, found[256];
    setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(l, (void *)&at, sizeof at) || listen(l, 1024) || epoll_ctl(ep, EPOLL_CTL_ADD, l, &e))
        fail("listen", l);
    for (;;) {
        int n = epoll_wait(ep, found, 256, -1);
        for (int i = 0; i < n; i++) {
            static char buf[64 * 1024];
            int fd = found[i].data.fd;
            if (fd == l) {
                fd = accept4(l, NULL, NULL, SOCK_NONBLOCK);
                e = (struct epoll_event){EPOLLIN, {.fd = fd}};
                if (fd >= 0 && epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e))
                    fail("epoll_ctl", fd);
                continue;
            }
            ssize_t got = recv(fd, buf, sizeof buf, 0);
            if (got < 0 && errno == EAGAIN)
                continue;
            /* What one asks for at a time fits into any buffer. */
            if (got <= 0 || send(fd, buf, got, MSG_NOSIGNAL) != got)
                close(fd);
        }
    }
}

static int dial(uint64_t *chance) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK + roll(chance, ADDRESSES))};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0)
        fail("socket", fd);
    if (connect(fd, (void *)&to, sizeof to)) {
        close(fd); /* no port is free, for a moment */
        refused++;
        return -1;
    }
    opened++;
    return fd;
}

static void exchange(int fd, uint64_t *chance) {
    char out[MOST] = {0}, in[MOST];
    size_t n = 1 + roll(chance, MOST), have = 0;
    uint64_t word = roll(chance, UINT64_MAX);
    for (size_t i = 0; i < n; i++)
        out[i] = (char)(word >> i % 8 * 8) + (char)(i / 8);
    if (send(fd, out, n, MSG_NOSIGNAL) != (ssize_t)n)
        fail("send", fd);
    while (have < n) {
        ssize_t got = recv(fd, in + have, n - have, 0);
        if (got <= 0)
            fail(got ? "recv" : "an early end", fd);
        have += got;
    }
    if (memcmp(in, out, n))
        fail("other bytes", fd);
    exchanges++;
    bytes += n;
}

static void leave(int fd, uint64_t how) {
    char c;
    struct linger now = {1, 0};
    if (how == 0)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    else if (how == 1 && (shutdown(fd, SHUT_WR) || recv(fd, &c, 1, 0) != 0))
        fail("an orderly end", fd);
    close(fd);
}

static void *call(void *p) {
    uint64_t chance = (seed + (uintptr_t)p + 1) * 0x9e3779b97f4a7c15ull | 1;
    int *fds = malloc(each * sizeof *fds);
    for (int i = 0; i < each; i++)
        fds[i] = -1;
    while (now_ms() < ends) {
        int *fd = &fds[roll(&chance, each)];
        if (*fd < 0)
            *fd = dial(&chance);
        for (uint64_t i = roll(&chance, 4); *fd >= 0 && i; i--)
            exchange(*fd, &chance);
        if (*fd >= 0 && roll(&chance, 4) == 0) {
            leave(*fd, roll(&chance, 3));
            *fd = -1;
        }
    }
    for (int i = 0; i < each; i++)
        if (fds[i] >= 0) {
            exchange(fds[i], &chance);
            leave(fds[i], roll(&chance, 3));
        }
    free(fds);
    return NULL;
}

int main(int argc, char **argv) {
    struct rlimit l;
    if (argc < 3)
        return 2;
    port = atoi(argv[2]);
    getrlimit(RLIMIT_NOFILE, &l);
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
    if (!strcmp(argv[1], "serve"))
        serve();
    if (argc < 6)
        return 2;
    each = atoi(argv[3]) / THREADS;
    ends = now_ms() + 1000 * atoi(argv[4]);
    seed = strtoull(argv[5], NULL, 10);
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, call, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    printf("opened %llu, exchanges %llu, bytes %llu, refused %llu\n", (unsigned long long)opened,
           (unsigned long long)exchanges, (unsigned long long)bytes, (unsigned long long)refused);
    return 0;
}
