/* Owns: socket options and ioctls: what the program sets is what it gets, while the library
 * sets its own below; and what they mean for reading, writing and waiting. */
#include "case.h"

static char buf[MIB];

static int get_int(int fd, int level, int name) {
    int v = -77;
    socklen_t l = sizeof v;
    return getsockopt(fd, level, name, &v, &l) < 0 ? -errno : v;
}
#define O(level, name) say("%s %d", #name, get_int(fd, level, name))

static void values_a(void) {
    int fd = conn();
    for (int round = 0; round < 2; round++) {
        O(IPPROTO_TCP, TCP_NODELAY);
        O(IPPROTO_TCP, TCP_CORK);
        O(IPPROTO_TCP, TCP_USER_TIMEOUT);
        O(IPPROTO_TCP, TCP_KEEPIDLE);
        O(IPPROTO_TCP, TCP_DEFER_ACCEPT);
        O(SOL_SOCKET, SO_RCVLOWAT);
        O(SOL_SOCKET, SO_SNDLOWAT);
        O(SOL_SOCKET, SO_KEEPALIVE);
        O(SOL_SOCKET, SO_REUSEADDR);
        O(SOL_SOCKET, SO_OOBINLINE);
        O(SOL_SOCKET, SO_PRIORITY);
        O(SOL_SOCKET, SO_MARK);
        O(SOL_SOCKET, SO_BUSY_POLL);
        O(SOL_SOCKET, SO_TYPE);
        O(SOL_SOCKET, SO_DOMAIN);
        O(SOL_SOCKET, SO_PROTOCOL);
        O(SOL_SOCKET, SO_ACCEPTCONN);
        O(SOL_SOCKET, SO_ERROR);
        O(SOL_SOCKET, SO_PEEK_OFF);
        O(SOL_SOCKET, SO_ZEROCOPY);
        O(SOL_SOCKET, SO_MAX_PACING_RATE);
        O(IPPROTO_IP, IP_TOS);
        O(IPPROTO_IP, IP_TTL);
        int on = !round;
        R(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
        R(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
        int low = round ? 1 : 5, tos = round ? 0 : 16, sec = round ? 7200 : 33;
        R(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
        R(setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof tos));
        R(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &sec, sizeof sec));
        meet();
        put(fd, "hello", 5);
        get(fd, buf, 5);
    }
    R(setsockopt(fd, SOL_SOCKET, 9999, buf, 4));
    R(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, NULL, 4));
    R(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, buf, 1));
    socklen_t l = 1;
    R(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, buf, &l));
    say("length %d", (int)l);
    struct tcp_info info;
    l = sizeof info;
    R(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &l));
    say("state %d", info.tcpi_state);
    meet();
}
static void values_b(void) {
    int fd = conn();
    for (int round = 0; round < 2; round++) {
        meet();
        get(fd, buf, 5);
        put(fd, buf, 5);
    }
    meet();
}

static void counts_a(void) {
    int fd = conn(), n;
    say("FIONREAD %d", now_in(fd));
    meet();
    meet_settled();
    say("FIONREAD %d", now_in(fd));
    R(recv(fd, buf, 1000, 0));
    say("FIONREAD %d", now_in(fd));
    R(recv(fd, buf, 100000, MSG_WAITALL | MSG_DONTWAIT) > 0);
    R(ioctl(fd, SIOCINQ, &n));
    say("SIOCINQ %d", n);
    R(ioctl(fd, SIOCOUTQ, &n));
    say("SIOCOUTQ %d", n);
    R(ioctl(fd, SIOCOUTQNSD, &n));
    say("SIOCOUTQNSD %d", n);
    R(ioctl(fd, SIOCATMARK, &n));
    say("SIOCATMARK %d", n);
    /* Now more than the peer takes: what is not taken is counted. */
    nonblocking(fd, 1);
    while (send(fd, buf, 100000, 0) > 0) {
    }
    settle();
    while (send(fd, buf, 100000, 0) > 0) {
    }
    int waiting = ioctl(fd, SIOCOUTQ, &n) == 0 && n > 0;
    say("something waits: %d", waiting);
    meet();
    meet_settled();
    ioctl(fd, SIOCOUTQ, &n);
    say("SIOCOUTQ %d", n);
    R(ioctl(fd, FIONREAD, NULL));
    R(ioctl(fd, TCGETS, buf));
}
static void counts_b(void) {
    int fd = conn();
    meet();
    fill(buf, 30000, 0, 1);
    put(fd, buf, 30000);
    meet_settled();
    meet();
    while (events(fd, POLLIN, 300) & POLLIN)
        if (recv(fd, buf, sizeof buf, 0) <= 0)
            die("counts");
    meet_settled();
}

static void rcvtimeo_a(void) {
    int fd = conn();
    struct timeval t = {0};
    socklen_t l = sizeof t;
    timeouts(fd, SO_RCVTIMEO, 100);
    R(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, &l));
    say("%ld ms, length %d", t.tv_sec * 1000 + t.tv_usec / 1000, (int)l);
    struct iovec v = {buf, 9};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct mmsghdr mm = {.msg_hdr = m};
    R(recv(fd, buf, 9, 0));
    R(read(fd, buf, 9));
    R(readv(fd, &v, 1));
    R(recvmsg(fd, &m, 0));
    R(recvmmsg(fd, &mm, 1, 0, NULL));
    R(recv(fd, buf, 9, MSG_PEEK));
    R(recv(fd, buf, 9, MSG_WAITALL));
    meet(); /* in time */
    timeouts(fd, SO_RCVTIMEO, 20000);
    R(recv(fd, buf, 9, 0));
    t.tv_usec = 1000000;
    R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    t = (struct timeval){0, 0};
    R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    R(recv(fd, buf, 9, 0));
}
static void rcvtimeo_b(void) {
    int fd = conn();
    meet();
    settle();
    put(fd, "in time", 7);
    settle();
    settle();
    put(fd, "later", 5);
    R(recv(fd, buf, 9, 0));
}

/* SO_RCVLOWAT: a blocking recv waits for that much, and so do poll and epoll. (Linux wakes a recv
 * that has already copied something only when what is new reaches the mark: ten new bytes here.) */
static void lowat_a(void) {
    int fd = conn();
    sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 10);
    O(SOL_SOCKET, SO_RCVLOWAT);
    meet();
    meet_settled(); /* 4 bytes are there */
    say("%s", poll_text(events(fd, POLLIN, 50)));
    R(recv(fd, buf, 100, MSG_DONTWAIT | MSG_PEEK));
    meet();
    R(recv(fd, buf, 100, 0)); /* does not return with 4 */
    meet();
    meet_settled(); /* 12 bytes */
    say("%s", poll_text(events(fd, POLLIN, 50)));
    R(recv(fd, buf, 3, 0));
    say("%s", poll_text(events(fd, POLLIN, 50)));
    sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    say("%s", poll_text(events(fd, POLLIN, 50)));
    R(recv(fd, buf, 100, 0));
    sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 10);
    meet();
    R(recv(fd, buf, 100, 0)); /* less, because of the end */
    R(recv(fd, buf, 100, 0));
}
static void lowat_b(void) {
    int fd = conn();
    meet();
    put(fd, "four", 4);
    meet_settled();
    meet();
    settle();
    put(fd, "tententent", 10);
    meet();
    put(fd, "twelve bytes", 12);
    meet_settled();
    meet();
    put(fd, "end", 3);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}

/* Blocking mode changed between calls, by each way there is. */
static void modes_a(void) {
    int fd = conn(), on = 1, off = 0;
    R(ioctl(fd, FIONBIO, &on));
    R(fcntl(fd, F_GETFL) & O_NONBLOCK);
    R(recv(fd, buf, 1, 0));
    R(ioctl(fd, FIONBIO, &off));
    R(fcntl(fd, F_GETFL) & O_NONBLOCK);
    meet();
    R(recv(fd, buf, 5, 0));
    R(fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK));
    R(read(fd, buf, 1));
    R(fcntl(fd, F_SETFL, O_RDWR));
    meet();
    R(read(fd, buf, 5));
    R(fcntl(fd, F_GETFD));
    R(fcntl(fd, F_SETFD, FD_CLOEXEC));
    R(fcntl(fd, F_GETFD));
    R(ioctl(fd, FIONCLEX));
    R(fcntl(fd, F_GETFD));
    R(fcntl(fd, F_GETFL) & O_ACCMODE);
}
static void modes_b(void) {
    int fd = conn();
    for (int i = 0; i < 2; i++) {
        meet();
        settle();
        put(fd, "12345", 5);
    }
    R(recv(fd, buf, 1, 0));
}

static volatile sig_atomic_t ios;
static void on_io(int s) { ios++; }
static void async_a(void) {
    int fd = conn();
    on_signal(SIGIO, on_io, SA_RESTART);
    R(fcntl(fd, F_SETOWN, getpid()));
    R(fcntl(fd, F_SETFL, O_RDWR | O_ASYNC));
    meet();
    for (int i = 0; i < 100 && !ios; i++)
        settle();
    say("signalled %d", ios > 0);
    R(recv(fd, buf, 100, 0));
    ios = 0;
    meet();
    for (int i = 0; i < 100 && !ios; i++)
        settle();
    say("signalled %d", ios > 0);
    R(recv(fd, buf, 100, 0));
}
static void async_b(void) {
    int fd = conn();
    for (int i = 0; i < 2; i++) {
        meet();
        settle();
        put(fd, "signal", 6);
    }
    R(recv(fd, buf, 1, 0));
}

static void peek_off_a(void) {
    int fd = conn(), at = 0;
    meet();
    meet_settled();
    if (setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &at, sizeof at) < 0)
        say("SO_PEEK_OFF: %s", err_name(errno)); /* kernels before 6.9 */
    for (int i = 0; i < 3; i++) {
        ssize_t n = recv(fd, buf, 4, MSG_PEEK | MSG_DONTWAIT);
        say("%zd %.*s", n, n > 0 ? (int)n : 0, buf);
    }
    O(SOL_SOCKET, SO_PEEK_OFF);
    R(recv(fd, buf, 4, 0));
    O(SOL_SOCKET, SO_PEEK_OFF);
    meet();
}
static void peek_off_b(void) {
    int fd = conn();
    meet();
    put(fd, "abcdefghij", 10);
    meet_settled();
    meet();
}

static void names_a(void) {
    int fd = conn();
    struct sockaddr_storage s;
    struct sockaddr_in *in = (void *)&s;
    socklen_t l = sizeof s;
    R(getsockname(fd, (void *)&s, &l));
    say("%d %s length %d", ntohs(in->sin_port), inet_ntoa(in->sin_addr), (int)l);
    R(getpeername(fd, (void *)&s, &l));
    say("%s length %d", inet_ntoa(in->sin_addr), (int)l);
    l = 3;
    R(getpeername(fd, (void *)&s, &l));
    say("length %d", (int)l);
    R(isfdtype(fd, S_IFSOCK));
    R(sockatmark(fd));
    char link[64], path[64];
    sprintf(path, "/proc/self/fd/%d", fd);
    R(readlink(path, link, sizeof link) > 8 && !strncmp(link, "socket:[", 8));
    meet();
}
static void names_b(void) {
    conn();
    meet();
}

/* Set before the first byte, used when what was exchanged would have taken it to memory. */
static void peek_off_cold_a(void) {
    int fd = conn_cold(), at = 0;
    R(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &at, sizeof at));
    warm(fd);
    for (int nonblock = 0; nonblock < 2; nonblock++) {
        nonblocking(fd, nonblock);
        meet();
        meet_settled();
        for (int i = 0; i < 3; i++) {
            ssize_t n = recv(fd, buf, 4, MSG_PEEK | (i == 2 ? MSG_DONTWAIT : 0));
            say("%zd %.*s", n, n > 0 ? (int)n : 0, buf);
        }
        O(SOL_SOCKET, SO_PEEK_OFF);
        R(recv(fd, buf, 4, 0));
        O(SOL_SOCKET, SO_PEEK_OFF);
        R(recv(fd, buf, 4, MSG_PEEK | MSG_DONTWAIT));
        say("%zu", get(fd, buf, 6));
        O(SOL_SOCKET, SO_PEEK_OFF);
        at = 1;
        R(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &at, sizeof at));
        meet();
    }
    at = -1;
    R(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &at, sizeof at));
    warm(fd);
}
static void peek_off_cold_b(void) {
    int fd = conn_cold();
    warm(fd);
    for (int i = 0; i < 2; i++) {
        meet();
        put(fd, "abcdefghij", 10);
        meet_settled();
        meet();
    }
    warm(fd);
}
/* TCP_INQ: each message says what is left, also at the end, cut where there is little room. */
static void inq_read(int fd, size_t len, size_t room) {
    static char b[MIB];
    static union {
        struct cmsghdr head;
        char room[64];
    } control;
    struct iovec v = {b, len};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room ? &control : NULL, .msg_controllen = room};
    memset(&control, 0, sizeof control);
    ssize_t n = MUST(recvmsg(fd, &m, 0));
    int left = -1;
    memcpy(&left, control.room + sizeof control.head, sizeof left);
    say("%zd, control %zu of %zu, flags %x, length %zu, level %d, type %d, left %d", n, (size_t)m.msg_controllen, room, m.msg_flags,
        (size_t)control.head.cmsg_len, control.head.cmsg_level, control.head.cmsg_type, left);
}
static void inq_a(void) {
    int fd = conn();
    int two = 2;
    R(setsockopt(fd, IPPROTO_TCP, 36, &two, sizeof two));
    sol_int(fd, IPPROTO_TCP, 36, 1);
    meet_settled();
    static const size_t rooms[] = {64, 24, 23, 20, 18, 16, 15, 0};
    for (int i = 0; i < 8; i++)
        inq_read(fd, 1000, rooms[i]);
    inq_read(fd, 2000, 64);
    meet();
    meet_settled();
    inq_read(fd, 500, 64);
    inq_read(fd, 500, 64);
    inq_read(fd, 500, 64);
    sol_int(fd, IPPROTO_TCP, 36, 0);
    inq_read(fd, 500, 64);
    meet();
}
static void inq_b(void) {
    int fd = conn();
    static char b[10000];
    put(fd, b, sizeof b);
    meet_settled();
    meet();
    put(fd, b, 1000);
    MUST(shutdown(fd, SHUT_WR));
    meet_settled();
    meet();
}

/* A reset is no end that is still to be read; what came before it is. */
static void inq_reset_a(void) {
    int fd = conn();
    sol_int(fd, IPPROTO_TCP, 36, 1);
    put(fd, "not read", 8);
    meet();
    meet_settled();
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    inq_read(fd, 500, 64);
    inq_read(fd, 500, 64);
    R(recv(fd, buf, 100, 0));
    meet();
}
static void inq_reset_b(void) {
    int fd = conn();
    static char b[1000];
    meet();
    put(fd, b, sizeof b);
    MUST(close(fd)); /* with eight bytes unread */
    meet_settled();
    meet();
}

/* ---- how long it has been idle ---- */

static void idle_times(int fd, const char *what, unsigned from, unsigned to) {
    struct tcp_info i;
    socklen_t n = sizeof i;
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &n));
    const unsigned ms[] = {i.tcpi_last_data_sent, i.tcpi_last_data_recv, i.tcpi_last_ack_recv};
    for (int k = 0; k < 3; k++)
        say("%s: %s", what, ms[k] >= from && ms[k] < to ? "right" : "wrong");
}
static void idle_times_a(void) {
    int fd = conn();
    for (int i = 0; i < 80; i++) { /* 4.8 s, natively never idle for as much as 2 */
        settle();
        put(fd, "ping", 4);
        get(fd, buf, 4);
    }
    idle_times(fd, "busy", 0, 2000);
    for (int i = 0; i < 20; i++)
        settle();
    idle_times(fd, "idle", 1000, 60000);
    put(fd, "ping", 4);
    get(fd, buf, 4);
    idle_times(fd, "again", 0, 1000);
}
static void idle_times_b(void) {
    int fd = conn();
    for (int i = 0; i < 81; i++) {
        get(fd, buf, 4);
        put(fd, "pong", 4);
    }
    R(recv(fd, buf, 1, 0));
}

const struct test tests[] = {{"values", values_a, values_b, 0},
                             {"counts", counts_a, counts_b, 0},
                             {"receive_timeout", rcvtimeo_a, rcvtimeo_b, 0},
                             {"receive_low_water", lowat_a, lowat_b, 0},
                             {"blocking_modes", modes_a, modes_b, 0},
                             {"o_async", async_a, async_b, 0},
                             {"peek_offset", peek_off_a, peek_off_b, 0},
                             {"peek_offset_cold", peek_off_cold_a, peek_off_cold_b, COLD},
                             {"names", names_a, names_b, 0},
                             {"inq", inq_a, inq_b, 0},
                             {"inq_reset", inq_reset_a, inq_reset_b, 0},
                             {"idle_times", idle_times_a, idle_times_b, SLOW},
                             {0}};
