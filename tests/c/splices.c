/* Owns: splice, sendfile and their like between a connection and every other kind of descriptor: what the kernel refuses,
 * what a full or closed pipe does, and that nothing is lost by it. */
#include "case.h"

static char buf[256 * KIB];
static volatile sig_atomic_t pipe_signals;
static void on_pipe(int s) { pipe_signals++; }

static int file_of(const char *s) {
    int file = MUST(memfd_create("f", MFD_CLOEXEC));
    MUST(write(file, s, strlen(s)));
    MUST(lseek(file, 0, SEEK_SET));
    return file;
}

static void refused_a(void) {
    int fd = conn(), p[2], file = file_of("0123456789"), dir = MUST(open("/", O_RDONLY)), null = MUST(open("/dev/null", O_WRONLY));
    off_t off = 0;
    struct iovec v = {buf, 5};
    MUST(pipe(p));
    meet_settled(); /* ten bytes are there */
    R(splice(file, NULL, fd, NULL, 5, 0)); /* none of them a pipe */
    R(splice(file, &off, fd, NULL, 5, 0));
    R(splice(fd, NULL, file, NULL, 5, 0));
    R(splice(fd, NULL, fd, NULL, 5, 0));
    R(splice(fd, NULL, null, NULL, 5, 0));
    R(splice(fd, NULL, 999, NULL, 5, 0));
    R(splice(999, NULL, fd, NULL, 5, 0));
    R(splice(fd, &off, p[1], NULL, 5, 0)); /* offsets of what has none */
    R(splice(fd, NULL, p[1], &off, 5, 0));
    R(splice(p[0], &off, fd, NULL, 5, 0));
    R(splice(p[0], NULL, fd, &off, 5, 0));
    R(splice(fd, NULL, p[0], NULL, 5, 0)); /* the wrong end of it */
    R(splice(p[1], NULL, fd, NULL, 5, 0));
    R(splice(fd, NULL, p[1], NULL, 0, 0));
    R(splice(p[0], NULL, fd, NULL, 0, 0));
    R(splice(fd, NULL, p[1], NULL, 5, 0x100));
    R(splice(p[0], NULL, fd, NULL, 5, 0x100));
    R(splice(p[0], NULL, fd, NULL, 5, SPLICE_F_NONBLOCK));
    R(sendfile(fd, p[0], NULL, 5));
    R(sendfile(fd, fd, NULL, 5));
    R(sendfile(fd, dir, NULL, 5));
    R(sendfile(fd, null, NULL, 5));
    R(sendfile(fd, 999, NULL, 5));
    R(sendfile(file, fd, NULL, 5));
    R(sendfile(fd, file, NULL, 0));
    R(sendfile(fd, file, NULL, -1));
    R(sendfile(fd, p[0], &off, 5));
    off = -1;
    R(sendfile(fd, file, &off, 5));
    off = 10;
    R(sendfile(fd, file, &off, 5));
    R(sendfile(fd, file, (off_t *)100, 5));
    R(copy_file_range(file, NULL, fd, NULL, 5, 0));
    R(copy_file_range(fd, NULL, file, NULL, 5, 0));
    R(tee(fd, p[1], 5, 0));
    R(tee(p[0], fd, 5, 0));
    R(vmsplice(fd, &v, 1, 0));
    R(lseek(file, 0, SEEK_CUR));
    close(p[1]);
    R(splice(p[0], NULL, fd, NULL, 5, 0)); /* a pipe that has ended */
    R(now_in(fd));
    say("%zu '%.10s'", get(fd, buf, 10), buf);
    meet();
    warm(fd); /* where it was */
}
static void refused_b(void) {
    int fd = conn();
    put(fd, "0123456789", 10);
    meet_settled();
    meet();
    R(now_in(fd));
    warm(fd);
}

/* A pipe without room, and one without a reader: what is in the connection stays there. */
static void no_room_a(void) {
    int fd = conn(), p[2];
    on_signal(SIGPIPE, on_pipe, 0);
    MUST(pipe2(p, O_NONBLOCK));
    long full = 0;
    for (ssize_t n; (n = write(p[1], buf, 4096)) > 0;)
        full += n;
    meet_settled();
    R(splice(fd, NULL, p[1], NULL, 10, 0));
    R(splice(fd, NULL, p[1], NULL, 10, SPLICE_F_NONBLOCK));
    nonblocking(p[1], 0);
    R(splice(fd, NULL, p[1], NULL, 10, SPLICE_F_NONBLOCK));
    R(now_in(fd));
    for (ssize_t n; full > 0 && (n = read(p[0], buf, sizeof buf)) > 0;)
        full -= n;
    R(splice(fd, NULL, p[1], NULL, 4, 0));
    R(read(p[0], buf, 100));
    say("'%.4s'", buf);
    close(p[0]);
    R(splice(fd, NULL, p[1], NULL, 10, 0));
    say("signals %d, there %d", (int)pipe_signals, now_in(fd));
    say("%zu '%.6s'", get(fd, buf, 6), buf);
    MUST(pipe(p));
    nonblocking(fd, 1);
    R(splice(fd, NULL, p[1], NULL, 10, 0)); /* nothing there */
    meet();
    meet_settled();
    R(splice(fd, NULL, p[1], NULL, 10, 0)); /* the end */
}
static void no_room_b(void) {
    int fd = conn();
    put(fd, "0123456789", 10);
    meet_settled();
    meet();
    R(shutdown(fd, SHUT_WR));
    meet_settled();
    R(recv(fd, buf, 1, 0));
}

/* SPLICE_F_NONBLOCK is meant for the pipe: a socket that blocks is waited for. */
static void nonblock_a(void) {
    int fd = conn(), p[2];
    MUST(pipe(p));
    meet();
    R(splice(fd, NULL, p[1], NULL, 10, SPLICE_F_NONBLOCK)); /* it comes after a while */
    MUST(write(p[1], buf, 10));
    long all = glut(fd);
    tell_pid((pid_t)all);
    R(splice(p[0], NULL, fd, NULL, 4, SPLICE_F_NONBLOCK)); /* until the other end reads */
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void nonblock_b(void) {
    int fd = conn();
    meet();
    settle();
    settle();
    put(fd, "late", 4);
    long all = hear_pid(), have = 0;
    settle();
    settle();
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0; have += n) {
    }
    say("all %d", have >= all + 4);
    close(fd);
}

/* sendfile from a connection into a pipe, as splice. */
static void into_pipe_a(void) {
    int fd = conn(), p[2];
    MUST(pipe(p));
    meet_settled();
    R(sendfile(p[1], fd, NULL, 4));
    nonblocking(p[0], 1);
    R(read(p[0], buf, 100));
    say("there %d", now_in(fd));
    off_t off = 0;
    R(sendfile(p[1], fd, &off, 4));
    say("there %d", now_in(fd));
    nonblocking(fd, 1);
    meet();
}
static void into_pipe_b(void) {
    int fd = conn();
    put(fd, "0123456789", 10);
    meet_settled();
    meet();
    recv(fd, buf, 1, 0);
}

/* A relay that never looks at what it passes on: socket to pipe to socket, as HAProxy does. */
enum { ALL = 8 * MIB };
static void relay_a(void) {
    int fd = conn(), p[2];
    MUST(pipe(p));
    long all = 0;
    for (ssize_t n; (n = splice(fd, NULL, p[1], NULL, 64 * KIB, SPLICE_F_MOVE | SPLICE_F_MORE)) > 0; all += n)
        for (ssize_t left = n, m; left > 0; left -= m)
            if ((m = splice(p[0], NULL, fd, NULL, left, SPLICE_F_MOVE)) <= 0)
                die("splice to the socket");
    say("passed on %ld", all);
    R(shutdown(fd, SHUT_WR));
    meet();
}
static void *relay_put(void *fd) {
    put_stream(*(int *)fd, ALL, 3);
    MUST(shutdown(*(int *)fd, SHUT_WR));
    return NULL;
}
static void relay_b(void) {
    int fd = conn();
    pthread_t t;
    pthread_create(&t, NULL, relay_put, &fd);
    get_stream(fd, ALL, 3);
    pthread_join(t, NULL);
    R(recv(fd, buf, 1, 0));
    meet();
}

/* What comes in small writes while it is taken: each piece may need a page of the pipe of its own, and who has put them in is the one
 * that takes them out. */
enum { PIECES = 20000 };
static void pieces_a(void) {
    int fd = conn(), p[2];
    MUST(pipe(p));
    long all = 0;
    for (ssize_t n; (n = splice(fd, NULL, p[1], NULL, MIB, 0)) > 0; all += n)
        for (ssize_t left = n, m; left > 0; left -= m)
            if ((m = read(p[0], buf, left)) <= 0)
                die("read");
    say("passed on %ld", all);
}
static void pieces_b(void) {
    int fd = conn();
    fill(buf, 777, 0, 3);
    for (int i = 0; i < PIECES; i++)
        put(fd, buf, 777);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}

/* Little by little through a pipe that is asked for more, past the end of each ring, exactly: what it has goes, and
 * nothing is waited for. */
enum { LITTLE = 64, SINGLE = 10000 };
static void singly_a(void) {
    int fd = conn(), p[2];
    MUST(pipe(p));
    long good = 0;
    for (long i = 0; i < SINGLE; i++) {
        fill(buf, LITTLE, i * LITTLE, 5);
        MUST(write(p[1], buf, LITTLE));
        good += splice(p[0], NULL, fd, NULL, 64 * KIB, SPLICE_F_MOVE) == LITTLE;
    }
    say("good %ld", good);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void singly_b(void) {
    int fd = conn();
    get_stream(fd, LITTLE * SINGLE, 5);
    R(recv(fd, buf, 1, 0));
}

/* What splice says has left the pipe, also when the other end reads nothing for long. */
enum { EACH = 10007, TIMES = 300 };
static void not_read_a(void) {
    int fd = conn(), p[2];
    MUST(pipe(p));
    meet();
    long all = 0;
    int good = 1;
    for (int i = 0; i < TIMES; i++) {
        fill(buf, EACH, all, 6);
        MUST(write(p[1], buf, EACH));
        for (long left = EACH, n; left > 0 && good; left -= n, all += n) {
            n = splice(p[0], NULL, fd, NULL, 16 * KIB, SPLICE_F_MOVE);
            good = n > 0 && now_in(p[0]) == left - n;
        }
    }
    say("good %d, %ld", good, all);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void not_read_b(void) {
    int fd = conn();
    meet();
    for (int i = 0; i < 8; i++)
        settle();
    get_stream(fd, (uint64_t)EACH * TIMES, 6);
    R(recv(fd, buf, 1, 0));
}

/* An empty pipe is waited for; others use the connection meanwhile. */
static void *waits(void *arg) {
    int *fds = arg;
    ssize_t n = splice(fds[0], NULL, fds[1], NULL, 100, SPLICE_F_MOVE);
    return (void *)n;
}
static void empty_a(void) {
    int fd = conn(), p[2];
    MUST(pipe(p));
    R(splice(p[0], NULL, fd, NULL, 10, SPLICE_F_NONBLOCK));
    nonblocking(p[0], 1);
    R(splice(p[0], NULL, fd, NULL, 10, 0));
    nonblocking(p[0], 0);
    R(splice(p[1], NULL, fd, NULL, 10, 0)); /* the wrong end */
    nonblocking(fd, 1); /* which is for the socket alone */
    int fds[2] = {p[0], fd};
    pthread_t t;
    pthread_create(&t, NULL, waits, fds);
    settle();
    put(fd, "01234", 5);
    while (now_in(fd) < 5)
        settle();
    got(fd, buf, 5, 0, 7);
    MUST(write(p[1], "56789", 5));
    void *n;
    pthread_join(t, &n);
    say("%ld", (long)n);
    nonblocking(fd, 0);
    got(fd, buf, 5, 5, 7);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void empty_b(void) {
    int fd = conn();
    for (int at = 0; at < 10; at += 5) {
        say("%zu '%.5s'", get(fd, buf, 5), buf);
        fill(buf, 5, at, 7);
        put(fd, buf, 5);
    }
    R(recv(fd, buf, 1, 0));
    close(fd);
}

/* Pages of the program given to a pipe, doubled by tee, and sent twice. */
static void pages_a(void) {
    int fd = conn(), p[2], q[2];
    MUST(pipe(p));
    MUST(pipe(q));
    int good = 1;
    for (int i = 0; i < 6; i++) {
        static char page[4096] __attribute__((aligned(4096)));
        fill(page, sizeof page, (uint64_t)i * sizeof page, 4);
        struct iovec v = {page, sizeof page};
        good = good && vmsplice(p[1], &v, 1, 0) == sizeof page && tee(p[0], q[1], sizeof page, 0) == sizeof page;
        good = good && splice(p[0], NULL, fd, NULL, sizeof page, 0) == sizeof page;
        good = good && get(fd, buf, sizeof page) == sizeof page && matches(buf, sizeof page, (uint64_t)i * sizeof page, 4);
        good = good && splice(q[0], NULL, fd, NULL, sizeof page, SPLICE_F_MORE) == sizeof page;
        good = good && get(fd, buf, sizeof page) == sizeof page && matches(buf, sizeof page, (uint64_t)i * sizeof page, 4);
    }
    say("good %d", good);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void echo_b(void) { echo_until_end(conn()); }

/* Another thread reads the pipe as well, and what splice has seen in it may be gone: it waits for more, and the connection
 * stays free for others. */
enum { BURSTS = 25000, BURST = 5 };
static void *splices(void *arg) {
    int *fds = arg;
    while (splice(fds[0], NULL, fds[1], NULL, 1, SPLICE_F_MOVE) > 0) {
    }
    return NULL;
}
static void *steals(void *pipe) {
    char c, path[40];
    sprintf(path, "/proc/self/fd/%d", *(int *)pipe);
    int own = MUST(open(path, O_RDONLY | O_NONBLOCK));
    for (ssize_t n; (n = read(own, &c, 1)) != 0;)
        if (n < 0)
            sched_yield();
    close(own);
    return NULL;
}
static void thief_a(void) {
    int fd = conn(), p[2];
    MUST(pipe(p));
    int fds[2] = {p[0], fd};
    pthread_t t[2];
    pthread_create(&t[0], NULL, splices, fds);
    pthread_create(&t[1], NULL, steals, fds);
    alarm(20);
    for (int i = 0; i < BURSTS; i++) {
        for (int k = 0; k < BURST; k++)
            MUST(write(p[1], "x", 1));
        while (now_in(p[0]) > 0)
            sched_yield();
        MUST(send(fd, "y", 1, 0));
    }
    alarm(0);
    close(p[1]);
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void thief_b(void) {
    int fd = conn(), sent = 0;
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;)
        for (ssize_t i = 0; i < n; i++)
            sent += buf[i] == 'y';
    R(sent);
    close(fd);
}

/* All that is there goes in one call, if the pipe has room for it. */
enum { WHOLE_PIECE = 30000 };
static ssize_t moved(int fd, int to, size_t n) {
    ssize_t all = splice(fd, NULL, to, NULL, n, SPLICE_F_MOVE);
    /* A change of medium ends a call early. */
    while (getenv("SMCR_FLIP") && all > 0 && (size_t)all < n && now_in(fd) > 0) {
        ssize_t more = splice(fd, NULL, to, NULL, n - all, SPLICE_F_MOVE);
        if (more <= 0)
            break;
        all += more;
    }
    return all;
}
static void whole_a(void) {
    int fd = conn(), p[2];
    MUST(pipe(p));
    static const size_t asked[] = {64 * KIB, WHOLE_PIECE, 20000, 20000};
    for (int i = 0; i < 4; i++) {
        if (i < 3)
            meet_settled();
        ssize_t n = moved(fd, p[1], asked[i]);
        say("%zu asked, %zd moved, %d left", asked[i], n, now_in(fd));
        R(read(p[0], buf, n));
        R(matches(buf, n, i < 3 ? 0 : 20000, 5));
        if (i != 2)
            meet();
    }
}
static void whole_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        fill(buf, WHOLE_PIECE, 0, 5);
        put(fd, buf, WHOLE_PIECE);
        meet_settled();
        meet();
    }
}

const struct test tests[] = {{"refused", refused_a, refused_b, 0},
                             {"no_room", no_room_a, no_room_b, 0},
                             {"nonblock", nonblock_a, nonblock_b, 0},
                             {"into_pipe", into_pipe_a, into_pipe_b, 0},
                             {"relay", relay_a, relay_b, 0},
                             {"pieces", pieces_a, pieces_b, 0},
                             {"whole", whole_a, whole_b, 0},
                             {"singly", singly_a, singly_b, 0},
                             {"not_read", not_read_a, not_read_b, 0},
                             {"empty", empty_a, empty_b, 0},
                             {"pages", pages_a, echo_b, 0},
                             {"thief", thief_a, thief_b, 0},
                             {0}};
