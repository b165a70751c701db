/* Owns: select of more descriptors than there are: what it costs, and what it tells. */
#include "case.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <ucontext.h>

enum { MANY = 16384 };
typedef union {
    fd_set set;
    char all[MANY / 8];
} sets;
static char buf[100];

static int lists;
static void listed(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)info;
    lists++;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -EACCES;
}
/* From here on each look into a directory is counted, and refused. */
static void count_lists(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getdents64, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog p = {sizeof code / sizeof *code, code};
    struct sigaction act = {.sa_sigaction = listed, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGSYS, &act, NULL));
    MUST(raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0));
    MUST(raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&p, 0, 0, 0)); /* so that nobody takes it for a sandbox */
}

static void ask(int fd, int n) {
    static sets s;
    struct timeval t = {5, 0};
    memset(&s, 0, sizeof s);
    s.all[fd / 8] |= 1 << fd % 8;
    int r = select(n, &s.set, NULL, NULL, &t);
    say("select(%s) = %d, told: %d", n == fd + 1 ? "number + 1" : "many", r, s.all[fd / 8] >> fd % 8 & 1);
}
static void counted_a(void) {
    struct rlimit most = {MANY, MANY};
    int fd = conn(), high;
    R(setrlimit(RLIMIT_NOFILE, &most));
    high = MUST(fcntl(fd, F_DUPFD, 3000));
    meet();
    meet_settled();
    count_lists();
    for (int i = 0; i < 3; i++) {
        ask(fd, fd + 1);
        ask(fd, MANY);
        ask(high, high + 1);
        ask(high, MANY);
    }
    say("lists: %d", lists);
    R(recv(high, buf, 5, 0));
    meet();
}
static void counted_b(void) {
    int fd = conn();
    meet();
    put(fd, "fives", 5);
    meet_settled();
    meet();
}

/* Behind a small set lies something else, which is neither looked at nor changed. */
static void small_a(void) {
    static struct {
        fd_set set;
        unsigned char behind[MANY / 8];
    } s;
    struct timeval t = {0, 20000};
    int fd = conn(), wrong = 0;
    memset(s.behind, 0xa5, sizeof s.behind);
    for (int i = 0; i < 3; i++) {
        FD_ZERO(&s.set);
        FD_SET(fd, &s.set);
        if (i == 1) {
            meet();
            meet_settled();
        }
        R(select(MANY, &s.set, NULL, NULL, &t));
        R(FD_ISSET(fd, &s.set) != 0);
        for (size_t k = 0; k < sizeof s.behind; k++)
            wrong += s.behind[k] != 0xa5;
        if (i)
            t = (struct timeval){0};
        else
            t = (struct timeval){5, 0};
    }
    say("changed: %d", wrong);
    R(recv(fd, buf, 5, 0));
    meet();
}
static void small_b(void) { counted_b(); }

const struct test tests[] = {{"counted", counted_a, counted_b, 0}, {"small", small_a, small_b, 0}, {0}};
