/* Owns: the edge of EPOLLOUT: a connection that was full has room again, whatever its set and the threads of it did meanwhile. */
#include "sets.h"
#include <sched.h>
#include <stdatomic.h>

enum { ROUNDS = 3 };
static char buf[64 * KIB];
static uint64_t sent;

/* One registration for both ways that stays as it is, as event loops with edges make it. */
static int both_ways(int fd) {
    int ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(ctl(ep, ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1));
    nonblocking(fd, 1);
    look(ep, 1000);
    return ep;
}
/* Nothing comes for a good second. */
static void rest(int ep) {
    struct epoll_event e;
    while (epoll_wait(ep, &e, 1, 1300) > 0) {
    }
}
static void fill_up(int fd) {
    ssize_t n;
    do {
        fill(buf, sizeof buf, sent, 3);
        n = send(fd, buf, sizeof buf, MSG_NOSIGNAL);
        sent += n > 0 ? n : 0;
    } while (n > 0);
    say("full: %s", err_name(errno));
}
/* Each time all of it, when it has been full for a while. */
static void reads_b(void) {
    int fd = conn(), whole = 1;
    uint64_t taken = 0;
    for (int i = 0; i < ROUNDS; i++) {
        meet();
        settle();
        while (events(fd, POLLIN, 300) & POLLIN) {
            ssize_t n = MUST(recv(fd, buf, sizeof buf, 0));
            whole = whole && matches(buf, n, taken, 3);
            taken += n;
        }
        meet();
    }
    say("whole: %d", whole);
    R(recv(fd, buf, 1, 0));
}

static void idle_a(void) {
    int fd = conn(), ep = both_ways(fd);
    for (int i = 0; i < ROUNDS; i++) {
        rest(ep);
        fill_up(fd);
        meet();
        look(ep, 10000);
        meet();
    }
}

static void *looks(void *set) {
    look((int)(intptr_t)set, 10000);
    return NULL;
}
/* A thread sleeps in the set while another one finds the connection full. */
static void asleep(int fd, int rests) {
    int ep = both_ways(fd);
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t t;
        if (rests)
            rest(ep);
        pthread_create(&t, NULL, looks, (void *)(intptr_t)ep);
        settle();
        fill_up(fd);
        meet();
        pthread_join(t, NULL);
        meet();
    }
}
static void asleep_a(void) { asleep(conn(), 0); }
static void asleep_for_long_a(void) { asleep(conn(), 1); }
/* The connection under another number than that which it came by. */
static int renumbered(void) { return placed(conn(), 50); }
static void asleep_renumbered_a(void) { asleep(renumbered(), 1); }

/* In another set, which alone is waited for. */
static void nested(int fd, uint32_t how) {
    int ep = MUST(epoll_create1(EPOLL_CLOEXEC)), outer = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(ctl(ep, ADD, fd, how, 1));
    MUST(ctl(outer, ADD, ep, EPOLLIN, 2));
    nonblocking(fd, 1);
    look(outer, 1000);
    look(ep, 0);
    for (int i = 0; i < ROUNDS; i++) {
        fill_up(fd);
        meet();
        look(outer, 10000);
        look(ep, 0);
        meet();
    }
}
static void nested_a(void) { nested(conn(), EPOLLIN | EPOLLOUT | EPOLLET); }
static void nested_level_a(void) { nested(conn(), EPOLLIN | EPOLLOUT); }
static void nested_renumbered_a(void) { nested(renumbered(), EPOLLIN | EPOLLOUT | EPOLLET); }

/* Level-triggered, by a thread that never sleeps and shares its processor with the reader: room comes while it is in the middle of a look. */
enum { MS = 2500 };
static void on_one_processor(void) {
    cpu_set_t may, first;
    MUST(sched_getaffinity(0, sizeof may, &may));
    CPU_ZERO(&first);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&first); i++)
        if (CPU_ISSET(i, &may))
            CPU_SET(i, &first);
    MUST(sched_setaffinity(0, sizeof first, &first));
}
static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
static void never_asleep_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event e;
    nonblocking(fd, 1);
    MUST(ctl(ep, ADD, fd, EPOLLIN | EPOLLOUT, 1));
    on_one_processor();
    meet();
    for (long end = now_ms() + MS; now_ms() < end;)
        if (MUST(epoll_wait(ep, &e, 1, 0)) > 0)
            while (send(fd, buf, sizeof buf, MSG_NOSIGNAL) > 0) {
            }
    tell('e');
    meet(); /* all is read */
    int n = 0;
    for (long end = now_ms() + 5000; n == 0 && now_ms() < end;)
        n = MUST(epoll_wait(ep, &e, 1, 0));
    say("room: %s", n > 0 ? epoll_text(e.events) : "none");
    meet();
}
static atomic_int heard;
static void *hears(void *unused) {
    (void)unused;
    hear();
    heard = 1;
    return NULL;
}
static void never_asleep_b(void) {
    int fd = conn();
    pthread_t t;
    nonblocking(fd, 1);
    on_one_processor();
    meet();
    MUST(pthread_create(&t, NULL, hears, NULL));
    for (int last = 0; !last;) {
        last = heard;
        while (recv(fd, buf, sizeof buf, 0) > 0) {
        }
    }
    pthread_join(t, NULL);
    meet();
    meet();
}

const struct test tests[] = {{"idle", idle_a, reads_b, 0},
                             {"asleep", asleep_a, reads_b, 0},
                             {"asleep_for_long", asleep_for_long_a, reads_b, 0},
                             {"asleep_renumbered", asleep_renumbered_a, reads_b, 0},
                             {"nested", nested_a, reads_b, 0},
                             {"nested_renumbered", nested_renumbered_a, reads_b, 0},
                             {"nested_level", nested_level_a, reads_b, 0},
                             {"never_asleep", never_asleep_a, never_asleep_b, SLOW},
                             {0}};
