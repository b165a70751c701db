/* Owns: TCP upper layer protocols, which keep a connection on TCP where the kernel has them. */
#include "case.h"

/* Each protocol that a kernel may have, asked for and looked at; then both streams, for those that are attached send as before. */
static void try_all(int fd) {
    static const char *const names[] = {"no such protocol", "tls", "espintcp", "mptcp", "smc", ""};
    for (int i = 0; i < 6; i++) {
        char name[20] = "";
        socklen_t n = sizeof name;
        R(setsockopt(fd, IPPROTO_TCP, TCP_ULP, names[i], strlen(names[i])));
        R(getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &n));
        say("%s: %s", names[i], name);
    }
    meet();
    put_stream(fd, MIB, 2);
    get_stream(fd, MIB, 3);
    meet();
}
static void served(int fd) {
    meet();
    get_stream(fd, MIB, 2);
    put_stream(fd, MIB, 3);
    meet();
}
static void blocking_a(void) { try_all(conn()); }
static void blocking_b(void) { served(conn()); }
static void nonblocking_a(void) {
    int fd = conn();
    nonblocking(fd, 1);
    try_all(fd);
}
static void nonblocking_b(void) {
    int fd = conn();
    nonblocking(fd, 1);
    served(fd);
}
/* Tried by a library that makes do without, as OpenSSL does: where the kernel has none, what is in memory stays there. */
static void refused(void) {
    int fd = conn();
    if (is_a) {
        int r = setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 3);
        say("tls: %d %s", r, r < 0 ? err_name(errno) : "");
        tell(r < 0 ? 'n' : 'y');
        if (r == 0)
            return;
    } else if (hear() == 'y') {
        return;
    }
    warm(fd);
}
/* Before anything is in memory; what follows would take it there. */
static void cold_a(void) {
    int fd = conn_cold();
    try_all(fd);
    warm(fd);
}
static void cold_b(void) {
    int fd = conn_cold();
    served(fd);
    warm(fd);
}

const struct test tests[] = {{"blocking", blocking_a, blocking_b, 0},
                             {"nonblocking", nonblocking_a, nonblocking_b, 0},
                             {"refused", refused, refused, 0},
                             {"cold", cold_a, cold_b, COLD},
                             {0}};
