/* Owns: what lies unread when a connection goes to another program or process, where its sender can't just send it again:
 * it has gone back to TCP by itself behind it, or has said its last word. */
#include "last_words.h"

enum { AT = 10 }; /* where the next program finds the connection */
/* Ahead of a reader: it fits into the buffers of TCP, so that its sender waits for the answer when it is asked for it; or it
 * does not, and the sender is in send. */
enum { MORE = 12 * MIB };

static void rest_before(int fd) {
    meet();
    got_before(fd, 20000);
    R(recv(fd, buf, 1, 0));
}
static void executed(void) {
    const char *role = getenv("EXEC_ROLE");
    if (!role)
        return;
    if (!strcmp(role, "some") || !strcmp(role, "more")) {
        get_stream(AT, role[0] == 's' ? SOME : MORE, 5);
        echo(AT, "executed", 7);
    } else if (!strcmp(role, "last")) {
        last(AT);
    } else if (!strcmp(role, "closed")) {
        closed(AT);
    } else if (!strcmp(role, "leave")) {
        got(AT, buf, 10000, 0, 5);
    } else if (!strcmp(role, "lost")) {
        R(recv(AT, buf, sizeof buf, 0));
    } else if (!strcmp(role, "leave_all")) {
        _exit(0);
    } else if (!strcmp(role, "again")) {
        exec_self("last", environ);
    } else if (!strcmp(role, "before_again")) {
        exec_self("before", environ);
    } else if (!strcmp(role, "all")) {
        all(AT);
    } else if (!strcmp(role, "before")) {
        before(AT);
    } else if (!strcmp(role, "mute_all")) {
        meet();
        get_stream(AT, SOME, 5);
        R(recv(AT, buf, 1, 0));
    } else if (!strcmp(role, "mute_before")) {
        rest_before(AT);
    } else if (!strcmp(role, "mute")) {
        meet();
        got(AT, buf, 40000, 0, 5);
        R(recv(AT, buf, 1, 0));
    }
    exit(0);
}
static void go_on(int fd, const char *role, char **env) {
    placed(fd, AT);
    exec_self(role, env);
}
static void inherited(enum how how, int fd, const char *role) {
    placed(fd, AT);
    pid_t child = start(how, role, environ);
    close(AT);
    wait_for(child);
}

static void some_with_a(void) { go_on(ahead(), "some", environ); }
static void some_without_a(void) { go_on(ahead(), "some", without()); }
static void some_inherited_a(void) { inherited(FORK, ahead(), "some"); }
static void more_with_a(void) { go_on(ahead(), "more", environ); }
static void more_without_a(void) { go_on(ahead(), "more", without()); }
static void more(int fd) {
    get_stream(fd, MORE, 5);
    echo(fd, "receiver", 7);
}
/* By a message to a relative that was there before. */
static void by_message(int (*make)(void), void (*what)(int)) {
    int over;
    pid_t child = relative(&over, what);
    int fd = make();
    pass(over, &fd, 1);
    close(fd);
    wait_for(child);
}
static void more_passed_a(void) { by_message(ahead, more); }
static void ahead_b(size_t n) {
    int fd = conn();
    static char all[MORE];
    fill(all, n, 0, 5);
    meet();
    put(fd, all, n);
    echo_until_end(fd);
}
static void some_b(void) { ahead_b(SOME); }
static void more_b(void) { ahead_b(MORE); }

/* All has been said. The program reads it where it has the library; it may become another one first. */
static void last_a(void) { go_on(said_all(), "last", environ); }
static void last_inherited_a(void) { inherited(FORK, said_all(), "last"); }
static void last_twice_a(void) { go_on(said_all(), "again", environ); }
static void last_without_a(void) { go_on(said_all(), "lost", without()); }
static void last_vfork_a(void) { inherited(VFORK, said_all(), "last"); }
static void last_spawn_a(void) {
    inherited(SPAWN, said_all(), "last");
    R(fcntl(1000, F_GETFD)); /* what it was left in is not here */
}
/* It has gone back to TCP before: a part is in the ring, then comes a part in TCP, then the end. */
static void last_ahead_a(void) { go_on(ahead(), "all", environ); }
static void last_fails_a(void) {
    int fd = said_all();
    R(execv("/nowhere", (char *[]){"nowhere", NULL}));
    R(fcntl(1000, F_GETFD));
    got(fd, buf, 30000, 0, 5);
    fill(buf, 20000, 0, 6);
    put(fd, buf, 20000);
    close(fd);
}
/* It ends without having read it. */
static void left_a(void) { go_on(said_all(), "leave", environ); }
static void left_whole_a(void) { go_on(said_all(), "leave_all", environ); }
/* The other end has closed. */
static void closed_a(void) { go_on(said_all(), "closed", environ); }
static void closed_inherited_a(void) { inherited(FORK, said_all(), "closed"); }
static void closed_vfork_a(void) { inherited(VFORK, said_all(), "closed"); }
static void closed_spawn_a(void) { inherited(SPAWN, said_all(), "closed"); }
static void before_read_a(void) { go_on(came_before(), "before", environ); }
static void before_twice_a(void) { go_on(came_before(), "before_again", environ); }
static void before_inherited_a(void) { inherited(FORK, came_before(), "before"); }
static void before_vfork_a(void) { inherited(VFORK, came_before(), "before"); }
static void before_spawn_a(void) { inherited(SPAWN, came_before(), "before"); }
static void before_left_a(void) { go_on(came_before(), "leave", environ); }
static void before_left_whole_a(void) { go_on(came_before(), "leave_all", environ); }
static void before_without_a(void) { go_on(came_before(), "leave_all", without()); }
static void before_left(int fd) {
    R(recv(fd, buf, 1, 0));
    R(recv(fd, buf, 1, 0));
}
static void before_left_b(void) { before_left(before_b(10000)); }
static void before_only_b(void) { before_left(before_b(0)); }
/* In poll till the other end comes: here it can do what it is asked for, however long that takes. */
static void meet_in_poll(int fd) {
    enum { CTL = 3 };
    struct pollfd two[2] = {{fd, 0, 0}, {CTL, POLLIN, 0}};
    MUST(poll(two, 2, -1));
    meet();
}
/* The one that goes has said its last word: it can't call its peer any more. */
static void mute_a(char **env) {
    int fd = conn();
    meet_settled();
    R(shutdown(fd, SHUT_WR));
    meet_settled();
    go_on(fd, "mute", env);
}
static void mute_with_a(void) { mute_a(environ); }
static void mute_without_a(void) { mute_a(without()); }
static void mute_b(void) {
    int fd = conn();
    fill(buf, 40000, 0, 5);
    put(fd, buf, 30000);
    meet();
    R(recv(fd, buf + sizeof buf - 1, 1, 0));
    meet();
    meet_in_poll(fd);
    put(fd, buf + 30000, 10000);
    R(close(fd));
}

/* The same, and its peer has gone back to TCP behind what it has not read: it is called to memory again. */
static void mute_ahead_a(char **env) {
    int fd = ahead();
    R(shutdown(fd, SHUT_WR));
    meet_settled();
    go_on(fd, "mute_all", env);
}
static void mute_ahead_with_a(void) { mute_ahead_a(environ); }
static void mute_ahead_without_a(void) { mute_ahead_a(without()); }
static void mute_ahead_b(void) {
    int fd = conn();
    static char all[SOME];
    fill(all, SOME, 0, 5);
    meet();
    put(fd, all, SOME - 10000);
    meet();
    meet_in_poll(fd);
    put(fd, all + SOME - 10000, 10000);
    R(close(fd));
}

/* The same, and what is unread has come before the connection was in memory, and behind it again: memory had nothing in between. */
static int mute_before(void) {
    int fd = came_before();
    R(shutdown(fd, SHUT_WR));
    meet_settled();
    meet_settled();
    return fd;
}
static void mute_before_with_a(void) { go_on(mute_before(), "mute_before", environ); }
static void mute_before_without_a(void) { go_on(mute_before(), "mute_before", without()); }
static void mute_before_spawn_a(void) { inherited(SPAWN, mute_before(), "mute_before"); }
static void mute_before_passed_a(void) { by_message(mute_before, rest_before); }
static void mute_before_b(void) {
    int fd = begins_on_tcp(0);
    meet();
    meet();
    R(recv(fd, buf + sizeof buf - 1, 1, 0));
    fill(buf, 20000, 0, 6);
    put(fd, buf, 10000);
    meet();
    meet_in_poll(fd);
    put(fd, buf + 10000, 10000);
    R(close(fd));
}

const struct test tests[] = {{"ahead_with", some_with_a, some_b, 0},
                             {"ahead_without", some_without_a, some_b, 0},
                             {"ahead_inherited", some_inherited_a, some_b, 0},
                             {"far_ahead_with", more_with_a, more_b, 0},
                             {"far_ahead_without", more_without_a, more_b, 0},
                             {"far_ahead_passed", more_passed_a, more_b, 0},
                             {"half_closed", last_a, last_b, 0},
                             {"half_closed_inherited", last_inherited_a, last_b, 0},
                             {"half_closed_twice", last_twice_a, last_b, 0},
                             {"half_closed_without", last_without_a, left_b, 0},
                             {"half_closed_vfork", last_vfork_a, last_b, 0},
                             {"half_closed_spawn", last_spawn_a, last_b, 0},
                             {"half_closed_left", left_a, left_b, 0},
                             {"half_closed_left_whole", left_whole_a, left_b, 0},
                             {"closed", closed_a, closed_b, 0},
                             {"closed_inherited", closed_inherited_a, closed_b, 0},
                             {"closed_vfork", closed_vfork_a, closed_b, 0},
                             {"closed_spawn", closed_spawn_a, closed_b, 0},
                             {"half_closed_ahead", last_ahead_a, last_ahead_b, 0},
                             {"half_closed_before", before_read_a, before_read_b, COLD | SWITCHES},
                             {"half_closed_before_twice", before_twice_a, before_read_b, COLD | SWITCHES},
                             {"half_closed_before_inherited", before_inherited_a, before_read_b, COLD | SWITCHES},
                             {"half_closed_before_vfork", before_vfork_a, before_read_b, COLD | SWITCHES},
                             {"half_closed_before_spawn", before_spawn_a, before_read_b, COLD | SWITCHES},
                             {"half_closed_before_left", before_left_a, before_left_b, COLD | SWITCHES},
                             {"half_closed_before_left_whole", before_left_whole_a, before_left_b, COLD | SWITCHES},
                             {"half_closed_before_only", before_left_whole_a, before_only_b, COLD | SWITCHES},
                             {"half_closed_before_without", before_without_a, before_left_b, COLD | SWITCHES},
                             {"half_closed_before_only_without", before_without_a, before_only_b, COLD | SWITCHES},
                             {"half_closed_fails", last_fails_a, last_b, 0},
                             {"mute_with", mute_with_a, mute_b, 0},
                             {"mute_without", mute_without_a, mute_b, 0},
                             {"mute_ahead_with", mute_ahead_with_a, mute_ahead_b, 0},
                             {"mute_ahead_without", mute_ahead_without_a, mute_ahead_b, 0},
                             {"mute_before_with", mute_before_with_a, mute_before_b, COLD | SWITCHES},
                             {"mute_before_without", mute_before_without_a, mute_before_b, COLD | SWITCHES},
                             {"mute_before_spawn", mute_before_spawn_a, mute_before_b, COLD | SWITCHES},
                             {"mute_before_passed", mute_before_passed_a, mute_before_b, COLD | SWITCHES},
                             {"executed", executed, executed, ROLE},
                             {0}};
