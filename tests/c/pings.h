/* Owns: messages there and back, for programs that play both ends of a connection. */
#pragma once
#include "ends.h"

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
