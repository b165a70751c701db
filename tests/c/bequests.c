/* Owns: what lies unread of a peer that has said its last word, when a message takes the connection to another process. */
#include "last_words.h"

enum { IN_TURN = 10 };

static void none(int fd) { R(fcntl(fd, F_SETFD, FD_CLOEXEC)); }
static void executed(void) {
    const char *role = getenv("EXEC_ROLE");
    if (!role)
        return;
    if (!strcmp(role, "waits"))
        exit(0);
    int fd = passed_one(MESSAGES);
    strcmp(role, "lost") ? last(fd) : (void)R(recv(fd, buf, sizeof buf, 0));
    exit(0);
}

static void pass_and_close(int over, int fd) {
    pass(over, &fd, 1);
    MUST(close(fd));
}
static void to_relative(void (*use)(int fd), int (*made)(void)) {
    int over;
    pid_t child = relative(&over, use);
    pass_and_close(over, made());
    wait_for(child);
}
static void half_closed_a(void) { to_relative(last, said_all); }
static void closed_a(void) { to_relative(closed, said_all); }
static void ahead_a(void) { to_relative(all, ahead); }
static void before_a(void) { to_relative(before, came_before); }
/* It ends without having read it: who has sent that is shown a reset. */
static void left_a(void) { to_relative(none, said_all); }
/* Who has passed it on keeps it until the receiver has done with it. */
static void kept_a(void) {
    int over;
    pid_t child = relative(&over, last);
    int fd = said_all();
    pass(over, &fd, 1);
    wait_for(child);
    R(close(fd));
}
static void stranger_a(char **env, const char *role) {
    int over;
    pid_t child = helper(role, env, &over);
    pass_and_close(over, said_all());
    wait_for(child);
}
static void program_a(void) { stranger_a(environ, "last"); }
static void without_a(void) { stranger_a(without(), "lost"); }
/* To a process that passes it on to the next. */
static void passed_on(int fd) {
    int over;
    pid_t child = relative(&over, last);
    pass_and_close(over, fd);
    wait_for(child);
}
static void twice_a(void) { to_relative(passed_on, said_all); }
/* By a socket whose other end nobody has: it stays here. */
static void not_sent(int fd) {
    int unix_pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_pair));
    close(unix_pair[1]);
    R(send_fds(unix_pair[0], &fd, 1, MSG_NOSIGNAL));
    close(unix_pair[0]);
}
static void not_sent_a(void) {
    int fd = said_all();
    not_sent(fd);
    last(fd);
    close(fd);
}
/* And by one that is read later, before that: it is there. Who has passed it on starts another program meanwhile, which has the descriptor too. */
static void meanwhile_a(char **env) {
    int over[2], now[2], fd = said_all();
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, over));
    MUST(pipe2(now, O_CLOEXEC));
    pid_t child = MUST(fork());
    if (child == 0) {
        char c;
        close(now[1]);
        close(over[0]);
        close(fd);
        MUST(read(now[0], &c, 1));
        last(passed_one(over[1]));
        _exit(0);
    }
    pass(over[0], &fd, 1);
    not_sent(fd);
    pid_t heir = start(FORK, "waits", env);
    wait_for(heir);
    close(now[1]);
    wait_for(child);
    close(fd);
}
static void meanwhile_with_a(void) { meanwhile_a(environ); }
static void meanwhile_without_a(void) { meanwhile_a(without()); }
/* To oneself. */
static void self_a(void) {
    int unix_pair[2], fd = said_all();
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_pair));
    pass_and_close(unix_pair[0], fd);
    last(passed_one(unix_pair[1]));
}
/* More than are kept at once, each taken before the next comes. */
static void in_turn_a(void) {
    for (int i = 0; i < IN_TURN; i++)
        half_closed_a();
}

static void in_turn_b(void) {
    for (int i = 0; i < IN_TURN; i++)
        last_b();
}
const struct test tests[] = {{"half_closed", half_closed_a, last_b, 0},
                             {"half_closed_kept", kept_a, last_b, 0},
                             {"half_closed_left", left_a, left_b, 0},
                             {"half_closed_program", program_a, last_b, 0},
                             {"half_closed_twice", twice_a, last_b, 0},
                             {"half_closed_not_sent", not_sent_a, last_b, 0},
                             {"half_closed_meanwhile_with", meanwhile_with_a, last_b, 0},
                             {"half_closed_meanwhile_without", meanwhile_without_a, last_b, 0},
                             {"half_closed_self", self_a, last_b, 0},
                             {"half_closed_in_turn", in_turn_a, in_turn_b, 0},
                             {"half_closed_ahead", ahead_a, last_ahead_b, 0},
                             {"half_closed_before", before_a, before_read_b, COLD | SWITCHES},
                             {"closed", closed_a, closed_b, 0},
                             {"without", without_a, left_b, 0},
                             {"executed", executed, executed, ROLE},
                             {0}};
