/* Owns: connections that begin in an odd way: with the first bytes in the SYN by TCP_FASTOPEN_CONNECT, over MPTCP at one end
 * or both, from a chosen port, by both ends at once; and the port afterwards: who may bind it again, in each order of closing. */
#include "case.h"
#include <linux/filter.h>

static char buf[64 * KIB];

static struct sockaddr_in at_port(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}
static int state(int fd) {
    struct tcp_info i = {0};
    socklen_t l = sizeof i;
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &l));
    return i.tcpi_state;
}

/* ---- TCP_FASTOPEN_CONNECT: connect does nothing where there is a cookie, the first send makes the connection ---- */

static void fast_b(int way) {
    struct sockaddr_in to = at_port(PORT);
    for (int i = 0; i < 3; i++) { /* the first one gets the cookie */
        int fd = MUST(socket(AF_INET, SOCK_STREAM | (way == 1 ? SOCK_NONBLOCK : 0), 0));
        sol_int(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1);
        R(connect(fd, (void *)&to, sizeof to) < 0 && errno != EINPROGRESS);
        if (way == 1)
            say("%s", poll_text(events(fd, POLLOUT, 5000)));
        if (way == 2) { /* watched before the SYN */
            int ep = MUST(epoll_create1(0));
            struct epoll_event e = {EPOLLOUT, {.fd = fd}};
            MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
            say("%d", epoll_wait(ep, &e, 1, 5000));
            close(ep);
        }
        say("SO_ERROR %d", so_error(fd));
        ssize_t n = way == 2 ? writev(fd, &(struct iovec){"hello", 5}, 1) : send(fd, "hello", 5, MSG_NOSIGNAL);
        if (n < 0 && errno == EINPROGRESS) {
            events(fd, POLLOUT, 5000);
            n = send(fd, "hello", 5, MSG_NOSIGNAL);
        }
        say("sent %zd", n);
        nonblocking(fd, 0);
        warm(fd);
        say("state %d", state(fd));
        echo(fd, "fast", i);
        R(connect(fd, (void *)&to, sizeof to));
        close(fd);
    }
    /* Never used. */
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    sol_int(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1);
    connect(fd, (void *)&to, sizeof to);
    close(fd);
    tell('e');
}
static void fast_a(void) {
    int l = listen_on(PORT), queue = 5;
    setsockopt(l, IPPROTO_TCP, TCP_FASTOPEN, &queue, sizeof queue);
    meet();
    for (int i = 0; i < 3; i++) {
        int fd = accept_from(l);
        say("%zu %.5s", get(fd, buf, 5), buf);
        warm(fd);
        echo_until_end(fd);
    }
    hear();
}
static void fast_blocking_b(void) {
    meet();
    fast_b(0);
}
static void fast_nonblocking_b(void) {
    meet();
    fast_b(1);
}
static void fast_watched_b(void) {
    meet();
    fast_b(2);
}

/* ---- MPTCP, which is no connection of ours; a plain end of it is one ---- */

enum { MPTCP = 262 };
static int mptcp_socket(int wanted) {
    int fd = wanted ? socket(AF_INET, SOCK_STREAM, MPTCP) : socket(AF_INET, SOCK_STREAM, 0);
    return fd >= 0 ? fd : MUST(socket(AF_INET, SOCK_STREAM, 0)); /* where the kernel has none */
}
static void mptcp_a(void) {
    struct sockaddr_in at = at_port(PORT);
    for (int i = 1; i < 4; i++) { /* which ends have it */
        int l = mptcp_socket(i & 1);
        sol_int(l, SOL_SOCKET, SO_REUSEADDR, 1);
        MUST(bind(l, (void *)&at, sizeof at));
        MUST(listen(l, 5));
        meet();
        int fd = accept_from(l);
        warm(fd);
        echo_until_end(fd);
        close(l);
        meet();
    }
}
static void mptcp_b(void) {
    struct sockaddr_in to = at_port(PORT);
    for (int i = 1; i < 4; i++) {
        meet();
        int fd = mptcp_socket(i & 2);
        R(connect(fd, (void *)&to, sizeof to));
        warm(fd);
        echo(fd, "multipath", i);
        R(shutdown(fd, SHUT_WR));
        R(recv(fd, buf, 1, 0));
        close(fd);
        meet();
    }
}

/* ---- both ends at once: each SYN is dropped until the other has gone out ---- */

/* A filter on the socket takes SYNs away from it: it drops all, and then none. */
static void deaf(int fd, int is_deaf) {
    struct sock_filter drop = {BPF_RET | BPF_K, 0, 0, 0};
    struct sock_fprog all = {1, &drop};
    if (is_deaf)
        MUST(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &all, sizeof all));
    else
        MUST(setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &all, sizeof all));
}
static void at_once(void) {
    struct sockaddr_in mine = at_port(PORT + is_a), theirs = at_port(PORT + !is_a);
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(fd, (void *)&mine, sizeof mine));
    deaf(fd, 1);
    nonblocking(fd, 1);
    meet();
    int r = connect(fd, (void *)&theirs, sizeof theirs);
    say("%d %s", r, r < 0 ? err_name(errno) : "");
    meet_settled();
    deaf(fd, 0);
    meet(); /* both listen again; the next SYN of either meets a socket that has sent one */
    say("%s, SO_ERROR %d", poll_text(events(fd, POLLOUT, 10000)), so_error(fd));
    nonblocking(fd, 0);
    for (int i = 0; i < 100; i++) {
        static char b[3000];
        if (is_a) {
            fill(buf, sizeof b, i, 1);
            put(fd, buf, sizeof b);
        }
        if (get(fd, b, sizeof b) != sizeof b || !matches(b, sizeof b, i, 1))
            die("at once");
        if (!is_a)
            put(fd, b, sizeof b);
    }
    say("100 there and back");
    meet();
    if (is_a) {
        R(shutdown(fd, SHUT_WR));
        R(recv(fd, buf, 1, 0));
    } else {
        R(recv(fd, buf, 1, 0));
        R(close(fd));
    }
}

/* ---- the port afterwards ---- */

static void who_may_bind(const char *when) {
    struct sockaddr_in at = at_port(PORT);
    for (int reuse = 0; reuse < 2; reuse++) {
        int s = MUST(socket(AF_INET, SOCK_STREAM, 0));
        sol_int(s, SOL_SOCKET, SO_REUSEADDR, reuse);
        int r = bind(s, (void *)&at, sizeof at);
        say("%s, reuse %d: %s", when, reuse, r < 0 ? err_name(errno) : "bound");
        close(s);
    }
}
static void port_a(int order) {
    struct sockaddr_in at = at_port(PORT);
    int l = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(l, (void *)&at, sizeof at));
    MUST(listen(l, 5));
    meet();
    int fd = accept_from(l);
    close(l);
    warm(fd);
    who_may_bind("connected");
    if (order == 0) { /* this end first */
        R(close(fd));
        who_may_bind("closed");
        meet();
        meet_settled();
    } else if (order == 1) { /* the other end first */
        meet();
        meet_settled();
        R(recv(fd, buf, 1, 0));
        R(close(fd));
        settle();
    } else if (order == 2) { /* with bytes unread: a reset */
        meet_settled();
        meet_settled();
        R(close(fd));
    } else if (order == 3) { /* half-closed, then the other end, then this one */
        R(shutdown(fd, SHUT_WR));
        meet();
        meet_settled();
        R(recv(fd, buf, 1, 0));
        who_may_bind("both shut down");
        R(close(fd));
    }
    who_may_bind("over");
    meet();
}
static void port_b(int order) {
    meet();
    int fd = dial(PORT);
    warm(fd);
    if (order == 2) {
        put(fd, "unread", 6);
        meet_settled();
        meet_settled();
    } else {
        meet();
        if (order != 1)
            R(recv(fd, buf, 1, 0));
        R(close(fd));
        meet_settled();
    }
    meet();
}
static void port_here_a(void) { port_a(0); }
static void port_here_b(void) { port_b(0); }
static void port_there_a(void) { port_a(1); }
static void port_there_b(void) { port_b(1); }
static void port_reset_a(void) { port_a(2); }
static void port_reset_b(void) { port_b(2); }
static void port_half_a(void) { port_a(3); }
static void port_half_b(void) { port_b(3); }

const struct test tests[] = {{"fast_blocking", fast_a, fast_blocking_b, COLD | SWITCHES},
                             {"fast_nonblocking", fast_a, fast_nonblocking_b, COLD | SWITCHES},
                             {"fast_watched", fast_a, fast_watched_b, COLD | SWITCHES},
                             {"multipath", mptcp_a, mptcp_b, COLD | SWITCHES},
                             {"at_once", at_once, at_once, COLD},
                             {"port_closed_here", port_here_a, port_here_b, 0},
                             {"port_closed_there", port_there_a, port_there_b, 0},
                             {"port_reset", port_reset_a, port_reset_b, 0},
                             {"port_half_closed", port_half_a, port_half_b, 0},
                             {0}};
