/* Owns: a thread that waits in recv by a number that is closed, or becomes another connection's, while the connection lives on: by another number of
 * this process, or in a relative. */
#include "waiting.h"

static char buf[64 * KIB], big[64];
static int the_fd, seen;
static long w_recv(void) { return recv(the_fd, buf, 3, 0); }

/* The connection keeps another number: a thread that sleeps in recv by the first one, which is closed or another connection's, goes on, whatever
 * calls it for nothing. */
static long w_busy(void) {
    long n = w_recv();
    seen = cpu_ns() > 300000000;
    return n;
}
/* A third connection is closed while a thread is in recv there, which wakes all threads of the library's that sleep. */
static int third;
static long w_third(void) { return recv(third, big, 3, 0); }
static void close_third(struct waiting *w) {
    waiting_start(w, "third", w_third);
    R(close(third));
    usleep(600000);
}
static void twin_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int by_dup = 0; by_dup < 2; by_dup++) {
        struct waiting w, other;
        warm(the_fd = accept_from(l));
        int next = accept_from(l), twin = MUST(dup(the_fd));
        warm(third = accept_from(l));
        meet_settled(); /* three bytes lie unread in the next one */
        waiting_start(&w, "recv", w_busy);
        if (by_dup)
            R(dup2(next, the_fd) == the_fd);
        else
            R(close(the_fd));
        close_third(&other);
        meet(); /* the other end sends */
        int over = waiting_is_over(&w, 20000);
        say("over %d, %ld, busy %d", over, w.result, seen);
        say("the third %d, %ld", waiting_is_over(&other, 20000), other.result);
        echo(twin, "the old one", 3);
        close(twin);
        R(get(next, buf, 3));
        echo(next, "the new one", 4);
        close(next);
        if (by_dup)
            close(the_fd);
        meet();
    }
}
static void twin_b(void) {
    meet();
    for (int turn = 0; turn < 2; turn++) {
        int fd = dial(PORT);
        warm(fd);
        int next = dial(PORT), last = dial(PORT);
        warm(last);
        put(next, "new", 3);
        meet_settled();
        meet();
        close(last);
        put(fd, "old", 3);
        echo_until_end(fd);
        echo_until_end(next);
        meet();
    }
}

/* A relative closes the connection last, while a thread of this process is still in recv by a number that it has closed. */
static void relative_a(void) {
    struct waiting w, other;
    int l = listen_on(PORT), go[2];
    meet();
    warm(the_fd = accept_from(l));
    warm(third = accept_from(l));
    waiting_start(&w, "recv", w_recv);
    MUST(pipe(go));
    pid_t child = MUST(fork());
    if (child == 0) {
        char c;
        close(go[1]);
        MUST(read(go[0], &c, 1));
        close(the_fd);
        _exit(0);
    }
    R(close(the_fd));
    close(go[1]);
    wait_for(child);
    meet();
    int next = accept_from(l);
    warm(next);
    meet_settled(); /* the new one has sent */
    close_third(&other);
    meet();
    int over = waiting_is_over(&w, 20000);
    say("over %d, %ld", over, w.result);
    R(recv(next, buf, 10, 0));
    echo(next, "the new one", 4);
    close(next);
    say("the third %d, %ld", waiting_is_over(&other, 20000), other.result);
}
static void relative_b(void) {
    meet();
    int fd = dial(PORT);
    warm(fd);
    int last = dial(PORT);
    warm(last);
    meet();
    int next = dial(PORT);
    warm(next);
    put(next, "new", 3);
    meet_settled();
    meet();
    R(send(fd, "old", 3, MSG_NOSIGNAL));
    R(recv(fd, buf, 1, 0));
    echo_until_end(next);
    close(last);
}

const struct test tests[] = {{"twin", twin_a, twin_b, 0}, {"relative", relative_a, relative_b, 0}, {0}};
