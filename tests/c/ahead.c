/* Owns: a sender that is far ahead of its reader, so that its direction has gone back to TCP behind a full ring: what single
 * calls make of the part that lies in TCP. */
#include "given.h"

enum { AHEAD = 700 * KIB, FIRST = 400 * KIB };
static char all[AHEAD], buf[KIB];

static void ahead_b(void) {
    int fd = conn();
    fill(all, AHEAD, 0, 4);
    put(fd, all, AHEAD);
    meet();
    meet();
    close(fd);
}

/* Reads of nothing. */
static void nothing_a(void) {
    int fd = conn();
    meet();
    say("%d", (int)get(fd, all, FIRST) == FIRST && matches(all, FIRST, 0, 4));
    R(recv(fd, buf, 0, MSG_DONTWAIT));
    R(recv(fd, buf, 0, 0));
    R(recv(fd, NULL, 0, MSG_PEEK));
    say("%d", (int)get(fd, all, AHEAD - FIRST) == AHEAD - FIRST && matches(all, AHEAD - FIRST, FIRST, 4));
    R(recv(fd, buf, 0, MSG_DONTWAIT));
    meet();
}

/* One splice from a pipe goes a part of its way through the ring and the rest through TCP: it tells of all that it took. */
static void piped_a(void) {
    int fd = conn(), pipes[2];
    MUST(pipe(pipes));
    MUST(fcntl(pipes[1], F_SETPIPE_SZ, MIB));
    fill(all, AHEAD, 0, 9);
    MUST(write(pipes[1], all, AHEAD) == AHEAD ? 0 : -1);
    for (ssize_t left = AHEAD, n; left > 0; left -= n)
        if ((n = splice(pipes[0], NULL, fd, NULL, left, 0)) <= 0)
            die("splice to the socket");
    meet();
    meet();
}
static void piped_b(void) {
    int fd = conn();
    meet();
    get_stream(fd, AHEAD, 9);
    meet();
}

const struct test tests[] = {{"nothing", nothing_a, ahead_b, 0}, {"piped", piped_a, piped_b, 0}, {0}};
