/* Owns: epoll, poll and select in the less usual forms: the NORM and BAND events, one descriptor under several numbers and in
 * several sets, changes by another thread, sets that hold closed descriptors, a descriptor that moves from set to set. */
#include "looks.h"

static char buf[64 * KIB];

static void sends_b(int times) { fives(conn(), times); }

/* ---- the events beside IN and OUT ---- */

static void norms_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(0)), edge = MUST(epoll_create1(0));
    static const uint32_t asked[] = {EPOLLRDNORM, EPOLLWRNORM, EPOLLRDBAND, EPOLLWRBAND, EPOLLMSG, EPOLLRDNORM | EPOLLWRNORM, EPOLLIN | EPOLLRDNORM,
                                     EPOLLERR, EPOLLHUP, EPOLLPRI | EPOLLRDBAND, EPOLLIN | EPOLLWAKEUP, 0xffff};
    MUST(ctl(ep, ADD, fd, 0, 1));
    MUST(ctl(edge, ADD, fd, EPOLLRDNORM | EPOLLET, 2));
    for (int round = 0; round < 3; round++) { /* nothing, data, the end */
        for (int i = 0; i < 12; i++) {
            R(ctl(ep, MOD, fd, asked[i], asked[i]));
            look(ep, 5);
            struct pollfd p = {fd, (short)asked[i], 0};
            R(poll(&p, 1, 0));
            say("%x", (unsigned short)p.revents);
        }
        look(edge, 20);
        if (round == 0)
            next();
        if (round == 1) {
            look(edge, 20);
            R(recv(fd, buf, 3, 0));
            next();
        }
    }
    R(recv(fd, buf, 10, 0));
    R(shutdown(fd, SHUT_WR));
    look(ep, 20);
}
static void norms_b(void) {
    int fd = conn();
    meet();
    put(fd, "fives", 5);
    meet_settled();
    meet();
    R(shutdown(fd, SHUT_WR));
    meet_settled();
    R(recv(fd, buf, 1, 0));
}

/* ---- one descriptor under several numbers ---- */

static void numbers_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(0)), twin = MUST(dup(fd)), third = MUST(dup2(fd, 50));
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    MUST(ctl(ep, ADD, twin, EPOLLIN | EPOLLET, 2));
    MUST(ctl(ep, ADD, third, EPOLLIN | EPOLLONESHOT, 3));
    look(ep, 20);
    next();
    look(ep, 1000);
    look(ep, 1000);
    R(close(twin)); /* its registration lives on: the others hold the description */
    next();
    look(ep, 1000);
    look(ep, 1000);
    R(ctl(ep, DEL, twin, 0, 0));
    R(ctl(ep, MOD, twin, EPOLLIN, 7));
    R(ctl(ep, MOD, third, EPOLLIN | EPOLLONESHOT, 4));
    look(ep, 1000);
    R(ctl(ep, DEL, fd, 0, 0));
    look(ep, 20);
    R(recv(third, buf, 10, 0));
    next();
    R(ctl(ep, MOD, third, EPOLLIN, 8));
    look(ep, 1000);
    R(close(third));
    look(ep, 1000);
    R(recv(fd, buf, 10, 0));
    look(ep, 20);
    twin = MUST(dup(fd));
    struct pollfd p[4] = {{fd, POLLIN, 0}, {twin, POLLOUT, 0}, {fd, POLLIN | POLLOUT, 0}, {third, POLLIN, 0}};
    R(poll(p, 4, 1000));
    say("%x %x %x %x", p[0].revents, p[1].revents, p[2].revents, p[3].revents);
}
static void numbers_b(void) { sends_b(3); }

/* Exclusive ones of two numbers, in two sets each. */
static void exclusive_a(void) {
    int fd = conn(), one = MUST(epoll_create1(0)), two = MUST(epoll_create1(0)), twin = MUST(dup(fd));
    R(ctl(one, ADD, fd, EPOLLIN | EPOLLEXCLUSIVE, 1));
    R(ctl(one, ADD, twin, EPOLLIN | EPOLLEXCLUSIVE, 2));
    R(ctl(two, ADD, fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET, 3));
    R(ctl(two, ADD, twin, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 4));
    R(ctl(two, ADD, twin, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP, 4));
    R(ctl(one, ADD, fd, EPOLLIN | EPOLLEXCLUSIVE, 1));
    R(ctl(one, MOD, fd, EPOLLIN, 1));
    look(one, 20);
    next();
    look(one, 1000);
    R(close(fd));
    look(one, 1000);
    R(recv(twin, buf, 10, 0));
    look(one, 20);
    R(ctl(one, DEL, twin, 0, 0));
    R(ctl(one, ADD, twin, EPOLLIN, 5));
    next();
    look(one, 1000);
    R(recv(twin, buf, 10, 0));
}
static void exclusive_b(void) { sends_b(2); }

/* ---- changed by another thread, again and again, while one waits ---- */

static int the_set, the_fd, others[2];
static volatile int stop;
static void *changes(void *p) {
    for (int i = 0; !stop; i++) {
        if (i % 3 == 0)
            ctl(the_set, MOD, the_fd, EPOLLIN | (i % 2 ? EPOLLOUT : 0), 1);
        else if (i % 3 == 1)
            ctl(the_set, DEL, others[0], 0, 0);
        else
            ctl(the_set, ADD, others[0], EPOLLIN, 2);
        usleep(50);
    }
    ctl(the_set, MOD, the_fd, EPOLLIN, 1);
    return NULL;
}
static void changed_a(void) {
    the_fd = conn();
    the_set = MUST(epoll_create1(0));
    MUST(pipe(others));
    MUST(ctl(the_set, ADD, the_fd, EPOLLIN, 1));
    MUST(ctl(the_set, ADD, others[0], EPOLLIN, 2));
    pthread_t t;
    pthread_create(&t, NULL, changes, NULL);
    long have = 0;
    while (have < 3000 * 100) {
        struct epoll_event e;
        if (epoll_wait(the_set, &e, 1, 10000) != 1)
            die("no event");
        ssize_t n = recv(the_fd, buf, sizeof buf, MSG_DONTWAIT);
        have += n > 0 ? n : 0;
        if (n > 0)
            put(the_fd, buf, n);
    }
    stop = 1;
    pthread_join(t, NULL);
    say("%ld bytes", have);
    look(the_set, 20);
    R(shutdown(the_fd, SHUT_WR));
    R(recv(the_fd, buf, 1, 0));
}
static void changed_b(void) {
    int fd = conn();
    for (int i = 0; i < 3000; i++) {
        put(fd, buf, 100);
        if (get(fd, buf, 100) != 100)
            die("answer");
    }
    R(recv(fd, buf, 1, 0));
}

/* ---- from set to set ---- */

static void moves_a(void) {
    int fd = conn(), set = MUST(epoll_create1(0)), good = 1;
    MUST(ctl(set, ADD, fd, EPOLLIN, 0));
    for (int i = 1; i <= 40; i++) {
        meet(); /* five bytes are on their way */
        int now = MUST(epoll_create1(0));
        if (i % 2)
            MUST(ctl(set, DEL, fd, 0, 0));
        MUST(ctl(now, ADD, fd, EPOLLIN | (i % 3 ? EPOLLET : 0), i));
        close(set);
        struct epoll_event e = {0};
        good = good && epoll_wait(now, &e, 1, 5000) == 1 && e.data.u64 == (uint64_t)i && e.events == EPOLLIN;
        good = good && get(fd, buf, 5) == 5;
        set = now;
        meet();
    }
    say("good %d", good);
    look(set, 20);
}
static void moves_b(void) {
    int fd = conn();
    for (int i = 1; i <= 40; i++) {
        meet();
        put(fd, "fives", 5);
        meet();
    }
    R(recv(fd, buf, 1, 0));
}

/* A set under several numbers since before its first member. */
static void twins_a(void) {
    int fd = conn(), set = MUST(epoll_create1(0)), twin = MUST(dup(set));
    MUST(ctl(set, ADD, fd, EPOLLIN, 1));
    next();
    look(twin, 1000);
    R(ctl(twin, ADD, fd, EPOLLIN, 2));
    R(ctl(twin, MOD, fd, EPOLLIN | EPOLLET, 2));
    look(set, 1000);
    look(twin, 20);
    R(close(set));
    R(ctl(twin, MOD, fd, EPOLLIN, 3));
    look(twin, 1000);
    R(recv(fd, buf, 10, 0));
    look(twin, 20);
    R(close(twin));
}
static void twins_b(void) {
    int fd = conn();
    meet();
    put(fd, "fives", 5);
    meet_settled();
    R(recv(fd, buf, 1, 0));
}

/* Nothing is read: each byte is an edge of its own, on whichever medium it and those before it are. */
static void unread_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(0)), told = 0;
    struct epoll_event e;
    MUST(ctl(ep, ADD, fd, EPOLLIN | EPOLLET, 1));
    for (int i = 0; i < 100; i++) {
        meet();
        told += epoll_wait(ep, &e, 1, 3000) == 1;
        while (epoll_wait(ep, &e, 1, 0) == 1) /* a change of medium may tell an edge again */
            ;
        meet();
    }
    say("%d of 100", told);
    say("%zu", get(fd, buf, 100));
}
static void unread_b(void) {
    int fd = conn();
    for (int i = 0; i < 100; i++) {
        meet();
        put(fd, "e", 1);
        meet();
    }
}

/* All of what came is read before the wait: the edge is there all the same, of room if that is asked for as well. */
static void read_first(uint32_t how, int times, int rest) {
    int fd = conn(), ep = MUST(epoll_create1(0));
    nonblocking(fd, 1);
    MUST(ctl(ep, ADD, fd, how, 1));
    for (int i = 0; i < times; i++) {
        while (look(ep, rest)) {
        }
        next();
        R(recv(fd, buf, 10, 0));
        if (i % 2) /* which takes the doorbell as well */
            R(recv(fd, buf, 10, 0));
        look(ep, how & EPOLLOUT ? 5000 : 20);
    }
    look(ep, 20);
}
static void read_first_a(void) { read_first(EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 4, 20); }
static void read_first_by_names_a(void) { read_first(EPOLLRDNORM | EPOLLOUT | EPOLLET, 4, 20); }
static void read_first_for_data_a(void) { read_first(EPOLLIN | EPOLLET, 4, 20); }
static void read_first_b(void) { sends_b(4); }
static void read_first_cold_a(void) { read_first(EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 2, 1300); }
static void read_first_cold_2_a(void) { read_first(EPOLLIN | EPOLLOUT | EPOLLET, 2, 1300); }
static void read_first_cold_b(void) { sends_b(2); }

/* The set is a member of another one, in which alone it is waited. */
static void read_first_within_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    nonblocking(fd, 1);
    MUST(ctl(ep, ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1));
    MUST(ctl(outer, ADD, ep, EPOLLIN, 2));
    for (int i = 0; i < 4; i++) {
        look(ep, 0);
        look(outer, 20);
        next();
        R(recv(fd, buf, 10, 0));
        if (i % 2)
            R(recv(fd, buf, 10, 0));
        look(outer, 5000);
    }
}

/* On whichever medium it comes, each is told. */
static void edges_read_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(0));
    struct epoll_event e;
    MUST(ctl(ep, ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1));
    for (int i = 0; i < 100; i++) {
        while (epoll_wait(ep, &e, 1, 0) == 1) { /* as in unread_a */
        }
        meet();
        if (get(fd, buf, 1) != 1 || epoll_wait(ep, &e, 1, 10000) != 1 || e.events != EPOLLOUT)
            die("an edge");
        meet();
    }
}

const struct test tests[] = {{"norms", norms_a, norms_b, 0},
                             {"numbers", numbers_a, numbers_b, 0},
                             {"exclusive_numbers", exclusive_a, exclusive_b, 0},
                             {"changed_by_another", changed_a, changed_b, 0},
                             {"from_set_to_set", moves_a, moves_b, 0},
                             {"sets_with_twins", twins_a, twins_b, 0},
                             {"edges_unread", unread_a, unread_b, 0},
                             {"edges_read", edges_read_a, unread_b, 0},
                             {"edge_of_what_was_read", read_first_a, read_first_b, 0},
                             {"edge_of_what_was_read_by_names", read_first_by_names_a, read_first_b, 0},
                             {"no_edge_of_what_was_read", read_first_for_data_a, read_first_b, 0},
                             {"edge_of_what_was_read_cold", read_first_cold_a, read_first_cold_b, 0},
                             {"edge_of_what_was_read_cold_2", read_first_cold_2_a, read_first_cold_b, 0},
                             {"edge_of_what_was_read_within", read_first_within_a, read_first_b, 0},
                             {0}};
