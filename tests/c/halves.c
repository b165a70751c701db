/* Owns: one direction of a connection ends, by a shutdown of either kind, and what the other direction goes on to do meanwhile. */
#include "mortal.h"

static char buf[MIB];

/* ---- our own end of receiving is no end of the peer's ---- */

enum { PAIRS = 250, AHEAD = 1000, LARGE = 8 * MIB };

static void asks(int fd) {
    for (int i = 0; i < PAIRS; i++) {
        put(fd, buf, 64);
        if (get(fd, buf, 64) != 64)
            die("early end");
    }
}
static void answers(int fd) {
    for (int i = 0; i < PAIRS; i++) {
        if (get(fd, buf, 64) != 64)
            die("early end");
        put(fd, buf, 64);
    }
}
static void sends_slowly(int fd) {
    for (int i = 0; i < PAIRS; i++) {
        put(fd, buf, 64);
        usleep(100);
    }
}

/* Receiving stays on TCP by its low-water mark, and sending goes to memory. What was sent lies unread there. */
static void on_tcp_b(void) {
    int fd = conn_cold();
    sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 2);
    asks(fd);
    put(fd, buf, AHEAD);
    meet_settled();
    R(shutdown(fd, SHUT_RD));
    R(recv(fd, buf, 10, 0));
    say("%s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    R(send(fd, "still", 5, MSG_NOSIGNAL));
    R(recv(fd, buf, 10, 0));
    meet();
    meet_settled(); /* the peer has sent nevertheless */
    R(recv(fd, buf, 10, 0));
    R(recv(fd, buf, 10, 0));
    R(shutdown(fd, SHUT_WR));
    meet();
}
static void on_tcp_a(void) {
    int fd = conn_cold();
    answers(fd);
    meet_settled();
    meet();
    say("%zu", get(fd, buf, AHEAD + 5));
    R(send(fd, "hello", 5, 0));
    meet_settled();
    R(recv(fd, buf, 10, 0));
    meet();
}

/* A sender that receives no more hears of the peer's death by what it sends. */
static void quiet(int fd) {}
static void dead_reader_b(void) { mortal(quiet); }
static void dead_reader_a(void) {
    int fd = conn();
    R(shutdown(fd, SHUT_RD));
    kill_peer();
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    settle();
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
}

/* It waits for room as others do, and stays where it is. */
static void slow_reader_b(void) {
    int fd = conn();
    R(shutdown(fd, SHUT_RD));
    put_stream(fd, LARGE, 3);
    payload(LARGE);
    R(shutdown(fd, SHUT_WR));
    meet();
}
static void slow_reader_a(void) {
    int fd = conn();
    uint64_t at = 0;
    int good = 1;
    for (ssize_t n; (n = recv(fd, buf, 64 * KIB, 0)) > 0; at += n) {
        good = good && matches(buf, n, at, 3);
        usleep(500);
    }
    say("%llu, whole %d", (unsigned long long)at, good);
    meet();
}

/* ---- an end that was shut down before the connection has memory ---- */

/* Its end comes behind more than the peer's buffer holds, and the peer goes to memory meanwhile, and has something unread there. */
static void early_end_a(void) {
    int fd = conn_cold();
    glut(fd);
    R(shutdown(fd, SHUT_WR));
    meet();
    for (int i = 0; i < PAIRS; i++)
        if (get(fd, buf, 64) != 64)
            die("early end");
    meet();
    meet();
    say("%zu", get(fd, buf, AHEAD));
    R(recv(fd, buf, 10, 0));
}
static void early_end_b(void) {
    int fd = conn_cold();
    meet();
    sends_slowly(fd);
    meet();
    put(fd, buf, AHEAD);
    ssize_t n;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
        continue;
    say("behind all of it %zd, %s", n, n ? strerror(errno) : "an end");
    R(recv(fd, buf, 10, 0));
    R(send(fd, "", 0, MSG_NOSIGNAL));
    R(shutdown(fd, SHUT_WR));
    meet();
}

/* It receives no more, by its own word, and what comes is there all the same. */
static void early_deaf_a(void) {
    int fd = conn_cold();
    R(shutdown(fd, SHUT_RD));
    sends_slowly(fd);
    meet_settled();
    say("%s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    say("%zu", get(fd, buf, 64 * PAIRS));
    R(recv(fd, buf, 10, 0));
    R(send(fd, buf, AHEAD, 0));
    meet();
    R(shutdown(fd, SHUT_WR));
    meet();
}
static void early_deaf_b(void) {
    int fd = conn_cold();
    answers(fd);
    meet_settled();
    say("%zu", get(fd, buf, AHEAD));
    meet();
    R(recv(fd, buf, 10, 0));
    meet();
}

/* ---- a reset behind our own end is told to a send, before the broken pipe ---- */

static volatile sig_atomic_t pipes;
static void on_pipe(int s) { pipes++; }
static void told_once(int fd) {
    on_signal(SIGPIPE, on_pipe, 0);
    pipes = 0;
    for (int i = 0; i < 2; i++) {
        R(send(fd, "xyz", 3, 0));
        say("%d signals, %s", (int)pipes, poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
        R(recv(fd, buf, 10, 0));
    }
}
static void reset_behind_a(void) {
    int fd = conn();
    R(shutdown(fd, SHUT_RDWR));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    meet();
    meet_settled(); /* the peer has sent to it */
    told_once(fd);
    meet();
}
static void reset_behind_b(void) {
    int fd = conn();
    meet();
    R(send(fd, "late", 4, MSG_NOSIGNAL));
    meet_settled();
    told_once(fd);
    meet();
}
static void too_late_a(void) {
    int fd = conn();
    meet_settled();
    R(shutdown(fd, SHUT_WR));
    told_once(fd);
    meet();
}
static void too_late_b(void) {
    int fd = conn();
    struct linger l = {1, 0};
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    close(fd);
    meet_settled();
    meet();
}

/* ---- a sender in another thread ---- */

enum { ROUNDS = 60 };

struct sender {
    int fd;
    uint64_t sent;
};
static void *sends(void *arg) {
    struct sender *s = arg;
    for (ssize_t n; (n = send(s->fd, buf, sizeof buf, MSG_NOSIGNAL)) > 0;)
        s->sent += n;
    return NULL;
}

/* What send says has gone comes before the end. */
static void beside_a(void) {
    int l = listen_on(PORT), good = 1;
    meet();
    for (int i = 0; i < ROUNDS; i++) {
        struct sender s = {accept_from(l), 0};
        pthread_t t;
        answers(s.fd);
        pthread_create(&t, NULL, sends, &s);
        usleep(rnd(&(unsigned){i + 1}) % 3000);
        MUST(shutdown(s.fd, SHUT_WR));
        pthread_join(t, NULL);
        uint64_t told = 0;
        if (get(s.fd, &told, sizeof told) != sizeof told || told != s.sent)
            good = 0;
        close(s.fd);
    }
    say("all of it comes before the end: %d", good);
}
static void beside_b(void) {
    meet();
    for (int i = 0; i < ROUNDS; i++) {
        int fd = dial(PORT);
        asks(fd);
        uint64_t came = 0;
        for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;)
            came += n;
        put(fd, &came, sizeof came);
        R(recv(fd, buf, 1, 0));
        close(fd);
    }
}

/* Both halves shut down, and then closed with something unread, while the other end has not ended: a reset. */
static void shut_unread_a(void) {
    int fd = conn();
    put(fd, buf, 6000);
    meet_settled();
    meet_settled(); /* shut down and closed */
    settle();
    R(send(fd, buf, 100, MSG_NOSIGNAL));
    R(send(fd, buf, 100, MSG_NOSIGNAL));
    R(recv(fd, buf, 100, MSG_DONTWAIT));
    R(recv(fd, buf, 100, MSG_DONTWAIT));
    meet();
}
static void shut_unread_b(void) {
    int fd = conn();
    meet_settled();
    R(shutdown(fd, SHUT_RDWR));
    R(close(fd));
    meet_settled();
    meet();
}

const struct test tests[] = {{"own_end_on_tcp", on_tcp_a, on_tcp_b, COLD | SWITCHES},
                             {"dead_reader", dead_reader_a, dead_reader_b, 0},
                             {"slow_reader", slow_reader_a, slow_reader_b, WHOLE},
                             {"early_end", early_end_a, early_end_b, COLD},
                             {"early_deaf", early_deaf_a, early_deaf_b, COLD | SWITCHES},
                             {"reset_behind", reset_behind_a, reset_behind_b, 0},
                             {"too_late", too_late_a, too_late_b, 0},
                             {"beside_a_sender", beside_a, beside_b, COLD | SWITCHES},
                             {"shut_unread", shut_unread_a, shut_unread_b, 0},
                             {0}};
