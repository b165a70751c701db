/* Owns: what sendfile and splice come to by what they take bytes from: files and pipes at their ends, which move nothing whatever the connection is
 * like, files that are read past the page cache, and a connection with a low-water mark, of which they know nothing. */
#include "mortal.h"

static char buf[64 * KIB];
static volatile sig_atomic_t pipe_signals;
static void on_pipe(int s) { pipe_signals++; }

/* ---- a low-water mark ---- */

static void low_water_a(void) {
    int fd = conn(), p[2];
    MUST(pipe(p));
    sol_int(fd, SOL_SOCKET, SO_RCVLOWAT, 100);
    for (int i = 0; i < 2; i++) {
        meet();
        while (now_in(fd) < 10)
            settle();
        say("%s", poll_text(events(fd, POLLIN, 0)));
        R(splice(fd, NULL, p[1], NULL, 4, 0));
        R(sendfile(p[1], fd, NULL, 4));
        R(splice(fd, NULL, p[1], NULL, 1000, SPLICE_F_NONBLOCK));
        R(read(p[0], buf, 100));
        say("'%.10s'", buf);
        R(recv(fd, buf, 10, MSG_DONTWAIT));
    }
    meet();
}
static void low_water_b(void) {
    int fd = conn();
    for (int i = 0; i < 2; i++) {
        meet();
        put(fd, "0123456789", 10);
    }
    meet();
}

/* ---- what has ended ---- */

static int file_at_end(void) {
    int file = MUST(memfd_create("f", MFD_CLOEXEC));
    MUST(write(file, "0123456789", 10));
    return file;
}
/* A pipe that is empty; `over`: and nobody writes. */
static int empty_pipe(int over) {
    int p[2];
    MUST(pipe(p));
    if (over)
        close(p[1]);
    return p[0];
}
static void ended(int fd) {
    int file = file_at_end(), over = empty_pipe(1), empty = empty_pipe(0);
    off_t end = 10, beyond = 100;
    pipe_signals = 0;
    R(sendfile(fd, file, NULL, 100));
    R(sendfile(fd, file, &end, 100));
    R(sendfile(fd, file, &beyond, 1));
    say("%ld %ld", (long)end, (long)beyond);
    R(splice(over, NULL, fd, NULL, 10, 0));
    R(splice(empty, NULL, fd, NULL, 10, SPLICE_F_NONBLOCK));
    say("signals %d", (int)pipe_signals);
    close(file), close(over), close(empty);
}
/* And what has not. */
static void goes_on(int fd) {
    int file = file_at_end();
    off_t before = 9;
    R(sendfile(fd, file, &before, 100));
    say("%ld, signals %d", (long)before, (int)pipe_signals);
    close(file);
}

static void full_a(void) {
    int fd = conn();
    nonblocking(fd, 1);
    say("%s", poll_text(events(fd, POLLOUT, 0))); /* who waits for room like that has it told */
    long all = 0;
    for (ssize_t n; (n = send(fd, buf, sizeof buf, 0)) > 0;)
        all += n;
    ended(fd);
    tell_pid((pid_t)all);
    meet();
}
static void full_b(void) {
    int fd = conn();
    for (long left = hear_pid(); left > 0;)
        left -= get(fd, buf, left < (long)sizeof buf ? left : (long)sizeof buf);
    R(now_in(fd));
    meet();
}

static void shut_a(void) {
    int fd = conn();
    on_signal(SIGPIPE, on_pipe, 0);
    R(shutdown(fd, SHUT_WR));
    ended(fd);
    goes_on(fd);
    meet();
}
static void shut_b(void) {
    int fd = conn();
    R(recv(fd, buf, 1, 0));
    meet();
}

static void quiet(int fd) {}
static void dead_b(void) { mortal(quiet); }
static void dead_a(void) {
    int fd = conn();
    on_signal(SIGPIPE, on_pipe, 0);
    put(fd, "unread", 6);
    kill_peer();
    ended(fd);
    goes_on(fd);
    ended(fd);
    goes_on(fd);
}

/* ---- past the page cache ---- */

enum { PAGES = 40 * 4096 };
static void direct_a(void) {
    int fd = conn();
    FILE *whole = tmpfile();
    if (!whole)
        die("tmpfile");
    int file = fileno(whole);
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    for (off_t at = 0; at < PAGES; at += 4096) {
        fill(buf, 4096, at, 1);
        MUST(pwrite(file, buf, 4096, at));
    }
    int direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (direct < 0) /* a file system without it */
        direct = MUST(open(path, O_RDONLY | O_CLOEXEC));
    put(fd, "odd", 3); /* no place in a ring is a page's from here on */
    off_t at = 0;
    ssize_t n;
    while ((n = sendfile(fd, direct, &at, PAGES - at)) > 0)
        ;
    say("then %zd %s, at %ld", n, n < 0 ? err_name(errno) : "", (long)at);
    close(direct), fclose(whole);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void direct_b(void) {
    int fd = conn();
    R(get(fd, buf, 3));
    say("%llu", (unsigned long long)drain(fd, 1));
    close(fd);
}

const struct test tests[] = {{"low_water", low_water_a, low_water_b, 0},
                             {"ended_full", full_a, full_b, 0},
                             {"ended_shut", shut_a, shut_b, 0},
                             {"ended_dead", dead_a, dead_b, 0},
                             {"direct", direct_a, direct_b, 0},
                             {0}};
