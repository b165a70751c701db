/* Owns: what both ends do where bytes lie unread and can't be sent again: their sender stands still, or has said its last word. */
#ifndef UNREAD_H
#define UNREAD_H
#include "given.h"

enum { AHEAD = 700 * KIB /* more than a ring holds */ };
static char all[AHEAD];
static char buf[64 * KIB];

/* The other end stands still from here on; all that it has sent is here. */
static inline pid_t stop(void) {
    pid_t peer = hear_pid();
    char path[40], state = 0;
    sprintf(path, "/proc/%d/stat", peer);
    settle();
    MUST(kill(peer, SIGSTOP));
    while (state != 'T') {
        FILE *f = fopen(path, "r");
        if (!f || fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
            die(path);
        fclose(f);
        usleep(1000);
    }
    return peer;
}

static inline void go_on(int fd, pid_t peer) {
    say("%d more", now_in(fd));
    MUST(kill(peer, SIGCONT));
    echo(fd, "afterwards", 2);
    close(fd);
    meet();
}
/* The whole of `all`, and who could send it again. */
static inline void send_ahead(int fd) {
    meet();
    put(fd, all, AHEAD);
    tell_pid(getpid());
}
/* It has said its last word, and waits for the answer. */
static inline void answer(int fd) {
    R(recv(fd, buf, 1, 0));
    fill(buf, 20000, 0, 6);
    put(fd, buf, 20000);
    close(fd);
    meet();
}
static inline void last_word(int fd) {
    R(shutdown(fd, SHUT_WR));
    meet();
    got(fd, buf, 20000, 0, 6);
    R(recv(fd, buf, 1, 0));
    meet();
}
static inline void last_b(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    last_word(fd);
}

#endif
