/* Owns: sets of which several threads take what is told once (EPOLLONESHOT): a connection is in the hands of one thread at a time, and in
 * nobody's when it is closed, so that its record may be used again, as servers with a pool of threads do. */
#include "sets.h"
#include <stdatomic.h>
#include <sys/eventfd.h>

enum { CLIENTS = 8, EACH = 15, ROUNDS = 60, SLOTS = CLIENTS, ALL = CLIENTS * EACH, STOP = 1 << 20 };
enum { FREE, ARMED, HELD }; /* of a slot */

static struct slot {
    atomic_int state;
    int fd;
} slots[SLOTS];
static atomic_int unasked, ended, answered;
static int set, stop;
static uint32_t how;

static void *works(void *waits) {
    struct epoll_event e[4];
    for (;;) {
        int n = epoll_wait(set, e, 4, waits ? 10000 : 0);
        if (!waits && n == 0)
            usleep(50);
        for (int i = 0; i < n; i++) {
            if (e[i].data.u64 == STOP)
                return NULL;
            struct slot *s = &slots[e[i].data.u64];
            int was = ARMED;
            if (!atomic_compare_exchange_strong(&s->state, &was, HELD)) {
                unasked++; /* somebody else has it, or nobody at all */
                continue;
            }
            int fd = s->fd;
            char b[16];
            ssize_t got;
            while ((got = recv(fd, b, sizeof b, MSG_DONTWAIT)) > 0) {
                MUST(send(fd, b, got, MSG_NOSIGNAL));
                answered += got;
            }
            if (got == 0) {
                s->state = FREE;
                close(fd);
                if (++ended == ALL)
                    MUST(write(stop, &(uint64_t){1}, 8));
                continue;
            }
            s->state = ARMED;
            MUST(ctl(set, MOD, fd, how, s - slots));
        }
    }
}

static void pool(uint32_t events) {
    pthread_t t[4];
    how = events;
    set = MUST(epoll_create1(EPOLL_CLOEXEC));
    stop = MUST(eventfd(0, EFD_CLOEXEC));
    MUST(ctl(set, ADD, stop, EPOLLIN, STOP));
    int listener = listen_on(PORT + 1);
    meet();
    for (long i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, works, (void *)(i & 3));
    for (int n = 0; n < ALL; n++) {
        int fd = accept_from(listener), i = 0;
        while (slots[i].state != FREE)
            i = (i + 1) % SLOTS, sched_yield();
        slots[i].fd = fd;
        slots[i].state = ARMED;
        MUST(ctl(set, ADD, fd, how, i));
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    say("%d connections, %d bytes, %d events that nobody asked for", (int)ended, (int)answered, (int)unasked);
    meet();
}
static void pool_a(void) { pool(EPOLLIN | EPOLLRDHUP | EPOLLONESHOT); }
static void pool_edges_a(void) { pool(EPOLLIN | EPOLLRDHUP | EPOLLET | EPOLLONESHOT); }

static void *asks(void *right) {
    for (int n = 0; n < EACH; n++) {
        int fd = dial(PORT + 1), one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        for (int i = 0; i < ROUNDS; i++) {
            char b[8] = {n, i, 3}, back[8] = {0};
            MUST(send(fd, b, sizeof b, MSG_NOSIGNAL));
            ssize_t got = recv(fd, back, sizeof back, MSG_WAITALL);
            if (got == sizeof b && !memcmp(b, back, sizeof b))
                ++*(atomic_int *)right;
        }
        close(fd);
    }
    return NULL;
}
static void clients_b(void) {
    pthread_t t[CLIENTS];
    atomic_int right = 0;
    meet();
    for (int i = 0; i < CLIENTS; i++)
        pthread_create(&t[i], NULL, asks, &right);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(t[i], NULL);
    say("%d answers", (int)right);
    meet();
}

const struct test tests[] = {{"pool", pool_a, clients_b, COLD | SWITCHES}, {"pool_edges", pool_edges_a, clients_b, COLD | SWITCHES}, {0}};
