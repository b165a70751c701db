/* Lets a test's connections begin with some small talk, natively and under the library: one that a process accepts from itself, before the
 * program has it. gVisor's tests have most of their connections within one thread, and send too little on each for it to leave TCP by itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

enum { ROUNDS = 12, NUMBERS = 1024, MS = 1000 };

static int put(int fd) {
    char c = 0;
    struct pollfd p = {fd, POLLOUT, 0};
    poll(&p, 1, MS);
    return send(fd, &c, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}
static int get(int fd) {
    char c;
    struct pollfd p = {fd, POLLIN, 0};
    poll(&p, 1, MS);
    return recv(fd, &c, 1, MSG_DONTWAIT) == 1;
}
static int port_of(int fd, int (*name)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_storage s;
    socklen_t len = sizeof s;
    return name(fd, (struct sockaddr *)&s, &len) ? -1 : ((struct sockaddr_in *)&s)->sin_port; /* where IPv6 has it as well */
}
static int has_something(int fd) {
    char c;
    return recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK) >= 0;
}
static void talk(int near) {
    int protocol = 0, port = port_of(near, getpeername);
    socklen_t len = sizeof protocol;
    if (getsockopt(near, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) || protocol != IPPROTO_TCP || port < 0)
        return;
    for (int far = 0; far < NUMBERS; far++) {
        if (far == near || port_of(far, getsockname) != port || port_of(far, getpeername) < 0)
            continue;
        for (int i = 0; i < ROUNDS && !has_something(near) && !has_something(far); i++)
            if (!put(far) || !get(near) || !put(near) || !get(far))
                return;
        return;
    }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int accept(int fd, struct sockaddr *s, socklen_t *len) {
    int near = REAL(accept)(fd, s, len), e = errno;
    if (near >= 0)
        talk(near);
    errno = e;
    return near;
}
int accept4(int fd, struct sockaddr *s, socklen_t *len, int flags) {
    int near = REAL(accept4)(fd, s, len, flags), e = errno;
    if (near >= 0)
        talk(near);
    errno = e;
    return near;
}
