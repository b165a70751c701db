/* Owns: children that are made otherwise than by fork(3), in places where other threads take and close connections, or in
 * another PID namespace: daemon, forkpty, clone with a stack, handlers of fork. */
#include "case.h"
#include <pty.h>
#include <sched.h>

enum { CONNECTIONS = 3, ROUNDS = 30, STACK = 256 * KIB };
static char buf[64 * KIB];

/* The other end: connections one after the other, all of them open to the end and used in turns. */
static void several_b(void) {
    int fd[CONNECTIONS];
    meet();
    for (int i = 0; i < CONNECTIONS; i++) {
        fd[i] = dial(PORT);
        warm(fd[i]);
        echo(fd[i], "begins", i);
    }
    for (int n = 0; n < ROUNDS; n++)
        for (int i = 0; i < CONNECTIONS; i++)
            for (int k = 0; k < 10; k++) {
                char c = (char)(n + 7 * i + k), d = 0;
                put(fd[i], &c, 1);
                if (get(fd[i], &d, 1) != 1 || d != c)
                    die("another connection's byte");
            }
    for (int i = 0; i < CONNECTIONS; i++) {
        echo(fd[i], "ends", i);
        R(shutdown(fd[i], SHUT_WR));
        R(recv(fd[i], buf, 1, 0));
        close(fd[i]);
    }
    meet();
}

/* Without a word: several processes do it at once. */
static void serve(int fd) {
    char own[4 * KIB];
    warm(fd);
    for (ssize_t n; (n = read(fd, own, sizeof own)) > 0;)
        put(fd, own, n);
    close(fd);
    _exit(7);
}

static void wait_for_all(const pid_t *child) {
    int status;
    for (int i = 0; i < CONNECTIONS; i++)
        if (waitpid(child[i], &status, 0) != child[i] || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
            die("child");
}

/* A process for each connection, whose parent closes it at once. */
static void serve_each(int l) {
    pid_t child[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = accept_from(l);
        child[i] = MUST(fork());
        if (child[i] == 0) {
            close(l);
            serve(fd);
        }
        close(fd);
    }
    wait_for_all(child);
}

/* A daemon that listens before it is one. */
static void daemon_forks_a(void) {
    int l = listen_on(PORT), over[2];
    MUST(pipe(over));
    pid_t child = MUST(fork()); /* the harness waits for this process */
    if (child == 0) {
        if (daemon(1, 1) < 0)
            die("daemon");
        meet();
        serve_each(l);
        meet();
        MUST(write(over[1], "x", 1));
        _exit(0);
    }
    close(l);
    close(over[1]);
    wait_for(child);
    R(read(over[0], buf, 1));
}

static void echo_b(void) {
    echo_until_end(conn());
    meet();
}

/* On a terminal of its own, with its parent's connection. */
static void forkpty_a(void) {
    int fd = conn(), terminal;
    echo(fd, "before", 1);
    pid_t child = MUST(forkpty(&terminal, NULL, NULL, NULL));
    if (child == 0) {
        put(fd, "child", 5);
        _exit(get(fd, buf, 5) == 5 && !memcmp(buf, "child", 5) ? 3 : 4);
    }
    wait_for(child);
    close(terminal);
    echo(fd, "afterwards", 2);
    child = MUST(forkpty(&terminal, NULL, NULL, NULL));
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(9);
    }
    wait_for(child);
    close(terminal);
    echo(fd, "behind a program", 3);
    close(fd);
    meet();
}

static int run(void *fd) {
    serve((int)(long)fd);
    return 0;
}

static pid_t child_on(char *stack, int flags, int fd) { return MUST(clone(run, stack + STACK, flags | SIGCHLD, (void *)(long)fd)); }

/* Children by clone(2), which begin in a function of their own. */
static void clone_each_a(void) {
    static char stack[STACK];
    pid_t child[CONNECTIONS];
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = accept_from(l);
        child[i] = child_on(stack, 0, fd);
        close(fd);
    }
    wait_for_all(child);
    meet();
}

static unsigned spaces(void) { return geteuid() ? CLONE_NEWUSER | CLONE_NEWPID : CLONE_NEWPID; }

/* The first process of a PID namespace, as vsftpd makes one for each session: no relative knows it by number. */
static void namespace_each_a(void) {
    pid_t child[CONNECTIONS];
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = accept_from(l);
        child[i] = MUST(syscall(SYS_clone, spaces() | SIGCHLD, 0, 0, 0, 0));
        if (child[i] == 0) {
            close(l);
            serve(fd);
        }
        close(fd);
    }
    wait_for_all(child);
    meet();
}

/* It uses a connection that its parent has used, and accepts by its listener; the parent goes on with both. */
static void namespace_uses_a(void) {
    int l = listen_on(PORT);
    meet();
    int fd = accept_from(l);
    warm(fd);
    for (int i = 0; i < 3; i++) {
        echo(fd, "parent", i);
        pid_t child = MUST(syscall(SYS_clone, spaces() | SIGCHLD, 0, 0, 0, 0));
        if (child == 0) {
            for (int k = 0; k < 100; k++) {
                put(fd, "child", 5);
                if (get(fd, buf, 5) != 5 || memcmp(buf, "child", 5))
                    _exit(4);
            }
            int other = accept_from(l);
            warm(other);
            echo(other, "child's own", i);
            _exit(3);
        }
        wait_for(child);
    }
    close(fd);
    meet();
}
static void namespace_uses_b(void) {
    meet();
    int fd = dial(PORT);
    warm(fd);
    nonblocking(fd, 1);
    int others[3];
    for (int i = 0; i < 3; i++)
        others[i] = -1;
    /* Echoes; each time the child is seen it gets a connection of its own. */
    int made = 0;
    for (;;) {
        struct pollfd p = {fd, POLLIN, 0};
        MUST(poll(&p, 1, -1));
        ssize_t n = recv(fd, buf, sizeof buf, 0);
        if (n == 0)
            break;
        if (n < 0)
            continue;
        int is_child = n == 5 && !memcmp(buf, "child", 5);
        static int seen;
        nonblocking(fd, 0);
        put(fd, buf, n);
        nonblocking(fd, 1);
        if (is_child && ++seen % 100 == 0 && made < 3) {
            others[made] = dial(PORT);
            warm(others[made]);
            char all[20000];
            size_t got_now = get(others[made], all, sizeof all);
            put(others[made], all, got_now);
            made++;
        }
    }
    say("%d of its own", made);
    for (int i = 0; i < made; i++)
        close(others[i]);
    close(fd);
    meet();
}

/* The same by unshare(2) and fork(2), as launchers do it. */
static void namespace_unshared_a(void) {
    int fd = conn();
    echo(fd, "before", 1);
    MUST(unshare(spaces()));
    pid_t child = MUST(fork());
    if (child == 0) {
        for (int k = 0; k < 100; k++) {
            put(fd, "child", 5);
            if (get(fd, buf, 5) != 5 || memcmp(buf, "child", 5))
                _exit(4);
        }
        _exit(getppid() == 0 ? 3 : 5);
    }
    wait_for(child);
    echo(fd, "afterwards", 2);
    close(fd);
    meet();
}

/* A library closes what it finds in the child, in a handler of fork, while another thread of the parent waits in a set. */
static int closed_by_handler = -1;
static void in_child(void) {
    if (closed_by_handler >= 0)
        close(closed_by_handler);
}
static void *waits(void *set) {
    struct epoll_event e;
    while (epoll_wait((int)(long)set, &e, 1, -1) >= 0 || errno == EINTR)
        if (recv(e.data.fd, buf, sizeof buf, MSG_DONTWAIT) == 0)
            break;
    return NULL;
}
static void handler_a(void) {
    int fd = conn(), l = listen_on(PORT + 1), ep = MUST(epoll_create1(0));
    meet();
    int other = accept_from(l);
    warm(other);
    MUST(pthread_atfork(NULL, NULL, in_child));
    struct epoll_event e = {.events = EPOLLIN, .data.fd = other};
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, other, &e));
    pthread_t t;
    MUST(pthread_create(&t, NULL, waits, (void *)(long)ep));
    meet();
    closed_by_handler = other;
    for (int i = 0; i < 20; i++) {
        pid_t child = MUST(fork());
        if (child == 0)
            _exit(fcntl(other, F_GETFD) < 0 && errno == EBADF ? 3 : 4);
        int status;
        MUST(waitpid(child, &status, 0));
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 3)
            die("child");
        put(other, "x", 1);
    }
    closed_by_handler = -1;
    put(other, "end", 3);
    pthread_join(t, NULL);
    echo(fd, "whole", 1);
    close(other);
    close(fd);
    meet();
}
static void handler_b(void) {
    int fd = conn();
    meet();
    int other = dial(PORT + 1);
    warm(other);
    meet();
    for (long n = 0; n < 23;) {
        ssize_t r = recv(other, buf, 64, 0);
        if (r <= 0)
            die("other");
        n += r;
        if (n < 21)
            put(other, buf, 1);
    }
    R(shutdown(other, SHUT_WR));
    echo_until_end(fd);
    close(other);
    meet();
}

/* Threads accept, answer and close while this one forks children that end at once: no record is freed under those who have it. */
enum { ACCEPTERS = 2, EACH = 150 };
static void *accepts(void *l) {
    for (int i = 0; i < EACH; i++) {
        int fd = accept_from((int)(long)l);
        char c;
        while (get(fd, &c, 1) == 1)
            put(fd, &c, 1);
        close(fd);
    }
    return NULL;
}
static volatile int over;
static void *forks(void *unused) {
    while (!over) {
        pid_t child = MUST(fork());
        if (child == 0)
            _exit(0);
        MUST(waitpid(child, NULL, 0));
    }
    return NULL;
}
static void beside_accepts_a(void) {
    int fd = conn(), l = listen_on(PORT + 1);
    pthread_t t[ACCEPTERS], f;
    MUST(pthread_create(&f, NULL, forks, NULL));
    for (int i = 0; i < ACCEPTERS; i++)
        MUST(pthread_create(&t[i], NULL, accepts, (void *)(long)l));
    meet();
    for (int i = 0; i < ACCEPTERS; i++)
        pthread_join(t[i], NULL);
    over = 1;
    pthread_join(f, NULL);
    echo(fd, "whole", 1);
    close(fd);
    meet();
}
static void *dials(void *number) {
    char c = (char)(long)number, d;
    for (int i = 0; i < EACH; i++) {
        int fd = dial(PORT + 1);
        for (int k = 0; k < 40; k++, c += ACCEPTERS) {
            d = 0;
            put(fd, &c, 1);
            if (get(fd, &d, 1) != 1 || d != c)
                die("another connection's byte");
        }
        close(fd);
    }
    return NULL;
}
static void beside_accepts_b(void) {
    int fd = conn();
    meet();
    pthread_t t[ACCEPTERS];
    for (long i = 0; i < ACCEPTERS; i++)
        MUST(pthread_create(&t[i], NULL, dials, (void *)i));
    for (int i = 0; i < ACCEPTERS; i++)
        pthread_join(t[i], NULL);
    say("%d connections", ACCEPTERS * EACH);
    echo_until_end(fd);
    meet();
}

/* A child without a hook between has ended and not closed it, as a shell's have; then this process ends with what it has not read. */
static void leaves_a(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        pid_t child = MUST(fork());
        if (child == 0)
            _exit(0);
        wait_for(child);
    }
    put_stream(fd, 100000, 1);
    meet();
    exit(0);
}
static void leaves_b(void) {
    int fd = conn();
    meet();
    settle();
    get_stream(fd, 100000, 1);
    R(recv(fd, buf, 1, 0));
    close(fd);
}

const struct test tests[] = {{"daemon_forks", daemon_forks_a, several_b, COLD},
                             {"forkpty", forkpty_a, echo_b, 0},
                             {"clone_each", clone_each_a, several_b, COLD},
                             {"namespace_each", namespace_each_a, several_b, COLD},
                             {"namespace_uses", namespace_uses_a, namespace_uses_b, COLD},
                             {"namespace_unshared", namespace_unshared_a, echo_b, 0},
                             {"handler", handler_a, handler_b, 0},
                             {"beside_accepts", beside_accepts_a, beside_accepts_b, 0},
                             {"leaves", leaves_a, leaves_b, 0},
                             {0}};
