/* Owns: a program that becomes another one (exec) while a thread of it is in the middle of moving the connection, in a build of the
 * library in which that takes its time (tests/tests/faults.rs): the stream goes on whole.
 *   meanwhile talk                the server is this process, the client a child that connects, with a thread that talks
 *   meanwhile after FD LAST       the client after exec: LAST is the number of the last message that its thread may have sent
 *   meanwhile handler             the server is this process, and becomes another program in a handler of the very thread that moves; a child sends
 *   meanwhile reads FD LAST       the server after exec: LAST is the last message that it has read
 * Exit 0: each message has come whole and in order, and those of the new program were answered. */
#define _GNU_SOURCE
#include "ends.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

enum { PORT = 7073, WORDS = 16, AFTER = 1000000, MORE = 200, STILL_MS = 80 };

static void put(int fd, uint32_t n) {
    uint32_t words[WORDS];
    for (int i = 0; i < WORDS; i++)
        words[i] = n;
    if (send(fd, words, sizeof words, MSG_NOSIGNAL) != sizeof words)
        die("send");
}

/* A message; 0 at the end. */
static uint32_t get(int fd) {
    uint32_t words[WORDS];
    ssize_t n = recv(fd, words, sizeof words, MSG_WAITALL);
    if (n == 0)
        return 0;
    if (n != sizeof words)
        die("recv");
    for (int i = 1; i < WORDS; i++)
        if (words[i] != words[0])
            wrong("a message in two pieces");
    return words[0];
}

static int the_fd;
static volatile uint32_t sending, answered;

static void *talk(void *p) {
    for (sending = 1;; sending++) {
        put(the_fd, sending);
        if (get(the_fd) != sending)
            wrong("another answer");
        answered = sending;
    }
    return p;
}

/* Talks until the thread stands still: it is in the middle of a step. Or until it has talked for long. */
static void before(char *self) {
    pthread_t t;
    char fd[16], last[16];
    the_fd = dial(PORT);
    pthread_create(&t, NULL, talk, NULL);
    for (int still = 0; still < STILL_MS && answered < 200000; still++) {
        uint32_t then = answered;
        poll(NULL, 0, 1);
        if (answered != then || then == 0)
            still = 0;
    }
    snprintf(fd, sizeof fd, "%d", the_fd);
    snprintf(last, sizeof last, "%u", sending);
    execl(self, self, "after", fd, last, NULL);
    die("execl");
}

static void after(int fd, uint32_t last) {
    for (uint32_t i = 0; i < MORE; i++) {
        put(fd, AFTER + i);
        uint32_t n = get(fd);
        if (i == 0 && n >= last && n < AFTER) /* nobody had read that one's answer */
            n = get(fd);
        if (n != AFTER + i)
            wrong("not the answer of the new program");
    }
}

static void server(int listener) {
    int fd = accept(listener, NULL, NULL);
    uint32_t old = 0;
    for (uint32_t n; (n = get(fd)) != 0; old = n) {
        if (n != old + 1 && !(n == AFTER && old < AFTER))
            wrong("not the next message");
        put(fd, n);
    }
    if (old != AFTER + MORE - 1)
        wrong("an early end");
    close(fd);
}

/* ---- in a handler ---- */

static char *program;
static volatile uint32_t last;

static void leave(int sig) {
    char fd[16], n[16];
    snprintf(fd, sizeof fd, "%d", the_fd);
    snprintf(n, sizeof n, "%u", last);
    execl(program, program, "reads", fd, n, NULL);
    die("execl");
}

/* Interrupts the thread when it stands still. */
static void *interrupt(void *reader) {
    for (int still = 0; still < STILL_MS; still++) {
        uint32_t then = last;
        poll(NULL, 0, 1);
        if (last != then || then == 0)
            still = 0;
    }
    pthread_kill(*(pthread_t *)reader, SIGHUP);
    return NULL;
}

/* `missed`: so many may have been read before, and not written down. */
static void reads(int fd, uint32_t old, uint32_t missed) {
    for (uint32_t n; (n = get(fd)) != 0; last = old = n, missed = 0)
        if (n != old + 1 && n != old + 1 + missed)
            wrong("not the next message");
    put(fd, old);
    close(fd);
}

static void handler(int listener) {
    pthread_t t, me = pthread_self();
    signal(SIGHUP, leave);
    the_fd = accept(listener, NULL, NULL);
    pthread_create(&t, NULL, interrupt, &me);
    reads(the_fd, 0, 0);
    wrong("it was never interrupted");
}

/* Sends for a while, and asks how many have come. */
static void sends(void) {
    enum { MS = 1500 };
    int fd = dial(PORT);
    uint32_t n = 0;
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        put(fd, ++n);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < MS);
    shutdown(fd, SHUT_WR);
    if (get(fd) != n)
        wrong("not all of them came");
}

int main(int argc, char **argv) {
    program = argv[0];
    if (argc == 4 && !strcmp(argv[1], "reads")) {
        int status;
        signal(SIGHUP, SIG_IGN);
        sigset_t hup;
        sigemptyset(&hup), sigaddset(&hup, SIGHUP);
        sigprocmask(SIG_UNBLOCK, &hup, NULL);
        reads(atoi(argv[2]), (uint32_t)atol(argv[3]), 1); /* the handler ran in front of the writing down */
        if (wait(&status) < 0 || status)
            wrong("the client failed");
        return 0;
    }
    if (argc == 4 && !strcmp(argv[1], "after")) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        after(atoi(argv[2]), (uint32_t)atol(argv[3]));
        return 0;
    }
    int listener = listen_on(PORT), status, is_handler = argc == 2 && !strcmp(argv[1], "handler");
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(listener);
        if (is_handler) {
            sends();
            return 0;
        }
        before(argv[0]);
    }
    if (is_handler)
        handler(listener);
    server(listener);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
        wrong("the client failed");
    return 0;
}
