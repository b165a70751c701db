/* Owns: every call on a TCP socket that is no connection: new, bound, listening, refused, disconnected after its connection
 * was in memory; and every way of sending on one whose sending has ended. */
#include "case.h"

static char buf[64 * KIB];
static volatile sig_atomic_t pipe_signals;
static void on_pipe(int s) { pipe_signals++; }

static struct sockaddr_in at_port(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}
static int fresh(void) { return MUST(socket(AF_INET, SOCK_STREAM, 0)); }

static int the_file, p_in, p_out; /* what sendfile and splice take from and give to */
static void set_up(void) {
    int p[2], q[2];
    the_file = MUST(memfd_create("f", MFD_CLOEXEC));
    MUST(write(the_file, "0123456789", 10));
    MUST(pipe(p));
    MUST(pipe(q));
    MUST(write(p[1], "0123456789", 10));
    p_in = p[0];
    p_out = q[1];
    on_signal(SIGPIPE, on_pipe, 0);
}
static void signalled(void) {
    if (pipe_signals)
        say("  SIGPIPE %d", (int)pipe_signals);
    pipe_signals = 0;
}
#define SENDS(call)                                                                                \
    do {                                                                                           \
        R(call);                                                                                   \
        signalled();                                                                               \
    } while (0)

static void all_sends(int fd) {
    struct iovec v = {buf, 5}, none = {buf, 0};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1}, e = {0};
    struct mmsghdr mm[2] = {{.msg_hdr = m}, {.msg_hdr = m}};
    struct sockaddr_in to = at_port(PORT + 3);
    off_t off = 0;
    SENDS(send(fd, buf, 5, 0));
    SENDS(send(fd, buf, 5, MSG_NOSIGNAL));
    SENDS(send(fd, buf, 5, MSG_DONTWAIT));
    SENDS(send(fd, buf, 5, MSG_MORE));
    SENDS(send(fd, buf, 0, 0));
    SENDS(write(fd, buf, 5));
    SENDS(write(fd, buf, 0));
    SENDS(writev(fd, &v, 1));
    SENDS(writev(fd, &none, 1));
    SENDS(writev(fd, &v, 0));
    SENDS(pwritev2(fd, &v, 1, -1, 0));
    SENDS(sendto(fd, buf, 5, 0, (void *)&to, sizeof to));
    SENDS(sendto(fd, buf, 5, MSG_NOSIGNAL, NULL, 0));
    SENDS(sendmsg(fd, &m, 0));
    SENDS(sendmsg(fd, &m, MSG_NOSIGNAL));
    SENDS(sendmsg(fd, &e, 0));
    SENDS(sendmmsg(fd, mm, 2, 0));
    SENDS(sendmmsg(fd, mm, 2, MSG_NOSIGNAL));
    SENDS(sendfile(fd, the_file, &off, 5));
    SENDS(sendfile(fd, the_file, &off, 0));
    SENDS(splice(p_in, NULL, fd, NULL, 1, 0));
    SENDS(splice(p_in, NULL, fd, NULL, 1, SPLICE_F_NONBLOCK));
    SENDS(send(fd, buf, 1, MSG_OOB));
}
static void all_receives(int fd) {
    struct iovec v = {buf, 5};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct mmsghdr mm = {.msg_hdr = m};
    R(recv(fd, buf, 5, 0));
    R(recv(fd, buf, 5, MSG_DONTWAIT));
    R(recv(fd, buf, 5, MSG_PEEK));
    R(recv(fd, buf, 5, MSG_WAITALL));
    R(recv(fd, buf, 5, MSG_TRUNC));
    R(recv(fd, buf, 1, MSG_OOB));
    R(recv(fd, buf, 5, MSG_ERRQUEUE));
    R(recv(fd, buf, 0, 0));
    R(read(fd, buf, 5));
    R(read(fd, buf, 0));
    R(readv(fd, &v, 1));
    R(recvfrom(fd, buf, 5, 0, NULL, NULL));
    R(recvmsg(fd, &m, 0));
    R(recvmmsg(fd, &mm, 1, 0, NULL));
    R(preadv2(fd, &v, 1, -1, 0));
    R(splice(fd, NULL, p_out, NULL, 5, 0));
    R(sendfile(p_out, fd, NULL, 5));
}
static void all_questions(int fd) {
    struct sockaddr_in at;
    socklen_t l = sizeof at;
    int n = -7, set = MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI, {.fd = fd}};
    struct tcp_info info = {0};
    say("poll %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0)));
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    R(epoll_wait(set, &e, 1, 0));
    say("epoll %s", epoll_text(e.events));
    fd_set r, w, x;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    w = x = r;
    R(select(fd + 1, &r, &w, &x, &(struct timeval){0, 0}));
    say("select r%d w%d x%d", FD_ISSET(fd, &r) != 0, FD_ISSET(fd, &w) != 0, FD_ISSET(fd, &x) != 0);
    R(ioctl(fd, FIONREAD, &n));
    R(ioctl(fd, SIOCOUTQ, &n));
    R(ioctl(fd, SIOCOUTQNSD, &n));
    R(ioctl(fd, SIOCATMARK, &n));
    say("%d", n);
    R(getsockname(fd, (void *)&at, &l));
    l = sizeof at;
    R(getpeername(fd, (void *)&at, &l));
    l = sizeof n;
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &n, &l));
    say("SO_ERROR %d", n);
    l = sizeof n;
    R(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &n, &l));
    say("SO_ACCEPTCONN %d", n);
    l = sizeof info;
    R(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &l));
    say("state %d", info.tcpi_state);
    close(set);
}
static void all_ends(int fd) {
    for (int how = -1; how < 4; how++)
        R(shutdown(fd, how));
}
/* With what it refuses set beforehand, so that nothing waits. */
static void everything(const char *what, int fd) {
    say("-- %s", what);
    all_questions(fd);
    R(accept4(fd, NULL, NULL, SOCK_NONBLOCK));
    all_receives(fd);
    all_sends(fd);
    all_questions(fd);
}

/* ---- those that are no connection ---- */

static void never_a(void) {
    set_up();
    struct sockaddr_in at = at_port(PORT + 1), nobody = at_port(PORT + 2);
    int fd = fresh();
    everything("new", fd);
    all_ends(fd);
    MUST(bind(fd, (void *)&at, sizeof at));
    everything("bound", fd);
    R(bind(fd, (void *)&at, sizeof at));
    int twin = fresh();
    R(bind(twin, (void *)&at, sizeof at));
    R(listen(twin, 1)); /* anywhere */
    nonblocking(fd, 1);
    R(listen(fd, 5));
    R(listen(fd, 7));
    R(listen(fd, -1));
    everything("listening", fd);
    R(connect(fd, (void *)&nobody, sizeof nobody));
    R(connect(fd, &(struct sockaddr){.sa_family = AF_UNSPEC}, sizeof(struct sockaddr)));
    everything("listening no more", fd);
    nonblocking(fd, 0);
    R(connect(fd, (void *)&nobody, sizeof nobody));
    everything("refused", fd);
    R(close(fd));
    /* A listener that is shut down, and what it says then. */
    fd = fresh();
    MUST(listen(fd, 5));
    nonblocking(fd, 1);
    all_ends(fd);
    everything("shut down", fd);
    R(close(fd));
    fd = fresh();
    R(connect(fd, (void *)&nobody, 1));
    R(connect(fd, (void *)&nobody, 4));
    R(connect(fd, NULL, 0));
    nobody.sin_family = AF_UNIX;
    R(connect(fd, (void *)&nobody, sizeof nobody));
    everything("connected to nothing", fd);
    meet();
}
static void never_b(void) { meet(); }

/* A listener that becomes a connection under its number, and the other way round. */
static void changed_a(void) {
    int l = listen_on(PORT), mine = fresh();
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    MUST(listen(mine, 5));
    R(connect(mine, &none, sizeof none));
    struct sockaddr_in to = at_port(PORT + 1);
    meet();
    if (R(connect(mine, (void *)&to, sizeof to)) < 0) { /* a kernel that connects none that has listened (6.18.44 here) */
        close(mine);
        mine = fresh();
        R(connect(mine, (void *)&to, sizeof to));
    }
    echo(mine, "a listener before", 1);
    R(shutdown(mine, SHUT_WR));
    R(recv(mine, buf, 1, 0));
    R(connect(mine, &none, sizeof none));
    if (R(listen(mine, 5)) < 0) { /* nor lets one listen that was connected */
        close(mine);
        mine = fresh();
        R(listen(mine, 5));
    }
    socklen_t n = sizeof to;
    MUST(getsockname(mine, (void *)&to, &n));
    tell_pid(ntohs(to.sin_port));
    int fd = accept_from(mine);
    warm(fd);
    echo_until_end(fd);
    close(l);
}
static void changed_b(void) {
    int l = listen_on(PORT + 1);
    meet();
    echo_until_end(accept_from(l));
    int fd = dial(hear_pid());
    warm(fd);
    echo(fd, "a connection before", 2);
    close(fd);
}

/* ---- disconnected ---- */

static void disconnected_a(void) {
    int fd = conn(), set = MUST(epoll_create1(0));
    set_up();
    struct epoll_event e = {EPOLLIN | EPOLLOUT | EPOLLRDHUP, {.fd = fd}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    R(epoll_wait(set, &e, 1, 1000));
    meet_settled(); /* bytes are there */
    R(connect(fd, &(struct sockaddr){.sa_family = AF_UNSPEC}, sizeof(struct sockaddr)));
    R(epoll_wait(set, &e, 1, 1000));
    say("%s", epoll_text(e.events));
    everything("disconnected", fd);
    all_ends(fd);
    meet();
}
static void disconnected_b(void) {
    int fd = conn();
    put(fd, buf, 1000);
    meet_settled();
    meet_settled();
    say("poll %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 1000)));
    R(recv(fd, buf, 1, 0));
    R(recv(fd, buf, 1, 0));
}

/* ---- connections whose sending, or all, has ended ---- */

static void ended(int fd) {
    all_sends(fd);
    all_questions(fd);
}
static void sending_over_a(void) {
    int fd = conn();
    set_up();
    R(shutdown(fd, SHUT_WR));
    ended(fd);
    meet();
    say("%zu", get(fd, buf, 4));
    R(close(fd));
}
static void sending_over_b(void) {
    int fd = conn();
    meet();
    put(fd, "back", 4);
    R(recv(fd, buf, 1, 0));
    R(recv(fd, buf, 1, 0));
}
static void both_over_a(void) {
    int fd = conn();
    set_up();
    meet_settled();
    R(shutdown(fd, SHUT_RDWR));
    meet_settled();
    ended(fd);
    all_receives(fd);
    all_ends(fd);
}
static void both_over_b(void) {
    int fd = conn();
    put(fd, "unread", 6);
    meet_settled();
    R(recv(fd, buf, 1, 0));
    R(shutdown(fd, SHUT_WR));
    meet_settled();
}
static void reset_a(void) {
    int fd = conn();
    set_up();
    meet_settled();
    R(send(fd, buf, 1, 0)); /* takes the error */
    signalled();
    ended(fd);
    all_receives(fd);
    all_ends(fd);
}
static void reset_b(void) {
    int fd = conn();
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)));
    R(close(fd));
    meet_settled();
}
static void gone_a(void) { /* the peer has closed: the first send goes out, and the answer is a reset */
    int fd = conn();
    set_up();
    meet_settled();
    R(send(fd, buf, 5, 0));
    settle();
    ended(fd);
    all_receives(fd);
}
static void gone_b(void) {
    int fd = conn();
    R(close(fd));
    meet_settled();
}

const struct test tests[] = {{"never", never_a, never_b, COLD},
                             {"changed", changed_a, changed_b, 0},
                             {"disconnected", disconnected_a, disconnected_b, 0},
                             {"sending_over", sending_over_a, sending_over_b, 0},
                             {"both_over", both_over_a, both_over_b, 0},
                             {"reset", reset_a, reset_b, 0},
                             {"gone", gone_a, gone_b, 0},
                             {0}};
