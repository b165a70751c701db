/* Owns: who is at the other end: listeners on every kind of address, two servers on one port,
 * SO_REUSEPORT groups, connections made in other ways, accepted late or by another thread, refused,
 * given up, made to itself. Where it can move to memory it must (the warm-up says so). */
#include "case.h"

static char buf[64 * KIB];

static void echo_quietly(int fd) {
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;)
        put(fd, buf, n);
    close(fd);
}

struct place {
    struct sockaddr_storage at;
    socklen_t len;
};
static struct place place(const char *ip, int port) {
    struct place p = {0};
    struct sockaddr_in *v4 = (void *)&p.at;
    struct sockaddr_in6 *v6 = (void *)&p.at;
    if (strchr(ip, ':')) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        inet_pton(AF_INET6, ip, &v6->sin6_addr);
        p.len = sizeof *v6;
    } else {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        inet_pton(AF_INET, ip, &v4->sin_addr);
        p.len = sizeof *v4;
    }
    return p;
}
static int listen_at(const char *ip, int only6, int reuse_port) {
    struct place p = place(ip, PORT);
    int l = MUST(socket(p.at.ss_family, SOCK_STREAM, 0));
    sol_int(l, SOL_SOCKET, SO_REUSEADDR, 1);
    if (reuse_port)
        sol_int(l, SOL_SOCKET, SO_REUSEPORT, 1);
    if (p.at.ss_family == AF_INET6)
        sol_int(l, IPPROTO_IPV6, IPV6_V6ONLY, only6);
    MUST(bind(l, (void *)&p.at, p.len));
    MUST(listen(l, 100));
    return l;
}
static int dial_at(const char *ip) {
    struct place p = place(ip, PORT);
    int fd = MUST(socket(p.at.ss_family, SOCK_STREAM, 0));
    MUST(connect(fd, (void *)&p.at, p.len));
    return fd;
}

/* One connection to each of the addresses, all to the same listener. */
static void serve(const char *ip, int only6, int count) {
    int l = listen_at(ip, only6, 0);
    meet();
    for (int i = 0; i < count; i++) {
        struct sockaddr_storage from;
        socklen_t len = sizeof from;
        int fd = MUST(accept4(l, (void *)&from, &len, i % 2 ? SOCK_CLOEXEC : 0));
        say("family %d length %d cloexec %d", from.ss_family, (int)len, fcntl(fd, F_GETFD));
        warm(fd);
        echo_quietly(fd);
    }
    meet();
}
static void reach(const char *const *ips) {
    meet();
    for (; *ips; ips++) {
        int fd = dial_at(*ips);
        warm(fd);
        echo(fd, *ips, 1);
        close(fd);
    }
    meet();
}
static void any4_a(void) { serve("0.0.0.0", 0, 3); }
static void any4_b(void) {
    reach((const char *const[]){"127.0.0.1", "127.0.0.2", "127.1.2.3", NULL});
}
static void one6_a(void) { serve("::1", 1, 1); }
static void one6_b(void) { reach((const char *const[]){"::1", NULL}); }
static void any6_a(void) { serve("::", 1, 1); }
static void dual_a(void) { serve("::", 0, 4); }
static void dual_b(void) {
    reach((const char *const[]){"::1", "127.0.0.1", "::ffff:127.0.0.1", "127.0.0.3", NULL});
}

/* Two servers on the same port of different addresses: each gets what is meant for it. */
static void two_servers_a(void) {
    int l[2] = {listen_at("127.0.0.1", 0, 0), listen_at("127.0.0.2", 0, 0)};
    pid_t child[2];
    for (int i = 0; i < 2; i++)
        if ((child[i] = fork()) == 0) {
            close(l[!i]);
            for (int k = 0; k < 3; k++) {
                int fd = accept_from(l[i]);
                warm(fd);
                put(fd, i ? "second" : "first.", 6);
                echo_quietly(fd);
            }
            _exit(0);
        }
    close(l[0]);
    close(l[1]);
    meet();
    for (int i = 0; i < 2; i++) {
        int status;
        MUST(waitpid(child[i], &status, 0));
        say("server %d", status);
    }
}
static void two_servers_b(void) {
    meet();
    for (int k = 0; k < 6; k++) {
        int fd = dial_at(k % 2 ? "127.0.0.2" : "127.0.0.1");
        warm(fd);
        get(fd, buf, 6);
        say("%.6s", buf);
        echo(fd, "echo", k);
        close(fd);
    }
}

/* SO_REUSEPORT: the kernel chooses the process. */
static void reuse_port_a(void) {
    pid_t child[3];
    int stop[2];
    MUST(pipe(stop));
    for (int i = 0; i < 3; i++)
        if ((child[i] = fork()) == 0) {
            close(stop[1]);
            int l = listen_at("127.0.0.1", 0, 1);
            tell('r');
            for (;;) {
                struct pollfd p[2] = {{l, POLLIN, 0}, {stop[0], POLLIN, 0}};
                poll(p, 2, -1);
                if (!(p[0].revents & POLLIN))
                    _exit(0);
                int fd = accept_from(l);
                warm(fd);
                echo_quietly(fd);
            }
        }
    close(stop[0]);
    hear();
    close(stop[1]);
    for (int i = 0; i < 3; i++)
        MUST(waitpid(child[i], NULL, 0));
}
static void reuse_port_b(void) {
    for (int i = 0; i < 3; i++)
        hear();
    for (int i = 0; i < 12; i++) {
        int fd = dial(PORT);
        warm(fd);
        echo(fd, "client", i);
        close(fd);
    }
    tell('s');
}

/* connect without blocking, then poll, then SO_ERROR; data is sent at once. */
static void nonblocking_b(void) {
    meet();
    for (int i = 0; i < 3; i++) {
        struct place p = place("127.0.0.1", PORT);
        int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        int r = connect(fd, (void *)&p.at, p.len), e = -1;
        say("connect %d %s", r, r < 0 ? err_name(errno) : "");
        say("%s", poll_text(events(fd, POLLOUT, 5000)));
        socklen_t l = sizeof e;
        R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &l));
        say("SO_ERROR %d", e);
        R(connect(fd, (void *)&p.at, p.len));
        if (i == 1)
            nonblocking(fd, 0);
        warm(fd);
        nonblocking(fd, 0);
        echo(fd, "echo", i);
        close(fd);
    }
    meet();
}
static void nonblocking_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < 3; i++) {
        int fd = accept_from(l);
        warm(fd);
        echo_quietly(fd);
    }
    meet();
}

/* Refused; then tried again on the same socket when somebody listens. */
static void refused_a(void) {
    meet();
    meet();
    int l = listen_on(PORT);
    meet();
    int fd = accept_from(l);
    warm(fd);
    echo_quietly(fd);
}
static void refused_b(void) {
    struct place p = place("127.0.0.1", PORT);
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    meet();
    R(connect(fd, (void *)&p.at, p.len));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(recv(fd, buf, 1, 0));
    nonblocking(fd, 1);
    int r = connect(fd, (void *)&p.at, p.len);
    say("%d %s", r, err_name(errno));
    say("%s", poll_text(events(fd, POLLIN | POLLOUT, 1000)));
    R(connect(fd, (void *)&p.at, p.len));
    nonblocking(fd, 0);
    meet();
    meet();
    R(connect(fd, (void *)&p.at, p.len));
    warm(fd);
    echo(fd, "at last", 1);
    close(fd);
}

/* Data and even the end are sent before anybody accepts. */
static void late_accept_a(void) {
    int l = listen_on(PORT);
    meet();
    meet_settled();
    for (int i = 0; i < 3; i++) {
        int fd = accept_from(l);
        say("%lu", drain(fd, i));
        close(fd);
    }
    int fd = accept_from(l);
    get(fd, buf, 10);
    warm(fd);
    echo_quietly(fd);
}
static void late_accept_b(void) {
    meet();
    for (int i = 0; i < 3; i++) {
        int fd = dial(PORT);
        fill(buf, 30000, 0, i);
        put(fd, buf, 30000);
        close(fd);
    }
    int fd = dial(PORT);
    put(fd, buf, 10);
    meet_settled();
    warm(fd);
    echo(fd, "waited", 7);
    close(fd);
}

/* One thread accepts, others serve. */
static void *server(void *fd) {
    warm((int)(intptr_t)fd);
    echo_quietly((int)(intptr_t)fd);
    return NULL;
}
static void pool_a(void) {
    int l = listen_on(PORT);
    pthread_t t[5];
    meet();
    for (int i = 0; i < 5; i++)
        pthread_create(&t[i], NULL, server, (void *)(intptr_t)accept_from(l));
    for (int i = 0; i < 5; i++)
        pthread_join(t[i], NULL);
    meet();
}
static void pool_b(void) {
    int fd[5];
    meet();
    for (int i = 0; i < 5; i++)
        fd[i] = dial(PORT);
    for (int i = 0; i < 5; i++)
        warm(fd[i]);
    for (int i = 4; i >= 0; i--) {
        echo(fd[i], "pool", i);
        close(fd[i]);
    }
    meet();
}

/* TCP_DEFER_ACCEPT, and data in the SYN (TCP Fast Open, where the kernel has it on). */
static void deferred_a(void) {
    int l = listen_on(PORT);
    sol_int(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, 5);
    int queue = 5;
    setsockopt(l, IPPROTO_TCP, TCP_FASTOPEN, &queue, sizeof queue);
    meet();
    for (int i = 0; i < 3; i++) {
        int fd = accept_from(l);
        say("%zu %.5s", get(fd, buf, 5), buf);
        warm(fd);
        echo_quietly(fd);
    }
}
static void deferred_b(void) {
    struct place p = place("127.0.0.1", PORT);
    meet();
    for (int i = 0; i < 3; i++) {
        int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
        if (i == 0) {
            MUST(connect(fd, (void *)&p.at, p.len));
            put(fd, "hello", 5);
        } else {
            R(sendto(fd, "hello", 5, MSG_FASTOPEN, (void *)&p.at, p.len));
        }
        warm(fd);
        echo(fd, "echo", i);
        close(fd);
    }
}

/* A socket connected to itself (simultaneous open of one). */
static void itself_a(void) {
    struct place p = place("127.0.0.1", PORT + 5);
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(fd, (void *)&p.at, p.len));
    R(connect(fd, (void *)&p.at, p.len));
    for (int i = 0; i < 60; i++) {
        fill(buf, 1000, i, 2);
        put(fd, buf, 1000);
        if (get(fd, buf + 2000, 1000) != 1000 || memcmp(buf, buf + 2000, 1000))
            die("itself");
    }
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 10, 0));
    meet();
}
static void itself_b(void) { meet(); }

/* Disconnected by AF_UNSPEC and connected again, under the same descriptor. */
static void again_b(void) {
    meet();
    int fd = dial(PORT);
    warm(fd);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    R(connect(fd, &none, sizeof none));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(recv(fd, buf, 1, 0));
    struct place p = place("127.0.0.1", PORT);
    R(connect(fd, (void *)&p.at, p.len));
    warm(fd);
    echo(fd, "again", 1);
    close(fd);
}
static void again_a(void) {
    int l = listen_on(PORT);
    meet();
    int fd = accept_from(l);
    warm(fd);
    R(recv(fd, buf, 1, 0));
    close(fd);
    fd = accept_from(l);
    warm(fd);
    echo_quietly(fd);
}

const struct test tests[] = {{"any_v4", any4_a, any4_b, 0},
                             {"one_v6", one6_a, one6_b, 0},
                             {"any_v6", any6_a, one6_b, 0},
                             {"dual_stack", dual_a, dual_b, 0},
                             {"two_servers", two_servers_a, two_servers_b, 0},
                             {"reuse_port", reuse_port_a, reuse_port_b, 0},
                             {"nonblocking_connect", nonblocking_a, nonblocking_b, 0},
                             {"refused", refused_a, refused_b, 0},
                             {"late_accept", late_accept_a, late_accept_b, 0},
                             {"thread_pool", pool_a, pool_b, 0},
                             {"deferred", deferred_a, deferred_b, COLD | SWITCHES},
                             {"itself", itself_a, itself_b, COLD},
                             {"connected_again", again_a, again_b, 0},
                             {0}};
