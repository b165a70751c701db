/* Owns: a client that exchanges bytes with an echo server when it is told to, and checks them.
 *   talker ADDRESS PORT [LOCAL-PORT]
 * For each line on standard input, a number, it exchanges so many bytes in pieces of 1 to 4096 and
 * prints "whole"; "DIFFERENT" or an error ends it. Ends with 0 at the end of the input. TALKER_USER: the number of
 * the user that it becomes before it connects. Of other lines: "user N", it becomes that one; "eat MS", it reads whatever
 * wakes anybody out of each descriptor that it has; "raw", it sends a byte past every library and
 * reads its echo so. Each prints "done", with how many bytes it has read. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "raw.h"

static uint32_t state = 12345;
static uint32_t roll(void) { return (state = state * 1664525 + 1013904223) >> 8; }

static int open_to(const char *address, int port, int local) {
    int six = strchr(address, ':') != NULL;
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    if (local) {
        struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(local)};
        own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (bind(fd, (void *)&own, sizeof own))
            return -1;
    }
    if (six ? inet_pton(AF_INET6, address, &a6.sin6_addr) : inet_pton(AF_INET, address, &a4.sin_addr))
        if (!connect(fd, six ? (void *)&a6 : (void *)&a4, six ? sizeof a6 : sizeof a4))
            return fd;
    return -1;
}

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static long eat(long ms) {
    long eaten = 0, end = now_ms() + ms;
    while (now_ms() < end)
        for (int fd = 3; fd < 2048; fd++) {
            char path[64], to[64] = {0}, bytes[8];
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            if (readlink(path, to, sizeof to - 1) <= 0 || !strstr(to, "eventfd"))
                continue;
            fcntl(fd, F_SETFL, O_NONBLOCK);
            ssize_t n = read(fd, bytes, sizeof bytes);
            eaten += n > 0 ? n : 0;
        }
    return eaten;
}

/* A line that is no number; -1: it is one. */
static int other(int fd, const char *line) {
    long n, eaten = 0;
    if (sscanf(line, "user %ld", &n) == 1) {
        if (setresuid(n, n, n))
            return perror("setresuid"), 1;
    } else if (sscanf(line, "eat %ld", &n) == 1) {
        eaten = eat(n);
    } else if (!strncmp(line, "raw", 3)) {
        char echo = 0;
        raw(SYS_sendto, fd, (long)"r", 1, MSG_NOSIGNAL, 0, 0);
        eaten = raw(SYS_recvfrom, fd, (long)&echo, 1, 0, 0, 0);
        if (eaten == 1 && echo != 'r')
            eaten = 0; /* a doorbell */
    } else {
        return -1;
    }
    printf("done %ld\n", eaten);
    fflush(stdout);
    return 0;
}

static int exchange(int fd, long bytes) {
    static unsigned char there[4096], back[4096];
    while (bytes > 0) {
        long n = roll() % sizeof there + 1;
        n = n < bytes ? n : bytes;
        for (long i = 0; i < n; i++)
            there[i] = roll();
        for (long o = 0, m; o < n; o += m)
            if ((m = send(fd, there + o, n - o, MSG_NOSIGNAL)) <= 0)
                return perror("send"), 1;
        for (long o = 0, m; o < n; o += m) {
            struct pollfd p = {fd, POLLIN, 0};
            if (poll(&p, 1, 30000) != 1)
                return puts("SILENT"), 1;
            if ((m = recv(fd, back + o, n - o, 0)) <= 0)
                return perror("recv"), 1;
        }
        if (memcmp(there, back, n))
            return puts("DIFFERENT"), 1;
        bytes -= n;
    }
    puts("whole");
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    int user = getenv("TALKER_USER") ? atoi(getenv("TALKER_USER")) : 0;
    if (user && setresuid(user, user, user))
        return perror("setresuid"), 3;
    int fd = open_to(argv[1], atoi(argv[2]), argc > 3 ? atoi(argv[3]) : 0);
    if (fd < 0)
        return perror("connect"), 3;
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        int done = other(fd, line);
        if (done > 0 || (done < 0 && exchange(fd, atol(line))))
            return 4;
    }
    return 0;
}
