/* Owns: what is sent behind the peer's half-close: all of it stays in memory while the peer reads; a peer that reads late, shuts down
 * the other half, closes, ends or dies. Natively TCP tells of each, though the peer's end has come before. */
#include "mortal.h"

static char buf[64 * KIB];
enum { THERE = 3 * MIB, BACK = 24 * MIB };

/* ---- all of it ---- */

static void *sends(void *fd) {
    put_stream(*(int *)fd, BACK, 3);
    MUST(shutdown(*(int *)fd, SHUT_WR));
    return NULL;
}
static void echoes(void) {
    int fd = conn();
    say("poll: %s", poll_text(events(fd, POLLIN | POLLRDHUP, 20000)));
    uint64_t o = 0;
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0; o += (uint64_t)n) {
        if (!matches(buf, n, o, 3))
            die("other bytes");
        put(fd, buf, (size_t)n);
    }
    say("%llu", (unsigned long long)o);
    close(fd);
}
/* Its end comes while the most of the answer is still to be sent. */
static void hears_echo(void) {
    int fd = conn();
    pthread_t t;
    pthread_create(&t, NULL, sends, &fd);
    say("%lu", drain(fd, 3));
    pthread_join(t, NULL);
    payload(2 * (uint64_t)BACK);
}

static void asks(void) {
    int fd = conn();
    put_stream(fd, THERE, 3);
    MUST(shutdown(fd, SHUT_WR));
    say("%lu", drain(fd, 4));
    payload(THERE + (uint64_t)BACK);
}
static void answers(void) {
    int fd = conn();
    say("%lu", drain(fd, 3));
    put_stream(fd, BACK, 4);
    close(fd);
}
/* Calls that do not wait, and a set that tells of room: by level, by edge. */
static void in_set(uint32_t how) {
    int fd = conn(), ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    say("%lu", drain(fd, 3));
    nonblocking(fd, 1);
    struct epoll_event e = {EPOLLOUT | how, {.fd = fd}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    uint64_t o = 0;
    while (o < BACK) {
        if (MUST(epoll_wait(ep, &e, 1, 20000)) != 1 || !(e.events & EPOLLOUT))
            die("no room is told");
        for (ssize_t n; o < BACK; o += (uint64_t)n) {
            size_t part = BACK - o < sizeof buf ? BACK - o : sizeof buf;
            fill(buf, part, o, 4);
            if ((n = send(fd, buf, part, MSG_NOSIGNAL)) < 0)
                break;
        }
    }
    say("all sent");
    close(fd);
}
static void level(void) { in_set(0); }
static void edge(void) { in_set(EPOLLET); }

/* Reads nothing for longer than it is waited for, a few times. */
static void asks_late(void) {
    int fd = conn();
    put_stream(fd, THERE, 3);
    MUST(shutdown(fd, SHUT_WR));
    uint64_t o = 0, next = 0;
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0; o += (uint64_t)n) {
        if (!matches(buf, n, o, 4))
            die("other bytes");
        if (o >= next)
            usleep(80000), next += 5 * MIB;
    }
    say("%llu", (unsigned long long)o);
}

/* ---- and then the rest of it ends ---- */

/* Two sends: the first one may be what tells the kernel of the peer's socket. */
static void two_sends(int fd) {
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    settle();
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(recv(fd, buf, 1, 0));
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    say("SO_ERROR %d", so_error(fd));
}
static void sees_end(int fd) {
    R(recv(fd, buf, 1, 0));
    R(send(fd, "read", 4, 0));
}
static void shuts(int fd) { MUST(shutdown(fd, SHUT_WR)); }
static void shuts_and_reads(int fd) {
    shuts(fd);
    if (get(fd, buf, 4) != 4)
        die("not read");
}
/* Killed when it has read all there was. */
static void killed_read_b(void) { mortal(shuts_and_reads); }
static void killed_read_a(void) {
    int fd = conn();
    sees_end(fd);
    settle();
    kill_peer();
    two_sends(fd);
}
/* Killed with bytes unread. */
static void killed_unread_b(void) { mortal(shuts); }
static void killed_unread_a(void) {
    int fd = conn();
    sees_end(fd);
    settle();
    kill_peer();
    if (getenv("SMCR_FLIP")) { /* sending may have left memory since, with those bytes in it: a send tells the kernel */
        send(fd, "x", 1, MSG_NOSIGNAL);
        settle();
    }
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    two_sends(fd);
}
/* Killed while the other end waits for room. */
static void *kill_later(void *p) {
    settle();
    settle();
    kill_peer();
    return NULL;
}
static void killed_full_a(void) {
    int fd = conn();
    R(recv(fd, buf, 1, 0));
    pthread_t t;
    pthread_create(&t, NULL, kill_later, NULL);
    while (send(fd, buf, sizeof buf, MSG_NOSIGNAL) > 0)
        ;
    say("%s", err_name(errno));
    pthread_join(t, NULL);
    two_sends(fd);
}
/* By exit, and by close, when it has read or not. */
static void exits_b(void) {
    int fd = conn();
    shuts_and_reads(fd);
    meet();
    exit(0);
}
static void exits_unread_b(void) {
    int fd = conn();
    shuts(fd);
    meet();
    settle();
    exit(0);
}
static void exits_a(void) {
    int fd = conn();
    sees_end(fd);
    meet();
    while (hear() != 0)
        ;
    settle();
    two_sends(fd);
}
static void closes(void (*before)(int)) {
    int fd = conn();
    before(fd);
    meet();
    R(close(fd));
    meet_settled();
    meet();
}
static void closes_b(void) { closes(shuts_and_reads); }
static void closes_unread_b(void) { closes(shuts); }
static void closes_a(void) {
    int fd = conn();
    sees_end(fd);
    meet();
    meet_settled();
    two_sends(fd);
    meet();
}
/* The other half too, at once and later: what is sent then is answered by a reset. */
static void shuts_both_b(void) {
    int fd = conn();
    MUST(shutdown(fd, SHUT_RDWR));
    meet(), meet();
}
static void shuts_both_a(void) {
    int fd = conn();
    R(recv(fd, buf, 1, 0));
    meet();
    two_sends(fd);
    meet();
}
static void shuts_rest_b(void) {
    int fd = conn();
    shuts_and_reads(fd);
    MUST(shutdown(fd, SHUT_RD));
    meet(), meet();
}
static void shuts_rest_a(void) {
    int fd = conn();
    sees_end(fd);
    meet();
    two_sends(fd);
    meet();
}
static void shuts_first_b(void) {
    int fd = conn();
    MUST(shutdown(fd, SHUT_RD));
    MUST(shutdown(fd, SHUT_WR));
    meet(), meet();
}

const struct test tests[] = {{"echo", echoes, hears_echo, WHOLE},
                             {"answer", answers, asks, WHOLE},
                             {"level", level, asks, WHOLE},
                             {"edge", edge, asks, WHOLE},
                             {"late", answers, asks_late, SLOW},
                             {"late_level", level, asks_late, SLOW},
                             {"killed_read", killed_read_a, killed_read_b, 0},
                             {"killed_unread", killed_unread_a, killed_unread_b, 0},
                             {"killed_full", killed_full_a, killed_unread_b, 0},
                             {"exits", exits_a, exits_b, 0},
                             {"exits_unread", exits_a, exits_unread_b, 0},
                             {"closes", closes_a, closes_b, 0},
                             {"closes_unread", closes_a, closes_unread_b, 0},
                             {"shuts_both", shuts_both_a, shuts_both_b, 0},
                             {"shuts_rest", shuts_rest_a, shuts_rest_b, 0},
                             {"shuts_first", shuts_both_a, shuts_first_b, 0},
                             {0}};
