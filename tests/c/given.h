/* Owns: how a case gives descriptors away: to this program again in another role, with the library or without, and by
 * messages over a Unix socket. */
#ifndef GIVEN_H
#define GIVEN_H
#include "case.h"

extern char **environ;

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
static inline void exec_self(const char *role, char **env) {
    char self[200], set[100];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n] = 0;
    snprintf(set, sizeof set, "EXEC_ROLE=%s", role);
    char *e[501] = {set};
    for (int from = 0, to = 1; env[from] && to < 500; from++)
        if (strncmp(env[from], "EXEC_ROLE=", 10))
            e[to++] = env[from];
    execve(self, (char *[]){self, "executed", is_a ? "a" : "b", NULL}, e);
    die("execve");
}

/* One message with so many descriptors, at most 8. */
static inline void pass(int over, const int *fds, int count) {
    char c = (char)count, control[CMSG_SPACE(sizeof(int) * 8)] = {0};
    struct iovec v = {&c, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(h), fds, sizeof(int) * count);
    MUST(sendmsg(over, &m, 0));
}
static inline void passed(int over, int *fds, int count) {
    char c, control[CMSG_SPACE(sizeof(int) * 8)];
    struct iovec v = {&c, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(over, &m, 0) != 1 || c != count || !CMSG_FIRSTHDR(&m))
        die("passed");
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int) * count);
}
static inline int passed_one(int over) {
    int fd;
    passed(over, &fd, 1);
    return fd;
}
#endif
