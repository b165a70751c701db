/* Owns: one connection in a build of the library that takes its time at one step (tests/tests/faults.rs): what locks.c and leaves.c
 * share. The other end is a child that sends back what it gets. */
#pragma once
#define _GNU_SOURCE
#include "ends.h"
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

/* HOLD_MS: what the test asks the library for. */
enum { PORT = 7080, HOLD_MS = 300, WITHIN_MS = 100, ROUNDS = 3, MOST = 400 };

static int fd;
static pid_t child;

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void put(char c) { give(fd, c); }

static void expect(char c) {
    char bytes[BYTES];
    for (size_t n = 0; n < sizeof bytes;) {
        ssize_t more = recv(fd, bytes + n, sizeof bytes - n, 0);
        if (more <= 0)
            die("recv");
        n += more;
    }
    for (size_t i = 0; i < sizeof bytes; i++)
        if (bytes[i] != c)
            wrong("other bytes");
}

static void ping(char c) {
    put(c);
    expect(c);
}

static void send_back(void) {
    char bytes[BYTES];
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        if (send(fd, bytes, n, MSG_NOSIGNAL) != n)
            die("send back");
}

/* Till a call takes as long as the library was told to: the connection is in memory. */
static void warm_up(void (*call)(char)) {
    for (int i = 0; i < MOST; i++) {
        long before = now_ms();
        call('w');
        if (now_ms() - before >= HOLD_MS)
            return;
    }
    wrong("it is not in memory");
}

/* The connection; `other_end` runs in a child. */
static void begin(void (*other_end)(void)) {
    int listener = listen_on(PORT);
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(listener);
        fd = dial(PORT);
        other_end();
        exit(0);
    }
    fd = accept(listener, NULL, NULL);
    if (fd < 0)
        die("accept");
}

static void end(const char *what) {
    int status;
    shutdown(fd, SHUT_WR);
    char c;
    if (recv(fd, &c, 1, 0) != 0)
        wrong("more bytes than were sent");
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
        wrong("the other end");
    printf("%s: %d times\n", what, ROUNDS);
}
