/* Owns: what a call that waits sees when another thread closes its descriptor, or shuts the connection down: in receiving,
 * sending, poll, select and epoll_wait, in blocking and non-blocking form; and when the number has a new connection. */
#include "waiting.h"

static char buf[64 * KIB], big[300 * KIB], large[16 * MIB];
static int the_fd, set;
static int longest = 10000; /* ms */
static volatile int seen; /* by the call that waits */

/* ---- calls that wait; what a poll found is in `seen` ---- */

static long w_recv(void) { return recv(the_fd, buf, 3, 0); }
static long w_waitall(void) { return recv(the_fd, buf, 3, MSG_WAITALL); }
static long w_send(void) { return send(the_fd, big, sizeof big, 0); }
static long w_large(void) { return send(the_fd, large, sizeof large, 0); }
static long w_second(void) { return send(the_fd, large, 100000, 0); }
static long polled(short events) {
    struct pollfd p = {the_fd, events, 0};
    int n = poll(&p, 1, longest);
    seen = p.revents;
    return n;
}
static long w_poll(void) { return polled(POLLIN); }
static long w_poll_hup(void) { return polled(POLLRDHUP); }
static long w_poll_out(void) { return polled(POLLOUT); }
static long selected(int out) {
    fd_set of;
    FD_ZERO(&of);
    FD_SET(the_fd, &of);
    long n = select(the_fd + 1, out ? NULL : &of, out ? &of : NULL, NULL, &(struct timeval){longest / 1000, longest % 1000 * 1000});
    seen = n > 0 && FD_ISSET(the_fd, &of) ? (out ? POLLOUT : POLLIN) : 0;
    return n;
}
static long w_select(void) { return selected(0); }
static long w_select_out(void) { return selected(1); }
static long waited(uint32_t events) {
    struct epoll_event e = {events, {.u32 = 7}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, the_fd, &e));
    e.events = 0;
    long n = epoll_wait(set, &e, 1, longest);
    seen = n > 0 ? (int)e.events & 0xffff : 0;
    return n;
}
static long w_epoll(void) { return waited(EPOLLIN | EPOLLRDHUP); }
static long w_epoll_edge(void) { return waited(EPOLLIN | EPOLLRDHUP | EPOLLET); }
static long w_epoll_out(void) { return waited(EPOLLOUT); }

enum { FULL = 1, NONBLOCK = 2 };
struct call {
    const char *name;
    long (*wait)(void);
    int how;
};
static const struct call calls[] = {
    {"recv", w_recv, 0},
    {"waitall", w_waitall, 0},
    {"poll", w_poll, 0},
    {"poll, nonblocking", w_poll, NONBLOCK},
    {"poll for RDHUP", w_poll_hup, 0},
    {"select", w_select, 0},
    {"epoll_wait", w_epoll, 0},
    {"epoll_wait, nonblocking", w_epoll, NONBLOCK},
    {"epoll_wait, edges", w_epoll_edge, NONBLOCK},
    {"full: send", w_send, FULL},
    {"full: poll", w_poll_out, FULL},
    {"full: poll, nonblocking", w_poll_out, FULL | NONBLOCK},
    {"full: select", w_select_out, FULL},
    {"full: epoll_wait", w_epoll_out, FULL},
    {"full: epoll_wait, nonblocking", w_epoll_out, FULL | NONBLOCK},
    {0},
};

/* ---- one call, and what is done to its descriptor meanwhile ---- */

/* Of a send a part may have gone, how much depends on the buffers. */
static void say_answer(struct waiting *w) {
    waiting_is_over(w, 20000);
    long n = w->call == w_send && w->result > 0 ? 1 : w->result;
    say("%s = %ld %s, %s", w->name, n, n < 0 ? err_name(w->error) : "", poll_text((short)seen));
}

static int sigpipes;
static void on_pipe(int s) { sigpipes++; }

/* Each call on a connection of its own. */
static void with_each(void (*withdraw)(void), int closed) {
    int patience = closed ? 100 : 800;
    int l = listen_on(PORT);
    on_signal(SIGPIPE, on_pipe, 0);
    meet();
    for (const struct call *c = calls; c->name; c++) {
        struct waiting w;
        sigpipes = 0;
        warm(the_fd = accept_from(l));
        MUST(set = epoll_create1(0));
        say("-- %s, full %d", c->name, c->how & FULL && glut(the_fd) > 10000);
        nonblocking(the_fd, !!(c->how & NONBLOCK));
        seen = 0;
        waiting_start(&w, c->name, c->wait);
        withdraw();
        say("returns %d", waiting_is_over(&w, patience));
        meet(); /* now the other end sends, or reads */
        say_answer(&w);
        say("SIGPIPE %d", sigpipes);
        meet_settled();
        if (!closed) {
            nonblocking(the_fd, 1);
            if (!(c->how & FULL)) /* of what is left to be read only the first is asked for */
                R(recv(the_fd, buf, 10, 0));
            R(send(the_fd, "x", 1, MSG_NOSIGNAL));
            R(close(the_fd));
        }
        close(set);
        meet();
    }
}
static void peer_of_each(void) {
    meet();
    for (const struct call *c = calls; c->name; c++) {
        int fd = dial(PORT);
        warm(fd);
        meet();
        settle();
        if (c->how & FULL) {
            long all = 0;
            nonblocking(fd, 1);
            for (int calm = 0; calm < 4; calm++, settle())
                for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0; all += n)
                    calm = 0;
            nonblocking(fd, 0);
            say("some %d", all > 10000);
        } else {
            R(send(fd, "abc", 3, MSG_NOSIGNAL));
        }
        meet_settled();
        meet_settled();
        char c2;
        ssize_t n;
        long rest = 0;
        while ((n = recv(fd, &c2, 1, 0)) > 0)
            rest += n;
        say("%s: rest %ld, then %ld %s", c->name, rest, (long)n, n < 0 ? err_name(errno) : "");
        close(fd);
    }
}

static void by_close(void) { R(close(the_fd)); }
static void by_shut_rd(void) { R(shutdown(the_fd, SHUT_RD)); }
static void by_shut_wr(void) { R(shutdown(the_fd, SHUT_WR)); }
static void by_shut_both(void) { R(shutdown(the_fd, SHUT_RDWR)); }
/* A set forgets what is closed, so its wait runs to its end. */
static void close_a(void) {
    longest = 1500;
    with_each(by_close, 1);
}
static void shut_rd_a(void) { with_each(by_shut_rd, 0); }
static void shut_wr_a(void) { with_each(by_shut_wr, 0); }
static void shut_both_a(void) { with_each(by_shut_both, 0); }

/* ---- the number belongs to another connection while the call still waits ---- */

static void reused(const struct call *c, int l, int by_dup) {
    struct waiting w;
    warm(the_fd = accept_from(l));
    int next = accept_from(l);
    warm(next);
    say("-- %s", c->name);
    MUST(set = epoll_create1(0));
    seen = 0;
    waiting_start(&w, c->name, c->wait);
    if (by_dup) {
        R(dup2(next, the_fd) == the_fd);
        close(next);
    } else {
        R(close(the_fd));
        R(fcntl(next, F_DUPFD, the_fd) == the_fd);
        close(next);
    }
    say("returns %d", waiting_is_over(&w, 100));
    meet(); /* the other end sends to the old one */
    say_answer(&w);
    meet_settled(); /* and then to the new one */
    char got3[4] = "";
    R(get(the_fd, got3, 3));
    say("%s", got3);
    echo(the_fd, "the new one", 3);
    close(the_fd);
    close(set);
    meet();
}
static void reused_a(void) {
    longest = 1500;
    int l = listen_on(PORT);
    meet();
    for (const struct call *c = calls; c->name; c++)
        if (!(c->how & (FULL | NONBLOCK)))
            for (int by_dup = 0; by_dup < 2; by_dup++)
                reused(c, l, by_dup);
}
static void reused_b(void) {
    meet();
    for (const struct call *c = calls; c->name; c++)
        for (int turn = 0; turn < 2 && !(c->how & (FULL | NONBLOCK)); turn++) {
            int fd = dial(PORT);
            warm(fd);
            int next = dial(PORT);
            warm(next);
            meet();
            settle();
            R(send(fd, "old", 3, MSG_NOSIGNAL));
            put(next, "new", 3);
            meet_settled();
            ssize_t n = recv(fd, buf, 1, 0);
            say("%s: %zd %s", c->name, n, n < 0 ? err_name(errno) : "");
            close(fd);
            echo_until_end(next);
            meet();
        }
}

/* Two threads wait in recv: each of them is called through TCP, where the other end's death shows as well. */
static void two_readers_a(void) {
    struct waiting w[2];
    int l = listen_on(PORT);
    meet();
    warm(the_fd = accept_from(l));
    int next = accept_from(l);
    warm(next);
    for (int i = 0; i < 2; i++)
        waiting_start(&w[i], "recv", w_recv);
    R(dup2(next, the_fd) == the_fd);
    meet(); /* the other end sends */
    for (int i = 0; i < 200 && !waiting_is_over(&w[0], 50) && !waiting_is_over(&w[1], 50); i++) {
    }
    int first = !waiting_is_over(&w[0], 0);
    say("one = %ld", w[first].result);
    meet(); /* and ends, without a word */
    int over = waiting_is_over(&w[!first], 20000);
    say("the other one %d, %ld", over, w[!first].result);
    meet_settled();
    say("at the new one %d", now_in(the_fd));
    echo(the_fd, "the new one", 3);
    close(the_fd);
    close(next);
}
static void two_readers_b(void) {
    meet();
    int fd = dial(PORT);
    warm(fd);
    int next = dial(PORT);
    warm(next);
    pid_t keeper = MUST(fork());
    if (keeper == 0) {
        close(next);
        pause();
    }
    meet();
    R(send(fd, "old", 3, MSG_NOSIGNAL));
    meet();
    close(fd);
    kill(keeper, SIGKILL);
    wait_for(keeper);
    meet_settled();
    echo_until_end(next);
}

/* Two threads wait for room in one send each, of which the second has sent nothing yet; the other end does not read. */
static void full_reused(int has_twin) {
    int l = listen_on(PORT);
    meet();
    warm(the_fd = accept_from(l));
    int twin = has_twin ? MUST(dup(the_fd)) : -1, next = accept_from(l);
    warm(next);
    struct waiting w[2];
    waiting_start(&w[0], "large", w_large);
    w[1] = (struct waiting){.name = "second", .call = w_second}; /* over TCP it may find room */
    MUST(-pthread_create(&w[1].thread, NULL, waiting_thread, &w[1]));
    usleep(50000);
    R(dup2(next, the_fd) == the_fd);
    close(next);
    usleep(700000); /* longer than a ring may stay full */
    meet();
    for (int i = 0; i < 2; i++) {
        int over = waiting_is_over(&w[i], 20000);
        say("%s %d, %ld", w[i].name, over, w[i].result);
    }
    if (has_twin)
        close(twin); /* all of it has been sent */
    R(send(the_fd, "new", 3, 0));
    meet();
    close(the_fd);
}
static void full_reused_a(void) { full_reused(0); }
static void full_reused_twin_a(void) { full_reused(1); }
static void full_reused_b(void) {
    meet();
    int fd = dial(PORT);
    warm(fd);
    int next = dial(PORT);
    warm(next);
    meet();
    long all = 0;
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0; all += n) {
    }
    say("all %ld", all);
    meet();
    say("at the new one %zd", recv(next, buf, sizeof buf, MSG_DONTWAIT));
    close(next);
    close(fd);
}

/* The library's own numbers are taken while a thread is asleep: what is asked of the kernel there is another file. */
static void own_taken_a(void) {
    struct waiting w;
    the_fd = conn();
    waiting_start(&w, "recv", w_recv);
    int quiet[2];
    MUST(pipe(quiet));
    for (int n = 20; n < 1400; n++) /* the program's own are below */
        if (raw(SYS_fcntl, n, F_GETFD, 0, 0, 0, 0) >= 0)
            MUST(dup2(quiet[0], n));
    meet();
    say_answer(&w);
    echo(the_fd, "after", 3);
    close(the_fd);
}
static void own_taken_b(void) {
    int fd = conn();
    meet();
    settle();
    R(send(fd, "abc", 3, MSG_NOSIGNAL));
    echo_until_end(fd);
}

/* splice whose connection's number becomes another one's: while it waits for bytes in the pipe, for room there, for bytes in the
 * connection. */
enum { PIPE_EMPTY, PIPE_FULL, NOTHING_THERE, SPLICES };
static int pipes[2];
static long w_splice_in(void) { return splice(pipes[0], NULL, the_fd, NULL, 100, 0); }
static long w_splice_out(void) { return splice(the_fd, NULL, pipes[1], NULL, 100, 0); }
static void spliced_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int kind = 0; kind < SPLICES; kind++) {
        warm(the_fd = accept_from(l));
        int next = accept_from(l);
        warm(next);
        meet_settled(); /* to a full pipe it has sent */
        struct waiting w;
        MUST(pipe(pipes));
        int size = MUST(fcntl(pipes[1], F_SETPIPE_SZ, 4096));
        if (kind == PIPE_FULL)
            MUST(write(pipes[1], large, size));
        waiting_start(&w, "splice", kind == PIPE_EMPTY ? w_splice_in : w_splice_out);
        R(dup2(next, the_fd) == the_fd);
        close(next);
        meet();
        if (kind == PIPE_EMPTY)
            MUST(write(pipes[1], "old", 3));
        else if (kind == PIPE_FULL)
            MUST(read(pipes[0], big, size));
        int over = waiting_is_over(&w, 5000);
        say("%d: over %d, %ld %s", kind, over, over ? w.result : 0, over && w.result < 0 ? err_name(w.error) : "");
        if (kind != PIPE_EMPTY)
            say("%d in the pipe", now_in(pipes[0]));
        meet();
        echo(the_fd, "the new one", 3);
        close(the_fd);
        close(pipes[0]);
        close(pipes[1]);
    }
}
static void spliced_b(void) {
    meet();
    for (int kind = 0; kind < SPLICES; kind++) {
        int fd = dial(PORT);
        warm(fd);
        int next = dial(PORT);
        warm(next);
        if (kind == PIPE_FULL)
            put(fd, "old", 3);
        meet_settled();
        meet();
        if (kind == NOTHING_THERE)
            put(fd, "old", 3);
        meet();
        ssize_t n = recv(fd, buf, sizeof buf, MSG_DONTWAIT), m = recv(fd, buf, 1, 0);
        say("%d: %zd, then %zd", kind, n, m);
        close(fd);
        echo_until_end(next);
    }
}

const struct test tests[] = {{"close", close_a, peer_of_each, SLOW},
                             {"shutdown_read", shut_rd_a, peer_of_each, SLOW},
                             {"shutdown_write", shut_wr_a, peer_of_each, SLOW},
                             {"shutdown_both", shut_both_a, peer_of_each, SLOW},
                             {"number_reused", reused_a, reused_b, SLOW},
                             {"two_readers", two_readers_a, two_readers_b, 0},
                             {"full_reused", full_reused_a, full_reused_b, 0},
                             {"full_reused_twin", full_reused_twin_a, full_reused_b, 0},
                             {"own_taken", own_taken_a, own_taken_b, 0},
                             {"splice_reused", spliced_a, spliced_b, 0},
                             {0}};
