/* Owns: the less usual entries of calls that move bytes or wait: those of fortified programs, the numbers of syscall(2), the
 * flags of preadv2 and pwritev2, fork and clone by number, and the second names of libc. */
#include "case.h"
#include <sys/resource.h>

static char buf[64 * KIB];

static void echo_b(void) {
    echo_until_end(conn());
    meet();
}
static void over(int fd) {
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
    meet();
}
/* Until the other end has answered that much. */
static void await(int fd, int n) {
    for (int i = 0; i < 100 && now_in(fd) < n; i++)
        settle();
}

/* ---- entries of fortified programs ---- */

ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);
int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
int __dprintf_chk(int, int, const char *, ...);
int __vdprintf_chk(int, int, const char *, va_list);

static int told(int fd, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int n = __vdprintf_chk(fd, 1, format, ap);
    va_end(ap);
    return n;
}
/* A child that would write past the end of its buffer is stopped. */
static void overflows(int fd, int which) {
    pid_t child = MUST(fork());
    if (child == 0) {
        struct pollfd p = {fd, POLLIN, 0};
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        close(2);
        if (which == 0)
            __read_chk(fd, buf, 65, 64);
        else if (which == 1)
            __recv_chk(fd, buf, 65, 64, MSG_DONTWAIT);
        else if (which == 2)
            __recvfrom_chk(fd, buf, 65, 64, MSG_DONTWAIT, NULL, NULL);
        else if (which == 3)
            __poll_chk(&p, 2, 0, sizeof p);
        else
            __ppoll_chk(&p, 2, &(struct timespec){0, 0}, NULL, sizeof p);
        _exit(0);
    }
    wait_for(child);
}
static void fortified_a(void) {
    int fd = conn();
    struct pollfd p = {fd, POLLIN, 0};
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    R(__poll_chk(&p, 1, 20, sizeof p));
    R(__ppoll_chk(&p, 1, &(struct timespec){0, 20000000}, NULL, sizeof p));
    R(__recv_chk(fd, buf, 5, 64, MSG_DONTWAIT));
    put(fd, "0123456789abcdef", 16);
    R(__poll_chk(&p, 1, 5000, sizeof p));
    R(__ppoll_chk(&p, 1, NULL, NULL, sizeof p));
    await(fd, 16);
    R(__recv_chk(fd, buf, 4, 4, MSG_PEEK));
    R(__read_chk(fd, buf, 4, 64));
    R(__recv_chk(fd, buf + 4, 4, 4, 0));
    R(__recvfrom_chk(fd, buf + 8, 4, 64, 0, (void *)&from, &len));
    R(__recvfrom_chk(fd, buf + 12, 4, 64, MSG_WAITALL, NULL, NULL));
    say("'%.16s', address length %d", buf, (int)len);
    warm_end(fd, 1);
    for (int i = 0; i < 5; i++)
        overflows(fd, i);
    R(__dprintf_chk(fd, 1, "%s %d %g\n", "chk", 7, 2.5));
    R(told(fd, "%s %d %g\n", "chk", 8, 3.5));
    say("%zu '%.20s'", get(fd, buf, 20), buf);
    over(fd);
}
static void fortified_b(void) {
    int fd = conn();
    put(fd, buf, get(fd, buf, 16));
    warm_end(fd, 0);
    echo_until_end(fd);
    meet();
}

/* ---- flags of preadv2 and pwritev2 ---- */

static void flags_a(void) {
    int fd = conn();
    char out[8] = "flagged";
    struct iovec v = {out, 7}, w = {buf, 7};
    for (unsigned flag = 1; flag <= 0x800; flag <<= 1)
        for (int by_number = 0; by_number < 2; by_number++) {
            errno = 0;
            long n = by_number ? syscall(SYS_pwritev2, fd, &v, 1, -1L, -1L, flag) : pwritev2(fd, &v, 1, -1, flag);
            say("write %#x: %ld %s", flag, n, n < 0 ? err_name(errno) : "");
            if (n < 0)
                put(fd, out, 7);
            await(fd, 7);
            memset(buf, 0, 8);
            errno = 0;
            n = by_number ? syscall(SYS_preadv2, fd, &w, 1, -1L, -1L, flag) : preadv2(fd, &w, 1, -1, flag);
            say("read %#x: %ld %s", flag, n, n < 0 ? err_name(errno) : "");
            if (n < 0)
                get(fd, buf, 7);
            say("%s, left %d", buf, now_in(fd));
        }
    R(preadv2(fd, &w, 1, -1, RWF_NOWAIT));
    R(preadv2(fd, &w, 1, -1, RWF_NOWAIT | RWF_HIPRI));
    R(pwritev2(fd, &v, 1, -1, RWF_NOWAIT | RWF_DSYNC | RWF_SYNC));
    await(fd, 7);
    R(preadv2(fd, &w, 1, -1, RWF_HIPRI));
    R(preadv2(fd, &w, 1, 3, RWF_HIPRI));
    R(pwritev2(fd, &v, 1, 3, RWF_NOWAIT));
    over(fd);
}
/* What cannot be written now is not waited for. */
static void nowait_a(void) {
    int fd = conn();
    struct iovec v = {buf, 10000};
    long all = glut(fd);
    for (int i = 0; i < 3; i++) {
        R(pwritev2(fd, &v, 1, -1, RWF_NOWAIT));
        R(syscall(SYS_pwritev2, fd, &v, 1, -1L, -1L, RWF_NOWAIT));
    }
    tell_pid((pid_t)all);
    over(fd);
}
static void nowait_b(void) {
    int fd = conn();
    long all = hear_pid(), have = 0;
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0; have += n) {
    }
    say("all %d", have == all);
    close(fd);
    meet();
}

/* ---- syscall(2) ---- */

static long mask_argument[2]; /* of pselect6: where the mask is, and its size */
static void waits_a(void) {
    int fd = conn();
    struct pollfd p = {fd, POLLIN, 0};
    struct timespec t;
    struct timeval tv;
    fd_set r;
    for (int i = 0; i < 6; i++) {
        t = (struct timespec){0, 30000000};
        tv = (struct timeval){0, 30000};
        FD_ZERO(&r);
        FD_SET(fd, &r);
        if (i == 3)
            put(fd, "abc", 3);
        if (i >= 3)
            t.tv_sec = tv.tv_sec = 20;
        if (i % 3 == 0)
            R(syscall(SYS_ppoll, &p, 1, &t, NULL, 8L));
        else if (i % 3 == 1)
            R(syscall(SYS_pselect6, fd + 1, &r, NULL, NULL, &t, mask_argument));
        else
            R(syscall(SYS_select, fd + 1, &r, NULL, NULL, &tv));
        say("left: some %d, less %d", t.tv_sec + t.tv_nsec > 0, i % 3 == 2 ? tv.tv_usec != 30000 || tv.tv_sec == 19 : t.tv_nsec != 30000000);
    }
    R(recv(fd, buf, 10, 0));
    t = (struct timespec){0, -1};
    R(syscall(SYS_ppoll, &p, 1, &t, NULL, 8L));
    R(syscall(SYS_ppoll, &p, 1, NULL, &r, 3L));
    R(syscall(SYS_pselect6, fd + 1, &r, NULL, NULL, &t, NULL));
    /* A timeout that is nowhere: libc's select would read it, the kernel says EFAULT. */
    char *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    R(syscall(SYS_select, fd + 1, &r, NULL, NULL, hole));
    R(syscall(SYS_select, 0, NULL, NULL, NULL, hole));
    mask_argument[0] = (long)&r;
    mask_argument[1] = 3;
    R(syscall(SYS_pselect6, fd + 1, &r, NULL, NULL, NULL, mask_argument));
    over(fd);
}
/* Bytes by number, with every number that moves them. */
static void bytes_a(void) {
    int fd = conn(), file = MUST(memfd_create("f", 0)), p[2];
    char out[] = "by number";
    struct iovec v = {out, 9}, w = {buf, 9};
    struct msghdr sm = {.msg_iov = &v, .msg_iovlen = 1}, rm = {.msg_iov = &w, .msg_iovlen = 1};
    struct mmsghdr smm = {.msg_hdr = sm}, rmm = {.msg_hdr = rm};
    off_t off = 0;
    MUST(pipe(p));
    MUST(write(file, out, 9));
    for (int i = 0; i < 8; i++) {
        long n = i == 0   ? syscall(SYS_write, fd, out, 9L)
                 : i == 1 ? syscall(SYS_writev, fd, &v, 1L)
                 : i == 2 ? syscall(SYS_sendto, fd, out, 9L, 0L, NULL, 0L)
                 : i == 3 ? syscall(SYS_sendmsg, fd, &sm, 0L)
                 : i == 4 ? syscall(SYS_sendmmsg, fd, &smm, 1L, 0L)
                 : i == 5 ? syscall(SYS_sendfile, fd, file, &off, 9L)
                 : i == 6 ? (MUST(write(p[1], out, 9)), syscall(SYS_splice, p[0], NULL, fd, NULL, 9L, 0L))
                          : syscall(SYS_pwritev2, fd, &v, 1L, -1L, -1L, 0L);
        await(fd, 9);
        memset(buf, 0, 10);
        long m = i == 0   ? syscall(SYS_read, fd, buf, 9L)
                 : i == 1 ? syscall(SYS_readv, fd, &w, 1L)
                 : i == 2 ? syscall(SYS_recvfrom, fd, buf, 9L, 0L, NULL, NULL)
                 : i == 3 ? syscall(SYS_recvmsg, fd, &rm, 0L)
                 : i == 4 ? syscall(SYS_recvmmsg, fd, &rmm, 1L, 0L, NULL)
                 : i == 5 ? syscall(SYS_preadv2, fd, &w, 1L, -1L, -1L, 0L)
                 : i == 6 ? syscall(SYS_splice, fd, NULL, p[1], NULL, 9L, 0L)
                          : syscall(SYS_read, fd, buf, 9L);
        if (i == 6)
            MUST(read(p[0], buf, 9));
        say("%d: %ld there, %ld back, '%s'", i, n, m, buf);
    }
    warm_end(fd, 1);
    over(fd);
}
static void bytes_b(void) {
    int fd = conn();
    for (int i = 0; i < 8; i++)
        put(fd, buf, get(fd, buf, 9));
    warm_end(fd, 0);
    echo_until_end(fd);
    meet();
}

/* ---- processes made by number ---- */

static void forks_a(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        pid_t child = i == 0   ? (pid_t)syscall(SYS_fork)
                      : i == 1 ? (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L)
                               : (pid_t)raw(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
        if (MUST(child) == 0) {
            echo(fd, "child", i);
            _exit(i);
        }
        wait_for(child);
        echo(fd, "parent", i);
    }
    over(fd);
}

/* ---- the other names that glibc gives to some calls ---- */

ssize_t __read(int, void *, size_t), __write(int, const void *, size_t), __send(int, const void *, size_t, int);
int __close(int), __dup2(int, int), __fcntl(int, int, ...), __poll(struct pollfd *, nfds_t, int);
int __select(int, fd_set *, fd_set *, fd_set *, struct timeval *), __sigaction(int, const struct sigaction *, struct sigaction *);
int __clone(int (*)(void *), void *, int, void *, ...);
pid_t __fork(void), __vfork(void);
FILE *_IO_fdopen(int, const char *);
int _IO_fclose(FILE *);

static volatile int signals;
static void counted(int sig) {
    signals += sig == SIGUSR1;
}
static int cloned(void *fd) {
    echo(*(int *)fd, "clone", 2);
    _exit(2);
}
static void names_a(void) {
    static char stack[64 * KIB];
    int fd = conn();
    struct pollfd p = {fd, POLLIN, 0};
    struct sigaction act = {.sa_handler = counted};
    fd_set r;
    R(__write(fd, "0123", 4));
    R(__poll(&p, 1, 5000));
    await(fd, 4);
    R(__read(fd, buf, 64));
    R(__send(fd, "456789", 6, MSG_NOSIGNAL));
    FD_ZERO(&r);
    FD_SET(fd, &r);
    R(__select(fd + 1, &r, NULL, NULL, &(struct timeval){5, 0}));
    await(fd, 6);
    R(__read(fd, buf + 4, 60));
    say("'%.10s'", buf);
    R(__fcntl(fd, F_SETFL, __fcntl(fd, F_GETFL) | O_NONBLOCK));
    R(__read(fd, buf, 64));
    R(__fcntl(fd, F_SETFL, 0));
    R(__dup2(fd, 77));
    R(__close(fd));
    R(__read(fd, buf, 1));
    fd = 77;
    pid_t child = MUST(__fork());
    if (child == 0) {
        echo(fd, "fork", 1);
        _exit(1);
    }
    wait_for(child);
    wait_for(MUST(__clone(cloned, stack + sizeof stack - 16, SIGCHLD, &fd)));
    child = __vfork();
    if (child == 0)
        _exit(3);
    wait_for(child);
    echo(fd, "parent", 0);
    R(__sigaction(SIGUSR1, &act, NULL));
    raise(SIGUSR1);
    say("signals %d", signals);
    FILE *f = _IO_fdopen(fd, "r+");
    R(fprintf(f, "%s %d", "stdio", 1) + fflush(f));
    say("%zu '%.7s'", fread(buf, 1, 7, f), buf);
    shutdown(fd, SHUT_WR);
    say("%zu %d", fread(buf, 1, 7, f), feof(f));
    R(_IO_fclose(f));
    meet();
}

const struct test tests[] = {{"fortified", fortified_a, fortified_b, 0},
                             {"flags", flags_a, echo_b, 0},
                             {"nowait", nowait_a, nowait_b, 0},
                             {"waits_by_number", waits_a, echo_b, 0},
                             {"bytes_by_number", bytes_a, bytes_b, 0},
                             {"forks_by_number", forks_a, echo_b, 0},
                             {"second_names", names_a, echo_b, 0},
                             {0}};
