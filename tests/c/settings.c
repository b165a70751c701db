/* Owns: all socket options at once: each is read before and after the connection is in memory, set, and read again; what an
 * accepted socket has from its listener, and that it holds; values that the library keeps for the program. */
#include "case.h"

static char buf[64 * KIB];

/* Those that no two runs agree on: times, processors, addresses, sizes that the kernel moves by itself. */
static int is_moving(int level, int name) {
    static const int socket[] = {7, 8, 32, 33, SO_PEERCRED, SO_MEMINFO, SO_INCOMING_CPU, SO_INCOMING_NAPI_ID, SO_COOKIE, SO_PEERSEC,
                                 SO_NETNS_COOKIE, SO_ATTACH_FILTER, SO_PEERNAME, 77 /* SO_PEERPIDFD */, SO_MAX_PACING_RATE};
    static const int tcp[] = {TCP_INFO, TCP_CC_INFO, TCP_MAXSEG, TCP_WINDOW_CLAMP, TCP_TIMESTAMP, TCP_QUICKACK, TCP_ZEROCOPY_RECEIVE,
                              TCP_REPAIR_WINDOW, TCP_SAVED_SYN, TCP_TX_DELAY, 44 /* TCP_RTO_MAX_MS */};
    static const int ip[] = {4 /* IP_OPTIONS */, 9 /* IP_PKTOPTIONS */, IP_MTU, 32, 33, 34, 35, 36, 41, 42, 43, 44, 45, 46, 47, 48};
    const int *of = level == SOL_SOCKET ? socket : level == IPPROTO_TCP ? tcp : ip;
    size_t n = level == SOL_SOCKET ? sizeof socket : level == IPPROTO_TCP ? sizeof tcp : sizeof ip;
    for (size_t i = 0; i < n / sizeof(int); i++)
        if (of[i] == name)
            return 1;
    return 0;
}
static void all_of(int fd, int level, int most) {
    for (int name = 1; name <= most; name++) {
        if (is_moving(level, name))
            continue;
        unsigned char v[16] = {0};
        socklen_t l = sizeof v;
        int r = getsockopt(fd, level, name, v, &l);
        char text[40] = "";
        for (socklen_t i = 0; r == 0 && i < l && i < sizeof v; i++)
            sprintf(text + 2 * i, "%02x", v[i]);
        say("%d %d: %s %d %s", level, name, r < 0 ? err_name(errno) : "", r < 0 ? 0 : (int)l, text);
    }
}
static void everything(const char *when, int fd) {
    say("-- %s", when);
    all_of(fd, SOL_SOCKET, 85);
    all_of(fd, IPPROTO_TCP, 50);
    all_of(fd, IPPROTO_IP, 60);
}

/* ---- each option set to 1, and back ---- */

/* Not set here: what takes the connection out of use, or binds it to what is not there. */
static int is_left_out(int level, int name) {
    static const int socket[] = {SO_LINGER, SO_ATTACH_BPF, SO_ATTACH_FILTER, SO_LOCK_FILTER, SO_BINDTODEVICE, SO_RCVTIMEO, SO_SNDTIMEO,
                                 SO_RCVBUF, SO_SNDBUF, 32, 33, 66, 67, SO_MAX_PACING_RATE, SO_MARK};
    static const int tcp[] = {TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ, TCP_REPAIR_OPTIONS, TCP_ULP, TCP_MD5SIG, TCP_USER_TIMEOUT,
                              TCP_MAXSEG, TCP_WINDOW_CLAMP, TCP_CONGESTION, 38, 39, 40, 41, 42, 43};
    const int *of = level == SOL_SOCKET ? socket : tcp;
    size_t n = level == SOL_SOCKET ? sizeof socket : level == IPPROTO_TCP ? sizeof tcp : 0;
    for (size_t i = 0; i < n / sizeof(int); i++)
        if (of[i] == name)
            return 1;
    return is_moving(level, name);
}
static void set_all(int fd, int level, int most, int value) {
    for (int name = 1; name <= most; name++) {
        if (is_left_out(level, name))
            continue;
        int r = setsockopt(fd, level, name, &value, sizeof value);
        say("set %d %d to %d: %s", level, name, value, r < 0 ? err_name(errno) : "ok");
    }
}
static void each_a(void) {
    int fd = conn();
    for (int value = 1; value >= 0; value--) {
        set_all(fd, SOL_SOCKET, 85, value);
        set_all(fd, IPPROTO_TCP, 50, value);
        set_all(fd, IPPROTO_IP, 30, value);
        everything("set", fd);
        int minus = -1; /* a peek offset is an offset as soon as it is not negative */
        setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &minus, sizeof minus);
        meet();
        echo(fd, "with these", value);
    }
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void each_b(void) {
    int fd = conn();
    for (int i = 0; i < 2; i++) {
        static char b[20000];
        meet();
        put(fd, b, get(fd, b, sizeof b));
    }
    echo_until_end(fd);
}

/* ---- read only: it goes on in memory ---- */

static void read_a(void) {
    int fd = conn_cold();
    everything("new", fd);
    warm(fd);
    everything("warm", fd);
    meet();
    warm(fd);
    everything("warm again", fd);
    meet();
}
static void read_b(void) {
    int fd = conn_cold();
    warm(fd);
    meet();
    warm(fd);
    meet();
}

/* ---- what an accepted socket has from its listener ---- */

static int int_of(int fd, int level, int name) {
    int v = -77;
    socklen_t l = sizeof v;
    return getsockopt(fd, level, name, &v, &l) < 0 ? -errno : v;
}
static void inherited_a(void) {
    int l = listen_on(PORT);
    sol_int(l, SOL_SOCKET, SO_RCVLOWAT, 20);
    sol_int(l, SOL_SOCKET, SO_KEEPALIVE, 1);
    sol_int(l, SOL_SOCKET, SO_OOBINLINE, 1);
    sol_int(l, SOL_SOCKET, SO_PRIORITY, 5);
    sol_int(l, SOL_SOCKET, SO_BUSY_POLL, 3);
    sol_int(l, IPPROTO_TCP, TCP_NODELAY, 1);
    sol_int(l, IPPROTO_TCP, TCP_CORK, 1);
    sol_int(l, IPPROTO_TCP, TCP_KEEPIDLE, 77);
    sol_int(l, IPPROTO_TCP, TCP_USER_TIMEOUT, 88888);
    sol_int(l, IPPROTO_IP, IP_TOS, 0x10);
    timeouts(l, SO_RCVTIMEO, 150);
    timeouts(l, SO_SNDTIMEO, 150);
    nonblocking(l, 1);
    fcntl(l, F_SETFD, FD_CLOEXEC);
    meet_settled();
    for (int i = 0; i < 4; i++) {
        static const int flags[] = {0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC};
        meet_settled();
        int fd = MUST(accept4(l, NULL, NULL, flags[i]));
        for (int warmed_up = 0; warmed_up < 2; warmed_up++) {
            say("flags %x %x", fcntl(fd, F_GETFL), fcntl(fd, F_GETFD));
            everything("accepted", fd);
            struct linger linger;
            struct timeval t = {0};
            socklen_t n = sizeof linger;
            R(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &n));
            n = sizeof t;
            R(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, &n));
            say("%ld ms", (long)(t.tv_sec * 1000 + t.tv_usec / 1000));
            if (!warmed_up) {
                sol_int(fd, IPPROTO_TCP, TCP_CORK, 0);
                timeouts(fd, SO_SNDTIMEO, 5000);
                sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, i % 2 ? 64 : 1); /* kept on TCP, or not */
                timeouts(fd, SO_RCVTIMEO, 20000);
                warm(fd);
                timeouts(fd, SO_RCVTIMEO, 150);
                sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 20);
            }
        }
        meet_settled(); /* four bytes of twenty */
        say("%s", poll_text(events(fd, POLLIN, 20)));
        R(recv(fd, buf, 100, 0));
        R(recv(fd, buf, 100, 0));
        say("%d", int_of(fd, SOL_SOCKET, SO_RCVLOWAT));
        close(fd);
    }
}
static void inherited_b(void) {
    meet_settled();
    for (int i = 0; i < 4; i++) {
        int fd = dial(PORT);
        meet_settled();
        warm(fd);
        put(fd, "four", 4);
        meet_settled();
        R(recv(fd, buf, 1, 0));
        close(fd);
    }
}

/* Inherited ones that nobody touches: they hold from the first byte on, in memory too. */
static void untouched_a(void) {
    int l = listen_on(PORT);
    timeouts(l, SO_RCVTIMEO, 300);
    sol_int(l, SOL_SOCKET, SO_RCVLOWAT, 8);
    MUST(setsockopt(l, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)));
    meet_settled();
    int fd = accept_from(l);
    warm(fd);
    meet_settled();
    R(recv(fd, buf, 100, 0));
    R(recv(fd, buf, 100, 0));
    say("RCVLOWAT %d", int_of(fd, SOL_SOCKET, SO_RCVLOWAT));
    meet();
    R(close(fd)); /* a reset */
    meet();
}
static void untouched_b(void) {
    meet();
    int fd = dial(PORT);
    settle();
    warm(fd);
    put(fd, "four", 4);
    meet_settled();
    meet();
    meet_settled();
    R(recv(fd, buf, 1, 0));
    R(recv(fd, buf, 1, 0));
}

/* Receiving by mapped pages: what it says is there lies in TCP. */
static void mapped_a(void) {
    int fd = conn();
    meet_settled();
    struct {
        uint64_t address;
        uint32_t length, skip;
    } z = {0, 4096, 0};
    void *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    say("mapped %d", p != MAP_FAILED);
    for (int i = 0; i < 2 && p != MAP_FAILED; i++) {
        socklen_t l = sizeof z;
        z.address = (uintptr_t)p;
        z.length = 4096;
        R(getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &z, &l));
        say("%u mapped, %u to read", z.length, z.skip);
        if (i == 0)
            R(recv(fd, buf, 30, 0));
    }
    say("%zu", get(fd, buf, 70));
    R(shutdown(fd, SHUT_WR));
}
static void mapped_b(void) {
    int fd = conn();
    put(fd, buf, 100);
    meet_settled();
    R(recv(fd, buf, 1, 0));
}

/* ---- times before now ---- */

static void past(int fd, int name) {
    struct timeval t = {-1, 0};
    socklen_t l = sizeof t;
    R(setsockopt(fd, SOL_SOCKET, name, &t, sizeof t));
    R(getsockopt(fd, SOL_SOCKET, name, &t, &l));
    say("%ld.%06ld", (long)t.tv_sec, (long)t.tv_usec);
}
static void full(int fd) {
    while (send(fd, buf, sizeof buf, MSG_NOSIGNAL) > 0) {
    }
    say("full: %s", err_name(errno));
}
static void past_a(void) {
    int fd = conn();
    past(fd, SO_RCVTIMEO);
    past(fd, SO_SNDTIMEO);
    R(recv(fd, buf, 1, 0));
    R(read(fd, buf, 1));
    R(recv(fd, buf, 5, MSG_PEEK | MSG_WAITALL));
    meet();
    meet_settled();
    R(recv(fd, buf, 10, MSG_WAITALL));
    full(fd);
    timeouts(fd, SO_RCVTIMEO, 0);
    timeouts(fd, SO_SNDTIMEO, 0);
    meet();
    put(fd, buf, 1);
    R(recv(fd, buf, 10, MSG_WAITALL));
}
static void past_b(void) {
    int fd = conn();
    meet();
    put(fd, "fives", 5);
    meet_settled();
    meet();
    settle();
    put(fd, buf, 10);
    while (recv(fd, buf, sizeof buf, 0) > 0) {
    }
}

/* An accepted socket has them from its listener, also before it goes to memory. */
enum { TURNS = 400, SIZE = 500 };
static void past_listener_a(void) {
    int l = listen_on(PORT);
    past(l, SO_RCVTIMEO);
    R(accept(l, NULL, NULL));
    meet();
    events(l, POLLIN, 10000);
    int fd = accept_from(l);
    for (int i = 0; i < TURNS; i++) {
        for (ssize_t n = 0, got = 0; got < SIZE; got += n) {
            events(fd, POLLIN, 10000);
            if ((n = recv(fd, buf, SIZE - got, 0)) <= 0)
                die("turn");
        }
        put(fd, buf, SIZE);
    }
    R(recv(fd, buf, 1, 0));
    meet();
}
static void past_listener_b(void) {
    meet();
    int fd = dial(PORT);
    for (int i = 0; i < TURNS; i++) {
        put(fd, buf, SIZE);
        if (get(fd, buf, SIZE) != SIZE)
            die("turn");
    }
    meet();
}

/* A limit that is over soon: what TCP's buffers hold is taken all the same, without a wait. */
enum { AT_ONCE = MIB };
static void short_limit_a(void) {
    int fd = conn();
    static char all[AT_ONCE];
    timeouts(fd, SO_SNDTIMEO, 60);
    for (int i = 0; i < 3; i++) {
        fill(all, AT_ONCE, 0, i);
        R(i == 0 ? send(fd, all, AT_ONCE, 0) : write(fd, all, AT_ONCE));
        meet();
        meet();
    }
    R(recv(fd, buf, 1, 0));
}
static void short_limit_b(void) {
    int fd = conn();
    static char all[AT_ONCE];
    for (int i = 0; i < 3; i++) {
        meet();
        got(fd, all, AT_ONCE, 0, i);
        meet();
    }
    close(fd);
}

const struct test tests[] = {{"read", read_a, read_b, COLD | SWITCHES},
                             {"each", each_a, each_b, 0},
                             {"inherited", inherited_a, inherited_b, COLD | SWITCHES},
                             {"untouched", untouched_a, untouched_b, COLD},
                             {"mapped", mapped_a, mapped_b, 0},
                             {"past", past_a, past_b, 0},
                             {"short_limit", short_limit_a, short_limit_b, 0},
                             {"past_listener", past_listener_a, past_listener_b, COLD | SWITCHES},
                             {0}};
