/* Owns: programs that restrict their own system calls after the start, as OpenSSH and others do:
 * what was accelerated goes on, what is new stays on TCP, and no call is tried just to see. */
#include "case.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

static char buf[64 * KIB];

static struct sock_filter code[64];
static unsigned len;
static void add(unsigned short op, unsigned k, unsigned char yes, unsigned char no) {
    code[len++] = (struct sock_filter){op, yes, no, k};
}

/* Death on every call that sets something up. */
static void restrict_self(int by_syscall) {
    static const int fatal[] = {SYS_socket, SYS_socketpair, SYS_connect, SYS_bind, SYS_openat,
                                SYS_memfd_create, SYS_eventfd2, SYS_epoll_create1, SYS_pipe2,
                                SYS_clone3, SYS_clone, SYS_execve, SYS_ptrace, SYS_kcmp,
                                SYS_pidfd_open, SYS_process_vm_readv, SYS_unlinkat};
    len = 0;
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    for (unsigned i = 0; i < sizeof fatal / sizeof *fatal; i++) {
        add(BPF_JMP | BPF_JEQ | BPF_K, fatal[i], 0, 1);
        add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0);
    }
    add(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3);
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * 3, 0, 0);
    add(BPF_JMP | BPF_JSET | BPF_K, MAP_SHARED, 0, 1);
    add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0);
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    struct sock_fprog program = {len, code};
    R(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (by_syscall)
        R(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    else
        R(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void serve(int by_syscall) {
    int l = listen_on(PORT);
    meet();
    int fd = accept_from(l);
    warm(fd);
    restrict_self(by_syscall);
    get_stream(fd, 3 * MIB, 1);
    put_stream(fd, 3 * MIB, 2);
    int next = accept_from(l);
    for (int i = 0; i < 300; i++) {
        if (get(next, buf, 1000) != 1000)
            die("second connection");
        put(next, buf, 1000);
    }
    get_stream(next, MIB, 3);
    get_stream(fd, MIB, 4);
    R(close(next));
    R(recv(fd, buf, 1, 0));
    R(close(fd));
}
static void by_prctl_a(void) { serve(0); }
static void by_syscall_a(void) { serve(1); }
static void client_b(void) {
    meet();
    int fd = dial(PORT);
    warm(fd);
    put_stream(fd, 3 * MIB, 1);
    get_stream(fd, 3 * MIB, 2);
    int next = dial(PORT);
    for (int i = 0; i < 300; i++) {
        put(next, buf, 1000);
        if (get(next, buf, 1000) != 1000)
            die("second connection");
    }
    put_stream(next, MIB, 3);
    put_stream(fd, MIB, 4);
    R(recv(next, buf, 1, 0));
    R(close(fd));
}

const struct test tests[] = {{"by_prctl", by_prctl_a, client_b, 0},
                             {"by_syscall", by_syscall_a, client_b, 0},
                             {0}};
