/* Owns: threads that leave send and recv by their signal handlers, at any instruction: by a jump, pthread_exit,
 * cancellation; they come again, or never. The connection is their program's still, and whole: messages go there and back, and
 * what a call that was left had to do is done or not, and not half. SMCR_LEAVING_ROUNDS, SMCR_TEST_SEED. */
#include "case.h"
#include <semaphore.h>
#include <ucontext.h>

enum { WORDS = 16, AT_MOST_US = 200 };

static int the_fd, the_set;
static unsigned seed;
static volatile uint32_t sent, seen; /* calls that have returned */
static sem_t has_left, may_end;
static _Thread_local sigjmp_buf out;
static _Thread_local ucontext_t context;

static int rounds(void) {
    const char *s = getenv("SMCR_LEAVING_ROUNDS");
    return s ? atoi(s) : 300;
}

static void begin(void) {
    const char *s = getenv("SMCR_TEST_SEED");
    seed = s ? (unsigned)atoi(s) : (unsigned)time(NULL) * 7919 + getpid();
    if (!the_fd)
        the_fd = conn();
    sem_init(&has_left, 0, 0);
    sem_init(&may_end, 0, 0);
}

static void wrong(const char *what, uint32_t a, uint32_t b) {
    say("seed %u: %s: %u, %u", seed, what, a, b);
    exit(1);
}

static void send_number(uint32_t n) {
    uint32_t words[WORDS];
    for (int i = 0; i < WORDS; i++)
        words[i] = n;
    if (send(the_fd, words, sizeof words, MSG_NOSIGNAL) != sizeof words)
        die("send");
}

static uint32_t get_number(void) {
    uint32_t words[WORDS];
    struct epoll_event e;
    if (the_set && epoll_wait(the_set, &e, 1, -1) != 1)
        die("epoll_wait");
    if (recv(the_fd, words, sizeof words, MSG_WAITALL) != sizeof words)
        die("recv");
    for (int i = 1; i < WORDS; i++)
        if (words[i] != words[0])
            wrong("a message in two pieces", words[0], words[i]);
    return words[0];
}

static void work(void) {
    for (;;) {
        send_number(sent);
        sent++;
        if (get_number() != seen)
            wrong("not the next one", seen, sent);
        seen++;
    }
}

/* What comes until this is: all from the first one that nobody has seen, one of which may be lost with the call that was left. */
static void reconcile(void) {
    const uint32_t mark = 1u << 31;
    uint32_t first = 1, last = 0, n;
    send_number(mark);
    while ((n = get_number()) != mark) {
        if (first > last)
            first = n;
        else if (n != last + 1)
            wrong("not in order", last, n);
        last = n;
    }
    if (first <= last) {
        if (first != seen && first != seen + 1)
            wrong("lost at the beginning", first, seen);
        if (last != sent && last + 1 != sent)
            wrong("lost at the end", last, sent);
    } else if (sent > seen + 1 || seen > sent) {
        wrong("all lost", sent, seen);
    }
    sent = seen = sent + 1;
}

static void after_a_while(void) {
    for (unsigned i = rnd(&seed) % (AT_MOST_US * 8); i; i--)
        __builtin_ia32_pause();
    if (rnd(&seed) % 16 == 0) /* asleep, all of them */
        usleep(rnd(&seed) % 400);
}

static void jump(int s) { siglongjmp(out, 1); }
static void set_context(int s) { setcontext(&context); }
static void exit_thread(int s) { pthread_exit(NULL); }

static void echo_back(void) {
    char b[4096];
    ssize_t n;
    int fd = the_fd ? the_fd : conn();
    meet();
    while ((n = recv(fd, b, sizeof b, 0)) > 0)
        put(fd, b, n);
    R(n);
    R(close(fd));
    meet();
}

static void done(void) {
    say("%d rounds", rounds());
    R(shutdown(the_fd, SHUT_WR));
    R(recv(the_fd, &(char){0}, 1, 0));
    meet();
}

/* One thread, that of the program. */
static void jumps_with(int flags) {
    begin();
    on_signal(SIGALRM, jump, flags);
    meet();
    for (volatile int i = 0; i < rounds(); i++) {
        if (!sigsetjmp(out, 1)) {
            struct itimerval t = {{0, 0}, {0, 1 + rnd(&seed) % AT_MOST_US}};
            MUST(setitimer(ITIMER_REAL, &t, NULL));
            work();
        }
        reconcile();
    }
    done();
}

static void jumps_a(void) { jumps_with(0); }

static void jumps_from_another_stack_a(void) {
    static char stack[64 * KIB];
    stack_t s = {.ss_sp = stack, .ss_size = sizeof stack};
    MUST(sigaltstack(&s, NULL));
    jumps_with(SA_ONSTACK);
}

/* Each call waits in an epoll set before. */
static void jumps_with_a_set_a(void) {
    struct epoll_event e = {EPOLLIN, {0}};
    the_set = MUST(epoll_create1(0));
    the_fd = conn();
    MUST(epoll_ctl(the_set, EPOLL_CTL_ADD, the_fd, &e));
    jumps_with(0);
}

/* With two that wait, the echo's end is called by a byte on TCP. */
static void *wait_as_well(void *p) {
    struct pollfd one = {the_fd, POLLIN, 0};
    while (poll(&one, 1, -1) == 1 && !(one.revents & POLLHUP))
        usleep(100);
    return NULL;
}
static void echo_back_beside_another(void) {
    pthread_t t;
    the_fd = conn();
    MUST(-pthread_create(&t, NULL, wait_as_well, NULL));
    pthread_detach(t);
    echo_back();
}

/* A sender whose peer calls it back to TCP meanwhile. */
enum { JUMPS = 20 };
static void called_back_a(void) {
    volatile int left = 0, sure = 0;
    the_fd = conn();
    on_signal(SIGALRM, jump, 0);
    meet();
    tick(40, 40);
    if (sigsetjmp(out, 1))
        left++;
    while (left < JUMPS) {
        sure += send(the_fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
        usleep(300); /* the ring does not fill: it is the peer that wants TCP */
    }
    tick(0, 0);
    R(shutdown(the_fd, SHUT_WR));
    tell_pid(sure);
    R(recv(the_fd, &(char){0}, 1, 0));
    meet();
}
static void calls_back_b(void) {
    static char b[64 * KIB];
    ssize_t n, all = 0;
    int fd = conn();
    meet();
    settle();
    R(setsockopt(fd, IPPROTO_TCP, 31 /* TCP_ULP */, "nosuch", 6));
    while ((n = recv(fd, b, sizeof b, 0)) > 0)
        all += n;
    R(n);
    ssize_t more = all - hear_pid(); /* than calls that returned */
    say("all there, and once: %d", more >= 0 && more <= JUMPS);
    R(close(fd));
    meet();
}

static void *leaver(void *leaves) {
    int old;
    volatile int is_back = 0;
    if (!leaves)
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    getcontext(&context);
    if (!is_back && !sigsetjmp(out, 1)) {
        is_back = 1;
        sem_post(&has_left); /* here: is ready to */
        work();
    }
    sem_post(&has_left);
    while (sem_wait(&may_end)) {
    }
    return NULL;
}

/* Another thread leaves, and the program's goes on. */
static void by_threads(void (*leaves)(int), int ends) {
    begin();
    if (leaves)
        on_signal(SIGUSR1, leaves, 0);
    meet();
    for (int i = 0; i < rounds(); i++) {
        pthread_t t;
        MUST(-pthread_create(&t, NULL, leaver, leaves));
        while (sem_wait(&has_left)) {
        }
        after_a_while();
        MUST(-(leaves ? pthread_kill(t, SIGUSR1) : pthread_cancel(t)));
        if (ends)
            pthread_join(t, NULL);
        else
            while (sem_wait(&has_left)) {
            }
        reconcile();
        if (!ends) {
            sem_post(&may_end);
            pthread_join(t, NULL);
        }
    }
    done();
}

static void for_good_a(void) { by_threads(jump, 0); }
static void by_context_a(void) { by_threads(set_context, 0); }
static void exits_a(void) { by_threads(exit_thread, 1); }
static void cancelled_a(void) { by_threads(NULL, 1); }

/* Threads leave calls inside the kernel: one that waits, by cancellation, and one that has sent a part, by a jump. The connection
 * leaves TCP afterwards, as any other. */
static void *receives(void *p) {
    char c;
    sem_post(&has_left);
    recv(the_fd, &c, 1, 0);
    return NULL;
}
static void *sends(void *p) {
    static char much[16 * MIB];
    if (!sigsetjmp(out, 1)) {
        sem_post(&has_left);
        for (;;)
            send(the_fd, much, sizeof much, 0);
    }
    return NULL;
}
/* A connection whose switch was refused waits for so many operations more: they are not the warm-up's. */
enum { SMALL_TALK = 300 };
static void within(void *(*call)(void *)) {
    pthread_t t;
    the_fd = conn_cold();
    sem_init(&has_left, 0, 0);
    on_signal(SIGUSR1, jump, 0);
    MUST(-pthread_create(&t, NULL, call, NULL));
    while (sem_wait(&has_left)) {
    }
    settle();
    MUST(-(call == sends ? pthread_kill(t, SIGUSR1) : pthread_cancel(t)));
    pthread_join(t, NULL);
    meet();
    meet();
    small_talk(the_fd, SMALL_TALK);
    warm(the_fd);
}
static void from_recv_a(void) { within(receives); }
static void from_send_a(void) { within(sends); }
static void within_b(void) {
    static char b[64 * KIB];
    int fd = conn_cold();
    meet();
    do
        while (recv(fd, b, sizeof b, MSG_DONTWAIT) > 0) {
        }
    while (events(fd, POLLIN, 200) & POLLIN);
    meet();
    small_talk(fd, SMALL_TALK);
    warm(fd);
}

const struct test tests[] = {{"jumps", jumps_a, echo_back, 0},
                             {"jumps_from_another_stack", jumps_from_another_stack_a, echo_back, 0},
                             {"jumps_with_a_set", jumps_with_a_set_a, echo_back, 0},
                             {"jumps_beside_a_byte", jumps_a, echo_back_beside_another, 0},
                             {"for_good", for_good_a, echo_back, 0},
                             {"by_context", by_context_a, echo_back, 0},
                             {"called_back", called_back_a, calls_back_b, 0},
                             {"exits", exits_a, echo_back, 0},
                             {"cancelled", cancelled_a, echo_back, 0},
                             {"from_recv_in_kernel", from_recv_a, within_b, 0},
                             {"from_send_in_kernel", from_send_a, within_b, 0},
                             {0}};
