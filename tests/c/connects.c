/* Owns: accept and connect that take long: interrupted with and without SA_RESTART, left by siglongjmp, cancelled, timed out,
 * shut down or closed by another thread; and that the connection which comes of it in the end goes to memory. */
#include "waiting.h"

static volatile sig_atomic_t rings;
static void on_alarm(int s) { rings++; }
static sigjmp_buf out;
static void jump(int s) { siglongjmp(out, 1); }

static struct sockaddr_in there(void) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}
static struct sockaddr_in to;
static int sock(int nonblock) {
    to = there();
    return MUST(socket(AF_INET, SOCK_STREAM | (nonblock ? SOCK_NONBLOCK : 0), 0));
}
/* ---- connect, where the listener's queue is full: the kernel drops the SYN and sends it again a second later ---- */

static int the_fd, first;
static long w_connect(void) { return connect(the_fd, (void *)&to, sizeof to); }
static long w_connect_or_jump(void) { return sigsetjmp(out, 1) ? -77 : w_connect(); }

/* One connection fills the queue of the listening end. Told to, it accepts that one and the next, and uses it. */
static void slow_a(void) {
    int l = listen_on(PORT);
    MUST(listen(l, 0));
    meet();
    for (char what; (what = hear()) != 'e';) {
        static char b[20000];
        int f = accept_from(l);
        if (what != 'x') {
            int fd = accept_from(l);
            if (what == 'w') {
                warm(fd);
                got(fd, b, sizeof b, 0, 1);
                put(fd, b, sizeof b);
            }
            R(recv(fd, b, 1, 0));
            close(fd);
        }
        close(f);
        tell('d');
    }
}
static void answered(char what) {
    tell(what);
    if (hear() != 'd')
        die("no answer");
}
/* A connect that finds no room. */
static void begin(struct waiting *w, const char *name, long (*call)(void)) {
    say("-- %s", name);
    first = dial(PORT);
    settle(); /* its last acknowledgement */
    the_fd = sock(0);
    rings = 0;
    if (w)
        waiting_start(w, name, call);
}
static void say_answer(struct waiting *w) {
    if (!waiting_is_over(w, 20000))
        die("it waits on");
    say("%s = %ld %s, rang %d", w->name, w->result, w->result == -1 ? err_name(w->error) : "", rings > 0);
}
static void in_progress(void) {
    struct pollfd p = {the_fd, POLLOUT, 0};
    int n = poll(&p, 1, 0);
    say("now %d %s, SO_ERROR %d", n, poll_text(p.revents), so_error(the_fd));
}
/* How it came about in the end. */
static void becomes_writable(void) {
    struct pollfd p = {the_fd, POLLOUT, 0};
    int n = poll(&p, 1, 20000);
    say("writable %d, %s, SO_ERROR %d", n, poll_text(p.revents), so_error(the_fd));
}
/* And its use. */
static void use_it_up(void) {
    warm(the_fd);
    echo(the_fd, "slow", 1);
    R(close(the_fd));
    if (hear() != 'd')
        die("no answer");
    close(first);
}
static void use(struct waiting *w) {
    tell('w');
    if (w)
        say_answer(w);
    becomes_writable();
    R(connect(the_fd, (void *)&to, sizeof to));
    R(connect(the_fd, (void *)&to, sizeof to));
    nonblocking(the_fd, 0);
    use_it_up();
}
static void signalled(struct waiting *w, int times) {
    for (int i = 0; i < times; i++) {
        MUST(-pthread_kill(w->thread, SIGALRM));
        settle();
    }
}

static void interrupted_b(void) {
    struct waiting w;
    meet();
    on_signal(SIGALRM, on_alarm, 0);
    begin(&w, "no restart", w_connect);
    signalled(&w, 1);
    say_answer(&w);
    in_progress();
    waiting_start(&w, "once more", w_connect);
    signalled(&w, 1);
    say_answer(&w);
    in_progress();
    use(NULL);
    on_signal(SIGALRM, on_alarm, SA_RESTART);
    begin(&w, "restart", w_connect);
    signalled(&w, 4);
    say("returns %d", waiting_is_over(&w, 50));
    use(&w);
    begin(NULL, "time-out", NULL);
    timeouts(the_fd, SO_SNDTIMEO, 100);
    R(connect(the_fd, (void *)&to, sizeof to));
    R(connect(the_fd, (void *)&to, sizeof to));
    in_progress();
    timeouts(the_fd, SO_SNDTIMEO, 10000);
    waiting_start(&w, "restart and time-out", w_connect);
    signalled(&w, 1);
    say_answer(&w);
    timeouts(the_fd, SO_SNDTIMEO, 0);
    use(NULL);
    tell('e');
}
/* As POSIX tells it: whoever was interrupted does not call connect again, but waits until it is writable. */
static void use_polled(void) {
    tell('w');
    becomes_writable();
    use_it_up();
}
static void polled_b(void) {
    struct waiting w;
    meet();
    on_signal(SIGALRM, on_alarm, 0);
    begin(&w, "interrupted", w_connect);
    signalled(&w, 1);
    say_answer(&w);
    use_polled();
    on_signal(SIGALRM, jump, 0);
    begin(&w, "jump", w_connect_or_jump);
    signalled(&w, 1);
    say_answer(&w);
    use_polled();
    begin(&w, "cancelled", w_connect);
    R(pthread_cancel(w.thread));
    R(pthread_join(w.thread, NULL));
    use_polled();
    tell('e');
}
static void left_b(void) {
    struct waiting w;
    meet();
    on_signal(SIGALRM, jump, 0);
    begin(&w, "jump", w_connect_or_jump);
    signalled(&w, 1);
    say_answer(&w);
    in_progress();
    use(NULL);
    begin(&w, "cancelled", w_connect);
    void *answer;
    R(pthread_cancel(w.thread));
    R(pthread_join(w.thread, &answer));
    say("cancelled %d", answer == PTHREAD_CANCELED);
    in_progress();
    use(NULL);
    tell('e');
}
/* Waited for in each way. */
static void nonblocking_b(void) {
    meet();
    for (int way = 0; way < 4; way++) {
        begin(NULL, "nonblocking", NULL);
        nonblocking(the_fd, 1);
        int ep = MUST(epoll_create1(0));
        if (way >= 2)
            MUST(epoll_ctl(ep, EPOLL_CTL_ADD, the_fd, &(struct epoll_event){.events = EPOLLIN | EPOLLOUT | (way == 3 ? EPOLLET : 0)}));
        R(connect(the_fd, (void *)&to, sizeof to));
        R(connect(the_fd, (void *)&to, sizeof to));
        in_progress();
        R(send(the_fd, "x", 1, MSG_NOSIGNAL));
        char c;
        R(recv(the_fd, &c, 1, 0));
        tell('w');
        struct epoll_event e = {0};
        fd_set of;
        FD_ZERO(&of);
        FD_SET(the_fd, &of);
        if (way == 0)
            say("%s", poll_text(events(the_fd, POLLIN | POLLOUT, 20000)));
        else if (way == 1)
            R(select(the_fd + 1, NULL, &of, NULL, NULL));
        else if (epoll_wait(ep, &e, 1, 0) == 1 && (e.events & EPOLLHUP))
            do /* a set that saw it before the connect says so first */
                R(epoll_wait(ep, &e, 1, 20000));
            while (e.events & EPOLLHUP);
        else
            R(epoll_wait(ep, &e, 1, 20000));
        say("%s, SO_ERROR %d", epoll_text(e.events), so_error(the_fd));
        nonblocking(the_fd, 0);
        warm(the_fd);
        echo(the_fd, "slow", 1);
        R(close(the_fd));
        close(ep);
        if (hear() != 'd')
            die("no answer");
        close(first);
    }
    tell('e');
}
/* Shut down, it is no connection any more and may become another. */
static void shut_b(void) {
    static const int hows[] = {SHUT_RD, SHUT_WR, SHUT_RDWR};
    struct waiting w;
    meet();
    for (int i = 0; i < 6; i++) {
        begin(i < 3 ? &w : NULL, i < 3 ? "shut down" : "shut down, nonblocking", w_connect);
        if (i >= 3) {
            nonblocking(the_fd, 1);
            R(connect(the_fd, (void *)&to, sizeof to));
        }
        R(shutdown(the_fd, hows[i % 3]));
        if (i < 3)
            say_answer(&w);
        in_progress();
        nonblocking(the_fd, 0);
        waiting_start(&w, "again", w_connect);
        use(&w);
    }
    begin(&w, "closed", w_connect);
    R(close(the_fd));
    say("returns %d", waiting_is_over(&w, 100));
    answered('c');
    say_answer(&w);
    close(first);
    tell('e');
}

/* ---- accept ---- */

static int listener, flags4;
static long w_accept(void) { return accept(listener, NULL, NULL); }
static long w_accept4(void) { return accept4(listener, NULL, NULL, flags4); }
static long w_accept_or_jump(void) { return sigsetjmp(out, 1) ? -77 : w_accept(); }
static long w_poll(void) {
    struct pollfd p = {listener, POLLIN, 0};
    return poll(&p, 1, 5000) < 0 ? -1 : p.revents;
}
static long w_epoll(void) {
    struct epoll_event e = {EPOLLIN, {0}};
    int ep = MUST(epoll_create1(0));
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e));
    long n = epoll_wait(ep, &e, 1, 5000);
    close(ep);
    return n < 1 ? n : (long)(e.events & 0xffff);
}
/* The next connection, whoever accepts it. */
static void serve(int fd) {
    warm(fd);
    echo_until_end(fd);
    tell('d');
}
static void called(void) { tell('c'); }
static void accept_b(void) {
    meet();
    while (hear() == 'c') {
        int fd = dial(PORT);
        warm(fd);
        echo(fd, "accepted", 2);
        close(fd);
        if (hear() != 'd')
            die("no answer");
    }
}
static void say_accepted(struct waiting *w) {
    if (!waiting_is_over(w, 20000))
        die("it waits on");
    if (w->result < 0)
        say("%s = %ld %s, rang %d", w->name, w->result, w->result == -1 ? err_name(w->error) : "", rings > 0);
    else
        say("%s: a connection", w->name);
}
static void accept_left_a(void) {
    struct waiting w;
    listener = listen_on(PORT);
    meet();
    on_signal(SIGALRM, jump, 0);
    for (int i = 0; i < 3; i++) {
        waiting_start(&w, "jump", w_accept_or_jump);
        signalled(&w, 1);
        say_accepted(&w);
        flags4 = i == 1 ? SOCK_NONBLOCK : SOCK_CLOEXEC;
        waiting_start(&w, "cancelled", i ? w_accept4 : w_accept);
        void *answer;
        R(pthread_cancel(w.thread));
        R(pthread_join(w.thread, &answer));
        say("cancelled %d", answer == PTHREAD_CANCELED);
        called();
        serve(accept_from(listener));
    }
    /* Interrupted and restarted until somebody comes. */
    on_signal(SIGALRM, on_alarm, SA_RESTART);
    for (int i = 0; i < 2; i++) {
        rings = 0;
        waiting_start(&w, "restarted", i ? w_accept4 : w_accept);
        signalled(&w, 3);
        called();
        say_accepted(&w);
        serve((int)w.result);
    }
    timeouts(listener, SO_RCVTIMEO, 100);
    R(accept(listener, NULL, NULL));
    timeouts(listener, SO_RCVTIMEO, 10000);
    waiting_start(&w, "restart and time-out", w_accept);
    signalled(&w, 1);
    say_accepted(&w);
    called();
    serve(accept_from(listener));
    tell('e');
}
static void accept_withdrawn_a(void) {
    static const struct {
        const char *name;
        long (*call)(void);
    } ways[] = {{"accept", w_accept}, {"accept4", w_accept4}, {"poll", w_poll}, {"epoll", w_epoll}};
    struct waiting w;
    listener = listen_on(PORT);
    meet();
    for (int i = 0; i < 4; i++)
        for (int how = 0; how < 3; how++) { /* SHUT_RD, SHUT_WR, SHUT_RDWR */
            waiting_start(&w, ways[i].name, ways[i].call);
            R(shutdown(listener, how));
            if (how == SHUT_WR) { /* says nothing to a listener */
                say("returns %d", waiting_is_over(&w, 100));
                called();
            }
            if (!waiting_is_over(&w, 20000))
                die("it waits on");
            if (i < 2)
                say_accepted(&w);
            else
                say("%s: %s", w.name, poll_text((short)w.result));
            if (how == SHUT_WR) {
                serve(i < 2 ? (int)w.result : accept_from(listener));
                continue;
            }
            R(accept(listener, NULL, NULL));
            R(listen(listener, 5)); /* it may listen again */
            called();
            serve(accept_from(listener));
        }
    /* Closed, it goes on for who waits in accept. */
    waiting_start(&w, "closed", w_accept);
    R(close(listener));
    say("returns %d", waiting_is_over(&w, 100));
    called();
    say_accepted(&w);
    serve((int)w.result);
    tell('e');
}

const struct test tests[] = {{"interrupted", slow_a, interrupted_b, SLOW},
                             {"left", slow_a, left_b, SLOW},
                             {"polled", slow_a, polled_b, SLOW},
                             {"nonblocking", slow_a, nonblocking_b, SLOW},
                             {"withdrawn", slow_a, shut_b, SLOW},
                             {"accept_left", accept_left_a, accept_b, SLOW},
                             {"accept_withdrawn", accept_withdrawn_a, accept_b, SLOW},
                             {0}};
