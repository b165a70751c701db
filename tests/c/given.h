/* Owns: how a case gives descriptors away: to this program again in another role, with the library or without, and by
 * messages over a Unix socket. */
#ifndef GIVEN_H
#define GIVEN_H
#include "case.h"
#include <dlfcn.h>
#include <spawn.h>

extern char **environ;

/* A connection whose sender has gone to TCP by itself, since nobody reads. */
static inline int ahead(void) {
    int fd = conn();
    meet();
    wait_for_spill(fd);
    settle();
    return fd;
}

/* The environment without the library, if it has it. */
static inline char **without(void) {
    static char *e[500];
    int n = 0;
    for (char **v = environ; *v && n < 499; v++)
        if (strncmp(*v, "LD_PRELOAD=", 11))
            e[n++] = *v;
    e[n] = NULL;
    return e;
}

/* This program again, in the role that EXEC_ROLE says: its case "executed", at the same side. */
struct again {
    char self[200], set[100], *args[4], *env[502];
};
static inline const struct again *again(const char *role, char **env) {
    static struct again a;
    memset(&a, 0, sizeof a);
    MUST(readlink("/proc/self/exe", a.self, sizeof a.self - 1));
    snprintf(a.set, sizeof a.set, "EXEC_ROLE=%s", role);
    memcpy(a.args, (char *[]){a.self, "executed", is_a ? "a" : "b", NULL}, sizeof a.args);
    a.env[0] = a.set;
    for (int from = 0, to = 1; env[from] && to < 500; from++)
        if (strncmp(env[from], "EXEC_ROLE=", 10))
            a.env[to++] = env[from];
    return &a;
}
static inline void exec_self(const char *role, char **env) {
    const struct again *a = again(role, env);
    execve(a->self, a->args, a->env);
    die("execve");
}
/* The same beside this one. */
enum how { FORK, VFORK, SPAWN, SPAWN_PIDFD /* with a glibc before 2.39 as SPAWN */ };
static inline pid_t spawned_by_pidfd(const struct again *a) {
    int fd;
    int (*spawn)(int *, const char *, const void *, const void *, char *const[], char *const[]) = dlsym(RTLD_DEFAULT, "pidfd_spawn");
    pid_t (*number)(int) = dlsym(RTLD_DEFAULT, "pidfd_getpid");
    if (!number)
        return 0;
    if (spawn(&fd, a->self, NULL, NULL, a->args, a->env) != 0)
        die("pidfd_spawn");
    pid_t child = MUST(number(fd));
    close(fd);
    return child;
}
static inline pid_t start(enum how how, const char *role, char **env) {
    const struct again *a = again(role, env);
    pid_t child = how == SPAWN_PIDFD ? spawned_by_pidfd(a) : 0;
    if (child)
        return child;
    if (how == SPAWN || how == SPAWN_PIDFD) {
        if (posix_spawn(&child, a->self, NULL, NULL, a->args, a->env) != 0)
            die("posix_spawn");
        return child;
    }
    child = how == FORK ? fork() : vfork();
    if (child == 0) {
        execve(a->self, a->args, a->env);
        _exit(127);
    }
    return MUST(child);
}

/* One message with so many descriptors, at most 8: sent, and received. */
static inline ssize_t send_fds(int over, const int *fds, int count, int flags) {
    char c = (char)count, control[CMSG_SPACE(sizeof(int) * 8)] = {0};
    struct iovec v = {&c, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(h), fds, sizeof(int) * count);
    return sendmsg(over, &m, flags);
}
static inline void pass(int over, const int *fds, int count) { MUST(send_fds(over, fds, count, 0)); }
static inline void receive_fds(int over, int *fds, int count, int flags) {
    char c, control[CMSG_SPACE(sizeof(int) * 8)];
    struct iovec v = {&c, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(over, &m, flags) != 1 || c != count || !CMSG_FIRSTHDR(&m))
        die("passed");
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int) * count);
}
static inline void passed(int over, int *fds, int count) { receive_fds(over, fds, count, 0); }
static inline int passed_one(int over) {
    int fd;
    passed(over, &fd, 1);
    return fd;
}

/* A relative from before there was a connection; it receives one, and does this. */
static inline pid_t relative(int *over, void (*use)(int fd)) {
    int unix_pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_pair));
    pid_t child = MUST(fork());
    if (child == 0) {
        use(passed_one(unix_pair[1]));
        _exit(0);
    }
    close(unix_pair[1]);
    *over = unix_pair[0];
    return child;
}

enum { MESSAGES = 11 }; /* where a helper finds its end of the Unix socket pair */

/* A program that is no relative any more; its end of the pair is under MESSAGES. */
static inline pid_t helper(const char *role, char **env, int *over) {
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    pid_t child = MUST(fork());
    if (child == 0) {
        MUST(dup2(pair[1], MESSAGES));
        exec_self(role, env);
    }
    close(pair[1]);
    *over = pair[0];
    return child;
}
#endif
