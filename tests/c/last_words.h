/* Owns: streams whose last bytes lie unread when the connection is given away: who says them, and who has it then. By exec (unread.c), or by a
 * message (bequests.c). */
#ifndef LAST_WORDS_H
#define LAST_WORDS_H
#include "given.h"

static char buf[64 * KIB];

/* Ahead of a reader, and what of it has come before the connection moves to memory. */
enum { SOME = 700 * KIB, BEFORE = 300 * KIB };

/* What the next one does with it. */
static inline void answer(int fd) {
    R(recv(fd, buf, 1, 0));
    fill(buf, 20000, 0, 6);
    put(fd, buf, 20000);
}
static inline void last(int fd) {
    say("%d there", now_in(fd) > 0);
    got(fd, buf, 10000, 0, 5);
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT, 2000)));
    got(fd, buf, 20000, 10000, 5);
    answer(fd);
}
static inline void closed(int fd) {
    got(fd, buf, 30000, 0, 5);
    R(recv(fd, buf, 1, 0));
}
static inline void all(int fd) {
    get_stream(fd, SOME, 5);
    answer(fd);
}
static inline void got_before(int fd, size_t more) {
    static char big[BEFORE];
    got(fd, big, sizeof big, 0, 5);
    got(fd, buf, more, 0, 6);
}
static inline void before(int fd) {
    got_before(fd, 10000);
    answer(fd);
}

/* All that the sender will ever send lies unread, and it waits for the answer. */
static inline int said_all(void) {
    int fd = conn();
    meet_settled();
    return fd;
}
/* The most of it has come through TCP, before the connection moved to memory; a part, or nothing, lies in the ring. */
static inline int came_before(void) {
    int fd = conn_cold();
    trickle(fd);
    meet_settled();
    return fd;
}

/* The other end: it says all, and has the answer. */
static inline void answered(int fd) {
    got(fd, buf, 20000, 0, 6);
    R(recv(fd, buf, 1, 0));
}
static inline int says_all(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    return fd;
}
static inline int half_closes(void) {
    int fd = says_all();
    R(shutdown(fd, SHUT_WR));
    meet();
    return fd;
}
static inline void last_b(void) {
    int fd = half_closes();
    answered(fd);
    close(fd);
}
/* It has none. */
static inline void left_b(void) {
    int fd = half_closes();
    R(recv(fd, buf, 1, 0));
    R(recv(fd, buf, 1, 0));
}
static inline void closed_b(void) {
    R(close(says_all()));
    meet_settled();
}
static inline void last_ahead_b(void) {
    int fd = conn();
    static char some[SOME];
    fill(some, sizeof some, 0, 5);
    meet();
    put(fd, some, sizeof some);
    R(shutdown(fd, SHUT_WR));
    answered(fd);
}
/* As trickled, but in recv when each byte is sent: who has nothing to send to go with goes to memory only if its peer finds it there. */
static inline void awaited(int fd) {
    char c;
    for (int i = 0; i < 300; i++) {
        MUST(recv(fd, &c, 1, 0));
        hear();
        tell('.');
    }
}
static inline int begins_on_tcp(size_t in_memory) {
    static char all[BEFORE];
    int fd = conn_cold();
    fill(all, sizeof all, 0, 5);
    put(fd, all, sizeof all);
    if (in_memory)
        trickled(fd);
    else
        awaited(fd);
    fill(buf, in_memory, 0, 6);
    put(fd, buf, in_memory);
    return fd;
}
static inline int before_b(size_t in_memory) {
    int fd = begins_on_tcp(in_memory);
    R(shutdown(fd, SHUT_WR));
    meet();
    return fd;
}
static inline void before_read_b(void) { answered(before_b(10000)); }
#endif
