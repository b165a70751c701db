/* Owns: what becomes of threads in calls on a socket that another thread disconnects (AF_UNSPEC) and connects again at once: they have
 * nothing to do with the new connection. They are kept from running in between, as well as a priority can do that. */
#include "case.h"
#include "waiting.h"

static char buf[8 * MIB];
static int shared;
static cpu_set_t all;

/* Whoever starts from here on runs on this processor. */
static void stay_here(void) {
    cpu_set_t here;
    MUST(sched_getaffinity(0, sizeof all, &all));
    CPU_ZERO(&here);
    CPU_SET(MUST(sched_getcpu()), &here);
    MUST(sched_setaffinity(0, sizeof here, &here));
}

static void run_anywhere(void) { MUST(sched_setaffinity(0, sizeof all, &all)); }

static void hold_back(struct waiting *w) {
    struct sched_param none = {0};
    MUST(sched_setscheduler(w->tid, SCHED_IDLE, &none));
}

/* Returns when the new connection has brought something. */
static void connect_anew(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    MUST(connect(shared, &none, sizeof none));
    MUST(connect(shared, (void *)&to, sizeof to));
    while (!events(shared, POLLIN, 0)) {
    }
}

static void told(struct waiting *w) {
    if (!waiting_is_over(w, 20000))
        die("it waits on");
    if (w->result > 4096)
        say("%s: a part", w->name);
    else
        say("%s: %ld %s", w->name, w->result, w->result < 0 ? err_name(w->error) : "");
}

/* What is there is the new connection's, in both directions. */
static void is_new(void) {
    memset(buf, 0, 16);
    R(recv(shared, buf, 64, MSG_DONTWAIT));
    say("%s", buf);
    put(shared, "hello", 5);
    R(recv(shared, buf, 64, 0));
    MUST(close(shared));
}

static void accept_anew(int l) {
    int fd = accept_from(l);
    put(fd, "welcome", 7);
    size_t n = get(fd, buf, 5);
    say("%.*s", (int)n, buf);
    close(fd);
}

static long w_recv(void) { return recv(shared, buf + MIB, 64, 0); }
static long w_recv_all(void) { return recv(shared, buf + MIB, 64, MSG_WAITALL); }
static long w_send(void) { return send(shared, buf + MIB, 7 * MIB, 0); }

enum { ROUNDS = 5 };

/* ---- a reader, and one that has a part of what it wants ---- */

static void reader_b(void) {
    meet();
    for (int i = 0; i < ROUNDS; i++) {
        struct waiting w;
        shared = dial(PORT);
        warm(shared);
        meet();
        stay_here();
        waiting_start(&w, "reader", i % 2 ? w_recv_all : w_recv);
        hold_back(&w);
        connect_anew();
        told(&w);
        is_new();
        run_anywhere();
    }
}
static void reader_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < ROUNDS; i++) {
        int fd = accept_from(l);
        warm(fd);
        if (i % 2)
            put(fd, "a part", 6);
        meet();
        R(recv(fd, buf, 1, 0));
        close(fd);
        accept_anew(l);
    }
}

/* ---- readers of a connection that has carried nothing ---- */

static void readers_b(void) {
    meet();
    for (int i = 0; i < ROUNDS; i++) {
        struct waiting w[2];
        shared = dial(PORT);
        stay_here();
        waiting_start(&w[0], "one reader", w_recv);
        waiting_start(&w[1], "another reader", w_recv);
        hold_back(&w[0]);
        hold_back(&w[1]);
        connect_anew();
        told(&w[0]);
        told(&w[1]);
        is_new();
        run_anywhere();
    }
}
static void readers_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < ROUNDS; i++) {
        int fd = accept_from(l);
        R(recv(fd, buf, 1, 0));
        close(fd);
        accept_anew(l);
    }
}

/* ---- a writer that waits for room, for long and not ---- */

static void writer_b(void) {
    meet();
    for (int i = 0; i < ROUNDS; i++) {
        struct waiting w;
        shared = dial(PORT);
        warm(shared);
        stay_here();
        if (i == 0) {
            waiting_start(&w, "writer", w_send);
        } else {
            w = (struct waiting){.name = "writer", .call = w_send};
            MUST(-pthread_create(&w.thread, NULL, waiting_thread, &w));
            while (!__atomic_load_n(&w.tid, __ATOMIC_ACQUIRE) || waiting_state(w.tid) != 'S')
                sched_yield();
        }
        hold_back(&w);
        connect_anew();
        told(&w);
        is_new();
        run_anywhere();
    }
}
static void writer_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < ROUNDS; i++) {
        int fd = accept_from(l);
        warm(fd);
        accept_anew(l);
        close(fd);
    }
}

/* ---- writers that have waited for long: what they have in the kernel differs, and one has all there that it has given it ---- */

enum { WRITERS = 24 };

static struct writer {
    pthread_t thread;
    int fd;
    long result;
} writers[WRITERS];

static void *writer_thread(void *p) {
    struct writer *w = p;
    w->result = send(w->fd, buf, sizeof buf, 0);
    return NULL;
}

static void long_b(void) {
    meet();
    for (int i = 0; i < WRITERS; i++) {
        int fd = writers[i].fd = dial(PORT), size = 512 * KIB + i * 32 * KIB;
        MUST(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
        warm(fd);
        MUST(-pthread_create(&writers[i].thread, NULL, writer_thread, &writers[i]));
    }
    usleep(400000);
    for (int i = 0; i < WRITERS; i++) {
        shared = writers[i].fd;
        connect_anew();
        MUST(-pthread_join(writers[i].thread, NULL));
        say("%s", writers[i].result > 4096 ? "a part" : "nothing");
        is_new();
    }
}
static void long_a(void) {
    int l = listen_on(PORT), fds[WRITERS];
    meet();
    for (int i = 0; i < WRITERS; i++)
        warm(fds[i] = accept_from(l));
    for (int i = 0; i < WRITERS; i++)
        accept_anew(l);
}

const struct test tests[] = {{"reader", reader_a, reader_b, 0},
                             {"cold_readers", readers_a, readers_b, COLD},
                             {"writer", writer_a, writer_b, 0},
                             {"writers_for_long", long_a, long_b, 0},
                             {0}};
