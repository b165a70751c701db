/* Owns: what a set is asked late, or in another way than it waits: interest that comes after the set has been looked at, data that a
 * reader takes past its set, sets inside sets whose members change, EPOLLWRNORM by itself. */
#include "sets.h"

static char buf[64 * KIB];

/* The kernel's buffers grow for a while. */
static void push(int fd) {
    do
        while (send(fd, buf, sizeof buf, MSG_NOSIGNAL) > 0) {
        }
    while (events(fd, POLLOUT, 100) & POLLOUT);
}
static void fill_up(int fd) {
    nonblocking(fd, 1);
    push(fd);
    say("full: %s", err_name(errno));
}
static void take_all(int fd) {
    long all = 0;
    while (events(fd, POLLIN, 500) & POLLIN) {
        ssize_t n = MUST(recv(fd, buf, sizeof buf, 0));
        all += n;
        if (n == 0)
            break;
    }
    say("some %d", all > 10000);
}

/* The peer has ended its sending, and is answered at length: room is asked for when it is needed. */
static void half_closed_a(void) {
    int fd = conn(), ep = epoll_create1(0);
    nonblocking(fd, 1);
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    meet_settled();
    look(ep, 1000);
    R(recv(fd, buf, 10, 0));
    MUST(ctl(ep, MOD, fd, 0, 1));
    put(fd, "h", 1);
    look(ep, 0);
    fill_up(fd);
    MUST(ctl(ep, MOD, fd, EPOLLOUT, 1));
    look(ep, 50);
    meet();
    look(ep, 10000);
    meet();
}
static void half_closed_b(void) {
    int fd = conn();
    MUST(shutdown(fd, SHUT_WR));
    meet_settled();
    meet();
    take_all(fd);
    meet();
}

/* The same, by splice from a pipe. */
static void half_closed_splice_a(void) {
    int fd = conn(), ep = epoll_create1(0), p[2];
    MUST(pipe(p));
    nonblocking(fd, 1);
    MUST(ctl(ep, ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1));
    look(ep, 1000);
    meet();
    meet_settled();
    look(ep, 1000);
    R(recv(fd, buf, 1, 0));
    for (int calm = 0; calm < 8; calm++, settle())
        for (ssize_t n = 1; n > 0; calm = n > 0 ? 0 : calm) {
            if (!now_in(p[0]))
                MUST(write(p[1], buf, 16 * KIB));
            n = splice(p[0], NULL, fd, NULL, 16 * KIB, SPLICE_F_NONBLOCK);
        }
    meet();
    meet();
    look(ep, 5000);
    close(fd);
    meet();
}
static void half_closed_splice_b(void) {
    int fd = conn();
    meet();
    R(shutdown(fd, SHUT_WR));
    meet_settled();
    meet();
    take_all(fd);
    meet();
    meet();
}

/* What a long sleep has left to the kernel is read without a look at the set; what comes then is told all the same. */
static void past_the_set(unsigned events, int rest) {
    int fd = conn(), ep = epoll_create1(0);
    nonblocking(fd, 1);
    MUST(ctl(ep, ADD, fd, events, 1));
    for (int i = 0; i < 3; i++) {
        meet_settled();
        look(ep, 1000);
        R(recv(fd, buf, 5, 0));
        R(recv(fd, buf, 5, 0));
        look(ep, rest);
        meet(); /* it sends */
        meet_settled();
        R(recv(fd, buf, 5, 0));
        for (int k = 0; k < 2; k++) {
            usleep(15000);
            R(recv(fd, buf, 5, 0));
        }
        meet(); /* and once more */
        look(ep, 5000);
        R(recv(fd, buf, 5, 0));
        R(recv(fd, buf, 5, 0));
        meet();
    }
}
static void past_a(void) { past_the_set(EPOLLIN, 1400); }
static void past_edges_a(void) { past_the_set(EPOLLIN | EPOLLET, 1400); }
static void past_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        put(fd, "first", 5);
        meet_settled();
        meet();
        put(fd, "other", 5);
        meet_settled();
        meet();
        settle();
        put(fd, "third", 5);
        meet();
    }
}

/* A set inside another: its member tells once, is armed again, is put to rest, is taken out and put in again. */
static void inner_changes_a(void) {
    int fd = conn(), inner = epoll_create1(0), outer = epoll_create1(0);
    nonblocking(fd, 1);
    MUST(ctl(inner, ADD, fd, EPOLLIN | EPOLLONESHOT, 1));
    MUST(ctl(outer, ADD, inner, EPOLLIN, 2));
    look(inner, 0);
    for (int i = 0; i < 3; i++) {
        meet();
        look(outer, 5000);
        look(inner, 1000);
        R(recv(fd, buf, 5, 0));
        look(outer, 0);
        MUST(ctl(inner, MOD, fd, EPOLLIN | EPOLLONESHOT, 1));
        look(outer, 30);
    }
    MUST(ctl(inner, MOD, fd, 0, 1)); /* a pause */
    meet();
    meet_settled();
    look(outer, 50);
    look(inner, 0);
    MUST(ctl(inner, MOD, fd, EPOLLIN, 1));
    look(outer, 5000);
    look(inner, 0);
    R(recv(fd, buf, 5, 0));
    MUST(ctl(inner, DEL, fd, 0, 0));
    meet();
    meet_settled();
    look(outer, 50);
    look(inner, 0);
    R(recv(fd, buf, 5, 0));
    MUST(ctl(inner, ADD, fd, EPOLLIN, 3));
    for (int i = 0; i < 3; i++) {
        meet();
        look(outer, 5000);
        look(inner, 0);
        R(recv(fd, buf, 5, 0));
        look(inner, 0);
        look(outer, 0);
    }
    meet();
}
static void inner_changes_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        meet();
        settle();
        put(fd, "fives", 5);
    }
    for (int i = 0; i < 2; i++) {
        meet();
        put(fd, "fives", 5);
        meet_settled();
    }
    for (int i = 0; i < 3; i++) {
        meet();
        settle();
        put(fd, "fives", 5);
    }
    meet();
}

/* Room, asked for in the inner set when a send has found none. */
static void inner_room(int by_add) {
    int fd = conn(), inner = epoll_create1(0), outer = epoll_create1(0);
    MUST(ctl(inner, ADD, fd, EPOLLIN, 1));
    MUST(ctl(outer, ADD, inner, EPOLLIN, 2));
    look(inner, 0);
    look(outer, 0);
    fill_up(fd);
    if (by_add)
        MUST(ctl(inner, DEL, fd, 0, 0));
    MUST(ctl(inner, by_add ? ADD : MOD, fd, EPOLLIN | EPOLLOUT, 1));
    struct epoll_event e;
    for (int calm = 0, turns = 0; calm < 4 && turns < 100; turns++) /* beside its ring a connection has the room of TCP */
        if (epoll_wait(inner, &e, 1, 0) == 1) {
            calm = 0;
            push(fd);
        } else {
            calm++;
            settle();
        }
    look(outer, 50);
    meet();
    look(outer, 10000);
    look(inner, 0);
    meet();
}
static void inner_room_a(void) { inner_room(0); }
static void inner_room_again_a(void) { inner_room(1); }
static void reads_all_b(void) {
    int fd = conn();
    meet();
    take_all(fd);
    meet();
}

/* The inner set is empty when it goes into the outer one, and its connection goes to memory while it is there. */
enum { ROUNDS = 400, SIZE = 500 };
static void inner_empty_a(void) {
    int fd = conn_cold(), inner = epoll_create1(0), outer = epoll_create1(0);
    struct epoll_event e;
    int told = 0;
    MUST(ctl(outer, ADD, inner, EPOLLIN, 2));
    look(outer, 0);
    MUST(ctl(inner, ADD, fd, EPOLLIN, 1));
    for (int i = 0; i < ROUNDS; i++) {
        told += epoll_wait(outer, &e, 1, 5000) == 1;
        epoll_wait(inner, &e, 1, 0);
        if (get(fd, buf, SIZE) != SIZE)
            die("get");
        epoll_wait(inner, &e, 1, 0);
        put(fd, buf, SIZE);
    }
    say("told %d", told);
    meet();
}
static void inner_empty_b(void) {
    int fd = conn_cold();
    for (int i = 0; i < ROUNDS; i++) {
        put(fd, buf, SIZE);
        if (get(fd, buf, SIZE) != SIZE)
            die("get");
        if (i % 4 == 0)
            usleep(1000); /* the other one sleeps in the outer set */
    }
    meet();
}

/* By the other name of room alone. */
static void write_normal_a(void) {
    int fd = conn(), ep = epoll_create1(0);
    MUST(ctl(ep, ADD, fd, EPOLLWRNORM, 1));
    look(ep, 0);
    fill_up(fd);
    meet();
    look(ep, 10000);
    meet();
    fill_up(fd);
    meet();
    say("%x", events(fd, POLLWRNORM, 10000));
    meet();
    fill_up(fd);
    MUST(ctl(ep, MOD, fd, EPOLLWRNORM | EPOLLET, 1));
    meet();
    look(ep, 10000);
    meet();
}
static void write_normal_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        meet();
        settle();
        take_all(fd);
        meet();
    }
}

const struct test tests[] = {{"half_closed", half_closed_a, half_closed_b, 0},
                             {"half_closed_splice", half_closed_splice_a, half_closed_splice_b, 0},
                             {"past_the_set", past_a, past_b, SLOW},
                             {"past_the_set_edges", past_edges_a, past_b, SLOW},
                             {"inner_changes", inner_changes_a, inner_changes_b, 0},
                             {"inner_room", inner_room_a, reads_all_b, 0},
                             {"inner_room_again", inner_room_again_a, reads_all_b, 0},
                             {"inner_empty", inner_empty_a, inner_empty_b, COLD | SWITCHES},
                             {"write_normal", write_normal_a, write_normal_b, 0},
                             {0}};
