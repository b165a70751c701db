/* Owns: how much a connection holds: SO_SNDBUF and SO_RCVBUF bound what is in flight, TCP_INFO counts what went, and
 * SO_LINGER says what becomes of it when the sender closes. */
#include "case.h"

static char buf[64 * KIB];

static int option(int fd, int level, int name) {
    int v = -1;
    socklen_t l = sizeof v;
    MUST(getsockopt(fd, level, name, &v, &l));
    return v;
}
/* Until nothing more is taken, and nothing more later on. */
static long fill_up(int fd, size_t each) {
    long all = 0;
    for (int calm = 0; calm < 6; calm++, settle())
        for (ssize_t n;; all += n) {
            fill(buf, each, all, 1);
            if ((n = send(fd, buf, each, MSG_DONTWAIT | MSG_NOSIGNAL)) <= 0)
                break;
            calm = 0;
        }
    return all;
}

/* ---- sizes of buffers ---- */

/* As Linux doubles the sizes and counts more than payload, what fits is between half of both and twice of both; under
 * the library a ring of the connection's first size comes on top. */
enum { RING = 64 * KIB };
static void bounded_a(int size, int late) {
    int l = listen_on(PORT);
    if (!late)
        sol_int(l, SOL_SOCKET, SO_SNDBUF, size); /* accepted ones inherit it */
    meet();
    int fd = accept_from(l);
    warm(fd);
    if (late)
        sol_int(fd, SOL_SOCKET, SO_SNDBUF, size);
    meet();
    long held = fill_up(fd, 1000), sum = option(fd, SOL_SOCKET, SO_SNDBUF) + 2 * size;
    say("SO_SNDBUF %d", option(fd, SOL_SOCKET, SO_SNDBUF));
    say("at least half of both %d, at most twice %d", held >= sum / 2, held <= 2 * sum + RING);
    say("%s", poll_text(events(fd, POLLOUT, 20)));
    tell_pid((pid_t)held);
    meet();
}
static void bounded_b(int size, int late) {
    meet();
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    if (!late)
        sol_int(fd, SOL_SOCKET, SO_RCVBUF, size);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(connect(fd, (void *)&to, sizeof to));
    warm(fd);
    if (late)
        sol_int(fd, SOL_SOCKET, SO_RCVBUF, size);
    meet();
    long held = hear_pid();
    say("SO_RCVBUF %d", option(fd, SOL_SOCKET, SO_RCVBUF));
    int there = now_in(fd);
    say("readable: some %d, at most twice %d", there > size / 4, there <= 4 * size + RING);
    int good = 1;
    for (long o = 0, n; o < held; o += n) {
        n = get(fd, buf, held - o < (long)sizeof buf ? (size_t)(held - o) : sizeof buf);
        good = good && n > 0 && matches(buf, n, o, 1);
    }
    say("whole %d, rest %d", good, now_in(fd));
    meet();
}
static void least_a(void) { bounded_a(4 * KIB, 0); }
static void least_b(void) { bounded_b(4 * KIB, 0); }
static void small_a(void) { bounded_a(32 * KIB, 0); }
static void small_b(void) { bounded_b(32 * KIB, 0); }
static void large_a(void) { bounded_a(MIB, 0); }
static void large_b(void) { bounded_b(MIB, 0); }
static void late_a(void) { bounded_a(300 * KIB, 1); }
static void late_b(void) { bounded_b(300 * KIB, 1); }

/* ---- TCP_INFO ---- */

static struct tcp_info info_of(int fd) {
    struct tcp_info i = {0};
    socklen_t l = sizeof i;
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &l));
    return i;
}
/* The counters of glibc's structure end before those of the kernel's. */
struct counted {
    uint64_t acked, received;
};
static struct counted counted(int fd) {
    char i[256] = {0};
    socklen_t l = sizeof i;
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, i, &l));
    struct counted c;
    memcpy(&c.acked, i + 120, 8); /* tcpi_bytes_acked, tcpi_bytes_received of linux/tcp.h */
    memcpy(&c.received, i + 128, 8);
    return c;
}
static void info(void) {
    int fd = conn();
    struct counted before = counted(fd);
    for (int i = 0; i < 4; i++) {
        meet();
        if (is_a == i % 2) {
            fill(buf, 50000, 0, i);
            put(fd, buf, 50000);
        } else {
            got(fd, buf, 50000, 0, i);
        }
        meet_settled();
        struct counted now = counted(fd);
        say("acked %llu, received %llu", (unsigned long long)(now.acked - before.acked),
            (unsigned long long)(now.received - before.received));
        say("state %d, unacked %u", info_of(fd).tcpi_state, info_of(fd).tcpi_unacked);
    }
    socklen_t l = 8; /* as much as there is room for */
    char some[16] = "untouched by it";
    R(getsockopt(fd, IPPROTO_TCP, TCP_INFO, some, &l));
    say("length %d, %s", (int)l, some + 8);
    meet();
}

/* The reader waits by calls that nobody sees: it is told of each arrival. */
static void info_told(void) {
    int fd = conn();
    struct counted before = counted(fd);
    if (is_a)
        R(recv(fd, buf, 1, MSG_DONTWAIT));
    meet();
    for (int i = 0; i < 20 && !is_a; i++)
        put(fd, buf, 100);
    meet_settled();
    struct counted now = counted(fd);
    say("acked %llu, received %llu", (unsigned long long)(now.acked - before.acked),
        (unsigned long long)(now.received - before.received));
    if (is_a)
        R(get(fd, buf, 2000));
    meet_settled();
    now = counted(fd);
    say("acked %llu, received %llu", (unsigned long long)(now.acked - before.acked),
        (unsigned long long)(now.received - before.received));
    meet();
}

/* ---- SO_LINGER with bytes in flight ---- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static void lingers(int on, int s, int nonblock) {
    int fd = conn();
    struct linger l = {on, s};
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    nonblocking(fd, nonblock);
    long held = fill_up(fd, 10000);
    tell_pid((pid_t)held);
    double begin = seconds();
    R(close(fd));
    say("it waited %d", seconds() - begin > 0.9);
    meet();
    meet();
}
static void lingers_b(void) {
    int fd = conn();
    long held = hear_pid(), o = 0;
    int good = 1;
    meet(); /* it has closed */
    ssize_t n;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0) {
        good = good && matches(buf, n, o, 1);
        o += n;
    }
    say("some %d, all %d, whole %d, then %s", o > 0, o == held, good, n == 0 ? "end" : err_name(errno));
    meet();
}
static void linger_time_a(void) { lingers(1, 1, 0); }
static void linger_time_nonblocking_a(void) { lingers(1, 1, 1); }
static void linger_off_a(void) { lingers(0, 0, 0); }
/* A reset: how much of what was in flight is still read depends on where it was. */
static void linger_reset_a(void) { lingers(1, 0, 0); }
static void linger_reset_b(void) {
    int fd = conn();
    hear_pid();
    meet();
    ssize_t n;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0) {
    }
    say("then %s", n == 0 ? "end" : err_name(errno));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    meet();
}
/* Nothing in flight: it does not wait. */
static void linger_idle_a(void) {
    int fd = conn();
    struct linger l = {1, 30};
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    put(fd, "read", 4);
    meet();
    double begin = seconds();
    R(close(fd));
    say("it waited %d", seconds() - begin > 5);
    meet();
}
static void linger_idle_b(void) {
    int fd = conn();
    get(fd, buf, 4);
    meet();
    R(recv(fd, buf, 1, 0));
    meet();
}

const struct test tests[] = {{"least", least_a, least_b, 0},
                             {"small", small_a, small_b, 0},
                             {"large", large_a, large_b, 0},
                             {"late", late_a, late_b, 0},
                             {"tcp_info", info, info, 0},
                             {"tcp_info_told", info_told, info_told, 0},
                             {"linger_time", linger_time_a, lingers_b, 0},
                             {"linger_time_nonblocking", linger_time_nonblocking_a, lingers_b, 0},
                             {"linger_off", linger_off_a, lingers_b, 0},
                             {"linger_reset", linger_reset_a, linger_reset_b, 0},
                             {"linger_idle", linger_idle_a, linger_idle_b, 0},
                             {0}};
