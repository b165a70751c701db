/* Owns: a socket that is read by blocking calls, and a member of a set that nobody waits in, as each of Asio's is: it has to move as others
 * do, without a doorbell for each message. And what is told when such a set is waited for after all: by its first wait, around it, or, where the
 * socket does not block any more, by a waiter that no library sees. */
#include "sets.h"

enum { ROUNDS = 3000, SIZE = 512, SOME = 1000 };
static const uint32_t asio = EPOLLIN | EPOLLPRI | EPOLLERR | EPOLLHUP | EPOLLET;
static char buf[64 * KIB];

/* Messages to and fro, all of which the other end waits for. */
static void talk(int fd) {
    long before = lo_bytes();
    for (int i = 0; i < ROUNDS; i++) {
        if (!is_a)
            put(fd, buf, SIZE);
        if (get(fd, buf, SIZE) != SIZE)
            die("talk");
        if (is_a)
            put(fd, buf, SIZE);
    }
    meet();
    if (!is_a)
        warmed(2L * ROUNDS * SIZE, lo_bytes() - before);
    say("talked");
}
static int begin(uint32_t events, int *set) {
    int fd = conn_cold();
    *set = set_of(fd, events);
    talk(fd);
    return fd;
}
/* Now a sends, and who waits at b is told; so it is when that was read. */
static void says_a(int fd, int times) {
    for (int i = 0; i < times; i++) {
        meet();
        fill(buf, SOME, 0, i);
        put(fd, buf, SOME);
        meet_settled();
    }
    meet();
}
static void arrives(void) {
    meet();
    meet_settled();
}
static void read_some(int fd, int i) { got(fd, buf, SOME, 0, i); }

static void first_a(uint32_t events) {
    int set, fd = begin(events, &set);
    says_a(fd, 3);
}
static void first_b(uint32_t events) {
    int set, fd = begin(events, &set);
    for (int i = 0; i < 3; i++) {
        meet();
        if (i == 1)
            look(set, 5000); /* it sleeps when they come */
        meet_settled();
        look(set, i == 1 ? 0 : 5000);
        read_some(fd, i);
        look(set, 0);
    }
    meet();
}
static void edges_a(void) { first_a(asio); }
static void edges_b(void) { first_b(asio); }
static void levels_a(void) { first_a(EPOLLIN); }
static void levels_b(void) { first_b(EPOLLIN); }

static void saying_a(void) {
    int set, fd = begin(asio, &set);
    says_a(fd, 2);
}
/* Another set around it, and one that is waited for by poll. */
static void around_b(void) {
    int set, fd = begin(EPOLLIN, &set), outer = set_of(set, EPOLLIN);
    for (int i = 0; i < 2; i++) {
        arrives();
        look(outer, 5000);
        R(events(set, POLLIN, 1000));
        read_some(fd, i);
        look(outer, 0);
    }
    meet();
}
static void by_poll_b(void) {
    int set, fd = begin(EPOLLIN, &set);
    for (int i = 0; i < 2; i++) {
        arrives();
        R(events(set, POLLIN, 1000));
        read_some(fd, i);
        R(events(set, POLLIN, 0));
    }
    meet();
}
/* Another one of which it becomes a member, and which is waited for. */
static void another_b(void) {
    int set, fd = begin(EPOLLIN, &set), other = set_of(fd, EPOLLIN);
    for (int i = 0; i < 2; i++) {
        arrives();
        look(other, 5000);
        look(set, 5000);
        read_some(fd, i);
        look(other, 0);
        look(set, 0);
    }
    meet();
}
/* By system calls of the program's own, behind O_NONBLOCK. */
static void raw_b(void) {
    int set, fd = begin(asio, &set);
    nonblocking(fd, 1);
    for (int i = 0; i < 2; i++) {
        struct epoll_event e;
        R(recv(fd, buf, 1, 0));
        arrives();
        long n = raw(SYS_epoll_pwait, set, (long)&e, 1, 5000, 0, 8);
        say("%ld %s", n, n == 1 ? epoll_text(e.events) : "");
        read_some(fd, i);
    }
    meet();
}
/* One thread waits in the set when another reads, and is told of what that does not read. */
static int the_set;
static void *waits(void *unused) {
    look(the_set, 5000);
    return NULL;
}
static void thread_b(void) {
    int fd = begin(EPOLLIN, &the_set);
    pthread_t t;
    for (int i = 0; i < 2; i++) {
        MUST(-pthread_create(&t, NULL, waits, NULL));
        settle();
        arrives();
        MUST(-pthread_join(t, NULL));
        read_some(fd, i);
    }
    meet();
}

const struct test tests[] = {{"edges", edges_a, edges_b, 0},     {"levels", levels_a, levels_b, 0},   {"around", saying_a, around_b, 0},
                             {"by_poll", saying_a, by_poll_b, 0}, {"another", saying_a, another_b, 0}, {"raw", saying_a, raw_b, 0},
                             {"thread", saying_a, thread_b, 0},  {0}};
