/* Owns: urgent bytes, MSG_ZEROCOPY and MSG_ERRQUEUE where O_NONBLOCK is set and no flag says it, and how much such a send takes; flags.c and notices.c have them of blocking connections. */
#include "case.h"

static char buf[64 * KIB];

static void mark(int fd) {
    int at = -1;
    MUST(ioctl(fd, SIOCATMARK, &at));
    say("at mark %d", at);
}
static void urgent_is(int fd) {
    memset(buf, '.', 4);
    R(recv(fd, buf, 1, MSG_OOB | MSG_PEEK));
    R(recv(fd, buf, 4, MSG_OOB));
    R(recv(fd, buf, 4, MSG_OOB));
    say("%.4s", buf);
}
static void urgent_a(void) {
    int fd = conn();
    nonblocking(fd, 1);
    R(recv(fd, buf, 1, MSG_OOB));
    R(recv(fd, buf, 10, 0));
    meet();
    say("%s", poll_text(events(fd, POLLPRI, 10000)));
    meet_settled();
    mark(fd);
    urgent_is(fd);
    R(recv(fd, buf, 20, 0)); /* up to the mark */
    mark(fd);
    R(recv(fd, buf, 20, 0)); /* behind it */
    mark(fd);
    R(recv(fd, buf, 20, 0));
    R(recv(fd, buf, 20, MSG_WAITALL));
    R(recv(fd, buf, 1, MSG_OOB));
    /* In line. */
    sol_int(fd, SOL_SOCKET, SO_OOBINLINE, 1);
    meet();
    say("%s", poll_text(events(fd, POLLPRI, 10000)));
    meet_settled();
    R(recv(fd, buf, 1, MSG_OOB));
    R(recv(fd, buf, 20, 0));
    mark(fd);
    R(recv(fd, buf, 20, 0));
    R(recv(fd, buf, 20, 0));
    R(send(fd, "answer!", 7, MSG_OOB));
    nonblocking(fd, 0);
    meet();
    meet_settled();
    echo_until_end(fd);
    meet();
}
static void urgent_b(void) {
    int fd = conn();
    nonblocking(fd, 1);
    meet();
    R(send(fd, "before!", 7, MSG_OOB));
    R(send(fd, "after", 5, 0));
    meet_settled();
    meet();
    R(send(fd, "within!", 7, MSG_OOB));
    R(send(fd, "after", 5, 0));
    meet_settled();
    meet();
    say("%s", poll_text(events(fd, POLLPRI, 10000)));
    meet_settled();
    urgent_is(fd);
    R(recv(fd, buf, 20, 0));
    R(recv(fd, buf, 20, 0));
    nonblocking(fd, 0);
    echo(fd, "afterwards", 1);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
    meet();
}

/* ---- the queue of errors, and completions ---- */

static long errors(int fd) {
    char control[128];
    struct iovec v = {buf, 10};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(fd, &m, MSG_ERRQUEUE) < 0)
        return -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    uint32_t *e = (void *)CMSG_DATA(c); /* sock_extended_err: info and data at words 2 and 3 */
    return e[3] - e[2] + 1;
}
static void errors_a(void) {
    int fd = conn();
    nonblocking(fd, 1);
    R(errors(fd));
    R(recv(fd, buf, 10, MSG_ERRQUEUE | MSG_PEEK));
    meet_settled();
    R(errors(fd)); /* bytes are no errors */
    R(recv(fd, buf, 10, 0));
    R(recv(fd, buf, 10, MSG_ERRQUEUE | MSG_OOB));
    meet_settled(); /* nor is the end */
    R(errors(fd));
    R(recv(fd, buf, 10, 0));
    meet();
}
static void errors_b(void) {
    int fd = conn();
    put(fd, "abc", 3);
    meet_settled();
    R(shutdown(fd, SHUT_WR));
    meet_settled();
    meet();
}

enum { SENDS = 3, SIZE = 20000 };
static void zerocopy_a(void) {
    int fd = conn();
    nonblocking(fd, 1);
    sol_int(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
    fill(buf, SIZE, 0, 11);
    for (int i = 0; i < SENDS; i++)
        for (long at = 0, n; at < SIZE; at += n > 0 ? n : 0) {
            n = send(fd, buf + at, SIZE - at, MSG_ZEROCOPY);
            if (n < 0 && errno != EAGAIN)
                die("send");
            if (n < 0)
                events(fd, POLLOUT, -1);
        }
    meet_settled();
    say("%s", poll_text(events(fd, 0, 10000)));
    for (long all = 0, n;; all += n)
        if ((n = errors(fd)) < 0) {
            say("completed %d, then %s", all >= SENDS, err_name(errno));
            break;
        }
    say("%s", poll_text(events(fd, POLLIN, 0)));
    R(recv(fd, buf, 10, 0));
    meet();
}
static void zerocopy_b(void) {
    int fd = conn();
    for (int i = 0; i < SENDS; i++)
        got(fd, buf, SIZE, 0, 11);
    meet_settled();
    meet();
}

/* One send that may not wait, and the end behind it, whatever it returned (Tornado's `stream.write(...)` and `close()`), on some connections. */
enum { WHOLES = 5, ALL = 250 * 1000 };
static void whole_a(void) {
    static char all[ALL];
    fill(all, ALL, 0, 5);
    for (int i = 0; i < WHOLES; i++) {
        int fd = conn_cold();
        small_talk(fd, 400); /* in memory, and nothing large yet */
        meet();
        nonblocking(fd, 1);
        say("%s", poll_text(events(fd, POLLOUT, 1000))); /* one that waits for room */
        R(send(fd, all, ALL, 0));
        close(fd);
        meet();
    }
    payload(WHOLES * ALL);
}
static void whole_b(void) {
    for (int i = 0; i < WHOLES; i++) {
        int fd = conn_cold();
        small_talk(fd, 400);
        meet();
        drain(fd, 5);
        close(fd);
        meet();
    }
}

/* An answer behind an earlier one that is not read yet: a server that then may not wait, and whose client sends on first, waits for ever. */
enum { EARLIER = 700, ANSWER = 98 * KIB };
static void behind_a(void) {
    static char all[EARLIER + ANSWER];
    fill(all, sizeof all, 0, 6);
    int fd = conn_cold();
    small_talk(fd, 400);
    nonblocking(fd, 1);
    say("%s", poll_text(events(fd, POLLOUT, 1000)));
    R(send(fd, all, EARLIER, 0));
    R(send(fd, all + EARLIER, ANSWER, 0));
    meet();
    payload(EARLIER + ANSWER);
    MUST(shutdown(fd, SHUT_WR));
    meet();
}
static void behind_b(void) {
    int fd = conn_cold();
    small_talk(fd, 400);
    meet();
    drain(fd, 6);
    meet();
}

const struct test tests[] = {{"urgent", urgent_a, urgent_b, 0}, {"errors", errors_a, errors_b, 0}, {"zerocopy", zerocopy_a, zerocopy_b, 0}, {"whole", whole_a, whole_b, COLD | WHOLE}, {"behind", behind_a, behind_b, COLD | SWITCHES}, {0}};
