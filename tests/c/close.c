/* Owns: the end of a connection: half-close, shutdown each way, close with and without unread
 * data, RST, EOF, EPIPE and SIGPIPE, SO_LINGER. */
#include "case.h"

static char buf[64 * KIB];
static volatile sig_atomic_t pipes;
static void on_pipe(int s) { pipes++; }

/* Everything that can be asked of an end whose peer is gone. */
static void autopsy(int fd) {
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    say("FIONREAD %d", now_in(fd));
    R(recv(fd, buf, 10, MSG_PEEK | MSG_DONTWAIT));
    R(recv(fd, buf, 10, MSG_DONTWAIT));
    R(recv(fd, buf, 10, MSG_DONTWAIT));
    say("SO_ERROR %s", so_error(fd) ? "set" : "0");
    say("signals %d", (int)pipes);
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    settle();
    R(send(fd, "x", 1, 0));
    R(write(fd, "x", 1));
    say("signals %d", (int)pipes);
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    R(recv(fd, buf, 10, 0));
    say("SO_ERROR %d", so_error(fd));
    struct sockaddr_in at;
    socklen_t l = sizeof at;
    R(getpeername(fd, (void *)&at, &l));
    R(getsockname(fd, (void *)&at, &l));
    R(shutdown(fd, SHUT_WR));
    R(close(fd));
}

/* ---- half-close ---- */

static void half_a(void) { /* reads to the end, then sends 100 MB back */
    int fd = conn();
    say("%lu", drain(fd, 3));
    say("%s", poll_text(events(fd, POLLIN | POLLRDHUP | POLLOUT, 0)));
    put_stream(fd, 100 * MIB, 4);
    R(recv(fd, buf, 1, 0));
    R(close(fd));
}
static void half_b(void) {
    int fd = conn();
    put_stream(fd, 3 * MIB, 3);
    R(shutdown(fd, SHUT_WR));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    say("%lu", drain(fd, 4));
    R(recv(fd, buf, 1, 0));
}

/* The same, with a reader that waits and reads behind libc's back. */
static void half_raw_b(void) {
    int fd = conn();
    R(shutdown(fd, SHUT_WR));
    int ep = epoll_create1(0);
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    R(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    nonblocking(fd, 1);
    uint64_t o = 0;
    int good = 1;
    for (;;) {
        long n = raw(SYS_epoll_pwait, ep, (long)&e, 1, 20000, 0, 0);
        if (n != 1) {
            say("raw epoll: %ld", n);
            break;
        }
        ssize_t m = recv(fd, buf, sizeof buf, 0);
        if (m == 0)
            break;
        if (m < 0 && errno == EAGAIN)
            continue;
        if (m < 0)
            die("recv");
        good = good && matches(buf, m, o, 4);
        o += m;
    }
    say("%llu whole %d", (unsigned long long)o, good);
}
static void half_raw_a(void) {
    int fd = conn();
    R(recv(fd, buf, 1, 0));
    put_stream(fd, 100 * MIB, 4);
    R(close(fd));
}

/* ---- shutdown ---- */

static void shut_rd_a(void) {
    int fd = conn();
    R(shutdown(fd, SHUT_RD));
    R(recv(fd, buf, 10, 0));
    say("%s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    meet(); /* the peer sends nevertheless */
    meet_settled();
    R(recv(fd, buf, 10, 0));
    R(recv(fd, buf, 10, 0));
    R(send(fd, "still", 5, 0));
    meet();
    R(shutdown(fd, SHUT_RDWR));
    R(shutdown(fd, SHUT_WR));
    say("%s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    meet_settled();
    R(shutdown(fd, 7));
}
static void shut_rd_b(void) {
    int fd = conn();
    meet();
    R(send(fd, "hello", 5, 0));
    meet_settled();
    R(recv(fd, buf, 10, 0));
    meet();
    R(recv(fd, buf, 10, 0));
    meet();
}

static void shut_both_a(void) {
    int fd = conn();
    on_signal(SIGPIPE, on_pipe, 0);
    meet_settled();
    R(shutdown(fd, SHUT_RDWR));
    R(recv(fd, buf, 3, 0));
    R(recv(fd, buf, 10, 0));
    R(recv(fd, buf, 10, 0));
    R(send(fd, "x", 1, 0));
    say("signals %d", (int)pipes);
    meet_settled();
    say("%s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    R(close(fd));
}
static void shut_both_b(void) {
    int fd = conn();
    put(fd, "abcdef", 6);
    meet_settled();
    R(recv(fd, buf, 1, 0));
    R(close(fd));
    meet();
}

/* A thread waits in recv while another shuts down. */
static void *reader(void *fd) { return (void *)recv(*(int *)fd, buf, 10, 0); }
static void shut_waiting_a(void) {
    int fd = conn();
    pthread_t t;
    void *result;
    pthread_create(&t, NULL, reader, &fd);
    settle();
    R(shutdown(fd, SHUT_RD));
    pthread_join(t, &result);
    say("recv returned %ld", (long)result);
    meet();
}
static void shut_waiting_b(void) {
    int fd = conn();
    meet();
    R(recv(fd, buf, 1, 0));
}

/* ---- close ---- */

static void eof_a(void) {
    int fd = conn();
    on_signal(SIGPIPE, on_pipe, 0);
    meet_settled();
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    say("FIONREAD %d", now_in(fd));
    got(fd, buf, 5000, 0, 5);
    say("FIONREAD %d", now_in(fd));
    autopsy(fd);
}
static void eof_b(void) {
    int fd = conn();
    fill(buf, 5000, 0, 5);
    put(fd, buf, 5000);
    R(close(fd));
    meet();
}

static void unread_a(void) {
    int fd = conn();
    on_signal(SIGPIPE, on_pipe, 0);
    R(send(fd, "not read", 8, 0));
    meet_settled();
    meet_settled();
    autopsy(fd);
}
static void unread_b(void) {
    int fd = conn();
    meet_settled();
    R(close(fd));
    meet();
}

/* Whom SIGPIPE comes from: the program itself. */
static void on_pipe_from(int sig, siginfo_t *info, void *context) {
    pipes++;
    say("signal %d, errno %d, code %d, %s process, %s user", info->si_signo, info->si_errno, info->si_code,
        info->si_pid == getpid() ? "own" : "another", info->si_uid == getuid() ? "own" : "another");
}
static void pipe_info_a(void) {
    int fd = conn(), file = MUST(memfd_create("sent", 0)), ends[2];
    struct iovec v = {buf, 9};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct sigaction act = {.sa_sigaction = on_pipe_from, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGPIPE, &act, NULL));
    MUST(ftruncate(file, 100));
    MUST(pipe(ends));
    MUST(write(ends[1], "in a pipe", 9));
    MUST(send(fd, "not read", 8, 0));
    meet_settled();
    meet_settled();
    R(send(fd, "x", 1, 0)); /* ECONNRESET */
    R(send(fd, "x", 1, 0));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(write(fd, "x", 1));
    R(writev(fd, &v, 1));
    R(sendmsg(fd, &m, 0));
    R(sendfile(fd, file, NULL, 9));
    R(splice(ends[0], NULL, fd, NULL, 9, 0));
    MUST(close(ends[0]));
    R(splice(fd, NULL, ends[1], NULL, 9, SPLICE_F_NONBLOCK));
    say("signals %d", (int)pipes);
}
static void shut_info_a(void) {
    int fd = conn();
    struct sigaction act = {.sa_sigaction = on_pipe_from, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGPIPE, &act, NULL));
    R(shutdown(fd, SHUT_WR));
    R(send(fd, "x", 1, 0));
    R(write(fd, "x", 1));
    meet_settled();
    meet_settled();
    say("signals %d", (int)pipes);
}

/* What the closing side had sent is lost with the RST, or not, as the kernel has it. */
static void unread_after_sending_a(void) {
    int fd = conn();
    R(send(fd, "not read", 8, 0));
    meet_settled();
    meet_settled();
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    R(recv(fd, buf, 100, 0));
    R(recv(fd, buf, 100, 0));
    R(recv(fd, buf, 100, 0));
}
static void unread_after_sending_b(void) {
    int fd = conn();
    R(send(fd, "sent before the close", 21, 0));
    meet_settled();
    R(close(fd));
    meet();
}

static void linger(int fd, int on, int s) {
    struct linger l = {on, s};
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
}
static void linger0_a(void) {
    int fd = conn();
    on_signal(SIGPIPE, on_pipe, 0);
    meet();
    meet_settled();
    autopsy(fd);
}
static void linger0_b(void) {
    int fd = conn();
    meet();
    linger(fd, 1, 0);
    R(close(fd));
    meet();
}
static void linger0_data_a(void) {
    int fd = conn();
    meet();
    meet_settled();
    R(recv(fd, buf, 100, 0));
    R(recv(fd, buf, 100, 0));
}
static void linger0_data_b(void) {
    int fd = conn();
    meet();
    linger(fd, 1, 0);
    R(send(fd, "lost", 4, 0));
    R(close(fd));
    meet();
}
/* Set before anything is in memory, on the connection itself or on the listener: an exit resets, with all of it read. */
static void linger0_early_a(void) {
    int fd = conn_cold();
    warm(fd);
    meet_settled();
    hear();
    settle();
    autopsy(fd);
}
static void linger0_early_b(void) {
    int fd = conn_cold();
    linger(fd, 1, 0);
    warm(fd);
    say("leaving");
    meet();
    exit(0);
}
static void linger0_inherited_a(void) {
    int l = listen_on(PORT);
    linger(l, 1, 0);
    meet();
    warm(accept_from(l));
    say("leaving");
    meet();
    exit(0);
}

/* A positive linger time: close returns when all is acknowledged, and nothing is lost. */
static void linger5_a(void) {
    int fd = conn();
    say("%lu", drain(fd, 6));
    meet();
}
static void linger5_b(void) {
    int fd = conn();
    linger(fd, 1, 5);
    put_stream(fd, 5 * MIB, 6);
    R(close(fd));
    meet();
}

/* A closes while its peer is in the middle of a large blocking send. */
static void close_on_sender_a(void) {
    int fd = conn();
    say("%zu", get(fd, buf, 20000));
    R(close(fd));
    meet();
}
static void close_on_sender_b(void) {
    int fd = conn();
    on_signal(SIGPIPE, on_pipe, 0);
    char *big = calloc(1, 64 * MIB);
    ssize_t n = send(fd, big, 64 * MIB, 0);
    say("partial %d", n > 0 && n < 64 * MIB);
    n = send(fd, big, 64 * MIB, 0);
    int first = errno;
    say("%zd %s", n, err_name(first));
    R(send(fd, big, 1, 0));
    say("signals %d", (int)pipes);
    meet();
}

/* exit without close and without reading: as close. */
static void exit_a(void) {
    int fd = conn();
    meet_settled();
    say("%zu", get(fd, buf, 1000));
    R(recv(fd, buf, 10, 0));
    hear();
}
static void exit_b(void) {
    int fd = conn();
    put(fd, buf, 1000);
    say("leaving");
    meet();
    exit(0);
}

/* Filled, then closed at once: all of it arrives, then the end. */
static void close_full_a(void) {
    int fd = conn();
    meet_settled();
    say("more than 10,000: %d", drain(fd, 7) > 10000);
}
static void close_full_b(void) {
    int fd = conn();
    nonblocking(fd, 1);
    uint64_t all = 0;
    for (;;) {
        fill(buf, 9999, all, 7);
        ssize_t n = send(fd, buf, 9999, 0);
        if (n < 0)
            break;
        all += n;
    }
    say("more than 10,000: %d", all > 10000);
    R(close(fd));
    meet();
}
static void sigpipe_a(void) { /* default action: the process dies */
    int fd = conn();
    meet_settled();
    say("%zd", send(fd, "x", 1, 0));
    settle();
    send(fd, "x", 1, 0);
    say("not reached");
}
static void sigpipe_b(void) {
    int fd = conn();
    R(close(fd));
    meet();
}

const struct test tests[] = {
    {"half_close_100mb_back", half_a, half_b, 0},
    {"half_close_raw_reader", half_raw_a, half_raw_b, SLOW},
    {"shutdown_read", shut_rd_a, shut_rd_b, 0},
    {"shutdown_both", shut_both_a, shut_both_b, 0},
    {"shutdown_while_reading", shut_waiting_a, shut_waiting_b, 0},
    {"eof", eof_a, eof_b, 0},
    {"unread", unread_a, unread_b, 0},
    {"broken_pipe", pipe_info_a, unread_b, 0},
    {"broken_by_itself", shut_info_a, unread_b, 0},
    {"unread_after_sending", unread_after_sending_a, unread_after_sending_b, 0},
    {"linger_zero", linger0_a, linger0_b, 0},
    {"linger_zero_data", linger0_data_a, linger0_data_b, 0},
    {"linger_zero_early", linger0_early_a, linger0_early_b, 0},
    {"linger_zero_inherited", linger0_inherited_a, linger0_early_a, 0},
    {"linger_positive", linger5_a, linger5_b, WHOLE},
    {"close_on_sender", close_on_sender_a, close_on_sender_b, 0},
    {"exit_without_close", exit_a, exit_b, 0},
    {"close_full", close_full_a, close_full_b, 0},
    {"sigpipe_kills", sigpipe_a, sigpipe_b, 0},
    {0}};
