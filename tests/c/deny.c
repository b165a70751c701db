/* Owns: running a program on a system that lacks something:
 *   deny WHAT PROGRAM ARG...
 * WHAT: memfd, netlink, unix, eventfd, mapping (shared mappings). */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct sock_filter code[16];
static unsigned len;
static void add(unsigned short op, unsigned k, unsigned char yes, unsigned char no) {
    code[len++] = (struct sock_filter){op, yes, no, k};
}

/* The call fails with `error`, if its argument has a value (or bits, if `bits`), or always. */
static void deny(int call, int error, int arg, unsigned value, int bits) {
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    add(BPF_JMP | BPF_JEQ | BPF_K, call, 0, arg < 0 ? 1 : 3);
    if (arg >= 0) {
        add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * arg, 0, 0);
        add(BPF_JMP | (bits ? BPF_JSET : BPF_JEQ) | BPF_K, value, 0, 1);
    }
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error, 0, 0);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 125;
    const char *what = argv[1];
    if (!strcmp(what, "memfd"))
        deny(SYS_memfd_create, ENOSYS, -1, 0, 0);
    else if (!strcmp(what, "netlink"))
        deny(SYS_socket, EAFNOSUPPORT, 0, AF_NETLINK, 0);
    else if (!strcmp(what, "unix"))
        deny(SYS_socket, EAFNOSUPPORT, 0, AF_UNIX, 0);
    else if (!strcmp(what, "eventfd"))
        deny(SYS_eventfd2, EMFILE, -1, 0, 0);
    else if (!strcmp(what, "mapping"))
        deny(SYS_mmap, ENOMEM, 3, MAP_SHARED, 1);
    else
        return 125;
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    struct sock_fprog program = {len, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        return 125;
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 125;
}
