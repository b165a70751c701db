/* Both ends of connections in one thread, so that nothing waits and every instruction and system call
 * can be counted: the difference between two values of n is the cost of the calls alone.
 *   mode=sendrecv  send on one end, recv on the other, and back     (2 send + 2 recv per round)
 *   mode=epoll     the same with an epoll_wait before each recv     (2 epoll_wait more per round)
 *   mode=short     a new connection, a byte each way, close         (both ends of it per round)
 *   n=2000 warm=3000 size=64 conns=1 (all registered in the set, one carries data) */
#include "common.h"

static void shortly(int lfd, int port, long n) {
    char c = 'a';
    for (long i = 0; i < n; i++) {
        int a = connect_to("127.0.0.1", port), z = accept(lfd, NULL, NULL);
        if (z < 0) die("accept");
        if (send_all(a, &c, 1) || recv_all(z, &c, 1) != 1) die("there");
        if (send_all(z, &c, 1) || recv_all(a, &c, 1) != 1) die("back");
        close(a);
        if (recv(z, &c, 1, 0) != 0) die("no end of file");
        close(z);
    }
}

/* Rounds over one connection of `conns`. */
static void over_one(int lfd, int port, long rounds) {
    long conns = argn("conns", 1);
    size_t size = (size_t)argn("size", 64);
    int use_ep = !strcmp(arg("mode", "sendrecv"), "epoll"), a = -1, z = -1, ep = epoll_create1(0);
    char *b = calloc(1, size);
    for (long i = 0; i < conns; i++) {
        a = connect_to("127.0.0.1", port);
        z = accept(lfd, NULL, NULL);
        if (z < 0) die("accept");
        nodelay(a);
        nodelay(z);
        struct epoll_event e = {.events = EPOLLIN, .data.fd = a};
        if (use_ep && epoll_ctl(ep, EPOLL_CTL_ADD, a, &e)) die("epoll_ctl");
        e.data.fd = z;
        if (use_ep && epoll_ctl(ep, EPOLL_CTL_ADD, z, &e)) die("epoll_ctl");
    }
    for (long i = 0; i < 2 * rounds; i++) {
        int from = i & 1 ? z : a, to = i & 1 ? a : z;
        struct epoll_event e;
        if (send_all(from, b, size)) die("send");
        if (use_ep && (epoll_wait(ep, &e, 1, 5000) != 1 || e.data.fd != to)) die("epoll_wait");
        if (recv_all(to, b, size) != 1) die("recv");
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    long n = argn("n", 2000), warm = argn("warm", 3000);
    int lfd = listen_on(0, 0);
    struct sockaddr_in sa;
    socklen_t len = sizeof sa;
    if (getsockname(lfd, (struct sockaddr *)&sa, &len)) die("getsockname");
    if (!strcmp(arg("mode", "sendrecv"), "short"))
        shortly(lfd, ntohs(sa.sin_port), n + warm);
    else
        over_one(lfd, ntohs(sa.sin_port), n + warm);
    printf("{\"ops\":%ld}\n", n);
    return 0;
}
