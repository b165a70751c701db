/* Owns: an accepting side that sends much and closes while the connecting one is about to leave TCP, in a build of the library in
 * which that takes its time (tests/tests/faults.rs): the proof, which comes behind the close, must not make a reset of it.
 *   farewell close|shutdown|halves   after each number of pieces up to ROUNDS, as one of them meets the moment
 * Exit 0: all that was sent has come, and then the end. The connecting side is a child that connects by itself. */
#define _GNU_SOURCE
#include "ends.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { PORT = 7072, ROUNDS = 16, MUCH = 4 << 20, PIECE = 4096 };

static int told[2], heard[2];
static int halves, shuts; /* one half after the other; shuts down at all, and closes later */
static char much[MUCH];

static void client(void) {
    static char got[1 << 14];
    for (int round = 1; round <= ROUNDS; round++) {
        int fd = dial(PORT);
        long all = 0, sent;
        if (send(fd, "x", 1, MSG_NOSIGNAL) != 1)
            die("send");
        for (ssize_t n; (n = recv(fd, got, sizeof got, 0)) != 0; all += n)
            if (n < 0) {
                fprintf(stderr, "after %d pieces, %ld bytes: ", round, all);
                die("recv");
            }
        if (read(told[0], &sent, sizeof sent) != sizeof sent)
            die("read");
        if (all != sent)
            wrong("not all has come");
        close(fd);
        if (write(heard[1], "x", 1) != 1)
            die("write of the client");
    }
}

/* A child that has failed connects no more. */
static void on_child(int sig) {
    int status;
    (void)sig;
    if (waitpid(-1, &status, WNOHANG) > 0)
        _exit(!WIFEXITED(status) || WEXITSTATUS(status));
}

static void server(int listener) {
    for (int round = 1; round <= ROUNDS; round++) {
        char got;
        int fd = accept(listener, NULL, NULL);
        if (recv(fd, &got, 1, 0) != 1)
            die("recv of the server");
        fcntl(fd, F_SETFL, O_NONBLOCK);
        long sent = 0;
        for (int i = 0; i < round; i++) {
            ssize_t n = send(fd, much, PIECE, MSG_NOSIGNAL);
            sent += n > 0 ? n : 0;
            usleep(500);
        }
        for (ssize_t n; sent < MUCH && (n = send(fd, much, MUCH, MSG_NOSIGNAL)) > 0;)
            sent += n;
        if (halves)
            shutdown(fd, round % 2 ? SHUT_RD : SHUT_WR), shutdown(fd, round % 2 ? SHUT_WR : SHUT_RD);
        else if (shuts)
            shutdown(fd, SHUT_RDWR);
        else
            close(fd);
        if (write(told[1], &sent, sizeof sent) != sizeof sent || read(heard[0], &got, 1) != 1)
            die("write");
        if (shuts)
            close(fd);
    }
}

int main(int argc, char **argv) {
    int listener = listen_on(PORT);
    halves = argc > 1 && !strcmp(argv[1], "halves");
    shuts = halves || (argc > 1 && !strcmp(argv[1], "shutdown"));
    if (pipe(told) || pipe(heard))
        die("pipe");
    signal(SIGCHLD, on_child);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGCHLD, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(listener);
        client();
        exit(0);
    }
    server(listener);
    for (;;)
        pause(); /* the child says how it went */
}
