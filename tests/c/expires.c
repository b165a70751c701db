/* Owns: SO_RCVTIMEO and SO_SNDTIMEO that end each call that waits: with nothing moved, and where a part was. The connection serves on afterwards. */
#include "each_call.h"

enum { LIMIT_MS = 120 };

static void expired(const char *name, long n) {
    int e = errno;
    say("%s = %ld %s", name, n, n < 0 ? err_name(e) : "");
}

/* ---- nothing comes ---- */

static void nothing_a(void) {
    int fd = ready(conn());
    timeouts(fd, SO_RCVTIMEO, LIMIT_MS);
    for (int turn = 0; turn < 2; turn++) /* the second one after a wait that nothing has ended but its limit */
        for (const struct call *c = receives; c->name; c++) {
            char one = 'a';
            expired(c->name, (errno = 0, c->wait(fd)));
            if (turn == 0 && (send(fd, &one, 1, 0) != 1 || get(fd, &one, 1) != 1 || one != 'a'))
                die("it serves no more");
        }
    R(shutdown(fd, SHUT_WR));
    timeouts(fd, SO_RCVTIMEO, 0);
    R(recv(fd, buf, 1, 0));
    meet();
}
static void nothing_b(void) {
    echo_until_end(conn());
    meet();
}

/* Three bytes come, and no more: what waits for more ends with them. */
static long p_waitall(int fd) { return recv(fd, buf, 10, MSG_WAITALL); }
static long p_waitall_peek(int fd) { return recv(fd, buf, 10, MSG_WAITALL | MSG_PEEK); }
static long p_recvfrom(int fd) { return recvfrom(fd, buf, 10, MSG_WAITALL, NULL, NULL); }
static long p_recvmsg(int fd) {
    struct iovec v[2] = {{buf, 1}, {buf + 1, 9}};
    return recvmsg(fd, &(struct msghdr){.msg_iov = v, .msg_iovlen = 2}, MSG_WAITALL);
}
/* One message, and none. */
static long p_recvmmsg(int fd) {
    struct iovec more = {buf + 3, 3};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = &three, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &more, .msg_iovlen = 1}}};
    return recvmmsg(fd, m, 2, 0, NULL);
}
static long p_recvmmsg_all(int fd) {
    struct iovec five = {buf, 5};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = &five, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &three, .msg_iovlen = 1}}};
    long n = recvmmsg(fd, m, 2, MSG_WAITALL, NULL);
    return n == 1 ? m[0].msg_len : -100 - n;
}
static long p_low_water(int fd) {
    sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 10);
    long n = read(fd, buf, 10);
    sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    return n;
}
static long p_splice(int fd) { return splice(fd, NULL, pipes[1], NULL, 10, 0); }
static const struct call parts_in[] = {{"waitall", p_waitall},   {"waitall, peek", p_waitall_peek}, {"recvfrom", p_recvfrom}, {"recvmsg", p_recvmsg},
                                       {"recvmmsg", p_recvmmsg}, {"recvmmsg, waitall", p_recvmmsg_all}, {"low water", p_low_water},
                                       {"splice", p_splice},     {0}};
static void some_a(void) {
    int fd = ready(conn());
    timeouts(fd, SO_RCVTIMEO, LIMIT_MS);
    for (const struct call *c = parts_in; c->name; c++) {
        memset(buf, '.', 10);
        meet();
        meet_settled();
        expired(c->name, (errno = 0, c->wait(fd)));
        if (c->wait == p_splice)
            MUST(read(pipes[0], buf, 3));
        if (c->wait == p_waitall_peek)
            MUST(recv(fd, buf, 3, 0));
        say("%.10s, left %d", buf, now_in(fd));
        expired("then", (errno = 0, recv(fd, buf, 3, 0)));
    }
    meet();
}
static void some_b(void) {
    int fd = conn();
    for (const struct call *c = parts_in; c->name; c++) {
        meet();
        put(fd, "abc", 3);
        meet_settled();
    }
    meet();
}

/* ---- nothing goes ---- */

static void full_a(void) {
    int fd = conn();
    wanted = POLLOUT;
    ready(fd);
    long all = glut(fd);
    timeouts(fd, SO_SNDTIMEO, LIMIT_MS);
    for (const struct call *c = sends; c->name; c++)
        expired(c->name, (errno = 0, c->wait(fd)));
    say("in the pipe %d", now_in(pipes[0]));
    tell_pid((pid_t)all);
    hear(); /* it is empty */
    for (const struct call *c = sends; c->name; c++)
        expired(c->name, (errno = 0, c->wait(fd)));
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
    meet();
}
static void full_b(void) {
    int fd = conn();
    for (long all = hear_pid(), n; all > 0; all -= n)
        if ((n = recv(fd, buf, all < (long)sizeof buf ? (size_t)all : sizeof buf, 0)) <= 0)
            die("early end");
    say("rest %d", now_in(fd));
    tell('d');
    long n, all = 0;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
        all += n;
    say("%ld, then %ld", all, n);
    close(fd);
    meet();
}

/* A part goes: as many bytes as the call says, and those. */
enum { MESSAGES = 32, EACH = MIB, BIG = MESSAGES * EACH };
static char *big;
static int big_file;
static struct iovec v_big[MESSAGES];
static struct msghdr m_big = {.msg_iov = v_big, .msg_iovlen = MESSAGES};
static long b_send(int fd) { return send(fd, big, BIG, 0); }
static long b_write(int fd) { return write(fd, big, BIG); }
static long b_writev(int fd) { return writev(fd, v_big, MESSAGES); }
static long b_sendto(int fd) { return sendto(fd, big, BIG, 0, NULL, 0); }
static long b_sendmsg(int fd) { return sendmsg(fd, &m_big, 0); }
static long b_sendmmsg(int fd) {
    static struct mmsghdr m[MESSAGES];
    for (int i = 0; i < MESSAGES; i++)
        m[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &v_big[i], .msg_iovlen = 1}};
    long all = 0, n = sendmmsg(fd, m, MESSAGES, 0);
    for (int i = 0; i < n; i++)
        all += m[i].msg_len;
    return n < 0 ? n : all;
}
static long b_pwritev2(int fd) { return pwritev2(fd, v_big, MESSAGES, -1, 0); }
static long b_sendfile(int fd) {
    off_t at = 0;
    long n = sendfile(fd, big_file, &at, BIG);
    if (n >= 0 && n != at)
        say("the file's offset is another");
    return n;
}
static const struct call parts_out[] = {{"send", b_send},         {"write", b_write},         {"writev", b_writev},     {"sendto", b_sendto}, {"sendmsg", b_sendmsg},
                                        {"sendmmsg", b_sendmmsg}, {"pwritev2", b_pwritev2}, {"sendfile", b_sendfile}, {0}};
static void part_a(void) {
    int fd = conn();
    MUST(big_file = memfd_create("big", MFD_CLOEXEC));
    big = malloc(BIG);
    fill(big, BIG, 0, 1);
    if (pwrite(big_file, big, BIG, 0) != BIG)
        die("file");
    for (int i = 0; i < MESSAGES; i++)
        v_big[i] = (struct iovec){big + (long)i * EACH, EACH};
    timeouts(fd, SO_SNDTIMEO, LIMIT_MS);
    for (const struct call *c = parts_out; c->name; c++) {
        errno = 0;
        long n = c->wait(fd);
        if (n < 0)
            expired(c->name, n);
        else
            say("%s: some %d, all %d", c->name, n > 0, n == BIG);
        tell_pid((pid_t)n);
        hear();
    }
    meet();
}
static void part_b(void) {
    int fd = conn();
    for (const struct call *c = parts_out; c->name; c++) {
        long all = hear_pid(), at = 0;
        while (at < all) {
            size_t n = all - at < (long)sizeof buf ? (size_t)(all - at) : sizeof buf;
            if (get(fd, buf, n) != n || !matches(buf, n, at, 1))
                die("other bytes");
            at += n;
        }
        settle();
        say("rest %d", now_in(fd));
        tell('d');
    }
    meet();
}

const struct test tests[] = {{"nothing_comes", nothing_a, nothing_b, SLOW},
                             {"some_come", some_a, some_b, SLOW},
                             {"nothing_goes", full_a, full_b, SLOW},
                             {"some_go", part_a, part_b, SLOW},
                             {0}};
