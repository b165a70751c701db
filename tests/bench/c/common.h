/* Shared by the load programs: arguments, time, sockets, histogram, result lines.
 *
 * Every program takes `key=value` arguments, prints `ready <port>` when it listens, and prints one
 * JSON object per result on a line of its own. A program that fails says why and exits 1. */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int g_argc;
static char **g_argv;

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *fmt, ...) {
    int e = errno;
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "%s: ", g_argv ? g_argv[0] : "bench");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, " (%s)\n", strerror(e));
    va_end(ap);
    exit(1);
}

/* ---- arguments ---- */
static inline const char *arg(const char *key, const char *def) {
    size_t n = strlen(key);
    for (int i = 1; i < g_argc; i++)
        if (!strncmp(g_argv[i], key, n) && g_argv[i][n] == '=') return g_argv[i] + n + 1;
    return def;
}
static inline long argn(const char *key, long def) {
    const char *s = arg(key, NULL);
    return s ? atol(s) : def;
}
static inline double argf(const char *key, double def) {
    const char *s = arg(key, NULL);
    return s ? atof(s) : def;
}
static inline void start(int argc, char **argv) {
    g_argc = argc;
    g_argv = argv;
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct rlimit r;
    if (!getrlimit(RLIMIT_NOFILE, &r) && r.rlim_cur < r.rlim_max && r.rlim_cur < 65536) {
        r.rlim_cur = r.rlim_max < 65536 ? r.rlim_max : 65536;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

/* ---- time ---- */
static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
/* A time stamp that costs less than the 0.2 us it measures: the TSC where there is one. */
static double g_ns_per_tick = 1.0;
static inline uint64_t ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return now_ns();
#endif
}
static inline void ticks_calibrate(void) {
#if defined(__x86_64__)
    uint64_t n0 = now_ns(), t0 = ticks(), n1;
    while ((n1 = now_ns()) - n0 < 20000000) {}
    g_ns_per_tick = (double)(n1 - n0) / (double)(ticks() - t0);
#endif
}
static inline uint64_t ticks_ns(uint64_t d) { return (uint64_t)((double)d * g_ns_per_tick); }

/* CPU time used so far by a process (0: this one), in ns. */
static inline uint64_t cpu_ns(pid_t pid) {
    clockid_t c;
    struct timespec t;
    if (pid < 0 || clock_getcpuclockid(pid, &c) || clock_gettime(c, &t)) return 0;
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- histogram: 128 buckets per power of two, so within 0.8 % ---- */
#define HB 128
#define HN (HB * 40)
struct hist {
    uint32_t n[HN];
};
static inline void hist_add(struct hist *h, uint64_t v) {
    unsigned i = (unsigned)v;
    if (v >= HB) {
        int e = 63 - __builtin_clzll(v);
        i = (unsigned)(e - 6) * HB + (unsigned)((v >> (e - 7)) & (HB - 1));
        if (i >= HN) i = HN - 1;
    }
    h->n[i]++;
}
static inline void hist_print(const struct hist *h) {
    printf("\"hist\":[");
    int first = 1;
    for (unsigned i = 0; i < HN; i++) {
        if (!h->n[i]) continue;
        uint64_t v = i;
        if (i >= HB) {
            int e = (int)(i / HB) + 6;
            v = (1ull << e) + ((uint64_t)(i % HB) << (e - 7));
        }
        printf("%s[%llu,%u]", first ? "" : ",", (unsigned long long)v, h->n[i]);
        first = 0;
    }
    printf("]");
}

/* ---- sockets ---- */
static inline struct sockaddr_in addr_of(const char *host, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1) die("bad address %s", host);
    return a;
}
static inline int listen_on(int port, int type) {
    int fd = socket(AF_INET, SOCK_STREAM | type, 0), one = 1;
    if (fd < 0) die("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in a = addr_of(arg("host", "127.0.0.1"), port);
    socklen_t len = sizeof a;
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 4096)) die("listen");
    if (getsockname(fd, (struct sockaddr *)&a, &len)) die("getsockname");
    printf("ready %d\n", ntohs(a.sin_port));
    return fd;
}
static inline void nodelay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}
static inline int connect_to(const char *host, int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = addr_of(host, port);
    if (fd < 0) die("socket");
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) die("connect");
    return fd;
}
static inline int client_fd(void) {
    int fd = connect_to(arg("host", "127.0.0.1"), (int)argn("port", 0));
    if (argn("nodelay", 1)) nodelay(fd);
    return fd;
}
static inline void nonblock(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

static inline int send_all(int fd, const char *b, size_t n) {
    while (n) {
        ssize_t r = send(fd, b, n, 0);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) return -1;
        b += r;
        n -= (size_t)r;
    }
    return 0;
}
/* 1: all of it, 0: end of file before the first byte, -1: error or cut short */
static inline int recv_all(int fd, char *b, size_t n) {
    size_t got = 0;
    while (got < n) {
        ssize_t r = recv(fd, b + got, n - got, 0);
        if (r < 0 && errno == EINTR) continue;
        if (r == 0 && got == 0) return 0;
        if (r <= 0) return -1;
        got += (size_t)r;
    }
    return 1;
}
#endif
