/* Owns: programs that are started by vfork, where the child runs in the parent's memory: with a connection as
 * stdin and stdout, under its own number, and with nothing of it; what the parent has goes on. */
#include "case.h"
#include <sched.h>

static char buf[64 * KIB];
extern char **environ;

enum { AT = 7 }; /* where a program finds a connection that is not its stdin */
enum { WITH, WITHOUT };

/* The environment, without the library where it is asked for. */
static char **surroundings(int kind) {
    static char *e[500];
    int n = 0;
    for (char **v = environ; *v && n < 499; v++)
        if (kind == WITH || strncmp(*v, "LD_PRELOAD=", 11))
            e[n++] = *v;
    e[n] = NULL;
    return e;
}

static char *const cat[] = {"cat", NULL}, *const head[] = {"head", "-c", "1000", NULL};
static char *const hello[] = {"echo", "hello", NULL};
static char *const cat_at[] = {"sh", "-c", "exec cat <&7 >&7", NULL};

/* Child: the connection as stdin and stdout. */
__attribute__((noreturn)) static void become(int fd, char *const args[], char **env) {
    if (dup2(fd, 0) != 0 || dup2(0, 1) != 1 || close(fd) != 0)
        _exit(126);
    execvpe(args[0], args, env);
    _exit(127);
}

/* The program gets the connection, alone. */
static void alone_a(int kind) {
    int fd = conn();
    char **env = surroundings(kind);
    echo(fd, "before", 1);
    pid_t child = vfork();
    if (child == 0)
        become(fd, cat, env);
    close(fd);
    wait_for(child);
    meet();
}
static void alone_with_a(void) { alone_a(WITH); }
static void alone_without_a(void) { alone_a(WITHOUT); }
static void through_cat_b(void) {
    int fd = conn();
    put(fd, buf, get(fd, buf, 20000));
    echo(fd, "through cat", 2);
    fill(buf, 60000, 0, 3);
    put(fd, buf, 60000);
    R(shutdown(fd, SHUT_WR));
    got(fd, buf, sizeof buf, 0, 3);
    meet();
}

/* As clone(2) has it, which some programs call for this instead. */
static int cloned_fd;
static int cloned(void *env) { become(cloned_fd, cat, env); }
static void clone_a(void) {
    static char stack[256 * KIB] __attribute__((aligned(16)));
    cloned_fd = conn();
    echo(cloned_fd, "before", 1);
    pid_t child = MUST(clone(cloned, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, surroundings(WITHOUT)));
    close(cloned_fd);
    wait_for(child);
    meet();
}

/* Bytes have come that nobody has read. */
static void unread_a(void) {
    int fd = conn();
    char **env = surroundings(WITHOUT);
    meet_settled();
    got(fd, buf, 10000, 0, 5);
    pid_t child = vfork();
    if (child == 0)
        become(fd, cat, env);
    close(fd);
    wait_for(child);
}
static void unread_b(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    meet();
    got(fd, buf, 20000, 10000, 5);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}

/* The parent goes on with it afterwards. */
static void turns_a(void) {
    int fd = conn();
    echo(fd, "before", 1);
    for (int kind = WITH; kind <= WITHOUT; kind++) {
        char **env = surroundings(kind);
        pid_t child = vfork();
        if (child == 0)
            become(fd, head, env);
        wait_for(child);
    }
    echo(fd, "after", 4);
    R(close(fd));
    meet();
}
static void turns_b(void) {
    int fd = conn();
    put(fd, buf, get(fd, buf, 20000));
    for (int i = 0; i < 2; i++) {
        fill(buf, 1000, 0, 2 + i);
        put(fd, buf, 1000);
        got(fd, buf, 1000, 0, 2 + i);
    }
    echo_until_end(fd);
    meet();
}

/* The same by clone, whose child closes and duplicates in its parent's memory. */
static int turn(void *args) { become(cloned_fd, head, args); }
static void clone_turns_a(void) {
    static char stack[256 * KIB] __attribute__((aligned(16)));
    cloned_fd = conn();
    echo(cloned_fd, "before", 1);
    for (int kind = WITH; kind <= WITHOUT; kind++)
        wait_for(MUST(clone(turn, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, surroundings(kind))));
    echo(cloned_fd, "after", 4);
    R(close(cloned_fd));
    meet();
}

/* Under its own number: the child takes the mark off that would close it. */
static void kept_a(int kind, int by_fork) {
    int fd = conn();
    char **env = surroundings(kind);
    MUST(dup3(fd, AT, O_CLOEXEC));
    close(fd);
    echo(AT, "before", 1);
    pid_t child = by_fork ? fork() : vfork();
    if (child == 0) {
        if (fcntl(AT, F_SETFD, 0) < 0)
            _exit(126);
        execvpe(cat_at[0], cat_at, env);
        _exit(127);
    }
    close(AT);
    wait_for(child);
    meet();
}
static void kept_with_a(void) { kept_a(WITH, 0); }
static void kept_without_a(void) { kept_a(WITHOUT, 0); }
static void kept_fork_with_a(void) { kept_a(WITH, 1); }
static void kept_fork_without_a(void) { kept_a(WITHOUT, 1); }
/* The parent does, before it starts the program. */
static void marked_a(int by_fork) {
    int fd = conn();
    char **env = surroundings(WITHOUT);
    MUST(dup3(fd, AT, O_CLOEXEC));
    close(fd);
    echo(AT, "before", 1);
    MUST(fcntl(AT, F_SETFD, 0));
    pid_t child = by_fork ? fork() : vfork();
    if (child == 0) {
        execvpe(cat_at[0], cat_at, env);
        _exit(127);
    }
    close(AT);
    wait_for(child);
    meet();
}
static void marked_vfork_a(void) { marked_a(0); }
static void marked_fork_a(void) { marked_a(1); }

/* Children that arrange their descriptors and have nothing to do with the connection: its number becomes
 * something else, everything is closed. It stays where it is. */
static void beside_a(void) {
    int fd = conn(), ends[2];
    char **env = surroundings(WITH);
    for (int i = 0; i < 40; i++) {
        MUST(pipe(ends));
        pid_t child = vfork();
        if (child == 0) {
            if (dup2(ends[1], fd) != fd || dup2(fd, 1) != 1 || dup2(ends[0], 0) != 0)
                _exit(126);
            closefrom(3);
            execvpe(i % 2 ? "true" : "echo", hello, env);
            _exit(127);
        }
        close(ends[1]);
        if (read(ends[0], buf, 10) != (i % 2 ? 0 : 6))
            die("the child's words");
        close(ends[0]);
        int status;
        if (waitpid(child, &status, 0) != child || status)
            die("child");
        put_stream(fd, 128 * KIB, i);
        child = vfork();
        if (child == 0) {
            close(fd);
            _exit(3);
        }
        MUST(waitpid(child, NULL, 0));
    }
    echo(fd, "afterwards", 4);
    R(close(fd));
    meet();
}
static void beside_b(void) {
    int fd = conn();
    for (int i = 0; i < 40; i++)
        get_stream(fd, 128 * KIB, i);
    payload(40 * 128 * KIB);
    echo_until_end(fd);
    meet();
}

/* exec fails in the child: the parent has what it had. */
static void fails_a(void) {
    int fd = conn();
    pid_t child = vfork();
    if (child == 0) {
        execl("/nowhere", "nowhere", NULL);
        _exit(errno == ENOENT ? 5 : 6);
    }
    wait_for(child);
    echo(fd, "after", 4);
    R(close(fd));
    meet();
}
static void fails_b(void) {
    echo_until_end(conn());
    meet();
}

const struct test tests[] = {{"alone_with", alone_with_a, through_cat_b, 0},
                             {"alone_without", alone_without_a, through_cat_b, 0},
                             {"clone", clone_a, through_cat_b, 0},
                             {"unread", unread_a, unread_b, 0},
                             {"turns", turns_a, turns_b, 0},
                             {"clone_turns", clone_turns_a, turns_b, 0},
                             {"kept_with", kept_with_a, through_cat_b, 0},
                             {"kept_without", kept_without_a, through_cat_b, 0},
                             {"kept_fork_with", kept_fork_with_a, through_cat_b, 0},
                             {"kept_fork_without", kept_fork_without_a, through_cat_b, 0},
                             {"marked_vfork", marked_vfork_a, through_cat_b, 0},
                             {"marked_fork", marked_fork_a, through_cat_b, 0},
                             {"beside", beside_a, beside_b, WHOLE},
                             {"fails", fails_a, fails_b, 0},
                             {0}};
