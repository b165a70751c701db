/* Owns: cases whose ends are one program, and messages there and back between them. */
#pragma once
#include "ends.h"
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

/* A case: its connecting end, and its accepting one, which has the listener. */
struct meeting {
    const char *name;
    void (*client)(void), (*server)(int);
};

static int gate[2]; /* what the accepting end tells the other one */

/* The case of this name, else the last one, the first one without a name; the connecting end is a child, and has no use for `server_alone`. */
__attribute__((unused)) static int play(const struct meeting *cases, int n, const char *name, int port, int server_alone) {
    int which = 0, status = 0;
    while (which < n - 1 && name && strcmp(name, cases[which].name))
        which++;
    int listener = listen_on(port);
    if (pipe(gate))
        die("pipe");
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(listener);
        close(gate[1]);
        close(server_alone);
        cases[which].client();
        exit(0);
    }
    cases[which].server(listener);
    waitpid(child, &status, 0);
    return !WIFEXITED(status) || WEXITSTATUS(status);
}

/* What the thread has returned. */
__attribute__((unused)) static long returned(pthread_t thread, const char *else_what) {
    void *said = NULL;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    if (pthread_timedjoin_np(thread, &said, &until))
        wrong(else_what);
    return (long)said;
}

/* A message there and back; 0 when the other end is gone. */
__attribute__((unused)) static int ping(int fd, int seed) {
    unsigned char there[BYTES], back[BYTES];
    memset(there, seed, sizeof there);
    if (send(fd, there, sizeof there, MSG_NOSIGNAL) != sizeof there)
        return 0;
    for (size_t n = 0; n < sizeof back;) {
        ssize_t more = recv(fd, back + n, sizeof back - n, 0);
        if (more <= 0)
            return 0;
        n += more;
    }
    if (memcmp(there, back, sizeof there))
        die("other bytes");
    return 1;
}

/* Sends back what comes; 0 when the other end is gone. */
__attribute__((unused)) static int answer(int fd) {
    unsigned char bytes[BYTES];
    ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    return n > 0 && send(fd, bytes, n, MSG_NOSIGNAL) == n;
}
