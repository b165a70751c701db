/* Owns: random walks. A step (turns.h) is one random call with random arguments; what came of it is said, with a digest of the bytes. WALK_SEED=N walks
 * another way. */
enum { CONNECTIONS = 6, NUMBERS = 4, WARM_UP = 40, TAIL = 10, TAIL_WAITS = 0 };
#include "turns.h"

enum { BIG = 20000 };
static const uint32_t LEVEL = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP, EDGE = LEVEL | EPOLLET;
static uint32_t edges; /* Of EDGE; behind a half-close TCP's own packets, late ones too, make edges of room. */

static int lt, et; /* sets it is in */

static long some(void) {
    static const int sizes[] = {0, 1, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 64, 100, 255, 1000, 4095, 4096, 4097, 9000, BIG};
    return sizes[die_of(sizeof sizes / sizeof *sizes)];
}

/* What a call by a pipe comes to: `all` bytes went, and then it said `r`. */
static long done_with(const int p[2], long r, long all) {
    int e = errno;
    close(p[0]);
    close(p[1]);
    errno = e;
    return r < 0 && !all ? r : all;
}

/* ---- sending ---- */

static long by_file(int to, long n) {
    int f = MUST(memfd_create("walk", MFD_CLOEXEC));
    off_t at = die_of(3);
    MUST(pwrite(f, buf, n, at));
    long r = sendfile(to, f, &at, n);
    int e = errno;
    close(f);
    errno = e;
    return r;
}

static long by_pipe(int to, long n) {
    int p[2];
    MUST(pipe(p));
    MUST(fcntl(p[1], F_SETPIPE_SZ, 64 * KIB));
    MUST(write(p[1], buf, n));
    long all = 0, r = 0;
    while (all < n && (r = splice(p[0], NULL, to, NULL, n - all, 0)) > 0)
        all += r;
    return done_with(p, r, all);
}

static void sends(void) {
    long n = some(), r;
    int to = number(), flags = die_of(3) ? MSG_NOSIGNAL : 0;
    if (out + n > MOST_IN_FLIGHT)
        n = 1;
    flags |= die_of(4) ? 0 : MSG_DONTWAIT;
    fill_by_dice(n);
    struct iovec v[3] = {{buf, n / 3}, {buf + n / 3, 0}, {buf + n / 3, n - n / 3}};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = v + 1, .msg_iovlen = 2}}};
    struct msghdr h = {.msg_iov = v, .msg_iovlen = 3};
    const char *call;
    switch (die_of(9)) {
    default: r = send(to, buf, n, flags), call = "send"; break;
    case 1: r = write(to, buf, n), call = "write"; break;
    case 2: r = writev(to, v, 3), call = "writev"; break;
    case 3: r = sendmsg(to, &h, flags), call = "sendmsg"; break;
    case 4: r = sendto(to, buf, n, flags, NULL, 0), call = "sendto"; break;
    case 5:
        r = sendmmsg(to, m, 2, flags), call = "sendmmsg";
        if (r > 0)
            say("sendmmsg: %ld messages", r), r = m[0].msg_len + (r > 1 ? m[1].msg_len : 0);
        break;
    case 6: r = by_file(to, n), call = "sendfile"; break;
    case 7: r = n ? by_pipe(to, n) : 0, call = "splice"; break;
    }
    told(call, n, flags, r, NULL);
    put_now = r > 0 ? r : 0;
}

/* ---- receiving ---- */

static long to_pipe(int from, long n) {
    int p[2];
    MUST(pipe(p));
    long all = 0, r = 0;
    while (all < n && (r = splice(from, NULL, p[1], NULL, n - all, SPLICE_F_NONBLOCK)) > 0) {
        if (read(p[0], buf + all, r) != r)
            die("pipe");
        all += r;
    }
    return done_with(p, r, all);
}

static void receives(void) {
    long n = some(), r;
    int from = number(), flags = 0;
    if (!die_of(4))
        flags |= MSG_PEEK;
    if (!die_of(6))
        flags |= MSG_TRUNC;
    int ends = gone || over_in;
    if (!die_of(3) && (in >= n || ends))
        flags |= MSG_WAITALL;
    int is_sure = nonblock || patience || ends || in > 0;
    int which = die_of(is_sure ? 8 : 4);
    if (!is_sure || !die_of(3))
        flags |= MSG_DONTWAIT;
    memset(buf, 0, n);
    struct iovec v[3] = {{buf, n / 3}, {buf + n / 3, 0}, {buf + n / 3, n - n / 3}};
    struct sockaddr_storage who = {0};
    socklen_t len = sizeof who;
    struct msghdr h = {.msg_iov = v, .msg_iovlen = 3, .msg_name = &who, .msg_namelen = sizeof who};
    struct mmsghdr m[1] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = 3}}};
    const char *call;
    int takes = !(flags & MSG_PEEK);
    switch (which) {
    default: r = recv(from, buf, n, flags), call = "recv"; break;
    case 1:
        r = recvmsg(from, &h, flags), call = "recvmsg";
        if (r >= 0)
            say("recvmsg: flags %#x, %d of a name", h.msg_flags, h.msg_namelen);
        break;
    case 2:
        r = recvfrom(from, buf, n, flags, (void *)&who, &len), call = "recvfrom";
        if (r >= 0)
            say("recvfrom: %d of a name", len);
        break;
    case 3:
        r = recvmmsg(from, m, 1, flags, NULL), call = "recvmmsg";
        if (r > 0)
            r = m[0].msg_len;
        break;
    case 4: r = read(from, buf, n), call = "read", takes = 1, flags = 0; break;
    case 5: r = readv(from, v, 3), call = "readv", takes = 1, flags = 0; break;
    case 6:
        flags = 0, takes = 1, call = "splice in";
        if (in < n)
            n = in;
        if (n == 0)
            return say("nothing to splice");
        r = to_pipe(from, n);
        break;
    }
    told(call, n, flags, r, buf);
    got_now = r > 0 && takes ? r : 0;
}

/* ---- asking ---- */

static void asks(void) {
    struct epoll_event e[2] = {{0}, {0}};
    fd_set r, w;
    struct timeval t = {0, 0};
    int f = number(), n, v = -1;
    socklen_t len = sizeof v;
    switch (die_of(9)) {
    case 0: case 1: say("poll: %s", poll_text(events(f, POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0))); break;
    case 2:
        FD_ZERO(&r);
        FD_ZERO(&w);
        FD_SET(f, &r);
        FD_SET(f, &w);
        n = select(f + 1, &r, &w, NULL, &t);
        say("select: %d%s%s", n, FD_ISSET(f, &r) ? " in" : "", FD_ISSET(f, &w) ? " out" : "");
        break;
    case 3: case 4: n = epoll_wait(lt, e, 2, 0), say("level: %d %s", n, n ? epoll_text(e[0].events) : ""); break;
    case 5: case 6:
        if (gone || (edges != EDGE && getenv("SMCR_FLIP"))) /* a way back to TCP makes another edge of it, and of an end each change does */
            return;
        n = epoll_wait(et, e, 2, 0), say("edge: %d %s", n, n ? epoll_text(e[0].events) : "");
        break;
    case 7: n = ioctl(f, FIONREAD, &v), say("unread: %d %d", n, v); break;
    case 8: n = getsockopt(f, SOL_SOCKET, SO_ERROR, &v, &len), say("error: %d %s", n, v ? err_name(v) : "0"); break;
    }
}

/* ---- changing ---- */

static void changes(void) {
    int i = die_of(NUMBERS), on = die_of(2), n;
    struct epoll_event level = {LEVEL, {.u64 = 7}}, edge = {edges, {.u64 = 7}};
    switch (die_of(7)) {
    case 0:
        nonblocking(fd[i], on), nonblock = on;
        say("O_NONBLOCK %d", on);
        break;
    case 1:
        timeouts(fd[i], SO_RCVTIMEO, on * 3), patience = on;
        say("SO_RCVTIMEO %d", on * 3);
        break;
    case 2:
        if (i == 0)
            return;
        n = dup(fd[die_of(NUMBERS)]);
        close(fd[i]), fd[i] = MUST(n);
        say("dup");
        break;
    case 3:
        if (i == 0)
            return;
        MUST(dup3(fd[die_of(i)], fd[i], O_CLOEXEC));
        say("dup3");
        break;
    case 4:
        MUST(epoll_ctl(et, EPOLL_CTL_MOD, fd[0], &edge));
        say("edge again");
        break;
    case 5:
        MUST(epoll_ctl(lt, EPOLL_CTL_DEL, fd[0], NULL));
        MUST(epoll_ctl(lt, EPOLL_CTL_ADD, fd[0], &level));
        say("level again");
        break;
    case 6:
        sol_int(fd[i], IPPROTO_TCP, TCP_QUICKACK, on);
        say("quick %d", on);
        break;
    }
}

/* A child makes the call, and ends. */
static void in_a_child(void) {
    int p[2];
    MUST(pipe(p));
    pid_t child = MUST(fork());
    long two[2];
    if (child == 0) {
        if (die_of(2))
            sends();
        else
            receives();
        two[0] = put_now, two[1] = got_now;
        _exit(write(p[1], two, sizeof two) == sizeof two ? 0 : 95);
    }
    close(p[1]);
    if (read(p[0], two, sizeof two) != sizeof two)
        die("child");
    close(p[0]);
    put_now = two[0], got_now = two[1];
    wait_for(child);
    die_of(2);
}

static void shuts(void) {
    int how = die_of(4) ? SHUT_WR : SHUT_RD;
    if (over_in || over_out) /* what comes then is a reset, which passes what was sent before */
        return;
    say("shutdown %d: %d", how, shutdown(number(), how));
    over_in |= how == SHUT_RD;
    over_out |= how == SHUT_WR;
}

/* What may happen to a connection. */
enum { SHUT = 1, CHILDREN = 2 };
static void step(unsigned kind) {
    unsigned which = die_of(100);
    put_now = got_now = 0;
    if (kind & CHILDREN && which < 5)
        in_a_child();
    else if (kind & SHUT && which == 0)
        shuts();
    else if (which < 42)
        sends();
    else if (which < 74)
        receives();
    else if (which < 92)
        asks();
    else
        changes();
}

/* ---- a walk ---- */

static void opened(int s) {
    struct epoll_event level = {LEVEL, {.u64 = 7}}, edge = {edges, {.u64 = 7}};
    lt = MUST(epoll_create1(EPOLL_CLOEXEC)), et = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(lt, EPOLL_CTL_ADD, s, &level));
    MUST(epoll_ctl(et, EPOLL_CTL_ADD, s, &edge));
}

static void end(void) {
    if (!die_of(5)) {
        struct linger l = {1, 0};
        say("linger 0");
        MUST(setsockopt(fd[0], SOL_SOCKET, SO_LINGER, &l, sizeof l));
    }
    close_numbers();
    close(lt), close(et);
}

static void walk(unsigned seed, unsigned kind) {
    edges = kind & SHUT ? EDGE & ~(uint32_t)EPOLLOUT : EDGE;
    take_turns("WALK", seed, kind);
}
static void plain_1(void) { walk(1, 0); }
static void plain_2(void) { walk(3, 0); }
static void shut_1(void) { walk(5, SHUT); }
static void shut_2(void) { walk(7, SHUT); }
static void children_1(void) { walk(8, CHILDREN); }
static void children_2(void) { walk(6, CHILDREN); }

const struct test tests[] = {{"plain_1", plain_1, plain_1, COLD | SWITCHES},
                             {"plain_2", plain_2, plain_2, COLD | SWITCHES},
                             {"shut_1", shut_1, shut_1, COLD | SWITCHES},
                             {"shut_2", shut_2, shut_2, COLD | SWITCHES},
                             {"children_1", children_1, children_1, COLD | SWITCHES},
                             {"children_2", children_2, children_2, COLD | SWITCHES},
                             {0}};
