/* Owns: what both ends do where bytes lie unread and their sender makes no call: it stands still, or has gone to TCP by itself. */
#ifndef SILENT_H
#define SILENT_H
#include "last_words.h"

static char whole[SOME]; /* more than a ring holds */

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
/* All of `whole`, and who could send it again. */
static inline void send_ahead(int fd) {
    meet();
    put(fd, whole, SOME);
    tell_pid(getpid());
}
/* The other end of `ahead`. */
static inline void ahead_b(void) {
    int fd = conn();
    fill(whole, SOME, 0, 5);
    send_ahead(fd);
    echo_until_end(fd);
    meet();
}
#endif
