/* Owns: random walks through the life of sockets: bound, listening, connecting, taken by accept, spoken through, shut, disconnected, closed, by either end and in
 * any order, right or wrong. The two ends take turns; a seed has one transcript. DOOR_SEED=N walks another way. */
#include "dice.h"
#include "sets.h"

enum { SLOTS = 8, PORTS = 2, WALKS = 5, FIRST = 100, STEPS = 300 };

static int is_used[SLOTS], level; /* whose number is FIRST + slot; a set of some of them */
static unsigned marks;
static char buf[64 * KIB];

static int used(void) {
    int n = 0;
    for (int i = 0; i < SLOTS; i++)
        n += is_used[i];
    int at = n ? (int)die_of((unsigned)n) : -1;
    for (int i = 0; i < SLOTS; i++)
        if (is_used[i] && at-- == 0)
            return i;
    return -1;
}
static int unused(void) {
    for (int i = 0; i < SLOTS; i++)
        if (!is_used[i])
            return i;
    return -1;
}
static int take(int fd) {
    int i = unused();
    placed(fd, FIRST + i);
    is_used[i] = 1;
    return i;
}
static struct sockaddr_in at_port(int p, int anywhere) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)(PORT + p)), .sin_addr.s_addr = htonl(anywhere ? INADDR_ANY : INADDR_LOOPBACK)};
}
static const char *named(const struct sockaddr_in *a) {
    static char text[60];
    int port = ntohs(a->sin_port);
    sprintf(text, "%s:%s", inet_ntoa(a->sin_addr), port == 0 ? "none" : port < PORT + 100 ? "ours" : "some");
    return text;
}

/* ---- steps ---- */

static int fresh(void) {
    int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sol_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    sol_int(fd, IPPROTO_TCP, TCP_NODELAY, 1); /* what is sent is there at once */
    return fd;
}
static void makes(void) {
    if (unused() < 0)
        return;
    say("%d: socket", take(fresh()));
}
static void opens(int i) {
    int p = (int)die_of(PORTS), anywhere = die_of(2);
    struct sockaddr_in at = at_port(p, anywhere);
    int r = bind(FIRST + i, (void *)&at, sizeof at);
    say("%d: bind to %d: %d %s", i, p, r, r ? err_name(errno) : "");
    if (die_of(8)) {
        r = listen(FIRST + i, 16);
        say("%d: listen: %d %s", i, r, r ? err_name(errno) : "");
    }
}
static void connects(int i) {
    int p = (int)die_of(PORTS + 1), waits = die_of(4) == 0;
    struct sockaddr_in at = at_port(p == PORTS ? 50 : p, 0);
    nonblocking(FIRST + i, !waits);
    int r = connect(FIRST + i, (void *)&at, sizeof at);
    if (r < 0 && errno == EINVAL) { /* a kernel that connects none that has listened (6.18.44 here): another one in its place */
        placed(fresh(), FIRST + i);
        nonblocking(FIRST + i, !waits);
        r = connect(FIRST + i, (void *)&at, sizeof at);
    }
    say("%d: connect to %d%s: %d %s", i, p, waits ? ", waits" : "", r, r ? err_name(errno) : "");
    nonblocking(FIRST + i, 1);
}
static void accepts(int i) {
    if (unused() < 0)
        return;
    struct sockaddr_in from = {0};
    socklen_t len = sizeof from;
    int fd = die_of(2) ? accept4(FIRST + i, (void *)&from, &len, SOCK_NONBLOCK) : accept(FIRST + i, NULL, NULL);
    if (fd < 0)
        return say("%d: accept: %s", i, err_name(errno));
    nonblocking(fd, 1);
    int to = take(fd);
    say("%d: accept: %d %s", i, to, named(&from));
}
static void sends(int i) {
    long n = die_of(4) ? 1 + die_of(60) : 1 + die_of(3000);
    memset(buf, (int)die_of(256), (size_t)n);
    struct sockaddr_in to = at_port((int)die_of(PORTS), 0);
    long r = die_of(9) ? send(FIRST + i, buf, (size_t)n, MSG_NOSIGNAL) : sendto(FIRST + i, buf, (size_t)n, MSG_NOSIGNAL, (void *)&to, sizeof to);
    say("%d: send of %ld: %ld %s", i, n, r, r < 0 ? err_name(errno) : "");
}
static void receives(int i) {
    long n = die_of(3) ? (long)sizeof buf : 1 + die_of(50), r = recv(FIRST + i, buf, (size_t)n, die_of(5) ? 0 : MSG_PEEK);
    say("%d: recv of %ld: %ld %s %x", i, n, r, r < 0 ? err_name(errno) : "", digest(buf, r));
}
static void closes(int i) {
    struct linger l = {1, 0};
    if (die_of(6) == 0)
        say("%d: linger 0: %d", i, setsockopt(FIRST + i, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    is_used[i] = 0;
    say("%d: close: %d", i, close(FIRST + i));
}
static void disconnects(int i) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    int r = connect(FIRST + i, &none, sizeof none);
    say("%d: disconnect: %d %s", i, r, r ? err_name(errno) : "");
}
static void doubles(int i) {
    if (unused() >= 0)
        say("%d: dup: %d", i, take(MUST(dup(FIRST + i))));
}
static void registers(int i) {
    static const uint32_t some[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP, 0};
    static const int ops[] = {ADD, ADD, MOD, DEL};
    int op = ops[die_of(4)], r = ctl(level, op, FIRST + i, some[die_of(5)], ++marks);
    say("%d: epoll_ctl %d as %x: %d %s", i, op, marks, r, r ? err_name(errno) : "");
}
static void asks(int i) {
    struct sockaddr_in a = {0};
    socklen_t len = sizeof a;
    int f = FIRST + i, v = -1, r;
    char info[8] = "";
    switch (die_of(9)) {
    case 0: case 1: case 2: say("%d: poll: %s", i, poll_text(events(f, POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0))); break;
    case 3: r = getsockname(f, (void *)&a, &len), say("%d: getsockname: %d %s", i, r, named(&a)); break;
    case 4: r = getpeername(f, (void *)&a, &len), say("%d: getpeername: %d %s", i, r, r ? err_name(errno) : named(&a)); break;
    case 5: say("%d: error: %s", i, err_name(so_error(f))); break;
    case 6: r = ioctl(f, FIONREAD, &v), say("%d: unread: %d %d", i, r, r ? errno : v); break;
    case 7: len = sizeof v, r = getsockopt(f, SOL_SOCKET, SO_ACCEPTCONN, &v, &len), say("%d: listens: %d %d", i, r, v); break;
    case 8:
        len = sizeof info, r = getsockopt(f, IPPROTO_TCP, TCP_INFO, info, &len);
        say("%d: state: %d %d", i, r, info[0]);
        break;
    }
}

static void step(void) {
    unsigned which = die_of(100);
    int i = used();
    if (i < 0 || which < 6)
        return makes();
    if (which < 15)
        opens(i);
    else if (which < 26)
        connects(i);
    else if (which < 37)
        accepts(i);
    else if (which < 57)
        sends(i);
    else if (which < 74)
        receives(i);
    else if (which < 75)
        say("%d: shutdown: %d", i, shutdown(FIRST + i, (int)die_of(3)));
    else if (which < 78)
        closes(i);
    else if (which < 79)
        disconnects(i);
    else if (which < 81)
        doubles(i);
    else if (which < 87)
        registers(i);
    else if (which < 91)
        look(level, 0);
    else
        asks(i);
}

static void makes_step(unsigned kind) {
    step();
    usleep(2000);
    tell('s');
}
static void hear_step(void) {
    if (hear() != 's')
        die("step");
}

static void walk(unsigned seed) {
    seed += (unsigned)asked_for("DOOR", "SEED", 0);
    for (unsigned w = 0; w < WALKS; w++) {
        begin_round(seed, w);
        say("walk %u", w);
        level = placed(MUST(epoll_create1(EPOLL_CLOEXEC)), FIRST - 1);
        meet();
        by_turns(STEPS, makes_step, 0, hear_step);
        for (int f = FIRST - 1; f < FIRST + SLOTS; f++)
            close(f);
        memset(is_used, 0, sizeof is_used);
        meet();
    }
}
static void walk_1(void) { walk(1); }
static void walk_2(void) { walk(2); }
static void walk_3(void) { walk(3); }

const struct test tests[] = {{"walk_1", walk_1, walk_1, COLD | SWITCHES},
                             {"walk_2", walk_2, walk_2, COLD | SWITCHES},
                             {"walk_3", walk_3, walk_3, COLD | SWITCHES},
                             {0}};
