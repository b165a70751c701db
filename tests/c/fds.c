/* Owns: descriptors: duplicates share one stream and its flags; a number that is used again is
 * another file, however the first was closed. */
#include "case.h"
#include <sys/resource.h>

static char buf[64 * KIB];

/* The helper end echoes until the end of the stream, and says how that came. */
static void echo_b(void) {
    int fd = conn();
    for (;;) {
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n <= 0) {
            say("echo ended: %s", n == 0 ? "end" : err_name(errno));
            break;
        }
        put(fd, buf, n);
    }
    close(fd);
    meet();
}
static void done(void) { meet(); }

static void dups_a(void) {
    int fd = conn();
    int one = MUST(dup(fd)), two = MUST(dup2(fd, 40)), three = MUST(dup3(fd, 41, O_CLOEXEC));
    int four = MUST(fcntl(fd, F_DUPFD, 50)), five = MUST(fcntl(fd, F_DUPFD_CLOEXEC, 60));
    say("%d %d %d %d", two, three, four, five);
    R(dup2(fd, fd) == fd);
    R(dup3(fd, fd, 0));
    R(dup2(fd, -1));
    R(dup2(999, 42));
    R(dup3(fd, 43, 0x1234));
    R(fcntl(41, F_GETFD));
    R(fcntl(50, F_GETFD));
    echo(fd, "original", 1);
    echo(one, "dup", 2);
    echo(two, "dup2", 3);
    echo(three, "dup3", 4);
    echo(four, "F_DUPFD", 5);
    echo(five, "F_DUPFD_CLOEXEC", 6);
    /* Flags belong to the description. */
    nonblocking(two, 1);
    R(fcntl(one, F_GETFL) & O_NONBLOCK);
    R(recv(five, buf, 1, 0));
    nonblocking(five, 0);
    R(fcntl(fd, F_GETFL) & O_NONBLOCK);
    sol_int(one, SOL_SOCKET, SO_KEEPALIVE, 1);
    /* Send on one, receive on another, in turns. */
    int all[] = {fd, one, two, three, four, five};
    for (int i = 0; i < 60; i++) {
        char c = (char)i, d = 0;
        MUST(send(all[i % 6], &c, 1, 0));
        if (recv(all[(i * 5 + 1) % 6], &d, 1, 0) != 1 || c != d)
            die("in turns");
    }
    for (int i = 0; i < 5; i++) {
        R(close(all[i]));
        R(recv(all[i], buf, 1, 0));
        echo(five, "after a close", 10 + i);
    }
    R(shutdown(five, SHUT_WR));
    R(recv(five, buf, 1, 0));
    R(close(five));
    done();
}

/* dup2 over a connection closes it: its peer sees the end. */
static void over_a(void) {
    int l = listen_on(PORT);
    meet();
    int first = accept_from(l);
    warm(first);
    int second = accept_from(l);
    warm(second);
    R(dup2(second, first) == first);
    meet();
    echo(first, "the second under the number of the first", 1);
    echo(second, "the second", 2);
    R(close(second));
    echo(first, "the second under the number of the first", 3);
    int file = MUST(memfd_create("f", 0));
    R(dup2(file, first) == first);
    R(write(first, "into the file", 13));
    R(pread(file, buf, 100, 0));
    say("%.13s", buf);
    meet();
}
static void over_b(void) {
    meet();
    int first = dial(PORT);
    warm(first);
    int second = dial(PORT);
    warm(second);
    R(recv(first, buf, 10, 0)); /* the end */
    meet();
    long all = 0;
    for (ssize_t n; (n = recv(second, buf, sizeof buf, 0)) > 0; all += n)
        put(second, buf, n);
    say("echoed %ld", all);
    meet();
}

/* Closed in ways that no hook sees; then the number is a file, a pipe, another connection. */
static void unseen_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int way = 0; way < 6; way++) {
        int fd = accept_from(l);
        warm(fd);
        echo(fd, "before", way);
        if (way == 0)
            R(close(fd));
        else if (way == 1)
            R(syscall(SYS_close, fd));
        else if (way == 2)
            R(raw(SYS_close, fd, 0, 0, 0, 0, 0));
        else if (way == 3)
            R(close_range(fd, fd, 0));
        else if (way == 4)
            R(raw(SYS_close_range, fd, fd, 0, 0, 0, 0));
        else {
            int null = MUST(open("/dev/null", O_RDWR));
            R(syscall(SYS_dup3, null, fd, 0) == fd);
            close(null);
            R(write(fd, "to null", 7));
            R(read(fd, buf, 10));
            MUST(raw(SYS_close, fd, 0, 0, 0, 0, 0));
        }
        meet(); /* the peer saw the end */
        int file = MUST(memfd_create("f", 0));
        say("same number %d", file == fd);
        R(write(file, "hello, file", 11));
        R(lseek(file, 0, SEEK_SET));
        R(read(file, buf, 100));
        say("%.11s", buf);
        R(recv(file, buf, 1, 0));
        close(file);
        int pipes[2];
        MUST(pipe(pipes));
        say("same number %d", pipes[0] == fd);
        R(write(pipes[1], "hello, pipe", 11));
        R(read(pipes[0], buf, 100));
        close(pipes[1]);
        R(read(pipes[0], buf, 100));
        close(pipes[0]);
    }
}
/* Several at once. */
enum { AT_ONCE = 4 };
static void unseen_closes_a(void) {
    int l = listen_on(PORT), fd[AT_ONCE];
    meet();
    for (int i = 0; i < AT_ONCE; i++) {
        fd[i] = accept_from(l);
        warm(fd[i]);
    }
    meet();
    for (int i = 0; i < AT_ONCE; i++)
        R(raw(SYS_close, fd[i], 0, 0, 0, 0, 0));
    meet();
}
static void unseen_closes_b(void) {
    int fd[AT_ONCE];
    meet();
    for (int i = 0; i < AT_ONCE; i++) {
        fd[i] = dial(PORT);
        warm(fd[i]);
    }
    meet();
    for (int i = 0; i < AT_ONCE; i++)
        R(recv(fd[i], buf, 10, 0));
    meet();
}
static void unseen_b(void) {
    meet();
    for (int way = 0; way < 6; way++) {
        int fd = dial(PORT);
        warm(fd);
        long all = 0;
        ssize_t n;
        while (all < 20000 && (n = recv(fd, buf, sizeof buf, 0)) > 0) {
            put(fd, buf, n);
            all += n;
        }
        R(recv(fd, buf, 10, 0));
        close(fd);
        meet();
    }
}

/* A closed number becomes another connection to the same port, again and again. */
static void reuse_a(void) {
    int l = listen_on(PORT);
    meet();
    int good = 1;
    for (int i = 0; i < 40; i++) {
        int fd = accept_from(l);
        if (i == 20)
            warm(fd);
        uint64_t o = 0;
        for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0; o += n)
            good = good && matches(buf, n, o, i);
        good = good && o == 100000;
        i % 2 ? close(fd) : (int)raw(SYS_close, fd, 0, 0, 0, 0, 0);
    }
    say("all good %d", good);
}
static void reuse_b(void) {
    meet();
    for (int i = 0; i < 40; i++) {
        int fd = dial(PORT);
        if (i == 20)
            warm(fd);
        for (int o = 0; o < 100000; o += 10000) {
            fill(buf, 10000, o, i);
            put(fd, buf, 10000);
        }
        i % 3 ? close(fd) : (int)raw(SYS_close, fd, 0, 0, 0, 0, 0);
    }
}

/* syscall(2) for the calls of libuv and others. */
static void syscall_a(void) {
    int fd = conn();
    int twin = MUST((int)syscall(SYS_dup, fd));
    echo(twin, "SYS_dup", 1);
    R(syscall(SYS_dup3, fd, 44, O_CLOEXEC));
    echo(44, "SYS_dup3", 2);
    R(syscall(SYS_close, fd));
    R(syscall(SYS_close, fd));
    R(recv(fd, buf, 1, MSG_DONTWAIT));
    echo(twin, "after the close", 3);
    R(syscall(SYS_sendto, twin, "abc", 3, 0, NULL, 0));
    for (int i = 0; i < 100 && now_in(twin) < 3; i++)
        settle();
    R(syscall(SYS_recvfrom, twin, buf, 10, 0, NULL, NULL));
    R(syscall(SYS_write, 44, "defg", 4));
    for (int i = 0; i < 100 && now_in(twin) < 4; i++)
        settle();
    R(syscall(SYS_read, 44, buf, 10));
    struct iovec v = {"hij", 3};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    R(syscall(SYS_sendmsg, twin, &m, 0));
    v = (struct iovec){buf, 3};
    R(syscall(SYS_recvmsg, twin, &m, MSG_WAITALL));
    R(syscall(SYS_fcntl, twin, F_SETFL, O_RDWR | O_NONBLOCK));
    R(syscall(SYS_recvfrom, 44, buf, 10, 0, NULL, NULL));
    R(syscall(SYS_shutdown, 44, SHUT_WR));
    R(syscall(SYS_close, 44));
    R(syscall(SYS_getpid) == getpid());
    R(syscall(SYS_close_range, twin, twin, 0));
    done();
}

static void ranges_a(void) {
    int fd = conn();
    MUST(dup2(fd, 100));
    MUST(dup2(fd, 200));
    R(close_range(100, 300, CLOSE_RANGE_CLOEXEC));
    R(fcntl(100, F_GETFD));
    R(fcntl(200, F_GETFD));
    echo(200, "marked", 1);
    R(close_range(100, 150, 0));
    R(fcntl(100, F_GETFD));
    echo(200, "the rest", 2);
    R(close_range(5, 4, 0));
    R(close_range(150, ~0u, 0));
    R(fcntl(200, F_GETFD));
    echo(fd, "the first", 3);
    MUST(dup2(fd, 70));
    closefrom(60);
    R(fcntl(70, F_GETFD));
    echo(fd, "after closefrom", 4);
    /* A daemon that closes all: the library's own may be among them. */
    for (int i = fd + 1; i < 1100; i++)
        close(i);
    echo(fd, "after the loop", 5);
    R(close_range(fd + 1, ~0u, 0));
    echo(fd, "after close_range", 6);
    int l = listen_on(PORT + 1), c = dial(PORT + 1), s = accept_from(l);
    for (int i = 0; i < 300; i++) {
        put(c, "hello", 5);
        if (get(s, buf, 5) != 5)
            die("a new connection");
        put(s, "hallo", 5);
        if (get(c, buf, 5) != 5)
            die("a new connection");
    }
    say("a new connection works");
    R(close_range(fd, ~0u, 0));
    R(recv(fd, buf, 1, 0));
    done();
}

/* The highest number that is permitted, and one above 1023. */
static void high_a(void) {
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max > 1100000 ? 1100000 : limit.rlim_max;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    int fd = conn(), top = (int)limit.rlim_cur - 1;
    R(dup2(fd, top) == top);
    int above = MUST(fcntl(fd, F_DUPFD, 1024));
    echo(top, "highest", 1);
    echo(above, "above 1023", 2);
    close(fd);
    echo(top, "highest", 3);
    struct pollfd p[2] = {{top, POLLOUT, 0}, {above, POLLOUT, 0}};
    R(poll(p, 2, 1000));
    close(above);
    R(close(top));
    done();
}

/* One process, both ends. */
static void self_a(void) {
    int fd = conn(), l = listen_on(PORT + 1);
    for (int round = 0; round < 3; round++) {
        int c = dial(PORT + 1), s = accept_from(l);
        for (int i = 0; i < 1000; i++) {
            fill(buf, 3000, i, 1);
            put(c, buf, 3000);
            if (get(s, buf + 10000, 3000) != 3000 || memcmp(buf, buf + 10000, 3000))
                die("there");
            put(s, buf, 2000);
            if (get(c, buf + 10000, 2000) != 2000 || memcmp(buf, buf + 10000, 2000))
                die("back");
        }
        put(c, "unread", 6);
        R(close(s));
        settle();
        R(recv(c, buf, 1, 0));
        R(close(c));
    }
    R(close(fd));
    done();
}

/* All numbers that are open, as a program finds them out that closes or inherits what it knows nothing of. */
static void numbers(const char *when) {
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    int most = limit.rlim_cur > 100000 ? 100000 : (int)limit.rlim_cur;
    char text[2000] = "";
    size_t n = 0;
    for (int i = 0; i < most; i++) {
        int flags = fcntl(i, F_GETFD), copy = dup(i);
        if ((flags < 0) != (copy < 0))
            die("one of two");
        if (copy < 0)
            continue;
        R(dup2(i, copy) == copy);
        MUST(close(copy));
        n += snprintf(text + n, sizeof text - n, " %d", i);
    }
    say("%s:%s", when, text);
}
static void numbers_a(void) {
    numbers("before");
    int fd = conn(), ep = MUST(epoll_create1(0));
    numbers("connected");
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    R(epoll_wait(ep, &e, 1, 10));
    echo(fd, "used", 1);
    numbers("used");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        numbers("child");
        _exit(0);
    }
    wait_for(child);
    MUST(close(fd));
    numbers("closed");
    done();
}

const struct test tests[] = {{"duplicates", dups_a, echo_b, 0},
                             {"dup2_over", over_a, over_b, 0},
                             {"unseen_close", unseen_a, unseen_b, 0},
                             {"unseen_closes", unseen_closes_a, unseen_closes_b, 0},
                             {"reuse", reuse_a, reuse_b, 0},
                             {"by_syscall", syscall_a, echo_b, 0},
                             {"ranges", ranges_a, echo_b, 0},
                             {"numbers", numbers_a, echo_b, 0},
                             {"high_numbers", high_a, echo_b, 0},
                             {"both_ends_here", self_a, echo_b, 0},
                             {0}};
