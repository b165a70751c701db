/* Owns: what may happen to a thread inside each call that waits: a signal with and without SA_RESTART, a jump out
 * of the handler, a cancellation. The connection serves on afterwards. */
#include "each_call.h"

static volatile sig_atomic_t rings;
static void on_alarm(int s) { rings++; }

static void result(const char *how, const char *name, long n) {
    int e = errno;
    say("%s %s = %ld %s, rang %d", how, name, n, n < 0 ? err_name(e) : "", rings > 0);
}
/* The other end answers each byte, and the connection is whole. */
static void still_serves(int fd) {
    char c = 'a';
    if (send(fd, &c, 1, 0) != 1 || get(fd, &c, 1) != 1 || c != 'a')
        die("it serves no more");
}
static void serve_b(void) {
    echo_until_end(conn());
    meet();
}
static void over(int fd) {
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
    meet();
}

/* ---- signals ---- */

/* `answers`: the other side echoes. */
static void interrupted(const char *how, const struct call *calls, int fd, int answers) {
    for (const struct call *c = calls; c->name; c++) {
        rings = 0;
        tick(40, 0);
        errno = 0;
        result(how, c->name, c->wait(fd));
        if (answers)
            still_serves(fd);
    }
}
static void eintr_a(void) {
    int fd = ready(conn());
    on_signal(SIGALRM, on_alarm, 0);
    interrupted("no restart:", receives, fd, 1);
    interrupted("no restart:", events_in, fd, 1);
    timeouts(fd, SO_RCVTIMEO, 20000);
    interrupted("no restart, time-out:", receives, fd, 1);
    on_signal(SIGALRM, on_alarm, SA_RESTART);
    interrupted("restart, time-out:", receives, fd, 1);
    timeouts(fd, SO_RCVTIMEO, 0);
    interrupted("restart:", events_in, fd, 1);
    over(fd);
}

/* Interrupted again and again, until what it waits for comes. */
static void restart_a(void) {
    int fd = ready(conn());
    on_signal(SIGALRM, on_alarm, SA_RESTART);
    for (const struct call *c = receives; c->name; c++) {
        rings = 0;
        tick(5, 5);
        meet();
        errno = 0;
        long n = c->wait(fd);
        tick(0, 0);
        result("restart:", c->name, n);
        if (c->wait == w_splice)
            say("%zd in the pipe", read(pipes[0], buf, 3));
        if (c->wait == w_peek)
            MUST(recv(fd, buf, 3, 0));
        say("%.3s", buf);
    }
    over(fd);
}
static void restart_b(void) {
    int fd = conn();
    for (const struct call *c = receives; c->name; c++) {
        meet();
        settle();
        put(fd, "abc", 3);
    }
    R(recv(fd, buf, 1, 0));
    close(fd);
    meet();
}

/* ---- jumps ---- */

static sigjmp_buf out;
static void jump(int s) { siglongjmp(out, 1); }
static void jumped(const struct call *calls, int fd) {
    for (const struct call *volatile c = calls; c->name; c++) {
        if (!sigsetjmp(out, 1)) {
            tick(40, 0);
            long n = c->wait(fd);
            say("%s = %ld %s", c->name, n, err_name(errno));
        } else {
            say("out of %s", c->name);
        }
        still_serves(fd);
    }
}
static void jump_a(void) {
    int fd = ready(conn());
    on_signal(SIGALRM, jump, 0);
    jumped(receives, fd);
    jumped(events_in, fd);
    over(fd);
}

/* ---- cancellation ---- */

static int the_fd, cleaned;
static void clean(void *p) { cleaned++; }
static void *one_call(void *p) {
    const struct call *c = p;
    long n;
    pthread_cleanup_push(clean, NULL);
    n = c->wait(the_fd);
    pthread_cleanup_pop(0);
    return (void *)n;
}
static void cancelled(const struct call *calls, int serves) {
    for (const struct call *c = calls; c->name; c++) {
        pthread_t t;
        void *answer;
        MUST(-pthread_create(&t, NULL, one_call, (void *)c));
        settle();
        MUST(-pthread_cancel(t));
        pthread_join(t, &answer);
        say("%s: cancelled %d, cleaned %d", c->name, answer == PTHREAD_CANCELED, cleaned);
        if (serves)
            still_serves(the_fd);
    }
}
static void cancel_a(void) {
    the_fd = ready(conn());
    cancelled(receives, 1);
    cancelled(events_in, 1);
    over(the_fd);
}
/* Switched off while it waits: the call ends when its data come, the thread at the next point. */
static void *not_now(void *p) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    say("%zd", recv(the_fd, buf, 3, 0));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    say("%zd", recv(the_fd, buf, 3, 0));
    return NULL;
}
static void cancel_off_a(void) {
    pthread_t t;
    void *answer;
    the_fd = conn();
    MUST(-pthread_create(&t, NULL, not_now, NULL));
    settle();
    MUST(-pthread_cancel(t));
    meet();
    pthread_join(t, &answer);
    say("cancelled %d", answer == PTHREAD_CANCELED);
    over(the_fd);
}
static void cancel_off_b(void) {
    int fd = conn();
    meet();
    settle();
    put(fd, "abc", 3);
    echo_until_end(fd);
    meet();
}

/* ---- the same on a connection that takes no more ---- */

static int full(void) {
    int fd = conn();
    wanted = POLLOUT;
    ready(fd);
    say("some %d", glut(fd) > 10000);
    return fd;
}
static void full_over(int fd) {
    meet();
    tick(0, 0);
    over(fd);
}
static void full_b(void) {
    int fd = conn();
    uint64_t all = 0;
    meet(); /* reads nothing before */
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;)
        all += n;
    say("some %d", all > 10000);
    close(fd);
    meet();
}
static void full_eintr_a(void) {
    int fd = full();
    on_signal(SIGALRM, on_alarm, 0);
    interrupted("no restart:", sends, fd, 0);
    interrupted("no restart:", events_in, fd, 0);
    timeouts(fd, SO_SNDTIMEO, 20000);
    interrupted("no restart, time-out:", sends, fd, 0);
    on_signal(SIGALRM, on_alarm, SA_RESTART);
    interrupted("restart, time-out:", sends, fd, 0);
    interrupted("restart:", events_in, fd, 0);
    full_over(fd);
}
static void full_jump_a(void) {
    int fd = full();
    on_signal(SIGALRM, jump, 0);
    for (int turn = 0; turn < 2; turn++)
        for (const struct call *volatile c = turn ? events_in : sends; c->name; c++)
            if (!sigsetjmp(out, 1)) {
                tick(40, 0);
                long n = c->wait(fd);
                say("%s = %ld %s", c->name, n, err_name(errno));
            } else {
                say("out of %s", c->name);
            }
    full_over(fd);
}
/* sendfile is no cancellation point. */
static void full_cancel_a(void) {
    struct call points[sizeof sends / sizeof *sends] = {0};
    memcpy(points, sends, sizeof sends);
    points[sizeof sends / sizeof *sends - 2].name = NULL;
    the_fd = full();
    cancelled(points, 0);
    cancelled(events_in, 0);
    full_over(the_fd);
}
/* Interrupted again and again, until the other end reads. */
static void full_restart_a(void) {
    int fd = conn();
    wanted = POLLOUT;
    ready(fd);
    on_signal(SIGALRM, on_alarm, SA_RESTART);
    for (const struct call *c = sends; c->name; c++) {
        long all = glut(fd);
        rings = 0;
        tick(5, 5);
        tell_pid((pid_t)all + 10);
        errno = 0;
        long n = c->wait(fd);
        tick(0, 0);
        result("restart:", c->name, n);
        hear();
    }
    over(fd);
}
static void full_restart_b(void) {
    int fd = conn();
    for (const struct call *c = sends; c->name; c++) {
        long all = hear_pid();
        settle();
        for (ssize_t n; all > 0; all -= n)
            if ((n = recv(fd, buf, all < (long)sizeof buf ? (size_t)all : sizeof buf, 0)) <= 0)
                die("early end");
        say("rest %d", now_in(fd));
        tell('d');
    }
    R(recv(fd, buf, 1, 0));
    close(fd);
    meet();
}

/* A close that lingers ends by a signal, whatever the handler says, and what is sent comes all the same: by one descriptor, and by another
 * call that closes. */
static void close_a(void) {
    for (int how = 0; how < 4; how++) {
        int fd = full(), at = how < 2 ? -1 : MUST(open("/dev/null", O_RDONLY | O_CLOEXEC));
        on_signal(SIGALRM, on_alarm, how % 2 ? SA_RESTART : 0);
        MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 600}, sizeof(struct linger)));
        rings = 0;
        tick(40, 40);
        errno = 0;
        long n = at < 0 ? close(fd) : dup2(at, fd);
        tick(0, 0);
        say("%d: %s, rang %d, errno %d", how, n < 0 ? "-1" : n == 0 ? "0" : "a number", rings > 0, n < 0 ? errno : 0);
        if (at >= 0)
            close(at), close(fd);
        meet();
        meet();
    }
}
static void close_b(void) {
    for (int how = 0; how < 4; how++) {
        int fd = conn();
        uint64_t all = 0;
        ssize_t n;
        meet();
        while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
            all += n;
        say("some %d, then %zd", all > 10000, n);
        close(fd);
        meet();
    }
}

/* Where splice waits for the pipe, and a signal comes meanwhile: the program's handler restarts it. */
static void *fills(void *unused) {
    usleep(200000);
    MUST(write(pipes[1], "some bytes", 10));
    return unused;
}
static void *empties(void *unused) {
    usleep(200000);
    static char whole[2 * MIB];
    MUST(read(pipes[0], whole, sizeof whole));
    return unused;
}
static void fill_pipe(void) {
    nonblocking(pipes[1], 1);
    while (write(pipes[1], buf, 4096) > 0) {
    }
    nonblocking(pipes[1], 0);
}
static void pipe_restart_a(void) {
    int fd = conn();
    pthread_t other;
    MUST(pipe(pipes));
    for (int flags = 0; flags < 2; flags++) {
        on_signal(SIGALRM, on_alarm, flags ? SA_RESTART : 0);
        rings = 0;
        pthread_create(&other, NULL, fills, NULL);
        tick(40, 0);
        errno = 0;
        long n = splice(pipes[0], NULL, fd, NULL, 10, 0);
        pthread_join(other, NULL);
        say("pipe to socket: %ld %s, rings %d", n, n < 0 ? err_name(errno) : "", (int)rings);
        if (n < 0)
            MUST(splice(pipes[0], NULL, fd, NULL, 10, 0));
    }
    meet_settled(); /* it sends */
    fill_pipe();
    for (int flags = 0; flags < 2; flags++) {
        on_signal(SIGALRM, on_alarm, flags ? SA_RESTART : 0);
        rings = 0;
        pthread_create(&other, NULL, empties, NULL);
        tick(40, 0);
        errno = 0;
        long n = w_splice(fd);
        say("socket to pipe: %ld %s, rings %d", n, n < 0 ? err_name(errno) : "", (int)rings);
        pthread_join(other, NULL);
        fill_pipe();
    }
    meet();
}
static void pipe_restart_b(void) {
    int fd = conn();
    say("%zu %.20s", get(fd, buf, 20), buf);
    put(fd, "enough for all", 14);
    meet_settled();
    meet();
}

const struct test tests[] = {{"eintr", eintr_a, serve_b, 0},
                             {"restart", restart_a, restart_b, 0},
                             {"jump", jump_a, serve_b, 0},
                             {"cancel", cancel_a, serve_b, 0},
                             {"cancel_disabled", cancel_off_a, cancel_off_b, 0},
                             {"full_eintr", full_eintr_a, full_b, 0},
                             {"full_jump", full_jump_a, full_b, 0},
                             {"full_close", close_a, close_b, 0},
                             {"full_cancel", full_cancel_a, full_b, 0},
                             {"pipe_restart", pipe_restart_a, pipe_restart_b, 0},
                             {"full_restart", full_restart_a, full_restart_b, SLOW},
                             {0}};
