/* Both ends of connections in one thread, so that nothing waits and every instruction and system call
 * can be counted: the difference between two values of n is the cost of the calls alone.
 *   mode=sendrecv  send on one end, recv on the other, and back     (2 send + 2 recv per round)
 *   mode=epoll     the same with an epoll_wait before each recv     (2 epoll_wait more per round)
 *   mode=duplex    a send on either end, then a recv on either      (2 send + 2 recv per round)
 *   mode=byte1     `size` sends of 1 byte without NODELAY on one end, a recv of them on the other, and back
 *   mode=short     a new connection, `rounds` bytes each way, close (both ends of it per round);
 *                  closer=client|server, epoll=1: connect without waiting, epoll_wait before each call
 *   n=2000 warm=3000 size=64 conns=1 (all registered in the set, one carries data) rounds=1 */
#include "common.h"

static int ep;
enum { WELL_BEGUN = 1000 }; /* sends, after which a connection is in memory if it goes there at all; a part of `warm` */

static void watch(int fd, int op, uint32_t events) {
    struct epoll_event e = {.events = events, .data.fd = fd};
    if (epoll_ctl(ep, op, fd, &e)) die("epoll_ctl");
}

static void wait_for(int fd) {
    struct epoll_event e;
    if (epoll_wait(ep, &e, 1, 5000) != 1 || e.data.fd != fd) die("epoll_wait");
}

static void shortly(int lfd, int port, long n) {
    long rounds = argn("rounds", 1);
    int by_epoll = (int)argn("epoll", 0), server_closes = !strcmp(arg("closer", "client"), "server");
    char c = 'a';
    if (by_epoll) watch(lfd, EPOLL_CTL_ADD, EPOLLIN);
    for (long i = 0; i < n; i++) {
        int a, z;
        if (by_epoll) {
            struct sockaddr_in to = addr_of("127.0.0.1", port);
            a = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
            if (a < 0 || (connect(a, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS)) die("connect");
            wait_for(lfd);
            z = accept4(lfd, NULL, NULL, SOCK_NONBLOCK);
            watch(a, EPOLL_CTL_ADD, EPOLLOUT);
            wait_for(a);
            watch(a, EPOLL_CTL_MOD, EPOLLIN);
            watch(z, EPOLL_CTL_ADD, EPOLLIN);
        } else {
            a = connect_to("127.0.0.1", port);
            z = accept(lfd, NULL, NULL);
        }
        if (z < 0) die("accept");
        for (long k = 0; k < rounds; k++) {
            if (send_all(a, &c, 1)) die("there");
            if (by_epoll) wait_for(z);
            if (recv_all(z, &c, 1) != 1) die("there");
            if (send_all(z, &c, 1)) die("back");
            if (by_epoll) wait_for(a);
            if (recv_all(a, &c, 1) != 1) die("back");
        }
        int first = server_closes ? z : a, second = server_closes ? a : z;
        close(first);
        if (by_epoll) wait_for(second);
        if (recv(second, &c, 1, 0) != 0) die("no end of file");
        close(second);
    }
}

/* Waits in a receive for nothing, once, as whoever blocks does sooner or later: until then the library can't know that no other call
 * tells the reader when to read (docs/readiness.md, "Seen and unseen"). */
static void wait_in_vain(int fd) {
    struct timeval t = {.tv_usec = 1000}, none = {0};
    char c;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) || recv(fd, &c, 1, 0) != -1 || errno != EAGAIN ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none))
        die("a receive in vain");
}

/* Rounds over one connection of `conns`. */
static void over_one(int lfd, int port, long rounds, const char *mode) {
    long conns = argn("conns", 1);
    size_t size = (size_t)argn("size", 64);
    int use_ep = !strcmp(mode, "epoll"), duplex = !strcmp(mode, "duplex"), byte1 = !strcmp(mode, "byte1"), a = -1, z = -1;
    char *b = calloc(1, size);
    for (long i = 0; i < conns; i++) {
        a = connect_to("127.0.0.1", port);
        z = accept(lfd, NULL, NULL);
        if (z < 0) die("accept");
        if (!byte1) {
            nodelay(a);
            nodelay(z);
        }
        if (use_ep) {
            watch(a, EPOLL_CTL_ADD, EPOLLIN);
            watch(z, EPOLL_CTL_ADD, EPOLLIN);
        }
    }
    for (long i = 0; i < (duplex ? 1 : 2) * rounds; i++) {
        int from = i & 1 ? z : a, to = i & 1 ? a : z;
        if (duplex) from = a, to = z;
        if (i == WELL_BEGUN && !use_ep) {
            wait_in_vain(a);
            wait_in_vain(z);
        }
        for (size_t k = 0; byte1 && k < size; k++)
            if (send_all(from, b, 1)) die("send");
        if (!byte1 && send_all(from, b, size)) die("send");
        if (duplex && send_all(to, b, size)) die("send");
        if (use_ep) wait_for(to);
        if (recv_all(to, b, size) != 1) die("recv");
        if (duplex && recv_all(from, b, size) != 1) die("recv");
    }
}

int main(int argc, char **argv) {
    start(argc, argv);
    long n = argn("n", 2000), warm = argn("warm", 3000);
    const char *mode = arg("mode", "sendrecv");
    int lfd = listen_on(0, 0);
    struct sockaddr_in sa;
    socklen_t len = sizeof sa;
    if (getsockname(lfd, (struct sockaddr *)&sa, &len)) die("getsockname");
    ep = epoll_create1(0);
    if (ep < 0) die("epoll_create1");
    if (!strcmp(mode, "short"))
        shortly(lfd, ntohs(sa.sin_port), n + warm);
    else
        over_one(lfd, ntohs(sa.sin_port), n + warm, mode);
    printf("{\"ops\":%ld}\n", n);
    return 0;
}
