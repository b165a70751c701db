/* Owns: a program that has functions of its own by the names of libc's, and goes on by libc's second names for them, as Erlang's runtime does with
 * sigaction: what the library does behind a second name must not come back to the program's own. */
#include "case.h"
#include <dlfcn.h>

static int reads, writes, sends, polls, closes, actions;

/* The next definition. */
#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

ssize_t read(int fd, void *buf, size_t n) {
    reads++;
    return NEXT(ssize_t(*)(int, void *, size_t), "__read")(fd, buf, n);
}

ssize_t write(int fd, const void *buf, size_t n) {
    writes++;
    return NEXT(ssize_t(*)(int, const void *, size_t), "__write")(fd, buf, n);
}

ssize_t send(int fd, const void *buf, size_t n, int flags) {
    sends++;
    return NEXT(ssize_t(*)(int, const void *, size_t, int), "__send")(fd, buf, n, flags);
}

int poll(struct pollfd *fds, nfds_t n, int ms) {
    polls++;
    return NEXT(int (*)(struct pollfd *, nfds_t, int), "__poll")(fds, n, ms);
}

int close(int fd) {
    closes++;
    return NEXT(int (*)(int), "__close")(fd);
}

int sigaction(int signal, const struct sigaction *action, struct sigaction *old) {
    actions++;
    return NEXT(int (*)(int, const struct sigaction *, struct sigaction *), "__sigaction")(signal, action, old);
}

static volatile int signals;
static void on_usr1(int sig) { signals += sig == SIGUSR1; }

static void all(void) {
    int fd = conn();
    char c = 'x';
    struct pollfd p = {fd, POLLIN, 0};
    struct sigaction act = {.sa_handler = on_usr1}, old;
    R(sigaction(SIGUSR1, &act, NULL));
    R(sigaction(SIGUSR1, NULL, &old));
    say("%d", old.sa_handler == on_usr1);
    raise(SIGUSR1);
    reads = writes = sends = polls = closes = 0;
    for (int i = 0; i < 20; i++) {
        if (is_a != i % 2) {
            R(i < 10 ? send(fd, &c, 1, 0) : write(fd, &c, 1));
        } else {
            R(poll(&p, 1, 10000));
            R(read(fd, &c, 1));
        }
    }
    R(close(fd));
    say("%d signals; %d %d %d %d %d %d", signals, reads, writes, sends, polls, closes, actions);
}

const struct test tests[] = {{"all", all, all, 0}, {0}};
