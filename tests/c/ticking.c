/* Owns: a reader that comes each few milliseconds and takes all there is, for which megabytes may lie in memory: whole streams, and what becomes of
 * all that is unread at a fork, an exec, a way back to TCP and the end of its sender. */
#include "given.h"

enum { BLOCK = 64 * KIB, LOT = 24 * MIB };
static char buf[256 * KIB];

static void give(int fd, uint64_t from, uint64_t to, size_t block) {
    for (uint64_t o = from; o < to;) {
        size_t n = block < to - o ? block : to - o;
        fill(buf, n, o, 7);
        put(fd, buf, n);
        o += n;
    }
    payload(to - from);
}
static void take(int fd, uint64_t from, uint64_t to, int ms) {
    for (uint64_t o = from; o < to;) {
        size_t n = sizeof buf < to - o ? sizeof buf : to - o;
        ssize_t r = recv(fd, buf, n, ms ? MSG_DONTWAIT : 0);
        if (r < 0 && errno == EAGAIN && ms) {
            usleep(1000 * ms);
            continue;
        }
        if (r <= 0 || !matches(buf, r, o, 7))
            die("bytes differ, or are missing");
        o += r;
    }
    say("whole from %llu to %llu", (unsigned long long)from, (unsigned long long)to);
}

static void stream_a(void) {
    int fd = conn();
    give(fd, 0, LOT, BLOCK);
    echo(fd, "behind it", 3);
    give(fd, 0, LOT / 2, 200); /* small ones */
    small_talk(fd, 500);
    close(fd);
}
static void stream_b(void) {
    int fd = conn();
    take(fd, 0, LOT, 3);
    size_t n = get(fd, buf, 20000);
    put(fd, buf, n);
    take(fd, 0, LOT / 2, 2);
    small_talk(fd, 500);
    say("end %zd", recv(fd, buf, 1, 0));
    close(fd);
}

static void polled_a(void) {
    int fd = conn();
    nonblocking(fd, 1);
    for (uint64_t o = 0; o < LOT;) {
        size_t n = BLOCK < LOT - o ? BLOCK : LOT - o;
        fill(buf, n, o, 7);
        ssize_t r = send(fd, buf, n, 0);
        if (r < 0 && errno == EAGAIN)
            MUST(poll(&(struct pollfd){fd, POLLOUT, 0}, 1, 20000));
        else
            o += MUST(r);
    }
    payload(LOT);
    nonblocking(fd, 0);
    echo(fd, "behind it", 3);
    close(fd);
}
static void polled_b(void) {
    int fd = conn();
    take(fd, 0, LOT, 3);
    echo_until_end(fd);
}

/* Half of it by ticks, then as much as there is room for lies unread. */
static int half(void) {
    int fd = conn();
    take(fd, 0, LOT / 2, 3);
    usleep(100000);
    return fd;
}
static void half_a(void) {
    int fd = conn();
    give(fd, 0, LOT, BLOCK);
    echo(fd, "behind it", 3);
    close(fd);
}
static void forked_b(void) {
    int fd = half();
    pid_t child = MUST(fork());
    if (child == 0) {
        take(fd, LOT / 2, LOT / 4 * 3, 0);
        _exit(0);
    }
    wait_for(child);
    take(fd, LOT / 4 * 3, LOT, 3);
    echo_until_end(fd);
}
static void executed_b(char **env) {
    int fd = half();
    char role[40];
    sprintf(role, "takes %d", fd);
    wait_for(start(FORK, role, env));
    take(fd, LOT / 4 * 3, LOT, 3);
    echo_until_end(fd);
}
static void with_b(void) { executed_b(environ); }
static void without_b(void) { executed_b(without()); }
static void executed(void) {
    int fd;
    if (sscanf(getenv("EXEC_ROLE"), "takes %d", &fd) == 1)
        take(fd, LOT / 2, LOT / 4 * 3, 0);
}

/* An option that is TCP's alone. */
static void to_tcp_b(void) {
    int fd = half();
    char name[16] = "";
    socklen_t len = sizeof name;
    setsockopt(fd, IPPROTO_TCP, TCP_ULP, "none", 4);
    getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &len);
    take(fd, LOT / 2, LOT, 3);
    echo_until_end(fd);
}

/* Its sender has ended with megabytes unread. */
static void left_a(void) {
    int fd = conn();
    give(fd, 0, LOT, BLOCK);
    exit(0);
}
static void left_b(void) {
    int fd = half();
    take(fd, LOT / 2, LOT, 20);
    say("end %zd", recv(fd, buf, 1, 0));
    close(fd);
}

const struct test tests[] = {{"stream", stream_a, stream_b, 0}, {"polled", polled_a, polled_b, 0}, {"forked", half_a, forked_b, 0},
                             {"with", half_a, with_b, 0},       {"without", half_a, without_b, 0}, {"to_tcp", half_a, to_tcp_b, 0},
                             {"left", left_a, left_b, 0},       {"executed", executed, executed, ROLE}, {0}};
