/* Owns: calls on a connection that the kernel refuses, or that have nothing to do with its bytes: wrong arguments of every
 * call that the library looks at first, calls meant for files and terminals. They say what they say natively, and the
 * connection is where it was. */
#include "case.h"
#include <linux/close_range.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

static char buf[64 * KIB];

/* The other end: what is sent to it comes back, and it is warmed up again. */
static void echo_and_warm_b(void) {
    int fd = conn();
    meet();
    warm(fd);
    echo_until_end(fd);
}
static void still_there(int fd) {
    meet();
    warm(fd);
    echo(fd, "afterwards", 1);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void *nowhere(void) { return mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

/* ---- as if it were a file, or a terminal ---- */

static void files_a(void) {
    int fd = conn(), other = MUST(open("/", O_RDONLY));
    struct stat st;
    struct statx sx;
    struct statfs sf;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[64], name[64];
    R(fchmod(fd, 0600));
    R(fstat(fd, &st));
    say("mode %o, size %ld", st.st_mode, (long)st.st_size);
    R(fchown(fd, -1, -1));
    R(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &sx));
    say("mode %o", sx.stx_mode);
    R(fstatfs(fd, &sf));
    say("type %lx", (long)sf.f_type);
    R(flock(fd, LOCK_EX | LOCK_NB));
    R(flock(fd, LOCK_UN));
    R(fcntl(fd, F_SETLK, &lock));
    R(lockf(fd, F_TEST, 0));
    R(fsync(fd));
    R(fdatasync(fd));
    R(syncfs(fd));
    R(ftruncate(fd, 10));
    R(lseek(fd, 0, SEEK_END));
    say("posix_fadvise %d", posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED));
    say("posix_fallocate %d", posix_fallocate(fd, 0, 10));
    R(readahead(fd, 0, 10));
    R(sync_file_range(fd, 0, 10, 0));
    R(fchdir(fd));
    R(syscall(SYS_getdents64, fd, buf, 1000L));
    R(fgetxattr(fd, "user.none", buf, 10));
    R(futimens(fd, NULL));
    R(isatty(fd));
    R(ttyname(fd) ? 0 : -1);
    R(ioctl(fd, TIOCGWINSZ, buf));
    R(tcgetpgrp(fd));
    sprintf(path, "/proc/self/fd/%d", fd);
    R(open(path, O_RDWR));
    R(open(path, O_RDONLY | O_NONBLOCK));
    R(access(path, R_OK));
    R(readlink(path, name, sizeof name) > 8);
    int by_path = open(path, O_PATH | O_CLOEXEC);
    say("by path %d", by_path >= 0);
    if (by_path >= 0) {
        R(read(by_path, buf, 1));
        R(write(by_path, buf, 1));
        R(recv(by_path, buf, 1, MSG_DONTWAIT));
        R(dup2(by_path, 90) == 90);
        R(send(90, buf, 1, 0));
        close(90);
        close(by_path);
    }
    R(linkat(fd, "", other, "no-such-place/x", AT_EMPTY_PATH));
    R(copy_file_range(fd, NULL, other, NULL, 1, 0));
    R(fcntl(fd, F_GETPIPE_SZ));
    R(fcntl(fd, F_GETLEASE));
    R(fcntl(fd, F_GET_SEALS));
    R(fcntl(fd, 9999));
    R(fcntl(fd, 1027 /* F_DUPFD_QUERY */, fd));
    R(fcntl(fd, 1027, 0));
    R(ioctl(fd, 0x1234, 0));
    still_there(fd);
}

/* ---- descriptors ---- */

static void numbers_a(void) {
    int fd = conn(), high = MUST(dup2(fd, 100)), other = MUST(open("/dev/null", O_RDWR));
    R(close_range(fd, fd, 8));
    R(close_range(fd, fd, -1));
    R(close_range(100, 99, 0));
    echo(fd, "close_range", 2);
    R(dup3(other, fd, 0x1234));
    R(dup3(other, high, O_NONBLOCK));
    R(dup3(fd, fd, O_CLOEXEC));
    R(dup2(999, fd));
    R(dup3(999, fd, O_CLOEXEC));
    R(dup2(-1, fd));
    echo(fd, "dup", 3);
    struct rlimit was, low = {64, 0};
    MUST(getrlimit(RLIMIT_NOFILE, &was));
    low.rlim_max = was.rlim_max;
    MUST(setrlimit(RLIMIT_NOFILE, &low));
    R(dup2(other, high));
    R(dup3(other, high, 0));
    R(fcntl(fd, F_DUPFD, 64));
    R(fcntl(fd, F_DUPFD, -1));
    MUST(setrlimit(RLIMIT_NOFILE, &was));
    echo(high, "above the limit", 4);
    R(close_range(other, other, CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC));
    R(fcntl(other, F_GETFD));
    R(close_range(other, other, CLOSE_RANGE_UNSHARE));
    R(fcntl(other, F_GETFD));
    R(fcntl(fd, F_DUPFD_CLOEXEC, 1 << 30));
    R(close(-1));
    R(close(high));
    R(close(high));
    still_there(fd);
}
static void numbers_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        static char b[20000];
        put(fd, b, get(fd, b, sizeof b));
    }
    meet();
    warm(fd);
    echo_until_end(fd);
}

/* ---- arguments that the library looks at before the kernel ---- */

static void arguments_a(void) {
    int fd = conn(), one = 1, set = MUST(epoll_create1(0));
    void *hole = nowhere();
    socklen_t l;
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    R(epoll_wait(set, &e, 1, 0));
    meet();
    meet_settled(); /* twenty bytes */
    R(ioctl(fd, FIONREAD, (void *)100));
    R(ioctl(fd, FIONREAD, (void *)-1));
    R(ioctl(fd, FIONREAD, hole));
    R(ioctl(fd, SIOCOUTQ, hole));
    R(ioctl(fd, SIOCATMARK, hole));
    R(ioctl(fd, FIONBIO, hole));
    static const int levels[][2] = {{IPPROTO_TCP, TCP_NODELAY}, {IPPROTO_TCP, TCP_CORK}, {SOL_SOCKET, SO_RCVLOWAT},
                                    {SOL_SOCKET, SO_ERROR},     {SOL_SOCKET, SO_RCVBUF}, {IPPROTO_TCP, TCP_INFO}};
    for (int i = 0; i < 6; i++) {
        int v = 0x77777777;
        say("option %d", levels[i][1]);
        l = -1;
        R(getsockopt(fd, levels[i][0], levels[i][1], &v, &l));
        for (l = 0; l < 4; l++) {
            socklen_t n = l;
            v = 0x77777777;
            R(getsockopt(fd, levels[i][0], levels[i][1], &v, &n));
            say("%x, length %d", i == 4 || i == 5 ? 0 : v, (int)n);
        }
        l = 4;
        R(getsockopt(fd, levels[i][0], levels[i][1], hole, &l));
        R(getsockopt(fd, levels[i][0], levels[i][1], &v, hole));
        R(getsockopt(fd, levels[i][0], levels[i][1], &v, NULL));
        if (i < 3) {
            R(setsockopt(fd, levels[i][0], levels[i][1], &one, -1));
            R(setsockopt(fd, levels[i][0], levels[i][1], &one, 3));
            R(setsockopt(fd, levels[i][0], levels[i][1], hole, 4));
        }
    }
    R(epoll_wait(set, (void *)-16, 1, 0));
    R(epoll_wait(set, &e, INT_MAX, 0));
    R(epoll_pwait(set, &e, INT_MAX / 12 + 1, 0, NULL));
    R(epoll_pwait2(set, &e, INT_MIN, NULL, NULL));
    R(shutdown(fd, 7));
    R(shutdown(fd, -1));
    R(listen(fd, 5));
    R(accept4(fd, NULL, NULL, 0x1234));
    R(recv(fd, buf, (size_t)-1, MSG_PEEK));
    R(recv(fd, buf, INT_MAX, MSG_PEEK | MSG_DONTWAIT));
    struct iovec v[3] = {{NULL, 0}, {buf, 4}, {NULL, 0}}, wide[3] = {{buf, 2}, {buf, INT_MAX}, {buf, INT_MAX}};
    R(readv(fd, v, 3));
    R(readv(fd, wide, 3));
    R(now_in(fd));
    still_there(fd);
}
static void arguments_b(void) {
    int fd = conn();
    meet();
    put(fd, "01234567890123456789", 20);
    meet_settled();
    meet();
    warm(fd);
    echo_until_end(fd);
}

/* ---- waits for more than there may be ---- */

static void waits_a(void) {
    int fd = conn();
    struct rlimit was, low = {200, 0};
    static struct pollfd many[300];
    MUST(getrlimit(RLIMIT_NOFILE, &was));
    low.rlim_max = was.rlim_max;
    for (int i = 0; i < 300; i++)
        many[i] = (struct pollfd){i ? -1 : fd, POLLOUT, 0};
    R(poll(many, 300, 1000));
    MUST(setrlimit(RLIMIT_NOFILE, &low));
    R(poll(many, 200, 1000));
    R(poll(many, 201, 1000));
    R(ppoll(many, 300, NULL, NULL));
    MUST(setrlimit(RLIMIT_NOFILE, &was));
    /* As many as getdtablesize says, with a set that has room for 1024 alone: nothing lies behind it. */
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(mprotect(pages + 4096, 4096, PROT_NONE));
    fd_set *last = (void *)(pages + 4096 - sizeof(fd_set));
    static const int ns[] = {1024, 1025, 5000, 100000, INT_MAX};
    for (int i = 0; i < 5; i++) {
        FD_ZERO(last);
        FD_SET(fd, last);
        R(select(ns[i], NULL, last, NULL, NULL));
        say("it is %d", FD_ISSET(fd, last) != 0);
        R(pselect(ns[i], last, NULL, NULL, &(struct timespec){0, 10000000}, NULL));
    }
    meet();
    FD_SET(fd, last);
    R(select(fd + 1, last, NULL, NULL, &(struct timeval){1L << 55, 0})); /* longer than any clock has gone */
    R(recv(fd, buf, 10, 0));
    still_there(fd);
}
static void waits_b(void) {
    int fd = conn();
    meet();
    settle();
    settle();
    put(fd, "at last", 7);
    meet();
    warm(fd);
    echo_until_end(fd);
}

/* Numbers above 1023, in sets that have room for them. */
static void high_a(void) {
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max > 8192 ? 8192 : limit.rlim_max;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    int fd = conn(), high = MUST(dup2(fd, 3000)), p[2];
    MUST(pipe(p));
    enum { WORDS = 8192 / 64 };
    uint64_t r[WORDS] = {0}, w[WORDS] = {0};
    for (int i = 0; i < 3; i++) {
        r[3000 / 64] = w[3000 / 64] = 1ULL << 3000 % 64;
        r[p[0] / 64] = 1ULL << p[0] % 64;
        R(select(i == 2 ? 8192 : 3001, (void *)r, i ? (void *)w : NULL, NULL, &(struct timeval){0, 20000}));
        say("readable %d, writable %d", r[3000 / 64] != 0, w[3000 / 64] != 0);
    }
    memset(r, 0, sizeof r);
    r[3000 / 64] = 1ULL << 3000 % 64;
    meet();
    R(pselect(3001, (void *)r, NULL, NULL, NULL, NULL));
    say("readable %d", r[3000 / 64] != 0);
    R(recv(high, buf, 10, 0));
    r[3001 / 64] = 1ULL << 3001 % 64; /* none */
    R(select(3002, (void *)r, NULL, NULL, NULL));
    still_there(high);
}
static void high_b(void) {
    int fd = conn();
    meet();
    settle();
    put(fd, "high", 4);
    meet();
    warm(fd);
    echo_until_end(fd);
}

const struct test tests[] = {{"files", files_a, echo_and_warm_b, 0},
                             {"numbers", numbers_a, numbers_b, 0},
                             {"arguments", arguments_a, arguments_b, 0},
                             {"waits", waits_a, waits_b, 0},
                             {"high_sets", high_a, high_b, 0},
                             {0}};
