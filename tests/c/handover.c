/* Owns: connections that go to another process or program: SCM_RIGHTS, exec with and without the
 * library, posix_spawn onto 0 and 1, inetd and socket activation. */
#include "given.h"
#include <spawn.h>

static char buf[64 * KIB];

static void echo_b(void) {
    echo_until_end(conn());
    meet();
}

/* To a child that was forked before the connection was: it knows nothing of it. */
static void pass_accepted(int keep) {
    int unix_pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_pair));
    pid_t child = fork();
    if (child == 0) {
        int fd = passed_one(unix_pair[1]);
        echo(fd, "receiver", 1);
        put_stream(fd, 3 * MIB, 2);
        get_stream(fd, 3 * MIB, 2);
        if (!keep)
            R(shutdown(fd, SHUT_WR));
        _exit(0);
    }
    int fd = conn();
    echo(fd, "before", 3);
    pass(unix_pair[0], &fd, 1);
    if (!keep)
        MUST(close(fd));
    wait_for(child);
    if (keep) {
        echo(fd, "after", 4);
        R(close(fd));
    }
    meet();
}
static void pass_a(void) { pass_accepted(0); }
static void pass_keep_a(void) { pass_accepted(1); }
static void pass_b(void) { /* echoes 3 MiB without a deadlock: reader and writer at once */
    int fd = conn();
    nonblocking(fd, 1);
    static char store[8 * MIB];
    size_t have = 0, gone = 0;
    for (int end = 0; !end || gone < have;) {
        short ev = events(fd, (end ? 0 : POLLIN) | (gone < have ? POLLOUT : 0), -1);
        if (ev & POLLIN && !end) {
            ssize_t n = recv(fd, store + have, sizeof store - have, 0);
            if (n < 0 && errno != EAGAIN)
                die("recv");
            end = n == 0;
            have += n > 0 ? n : 0;
        }
        if (gone < have) {
            ssize_t n = send(fd, store + gone, have - gone, MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN)
                die("send");
            gone += n > 0 ? n : 0;
        }
    }
    say("echoed %zu", gone);
    close(fd);
    meet();
}

/* Unread bytes are in the connection when it goes. */
static void unread(int fd) {
    got(fd, buf, 20000, 10000, 5);
    R(send(fd, "thanks", 6, 0));
}
static void pass_unread_a(void) {
    int over;
    pid_t child = relative(&over, unread);
    int fd = conn();
    meet_settled(); /* 30,000 bytes have come */
    got(fd, buf, 10000, 0, 5);
    pass(over, &fd, 1);
    wait_for(child);
    R(close(fd));
}
static void pass_unread_b(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    meet();
    say("%zu %.6s", get(fd, buf, 6), buf);
    R(recv(fd, buf, 1, 0));
}

static void acceptor(int l) {
    int fd = accept_from(l);
    warm(fd);
    echo(fd, "acceptor", 1);
}
static void pass_listener_a(void) {
    int over;
    pid_t child = relative(&over, acceptor);
    int l = listen_on(PORT);
    meet();
    pass(over, &l, 1);
    R(close(l));
    wait_for(child);
    meet();
}

/* exec: another program (this one, in another role) goes on with the connection under number 10.
 * EXEC_ROLE says what it does. */
static void executed_a(void) {
    const char *role = getenv("EXEC_ROLE");
    if (!role)
        return;
    if (!strcmp(role, "echo")) {
        echo(10, "executed", 7);
        put_stream(10, 3 * MIB, 8);
        get_stream(10, 3 * MIB, 8);
        R(shutdown(10, SHUT_WR));
        R(recv(10, buf, 1, 0));
        meet();
    } else if (!strcmp(role, "rest")) {
        got(10, buf, 20000, 10000, 5);
        R(send(10, "thanks", 6, 0));
    } else if (!strcmp(role, "behind")) {
        static char big[300 * KIB];
        got(10, big, sizeof big, 0, 5);
        got(10, buf, 10000, 0, 6);
        echo(10, "executed", 7);
    } else if (!strcmp(role, "accept")) { /* a listener under 10, as systemd hands one over */
        int fd = accept_from(10);
        say("%zu", get(fd, buf, 5));
        for (int i = 0; i < 300; i++) {
            fill(buf, 3000, i, 6);
            put(fd, buf, 3000);
            if (get(fd, buf + 3000, 3000) != 3000 || memcmp(buf, buf + 3000, 3000))
                die("echo");
        }
        R(shutdown(fd, SHUT_WR));
        R(recv(fd, buf, 1, 0));
    } else if (!strcmp(role, "closed")) {
        R(fcntl(10, F_GETFD));
    }
}
static void exec_with_a(void) {
    int fd = conn();
    echo(fd, "before", 1);
    placed(fd, 10);
    exec_self("echo", environ);
}
static void exec_without_a(void) {
    int fd = conn();
    echo(fd, "before", 1);
    placed(fd, 10);
    exec_self("echo", without());
}
static void exec_unread_a(void) {
    int fd = conn();
    meet_settled();
    got(fd, buf, 10000, 0, 5);
    placed(fd, 10);
    exec_self("rest", without());
}
/* What is unread lies in TCP, and behind that in memory: the one that goes has read nothing since the start. */
static void behind_goes(char **env) {
    int fd = conn_cold();
    trickle(fd);
    hear();
    placed(fd, 10);
    exec_self("behind", env);
}
static void behind_stays(void) {
    static char big[300 * KIB];
    int fd = conn_cold();
    fill(big, sizeof big, 0, 5);
    put(fd, big, sizeof big);
    trickled(fd);
    fill(buf, 10000, 0, 6);
    put(fd, buf, 10000);
    tell('.');
    echo_until_end(fd);
}
static void behind_without(void) { behind_goes(without()); }
static void behind_with(void) { behind_goes(environ); }
static void exec_listener(char **env) {
    int l = listen_on(PORT);
    placed(l, 10);
    meet();
    settle(); /* the connection is in the backlog by now */
    exec_self("accept", env);
}
static void listener_with_a(void) { exec_listener(environ); }
static void listener_without_a(void) { exec_listener(without()); }
static void listener_b(void) {
    meet();
    int fd = dial(PORT);
    put(fd, "early", 5);
    echo_until_end(fd);
}
/* daemon() while connections are open: the parent exits at once. */
static void daemon_a(void) {
    int fd = conn(), over[2], go[2];
    echo(fd, "before", 1);
    MUST(pipe(over));
    MUST(pipe(go));
    pid_t child = fork(); /* the harness waits for this process, so a child becomes the daemon */
    if (child == 0) {
        close(over[0]);
        close(go[1]);
        if (daemon(1, 1) < 0)
            die("daemon");
        MUST(read(go[0], buf, 1)); /* two processes write to one transcript */
        echo(fd, "daemon", 2);
        put_stream(fd, 2 * MIB, 3);
        R(shutdown(fd, SHUT_WR));
        get_stream(fd, 2 * MIB, 3);
        R(recv(fd, buf, 1, 0));
        exit(0);
    }
    close(over[1]);
    close(fd);
    wait_for(child);
    close(go[1]);
    say("%zd", read(over[0], buf, 1));
    meet();
}
static void exec_cloexec_a(void) {
    int fd = conn();
    MUST(dup3(fd, 10, O_CLOEXEC));
    close(fd);
    exec_self("closed", environ);
}
static void exec_cloexec_b(void) {
    int fd = conn();
    R(recv(fd, buf, 1, 0));
}
static void exec_fork_a(void) { /* the usual: fork, dup2 onto 0 and 1, exec; the parent closes */
    int fd = conn();
    echo(fd, "before", 1);
    pid_t child = fork();
    if (child == 0) {
        MUST(dup2(fd, 0));
        placed(fd, 1);
        execlp("cat", "cat", NULL);
        _exit(127);
    }
    close(fd);
    wait_for(child);
    meet();
}
static void exec_fork_b(void) {
    int fd = conn();
    size_t n = get(fd, buf, 20000); /* A's echo before */
    put(fd, buf, n);
    echo(fd, "through cat", 2);
    fill(buf, 60000, 0, 3);
    put(fd, buf, 60000);
    R(shutdown(fd, SHUT_WR));
    got(fd, buf, sizeof buf, 0, 3);
    meet();
}

static void spawn_a(void) { /* posix_spawn with file actions, as the parent goes on with others */
    int fd = conn();
    echo(fd, "before", 1);
    for (int i = 0; i < 2; i++) {
        posix_spawn_file_actions_t f;
        posix_spawn_file_actions_init(&f);
        posix_spawn_file_actions_adddup2(&f, fd, 0);
        posix_spawn_file_actions_adddup2(&f, fd, 1);
        posix_spawn_file_actions_addclose(&f, fd);
        char *args[] = {"head", "-c", "1000", NULL};
        pid_t pid;
        R(posix_spawnp(&pid, "head", &f, NULL, args, i ? without() : environ));
        wait_for(pid);
        posix_spawn_file_actions_destroy(&f);
    }
    echo(fd, "after", 4);
    R(close(fd));
    meet();
}
static void spawn_b(void) {
    int fd = conn();
    size_t n = get(fd, buf, 20000);
    put(fd, buf, n);
    for (int i = 0; i < 2; i++) { /* a thousand bytes through head each time */
        fill(buf, 1000, 0, 2 + i);
        put(fd, buf, 1000);
        got(fd, buf, 1000, 0, 2 + i);
    }
    echo_until_end(fd);
    meet();
}

/* inetd: an accepted connection is all that the program gets, as 0, 1 and 2. */
static void inetd_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < 2; i++) {
        int fd = accept_from(l);
        pid_t child = fork();
        if (child == 0) {
            dup2(fd, 0);
            dup2(fd, 1);
            dup2(fd, 2);
            closefrom(3);
            char *args[] = {"sh", "-c", "read a; echo got $a; cat", NULL};
            execvpe("sh", args, i ? without() : environ);
            _exit(127);
        }
        close(fd);
        wait_for(child);
    }
    meet();
}
static void inetd_b(void) {
    meet();
    for (int i = 0; i < 2; i++) {
        int fd = dial(PORT);
        put(fd, "line\n", 5);
        say("%zu %.9s", get(fd, buf, 9), buf);
        echo(fd, "through cat", i);
        R(shutdown(fd, SHUT_WR));
        R(recv(fd, buf, 1, 0));
        close(fd);
    }
    meet();
}

const struct test tests[] = {{"pass", pass_a, pass_b, 0},
                             {"pass_and_keep", pass_keep_a, pass_b, 0},
                             {"pass_unread", pass_unread_a, pass_unread_b, 0},
                             {"pass_listener", pass_listener_a, echo_b, 0},
                             {"exec_with", exec_with_a, pass_b, 0},
                             {"exec_without", exec_without_a, pass_b, 0},
                             {"exec_unread", exec_unread_a, pass_unread_b, 0},
                             {"exec_behind", behind_without, behind_stays, COLD | SWITCHES},
                             {"exec_behind_with", behind_with, behind_stays, COLD | SWITCHES},
                             {"exec_before", behind_stays, behind_without, COLD | SWITCHES},
                             {"exec_before_with", behind_stays, behind_with, COLD | SWITCHES},
                             {"exec_cloexec", exec_cloexec_a, exec_cloexec_b, 0},
                             {"fork_exec_cat", exec_fork_a, exec_fork_b, 0},
                             {"listener_with", listener_with_a, listener_b, COLD | SWITCHES},
                             {"listener_without", listener_without_a, listener_b, COLD},
                             {"daemon", daemon_a, pass_b, 0},
                             {"posix_spawn", spawn_a, spawn_b, 0},
                             {"inetd", inetd_a, inetd_b, COLD},
                             {"executed", executed_a, executed_a, ROLE},
                             {0}};
