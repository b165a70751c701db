/* Owns: what the kernel tells a program by itself: urgent bytes with their signal and events, SIGIO with and without a
 * chosen signal, time stamps; before and after the connection is in memory. */
#include "case.h"
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>

static char buf[64 * KIB];
static volatile sig_atomic_t urgents, ios, last_band, last_fd;
static void on_urgent(int s) { urgents++; }
static void on_io(int s, siginfo_t *i, void *context) {
    last_band = (int)i->si_band;
    last_fd = i->si_fd;
    ios++;
}
static int until(volatile sig_atomic_t *count, int n) {
    for (int i = 0; i < 60 && *count < n; i++)
        settle();
    return *count >= n;
}

/* ---- urgent bytes ---- */

static void urgent(int fd) {
    int level = MUST(epoll_create1(0)), edge = MUST(epoll_create1(0)), mark = -1;
    MUST(epoll_ctl(level, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLPRI}));
    MUST(epoll_ctl(edge, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLPRI | EPOLLET}));
    on_signal(SIGURG, on_urgent, SA_RESTART);
    urgents = 0;
    R(fcntl(fd, F_SETOWN, getpid()));
    struct epoll_event e;
    R(epoll_wait(level, &e, 1, 20));
    meet();
    meet_settled();
    say("signalled %d", until(&urgents, 1));
    say("%s", poll_text(events(fd, POLLIN | POLLPRI, 1000)));
    R(epoll_wait(level, &e, 1, 1000));
    say("%s", epoll_text(e.events));
    R(epoll_wait(edge, &e, 1, 1000));
    say("%s", epoll_text(e.events));
    fd_set x;
    FD_ZERO(&x);
    FD_SET(fd, &x);
    R(select(fd + 1, NULL, NULL, &x, &(struct timeval){1, 0}));
    R(recv(fd, buf, 10, 0)); /* up to the mark */
    R(ioctl(fd, SIOCATMARK, &mark));
    say("at mark %d", mark);
    R(recv(fd, buf, 1, MSG_OOB));
    say("%.1s", buf);
    R(epoll_wait(edge, &e, 1, 20));
    R(recv(fd, buf, 10, MSG_WAITALL | MSG_DONTWAIT));
    say("%.5s", buf);
    say("%s", poll_text(events(fd, POLLIN | POLLPRI, 0)));
    R(recv(fd, buf, 1, MSG_OOB));
    echo(fd, "afterwards", 1);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void urgent_sends(int fd) {
    meet();
    R(send(fd, "before!", 7, MSG_OOB));
    R(send(fd, "after", 5, 0));
    meet_settled();
    echo_until_end(fd);
}
static void urgent_a(void) { urgent(conn()); }
static void urgent_b(void) { urgent_sends(conn()); }
static void urgent_cold_a(void) { urgent(conn_cold()); }
static void urgent_cold_b(void) { urgent_sends(conn_cold()); }

/* Nothing follows the urgent byte: the next receive goes past it, though it finds nothing. A look does not. */
enum { LAST_ROUNDS = 3 };
static void sees(int fd) {
    int mark = -1;
    R(ioctl(fd, SIOCATMARK, &mark));
    say("%s, at mark %d", poll_text(events(fd, POLLIN | POLLPRI, 0)), mark);
}
static void takes(int fd, int flags) {
    long n = recv(fd, buf, 50, flags);
    say("recv(%#x) = %ld %s '%.*s'", flags, n, n < 0 ? err_name(errno) : "", n > 0 ? (int)n : 0, buf);
}
static void urgent_last(int fd) {
    for (int i = 0; i < LAST_ROUNDS; i++) {
        meet_settled();
        takes(fd, MSG_PEEK);
        takes(fd, 0);
        sees(fd);
        takes(fd, MSG_PEEK | MSG_DONTWAIT);
        sees(fd);
        if (i == 1)
            takes(fd, MSG_OOB);
        sees(fd);
        nonblocking(fd, i == 2);
        takes(fd, i == 2 ? 0 : MSG_DONTWAIT);
        nonblocking(fd, 0);
        sees(fd);
        takes(fd, MSG_OOB);
        meet();
        meet_settled();
        takes(fd, 0);
        sees(fd);
        meet();
    }
    echo(fd, "afterwards", 1);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void urgent_last_sends(int fd) {
    for (int i = 0; i < LAST_ROUNDS; i++) {
        R(send(fd, "abc", 3, 0));
        R(send(fd, "!", 1, MSG_OOB));
        meet_settled();
        meet();
        R(send(fd, "def", 3, 0));
        meet_settled();
        meet();
    }
    echo_until_end(fd);
}
static void urgent_last_a(void) { urgent_last(conn()); }
static void urgent_last_b(void) { urgent_last_sends(conn()); }
static void urgent_last_cold_a(void) { urgent_last(conn_cold()); }
static void urgent_last_cold_b(void) { urgent_last_sends(conn_cold()); }

/* ---- SIGIO ---- */

/* Signals as such are not counted: how many there are depends on segments and acknowledgements, natively too. */
static void sigio(int fd, int by_ioctl, int sig) {
    struct sigaction s = {.sa_sigaction = on_io, .sa_flags = SA_SIGINFO | SA_RESTART};
    MUST(sigaction(sig ? sig : SIGIO, &s, NULL));
    struct f_owner_ex me = {F_OWNER_TID, (pid_t)syscall(SYS_gettid)};
    R(fcntl(fd, F_SETOWN_EX, &me));
    if (sig)
        R(fcntl(fd, F_SETSIG, sig));
    int on = 1;
    if (by_ioctl)
        R(ioctl(fd, FIOASYNC, &on));
    else
        R(fcntl(fd, F_SETFL, O_RDWR | O_ASYNC | O_NONBLOCK));
    settle();
    for (int i = 0; i < 4; i++) {
        ios = 0;
        meet();
        say("signalled %d", until(&ios, 1));
        if (sig)
            say("for it %d, readable %d", last_fd == fd, (last_band & POLLIN) != 0);
        while (recv(fd, buf, sizeof buf, MSG_DONTWAIT) > 0) {
        }
    }
    on = 0;
    if (by_ioctl)
        R(ioctl(fd, FIOASYNC, &on));
    else
        R(fcntl(fd, F_SETFL, O_RDWR));
    settle();
    ios = 0;
    meet();
    meet_settled();
    say("signalled %d", ios > 0);
    nonblocking(fd, 0);
    R(recv(fd, buf, 10, 0));
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void sigio_sends(int fd) {
    for (int i = 0; i < 5; i++) {
        meet();
        settle();
        put(fd, "signal", 6);
    }
    meet_settled();
    R(recv(fd, buf, 1, 0));
    close(fd);
}
static void sigio_a(void) { sigio(conn(), 0, 0); }
static void sigio_b(void) { sigio_sends(conn()); }
static void sigio_ioctl_a(void) { sigio(conn(), 1, 0); }
static void sigio_chosen_a(void) { sigio(conn(), 0, SIGRTMIN + 3); }
static void sigio_cold_a(void) { sigio(conn_cold(), 0, SIGRTMIN + 3); }
static void sigio_cold_b(void) { sigio_sends(conn_cold()); }

/* A stream read by nothing but signals, from the start on: no arrival is missed. */
static void driven_a(void) {
    int fd = conn_cold();
    struct sigaction s = {.sa_sigaction = on_io, .sa_flags = SA_SIGINFO};
    sigset_t io, before;
    sigemptyset(&io);
    sigaddset(&io, SIGIO);
    MUST(sigprocmask(SIG_BLOCK, &io, &before));
    MUST(sigaction(SIGIO, &s, NULL));
    MUST(fcntl(fd, F_SETOWN, getpid()));
    MUST(fcntl(fd, F_SETFL, O_RDWR | O_ASYNC | O_NONBLOCK));
    meet();
    int good = 1;
    uint64_t o = 0;
    for (;;) {
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n > 0) {
            good = good && matches(buf, n, o, 4);
            o += n;
            if (o % 1000 == 0)
                put(fd, "k", 1);
        } else if (n == 0) {
            break;
        } else if (sigtimedwait(&io, NULL, &(struct timespec){20, 0}) < 0) {
            die("no signal");
        }
    }
    say("%llu, whole %d", (unsigned long long)o, good);
}
static void driven_b(void) {
    int fd = conn_cold();
    meet();
    for (int i = 0; i < 500; i++) {
        fill(buf, 1000, i * 1000, 4);
        put(fd, buf, 1000);
        if (get(fd, buf, 1) != 1)
            die("answer");
    }
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}

/* ---- time stamps ---- */

/* Of sent bytes, on the error queue; each says the number of its last byte. Of received ones, with the data. */
static void stamps_a(void) {
    int fd = conn();
    sol_int(fd, SOL_SOCKET, SO_TIMESTAMPING,
            SOF_TIMESTAMPING_TX_ACK | SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_TSONLY);
    for (int i = 0; i < 3; i++) {
        R(send(fd, buf, 1000, 0));
        meet_settled();
        meet();
    }
    say("%s", poll_text(events(fd, POLLPRI, 1000)));
    for (int i = 0; i < 4; i++) {
        char control[512];
        struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
        long n = recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT);
        say("%ld %s", n, n < 0 ? err_name(errno) : "");
        for (struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
            if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) {
                struct sock_extended_err *e = (void *)CMSG_DATA(c);
                say("origin %d, byte %u", e->ee_origin, e->ee_data);
            }
    }
    R(recv(fd, buf, 10, 0));
    meet();
}
static void stamps_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        say("%zu", get(fd, buf, 1000));
        meet_settled();
        meet();
    }
    put(fd, "done", 4);
    meet();
}

const struct test tests[] = {{"urgent", urgent_a, urgent_b, 0},
                             {"urgent_cold", urgent_cold_a, urgent_cold_b, COLD},
                             {"urgent_last", urgent_last_a, urgent_last_b, 0},
                             {"urgent_last_cold", urgent_last_cold_a, urgent_last_cold_b, COLD},
                             {"sigio", sigio_a, sigio_b, 0},
                             {"sigio_by_ioctl", sigio_ioctl_a, sigio_b, 0},
                             {"sigio_chosen", sigio_chosen_a, sigio_b, 0},
                             {"sigio_cold", sigio_cold_a, sigio_cold_b, COLD},
                             {"sigio_driven", driven_a, driven_b, COLD},
                             {"stamps", stamps_a, stamps_b, 0},
                             {0}};
