/* Owns: who gets a descriptor: processes with and without the library to which connections and listeners are passed,
 * several at once; a server that is given its listener as descriptor 0; both ends forking; a peer that is stopped
 * while a connection goes; and the table of descriptors that a program and its children see. */
#include "given.h"
#include <dirent.h>

static char buf[64 * KIB];

/* Descriptors in use, without the directory's own. */
static int count_fds(int from, int to) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        int fd = atoi(e->d_name);
        n += e->d_name[0] != '.' && fd >= from && fd <= to && fd != dirfd(d);
    }
    closedir(d);
    return n;
}

static void executed(void) {
    const char *role = getenv("EXEC_ROLE");
    int fds[3];
    if (!role)
        return;
    if (!strcmp(role, "connection")) {
        passed(MESSAGES, fds, 1);
        got(fds[0], buf, 5000, 5000, 5);
        for (int i = 0; i < 100; i++)
            echo(fds[0], "receiver", i);
    } else if (!strcmp(role, "listener")) {
        passed(MESSAGES, fds, 1);
        for (int i = 0; i < 2; i++) {
            int fd = accept_from(fds[0]);
            for (int k = 0; k < 20; k++)
                echo(fd, "acceptor", k);
            close(fd);
        }
    } else if (!strcmp(role, "several")) {
        passed(MESSAGES, fds, 3);
        for (int i = 0; i < 2; i++)
            echo(fds[i], "receiver", i);
        struct stat st;
        MUST(fstat(fds[2], &st));
        say("a file of %ld", (long)st.st_size);
    } else if (!strcmp(role, "accepts from 0")) {
        for (int i = 0; i < 2; i++) {
            int fd = accept_from(0);
            for (int k = 0; k < 20; k++)
                echo(fd, "served", k);
            close(fd);
        }
    } else if (!strcmp(role, "stopped peer")) {
        pid_t peer = hear_pid();
        say("in time %d", time(NULL) - atol(getenv("EXEC_BEGAN")) < 10);
        MUST(kill(peer, SIGCONT));
        got(10, buf, 20000, 10000, 5);
        echo(10, "executed", 7);
        settle();
        say("rest %d", now_in(10));
    } else if (!strcmp(role, "until the end")) {
        R(read(10, buf, 1));
    } else if (!strcmp(role, "count")) {
        say("%d low ones, %d others", count_fds(0, 999), count_fds(1000, 1 << 30));
    }
    exit(0);
}

/* ---- passed on ---- */

static void connection_a(char **env) {
    int over, fd;
    pid_t child = helper("connection", env, &over);
    fd = conn();
    meet_settled(); /* 10,000 bytes are there, half of them are read here */
    got(fd, buf, 5000, 0, 5);
    pass(over, &fd, 1);
    close(fd);
    wait_for(child);
    meet();
}
static void connection_b(void) {
    int fd = conn();
    fill(buf, 10000, 0, 5);
    put(fd, buf, 10000);
    meet();
    echo_until_end(fd);
    meet();
}
static void to_stranger_a(void) { connection_a(environ); }
static void to_native_a(void) { connection_a(without()); }

static void listener_a(char **env) {
    int over, l;
    pid_t child = helper("listener", env, &over);
    l = listen_on(PORT);
    meet();
    settle(); /* the first one waits in the queue by now */
    pass(over, &l, 1);
    close(l);
    wait_for(child);
    meet();
}
static void listener_b(void) {
    meet();
    for (int i = 0; i < 2; i++)
        echo_until_end(dial(PORT));
    meet();
}
static void listener_to_stranger_a(void) { listener_a(environ); }
static void listener_to_native_a(void) { listener_a(without()); }

static void several_a(void) {
    int over, l, fds[3];
    pid_t child = helper("several", without(), &over);
    l = listen_on(PORT);
    meet();
    for (int i = 0; i < 2; i++) {
        fds[i] = accept_from(l);
        warm(fds[i]);
    }
    fds[2] = MUST(memfd_create("file", MFD_CLOEXEC));
    MUST(ftruncate(fds[2], 77));
    pass(over, fds, 3);
    wait_for(child);
    for (int i = 0; i < 2; i++) {
        echo(fds[i], "the one that passed them", i);
        close(fds[i]);
    }
    meet();
}
static void *echo_one(void *fd) {
    static char mine[64 * KIB];
    for (ssize_t n; (n = recv(*(int *)fd, mine, sizeof mine, 0)) > 0;)
        put(*(int *)fd, mine, n);
    close(*(int *)fd);
    return NULL;
}
static void several_b(void) {
    int fds[2];
    meet();
    for (int i = 0; i < 2; i++) {
        fds[i] = dial(PORT);
        warm(fds[i]);
    }
    pthread_t t;
    pthread_create(&t, NULL, echo_one, &fds[1]);
    echo_until_end(fds[0]);
    pthread_join(t, NULL);
    meet();
}

/* As inetd starts a program that waits for connections itself. */
static void from_0_a(char **env) {
    int l = listen_on(PORT);
    meet();
    pid_t child = fork();
    if (child == 0) {
        placed(l, 0);
        exec_self("accepts from 0", env);
    }
    close(l);
    wait_for(child);
    meet();
}
static void from_0_with_a(void) { from_0_a(environ); }
static void from_0_without_a(void) { from_0_a(without()); }

/* ---- forked at both ends ---- */

static void both_fork(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (is_a) {
                echo(fd, "child", i);
                put_stream(fd, MIB, i);
            } else {
                got(fd, buf, 20000, 0, i);
                put(fd, buf, 20000);
                get_stream(fd, MIB, i);
            }
            _exit(0);
        }
        wait_for(child);
        meet();
        if (is_a) {
            echo(fd, "parent", 5 + i);
        } else {
            got(fd, buf, 20000, 0, 5 + i);
            put(fd, buf, 20000);
        }
    }
    close(fd);
    meet();
}

/* A child has it by two numbers and becomes another program, which has neither: this one has it alone, and so in memory. */
static void closed_twice_a(void) {
    int fd = conn_cold(), over[2], begun[2];
    MUST(pipe(over));
    MUST(pipe2(begun, O_CLOEXEC));
    MUST(fcntl(fd, F_SETFD, FD_CLOEXEC));
    pid_t child = fork();
    if (child == 0) {
        MUST(fcntl(fd, F_DUPFD_CLOEXEC, 50));
        MUST(dup2(over[0], 10));
        close(over[1]);
        exec_self("until the end", environ);
    }
    close(over[0]);
    close(begun[1]);
    MUST(read(begun[0], buf, 1)); /* until it is that program */
    meet();
    warm(fd);
    echo(fd, "beside", 2);
    close(over[1]);
    wait_for(child);
    close(fd);
    meet();
}
static void closed_twice_b(void) {
    int fd = conn_cold();
    meet();
    warm(fd);
    echo_until_end(fd);
    meet();
}

/* ---- a peer that is stopped ---- */

/* Bytes of the peer lie unread when it is stopped and the connection goes to a program without the library: that does not
 * wait for ever, and when the peer goes on nothing is missing. */
static void stopped_a(void) {
    int fd = conn();
    pid_t peer = hear_pid();
    got(fd, buf, 10000, 0, 5);
    settle();
    MUST(kill(peer, SIGSTOP));
    placed(fd, 10);
    char began[30];
    sprintf(began, "%ld", (long)time(NULL));
    setenv("EXEC_BEGAN", began, 1);
    int ctl[2]; /* the next program is told in the same way as this one was */
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ctl));
    MUST(write(ctl[0], &peer, sizeof peer));
    MUST(dup2(ctl[1], 3));
    exec_self("stopped peer", without());
}
static void stopped_b(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    dprintf(2, "stopped %d\n", getpid());
    tell_pid(getpid());
    echo_until_end(fd);
}

/* ---- the table of descriptors ---- */

static void table_a(void) {
    int before = count_fds(0, 999), next = dup(0);
    close(next);
    int fd = conn();
    echo(fd, "in use", 1);
    say("one more %d", count_fds(0, 999) - before);
    int again = dup(0);
    say("the next number is the next one: %d", again == (fd == next ? next + 1 : next));
    close(again);
    for (int kind = 0; kind < 2; kind++) {
        pid_t child = fork();
        if (child == 0) {
            close(fd);
            exec_self("count", kind ? environ : without());
        }
        wait_for(child);
    }
    echo(fd, "still in use", 2);
    pid_t child = fork();
    if (child == 0) {
        say("one more %d", count_fds(0, 999) - before);
        _exit(0);
    }
    wait_for(child);
    close(fd);
    say("as before %d", count_fds(0, 999) - before);
    meet();
}
static void table_b(void) {
    echo_until_end(conn());
    meet();
}

const struct test tests[] = {{"to_stranger", to_stranger_a, connection_b, 0},
                             {"to_native", to_native_a, connection_b, 0},
                             {"listener_to_stranger", listener_to_stranger_a, listener_b, COLD | SWITCHES},
                             {"listener_to_native", listener_to_native_a, listener_b, COLD},
                             {"several", several_a, several_b, 0},
                             {"listener_as_0_with", from_0_with_a, listener_b, COLD | SWITCHES},
                             {"listener_as_0_without", from_0_without_a, listener_b, COLD},
                             {"both_fork", both_fork, both_fork, 0},
                             {"closed_twice", closed_twice_a, closed_twice_b, 0},
                             {"stopped_peer", stopped_a, stopped_b, 0},
                             {"descriptors", table_a, table_b, 0},
                             {"executed", executed, executed, ROLE},
                             {0}};
