/* Owns: SO_PEEK_OFF set while the connection is in memory: what is not copied, what lies behind the offset, and amounts that come in parts. */
#include "case.h"

static char buf[100];

static void offset_of(int fd) {
    int at = -77;
    socklen_t l = sizeof at;
    if (getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &at, &l) < 0)
        say("SO_PEEK_OFF: %s", err_name(errno)); /* kernels before 6.9 */
    else
        say("offset %d", at);
}
static int offset(int fd, int at) {
    int r = setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &at, sizeof at);
    say("offset %d: %s", at, r < 0 ? err_name(errno) : "set");
    return r == 0;
}
static void peek(int fd, void *to, size_t len, int flags) {
    memset(buf, '.', sizeof buf);
    ssize_t n = recv(fd, to, len, MSG_PEEK | flags);
    say("peek(%zu, %#x) = %zd %s %.12s", len, flags, n, n < 0 ? err_name(errno) : "", buf);
    offset_of(fd);
}
static void rest(int fd, size_t len) {
    size_t n = get(fd, buf, len);
    say("%zu %.*s", n, (int)n, buf);
}
static void ten_b(void) {
    int fd = conn();
    put(fd, "0123456789", 10);
    meet_settled();
    meet();
}

static void nothing_copied_a(void) {
    int fd = conn();
    meet_settled();
    if (offset(fd, 0))
        for (int i = 0; i < 2; i++) {
            peek(fd, NULL, i ? 100 : 3, MSG_TRUNC | MSG_DONTWAIT);
            offset(fd, 4);
        }
    peek(fd, buf, 3, MSG_TRUNC | MSG_DONTWAIT);
    peek(fd, (void *)16, 3, MSG_DONTWAIT);
    rest(fd, 10);
    meet();
}

/* Behind all that is there, and the end, there is the end. */
static void end_a(void) {
    int fd = conn();
    meet_settled();
    if (offset(fd, 0)) {
        peek(fd, buf, 0, 0);
        peek(fd, buf, 10, 0);
        peek(fd, buf, 10, MSG_DONTWAIT);
        peek(fd, buf, 0, MSG_DONTWAIT);
        meet();
        meet_settled();
        peek(fd, buf, 10, MSG_DONTWAIT);
        peek(fd, buf, 0, MSG_DONTWAIT);
        peek(fd, buf, 10, 0);
        offset(fd, 8);
        peek(fd, buf, 0, MSG_WAITALL);
        peek(fd, buf, 10, MSG_WAITALL);
        offset(fd, 50);
        peek(fd, buf, 10, 0);
    } else {
        meet();
        meet_settled();
    }
    offset(fd, -1);
    rest(fd, 11);
}
static void end_b(void) {
    int fd = conn();
    put(fd, "0123456789", 10);
    meet_settled();
    meet();
    shutdown(fd, SHUT_WR);
    meet_settled();
    get(fd, buf, 1);
}

/* The same of a reset. */
static void reset_a(void) {
    int fd = conn();
    meet_settled();
    if (offset(fd, 0)) {
        peek(fd, buf, 10, 0);
        peek(fd, buf, 10, 0);
        peek(fd, buf, 10, 0);
    }
    R(recv(fd, buf, 4, 0));
}
static void reset_b(void) {
    int fd = conn();
    put(fd, "0123456789", 10);
    settle();
    struct linger l = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(fd);
    meet_settled();
}

/* Four bytes, and four later; then four, and the end. */
static void in_parts_of(int fd) {
    meet_settled();
    if (offset(fd, 0)) {
        meet();
        peek(fd, buf, 8, MSG_WAITALL);
        peek(fd, buf, 8, MSG_DONTWAIT);
        offset(fd, 2);
        peek(fd, buf, 4, MSG_WAITALL);
        offset(fd, 8);
        meet();
        peek(fd, buf, 8, MSG_WAITALL);
    } else {
        meet();
        meet();
    }
    offset(fd, -1);
    rest(fd, 16);
}
static void in_parts_a(void) { in_parts_of(conn()); }
/* The same where the connection is on TCP again. */
static void on_tcp_a(void) {
    int fd = conn();
    setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &(int){0}, sizeof(int)); /* refused, or not: no ring from then on */
    meet();
    in_parts_of(fd);
}
static void in_parts_to(int fd) {
    put(fd, "0123", 4);
    meet_settled();
    meet();
    settle();
    put(fd, "4567", 4);
    meet();
    settle();
    put(fd, "89ab", 4);
    settle();
    shutdown(fd, SHUT_WR);
    get(fd, buf, 1);
}

static void in_parts_b(void) { in_parts_to(conn()); }
static void on_tcp_b(void) {
    int fd = conn();
    meet();
    in_parts_to(fd);
}

const struct test tests[] = {{"nothing_copied", nothing_copied_a, ten_b, 0},
                             {"end", end_a, end_b, 0},
                             {"reset", reset_a, reset_b, 0},
                             {"in_parts", in_parts_a, in_parts_b, 0},
                             {"in_parts_on_tcp", on_tcp_a, on_tcp_b, 0},
                             {0}};
