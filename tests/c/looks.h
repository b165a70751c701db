/* Owns: an end that sends between the looks at an epoll set. */
#pragma once
#include "sets.h"

static void next(void) {
    meet();
    meet_settled();
}
/* Five bytes before each look, and then the end. */
static void fives(int fd, int times) {
    for (int i = 0; i < times; i++) {
        meet();
        put(fd, "fives", 5);
        meet_settled();
    }
    char c;
    R(recv(fd, &c, 1, 0));
}
