/* Owns: several threads on one connection: readers, writers, close and shutdown while another
 * waits, cancellation, thread exit. */
#include "case.h"

static char buf[64 * KIB];
static int the_fd;

/* Two readers share a stream of numbered words: each word is read once. With MSG_WAITALL a word is
 * not torn only if readers are serialised, which TCP does by its socket lock. */
enum { WORDS = 200000 };
static unsigned char seen[WORDS];
static void *read_words(void *count) {
    uint32_t w[1];
    for (;;) {
        ssize_t n = recv(the_fd, w, 4, MSG_WAITALL);
        if (n != 4)
            return NULL;
        if (w[0] >= WORDS)
            die("a torn word");
        __atomic_add_fetch(&seen[w[0]], 1, __ATOMIC_RELAXED);
        ++*(long *)count;
    }
}
static void readers_a(void) {
    the_fd = conn();
    pthread_t t[2];
    long count[2] = {0};
    for (int i = 0; i < 2; i++)
        pthread_create(&t[i], NULL, read_words, &count[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    long once = 0;
    for (int i = 0; i < WORDS; i++)
        once += seen[i] == 1;
    say("%ld words, each once: %ld", count[0] + count[1], once);
}
static void readers_b(void) {
    int fd = conn();
    static uint32_t w[WORDS];
    for (uint32_t i = 0; i < WORDS; i++)
        w[i] = i;
    for (size_t o = 0; o < sizeof w; o += 1000)
        put(fd, (char *)w + o, sizeof w - o < 1000 ? sizeof w - o : 1000);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}

/* Two writers: what each sends in one call stays together (less than any buffer). */
static void *write_blocks(void *which) {
    char block[64];
    for (int i = 0; i < 20000; i++) {
        memset(block, *(char *)which, sizeof block);
        memcpy(block + 1, &i, 4);
        if (send(the_fd, block, sizeof block, 0) != sizeof block)
            die("send");
    }
    return NULL;
}
static void writers_a(void) {
    the_fd = conn();
    pthread_t t[2];
    pthread_create(&t[0], NULL, write_blocks, "p");
    pthread_create(&t[1], NULL, write_blocks, "q");
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    R(shutdown(the_fd, SHUT_WR));
    R(recv(the_fd, buf, 1, 0));
}
static void writers_b(void) {
    int fd = conn(), next[2] = {0}, good = 1;
    char block[64];
    while (get(fd, block, sizeof block) == sizeof block) {
        int *n = &next[block[0] == 'q'], i;
        memcpy(&i, block + 1, 4);
        good = good && i == (*n)++;
        for (int k = 5; k < 64; k++)
            good = good && block[k] == block[0];
    }
    say("%d %d good %d", next[0], next[1], good);
}

/* Full duplex from four threads at once on both ends. */
static void *put_it(void *p) {
    put_stream(the_fd, 20 * MIB, is_a ? 1 : 2);
    return NULL;
}
static void duplex(void) {
    the_fd = conn();
    pthread_t t;
    pthread_create(&t, NULL, put_it, NULL);
    get_stream(the_fd, 20 * MIB, is_a ? 2 : 1);
    pthread_join(t, NULL);
    meet();
}

/* A thread waits in recv when the connection first moves to memory: it must not read past. */
static void *early_reader(void *p) {
    get_stream(the_fd, 5 * MIB, 3);
    return NULL;
}
static void early_a(void) {
    the_fd = conn_cold();
    pthread_t t;
    pthread_create(&t, NULL, early_reader, NULL);
    settle();
    put_stream(the_fd, 5 * MIB, 4);
    meet();
    pthread_join(t, NULL);
    warm(the_fd);
    meet();
}
static void early_b(void) {
    the_fd = conn_cold();
    get_stream(the_fd, 5 * MIB, 4);
    meet();
    put_stream(the_fd, 5 * MIB, 3);
    warm(the_fd);
    meet();
}

/* Four threads block in recv before anything is known of the peer, and whoever gets the last byte of a
 * message answers it: the stream moves all the same. */
enum { MESSAGES = 2000, MESSAGE = 16000 };
static long taken;
static void *one_of_many(void *p) {
    char mine[MESSAGE];
    for (ssize_t n; (n = recv(the_fd, mine, sizeof mine, 0)) > 0;) {
        long now = __atomic_add_fetch(&taken, n, __ATOMIC_SEQ_CST);
        if (now / MESSAGE != (now - n) / MESSAGE && send(the_fd, mine, 1, 0) != 1)
            die("send");
    }
    return NULL;
}
static void many_readers_a(void) {
    the_fd = conn_cold();
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, one_of_many, NULL);
    settle();
    meet();
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    R(shutdown(the_fd, SHUT_WR));
    meet();
}
static void many_readers_b(void) {
    int fd = conn_cold();
    meet();
    long before = lo_bytes();
    for (int i = 0; i < MESSAGES; i++) {
        put(fd, buf, MESSAGE);
        if (get(fd, buf, 1) != 1)
            die("answer");
    }
    warmed(MESSAGES * (MESSAGE + 1L), lo_bytes() - before);
    MUST(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
    meet();
}

/* Four threads write without a pause to a slow reader from the start on, so that some are always inside a send,
 * most of them waiting for room: the stream moves all the same. So much that what fits into the socket buffers, and what goes on
 * through TCP while a starved end takes its steps (some megabytes together), is a small part of it. */
enum { WRITERS = 4, BLOCKS = 45000, BLOCK = 2000 };
static void many_writers_a(void) {
    int fd = conn_cold();
    long of[WRITERS] = {0};
    meet();
    for (ssize_t n; (n = recv(fd, buf, BLOCK / 2, 0)) > 0;)
        for (ssize_t i = 0; i < n; i++)
            of[buf[i] - 'p']++;
    for (int i = 0; i < WRITERS; i++)
        say("writer %d: %ld bytes", i, of[i]);
    R(shutdown(fd, SHUT_WR));
    meet();
}
static void *one_writer(void *which) {
    char block[BLOCK];
    memset(block, 'p' + (int)(intptr_t)which, sizeof block);
    for (int i = 0; i < BLOCKS; i++)
        if (send(the_fd, block, sizeof block, 0) != sizeof block)
            die("send");
    return NULL;
}
static void many_writers_b(void) {
    the_fd = conn_cold();
    meet();
    long before = lo_bytes();
    pthread_t t[WRITERS];
    for (int i = 0; i < WRITERS; i++)
        pthread_create(&t[i], NULL, one_writer, (void *)(intptr_t)i);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(t[i], NULL);
    R(shutdown(the_fd, SHUT_WR));
    R(recv(the_fd, buf, 1, 0));
    warmed((long)WRITERS * BLOCKS * BLOCK, lo_bytes() - before);
    meet();
}

/* close while another thread waits in recv. In Linux the reader keeps waiting, with a reference of
 * its own; data still comes to it, and the peer sees no end before it has returned. */
static void *waiting_recv(void *p) {
    R(recv(the_fd, buf, 100, 0));
    return NULL;
}
static void close_waiting_a(void) {
    the_fd = conn();
    pthread_t t;
    pthread_create(&t, NULL, waiting_recv, NULL);
    settle();
    R(close(the_fd));
    meet();
    pthread_join(t, NULL);
    R(recv(the_fd, buf, 1, 0));
    meet();
}
static void close_waiting_b(void) {
    int fd = conn();
    meet();
    settle();
    R(recv(fd, buf, 1, MSG_DONTWAIT));
    R(send(fd, "still", 5, 0));
    R(recv(fd, buf, 1, 0));
    meet();
}

static void *waiting_poll(void *p) {
    return (void *)(long)events(the_fd, POLLIN, 5000);
}
static void shutdown_waiting_a(void) {
    the_fd = conn();
    pthread_t t;
    void *result;
    pthread_create(&t, NULL, waiting_poll, NULL);
    settle();
    R(shutdown(the_fd, SHUT_RDWR));
    pthread_join(t, &result);
    say("poll: %s", poll_text((long)result));
    R(recv(the_fd, buf, 1, 0));
    meet();
}
static void shutdown_waiting_b(void) {
    int fd = conn();
    R(recv(fd, buf, 1, 0));
    meet();
}

/* pthread_cancel in each waiting call; the connection serves on. */
static int cancel_kind;
static int cleaned;
static void clean(void *p) { cleaned++; }
static void *cancelled(void *p) {
    static char *big;
    struct pollfd f = {the_fd, POLLIN, 0};
    struct epoll_event e = {EPOLLIN, {0}};
    int ep = epoll_create1(0);
    fd_set r;
    pthread_cleanup_push(clean, NULL);
    FD_ZERO(&r);
    FD_SET(the_fd, &r);
    epoll_ctl(ep, EPOLL_CTL_ADD, the_fd, &e);
    switch (cancel_kind) {
    case 0: recv(the_fd, buf, 10, 0); break;
    case 1: if (read(the_fd, buf, 10)) {} break;
    case 2: recv(the_fd, buf, 10, MSG_WAITALL); break;
    case 3: poll(&f, 1, -1); break;
    case 4: epoll_wait(ep, &e, 1, -1); break;
    case 5: select(the_fd + 1, &r, NULL, NULL, NULL); break;
    case 6:
        big = calloc(1, 64 * MIB);
        send(the_fd, big, 64 * MIB, 0);
        break;
    }
    pthread_cleanup_pop(0);
    return NULL;
}
static void cancel_a(void) {
    the_fd = conn();
    for (cancel_kind = 0; cancel_kind < 6; cancel_kind++) {
        pthread_t t;
        void *result;
        pthread_create(&t, NULL, cancelled, NULL);
        settle();
        R(pthread_cancel(t));
        pthread_join(t, &result);
        say("%d cancelled %d cleaned %d", cancel_kind, result == PTHREAD_CANCELED, cleaned);
        put(the_fd, "abc", 3);
        if (get(the_fd, buf, 3) != 3)
            die("after the cancellation");
    }
    /* Cancelled before the call: at the next cancellation point. */
    R(shutdown(the_fd, SHUT_WR));
    R(recv(the_fd, buf, 1, 0));
}
static void cancel_b(void) {
    int fd = conn();
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;)
        put(fd, buf, n);
    close(fd);
}

static void *cancelled_sender(void *p) {
    cancel_kind = 6;
    return cancelled(p);
}
static void cancel_send_a(void) {
    the_fd = conn();
    pthread_t t;
    void *result;
    pthread_create(&t, NULL, cancelled_sender, NULL);
    for (int i = 0; i < 5; i++)
        settle();
    R(pthread_cancel(t));
    pthread_join(t, &result);
    say("cancelled %d", result == PTHREAD_CANCELED);
    meet();
    R(shutdown(the_fd, SHUT_WR));
    R(recv(the_fd, buf, 1, 0));
}
static void cancel_send_b(void) {
    int fd = conn();
    meet();
    ssize_t n;
    long all = 0;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
        all += n;
    say("some %d, then %zd", all > 0 && all < 64 * MIB, n);
}

/* Many short threads, each with its share of one stream. */
static void *one_message(void *p) {
    static char m[3000];
    put(the_fd, m, sizeof m);
    return get(the_fd, (char[3000]){0}, 3000) == 3000 ? NULL : "short";
}
static void short_threads_a(void) {
    the_fd = conn();
    int good = 1;
    for (int i = 0; i < 500; i++) {
        pthread_t t;
        void *result;
        pthread_create(&t, NULL, one_message, NULL);
        pthread_join(t, &result);
        good = good && !result;
    }
    say("500 good %d", good);
    R(shutdown(the_fd, SHUT_WR));
    R(recv(the_fd, buf, 1, 0));
}

/* Who waits for room of one connection has waited for that of another before: a thread of a pool, which sleeps in a send on the
 * second one when another thread sends on the first; or one that had the first in a set, and took it out. */
enum { PART = 2 * MIB, REST = 6 * MIB };
static int first, second;
static char whole_part[PART];

static void *sends_in_turn(void *none) {
    put(first, whole_part, PART);
    tell('1');
    put_stream(second, REST, 3);
    return NULL;
}
static void *waits_in_a_set(void *none) {
    int set = MUST(epoll_create1(0));
    struct epoll_event e = {EPOLLOUT, {.fd = first}};
    nonblocking(first, 1);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, first, &e));
    for (size_t o = 0; o < PART;) {
        MUST(epoll_wait(set, &e, 1, -1));
        ssize_t n = send(first, whole_part + o, PART - o, 0);
        o += n > 0 ? n : 0;
    }
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, first, NULL));
    nonblocking(first, 0);
    e = (struct epoll_event){EPOLLIN, {.fd = second}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, second, &e));
    tell('1');
    say("epoll_wait = %d", MUST(epoll_wait(set, &e, 1, -1)));
    return NULL;
}
static void sends_behind(void *(*other)(void *)) {
    pthread_t t;
    first = conn(), second = conn();
    fill(whole_part, PART, 0, 1);
    pthread_create(&t, NULL, other, NULL);
    hear();
    settle();
    settle(); /* the other one sleeps */
    fill(whole_part, PART, 0, 2);
    put(first, whole_part, PART);
    say("sent");
    tell('2');
    pthread_join(t, NULL);
}
static void in_turn_a(void) { sends_behind(sends_in_turn); }
static void after_a_set_a(void) { sends_behind(waits_in_a_set); }

static void turns(void) {
    first = conn(), second = conn();
    get_stream(first, PART, 1);
    hear();
    tell('1');
    get_stream(first, PART, 2);
    hear();
}
static void in_turn_b(void) {
    turns();
    get_stream(second, REST, 3);
}
static void after_a_set_b(void) {
    turns();
    put(second, "x", 1);
}

const struct test tests[] = {{"two_readers", readers_a, readers_b, 0},
                             {"two_writers", writers_a, writers_b, 0},
                             {"duplex", duplex, duplex, WHOLE},
                             {"reader_before_the_switch", early_a, early_b, 0},
                             {"many_readers", many_readers_a, many_readers_b, 0},
                             {"many_writers", many_writers_a, many_writers_b, 0},
                             {"close_while_reading", close_waiting_a, close_waiting_b, 0},
                             {"shutdown_while_polling", shutdown_waiting_a, shutdown_waiting_b, 0},
                             {"cancel", cancel_a, cancel_b, 0},
                             {"cancel_send", cancel_send_a, cancel_send_b, 0},
                             {"short_threads", short_threads_a, cancel_b, 0},
                             {"writers_in_turn", in_turn_a, in_turn_b, 0},
                             {"writers_after_a_set", after_a_set_a, after_a_set_b, WHOLE},
                             {0}};
