/* Owns: the life of connections by the numbers of syscall(2), mixed with libc's functions on the same descriptors: made, asked, set,
 * duplicated, passed, given to programs, closed. What moves bytes and what waits is in numbered.c. */
#include "given.h"

static char buf[64 * KIB];
enum { AT = 10 }; /* where the next program finds the connection */

static void over(int fd) {
    R(syscall(SYS_shutdown, fd, SHUT_WR));
    R(syscall(SYS_recvfrom, fd, buf, 10L, 0L, NULL, NULL));
    R(syscall(SYS_close, fd));
    meet();
}
static void echo_b(void) {
    echo_until_end(conn());
    meet();
}
/* There by number, back by libc, and the other way round. */
static void both_ways(int fd, const char *what) {
    char there[600], back[600] = "";
    fill(there, sizeof there, 0, 5);
    long n = syscall(SYS_write, fd, there, sizeof there);
    size_t m = get(fd, back, sizeof back);
    int good = !memcmp(there, back, sizeof back);
    put(fd, there, sizeof there);
    events(fd, POLLIN, 5000);
    long k = syscall(SYS_recvfrom, fd, back, sizeof back, (long)MSG_WAITALL, NULL, NULL);
    say("%s: %ld %zu %d, %ld %d", what, n, m, good, k, !memcmp(there, back, sizeof back));
}

/* ---- made ---- */

static const char *named(int r, const struct sockaddr_in *a, socklen_t len) {
    static char text[2][80];
    static int turn;
    char *t = text[turn++ % 2];
    int port = ntohs(a->sin_port);
    sprintf(t, "%d %s:%s %d", r, inet_ntoa(a->sin_addr), port == PORT ? "ours" : port ? "some" : "none", (int)len);
    return t;
}
static void names(int fd) {
    struct sockaddr_in a = {0}, b = {0};
    socklen_t la = sizeof a, lb = sizeof b;
    int r = (int)syscall(SYS_getsockname, fd, &a, &la), q = getsockname(fd, (void *)&b, &lb);
    say("own: %s, %s, same %d", named(r, &a, la), named(q, &b, lb), !memcmp(&a, &b, sizeof a));
    la = lb = sizeof a;
    r = (int)syscall(SYS_getpeername, fd, &a, &la), q = getpeername(fd, (void *)&b, &lb);
    say("peer: %s, %s, same %d", r ? err_name(errno) : named(r, &a, la), q ? err_name(errno) : named(q, &b, lb), !memcmp(&a, &b, sizeof a));
}
enum { LIVES = 4 };
static const struct sockaddr_in *at_port(void) {
    static struct sockaddr_in at;
    at = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    return &at;
}
static void lives_a(void) {
    int one = 1, l = MUST((int)syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    socklen_t len = sizeof one;
    R(syscall(SYS_setsockopt, l, SOL_SOCKET, SO_REUSEADDR, &one, len));
    R(syscall(SYS_accept, l, NULL, NULL));
    R(syscall(SYS_bind, l, at_port(), sizeof *at_port()));
    R(syscall(SYS_bind, l, at_port(), sizeof *at_port()));
    R(syscall(SYS_listen, l, 16));
    R(syscall(SYS_getsockopt, l, SOL_SOCKET, SO_ACCEPTCONN, &one, &len));
    say("listens %d", one);
    names(l);
    nonblocking(l, 1);
    R(syscall(SYS_accept, l, NULL, NULL));
    R(syscall(SYS_accept4, l, NULL, NULL, SOCK_CLOEXEC));
    R(syscall(SYS_accept4, l, NULL, NULL, 7));
    for (int i = 0; i < LIVES; i++) {
        struct sockaddr_in from = {0};
        struct pollfd p = {l, POLLIN, 0};
        nonblocking(l, i == 3);
        len = sizeof from;
        meet();
        if (i == 3)
            R(syscall(SYS_poll, &p, 1L, 10000L));
        int fd = i == 2 ? accept4(l, (void *)&from, &len, 0)
                 : i == 1 ? (int)syscall(SYS_accept4, l, &from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC)
                          : (int)syscall(SYS_accept, l, &from, &len);
        MUST(fd);
        say("%d: %s", i, named(0, &from, len));
        R(syscall(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK);
        R(syscall(SYS_fcntl, fd, F_GETFD));
        warm(fd);
        names(fd);
        both_ways(fd, "both ways");
        if (i == 1)
            R(syscall(SYS_fcntl, fd, F_SETFL, O_RDWR));
        over(fd);
    }
    R(syscall(SYS_close, l));
}
static void lives_b(void) {
    for (int i = 0; i < LIVES; i++) {
        int flags = SOCK_STREAM | (i == 2 ? SOCK_NONBLOCK : 0), fd = i == 1 ? socket(AF_INET, flags, 0) : (int)syscall(SYS_socket, AF_INET, flags, 0);
        struct pollfd p = {MUST(fd), POLLOUT, 0};
        meet();
        R(i == 3 ? connect(fd, (const void *)at_port(), sizeof *at_port()) : syscall(SYS_connect, fd, at_port(), sizeof *at_port()));
        R(syscall(SYS_poll, &p, 1L, 10000L));
        say("error %d", so_error(fd));
        if (i != 2) /* after one that did not wait the first further call tells of success */
            R(syscall(SYS_connect, fd, at_port(), sizeof *at_port()));
        names(fd);
        warm(fd);
        nonblocking(fd, 0);
        echo_until_end(fd);
        meet();
    }
}

/* ---- asked and set ---- */

static int option(int fd, int level, int name) {
    int v = -1;
    socklen_t len = sizeof v;
    return syscall(SYS_getsockopt, fd, level, name, &v, &len) ? -errno : v;
}
static int libc_option(int fd, int level, int name) {
    int v = -1;
    socklen_t len = sizeof v;
    return getsockopt(fd, level, name, &v, &len) ? -errno : v;
}
static long set(int fd, int level, int name, int value) { return syscall(SYS_setsockopt, fd, level, name, &value, sizeof value); }
static void asks_a(void) {
    static const struct {
        int level, name;
    } kept[] = {{IPPROTO_TCP, TCP_NODELAY}, {IPPROTO_TCP, TCP_CORK}, {SOL_SOCKET, SO_KEEPALIVE}, {SOL_SOCKET, SO_RCVLOWAT}, {IPPROTO_TCP, TCP_USER_TIMEOUT}};
    int fd = conn(), n = -1, v = 1;
    socklen_t len = sizeof v;
    struct timeval t = {0, 30000};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        R(set(fd, kept[i].level, kept[i].name, 1));
        say("%zu: %d %d", i, option(fd, kept[i].level, kept[i].name), libc_option(fd, kept[i].level, kept[i].name));
        sol_int(fd, kept[i].level, kept[i].name, 0);
        say("%zu: %d %d", i, option(fd, kept[i].level, kept[i].name), libc_option(fd, kept[i].level, kept[i].name));
        both_ways(fd, "then");
    }
    enum { RECEIVED = 128 / 8, SENT = 200 / 8 }; /* tcpi_bytes_*, of which glibc's header knows nothing */
    uint64_t info[30] = {0};
    socklen_t room = sizeof info;
    R(syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, info, &room));
    say("state %d, sent %d, received %d", *(char *)info, info[SENT] > MIB, info[RECEIVED] > MIB);
    R(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, &v, NULL));
    R(syscall(SYS_getsockopt, fd, SOL_SOCKET, 12345, &v, &len));
    R(syscall(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &v, 1L));
    R(syscall(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, NULL, 4L));
    /* A mark below which there is nothing to be read. */
    R(set(fd, SOL_SOCKET, SO_RCVLOWAT, 300));
    put(fd, buf, 200);
    for (int i = 0; i < 100 && (MUST(syscall(SYS_ioctl, fd, FIONREAD, &n)), n < 200); i++)
        settle();
    say("unread %d, %d; %s", n, now_in(fd), poll_text(events(fd, POLLIN, 0)));
    R(set(fd, SOL_SOCKET, SO_RCVLOWAT, 1));
    say("%s", poll_text(events(fd, POLLIN, 0)));
    R(syscall(SYS_ioctl, fd, TIOCOUTQ, &n));
    say("unsent %d", n);
    R(syscall(SYS_ioctl, fd, FIONREAD, NULL));
    R(syscall(SYS_ioctl, fd, 0x12345678L, &n));
    R(syscall(SYS_recvfrom, fd, buf, 1000L, 0L, NULL, NULL));
    /* Waits that end, and none. */
    R(syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    R(recv(fd, buf, 1, 0));
    R(syscall(SYS_read, fd, buf, 1L));
    timeouts(fd, SO_RCVTIMEO, 0);
    n = 1;
    R(syscall(SYS_ioctl, fd, FIONBIO, &n));
    R(fcntl(fd, F_GETFL) & O_NONBLOCK);
    R(recv(fd, buf, 1, 0));
    R(syscall(SYS_fcntl, fd, F_SETFL, O_RDWR));
    R(syscall(SYS_fcntl, fd, F_GETFL) == fcntl(fd, F_GETFL));
    R(fcntl(fd, F_SETFL, O_NONBLOCK));
    R(syscall(SYS_recvfrom, fd, buf, 1L, 0L, NULL, NULL));
    n = 0;
    R(ioctl(fd, FIONBIO, &n));
    R(syscall(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK);
    both_ways(fd, "in the end");
    over(fd);
}

/* ---- duplicates ---- */

static void dups_a(void) {
    int fd = conn();
    R(syscall(SYS_dup2, fd, 40));
    R(syscall(SYS_dup2, fd, fd) == fd);
    R(syscall(SYS_dup2, 999, 41));
    R(syscall(SYS_dup3, fd, fd, 0));
    R(syscall(SYS_dup3, fd, 41, O_CLOEXEC));
    R(syscall(SYS_dup3, fd, 42, 0x1234));
    R(syscall(SYS_fcntl, fd, F_DUPFD, 50));
    R(syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 60));
    int any = MUST((int)syscall(SYS_dup, fd)), all[] = {fd, 40, 41, 50, 60, any};
    for (int i = 0; i < 6; i++) {
        say("%d: %ld %d", i, syscall(SYS_fcntl, all[i], F_GETFD), fcntl(all[i], F_GETFD));
        both_ways(all[i], "number");
    }
    for (int i = 0; i < 60; i++) {
        char c = (char)i, d = 0;
        long n = i % 2 ? syscall(SYS_write, all[i % 6], &c, 1L) : send(all[i % 6], &c, 1, 0);
        long m = i % 3 ? recv(all[(i * 5 + 1) % 6], &d, 1, 0) : syscall(SYS_read, all[(i * 5 + 1) % 6], &d, 1L);
        if (n != 1 || m != 1 || c != d)
            die("in turns");
    }
    /* Over another connection's number, which ends that one. */
    int second = conn();
    R(syscall(SYS_dup2, 60, second) == second);
    both_ways(second, "the first under the second's number");
    meet();
    R(syscall(SYS_close_range, 40, 41, 4)); /* CLOEXEC: they stay */
    say("%d %d", fcntl(40, F_GETFD), fcntl(41, F_GETFD));
    both_ways(40, "stays");
    R(syscall(SYS_close_range, 41, 40, 0));
    R(syscall(SYS_close_range, 40, 60, 0x100));
    R(syscall(SYS_close_range, 40, 60, 0));
    for (int i = 0; i < 6; i++)
        R(syscall(SYS_recvfrom, all[i], buf, 1L, (long)MSG_DONTWAIT, NULL, NULL));
    R(syscall(SYS_close, any));
    R(close(second));
    R(syscall(SYS_close, second));
    both_ways(fd, "the last one");
    over(fd);
}
static void dups_b(void) {
    int fd = conn();
    for (int i = 0; i < 6; i++)
        put(fd, buf, get(fd, buf, 600)), put(fd, buf, get(fd, buf, 600));
    for (int i = 0; i < 60; i++)
        put(fd, buf, get(fd, buf, 1));
    int second = conn();
    R(recv(second, buf, 1, 0));
    for (int i = 0; i < 2; i++)
        put(fd, buf, get(fd, buf, 600));
    meet();
    R(close(second));
    echo_until_end(fd);
    meet();
}

/* A pair on the numbers that connections had; one that goes through it. */
static void pairs_a(void) {
    int fd = conn(), second = conn(), low = second, pair[2], none[2], back;
    R(syscall(SYS_close, second));
    R(syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, pair));
    say("the number again: %d", pair[0] == low || pair[1] == low);
    R(syscall(SYS_sendto, pair[0], "pair", 4L, 0L, NULL, 0L));
    R(recv(pair[1], buf, 10, 0));
    R(send(pair[1], "riap!", 5, 0));
    R(syscall(SYS_read, pair[0], buf, 10L));
    R(syscall(SYS_socketpair, AF_INET, SOCK_STREAM, 0, none));
    char c = 'c', control[CMSG_SPACE(sizeof(int))] = "";
    struct iovec v = {&c, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    *h = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    both_ways(fd, "before");
    R(syscall(SYS_sendmsg, pair[0], &m, 0L));
    memset(control, 0, sizeof control);
    R(syscall(SYS_recvmsg, pair[1], &m, (long)MSG_CMSG_CLOEXEC));
    memcpy(&back, CMSG_DATA(h), sizeof back);
    R(syscall(SYS_fcntl, back, F_GETFD));
    both_ways(back, "what came");
    both_ways(fd, "what went");
    R(syscall(SYS_close, fd));
    both_ways(back, "alone");
    over(back);
}
static void pairs_b(void) {
    int fd = conn(), second = conn();
    R(recv(second, buf, 1, 0));
    R(close(second));
    echo_until_end(fd);
    meet();
}

/* ---- programs ---- */

static void executed(void) {
    if (!getenv("EXEC_ROLE"))
        return;
    both_ways(AT, "the program");
    exit(0);
}
static long executes(int which, char **env) {
    const struct again *a = again("echo", env);
    char *slash = strrchr(strcpy(buf, a->self), '/');
    int self = MUST(open(a->self, O_PATH | O_CLOEXEC));
    *slash = 0;
    int dir = MUST(open(buf, O_PATH | O_DIRECTORY | O_CLOEXEC));
    switch (which) {
    case 0: return syscall(SYS_execveat, self, "", a->args, a->env, (long)AT_EMPTY_PATH);
    case 1: return syscall(SYS_execveat, dir, slash + 1, a->args, a->env, 0L);
    case 2: return syscall(SYS_execveat, AT_FDCWD, a->self, a->args, a->env, 0L);
    default: return syscall(SYS_execve, a->self, a->args, a->env);
    }
}
static void executes_b(void) { echo_until_end(conn()); }
static void executes_a(void) {
    int fd = placed(conn(), AT);
    const struct again *a = again("echo", environ);
    R(syscall(SYS_execveat, AT_FDCWD, "/nonexistent/program", a->args, a->env, 0L));
    R(syscall(SYS_execveat, AT_FDCWD, NULL, a->args, a->env, 0L));
    R(syscall(SYS_execveat, 999, "x", a->args, a->env, 0L));
    R(syscall(SYS_execveat, AT_FDCWD, a->self, a->args, a->env, 0x12345678L));
    R(syscall(SYS_execve, "/nonexistent/program", a->args, a->env));
    both_ways(fd, "after what failed");
    for (int i = 0; i < 8; i++) {
        pid_t child = MUST((pid_t)syscall(SYS_fork));
        if (child == 0) {
            executes(i % 4, i < 4 ? environ : without());
            _exit(1);
        }
        wait_for(child);
        both_ways(fd, "this one");
    }
    executes(0, environ);
    die("execveat");
}

const struct test tests[] = {{"lives", lives_a, lives_b, 0},
                             {"asks", asks_a, echo_b, 0},
                             {"dups", dups_a, dups_b, 0},
                             {"pairs", pairs_a, pairs_b, 0},
                             {"executes", executes_a, executes_b, 0},
                             {"executed", executed, executed, ROLE},
                             {0}};
