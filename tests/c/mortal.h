/* Owns: an end of a case that is killed by the other one. */
#pragma once
#include "case.h"

/* The end that dies: tells its pid, does what `life` says, and then waits to be killed. */
static void mortal(void (*life)(int fd)) {
    int fd = conn();
    life(fd);
    tell_pid(getpid());
    for (;;)
        pause();
}
/* The survivor kills it and waits until its sockets are gone. */
static void kill_peer(void) {
    pid_t pid = hear_pid();
    settle();
    MUST(kill(pid, SIGKILL));
    while (hear() != 0) { /* its end of the control socket closes last: fd 3 is low, so wait on */
    }
    settle();
}
