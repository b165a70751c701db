/* Owns: every call that moves bytes, in blocking and non-blocking form: results, counts, data. */
#include "case.h"

enum { MSG = 3000 };
static char buf[64 * KIB], out[64 * KIB];

/* How one message of up to `len` bytes is sent and received by each family. */
typedef ssize_t (*mover)(int fd, char *p, size_t len, int flags);

static ssize_t w_write(int fd, char *p, size_t len, int f) { return write(fd, p, len); }
static ssize_t w_send(int fd, char *p, size_t len, int f) { return send(fd, p, len, f); }
static ssize_t w_sendto(int fd, char *p, size_t len, int f) { return sendto(fd, p, len, f, NULL, 0); }
static struct iovec *parts(char *p, size_t len, struct iovec v[4]) {
    size_t a = len / 7, b = len / 3;
    v[0] = (struct iovec){p, a};
    v[1] = (struct iovec){p + a, 0};
    v[2] = (struct iovec){p + a, b};
    v[3] = (struct iovec){p + a + b, len - a - b};
    return v;
}
static ssize_t w_writev(int fd, char *p, size_t len, int f) {
    struct iovec v[4];
    return writev(fd, parts(p, len, v), 4);
}
static ssize_t w_sendmsg(int fd, char *p, size_t len, int f) {
    struct iovec v[4];
    struct msghdr m = {.msg_iov = parts(p, len, v), .msg_iovlen = 4};
    return sendmsg(fd, &m, f);
}
static ssize_t w_sendmmsg(int fd, char *p, size_t len, int f) {
    struct iovec v[4];
    parts(p, len, v);
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = 3}},
                           {.msg_hdr = {.msg_iov = v + 3, .msg_iovlen = 1}}};
    int n = sendmmsg(fd, m, 2, f);
    return n < 0 ? n : (ssize_t)m[0].msg_len + (n > 1 ? (ssize_t)m[1].msg_len : 0);
}
static ssize_t w_sendfile(int fd, char *p, size_t len, int f) {
    int file = MUST(memfd_create("file", MFD_CLOEXEC));
    off_t at = 5;
    MUST(pwrite(file, p, len, at));
    ssize_t n = sendfile(fd, file, &at, len);
    if (n > 0 && at != 5 + n)
        die("sendfile: offset");
    close(file);
    return n;
}
static ssize_t w_splice(int fd, char *p, size_t len, int f) {
    int pipes[2];
    MUST(pipe(pipes));
    MUST(write(pipes[1], p, len));
    ssize_t n = splice(pipes[0], NULL, fd, NULL, len, 0);
    close(pipes[0]);
    close(pipes[1]);
    return n;
}

static ssize_t r_read(int fd, char *p, size_t len, int f) { return read(fd, p, len); }
static ssize_t r_recv(int fd, char *p, size_t len, int f) { return recv(fd, p, len, f); }
static ssize_t r_recvfrom(int fd, char *p, size_t len, int f) {
    return recvfrom(fd, p, len, f, NULL, NULL);
}
static ssize_t r_readv(int fd, char *p, size_t len, int f) {
    struct iovec v[4];
    return readv(fd, parts(p, len, v), 4);
}
static ssize_t r_recvmsg(int fd, char *p, size_t len, int f) {
    struct iovec v[4];
    struct msghdr m = {.msg_iov = parts(p, len, v), .msg_iovlen = 4};
    return recvmsg(fd, &m, f);
}
static ssize_t r_recvmmsg(int fd, char *p, size_t len, int f) {
    struct iovec v = {p, len};
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};
    int n = recvmmsg(fd, &m, 1, f, NULL);
    return n < 0 ? n : (ssize_t)m.msg_len;
}
static ssize_t r_splice(int fd, char *p, size_t len, int f) {
    int pipes[2];
    MUST(pipe(pipes));
    ssize_t n = splice(fd, NULL, pipes[1], NULL, len, 0);
    if (n > 0 && read(pipes[0], p, n) != n)
        die("splice: pipe");
    close(pipes[0]);
    close(pipes[1]);
    return n;
}

static const struct {
    const char *name;
    mover move;
} senders[] = {{"write", w_write},       {"send", w_send},         {"sendto", w_sendto},
               {"writev", w_writev},     {"sendmsg", w_sendmsg},   {"sendmmsg", w_sendmmsg},
               {"sendfile", w_sendfile}, {"splice", w_splice}},
  receivers[] = {{"read", r_read},       {"recv", r_recv},         {"recvfrom", r_recvfrom},
                 {"readv", r_readv},     {"recvmsg", r_recvmsg},   {"recvmmsg", r_recvmmsg},
                 {"splice", r_splice}};
enum { SENDERS = 8, RECEIVERS = 7 };

/* Every sender with every receiver: one message each time, one direction after the other. */
static void send_each(int fd) {
    for (int s = 0; s < SENDERS; s++)
        for (int r = 0; r < RECEIVERS; r++) {
            fill(out, MSG, s * 100 + r, 3);
            ssize_t n = senders[s].move(fd, out, MSG, 0);
            if (n != MSG)
                say("%s sent %zd %s", senders[s].name, n, err_name(errno));
            meet();
            meet();
        }
}

static void receive_each(int fd) {
    for (int s = 0; s < SENDERS; s++)
        for (int r = 0; r < RECEIVERS; r++) {
            meet();
            size_t have = 0;
            while (have < MSG) {
                ssize_t n = receivers[r].move(fd, buf + have, MSG - have, 0);
                if (n <= 0) {
                    say("%s got %zd %s", receivers[r].name, n, err_name(errno));
                    break;
                }
                have += n;
            }
            say("%s to %s: %zu whole %d", senders[s].name, receivers[r].name, have,
                matches(buf, have, s * 100 + r, 3));
            meet();
        }
}

static void blocking_a(void) {
    int fd = conn();
    send_each(fd);
    receive_each(fd);
}
static void blocking_b(void) {
    int fd = conn();
    receive_each(fd);
    send_each(fd);
}

static void dontblock_a(void) {
    int fd = conn();
    nonblocking(fd, 1);
    for (int r = 0; r < RECEIVERS - 1; r++) {
        ssize_t n = receivers[r].move(fd, buf, MSG, 0);
        say("empty: %s = %zd %s", receivers[r].name, n, n < 0 ? err_name(errno) : "");
        meet();
        meet_settled();
        n = receivers[r].move(fd, buf, MSG, 0);
        say("%s = %zd whole %d", receivers[r].name, n, n > 0 && matches(buf, n, 0, 3));
        meet();
    }
    nonblocking(fd, 0);
    for (int r = 1; r < RECEIVERS - 1; r++) {
        if (r == 3) /* readv has no flags */
            continue;
        ssize_t n = receivers[r].move(fd, buf, MSG, MSG_DONTWAIT);
        say("DONTWAIT: %s = %zd %s", receivers[r].name, n, n < 0 ? err_name(errno) : "");
    }
    meet();
}
static void dontblock_b(void) {
    int fd = conn();
    for (int r = 0; r < RECEIVERS - 1; r++) {
        meet();
        fill(out, 100 + r, 0, 3);
        put(fd, out, 100 + r);
        meet_settled();
        meet();
    }
    meet();
}

/* Random senders to random receivers, non-blocking with poll, both directions at once. */
static void mixed(int fd, unsigned seed, unsigned theirs) {
    enum { TOTAL = 6 * MIB };
    unsigned r = seed;
    uint64_t sent = 0, got = 0;
    int good = 1;
    nonblocking(fd, 1);
    while (sent < TOTAL || got < TOTAL) {
        short ev = events(fd, (got < TOTAL ? POLLIN : 0) | (sent < TOTAL ? POLLOUT : 0), -1);
        if (ev & POLLIN) {
            size_t len = rnd(&r) % sizeof buf + 1;
            ssize_t n = receivers[rnd(&r) % (RECEIVERS - 1)].move(fd, buf, len, 0);
            if (n == 0 || (n < 0 && errno != EAGAIN))
                die("mixed: receive");
            if (n > 0) {
                good = good && matches(buf, n, got, theirs);
                got += n;
            }
        }
        if ((ev & POLLOUT) && sent < TOTAL) {
            size_t len = rnd(&r) % sizeof out + 1;
            if (len > TOTAL - sent)
                len = TOTAL - sent;
            fill(out, len, sent, seed);
            /* sendmmsg's first message may be partial and the second whole: not in this one */
            int s = rnd(&r) % SENDERS;
            ssize_t n = senders[s == 5 ? 4 : s].move(fd, out, len, MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN)
                die("mixed: send");
            if (n > 0)
                sent += n;
        }
        if (ev & (POLLERR | POLLHUP))
            die("mixed: poll");
    }
    say("sent %d, got %d, whole %d", TOTAL, TOTAL, good);
    payload(sent);
    meet();
}
static void mixed_a(void) { mixed(conn(), 21, 22); }
static void mixed_b(void) { mixed(conn(), 22, 21); }

static void zero_a(void) {
    int fd = conn();
    struct iovec none = {buf, 0};
    struct msghdr m = {.msg_iov = &none, .msg_iovlen = 1}, e = {0};
    R(read(fd, buf, 0));
    R(recv(fd, buf, 0, MSG_DONTWAIT));
    R(readv(fd, &none, 1));
    R(readv(fd, NULL, 0));
    R(write(fd, buf, 0));
    R(send(fd, buf, 0, 0));
    R(writev(fd, &none, 1));
    R(sendmsg(fd, &m, 0));
    R(sendmsg(fd, &e, 0));
    meet();
    meet_settled(); /* now data waits */
    R(read(fd, buf, 0));
    R(recv(fd, buf, 0, 0));
    R(recvmsg(fd, &m, 0));
    R(now_in(fd));
    R(readv(fd, &none, 1));
    R(recv(fd, buf, 10, 0));
    R(readv(fd, &none, -1));
    R(writev(fd, &none, 2000));
    meet();
}
static void zero_b(void) {
    int fd = conn();
    meet();
    put(fd, "0123456789", 10);
    meet_settled();
    R(recv(fd, buf, 1, MSG_DONTWAIT));
    meet();
}

/* The peer goes back to TCP, and nothing is there to be received for all that. */
static void zero_switched_a(void) {
    int fd = conn();
    meet();
    R(recv(fd, buf, 0, MSG_DONTWAIT));
    timeouts(fd, SO_RCVTIMEO, 100);
    R(recv(fd, buf, 0, 0));
    meet();
    meet_settled();
    R(recv(fd, buf, 0, MSG_DONTWAIT));
    R(recv(fd, buf, 0, 0));
    R(recv(fd, buf, 10, 0));
    meet();
}
static void zero_switched_b(void) {
    int fd = conn();
    R(send(fd, buf, 0, MSG_ZEROCOPY));
    meet();
    meet();
    put(fd, "0123456789", 10);
    meet_settled();
    meet();
}

static void unseekable_a(void) {
    int fd = conn();
    struct iovec v = {buf, 4};
    R(lseek(fd, 0, SEEK_CUR));
    R(pread(fd, buf, 4, 0));
    R(pwrite(fd, buf, 4, 0));
    R(preadv(fd, &v, 1, 0));
    R(pwritev(fd, &v, 1, 0));
    R(preadv2(fd, &v, 1, 0, 0));
    R(pwritev2(fd, &v, 1, 0, 0));
    R(pwritev2(fd, &v, 1, -1, 0));
    meet_settled();
    R(preadv2(fd, &v, 1, -1, 0));
    R(matches(buf, 4, 0, 4));
    R(preadv2(fd, &v, 1, -1, RWF_NOWAIT));
    R(ftruncate(fd, 0));
    R(fsync(fd));
    R(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
    struct stat st;
    R(fstat(fd, &st));
    R(S_ISSOCK(st.st_mode));
    meet();
}
static void unseekable_b(void) {
    int fd = conn();
    fill(out, 4, 0, 4);
    say("%zu", get(fd, buf, 4));
    put(fd, out, 4);
    meet_settled();
    meet();
}

/* sendfile and splice of what is larger than any buffer, blocking. */
static void files_a(void) {
    enum { SIZE = 20 * MIB };
    int fd = conn();
    int file = MUST(memfd_create("big", MFD_CLOEXEC));
    for (off_t o = 0; o < SIZE; o += sizeof out) {
        fill(out, sizeof out, o, 9);
        MUST(pwrite(file, out, sizeof out, o));
    }
    off_t at = 0;
    while (at < SIZE)
        if (sendfile(fd, file, &at, SIZE - at) <= 0)
            die("sendfile");
    payload(SIZE);
    R(lseek(file, SIZE - 100, SEEK_SET));
    R(sendfile(fd, file, NULL, 1000));
    R(sendfile(fd, file, NULL, 1000));
    R(lseek(file, 0, SEEK_CUR));
    int pipes[2];
    MUST(pipe(pipes));
    MUST(lseek(file, 0, SEEK_SET));
    for (off_t o = 0; o < SIZE;) {
        ssize_t n = splice(file, NULL, pipes[1], NULL, SIZE - o, 0);
        if (n <= 0)
            die("splice from the file");
        for (ssize_t left = n; left > 0;) {
            ssize_t m = splice(pipes[0], NULL, fd, NULL, left, SPLICE_F_MORE);
            if (m <= 0)
                die("splice to the socket");
            left -= m;
        }
        o += n;
    }
    payload(SIZE);
    R(shutdown(fd, SHUT_WR));
    R(read(fd, buf, 1));
}
static void files_b(void) {
    enum { SIZE = 20 * MIB };
    int fd = conn();
    get_stream(fd, SIZE, 9);
    R(get(fd, buf, 100));
    say("tail %d", matches(buf, 100, SIZE - 100, 9));
    int pipes[2], good = 1;
    MUST(pipe(pipes));
    off_t o = 0;
    for (ssize_t n; (n = splice(fd, NULL, pipes[1], NULL, sizeof buf, SPLICE_F_MOVE)) > 0; o += n)
        if (read(pipes[0], buf, n) != n || !matches(buf, n, o, 9))
            good = 0;
    say("spliced %ld whole %d", (long)o, good);
    close(fd);
}

const struct test tests[] = {{"blocking", blocking_a, blocking_b, 0},
                             {"nonblocking", dontblock_a, dontblock_b, 0},
                             {"mixed", mixed_a, mixed_b, 0},
                             {"zero_length", zero_a, zero_b, 0},
                             {"zero_length_switched", zero_switched_a, zero_switched_b, 0},
                             {"unseekable", unseekable_a, unseekable_b, 0},
                             {"files", files_a, files_b, 0},
                             {0}};
