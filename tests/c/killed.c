/* Owns: when the survivor is told that the other end was killed with something unread, where what that had sent before lies in the
 * ring and behind it in TCP. (death.c has what it sees of all other deaths.) */
#include "mortal.h"

static char buf[64 * KIB];

/* What the dead had sent fills the ring and goes on in TCP, no more than the survivor's kernel takes, and something lies unread at its
 * end: poll shows the reset at every byte of it, until the survivor is told: when all has been read, or in the midst of it, by a send or
 * by SO_ERROR. */
static void filling(int fd) {
    char piece[1000] = "";
    sol_int(fd, SOL_SOCKET, SO_SNDBUF, 16 * KIB);
    nonblocking(fd, 1);
    for (int n = 0; n < 60; n++)
        while (send(fd, piece, sizeof piece, MSG_NOSIGNAL) < 0) { /* a late acknowledgement: room comes though nobody reads */
            if (errno != EAGAIN)
                die("send");
            usleep(1000);
        }
}
static void filling_b(void) { mortal(filling); }
static void told_by(int way) {
    int fd = conn(), told = 0;
    ssize_t n;
    uint64_t o = 0;
    char before[128] = "";
    put(fd, "never read", 10);
    kill_peer();
    for (;;) {
        const char *now = poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 2000));
        if (strcmp(before, now))
            say("poll: %s", strcpy(before, now));
        if (way && !told && now_in(fd) < 10000) {
            told = 1;
            if (way == 1) {
                R(send(fd, "x", 1, MSG_NOSIGNAL));
                R(send(fd, "x", 1, MSG_NOSIGNAL));
            } else {
                say("SO_ERROR %s", err_name(so_error(fd)));
                say("SO_ERROR %d", so_error(fd));
            }
            continue;
        }
        if ((n = recv(fd, buf, 1000, 0)) <= 0)
            break;
        o += n;
    }
    say("some %d, then %s", o > 10000, n == 0 ? "end" : err_name(errno));
    R(recv(fd, buf, 1, 0));
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 2000)));
}
static void told_at_the_end_a(void) { told_by(0); }
static void told_by_send_a(void) { told_by(1); }
static void told_by_option_a(void) { told_by(2); }

const struct test tests[] = {{"told_at_the_end", told_at_the_end_a, filling_b, 0},
                             {"told_by_send", told_by_send_a, filling_b, 0},
                             {"told_by_option", told_by_option_a, filling_b, 0},
                             {0}};
