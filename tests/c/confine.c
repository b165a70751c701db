/* Owns: running a program under what Debian's redis-server.service asks systemd for:
 *   confine [-d DATA] [-l LIBRARY AS] [-x PATH] [-n] UID PROGRAM ARG...
 * a user namespace in which only root and UID exist (PrivateUsers), no capabilities, no address
 * families but Unix and Internet (RestrictAddressFamilies), no new namespaces, no writable and
 * executable memory, no other personality, no set-user-ID files (RestrictSUIDSGID), UMask and
 * LimitNOFILE, and death on any call outside @system-service (SystemCallFilter). For root, where UID is
 * not 0, the files as well (confine_view.c): DATA is /var/lib/redis, LIBRARY is preloaded as AS, ExecPaths
 * has PATH. UID 0 is for who is root in a user namespace alone, where neither files nor users can be made.
 * -n leaves it AF_NETLINK too, as docs/operating.md says for units that make connections.
 * Not done: what only systemd has, as its notify socket, and what it takes away when the unit stops. */
#define _GNU_SOURCE
#include "confine.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __x86_64__
#define ARCH AUDIT_ARCH_X86_64

/* What systemd 252 does not leave to a service with @system-service, ~@privileged, ~@resources. */
static const unsigned short refused[] = {
    SYS_mincore, SYS_chown, SYS_fchown, SYS_lchown, SYS_ptrace, SYS_syslog, SYS_setuid,
    SYS_setreuid, SYS_setgroups, SYS_setresuid, SYS_setfsuid, SYS_capset, SYS_uselib, SYS_ustat,
    SYS_sysfs, SYS_setpriority, SYS_sched_setparam, SYS_sched_setscheduler, SYS_vhangup,
    SYS_modify_ldt, SYS_pivot_root, SYS__sysctl, SYS_adjtimex, SYS_setrlimit, SYS_chroot, SYS_acct,
    SYS_settimeofday, SYS_mount, SYS_umount2, SYS_swapon, SYS_swapoff, SYS_reboot, SYS_sethostname,
    SYS_setdomainname, SYS_iopl, SYS_ioperm, SYS_init_module, SYS_delete_module, SYS_quotactl,
    SYS_sched_setaffinity, SYS_lookup_dcookie, SYS_clock_settime, SYS_mbind, SYS_set_mempolicy,
    SYS_kexec_load, SYS_ioprio_set, SYS_migrate_pages, SYS_fchownat, SYS_move_pages,
    SYS_perf_event_open, SYS_fanotify_init, SYS_fanotify_mark, SYS_open_by_handle_at,
    SYS_clock_adjtime, SYS_finit_module, SYS_sched_setattr, SYS_seccomp, SYS_kexec_file_load,
    SYS_bpf, SYS_pkey_mprotect, SYS_pkey_alloc, SYS_pkey_free, SYS_open_tree, SYS_move_mount,
    SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_pidfd_getfd, SYS_mount_setattr,
    SYS_quotactl_fd, SYS_landlock_create_ruleset, SYS_landlock_add_rule, SYS_landlock_restrict_self,
    SYS_memfd_secret, SYS_process_mrelease, 450 /* set_mempolicy_home_node */,
};
enum { LAST_KNOWN = 450, MOST = 600 };

static struct sock_filter code[MOST];
static unsigned len;
static void add(unsigned short op, unsigned k, unsigned char yes, unsigned char no) {
    code[len++] = (struct sock_filter){op, yes, no, k};
}
static void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0); }
static void give(unsigned what) { add(BPF_RET | BPF_K, what, 0, 0); }
static void if_equal(unsigned k, unsigned char yes, unsigned char no) {
    add(BPF_JMP | BPF_JEQ | BPF_K, k, yes, no);
}
#define ARG(n) (offsetof(struct seccomp_data, args) + 8 * (n))
#define NUMBER offsetof(struct seccomp_data, nr)

/* For one call: refuse with EPERM if an argument has one of these bits. */
static void no_bits(unsigned call, int arg, unsigned bits) {
    load(NUMBER);
    if_equal(call, 0, 3);
    load(ARG(arg));
    add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    give(SECCOMP_RET_ERRNO | EPERM);
}

/* The same for a mode, behind flags that say whether it counts. */
static void no_bits_in_new(unsigned call, int flags) {
    load(NUMBER);
    if_equal(call, 0, 5);
    load(ARG(flags));
    add(BPF_JMP | BPF_JSET | BPF_K, O_CREAT, 0, 3);
    load(ARG(flags + 1));
    add(BPF_JMP | BPF_JSET | BPF_K, S_ISUID | S_ISGID, 0, 1);
    give(SECCOMP_RET_ERRNO | EPERM);
}
static void never(unsigned call, int error) {
    load(NUMBER);
    if_equal(call, 0, 1);
    give(SECCOMP_RET_ERRNO | error);
}

static void build(int netlink) {
    load(offsetof(struct seccomp_data, arch));
    if_equal(ARCH, 1, 0);
    give(SECCOMP_RET_KILL_PROCESS);
    load(NUMBER);
    add(BPF_JMP | BPF_JGT | BPF_K, LAST_KNOWN, 0, 1);
    give(SECCOMP_RET_KILL_PROCESS);
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        if_equal(refused[i], 0, 1);
        give(SECCOMP_RET_KILL_PROCESS);
    }
    if_equal(SYS_clone3, 0, 1);
    give(SECCOMP_RET_ERRNO | ENOSYS);
    /* address families */
    if_equal(SYS_socket, 0, 6);
    load(ARG(0));
    if_equal(AF_UNIX, 4, 0);
    if_equal(AF_INET, 3, 0);
    if_equal(AF_INET6, 2, 0);
    if_equal(netlink ? AF_NETLINK : AF_UNIX, 1, 0);
    give(SECCOMP_RET_ERRNO | EAFNOSUPPORT);
    /* namespaces and memory */
    unsigned spaces = CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC |
                      CLONE_NEWUTS | CLONE_NEWCGROUP;
    no_bits(SYS_clone, 0, spaces);
    no_bits(SYS_unshare, 0, spaces);
    never(SYS_setns, EPERM);
    never(SYS_personality, EPERM);
    no_bits(SYS_mprotect, 2, PROT_EXEC);
    no_bits(SYS_shmat, 2, SHM_EXEC);
    load(NUMBER);
    if_equal(SYS_mmap, 0, 4);
    load(ARG(2));
    add(BPF_ALU | BPF_AND | BPF_K, PROT_WRITE | PROT_EXEC, 0, 0);
    if_equal(PROT_WRITE | PROT_EXEC, 0, 1);
    give(SECCOMP_RET_ERRNO | EPERM);
    /* files that give their owner's rights; what openat2 asks for a filter cannot see */
    static const unsigned short modes[][2] = {{SYS_chmod, 1},    {SYS_fchmod, 1}, {SYS_fchmodat, 2}, {SYS_mknod, 1},
                                              {SYS_mknodat, 2},  {SYS_mkdir, 1},  {SYS_mkdirat, 2},  {SYS_creat, 1}};
    for (unsigned i = 0; i < sizeof modes / sizeof *modes; i++)
        no_bits(modes[i][0], modes[i][1], S_ISUID | S_ISGID);
    no_bits_in_new(SYS_open, 1);
    no_bits_in_new(SYS_openat, 2);
    never(SYS_openat2, ENOSYS);
    give(SECCOMP_RET_ALLOW);
}
#endif

void fail(const char *what) {
    perror(what);
    exit(125);
}
static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fail(path);
    close(fd);
}

/* Only root can map two users; a helper outside the new namespace does it. */
static void own_users(unsigned uid) {
    int go[2], gone;
    if (pipe(go) < 0)
        fail("pipe");
    pid_t me = getpid(), helper = fork();
    if (helper == 0) {
        char c, path[60], map[60];
        close(go[1]);
        if (read(go[0], &c, 1) != 1)
            _exit(1);
        snprintf(map, sizeof map, "0 0 1\n%u %u 1\n", uid, uid);
        snprintf(path, sizeof path, "/proc/%d/uid_map", me);
        put(path, map);
        snprintf(path, sizeof path, "/proc/%d/gid_map", me);
        put(path, map);
        _exit(0);
    }
    if (unshare(CLONE_NEWUSER) < 0 || write(go[1], "g", 1) != 1)
        fail("unshare");
    waitpid(helper, &gone, 0);
    if (gone)
        exit(125);
    /* a new namespace begins with all */
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
            fail("capabilities");
    if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
        fail("setresuid");
}

int main(int argc, char **argv) {
    struct view view = {0};
    int netlink = 0;
    for (argv++; argv[0] && argv[0][0] == '-'; argv += 2) {
        switch (argv[0][1]) {
        case 'd': view.data = argv[1]; break;
        case 'x': view.executable = argv[1]; break;
        case 'l': view.library = argv[1], view.as = argv[2], argv++; break;
        case 'n': netlink = 1, argv--; break;
        default: return 125;
        }
    }
    if (!argv[0] || !argv[1])
        return 125;
    unsigned uid = atoi(argv[0]);
    view.program = argv[1];
    struct rlimit files = {65535, 65535};
    setrlimit(RLIMIT_NOFILE, &files); /* who is not root may have fewer */
    if (geteuid() == 0 && uid != 0) {
        own_view(&view);
        if (view.as && getenv("LD_PRELOAD"))
            setenv("LD_PRELOAD", view.as, 1);
        own_users(uid);
    }
    umask(007);
#ifdef __x86_64__
    build(netlink);
    struct sock_fprog program = {len, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        fail("seccomp");
#endif
    execv(argv[1], argv + 1);
    fail(argv[1]);
}
