/* Owns: an echo server for many connections that outlives whatever a peer does.
 *   echo_many MODE PORT [ADDRESS...]
 * MODE: epoll (level-triggered, non-blocking), raw (the same, with waits that don't go through libc), poll,
 * threads (one for each connection, blocking), fork (one process for each, forked after accept), exits
 * (the same, and it ends without close),
 * prefork (four processes that accept from one listener), reuseport (four processes, each with a
 * listener of its own). ADDRESS: where to listen, [::] without one. */
#define _GNU_SOURCE
#include "raw.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROOM = 1 << 16, MOST = 1024 };
struct conn {
    int fd;
    size_t from, to;
    char bytes[ROOM];
};
static struct conn *conns[MOST];

static int die(const char *what) {
    perror(what);
    exit(3);
}

static int listen_on(const char *address, int port, int reuse) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1, zero = 0, is_four = address && !strchr(address, ':');
    int fd = socket(is_four ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (reuse && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one))
        die("reuseport");
    if (is_four)
        inet_pton(AF_INET, address, &four.sin_addr);
    else if (address)
        inet_pton(AF_INET6, address, &six.sin6_addr);
    else
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, is_four ? (void *)&four : (void *)&six, is_four ? sizeof four : sizeof six) || listen(fd, 128))
        die("listen");
    return fd;
}

static void drop(int fd) {
    free(conns[fd]);
    conns[fd] = NULL;
    close(fd);
}

static void serve(int ep, struct conn *c) {
    for (;;) {
        if (c->from == c->to) {
            ssize_t n = recv(c->fd, c->bytes, ROOM, 0);
            if (n == 0 || (n < 0 && errno != EAGAIN))
                return drop(c->fd);
            if (n < 0)
                break;
            c->from = 0;
            c->to = n;
        }
        ssize_t n = send(c->fd, c->bytes + c->from, c->to - c->from, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            return drop(c->fd);
        if (n < 0)
            break;
        c->from += n;
    }
    struct epoll_event e = {c->from < c->to ? EPOLLOUT : EPOLLIN, {.fd = c->fd}};
    if (ep >= 0)
        epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}

static struct conn *admit(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= MOST)
        close(fd);
    if (fd < 0 || fd >= MOST)
        return NULL;
    conns[fd] = calloc(1, sizeof(struct conn));
    conns[fd]->fd = fd;
    return conns[fd];
}

static void polls(int listener) {
    for (;;) {
        struct pollfd all[MOST] = {{listener, POLLIN, 0}};
        int n = 1;
        for (int fd = 0; fd < MOST; fd++)
            if (conns[fd])
                all[n++] = (struct pollfd){fd, conns[fd]->from < conns[fd]->to ? POLLOUT : POLLIN, 0};
        if (poll(all, n, -1) <= 0)
            continue;
        for (int i = 1; i < n; i++)
            if (all[i].revents)
                serve(-1, conns[all[i].fd]);
        if (all[0].revents)
            admit(listener);
    }
}

static void events(int listener, int unseen) {
    int ep = unseen ? (int)raw(SYS_epoll_create1, 0, 0, 0, 0, 0, 0) : epoll_create1(0);
    struct epoll_event e = {EPOLLIN, {.fd = listener}};
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        struct epoll_event all[16];
        int n = unseen ? (int)raw(SYS_epoll_pwait, ep, (long)all, 16, -1, 0, 8) : epoll_wait(ep, all, 16, -1);
        for (int i = 0; i < n; i++) {
            if (all[i].data.fd != listener) {
                if (conns[all[i].data.fd])
                    serve(ep, conns[all[i].data.fd]);
                continue;
            }
            struct conn *c = admit(listener);
            if (!c)
                continue;
            e = (struct epoll_event){EPOLLIN, {.fd = c->fd}};
            epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
        }
    }
}

static int leaves; /* the ends of processes close what they hold */

static void *echo(void *arg) {
    int fd = (int)(intptr_t)arg;
    char *bytes = malloc(ROOM);
    for (ssize_t n; (n = recv(fd, bytes, ROOM, 0)) > 0;)
        for (ssize_t o = 0, m; o < n; o += m)
            if ((m = send(fd, bytes + o, n - o, MSG_NOSIGNAL)) <= 0)
                goto end;
end:
    free(bytes);
    if (!leaves)
        close(fd);
    return NULL;
}

static void one_by_one(int listener, int forks) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0 || errno != EBADF;) {
        if (fd < 0)
            continue;
        if (forks) {
            if (fork() == 0) {
                close(listener);
                echo((void *)(intptr_t)fd);
                _exit(0);
            }
            close(fd);
            while (waitpid(-1, NULL, WNOHANG) > 0)
                ;
            continue;
        }
        pthread_t t;
        if (pthread_create(&t, NULL, echo, (void *)(intptr_t)fd))
            die("thread");
        pthread_detach(t);
    }
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    const char *mode = argv[1], *address = argc > 3 ? argv[3] : NULL;
    int port = atoi(argv[2]), reuse = !strcmp(mode, "reuseport");
    int listener = listen_on(address, port, reuse);
    if (reuse || !strcmp(mode, "prefork")) {
        for (int i = 0; i < 3; i++) {
            if (fork())
                continue;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (reuse) {
                int own = listen_on(address, port, 1);
                close(listener);
                listener = own;
            }
            break;
        }
        one_by_one(listener, 0);
    } else if (!strcmp(mode, "threads") || !strcmp(mode, "fork") || !strcmp(mode, "exits")) {
        leaves = mode[0] == 'e';
        one_by_one(listener, mode[0] != 't');
    } else if (!strcmp(mode, "poll")) {
        polls(listener);
    } else {
        events(listener, !strcmp(mode, "raw"));
    }
    return 0;
}
