/* Owns: functions that the library has hooks for and hardly a program calls: the names with 64, all that gives a new number, the old names of signal, the
 * jumps, what starts a child or a program or ends one, what changes who a process is. */
#include "given.h"
#include <aio.h>
#include <dlfcn.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static char buf[64 * KIB];
enum { AT = 10 }; /* where the next program finds the connection */

static void over(int fd) {
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
    close(fd);
    meet();
}
static void echo_b(void) {
    echo_until_end(conn());
    meet();
}

/* ---- with 64 ---- */

static void wide_a(void) {
    int fd = conn(), file = MUST(memfd_create("f", MFD_CLOEXEC));
    char text[] = "sixty-four";
    struct iovec v[2] = {{text, 5}, {text + 5, 5}}, w = {buf, 10};
    off64_t off = 2;
    MUST(write(file, text, 10));
    R(fcntl64(fd, F_DUPFD, 70));
    echo(70, "F_DUPFD", 1);
    R(fcntl64(70, F_DUPFD_CLOEXEC, 80));
    R(fcntl64(80, F_GETFD));
    R(close(fd));
    echo(80, "F_DUPFD_CLOEXEC", 2);
    R(fcntl64(80, F_SETFL, O_NONBLOCK));
    R(fcntl(70, F_GETFL) & O_NONBLOCK);
    R(recv(70, buf, 1, 0));
    R(fcntl64(70, F_SETFL, 0));
    R(fcntl64(80, F_SETFD, 0));
    R(fcntl64(999, F_GETFL));
    R(sendfile64(70, file, &off, 8));
    say("at %ld, %zu '%.8s'", (long)off, get(80, buf, 8), buf);
    R(sendfile64(70, file, NULL, 10)); /* it is at its end */
    MUST(lseek64(file, 0, SEEK_SET));
    R(sendfile64(70, file, NULL, 3));
    R(sendfile64(70, file, NULL, 100));
    say("%zu '%.10s'", get(80, buf, 10), buf);
    R(sendfile64(70, 999, NULL, 3));
    R(pwritev64v2(70, v, 2, -1, 0));
    events(80, POLLIN, 5000);
    get(80, buf + 20, 9);
    R(preadv64v2(80, &w, 1, -1, 0));
    R(preadv64v2(80, &w, 1, -1, RWF_NOWAIT));
    R(preadv64v2(80, &w, 1, 5, 0));
    R(pwritev64v2(80, v, 2, 5, 0));
    R(close(80));
    over(70);
}
/* By threads of glibc's own. */
static long done(struct aiocb64 *one) {
    const struct aiocb64 *list[] = {one};
    while (aio_error64(one) == EINPROGRESS)
        aio_suspend64(list, 1, NULL);
    return aio_return64(one);
}
static void aio_a(void) {
    int fd = conn();
    struct aiocb64 in = {.aio_fildes = fd, .aio_buf = buf, .aio_nbytes = 6, .aio_sigevent.sigev_notify = SIGEV_NONE}, out = in, *both[] = {&out, &in};
    out.aio_buf = "answer";
    R(aio_write64(&out));
    R(done(&out));
    meet(); /* it has come back, and is read when it is there */
    R(aio_read64(&in));
    R(done(&in));
    say("'%.6s'", buf);
    out.aio_lio_opcode = LIO_WRITE;
    in.aio_lio_opcode = LIO_READ;
    R(lio_listio64(LIO_WAIT, both, 1, NULL));
    R(done(&out));
    meet();
    R(lio_listio64(LIO_WAIT, both + 1, 1, NULL));
    R(done(&in));
    say("'%.6s'", buf);
    over(fd);
}
static void aio_b(void) {
    int fd = conn();
    for (int i = 0; i < 2; i++) {
        put(fd, buf, get(fd, buf, 6));
        meet();
    }
    echo_until_end(fd);
    meet();
}

/* ---- numbers ---- */

enum { OPENERS = 14 };
static int opens(int which) {
    int pair[2];
    sigset_t usr;
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR2);
    switch (which) {
    case 0: return open("/dev/null", O_RDWR);
    case 1: return open64("/dev/null", O_RDWR);
    case 2: return openat(AT_FDCWD, "/dev/null", O_RDWR);
    case 3: return openat64(AT_FDCWD, "/dev/null", O_RDWR);
    case 4: return creat("/dev/null", 0600);
    case 5: return creat64("/dev/null", 0600);
    case 6: return pipe(pair) ? -1 : (close(pair[1]), pair[0]);
    case 7: return pipe2(pair, O_NONBLOCK) ? -1 : (close(pair[1]), pair[0]);
    case 8: return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) ? -1 : (close(pair[1]), pair[0]);
    case 9: return eventfd(5, EFD_NONBLOCK);
    case 10: return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    case 11: return signalfd(-1, &usr, SFD_NONBLOCK);
    case 12: return inotify_init1(IN_NONBLOCK);
    default: return memfd_create("f", 0);
    }
}
/* Duplicates whose close nobody saw; what has their number then is no connection, and the connection goes on. */
static void openers_a(void) {
    int fd = conn();
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < OPENERS; i++) {
        int twin = MUST(dup(fd));
        put(twin, "waits", 5);
        events(twin, POLLIN, 5000);
        MUST(raw(SYS_close, twin, 0, 0, 0, 0, 0));
        int it = MUST(opens(i));
        say("%d: the same number %d", i, it == twin);
        R(write(it, "12345678", 8));
        R(read(it, buf, 8));
        R(recv(it, buf, 1, MSG_DONTWAIT));
        R(fcntl(it, F_GETFL) & ~O_LARGEFILE);
        say("%s", poll_text(events(it, POLLIN | POLLOUT, 0)));
        R(get(fd, buf, 5));
        R(close(it));
        R(recv(it, buf, 1, 0));
        echo(fd, "then", i);
    }
    over(fd);
}

/* ---- handlers ---- */

static int the_fd, handled;
static void asks(int sig) {
    handled++;
    if (send(the_fd, "x", 1, MSG_NOSIGNAL) != 1)
        _exit(1);
}
typedef sighandler_t setter(int, sighandler_t);
setter __sysv_signal;
static sighandler_t sets(int which, sighandler_t handler) {
    static setter *bsd; /* which no header has any more */
    if (!bsd)
        bsd = (setter *)dlsym(RTLD_DEFAULT, "bsd_signal");
    switch (which) {
    case 0: return signal(SIGALRM, handler);
    case 1: return bsd ? bsd(SIGALRM, handler) : signal(SIGALRM, handler);
    case 2: return ssignal(SIGALRM, handler);
    case 3: return sysv_signal(SIGALRM, handler);
    case 4: return __sysv_signal(SIGALRM, handler);
    default: return sigset(SIGALRM, handler);
    }
}
/* The handler asks for the byte that the call waits for: it goes on, or has ended. */
static void handlers_a(void) {
    struct pollfd p = {the_fd = conn(), POLLIN, 0};
    struct sigaction now;
    for (int i = 0; i < 12; i++) {
        say("%d: %d", i, sets(i % 6, asks) == SIG_DFL);
        if (i > 5)
            R(siginterrupt(SIGALRM, i % 2));
        for (int wait = 0; wait < 2; wait++) {
            MUST(sigaction(SIGALRM, NULL, &now));
            say("restarts %d, once %d", !!(now.sa_flags & SA_RESTART), !!(now.sa_flags & (int)SA_RESETHAND));
            if (now.sa_handler == SIG_DFL)
                sets(i % 6, asks);
            handled = 0;
            tick(60, 0); /* it is in the call by then */
            if (wait)
                R(poll(&p, 1, 10000));
            long n = recv(the_fd, buf, 1, 0);
            say("%ld %s, handled %d", n, n < 0 ? err_name(errno) : "", handled);
            if (n < 0)
                R(recv(the_fd, buf, 1, 0));
        }
        R(sets(i % 6, SIG_DFL) != SIG_ERR);
    }
    echo(the_fd, "then", 1);
    over(the_fd);
}

static jmp_buf out;
static int way;
void __longjmp_chk(jmp_buf, int) __attribute__((noreturn));
static void jumps(int sig) {
    switch (way) {
    case 0: longjmp(out, 1);
    case 1: _longjmp(out, 2);
    case 2: siglongjmp(out, 3);
    default: __longjmp_chk(out, 4);
    }
}
static void jumps_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event e = {.events = EPOLLIN};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    on_signal(SIGALRM, jumps, SA_RESTART);
    for (volatile int i = 0; i < 24; i++) {
        way = i % 4;
        int came = sigsetjmp(out, way == 2);
        if (came == 0) {
            tick(3 + i, 0);
            if (i % 3 == 0)
                recv(fd, buf, 10, 0);
            else if (i % 3 == 1)
                poll(&(struct pollfd){fd, POLLIN, 0}, 1, -1);
            else
                epoll_wait(ep, &e, 1, -1);
            die("it came back");
        }
        say("%d: by %d", i, came);
        sigprocmask(SIG_UNBLOCK, &alarm, NULL);
        put(fd, "word", 4);
        R(epoll_wait(ep, &e, 1, 10000));
        R(get(fd, buf, 4));
    }
    echo(fd, "then", 1);
    over(fd);
}

/* ---- children and programs ---- */

static void executed(void) {
    if (!getenv("EXEC_ROLE"))
        return;
    echo(AT, "the program", 7);
    _Exit(4);
}
static void programs_a(void) {
    int fd = placed(conn(), AT);
    const struct again *a = again("echo", environ);
    R(fexecve(999, a->args, a->env));
    R(execveat(AT_FDCWD, "/nonexistent/program", a->args, a->env, 0));
    for (int i = 0; i < 6; i++) {
        a = again("echo", i < 4 ? environ : without());
        int self = MUST(open(a->self, O_RDONLY | O_CLOEXEC));
        pid_t child = MUST(i % 3 ? fork() : _Fork());
        if (child == 0) {
            if (i == 0)
                _Exit((echo(fd, "a child", 1), 3));
            else if (i % 2)
                fexecve(self, a->args, a->env);
            else
                execveat(i == 4 ? AT_FDCWD : self, i == 4 ? a->self : "", a->args, a->env, i == 4 ? 0 : AT_EMPTY_PATH);
            _exit(127);
        }
        wait_for(child);
        close(self);
        echo(fd, "this one", i);
    }
    over(fd);
}

/* A child does something else than its parent may, or tries to; then it speaks, and then its parent does. Whether it could is not said. */
int capset(cap_user_header_t, const cap_user_data_t);
static void changes(int which) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    enum { NOBODY = 65534 };
    switch (which) {
    case 0: (void)!seteuid(NOBODY); break;
    case 1: (void)!setegid(NOBODY); break;
    case 2: (void)!setreuid(NOBODY, NOBODY); break;
    case 3: (void)!setregid(NOBODY, NOBODY); break;
    case 4: (void)!setuid(NOBODY); break;
    case 5: (void)!setgid(NOBODY); break;
    case 6: (void)!initgroups("nobody", NOBODY); break;
    case 7: (void)!capset(&head, none); break;
    case 8: (void)!syscall(SYS_setuid, NOBODY); break;
    case 9: (void)!syscall(SYS_setreuid, NOBODY, NOBODY); break;
    case 10: (void)!syscall(SYS_setgroups, 0L, NULL); break;
    }
}
enum { CHANGES = 11 };
static void identities_a(void) {
    int fd = conn();
    for (int i = 0; i < CHANGES; i++) {
        pid_t child = MUST(fork());
        if (child == 0) {
            changes(i);
            echo(fd, "a child", i);
            _exit(0);
        }
        wait_for(child);
        echo(fd, "the parent", i);
    }
    over(fd);
}

/* ---- another name of connect ---- */

int __connect(int, const struct sockaddr *, socklen_t);
static void connects_a(void) {
    int l = listen_on(PORT);
    meet();
    int fd = accept_from(l);
    warm(fd);
    echo(fd, "accepted", 1);
    over(fd);
}
static void connects_b(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    R(__connect(fd, NULL, 16));
    meet();
    R(__connect(fd, (void *)&to, sizeof to));
    R(__connect(fd, (void *)&to, sizeof to));
    warm(fd);
    echo_until_end(fd);
    meet();
}

const struct test tests[] = {{"wide", wide_a, echo_b, 0},
                             {"aio", aio_a, aio_b, 0},
                             {"openers", openers_a, echo_b, 0},
                             {"handlers", handlers_a, echo_b, 0},
                             {"jumps", jumps_a, echo_b, 0},
                             {"programs", programs_a, echo_b, 0},
                             {"identities", identities_a, echo_b, 0},
                             {"connects", connects_a, connects_b, 0},
                             {"executed", executed, executed, ROLE},
                             {0}};
