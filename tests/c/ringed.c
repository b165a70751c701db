/* Owns: registrations with epoll sets through a ring, entered by syscall(2) as libuv does it: what is waited for, what is refused, many at a time,
 * rings that come and go. Rings are made before connections: those that are there at the first one stay on TCP. */
#include "ring.h"
#include "sets.h"

static struct ring ring;
static char buf[64 * KIB];
static uint64_t marks; /* each registration says another one */

static int by_ring(int ep, int op, int fd, uint32_t ev, uint64_t data) {
    int r = ctl_by_ring(&ring, ep, op, fd, ev, data);
    say("%s %s: %s", op == ADD ? "ADD" : op == MOD ? "MOD" : op == DEL ? "DEL" : "?", epoll_text(ev), r < 0 ? err_name(errno) : "0");
    return r;
}

/* Answers, registered by a ring with these flags, by level and by edge in turn; waits for room where the other end reads late. */
static void answers(unsigned flags) {
    int is_there = make_ring(&ring, by_syscall, 8, flags), fd = conn_cold(), ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    nonblocking(fd, 1);
    MUST(ctl(ep, ADD, fd, 0, 0));
    uint64_t all = 0;
    for (long have = 0, done = 0;;) {
        uint32_t wants = have ? EPOLLOUT : all % 3 ? EPOLLIN | EPOLLET : EPOLLIN;
        if (is_there ? ctl_by_ring(&ring, ep, MOD, fd, wants, ++marks) : ctl(ep, MOD, fd, wants, ++marks))
            die("MOD");
        struct epoll_event e;
        if (MUST(epoll_wait(ep, &e, 1, 20000)) != 1 || e.data.u64 != marks)
            die("not the event of the last registration");
        if (!have) {
            done = 0, have = recv(fd, buf, sizeof buf, 0);
            if (have < 0)
                die("recv");
            if (have == 0)
                break;
        }
        for (ssize_t n; done < have && (n = send(fd, buf + done, (size_t)(have - done), MSG_NOSIGNAL)) > 0; all += (uint64_t)n)
            done += n;
        if (done == have)
            have = 0;
    }
    say("answered %llu", (unsigned long long)all);
    close(fd), close(ep);
}
enum { TIMES = 1000, SMALL = 100, SIZE = 30000 };
static unsigned size_of(int i) { return i < SMALL ? 100 : SIZE; }
static void *goes_on(void *fd) {
    static char out[SIZE];
    for (int i = SMALL; i < TIMES; i++) {
        fill(out, SIZE, 0, (unsigned)i);
        put(*(int *)fd, out, SIZE);
    }
    shutdown(*(int *)fd, SHUT_WR);
    return NULL;
}
/* First one after the other, then as many as have room; and reads late. */
static void asks(void) {
    static char back[SIZE];
    pthread_t thread;
    int fd = conn_cold();
    for (int i = 0; i < TIMES; i++) {
        unsigned n = size_of(i);
        if (i < SMALL)
            fill(buf, n, 0, (unsigned)i), put(fd, buf, n);
        if (i == SMALL && pthread_create(&thread, NULL, goes_on, &fd))
            die("thread");
        if (i % 50 == 49)
            usleep(2000);
        if (get(fd, back, n) != n || !matches(back, n, 0, (unsigned)i))
            die("another answer");
    }
    pthread_join(thread, NULL);
    payload(2 * (SMALL * 100 + (TIMES - SMALL) * (uint64_t)SIZE));
    say("end: %zd", recv(fd, buf, 1, 0));
    close(fd);
}
static void plain(void) { answers(0); }
static void no_array(void) { answers(NO_ARRAY); }

static void refused(void) {
    int is_there = make_ring(&ring, by_syscall, 8, 0), fd = conn(), ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    int file = MUST(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    struct epoll_event e = {EPOLLIN, {.u64 = 9}};
    if (!is_there)
        return;
    by_ring(ep, MOD, fd, EPOLLIN, 1), by_ring(ep, DEL, fd, 0, 1);
    by_ring(ep, ADD, fd, EPOLLIN, 1), by_ring(ep, ADD, fd, EPOLLIN, 2);
    by_ring(ep, ADD, file, EPOLLIN, 3), by_ring(ep, ADD, 999, EPOLLIN, 4), by_ring(ep, ADD, ep, EPOLLIN, 5), by_ring(999, ADD, fd, EPOLLIN, 6);
    by_ring(fd, ADD, fd, EPOLLIN, 7), by_ring(ep, 17, fd, EPOLLIN, 8);
    say("nowhere: %d %d %d", ring_does(&ring, ring_ctl(ep, ADD, file, NULL)), ring_does(&ring, ring_ctl(ep, MOD, fd, (void *)8)), ring_does(&ring, ring_ctl(ep, DEL, fd, NULL)));
    struct io_uring_sqe odd = ring_ctl(ep, ADD, fd, &e);
    odd.buf_index = 1;
    say("no such entry: %d", ring_does(&ring, odd));
    say("%s", now_in(fd) ? "bytes" : "none");
    look(ep, 0);
    tell('x');
    by_ring(ep, ADD, fd, EPOLLIN, 10);
    look(ep, 20000);
    recv(fd, buf, 1, 0);
    look(ep, 0);
    meet();
}
static void sends_one(void) {
    int fd = conn();
    if (hear() == 'x')
        put(fd, "x", 1);
    meet();
}

/* Some of what stands in the queue is submitted, in a chain or not; each is done once. */
static void many(void) {
    int is_there = make_ring(&ring, by_syscall, 16, 0), fd = conn(), sets[3], at[4] = {fd};
    struct epoll_event e[12];
    if (!is_there)
        return;
    for (int i = 1; i < 4; i++)
        at[i] = MUST(dup(fd));
    for (int i = 0; i < 3; i++)
        sets[i] = MUST(epoll_create1(EPOLL_CLOEXEC));
    for (int i = 0; i < 12; i++) {
        e[i] = (struct epoll_event){EPOLLIN, {.u64 = (unsigned)i}};
        struct io_uring_sqe s = ring_ctl(sets[i / 4], ADD, at[i % 4], &e[i]);
        s.flags = i == 5 || i == 6 ? IOSQE_IO_LINK : 0;
        s.user_data = 100 + (unsigned)i;
        ring_add(&ring, s);
    }
    for (int from = 0, n = 5; from < 12; from += n, n = n + from > 12 ? 12 - from : n) {
        say("submits %d: %ld", n, ring_enter(&ring, (unsigned)n));
        unsigned sum = 0;
        for (int i = 0; i < n; i++) {
            uint64_t whose;
            int result = ring_next(&ring, &whose);
            sum += (unsigned)whose;
            if (result)
                say("%llu: %d", (unsigned long long)whose, result);
        }
        say("whose: %u", sum);
    }
    say("twice: %d", ctl(sets[2], ADD, at[3], EPOLLIN, 0));
    tell('x');
    for (int i = 0; i < 3; i++)
        look(sets[i], 20000);
    recv(fd, buf, 1, 0);
    for (int i = 0; i < 3; i++)
        look(sets[i], 0);
    meet();
}

/* A ring that was closed is none: its number is a connection's, another ring's; and by another number it goes on. */
static void closed(void) {
    int is_there = make_ring(&ring, by_syscall, 8, 0), fd = conn_cold(), ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    if (!is_there)
        return;
    int number = ring.fd, other = MUST(dup(number));
    by_ring(ep, ADD, fd, EPOLLIN, 1);
    close(number);
    ring.fd = other;
    by_ring(ep, MOD, fd, EPOLLIN | EPOLLRDHUP, 2);
    MUST(dup2(fd, number));
    say("the number is a connection's: %ld", by_syscall(SYS_io_uring_enter, number, 1, 0, 0, 0, 8));
    small_talk(number, 60);
    close(number);
    close(other);
    struct ring next;
    make_ring(&next, by_syscall, 8, 0);
    ring = next;
    say("%s", ring.fd == number || ring.fd == other ? "a number again" : "another number");
    by_ring(ep, MOD, fd, EPOLLIN, 3);
    tell('x');
    look(ep, 20000);
    recv(fd, buf, 1, 0);
    by_ring(ep, DEL, fd, 0, 0);
    pid_t child = MUST(fork());
    if (child == 0) {
        int own = MUST(epoll_create1(EPOLL_CLOEXEC));
        make_ring(&ring, by_syscall, 8, 0);
        by_ring(own, ADD, fd, EPOLLIN, 4);
        look(own, 0);
        _exit(0);
    }
    wait_for(child);
    by_ring(ep, ADD, fd, EPOLLOUT, 5);
    look(ep, 0);
    meet();
}
static void closed_b(void) {
    int fd = conn_cold();
    small_talk(fd, 60);
    if (hear() == 'x')
        put(fd, "x", 1);
    meet();
}

const struct test tests[] = {{"plain", plain, asks, COLD | WHOLE},
                             {"no_array", no_array, asks, COLD | WHOLE},
                             {"refused", refused, sends_one, 0},
                             {"many", many, sends_one, 0},
                             {"closed", closed, closed_b, COLD | SWITCHES},
                             {0}};
