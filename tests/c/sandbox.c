/* Owns: programs that restrict their own system calls after the start, as OpenSSH and others do:
 * what was accelerated goes on, what is new stays on TCP, and no call is tried just to see. */
#include "given.h"
#include <grp.h>
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
    meet_settled();
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
    meet_settled();
    long before = lo_bytes();
    put_stream(fd, 3 * MIB, 1);
    get_stream(fd, 3 * MIB, 2);
    warmed(6 * MIB, lo_bytes() - before); /* under the filter it is in memory as before */
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

/* As sshd's child that authenticates: another user, and no calls but those that it makes itself; forked at every stage of
 * the connection's way to memory. Its parent goes on with the connection when the child has ended. */
static void confine_self(void) {
    static const int allowed[] = {SYS_read, SYS_write, SYS_close, SYS_exit, SYS_exit_group, SYS_futex, SYS_getpid, SYS_getrandom,
                                  SYS_clock_gettime, SYS_gettimeofday, SYS_poll, SYS_ppoll, SYS_select, SYS_pselect6,
                                  SYS_rt_sigprocmask, SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_madvise, SYS_shutdown,
                                  SYS_nanosleep, SYS_clock_nanosleep, SYS_getuid};
    if (setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0)
        (void)!setresuid(65534, 65534, 65534);
    len = 0;
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    for (unsigned i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        add(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], 0, 1);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    }
    add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0);
    struct sock_fprog program = {len, code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}
static void serve_some(int fd, int times) {
    for (int i = 0; i < times; i++) {
        ssize_t n = read(fd, buf, 100);
        if (n != 100 || write(fd, buf, n) != n)
            die("serve");
    }
}
enum { STAGES = 24, BY_CHILD = 60, BY_PARENT = 60 };
static void stages_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < STAGES; i++) {
        int fd = accept_from(l);
        serve_some(fd, i / 2);
        usleep(i % 2 ? 3000 : 0);
        pid_t child = fork();
        if (child == 0) {
            confine_self();
            serve_some(fd, BY_CHILD);
            syscall(SYS_exit_group, 0);
        }
        wait_for(child);
        serve_some(fd, BY_PARENT);
        R(read(fd, buf, 1));
        close(fd);
    }
    meet();
}
static void stages_b(void) {
    meet();
    for (int i = 0; i < STAGES; i++) {
        int fd = dial(PORT);
        for (int k = 0; k < i / 2 + BY_CHILD + BY_PARENT; k++) {
            fill(buf, 100, k, i);
            put(fd, buf, 100);
            if (get(fd, buf + 100, 100) != 100 || memcmp(buf, buf + 100, 100))
                die("another answer");
        }
        close(fd);
    }
    meet();
}

/* A program that has no relatives, and permits itself what it does from now on and nothing else: it takes a connection,
 * serves some of it, confines itself, and serves the rest. Started anew for each stage. */
enum { LISTENER = 20 };
static void permit(const int *calls, unsigned n, int strict) {
    len = 0;
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    for (unsigned i = 0; i < n; i++) {
        add(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    }
    add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0);
    struct sock_fprog program = {len, code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (strict)
        MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
    else
        MUST((int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}
static void serve_by_send(int fd, int times) {
    for (int i = 0; i < times; i++) {
        ssize_t n = recv(fd, buf, 100, 0);
        if (n != 100 || send(fd, buf, n, 0) != n)
            die("serve");
    }
}
static void serve_by_epoll(int fd, int ep, int times) {
    for (int i = 0; i < times;) {
        struct epoll_event e;
        if (epoll_wait(ep, &e, 1, -1) != 1)
            die("epoll_wait");
        ssize_t n = read(fd, buf, 100);
        if (n < 0 && errno == EAGAIN)
            continue;
        if (n != 100 || write(fd, buf, n) != n)
            die("serve");
        i++;
    }
}
static void serve_by_poll(int fd, int times) {
    for (int i = 0; i < times; i++) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, -1) != 1)
            die("poll");
        serve_some(fd, 1);
    }
}
static void confined(void) {
    static const int by_read[] = {SYS_read, SYS_write, SYS_exit_group};
    static const int by_send[] = {SYS_recvfrom, SYS_sendto, SYS_exit_group};
    static const int by_poll[] = {SYS_read, SYS_write, SYS_poll, SYS_exit_group};
    static const int by_epoll[] = {SYS_read, SYS_write, SYS_epoll_wait, SYS_exit_group};
    int way, before;
    if (!getenv("EXEC_ROLE"))
        return;
    MUST(sscanf(getenv("EXEC_ROLE"), "%d %d", &way, &before) - 2);
    int fd = is_a ? accept_from(LISTENER) : dial(PORT), ep = MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {0}};
    if (way == 3) {
        nonblocking(fd, 1);
        MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
        serve_by_epoll(fd, ep, before / 2);
    } else {
        serve_some(fd, before / 2);
    }
    usleep(before % 2 ? 3000 : 0);
    if (way == 0 || way == 4)
        permit(by_read, 3, way == 4);
    else if (way == 1)
        permit(by_send, 3, 0);
    else if (way == 2)
        permit(by_poll, 4, 0);
    else
        permit(by_epoll, 4, 0);
    if (way == 0 || way == 4)
        serve_some(fd, BY_CHILD);
    else if (way == 1)
        serve_by_send(fd, BY_CHILD);
    else if (way == 2)
        serve_by_poll(fd, BY_CHILD);
    else
        serve_by_epoll(fd, ep, BY_CHILD);
    raw(way == 4 ? SYS_exit : SYS_exit_group, 0, 0, 0, 0, 0, 0);
}
static const int moments[] = {0, 1, 4, 5, 8, 12, 13, 16, 17, 20, 40, 41, 200, 201};
enum { MOMENTS = sizeof moments / sizeof *moments };
static void alone(int way) {
    if (is_a)
        MUST(dup2(listen_on(PORT), LISTENER));
    meet();
    for (int i = 0; i < MOMENTS; i++) {
        pid_t child = fork();
        if (child == 0) {
            char role[20];
            sprintf(role, "%d %d", way, moments[i]);
            exec_self(role, environ);
        }
        wait_for(child);
    }
    meet();
}
static void ask(void) {
    int l = is_a ? listen_on(PORT) : -1;
    meet();
    for (int i = 0; i < MOMENTS; i++) {
        int fd = is_a ? accept_from(l) : dial(PORT);
        for (int k = 0; k < moments[i] / 2 + BY_CHILD; k++) {
            fill(buf, 100, k, i);
            put(fd, buf, 100);
            if (get(fd, buf + 100, 100) != 100 || memcmp(buf, buf + 100, 100))
                die("another answer");
        }
        R(recv(fd, buf, 1, 0));
        close(fd);
    }
    meet();
}
static void alone_by_read(void) { alone(0); }
static void alone_by_send(void) { alone(1); }
static void alone_by_poll(void) { alone(2); }
static void alone_by_epoll(void) { alone(3); }
static void alone_strictly(void) { alone(4); }

const struct test tests[] = {{"stages", stages_a, stages_b, COLD | SWITCHES},
                             {"by_prctl", by_prctl_a, client_b, 0},
                             {"by_syscall", by_syscall_a, client_b, 0},
                             {"executed", confined, confined, ROLE},
                             {"alone_by_read", alone_by_read, ask, COLD | SWITCHES},
                             {"alone_by_send", alone_by_send, ask, COLD | SWITCHES},
                             {"alone_by_poll", alone_by_poll, ask, COLD | SWITCHES},
                             {"alone_by_epoll", alone_by_epoll, ask, COLD | SWITCHES},
                             {"alone_strictly", alone_strictly, ask, COLD | SWITCHES},
                             {"connecting_by_read", ask, alone_by_read, COLD | SWITCHES},
                             {"connecting_by_epoll", ask, alone_by_epoll, COLD | SWITCHES},
                             {0}};
