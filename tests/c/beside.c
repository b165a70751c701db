/* Owns: programs that are started beside a connection, which they inherit and do not use, or not yet, while the other end makes no call (it is
 * stopped) or has said its last word: natively nothing happens to the connection, and what lies unread is there to be read. */
#include "silent.h"

static void executed(void) {
    int fd, turn;
    if (sscanf(getenv("EXEC_ROLE"), "reads %d %d", &fd, &turn) == 2 && read(turn, buf, 1) == 1) {
        got(fd, buf, 20000, 10000, 5);
        got(fd, buf, 10000, 0, 6);
    }
}

enum { SYSTEM = SPAWN_PIDFD + 1, POPEN, SPAWN_WITH /* the library */ };
static void run(int how) {
    if (how == SYSTEM) {
        say("system %d", system("exit 7") >> 8);
    } else if (how == POPEN) {
        FILE *f = popen("echo hello", "r");
        say("popen %s", f && fgets(buf, 6, f) ? buf : "nothing");
        pclose(f);
    } else {
        wait_for(start(how == SPAWN_WITH ? SPAWN : how, "nothing", how == SPAWN_WITH ? environ : without()));
    }
}

static void what_set(int set, const char *when) {
    struct epoll_event e = {0};
    int n = epoll_wait(set, &e, 1, 2000);
    say("%s: %d %s", when, n, epoll_text(e.events));
}
static int set_of(int fd) {
    int set = MUST(epoll_create1(0));
    struct epoll_event e = {.events = EPOLLIN};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    what_set(set, "before");
    return set;
}

static void silent_a(int how) {
    int fd = conn(), set;
    pid_t peer = stop();
    set = set_of(fd);
    run(how);
    what_set(set, "beside");
    say("%d there", now_in(fd));
    got(fd, buf, 10000, 0, 5);
    run(how);
    what_set(set, "beside");
    got(fd, buf, 20000, 10000, 5);
    go_on(fd, peer);
}
static void silent_b(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    tell_pid(getpid());
    echo_until_end(fd);
    meet();
}
static void silent_fork(void) { silent_a(FORK); }
static void silent_vfork(void) { silent_a(VFORK); }
static void silent_spawn(void) { silent_a(SPAWN); }
static void silent_pidfd(void) { silent_a(SPAWN_PIDFD); }
static void silent_system(void) { silent_a(SYSTEM); }
static void silent_popen(void) { silent_a(POPEN); }

/* Nobody reads until it goes on: all of it comes, once. */
static void later_a(void) {
    int fd = conn();
    pid_t peer = stop();
    run(SPAWN);
    MUST(kill(peer, SIGCONT));
    meet();
    got(fd, buf, 30000, 0, 5);
    say("%d more", now_in(fd));
    echo(fd, "afterwards", 2);
    close(fd);
    meet();
}
static void later_b(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    tell_pid(getpid());
    meet();
    echo_until_end(fd);
    meet();
}

/* This end reads a part, and the program what is left, and what comes then. */
static void used_a(char **env) {
    int fd = conn(), turn[2];
    char role[40];
    pid_t peer = stop();
    MUST(pipe(turn));
    sprintf(role, "reads %d %d", fd, turn[0]);
    pid_t child = start(SPAWN, role, env);
    got(fd, buf, 10000, 0, 5);
    MUST(kill(peer, SIGCONT));
    meet();
    MUST(write(turn[1], "", 1));
    wait_for(child);
    echo(fd, "afterwards", 2);
    close(fd);
    meet();
}
static void used_b(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    tell_pid(getpid());
    meet();
    fill(buf, 10000, 0, 6);
    put(fd, buf, 10000);
    echo_until_end(fd);
    meet();
}
static void used_with(void) { used_a(environ); }
static void used_without(void) { used_a(without()); }

/* It does not go on. */
static void killed_a(void) {
    int fd = conn();
    pid_t peer = stop();
    run(SPAWN);
    MUST(kill(peer, SIGKILL));
    settle();
    got(fd, buf, 30000, 0, 5);
    R(recv(fd, buf, 1, 0));
}

/* The most of it has come through TCP, before the connection moved to memory. */
static void before_a(int how) {
    int fd = conn_cold();
    trickle(fd);
    pid_t peer = stop();
    run(how);
    got_before(fd, 10000);
    go_on(fd, peer);
}
static void silent_before_b(void) {
    int fd = begins_on_tcp(10000);
    tell_pid(getpid());
    echo_until_end(fd);
    meet();
}
static void before_fork(void) { before_a(FORK); }
static void before_spawn(void) { before_a(SPAWN); }

/* It has gone back to TCP by itself behind what nobody reads. */
static void ahead_a(int how) {
    int fd = ahead();
    pid_t peer = stop();
    run(how);
    got(fd, whole, SOME, 0, 5);
    go_on(fd, peer);
}
static void ahead_fork(void) { ahead_a(FORK); }
static void ahead_spawn(void) { ahead_a(SPAWN); }

static void last_a(int how) {
    int fd = said_all();
    run(how);
    got(fd, buf, 30000, 0, 5);
    answer(fd);
    close(fd);
}
static void last_spawn(void) { last_a(SPAWN); }
static void last_vfork(void) { last_a(VFORK); }
static void last_before_a(int how) {
    int fd = came_before();
    run(how);
    before(fd);
    close(fd);
}
static void last_before_fork(void) { last_before_a(FORK); }
static void last_before_vfork(void) { last_before_a(VFORK); }
static void last_before_spawn(void) { last_before_a(SPAWN); }
static void last_before_spawn_with(void) { last_before_a(SPAWN_WITH); }

const struct test tests[] = {{"silent_fork", silent_fork, silent_b, 0},
                             {"silent_vfork", silent_vfork, silent_b, 0},
                             {"silent_spawn", silent_spawn, silent_b, 0},
                             {"silent_pidfd_spawn", silent_pidfd, silent_b, 0},
                             {"silent_system", silent_system, silent_b, 0},
                             {"silent_popen", silent_popen, silent_b, 0},
                             {"silent_later", later_a, later_b, 0},
                             {"silent_used_with", used_with, used_b, 0},
                             {"silent_used_without", used_without, used_b, 0},
                             {"silent_killed", killed_a, silent_b, 0},
                             {"silent_before_fork", before_fork, silent_before_b, COLD | SWITCHES},
                             {"silent_before_spawn", before_spawn, silent_before_b, COLD | SWITCHES},
                             {"silent_ahead_fork", ahead_fork, ahead_b, 0},
                             {"silent_ahead_spawn", ahead_spawn, ahead_b, 0},
                             {"last_spawn", last_spawn, last_b, 0},
                             {"last_vfork", last_vfork, last_b, 0},
                             {"last_before_fork", last_before_fork, before_read_b, COLD | SWITCHES},
                             {"last_before_vfork", last_before_vfork, before_read_b, COLD | SWITCHES},
                             {"last_before_spawn", last_before_spawn, before_read_b, COLD | SWITCHES},
                             {"last_before_spawn_with", last_before_spawn_with, before_read_b, COLD | SWITCHES},
                             {"executed", executed, executed, ROLE},
                             {0}};
