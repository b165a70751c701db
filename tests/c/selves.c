/* Owns: a connection that a process of one thread has with itself, one end of which goes elsewhere, or back to TCP, with bytes unread: nobody
 * else is there to make a call at the other end, and the process makes none until that is through. */
#include "case.h"
#include "given.h"
#include <sched.h>

enum { LOTS = 20000, WARM = 400 };
static char buf[64 * KIB];
extern char **environ;
static char count_them[] = "head -c 20000 | cksum";
static char *const counts[] = {"sh", "-c", count_them, NULL};
static int near, far, from_child[2];

/* Both ends, warmed up. The far one has sent what the near one has not read. */
static void pair(void) {
    int l = listen_on(PORT);
    far = dial(PORT);
    near = accept_from(l);
    close(l);
    for (int i = 0; i < WARM; i++) {
        char c = 'w';
        put(far, &c, 1);
        get(near, &c, 1);
        put(near, &c, 1);
        get(far, &c, 1);
    }
    MUST(fcntl(near, F_SETFD, FD_CLOEXEC));
    MUST(fcntl(far, F_SETFD, FD_CLOEXEC));
    fill(buf, LOTS, 0, 1);
    put(far, buf, LOTS);
    MUST(pipe2(from_child, O_CLOEXEC));
}
static void goes_on(void) {
    for (int i = 0; i < 2; i++) {
        fill(buf, LOTS, 0, 3 + i);
        put(i ? near : far, buf, LOTS);
        got(i ? far : near, buf, LOTS, 0, 3 + i);
    }
}
static void over(void) {
    close(far);
    R(recv(near, buf, 1, 0));
    close(near);
    meet();
}
/* ---- a program has it as its stdin ---- */

__attribute__((noreturn)) static void become(int close_far, char **env) {
    if (close_far)
        close(far);
    if (dup2(near, 0) != 0 || dup2(from_child[1], 1) != 1)
        _exit(126);
    execvpe(counts[0], counts, env);
    _exit(127);
}
static char **the_env;
static int cloned(void *unused) { become(1, the_env); }

static void heard(pid_t child) {
    close(from_child[1]);
    ssize_t n = 0;
    for (ssize_t got = 1; got > 0; n += got)
        got = MUST(read(from_child[0], buf + n, sizeof buf - 1 - n));
    buf[n] = 0;
    say("the program: %s", buf);
    close(from_child[0]);
    wait_for(child);
}
static void forked(int closes, int with) {
    pair();
    char **env = with ? environ : without();
    pid_t child = MUST(fork());
    if (child == 0)
        become(closes, env);
    heard(child);
    goes_on();
    over();
}
static void forked_a(void) { forked(1, 0); }
static void forked_with_a(void) { forked(1, 1); }
static void forked_both_a(void) { forked(0, 0); }
static void vforked_a(void) {
    pair();
    char **env = without();
    pid_t child = vfork();
    if (child == 0)
        become(1, env);
    heard(child);
    goes_on();
    over();
}
static void cloned_a(void) {
    static char stack[256 * KIB] __attribute__((aligned(16)));
    pair();
    the_env = without();
    heard(MUST(clone(cloned, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL)));
    goes_on();
    over();
}
static void spawned_a(void) {
    pair();
    posix_spawn_file_actions_t acts;
    posix_spawn_file_actions_init(&acts);
    posix_spawn_file_actions_adddup2(&acts, near, 0);
    posix_spawn_file_actions_adddup2(&acts, from_child[1], 1);
    pid_t child;
    MUST(posix_spawnp(&child, counts[0], &acts, NULL, counts, without()));
    heard(child);
    goes_on();
    over();
}
/* Nothing lies unread: what is sent afterwards is the program's. */
static void nothing_a(void) {
    pair();
    got(near, buf, LOTS, 0, 1);
    pid_t child = MUST(fork());
    if (child == 0)
        become(1, without());
    close(near);
    fill(buf, LOTS, 0, 1);
    put(far, buf, LOTS);
    heard(child);
    R(recv(far, buf, 1, 0));
    close(far);
    meet();
}

/* ---- and by the process itself ---- */

static void reads(int fd) { got(fd, buf, LOTS, 0, 1); }
static void passed_a(void) {
    int over_it;
    pid_t child = relative(&over_it, reads);
    pair();
    pass(over_it, &near, 1);
    wait_for(child);
    goes_on();
    over();
}
static void to_itself_a(void) {
    int way[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, way));
    pair();
    pass(way[0], &near, 1);
    close(near);
    near = passed_one(way[1]);
    got(near, buf, LOTS, 0, 1);
    goes_on();
    over();
}
static void options_a(void) {
    pair();
    sol_int(near, SOL_SOCKET, SO_TIMESTAMP, 1);
    got(near, buf, LOTS, 0, 1);
    goes_on();
    over();
}
static void signals_a(void) {
    pair();
    R(fcntl(near, F_SETFL, O_ASYNC));
    R(fcntl(near, F_SETFL, 0));
    got(near, buf, LOTS, 0, 1);
    goes_on();
    over();
}
static void b(void) { meet(); }

#define CASE(name) {#name, name##_a, b, COLD | SWITCHES}
const struct test tests[] = {CASE(forked), CASE(forked_with), CASE(forked_both), CASE(vforked), CASE(cloned), CASE(spawned),
                             CASE(nothing), CASE(passed), CASE(to_itself), CASE(options), CASE(signals), {0}};
