/* Owns: random walks as in walks.c through the calls that programs make rarely: low-water marks, offsets of PEEK, many messages, buffers that are nowhere,
 * files and pipes at their ends, signals, options and names asked for, shutdowns of every kind, and calls behind them. RAMBLE_SEED=N walks another way. */
enum { CONNECTIONS = 4, NUMBERS = 3, WARM_UP = 60, TAIL = 25, TAIL_WAITS = 1 };
#include "turns.h"

enum { MESSAGES = 4 };

static int low, peek_off; /* SO_RCVLOWAT; SO_PEEK_OFF is set */
static volatile sig_atomic_t rings;

static void on_alarm(int sig) { rings++; }
static long some(void) {
    static const int sizes[] = {0, 1, 1, 2, 3, 5, 8, 13, 16, 40, 64, 100, 300, 1000, 4096, 5000, 20000};
    return sizes[die_of(sizeof sizes / sizeof *sizes)];
}
static long closed(const int *fds, int n, long r) {
    int e = errno;
    for (int i = 0; i < n; i++)
        close(fds[i]);
    errno = e;
    return r;
}

/* ---- sending ---- */

/* A file that is shorter than what is asked for, by its own position or another one. */
static long by_file(int to, long n) {
    int f = MUST(memfd_create("ramble", MFD_CLOEXEC));
    off_t at = die_of(4);
    long cut = die_of(3) ? 0 : die_of(2) ? n / 2 : n;
    MUST(pwrite(f, buf, n, at));
    MUST(ftruncate(f, at + n - cut));
    int by_position = die_of(2);
    if (by_position)
        MUST(lseek(f, at, SEEK_SET));
    long r = sendfile(to, f, by_position ? NULL : &at, n);
    int e = errno;
    say("sendfile: of %ld, position %ld, %ld", n - cut, (long)lseek(f, 0, SEEK_CUR), (long)at);
    errno = e;
    return closed(&f, 1, r);
}
/* A pipe that has less than is asked for, and perhaps nobody who writes. */
static long by_pipe(int to, long n) {
    int p[2], is_over = die_of(2);
    unsigned flags = die_of(2) ? SPLICE_F_NONBLOCK : 0;
    long has = die_of(3) ? n : n / 2;
    MUST(pipe(p));
    MUST(fcntl(p[1], F_SETPIPE_SZ, 64 * KIB));
    MUST(write(p[1], buf, has));
    if (is_over)
        close(p[1]);
    if (!has && !is_over)
        flags = SPLICE_F_NONBLOCK;
    long all = 0, r = 0;
    while (all < has && (r = splice(p[0], NULL, to, NULL, n - all, flags)) > 0)
        all += r;
    if (has == all && n > 0) { /* and once more, behind all of it */
        r = splice(p[0], NULL, to, NULL, 10, is_over ? flags : SPLICE_F_NONBLOCK);
        say("splice at the end: %ld %s", r, r < 0 ? err_name(errno) : "");
        r = all ? 0 : r;
    }
    return closed(p, is_over ? 1 : 2, all ? all : r);
}

static void sends(void) {
    long n = some(), r;
    int to = number(), flags = die_of(3) ? MSG_NOSIGNAL : 0;
    if (out + n > MOST_IN_FLIGHT)
        n = 1;
    flags |= die_of(4) ? 0 : MSG_DONTWAIT;
    flags |= die_of(6) ? 0 : MSG_EOR;
    fill_by_dice(n);
    struct iovec v[MESSAGES];
    struct mmsghdr m[MESSAGES];
    for (int i = 0; i < MESSAGES; i++) {
        v[i] = (struct iovec){buf + n / MESSAGES * i, i == 2 ? 0 : n / MESSAGES};
        m[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &v[i], .msg_iovlen = 1}, .msg_len = 7};
    }
    const char *call;
    switch (die_of(10)) {
    default: r = send(to, buf, n, flags), call = "send"; break;
    case 1: r = by_file(to, n), call = "sendfile", flags = 0; break;
    case 2: r = by_pipe(to, n), call = "splice", flags = 0; break;
    case 3: {
        long sum = 0;
        r = sendmmsg(to, m, MESSAGES, flags), call = "sendmmsg";
        int e = errno;
        for (long i = 0; i < r; i++)
            say("  %u", m[i].msg_len), sum += m[i].msg_len;
        errno = e;
        r = r < 0 ? r : sum;
        break;
    }
    case 4: r = pwritev2(to, v, MESSAGES, -1, flags & MSG_DONTWAIT ? RWF_NOWAIT : 0), call = "pwritev2"; break;
    case 5:
        v[0] = (struct iovec){buf, n < 100 ? n : 100}, v[1] = (struct iovec){die_of(2) ? NULL : (void *)-100, 10};
        r = writev(to, v, 2), call = "writev into nothing", flags = 0;
        break;
    case 6: r = send(to, NULL, die_of(2) ? n : 0, flags), call = "send of nothing"; break;
    case 7: r = write(to, buf, 0), call = "write", n = 0, flags = 0; break;
    }
    told(call, n, flags, r, NULL);
    put_now = r > 0 ? r : 0;
}

/* ---- receiving ---- */

static int ends(void) { return gone || over_in; }
/* What a peek finds: behind its offset. */
static long there(int f, int flags) {
    int at = -1;
    socklen_t len = sizeof at;
    if (peek_off && flags & MSG_PEEK)
        getsockopt(f, SOL_SOCKET, SO_PEEK_OFF, &at, &len);
    return at > 0 ? in - at : in;
}
static int is_enough(long n, long have) { return nonblock || patience || ends() || (have > 0 && have >= (n < low ? n : low)); }

static long to_pipe(int from, long n) {
    int p[2];
    MUST(pipe(p));
    long r = die_of(2) ? splice(from, NULL, p[1], NULL, n, die_of(2) ? SPLICE_F_NONBLOCK : SPLICE_F_MORE) : sendfile(p[1], from, NULL, n);
    if (r > 0 && read(p[0], buf, r) != r)
        die("pipe");
    return closed(p, 2, r);
}

static void receives(void) {
    long n = some(), r;
    int from = number(), flags = 0;
    if (!die_of(3))
        flags |= MSG_PEEK;
    if (!die_of(6))
        flags |= MSG_TRUNC;
    int behind = peek_off && flags & MSG_PEEK;
    if (behind && n < MESSAGES)
        n = MESSAGES; /* for no bytes TCP waits, where nothing lies behind the offset; here there are none */
    long have = there(from, flags);
    if (!die_of(3) && (have >= n || ends()))
        flags |= MSG_WAITALL;
    int is_sure = is_enough(n, have);
    if (!is_sure || !die_of(3))
        flags |= MSG_DONTWAIT;
    int takes = !(flags & MSG_PEEK);
    char control[100];
    struct iovec v[MESSAGES];
    struct mmsghdr m[MESSAGES];
    memset(buf, 0, n);
    for (int i = 0; i < MESSAGES; i++) {
        v[i] = (struct iovec){buf + n / MESSAGES * i, i == 2 && !behind ? 0 : n / MESSAGES};
        m[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &v[i], .msg_iovlen = 1}, .msg_len = 7};
    }
    struct msghdr h = {.msg_iov = v, .msg_iovlen = MESSAGES, .msg_control = control, .msg_controllen = die_of(2) ? sizeof control : 18};
    struct timespec none = {0, 0};
    const char *call;
    switch (die_of(12)) {
    default: r = recv(from, buf, n, flags), call = "recv"; break;
    case 1:
        r = recvmsg(from, &h, flags), call = "recvmsg";
        if (r >= 0) {
            int e = errno, unread = -1;
            if (h.msg_controllen >= 20 && !gone) /* an end counts as a byte, a reset does not */
                memcpy(&unread, control + 16, 4);
            say("recvmsg: flags %#x, control %zu, %d", h.msg_flags, h.msg_controllen, h.msg_controllen ? unread : 0);
            errno = e;
        }
        break;
    case 2: case 3: {
        long sum = 0;
        int wait = die_of(2) ? MSG_WAITFORONE : MSG_DONTWAIT;
        if (!is_sure || low > 1)
            flags |= MSG_DONTWAIT;
        flags &= ~MSG_WAITALL;
        r = recvmmsg(from, m, MESSAGES, flags | wait, die_of(4) ? NULL : &none), call = "recvmmsg";
        int e = errno;
        for (long i = 0; i < r; i++)
            say("  %u %#x", m[i].msg_len, m[i].msg_hdr.msg_flags), sum += m[i].msg_len;
        errno = e;
        flags |= wait;
        r = r < 0 ? r : sum > n ? n : sum;
        break;
    }
    case 4:
        r = preadv2(from, v, MESSAGES, -1, is_sure && die_of(2) ? 0 : RWF_NOWAIT), call = "preadv2", takes = 1, flags = 0;
        break;
    case 5:
        v[0] = (struct iovec){die_of(2) ? NULL : (void *)-100, 10}, v[1] = (struct iovec){buf, 10};
        if (!nonblock && !patience && in == 0 && !ends())
            return say("nothing for nothing");
        if (!nonblock && low > 20)
            return say("too little for nothing");
        r = readv(from, v, 2), call = "readv into nothing", takes = 1, flags = 0, n = 20;
        break;
    case 6:
        if (!nonblock && !patience && in == 0 && !ends())
            return say("nothing to splice");
        if (peek_off)
            return say("its offset stays"); /* natively; here it moves, as by any read */
        if (n == 0)
            n = 1;
        r = to_pipe(from, n > 4000 ? 4000 : n), call = "splice in", takes = 1, flags = 0;
        break;
    case 7:
        rings = 0;
        if (in > 0 || nonblock || ends() || patience)
            return say("nothing to interrupt");
        tick(2, 0);
        r = recv(from, buf, n, flags & ~MSG_DONTWAIT), call = "recv interrupted", flags &= ~MSG_DONTWAIT;
        say("rings %d", (int)rings);
        tick(0, 0);
        break;
    case 8: r = is_sure ? read(from, buf, n) : 0, call = "read", takes = 1, flags = 0; break;
    }
    told(call, n, flags, r, buf);
    got_now = r > 0 && takes ? r : 0;
}

/* ---- asking ---- */

static void option(int f, const char *what, int level, int name) {
    int v = -7;
    socklen_t len = sizeof v;
    int r = getsockopt(f, level, name, &v, &len);
    say("%s: %d %d %u", what, r, v, len);
}
static void asks(void) {
    struct sockaddr_in at = {0};
    socklen_t len = sizeof at;
    int f = number(), v = -1, r;
    char info[8];
    switch (die_of(16)) {
    case 0: case 1: say("poll: %s", poll_text(events(f, POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0))); break;
    case 2: r = ioctl(f, FIONREAD, &v), say("unread: %d %d", r, v); break;
    case 3: option(f, "type", SOL_SOCKET, SO_TYPE), option(f, "accepts", SOL_SOCKET, SO_ACCEPTCONN); break;
    case 4: r = ioctl(f, SIOCATMARK, &v), say("at mark: %d %d", r, v); break;
    case 5: r = getsockopt(f, SOL_SOCKET, SO_ERROR, &v, &len), say("error: %d %s", r, v ? err_name(v) : "0"); break;
    case 6: r = getpeername(f, (void *)&at, &len), say("peer: %d %s", r, r < 0 ? err_name(errno) : ""); break;
    case 7: r = getsockname(f, (void *)&at, &len), say("name: %d %s", r, r < 0 ? err_name(errno) : ""); break;
    case 8: option(f, "no delay", IPPROTO_TCP, TCP_NODELAY), option(f, "cork", IPPROTO_TCP, TCP_CORK); break;
    case 9: option(f, "low water", SOL_SOCKET, SO_RCVLOWAT), option(f, "peek offset", SOL_SOCKET, SO_PEEK_OFF); break;
    case 10: option(f, "inq", IPPROTO_TCP, 36), option(f, "keep alive", SOL_SOCKET, SO_KEEPALIVE); break;
    case 11:
        len = sizeof info;
        r = getsockopt(f, IPPROTO_TCP, TCP_INFO, info, &len);
        say("state: %d %d", r, r ? 0 : info[0]);
        break;
    case 12:
        at = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        if (!gone && !over_out && !over_in)
            r = connect(f, (void *)&at, sizeof at), say("connect: %d %s", r, err_name(errno));
        break;
    case 13:
        if (!gone && !over_out && !over_in)
            r = listen(f, 1), say("listen: %d %s", r, err_name(errno));
        break;
    case 14: r = accept4(f, NULL, NULL, SOCK_NONBLOCK), say("accept: %d %s", r, err_name(errno)); break;
    case 15: r = recv(f, &v, 1, MSG_OOB), say("urgent: %d %s", r, r < 0 ? err_name(errno) : ""); break;
    }
}

/* ---- changing ---- */

static void changes(void) {
    static const int marks[] = {0, 1, 1, 1, 2, 10, 50, 300, 3000};
    int i = die_of(NUMBERS), on = die_of(2), n;
    struct iovec v = {buf, 1};
    switch (die_of(10)) {
    case 0: nonblocking(fd[i], on), nonblock = on, say("O_NONBLOCK %d", on); break;
    case 1: timeouts(fd[i], SO_RCVTIMEO, on * 3), patience = on, say("SO_RCVTIMEO %d", on); break;
    case 2: timeouts(fd[i], SO_SNDTIMEO, on * 1000), say("SO_SNDTIMEO %d", on); break;
    case 3: case 4:
        n = marks[die_of(sizeof marks / sizeof *marks)];
        sol_int(fd[i], SOL_SOCKET, SO_RCVLOWAT, n), low = n ? n : 1;
        say("SO_RCVLOWAT %d", n);
        break;
    case 5:
        n = on ? (int)die_of(10) : -1;
        say("SO_PEEK_OFF %d: %d", n, setsockopt(fd[i], SOL_SOCKET, SO_PEEK_OFF, &n, sizeof n));
        peek_off = on;
        break;
    case 6: sol_int(fd[i], IPPROTO_TCP, 36, on), say("TCP_INQ %d", on); break;
    case 7: sol_int(fd[i], IPPROTO_TCP, TCP_NODELAY, 1), say("TCP_NODELAY"); break;
    case 8:
        if (i > 0)
            n = dup(fd[0]), close(fd[i]), fd[i] = MUST(n), say("dup");
        break;
    case 9: n = vmsplice(fd[i], &v, 1, 0), say("vmsplice: %d %s", n, err_name(errno)); break;
    }
}

static void shuts(void) {
    int how = (int)die_of(4); /* one of them is none */
    if (how != 3 && how != SHUT_WR && in > 0 && !die_of(2))
        return;
    int r = shutdown(number(), how);
    say("shutdown %d: %d %s", how, r, r < 0 ? err_name(errno) : "");
    if (how == 3)
        return;
    over_in |= how != SHUT_WR;
    over_out |= how != SHUT_RD;
    shut_now = 1 + how;
}

enum { SHUT = 1 };
static void step(unsigned kind) {
    unsigned which = die_of(100);
    put_now = got_now = shut_now = 0;
    if (kind & SHUT && which < 3)
        shuts();
    else if (which < 38)
        sends();
    else if (which < 68)
        receives();
    else if (which < 88)
        asks();
    else
        changes();
}

/* ---- a walk ---- */

static void opened(int s) {
    peek_off = 0;
    low = 1;
}

static void end(void) {
    if (!die_of(5)) {
        struct linger l = {1, 0};
        say("linger 0: %d", setsockopt(fd[0], SOL_SOCKET, SO_LINGER, &l, sizeof l));
    }
    close_numbers();
}

static void ramble(unsigned seed, unsigned kind) {
    on_signal(SIGALRM, on_alarm, 0);
    take_turns("RAMBLE", seed, kind);
}

static void plain_1(void) { ramble(1, 0); }
static void plain_2(void) { ramble(2, 0); }
static void plain_3(void) { ramble(711002, 0); } /* what was taken up is read behind an offset of PEEK */
static void shut_1(void) { ramble(3, SHUT); }
static void shut_2(void) { ramble(4, SHUT); }

const struct test tests[] = {{"plain_1", plain_1, plain_1, COLD | SWITCHES},
                             {"plain_2", plain_2, plain_2, COLD | SWITCHES},
                             {"plain_3", plain_3, plain_3, COLD | SWITCHES},
                             {"shut_1", shut_1, shut_1, COLD | SWITCHES},
                             {"shut_2", shut_2, shut_2, COLD | SWITCHES},
                             {0}};
