/* Owns: an echo server, and its client, that wait by inline system calls, which no library sees, and read and write through libc; or that do not wait at all.
 *   blind serve ADDRESS PORT                    prints "serving"
 *   blind run|spin ADDRESS PORT CONNECTIONS ROUNDS   messages of 1000 bytes there and back, compared; prints "ok BYTES" */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int set, spins;

static long raw(long n, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return n;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void control(int op, int fd, unsigned events) {
    struct epoll_event e = {events, {.fd = fd}};
    if (raw(SYS_epoll_ctl, set, op, fd, (long)&e, 0, 0) < 0)
        die("epoll_ctl");
}

static void wait_for(int fd, unsigned events) {
    struct epoll_event e;
    if (spins)
        return;
    control(EPOLL_CTL_MOD, fd, events);
    raw(SYS_epoll_pwait, set, (long)&e, 1, -1, 0, 8);
}

static void serve(const struct sockaddr_in *to) {
    static char bytes[1 << 16];
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (const struct sockaddr *)to, sizeof *to) || listen(listener, 20))
        die("listen");
    control(EPOLL_CTL_ADD, listener, EPOLLIN);
    puts("serving");
    fflush(stdout);
    for (;;) {
        struct epoll_event e;
        if (raw(SYS_epoll_pwait, set, (long)&e, 1, -1, 0, 8) != 1)
            continue;
        if (e.data.fd == listener) {
            int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
            if (fd >= 0)
                control(EPOLL_CTL_ADD, fd, EPOLLIN);
            continue;
        }
        ssize_t n = recv(e.data.fd, bytes, sizeof bytes, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            close(e.data.fd);
        else if (n > 0 && send(e.data.fd, bytes, (size_t)n, 0) != n)
            die("send");
    }
}

static void exchange(int fd, int round) {
    char said[1000], heard[1000];
    memset(said, 'a' + round % 26, sizeof said);
    while (send(fd, said, sizeof said, 0) < 0) {
        if (errno != EAGAIN)
            die("send");
        wait_for(fd, EPOLLOUT);
    }
    for (size_t got = 0; got < sizeof heard;) {
        ssize_t n = recv(fd, heard + got, sizeof heard - got, 0);
        if (n > 0)
            got += (size_t)n;
        else if (n == 0 || errno != EAGAIN)
            die("recv");
        else
            wait_for(fd, EPOLLIN);
    }
    if (memcmp(said, heard, sizeof said)) {
        fputs("other bytes came back\n", stderr);
        exit(1);
    }
}

int main(int argc, char **argv) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    if (argc < 4 || inet_pton(AF_INET, argv[2], &to.sin_addr) != 1)
        return 2;
    to.sin_port = htons((unsigned short)atoi(argv[3]));
    set = (int)raw(SYS_epoll_create1, 0, 0, 0, 0, 0, 0);
    spins = !strcmp(argv[1], "spin");
    if (!strcmp(argv[1], "serve"))
        serve(&to);
    if (argc < 6)
        return 2;
    int connections = atoi(argv[4]), rounds = atoi(argv[5]);
    for (int i = 0; i < connections; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        struct sockaddr_in peer;
        socklen_t length = sizeof peer;
        control(EPOLL_CTL_ADD, fd, 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS)
            die("connect");
        wait_for(fd, EPOLLOUT);
        while (getpeername(fd, (struct sockaddr *)&peer, &length) && errno == ENOTCONN)
            length = sizeof peer;
        for (int k = 0; k < rounds; k++)
            exchange(fd, i + k);
        close(fd);
    }
    printf("ok %d\n", connections * rounds * 1000);
    return 0;
}
