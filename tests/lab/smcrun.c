/* Preloaded into a TCP program in a guest, to give it the kernel's SMC: AF_SMC for AF_INET, as smc_run does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>

int socket(int family, int kind, int protocol)
{
    static int (*next)(int, int, int);
    if (!next)
        next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    if (family == AF_INET && (kind & 0xf) == SOCK_STREAM && (protocol == 0 || protocol == 6))
        return next(43, kind, 0);
    return next(family, kind, protocol);
}
