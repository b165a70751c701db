/* Owns: connections that a program has from the one that its process was before exec, as sshd's, git daemon's
 * and inetd's servers have them: who else holds them, and what goes on in memory. */
#include "given.h"

static char buf[64 * KIB];

enum { AT = 10 }; /* where the next program finds the connection */

static void exec_at(int fd, const char *role) {
    if (fd != AT) {
        placed(fd, AT);
    }
    exec_self(role, environ);
}
static pid_t start_at(int fd, const char *role) {
    pid_t child = fork();
    if (child == 0)
        exec_at(fd, role);
    return child;
}

static void executed(void) {
    const char *role = getenv("EXEC_ROLE");
    if (!role)
        return;
    if (!strcmp(role, "warm")) {
        warm(AT);
        echo(AT, "executed", 7);
    } else if (!strcmp(role, "wait and warm")) {
        settle();
        settle();
        warm(AT);
        echo(AT, "executed", 7);
    } else if (!strcmp(role, "echo") || !strcmp(role, "wait and echo")) {
        if (role[0] == 'w') {
            settle();
            settle();
        }
        for (int i = 0; i < 60; i++) { /* long enough to begin, if nobody minded the others */
            fill(buf, 4000, 0, i);
            put(AT, buf, 4000);
            if (get(AT, buf + 4000, 4000) != 4000 || memcmp(buf, buf + 4000, 4000))
                die("echo");
        }
        echo(AT, "executed", 7);
    } else if (!strcmp(role, "again")) {
        exec_self("warm", environ);
    } else if (!strcmp(role, "serve")) { /* as git daemon does: the next program is a child */
        wait_for(start_at(AT, "warm"));
        close(AT);
    } else if (!strcmp(role, "serve alone")) {
        pid_t child = start_at(AT, "warm");
        close(AT);
        wait_for(child);
    } else if (!strcmp(role, "sister")) { /* its own child holds it on when it becomes the next program */
        int over[2];
        MUST(pipe(over));
        if (fork() == 0) {
            close(over[1]);
            MUST(read(over[0], buf, 1)); /* until the next program has ended */
            echo(AT, "the sister", 3);
            _exit(0);
        }
        close(over[0]);
        exec_self("wait and echo", environ);
    } else if (!strcmp(role, "low")) { /* as sshd does */
        int fd = dup(0), null = open("/dev/null", O_RDWR);
        MUST(dup2(null, 0));
        MUST(dup2(null, 1));
        warm(fd);
        echo(fd, "executed", 7);
    } else if (!strcmp(role, "over")) {
        R(recv(AT, buf, 10, 0));
        R(send(AT, "x", 1, MSG_NOSIGNAL));
        settle();
        R(send(AT, "x", 1, MSG_NOSIGNAL));
        R(shutdown(AT, SHUT_WR));
        meet();
    } else if (!strcmp(role, "share")) { /* its own child uses it in turns with it */
        warm(AT);
        for (int i = 0; i < 2; i++) {
            pid_t child = fork();
            if (child == 0) {
                echo(AT, "its child", i);
                _exit(0);
            }
            wait_for(child);
        }
        echo(AT, "executed", 4);
    }
    exit(0);
}

/* The usual server: a program for each connection; this one closes it. */
static void each_a(void) {
    int fd = conn_cold();
    pid_t child = start_at(fd, "warm");
    close(fd);
    wait_for(child);
    meet();
}
static void warm_b(void) {
    int fd = conn_cold();
    warm(fd);
    echo_until_end(fd);
    meet();
}
static void low_a(void) {
    int fd = conn_cold();
    pid_t child = fork();
    if (child == 0) {
        MUST(dup2(fd, 0));
        MUST(dup2(0, 1));
        exec_self("low", environ); /* and under its own number */
    }
    close(fd);
    wait_for(child);
    meet();
}
static void itself_a(void) { exec_at(conn_cold(), "warm"); }
static void itself_b(void) {
    int fd = conn_cold();
    warm(fd);
    echo_until_end(fd);
}
/* The variants with variable arguments, of a connection in memory. */
static void by_variant(int which, int with_library) {
    int fd = conn();
    placed(fd, AT);
    const struct again *a = again("echo", with_library ? environ : without());
    environ = (char **)a->env;
    const char *self = a->self, *side = is_a ? "a" : "b";
    if (which == 0)
        execl(self, self, "executed", side, NULL);
    else if (which == 1)
        execlp(self, self, "executed", side, NULL);
    else
        execle(self, self, "executed", side, NULL, a->env);
    die("execl");
}
static void execl_a(void) { by_variant(0, 1); }
static void execlp_a(void) { by_variant(1, 1); }
static void execle_a(void) { by_variant(2, 1); }
static void execl_plain_a(void) { by_variant(0, 0); }
static void execle_plain_a(void) { by_variant(2, 0); }
static void variant_b(void) {
    int fd = conn();
    echo_until_end(fd);
}
/* More arguments than registers, and more than the library has room for on its stack; the program prints how many it got. */
#define TEN(x) x, x, x, x, x, x, x, x, x, x
static void many_a(void) {
    int fd = conn();
    for (int most = 0; most < 2; most++) {
        pid_t child = MUST(fork());
        if (child == 0) {
            MUST(dup2(fd, 1));
            if (most)
                execl("/bin/sh", "sh", "-c", "printf %03d $#", TEN(TEN("x")), TEN(TEN("x")), TEN(TEN("x")), NULL);
            execl("/bin/sh", "sh", "-c", "printf %03d $#", TEN("x"), "x", "x", NULL);
            _exit(1);
        }
        wait_for(child);
    }
    errno = 0;
    R(execl("/nonexistent/program", "x", NULL));
    R(execle("/nonexistent/program", "x", NULL, environ));
    put(fd, "still here", 10);
    meet();
}
static void many_b(void) {
    int fd = conn();
    char text[17] = "";
    R(get(fd, text, 16));
    say("%s", text);
    meet();
}
static void again_a(void) { exec_at(conn_cold(), "again"); }
static void chain_a(void) {
    int fd = conn_cold();
    pid_t child = start_at(fd, "serve alone");
    close(fd);
    wait_for(child);
    meet();
}
static void share_a(void) {
    int fd = conn_cold();
    pid_t child = start_at(fd, "share");
    close(fd);
    wait_for(child);
    meet();
}

/* The one that called exec, or a relative of it, holds the connection on and uses it afterwards. */
static void held_a(void) {
    int fd = conn_cold();
    wait_for(start_at(fd, "echo"));
    echo(fd, "the parent", 3);
    close(fd);
    meet();
}
static void held_b(void) {
    echo_until_end(conn_cold());
    meet();
}
static void held_by_child_a(void) {
    int fd = conn_cold(), turn[2], done[2];
    MUST(pipe(turn));
    MUST(pipe(done));
    pid_t sister = fork();
    if (sister == 0) {
        MUST(read(turn[0], buf, 1));
        echo(fd, "the sister", 3);
        MUST(write(done[1], "x", 1));
        MUST(read(turn[0], buf, 1));
        _exit(0);
    }
    pid_t child = start_at(fd, "echo");
    close(fd);
    wait_for(child);
    MUST(write(turn[1], "x", 1));
    MUST(read(done[0], buf, 1));
    MUST(write(turn[1], "x", 1));
    wait_for(sister);
    meet();
}
/* The middle program of a chain holds it on, with the last one. */
static void held_in_chain_a(void) {
    int fd = conn_cold();
    pid_t child = fork();
    if (child == 0) {
        pid_t last = start_at(fd, "serve");
        wait_for(last);
        echo(fd, "the middle", 3);
        _exit(0);
    }
    close(fd);
    wait_for(child);
    meet();
}
/* The program that took it over made a child while the first one still held it, and became another one. */
static void held_by_sister_a(void) {
    int fd = conn_cold(), end[2];
    MUST(pipe(end));
    pid_t child = start_at(fd, "sister");
    close(end[1]);
    settle();
    close(fd);
    MUST(read(end[0], buf, 1)); /* till the sister has ended */
    wait_for(child);
    meet();
}
/* It was passed on by a descriptor message before: a stranger has it. */
static void held_by_stranger_a(void) {
    int fd = conn_cold(), over[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, over));
    pass(over[0], &fd, 1);
    pid_t child = start_at(fd, "echo");
    close(fd);
    wait_for(child);
    fd = passed_one(over[1]);
    echo(fd, "the stranger", 3);
    close(fd);
    meet();
}
/* The last holder leaves late, and one of several dies without a word. */
static void late_a(void) {
    int fd = conn_cold(), turn[2];
    MUST(pipe(turn));
    pid_t child = fork();
    if (child == 0) {
        pid_t next = start_at(fd, "wait and warm");
        MUST(read(turn[0], buf, 1));
        close(fd);
        wait_for(next);
        _exit(0);
    }
    settle();
    close(fd);
    MUST(write(turn[1], "x", 1));
    wait_for(child);
    meet();
}
/* A child that has nothing to do with it holds it on while little goes to and fro, and leaves; then comes a stream, in either
 * direction. The one that connects must not wait long with its next look. */
enum { STREAM = 200 * MIB };
static void stream_put(int fd) {
    for (long o = 0; o < STREAM; o += sizeof buf)
        put(fd, buf, sizeof buf);
}
static void stream_get(int fd) {
    for (long o = 0; o < STREAM; o += sizeof buf)
        if (get(fd, buf, sizeof buf) != sizeof buf)
            die("early end");
}
static void then_stream_a(int gets) {
    int fd = conn_cold(), end[2];
    MUST(pipe(end));
    pid_t child = fork();
    if (child == 0) {
        close(end[1]);
        if (read(end[0], buf, 1) != 0)
            die("not the end");
        _exit(0);
    }
    for (int i = 0; i < 300; i++) {
        put(fd, buf, get(fd, buf, 100));
        usleep(1000);
    }
    close(end[1]);
    wait_for(child);
    meet();
    (gets ? stream_get : stream_put)(fd);
    R(recv(fd, buf, 1, 0));
    close(fd);
}
static void then_stream_b(int gets) {
    int fd = conn_cold();
    for (int i = 0; i < 300; i++) {
        put(fd, buf, 100);
        get(fd, buf, 100);
    }
    meet();
    long before = lo_bytes();
    (gets ? stream_get : stream_put)(fd);
    warmed(STREAM, lo_bytes() - before);
    close(fd);
}
static void then_comes_a(void) { then_stream_a(1); }
static void then_comes_b(void) { then_stream_b(0); }
static void then_goes_a(void) { then_stream_a(0); }
static void then_goes_b(void) { then_stream_b(1); }

/* exec fails: this program goes on. */
static void fails_a(void) {
    int fd = conn_cold();
    placed(fd, AT);
    R(execv("/nowhere", (char *[]){"nowhere", NULL}));
    warm(AT);
    echo(AT, "after", 7);
    close(AT);
    meet();
}

/* It fails beside a thread that sleeps, which hears what comes then, and what came meanwhile; by recv, and past the library. */
static void *hears(void *by_number) {
    char c = 0;
    for (int i = 0; i < 2; i++) {
        if (by_number)
            say("poll: %s", poll_text(raw_poll(AT, POLLIN, -1)));
        ssize_t n = recv(AT, &c, 1, by_number ? MSG_DONTWAIT : 0);
        say("%zd %c", n, c);
        meet();
    }
    return NULL;
}
static void fails_beside(long by_number) {
    pthread_t t;
    int fd = conn();
    MUST(dup3(fd, AT, O_CLOEXEC));
    close(fd);
    meet();
    MUST(-pthread_create(&t, NULL, hears, (void *)by_number));
    settle();
    for (int i = 0; i < 3; i++)
        R(execv("/nowhere", (char *[]){"nowhere", NULL}));
    meet();
    pthread_join(t, NULL);
    close(AT);
}
static void fails_beside_recv_a(void) { fails_beside(0); }
static void fails_beside_poll_a(void) { fails_beside(1); }
static void fails_beside_b(void) {
    int fd = conn();
    meet();
    meet();
    for (int i = 0; i < 2; i++) {
        settle();
        put(fd, &"ab"[i], 1);
        meet();
    }
}

/* The connecting end becomes another program. */
static void connected_a(void) {
    int l = listen_on(PORT);
    meet();
    int fd = accept_from(l);
    warm(fd);
    echo_until_end(fd);
}
static void connected_b(void) {
    meet();
    exec_at(dial(PORT), "warm");
}

/* It has ended when it goes to the next program. */
static void over_a(void) {
    int fd = conn();
    got(fd, buf, 5000, 0, 5);
    R(recv(fd, buf, 10, 0));
    exec_at(fd, "over");
}
static void over_b(void) {
    int fd = conn();
    fill(buf, 5000, 0, 5);
    put(fd, buf, 5000);
    R(close(fd));
    meet();
}

const struct test tests[] = {{"each", each_a, warm_b, 0},
                             {"low", low_a, warm_b, 0},
                             {"itself", itself_a, itself_b, 0},
                             {"execl", execl_a, variant_b, 0},
                             {"execlp", execlp_a, variant_b, 0},
                             {"execle", execle_a, variant_b, 0},
                             {"execl_plain", execl_plain_a, variant_b, 0},
                             {"execle_plain", execle_plain_a, variant_b, 0},
                             {"execl_many", many_a, many_b, 0},
                             {"again", again_a, itself_b, 0},
                             {"chain", chain_a, warm_b, 0},
                             {"share", share_a, warm_b, 0},
                             {"held", held_a, held_b, COLD},
                             {"held_by_child", held_by_child_a, held_b, COLD},
                             {"held_in_chain", held_in_chain_a, warm_b, COLD},
                             {"held_by_sister", held_by_sister_a, held_b, COLD},
                             {"held_by_stranger", held_by_stranger_a, held_b, COLD},
                             {"late", late_a, warm_b, 0},
                             {"then_comes_a_stream", then_comes_a, then_comes_b, 0},
                             {"then_goes_a_stream", then_goes_a, then_goes_b, 0},
                             {"fails", fails_a, warm_b, 0},
                             {"fails_beside_recv", fails_beside_recv_a, fails_beside_b, 0},
                             {"fails_beside_poll", fails_beside_poll_a, fails_beside_b, 0},
                             {"connected", connected_a, connected_b, 0},
                             {"over", over_a, over_b, 0},
                             {"executed", executed, executed, ROLE},
                             {0}};
