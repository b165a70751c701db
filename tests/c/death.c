/* Owns: what the survivor sees when the other end dies: SIGKILL, crash, exit, with and without
 * unread data, in every state of the stream. Each end is a child of its case, so that the case
 * itself lives to tell. */
#include "mortal.h"

static char buf[64 * KIB];

/* Reads till there is no more; how much, and whether it was all right. */
static uint64_t read_all(int fd, int *good, ssize_t *last) {
    uint64_t o = 0;
    for (*good = 1; (*last = recv(fd, buf, sizeof buf, 0)) > 0; o += *last)
        *good = *good && matches(buf, *last, o, 1);
    return o;
}
static void see(int fd) {
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 2000)));
    say("FIONREAD %d", now_in(fd));
    ssize_t n;
    int good;
    uint64_t o = read_all(fd, &good, &n);
    int e = errno;
    say("%llu bytes, whole %d, then %s", (unsigned long long)o, good, n == 0 ? "end" : err_name(e));
    R(recv(fd, buf, 1, 0));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    settle();
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
}

static void quiet(int fd) {}
static void quiet_b(void) { mortal(quiet); }
static void quiet_a(void) {
    int fd = conn();
    kill_peer();
    see(fd);
}
static void sent(int fd) {
    fill(buf, 50000, 0, 1);
    put(fd, buf, 50000);
}
static void sent_b(void) { mortal(sent); }

/* The dead had unread data: reset. */
static void unread_b(void) { mortal(quiet); }
static void unread_a(void) {
    int fd = conn();
    put(fd, "never read", 10);
    settle();
    kill_peer();
    see(fd);
}
static void sent_unread_a(void) {
    int fd = conn();
    put(fd, "never read", 10);
    settle();
    kill_peer();
    R(send(fd, "y", 1, MSG_NOSIGNAL));
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 2000)));
    R(recv(fd, buf, 1, 0) >= 0 ? 0 : -1);
}

/* Killed in the middle of a blocking send: what the kernel took is delivered, then the end. */
static void *kill_soon(void *p) {
    settle();
    settle();
    tell_pid(getpid());
    return NULL;
}
static void sending(int fd) {
    static char big[16 * MIB];
    pthread_t t;
    fill(big, sizeof big, 0, 1);
    pthread_create(&t, NULL, kill_soon, NULL);
    put(fd, big, sizeof big);
}
static void sending_b(void) { mortal(sending); }
static void sending_a(void) {
    int fd = conn();
    kill_peer();
    ssize_t n;
    int good;
    uint64_t o = read_all(fd, &good, &n);
    say("some %d whole %d, then %s", o > 10000, good, n == 0 ? "end" : err_name(errno));
}

/* What the dead had sent lies behind a slow reader, and it has read all that came for it: nothing is lost, though
 * it never slept since something came. */
static void behind(int in_set) {
    int fd = conn_cold();
    static char big[300 * KIB];
    if (in_set) {
        struct epoll_event e = {EPOLLIN | EPOLLOUT | EPOLLET, {0}};
        int ep = MUST(epoll_create1(0));
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
        MUST(epoll_wait(ep, &e, 1, 0));
    }
    fill(big, sizeof big, 0, 1);
    put(fd, big, sizeof big);
    trickled(fd);
    settle();
    tell_pid(getpid());
    for (;;)
        pause();
}
static void behind_a(void) { behind(0); }
static void behind_set_a(void) { behind(1); }
static void behind_b(void) {
    int fd = conn_cold();
    trickle(fd);
    kill_peer();
    see(fd);
}

/* The ring of the sender has filled, and it is back on TCP when its reader dies: because it has waited for room in poll, and
 * then it has put nothing there; or at once, because nobody was seen to wait, and the rest of it is there. It is told by its
 * next send, and by nothing else. */
static void fills(int waits) {
    int fd = conn();
    static char big[256 * KIB];
    nonblocking(fd, 1);
    if (waits)
        events(fd, POLLOUT, 0);
    for (size_t o = 0; o < sizeof big;) {
        ssize_t n = send(fd, big + o, sizeof big - o, MSG_NOSIGNAL);
        if (n < 0)
            break;
        o += n;
    }
    if (waits)
        events(fd, POLLOUT, 700); /* whether there is room soon is not the same */
    kill_peer();
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(recv(fd, buf, 1, 0));
}
static void fills_a(void) { fills(0); }
static void fills_and_waits_a(void) { fills(1); }

/* What a survivor is told whose next call is sendfile, or splice from a pipe: as by send. `left`: what the dead had not read. */
static void by_file(int splices, int left) {
    int fd = conn(), file = MUST(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), p[2];
    off_t at = 0;
    MUST(pipe(p));
    MUST(write(p[1], "abcd", 4));
    signal(SIGPIPE, SIG_IGN);
    nonblocking(fd, 1);
    if (left == 1)
        put(fd, "never read", 10);
    while (left == 2 && send(fd, buf, sizeof buf, MSG_NOSIGNAL) > 0) { /* past the ring */
    }
    settle();
    kill_peer();
    for (int i = 0; i < 3; i++) {
        if (splices)
            R(splice(p[0], NULL, fd, NULL, 1, 0));
        else
            R(sendfile(fd, file, i == 1 ? NULL : &at, 1));
        settle();
    }
    say("file at %ld, %ld, pipe %d", (long)at, (long)lseek(file, 0, SEEK_CUR), now_in(p[0]));
    R(recv(fd, buf, 1, 0));
}
static void file_a(void) { by_file(0, 0); }
static void file_unread_a(void) { by_file(0, 1); }
static void file_full_a(void) { by_file(0, 2); }
static void splice_a(void) { by_file(1, 0); }
static void splice_unread_a(void) { by_file(1, 1); }
static void splice_full_a(void) { by_file(1, 2); }

/* It dies by a reset while what it has sent lies in the ring, behind that in TCP, and behind that in its own queue, which
 * the reset destroys: the survivor, which has read nothing yet, is not told that this was the end. */
static int resetting_fd;
static void *put_all(void *p) {
    static char big[24 * MIB];
    fill(big, sizeof big, 0, 1);
    put(resetting_fd, big, sizeof big);
    return NULL;
}
static void resetting(int fd) {
    struct linger l = {1, 0};
    pthread_t t;
    int queued = 0;
    resetting_fd = fd;
    pthread_create(&t, NULL, put_all, NULL);
    while (queued < 1000) { /* past the ring, by calls that the library does not see; a doorbell is one byte */
        usleep(20000);
        MUST(raw(SYS_ioctl, fd, SIOCOUTQ, (long)&queued, 0, 0, 0));
    }
    settle();
    MUST(raw(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, (long)&l, sizeof l, 0));
}
static void resetting_b(void) { mortal(resetting); }
static void resetting_a(void) {
    int fd = conn();
    kill_peer();
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 2000))); /* it sees the reset before the ring is read */
    uint64_t o = 0;
    ssize_t n;
    int good = 1;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0) {
        good = good && matches(buf, n, o, 1);
        o += n;
    }
    say("some %d not all %d whole %d, then %s", o > 10000, o < 24 * MIB, good, n == 0 ? "end" : err_name(errno));
}

/* One thread of the survivor is in recv since before the connection was in memory; what the dead had unread lies there. */
static void *in_recv_always(void *p) {
    R(recv(*(int *)p, buf + sizeof buf - 1, 1, 0));
    return NULL;
}
static void in_recv_always_b(void) {
    int fd = conn_cold();
    pthread_t t;
    pthread_create(&t, NULL, in_recv_always, &fd);
    settle();
    for (int i = 0; i < 300; i++) {
        put(fd, buf, 1000);
        hear();
    }
    put(fd, buf, 20000);
    kill_peer();
    pthread_join(t, NULL);
    R(recv(fd, buf, 1, 0));
}
static void in_recv_always_a(void) {
    int fd = conn_cold();
    for (int i = 0; i < 300; i++) {
        MUST(get(fd, buf, 1000) == 1000 ? 0 : -1);
        tell('.');
    }
    settle();
    tell_pid(getpid());
    for (;;)
        pause();
}

/* The survivor is the one in a call: recv, send, poll, epoll_wait. */
static void *kill_later(void *p) {
    settle();
    settle();
    MUST(kill(*(pid_t *)p, SIGKILL));
    return NULL;
}
static void waiting(int kind) {
    int fd = conn();
    pid_t pid = hear_pid();
    pthread_t t;
    pthread_create(&t, NULL, kill_later, &pid);
    if (kind == 0) {
        R(recv(fd, buf, 100, 0));
    } else if (kind == 1) {
        say("%s", poll_text(events(fd, POLLIN | POLLRDHUP, 10000)));
    } else if (kind == 2) {
        int ep = epoll_create1(0);
        struct epoll_event e = {EPOLLIN | EPOLLRDHUP | EPOLLET, {0}};
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
        R(epoll_wait(ep, &e, 1, 10000));
        say("%s", epoll_text(e.events));
        R(recv(fd, buf, 100, 0));
    } else {
        char *big = calloc(1, 64 * MIB);
        ssize_t n = send(fd, big, 64 * MIB, MSG_NOSIGNAL);
        say("partial %d", n > 0 && n < 64 * MIB);
        settle(); /* what the partial send brought about is there */
        if (kind == 4)
            R(recv(fd, buf, 100, 0));
        else if (kind == 5)
            say("%s", err_name(so_error(fd)));
        else if (kind == 6)
            say("%s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 1000)));
        n = send(fd, big, 64 * MIB, MSG_NOSIGNAL);
        say("%zd %s", n, err_name(errno));
        R(send(fd, big, 1, MSG_NOSIGNAL));
        R(recv(fd, buf, 100, 0));
    }
    pthread_join(t, NULL);
}
static void in_recv_a(void) { waiting(0); }
static void in_poll_a(void) { waiting(1); }
static void in_epoll_a(void) { waiting(2); }
static void in_send_a(void) { waiting(3); }
static void in_send_recv_a(void) { waiting(4); }
static void in_send_error_a(void) { waiting(5); }
static void in_send_poll_a(void) { waiting(6); }

/* Crash and orderly exit instead of a kill. */
static void crash_b(void) {
    int fd = conn();
    sent(fd);
    meet();
    abort();
}
static void crash_a(void) {
    int fd = conn();
    meet();
    settle();
    while (hear() != 0) {
    }
    see(fd);
}
static void exit_unread_b(void) {
    int fd = conn();
    sent(fd);
    meet();
    settle();
    _exit(0);
}
/* The other end is gone, and has not read what was sent to it. */
static int exited_unread(void) {
    int fd = conn();
    put(fd, "never read", 10);
    meet();
    while (hear() != 0) {
    }
    settle();
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 2000)));
    return fd;
}
static void exit_unread_a(void) {
    int fd = exited_unread();
    R(recv(fd, buf, 60000, 0));
    R(recv(fd, buf, 60000, 0));
}

/* The same behind its own shutdown. */
static void exit_half_unread_b(void) {
    int fd = conn();
    sent(fd);
    meet();
    settle();
    MUST(shutdown(fd, SHUT_WR));
    settle();
    _exit(0);
}
static void exit_half_unread_a(void) {
    int fd = exited_unread();
    say("%s", err_name(so_error(fd)));
    R(send(fd, buf, 100, MSG_NOSIGNAL));
    R(recv(fd, buf, 60000, 0));
    R(recv(fd, buf, 60000, 0));
}

/* Killed with unread data, and the error is asked for before anything else. */
static void nothing_read(int fd) { (void)fd; }
static void error_first_b(void) { mortal(nothing_read); }
static void error_first_a(void) {
    int fd = conn();
    put(fd, buf, 1000);
    settle();
    kill_peer();
    settle();
    say("%s", err_name(so_error(fd)));
    R(recv(fd, buf, 60000, 0));
}

/* Killed with half of the data read: the rest was unread, so a reset. */
static void half_read(int fd) {
    if (get(fd, buf, 500) != 500)
        die("half_read");
}
static void half_read_b(void) { mortal(half_read); }
static void half_read_a(void) {
    int fd = conn();
    put(fd, buf, 1000);
    settle();
    kill_peer();
    see(fd);
}

/* The accepting end is killed when it has read all that came, after one request, two, three ...: never a reset. One of these deaths comes
 * just before the connecting end would go to memory. */
enum { REQUESTS = 40 };
static void serve_some(int requests) {
    int l = listen_on(PORT + requests);
    tell('l');
    int fd = accept_from(l);
    char c;
    for (int i = 0; i < requests && recv(fd, &c, 1, 0) == 1; i++)
        put(fd, &c, 1);
    tell_pid(getpid());
    for (;;)
        pause();
}
static void between_requests_a(void) {
    for (int n = 1; n <= REQUESTS; n++) {
        pid_t child = MUST(fork());
        if (child == 0)
            serve_some(n);
        wait_for(child);
    }
}
static void between_requests_b(void) {
    for (int n = 1; n <= REQUESTS; n++) {
        hear();
        int fd = dial(PORT + n);
        char c = 'c';
        for (int i = 0; i < n; i++) {
            put(fd, &c, 1);
            if (get(fd, &c, 1) != 1)
                die("get");
        }
        pid_t pid = hear_pid();
        usleep(10000);
        MUST(kill(pid, SIGKILL));
        say("poll: %s", poll_text(events(fd, POLLIN | POLLRDHUP, 2000)));
        R(recv(fd, buf, 1, 0));
        close(fd);
    }
}

/* Stopped for a while, then going on: nothing happens. Then killed while stopped. */
static void stopped_b(void) {
    int fd = conn();
    tell_pid(getpid());
    long all = 0;
    ssize_t n;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0) {
        put(fd, buf, n);
        all += n;
    }
    say("echoed %ld", all);
}
static void stopped_a(void) {
    int fd = conn();
    pid_t pid = hear_pid();
    for (int i = 0; i < 3; i++) {
        kill(pid, SIGSTOP);
        fill(buf, 20000, 0, i);
        put(fd, buf, 20000);
        timeouts(fd, SO_RCVTIMEO, 100);
        R(recv(fd, buf, 1, 0) == -1);
        timeouts(fd, SO_RCVTIMEO, 0);
        kill(pid, SIGCONT);
        got(fd, buf, 20000, 0, i);
    }
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}

const struct test tests[] = {{"killed", quiet_a, quiet_b, 0},
                             {"killed_after_sending", quiet_a, sent_b, 0},
                             {"killed_unread", unread_a, unread_b, 0},
                             {"killed_sent_unread", sent_unread_a, sent_b, 0},
                             {"killed_in_send", sending_a, sending_b, 0},
                             {"killed_with_payload_behind", behind_a, behind_b, COLD | SWITCHES},
                             {"killed_in_a_set_with_payload_behind", behind_set_a, behind_b, COLD | SWITCHES},
                             {"killed_full", fills_a, quiet_b, 0},
                             {"killed_waited_for", fills_and_waits_a, quiet_b, 0},
                             {"sendfile_to_dead", file_a, quiet_b, 0},
                             {"sendfile_to_dead_unread", file_unread_a, quiet_b, 0},
                             {"sendfile_to_dead_full", file_full_a, quiet_b, 0},
                             {"splice_to_dead", splice_a, quiet_b, 0},
                             {"splice_to_dead_unread", splice_unread_a, quiet_b, 0},
                             {"splice_to_dead_full", splice_full_a, quiet_b, 0},
                             {"reset_behind_the_ring", resetting_a, resetting_b, 0},
                             {"killed_half_read", half_read_a, half_read_b, 0},
                             {"survivor_in_recv_always", in_recv_always_a, in_recv_always_b, COLD | SWITCHES},
                             {"survivor_in_recv", in_recv_a, quiet_b, 0},
                             {"survivor_in_poll", in_poll_a, quiet_b, 0},
                             {"survivor_in_epoll", in_epoll_a, quiet_b, 0},
                             {"survivor_in_send", in_send_a, quiet_b, 0},
                             {"survivor_in_send_receives", in_send_recv_a, quiet_b, 0},
                             {"survivor_in_send_asks", in_send_error_a, quiet_b, 0},
                             {"survivor_in_send_polls", in_send_poll_a, quiet_b, 0},
                             {"crash", crash_a, crash_b, 0},
                             {"exit_unread", exit_unread_a, exit_unread_b, 0},
                             {"exit_half_unread", exit_half_unread_a, exit_half_unread_b, 0},
                             {"error_first", error_first_a, error_first_b, 0},
                             {"killed_between_requests", between_requests_a, between_requests_b, COLD | SWITCHES},
                             {"stopped", stopped_a, stopped_b, 0},
                             {0}};
