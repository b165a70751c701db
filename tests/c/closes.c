/* Owns: a descriptor that is closed, or made another file, while another thread is in a call on it, at whatever moment of
 * the call: many connections, each closed a random moment after it has begun to exchange messages. */
#include "case.h"
#include <sys/eventfd.h>

enum { CONNECTIONS = 60, STREAMS = 20, ROUNDS = 300, SIZE = 4 * KIB, MOST = 20000 };

static int the_fd;
static volatile long rounds;
static char out[64 * KIB], in[SIZE];
/* One exchange, or a part of one; false when the call says that the descriptor is gone, which errno tells. */
static int (*step)(void);

static int receive(int flags) {
    ssize_t n = recv(the_fd, in, SIZE, flags);
    if (n >= 0 && n != SIZE)
        errno = n ? ENODATA : ESTALE;
    return n == SIZE;
}
static int send_all(size_t n) {
    ssize_t sent = send(the_fd, out, n, MSG_NOSIGNAL);
    if (sent >= 0 && sent != (ssize_t)n)
        errno = ENOBUFS;
    return sent == (ssize_t)n;
}

static int blocking(void) { return send_all(SIZE) && receive(MSG_WAITALL); }
static int polled(void) {
    struct pollfd p = {the_fd, POLLIN, 0};
    if (!send_all(SIZE) || poll(&p, 1, 5000) != 1)
        return 0;
    errno = EBADF;
    return !(p.revents & POLLNVAL) && receive(MSG_WAITALL);
}
static int selected(void) {
    fd_set s;
    FD_ZERO(&s);
    FD_SET(the_fd, &s);
    struct timeval five = {5, 0};
    return send_all(SIZE) && select(the_fd + 1, &s, NULL, NULL, &five) == 1 && receive(MSG_WAITALL);
}
/* A mebibyte without an answer: the ring is full most of the time. */
static int sending(void) { return send_all(sizeof out); }

static void *exchange(void *said) {
    while (errno = 0, step())
        rounds = rounds + 1;
    *(int *)said = errno;
    return NULL;
}

/* How a call may end: the number was closed, or is another file, before it began. What had begun goes on to its end. */
static int is_gone(int e) { return e == EBADF || e == ENOTSOCK; }

static void b(int (*how)(void), int over) {
    step = how;
    int streams = how == sending, connections = streams ? STREAMS : CONNECTIONS;
    unsigned state = 7;
    long before = lo_bytes(), gone = 0;
    meet();
    for (int i = 0; i < connections; i++) {
        pthread_t t;
        int said = 0;
        the_fd = dial(PORT + 1);
        if (streams)
            warm(the_fd);
        rounds = 0;
        pthread_create(&t, NULL, exchange, &said);
        while (rounds < ROUNDS)
            usleep(20);
        for (volatile unsigned n = rnd(&state) % MOST; n > 0; n--) {
        }
        int other = open("/dev/null", O_RDWR);
        if (over)
            MUST(dup2(other, the_fd));
        else
            MUST(close(the_fd));
        close(other);
        pthread_join(t, NULL);
        if (over)
            close(the_fd);
        gone += is_gone(said);
        if (!is_gone(said))
            dprintf(2, "%s\n", err_name(said));
    }
    if (!streams)
        warmed((long)connections * ROUNDS * 2 * SIZE, lo_bytes() - before);
    say("%ld of %d", gone, connections);
}

/* The other end of all of them: answers each message, or takes what comes, until the end. */
static void a(int answers) {
    int l = listen_on(PORT + 1);
    meet();
    long torn = 0;
    for (int i = 0; i < (answers ? CONNECTIONS : STREAMS); i++) {
        int fd = accept_from(l);
        if (!answers)
            warm(fd);
        ssize_t n;
        /* A reset is an end here: the other end was closed before it had read all answers. */
        while ((n = recv(fd, in, SIZE, answers ? MSG_WAITALL : 0)) > 0)
            if (answers && send(fd, in, n, MSG_NOSIGNAL) != n)
                break;
        torn += n > 0 && n != SIZE;
        close(fd);
    }
    close(l);
    say("torn %ld", torn);
}

static void echo_a(void) { a(1); }
static void sink_a(void) { a(0); }
static void recv_b(void) { b(blocking, 0); }
static void recv_over_b(void) { b(blocking, 1); }
static void poll_b(void) { b(polled, 0); }
static void select_b(void) { b(selected, 0); }
static void send_b(void) { b(sending, 0); }

/* A set is closed while a thread sleeps in it, and another one is made: who sleeps there is woken, whatever the first one does. */
struct sleeper {
    int set, ms;
    pthread_t thread;
};
static void *sleep_in(void *p) {
    struct sleeper *me = p;
    struct epoll_event e;
    return (void *)(long)epoll_wait(me->set, &e, 1, me->ms);
}
static void begin(struct sleeper *s) {
    struct epoll_event e = {EPOLLIN, {0}};
    s->set = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(s->set, EPOLL_CTL_ADD, the_fd, &e));
    pthread_create(&s->thread, NULL, sleep_in, s);
    settle();
}
static long end(struct sleeper *s) {
    void *result;
    pthread_join(s->thread, &result);
    return (long)result;
}
static void in_set_a(void) {
    struct sleeper first = {.ms = 400}, second = {.ms = 10000};
    the_fd = conn();
    begin(&first);
    R(close(first.set));
    begin(&second);
    R(end(&first));
    meet();
    R(end(&second));
    R(recv(the_fd, in, SIZE, 0));
    meet();
}
static void in_set_b(void) {
    int fd = conn();
    meet();
    settle();
    put(fd, "now", 3);
    meet();
}

/* A thread is in recv inside the kernel when its descriptor is closed; its call goes on, and has nothing to do with the next
 * connection of the program, which is in memory when the call ends: with bytes, or with the end of its own. */
static void *in_kernel(void *p) {
    memset(in, 0, sizeof in);
    R(recv(the_fd, in, sizeof in, 0));
    say("got %.4s", in);
    return NULL;
}
static void next_one(int bytes) {
    pthread_t t;
    char c[10];
    the_fd = conn_cold();
    pthread_create(&t, NULL, in_kernel, NULL);
    settle();
    R(close(the_fd));
    int next = conn();
    meet_settled();
    tell('.'); /* 30 bytes for this one lie there, and the other one goes on */
    pthread_join(t, NULL);
    for (int i = 0; i < 3; i++)
        R(recv(next, c, sizeof c, MSG_WAITALL));
    for (int i = 0; i < 300; i++) {
        get(next, in, 1000);
        put(next, in, 1000);
    }
    warm(next);
    echo(next, "the next one", 3);
    R(send(next, "u", 1, MSG_OOB)); /* which only TCP has */
    echo(next, "on TCP", 4);
    R(close(next));
    meet();
}
static void next_one_peer(int bytes) {
    int first = conn_cold(), next = conn();
    put(next, "0123456789abcdefghijABCDEFGHIJ", 30);
    meet_settled();
    hear();
    if (bytes)
        put(first, "late", 4);
    else
        close(first);
    for (int i = 0; i < 300; i++) {
        put(next, out, 1000);
        get(next, in, 1000);
    }
    warm(next);
    echo_until_end(next);
    meet();
}
static void bytes_for_closed_b(void) { next_one(1); }
static void bytes_for_closed_a(void) { next_one_peer(1); }
static void end_of_closed_b(void) { next_one(0); }
static void end_of_closed_a(void) { next_one_peer(0); }

/* A number that a thread polls is closed and becomes another connection's, for whose bytes two threads wait: one for each byte. */
static int an_event;
static void *polls(void *p) {
    struct pollfd two[2] = {{the_fd, POLLIN, 0}, {an_event, POLLIN, 0}};
    MUST(poll(two, 2, -1));
    return NULL;
}
static void *gets_one(void *p) {
    char c;
    if (recv(the_fd, &c, 1, 0) != 1)
        die("recv");
    return NULL;
}
static void start(pthread_t *t, void *(*what)(void *)) {
    MUST(-pthread_create(t, NULL, what, NULL));
    settle();
}
static void polled_before_b(void) {
    pthread_t t[3];
    the_fd = conn();
    an_event = MUST(eventfd(0, EFD_CLOEXEC));
    start(&t[0], polls);
    int was = the_fd;
    R(close(the_fd));
    the_fd = conn();
    say("the same number: %d", was == the_fd);
    start(&t[1], gets_one);
    MUST(write(an_event, &(uint64_t){1}, 8));
    pthread_join(t[0], NULL);
    start(&t[2], gets_one);
    meet();
    pthread_join(t[1], NULL);
    pthread_join(t[2], NULL);
    meet();
}
static void polled_before_a(void) {
    int first = conn(), next = conn();
    meet();
    for (int i = 0; i < 2; i++) {
        put(next, "x", 1);
        settle();
    }
    close(first);
    meet();
}

/* Many at a time: each call goes on, and each connection ends behind it. */
enum { LATE = 100 };
static int late[LATE];
static void *one_late(void *at) {
    char c[4];
    ssize_t n = recv(late[(long)at], c, sizeof c, MSG_WAITALL);
    return (void *)(long)(n == 4 && !memcmp(c, "late", 4));
}
static void many_a(void) {
    int l = listen_on(PORT + 1);
    pthread_t t[LATE];
    meet();
    for (int i = 0; i < LATE; i++) {
        late[i] = accept_from(l);
        for (int k = 0; k < ROUNDS; k++)
            if (get(late[i], in, SIZE) != SIZE || send(late[i], in, SIZE, 0) != SIZE)
                die("round");
    }
    for (long i = 0; i < LATE; i++)
        MUST(-pthread_create(&t[i], NULL, one_late, (void *)i));
    settle();
    for (int i = 0; i < LATE; i++)
        MUST(close(late[i]));
    meet();
    long whole = 0;
    for (int i = 0; i < LATE; i++) {
        void *is_whole;
        pthread_join(t[i], &is_whole);
        whole += (long)is_whole;
    }
    say("%ld whole", whole);
    meet();
}
static void many_b(void) {
    int fd[LATE], ends = 0;
    meet();
    for (int i = 0; i < LATE; i++) {
        fd[i] = dial(PORT + 1);
        for (int k = 0; k < ROUNDS; k++)
            if (send(fd[i], out, SIZE, 0) != SIZE || get(fd[i], in, SIZE) != SIZE)
                die("round");
    }
    meet_settled();
    for (int i = 0; i < LATE; i++)
        put(fd[i], "late", 4);
    meet();
    for (int i = 0; i < LATE; i++) {
        timeouts(fd[i], SO_RCVTIMEO, 3000);
        ends += recv(fd[i], in, 1, 0) == 0;
    }
    say("%d ends", ends);
}

const struct test tests[] = {{"polled_before", polled_before_a, polled_before_b, 0},
                             {"bytes_for_closed", bytes_for_closed_a, bytes_for_closed_b, 0},
                             {"end_of_closed", end_of_closed_a, end_of_closed_b, 0},
                             {"in_set", in_set_a, in_set_b, 0},   {"many", many_a, many_b, COLD | SWITCHES},
                             {"in_recv", echo_a, recv_b, 0},       {"in_recv_over", echo_a, recv_over_b, 0},
                             {"in_poll", echo_a, poll_b, 0},       {"in_select", echo_a, select_b, 0},
                             {"in_send", sink_a, send_b, 0},       {NULL, NULL, NULL, 0}};
