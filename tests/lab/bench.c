/* The program that measure.py times, the same for every medium (AF=43: the kernel's AF_SMC):
 *   bench serve ADDRESS PORT
 *   bench ping ADDRESS PORT BYTES ROUNDS      ns: median and 99th percentile of a round trip
 *   bench stream ADDRESS PORT BYTES TOTAL     bytes per second, in writes of BYTES
 *   bench connect ADDRESS PORT ROUNDS         ns: median of connect(), and of connect() with an answer of one byte
 * A client's first 16 bytes say what the server shall do: kind, bytes.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PING = 1, STREAM = 2 };
static char *work;

static void fail(const char *what) { perror(what); exit(1); }
static long long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000LL + t.tv_nsec; }
static int by_value(const void *a, const void *b) { long long x = *(const long long *)a, y = *(const long long *)b; return (x > y) - (x < y); }

static struct sockaddr_in name(char **argv)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &a.sin_addr);
    return a;
}

static int opened(void)
{
    int one = 1, fd = socket(getenv("AF") ? atoi(getenv("AF")) : AF_INET, SOCK_STREAM, 0);
    if (fd < 0) fail("socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static int get(int fd, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = recv(fd, work + done % (1 << 20), n - done < 1 << 18 ? n - done : 1 << 18, 0);
        if (k <= 0) return 0;
        done += k;
    }
    return 1;
}

static void put(int fd, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = send(fd, work, n - done < 1 << 18 ? n - done : 1 << 18, 0);
        if (k <= 0) fail("send");
        done += k;
    }
}

static void *answer(void *arg)
{
    int fd = (int)(long)arg;
    long long head[2];
    size_t have = 0;
    while (have < sizeof head) {
        ssize_t k = recv(fd, (char *)head + have, sizeof head - have, 0);
        if (k <= 0) { close(fd); return 0; }
        have += k;
    }
    if (head[0] == PING)
        while (get(fd, head[1])) put(fd, head[1]);
    else {
        get(fd, head[1]);
        put(fd, 1);
        get(fd, 1);
    }
    close(fd);
    return 0;
}

static void serve(char **argv)
{
    int one = 1, fd = opened();
    struct sockaddr_in a = name(argv);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 128)) fail("bind");
    puts("serving");
    fflush(stdout);
    for (;;) {
        pthread_t t;
        int c = accept(fd, 0, 0);
        if (c < 0) fail("accept");
        setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        pthread_create(&t, 0, answer, (void *)(long)c);
        pthread_detach(t);
    }
}

static int client(char **argv, long long kind, long long bytes, long long *took)
{
    int fd = opened();
    struct sockaddr_in a = name(argv);
    long long head[2] = {kind, bytes}, began = now();
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) fail("connect");
    if (took) *took = now() - began;
    if (send(fd, head, sizeof head, 0) != sizeof head) fail("send");
    return fd;
}

int main(int argc, char **argv)
{
    work = calloc(1, (1 << 20) + (1 << 18));
    if (argc < 4) return 2;
    if (!strcmp(argv[1], "serve")) serve(argv);
    alarm(40);
    if (!strcmp(argv[1], "ping")) {
        int n = atoi(argv[5]), fd = client(argv, PING, atoi(argv[4]), 0);
        long long *t = calloc(n, sizeof *t);
        for (int i = -n / 10; i < n; i++) {
            long long began = now();
            put(fd, atoi(argv[4]));
            if (!get(fd, atoi(argv[4]))) fail("recv");
            if (i >= 0) t[i] = now() - began;
        }
        qsort(t, n, sizeof *t, by_value);
        printf("%lld %lld\n", t[n / 2], t[n * 99 / 100]);
    } else if (!strcmp(argv[1], "stream")) {
        long long piece = atoll(argv[4]), total = atoll(argv[5]) / piece * piece, began;
        int fd = client(argv, STREAM, total, 0);
        began = now();
        for (long long done = 0; done < total; done += piece) put(fd, piece);
        if (!get(fd, 1)) fail("recv");
        printf("%.0f\n", total * 1e9 / (now() - began));
        put(fd, 1);
        close(fd);
    } else if (!strcmp(argv[1], "connect")) {
        int n = atoi(argv[4]);
        long long *t = calloc(n, sizeof *t), *whole = calloc(n, sizeof *t);
        for (int i = 0; i < n; i++) {
            long long began = now();
            int fd = client(argv, PING, 1, &t[i]);
            put(fd, 1);
            if (!get(fd, 1)) fail("recv");
            whole[i] = now() - began;
            close(fd);
        }
        qsort(t, n, sizeof *t, by_value);
        qsort(whole, n, sizeof *t, by_value);
        printf("%lld %lld\n", t[n / 2], whole[n / 2]);
    }
    return 0;
}
