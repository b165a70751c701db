/* Owns: epoll sets and registrations that live on when their number is gone: a set that is closed while a thread waits in it,
 * members whose number is closed while a duplicate keeps the socket. */
#include "looks.h"
#include "waiting.h"
#include <sys/resource.h>

static char buf[64 * KIB];

/* ---- closed while a thread waits ---- */

static int set, limit;
static struct epoll_event seen;
static long wait_in_set(void) {
    memset(&seen, 0, sizeof seen);
    return epoll_wait(set, &seen, 1, limit);
}
static void told(struct waiting *w, int ms) {
    int over = waiting_is_over(w, ms);
    say("over %d: %ld %s %x:%llx", over, over ? w->result : 0, over && w->result < 0 ? err_name(w->error) : "", over ? seen.events : 0,
        (unsigned long long)(over ? seen.data.u64 : 0));
}
/* What comes afterwards is told; the time runs out as ever. */
static void closed_a(void) {
    int fd = conn();
    struct waiting w;
    for (int i = 0; i < 4; i++) {
        set = MUST(epoll_create1(0));
        MUST(ctl(set, ADD, fd, i & 1 ? EPOLLIN | EPOLLET : EPOLLIN, i + 1));
        look(set, 0);
        limit = i < 2 ? -1 : 5000;
        waiting_start(&w, "epoll_wait", wait_in_set);
        R(close(set));
        told(&w, 50);
        int other = i & 1 ? MUST(open("/dev/null", O_RDONLY)) : MUST(epoll_create1(0)); /* has its number */
        R(other == set);
        meet(); /* then something comes */
        told(&w, 5000);
        R(recv(fd, buf, 10, 0));
        if (i & 1)
            R(epoll_wait(other, &seen, 1, 0));
        else
            look(other, 0);
        R(close(other));
    }
    set = MUST(epoll_create1(0));
    MUST(ctl(set, ADD, fd, EPOLLIN, 9));
    limit = 1500;
    waiting_start(&w, "epoll_wait", wait_in_set);
    R(close(set));
    told(&w, 5000);
    R(epoll_wait(set, &seen, 1, 0));
}
static void closed_b(void) {
    int fd = conn();
    for (int i = 0; i < 4; i++) {
        meet();
        settle();
        put(fd, "fives", 5);
    }
    R(recv(fd, buf, 1, 0));
}

/* Another file takes the number by dup2; and the socket is closed as well, which ends its membership. */
static void replaced_a(void) {
    int fd = conn(), null = MUST(open("/dev/null", O_RDONLY)), other[2];
    struct waiting w;
    set = MUST(epoll_create1(0));
    MUST(ctl(set, ADD, fd, EPOLLIN, 1));
    limit = -1;
    waiting_start(&w, "epoll_wait", wait_in_set);
    R(dup2(null, set) == set);
    told(&w, 50);
    meet();
    told(&w, 5000);
    R(recv(fd, buf, 10, 0));
    R(close(set));

    MUST(pipe(other));
    set = MUST(epoll_create1(0));
    MUST(ctl(set, ADD, fd, EPOLLIN, 2));
    MUST(ctl(set, ADD, other[0], EPOLLIN, 3));
    waiting_start(&w, "epoll_wait", wait_in_set);
    R(close(set));
    R(close(fd));
    told(&w, 50);
    R(write(other[1], "p", 1));
    told(&w, 5000);
    meet();
}
static void replaced_b(void) {
    int fd = conn();
    meet();
    settle();
    put(fd, "fives", 5);
    R(recv(fd, buf, 1, 0));
    meet();
}

/* Several threads in it; each is told. */
static void several_a(void) {
    int fd = conn();
    struct waiting w[3];
    set = MUST(epoll_create1(0));
    MUST(ctl(set, ADD, fd, EPOLLIN, 1));
    limit = -1;
    for (int i = 0; i < 3; i++)
        waiting_start(&w[i], "epoll_wait", wait_in_set);
    R(close(set));
    for (int i = 0; i < 3; i++)
        say("over %d", waiting_is_over(&w[i], 20));
    meet(); /* level-triggered: for all of them */
    for (int i = 0; i < 3; i++)
        if (waiting_is_over(&w[i], 5000))
            say("over: %ld", w[i].result);
    R(recv(fd, buf, 10, 0));
    meet();
    echo(fd, "after it", 1);
}
static void several_b(void) {
    int fd = conn();
    meet();
    settle();
    put(fd, "fives", 5);
    meet();
    echo_until_end(fd);
}

/* The set has another number, which stays. */
static void numbers_a(void) {
    int fd = conn(), twin;
    struct waiting w;
    for (int i = 0; i < 2; i++) {
        set = MUST(epoll_create1(0));
        MUST(ctl(set, ADD, fd, EPOLLIN, i + 1));
        twin = MUST(dup(set));
        limit = i ? 20000 : -1;
        waiting_start(&w, "epoll_wait", wait_in_set);
        R(close(set));
        told(&w, 50);
        if (i) { /* and now the last one */
            R(close(twin));
            told(&w, 50);
        }
        meet();
        told(&w, 5000);
        if (!i) {
            look(twin, 1000);
            R(close(twin));
        }
        R(recv(fd, buf, 10, 0));
    }
    meet();
}
static void numbers_b(void) {
    int fd = conn();
    for (int i = 0; i < 2; i++) {
        meet();
        settle();
        put(fd, "fives", 5);
    }
    meet();
}

/* Waits that are left by a jump out of a handler, or by the end of their thread, and sets that are closed then: nothing is left of
 * them. */
static sigjmp_buf out_of_wait;
static void jump(int sig) { siglongjmp(out_of_wait, 1); }
static void *wait_and_jump(void *p) {
    struct epoll_event e;
    for (int i = 0; i < 60; i++) {
        int ep = MUST(epoll_create1(0));
        MUST(ctl(ep, ADD, *(int *)p, EPOLLIN, 1));
        if (!sigsetjmp(out_of_wait, 1)) {
            tick(5, 0);
            epoll_wait(ep, &e, 1, -1);
        }
        MUST(close(ep));
    }
    return NULL;
}
static int waited_in;
static pid_t waits;
static void *wait_for_ever(void *p) {
    struct epoll_event e;
    __atomic_store_n(&waits, gettid(), __ATOMIC_RELEASE);
    int n = epoll_wait(waited_in, &e, 1, -1);
    fprintf(stderr, "epoll_wait = %d %s %x\n", n, n < 0 ? err_name(errno) : "", n > 0 ? e.events : 0);
    return NULL;
}
static void await_waiter(void) {
    for (pid_t tid = 0; !tid || waiting_state(tid) != 'S'; usleep(100))
        tid = __atomic_load_n(&waits, __ATOMIC_ACQUIRE);
}
static void left_a(void) {
    int fd = conn();
    struct rlimit few = {40, 40};
    pthread_t t;
    void *r;
    on_signal(SIGALRM, jump, 0);
    MUST(setrlimit(RLIMIT_NOFILE, &few));
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    waited_in = MUST(epoll_create1(0));
    MUST(-pthread_create(&t, NULL, wait_for_ever, NULL)); /* so that there is another thread, which the signals don't reach */
    await_waiter();
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    wait_and_jump(&fd);
    say("jumped");
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    for (int i = 0; i < 60; i++) {
        waited_in = MUST(epoll_create1(0));
        MUST(ctl(waited_in, ADD, fd, EPOLLIN, 1));
        __atomic_store_n(&waits, 0, __ATOMIC_RELEASE);
        MUST(-pthread_create(&t, NULL, wait_for_ever, NULL));
        usleep(2000);
        await_waiter();
        if (i & 1)
            MUST(close(waited_in));
        MUST(-pthread_cancel(t));
        MUST(-pthread_join(t, &r));
        if (r != PTHREAD_CANCELED)
            die("not cancelled");
        if (!(i & 1))
            MUST(close(waited_in));
    }
    say("cancelled");
    echo(fd, "after it", 1);
}
static void left_b(void) { echo_until_end(conn()); }

/* ---- members whose number is gone ---- */

static void orphans(uint32_t how) {
    int fd = conn(), ep = MUST(epoll_create1(0)), two = MUST(dup(fd)), three = MUST(dup(fd));
    MUST(ctl(ep, ADD, fd, EPOLLIN | how, 1));
    look(ep, 0);
    R(close(fd)); /* the others keep it */
    next();
    look(ep, 1000);
    R(ctl(ep, DEL, two, 0, 0));
    R(recv(two, buf, 10, 0));
    R(close(two)); /* and now the third alone */
    next();
    look(ep, 1000);
    R(recv(three, buf, 10, 0));
    int again = MUST(dup(three)); /* has the number of the first one */
    R(again == fd);
    R(ctl(ep, DEL, again, 0, 0)); /* which names its registration again */
    next();
    look(ep, 50);
    R(recv(three, buf, 10, 0));
    R(ctl(ep, ADD, again, EPOLLIN | how, 4));
    R(ctl(ep, ADD, three, EPOLLIN | how, 5));
    next();
    look(ep, 1000);
    R(close(again));
    R(ctl(ep, MOD, three, EPOLLIN | how, 6));
    look(ep, 1000);
    R(recv(three, buf, 10, 0));
    R(close(three));
    look(ep, 20);
}
static void level_orphans_a(void) { orphans(0); }
static void edge_orphans_a(void) { orphans(EPOLLET); }
static void orphans_b(void) { fives(conn(), 4); }

/* Another connection takes the number of the duplicate that kept a member's socket. */
static void reused_a(void) {
    int l = listen_on(PORT + 1), fd = conn(), ep = MUST(epoll_create1(0)), two = MUST(dup(fd)), three = MUST(dup(fd));
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    look(ep, 0);
    R(close(fd));
    R(close(two));
    meet();
    int four = accept_from(l);
    R(four == fd);
    int five = MUST(dup(four));
    R(five == two);
    warm(four);
    next(); /* on the second one: no member */
    look(ep, 50);
    R(recv(four, buf, 10, 0));
    next(); /* on the first */
    look(ep, 1000);
    R(recv(three, buf, 10, 0));
    look(ep, 20);
}
static void reused_b(void) {
    int fd = conn();
    meet();
    int other = dial(PORT + 1);
    warm(other);
    for (int i = 0; i < 2; i++) {
        meet();
        put(i ? fd : other, "fives", 5);
        meet_settled();
    }
    R(recv(fd, buf, 1, 0));
}

/* Removed first and closed then, while a duplicate keeps the socket: nothing is told of it. */
static void removed_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(0)), twin = MUST(dup(fd));
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    look(ep, 5);
    for (int i = 0; i < 3; i++) {
        R(ctl(ep, DEL, fd, 0, 0));
        if (i == 1)
            R(close(fd));
        next();
        look(ep, 50);
        R(recv(twin, buf, 10, 0));
        if (i == 0)
            R(ctl(ep, ADD, fd, EPOLLIN, 2));
    }
    R(dup2(twin, fd) == fd);
    R(ctl(ep, DEL, fd, 0, 0));
    R(ctl(ep, ADD, fd, EPOLLIN, 3));
    next();
    look(ep, 1000);
}
static void removed_b(void) { fives(conn(), 4); }

/* The same in a child of fork, whose parent keeps the socket. */
static void child_removed_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(0));
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    look(ep, 5);
    R(ctl(ep, DEL, fd, 0, 0));
    pid_t child = MUST(fork());
    if (child == 0) {
        R(close(fd));
        meet();
        meet_settled();
        look(ep, 50);
        _exit(0);
    }
    wait_for(child);
    look(ep, 50);
    R(recv(fd, buf, 10, 0));
    R(ctl(ep, ADD, fd, EPOLLIN, 2));
    next();
    look(ep, 1000);
    R(recv(fd, buf, 10, 0));
    look(ep, 1500); /* the kernel is asked for it again */
    next();
    look(ep, 5000);
}
static void child_removed_b(void) { fives(conn(), 3); }

/* And in one that closes it when its parent has added it again, with other data. */
static void child_late_a(void) {
    int fd = conn(), ep = MUST(epoll_create1(0)), go[2];
    char c;
    MUST(pipe(go));
    MUST(ctl(ep, ADD, fd, EPOLLIN, 1));
    look(ep, 5);
    R(ctl(ep, DEL, fd, 0, 0));
    pid_t child = MUST(fork());
    if (child == 0) {
        MUST(read(go[0], &c, 1));
        R(close(fd));
        _exit(0);
    }
    R(ctl(ep, ADD, fd, EPOLLIN, 2));
    MUST(write(go[1], "g", 1));
    wait_for(child);
    for (int i = 0; i < 2; i++) {
        look(ep, 1500); /* the kernel is asked for it again */
        next();
        look(ep, 5000);
        R(recv(fd, buf, 10, 0));
    }
}
static void child_late_b(void) { fives(conn(), 2); }

const struct test tests[] = {{"closed", closed_a, closed_b, 0},
                             {"replaced", replaced_a, replaced_b, 0},
                             {"several", several_a, several_b, 0},
                             {"numbers", numbers_a, numbers_b, 0},
                             {"left", left_a, left_b, 0},
                             {"level_orphans", level_orphans_a, orphans_b, 0},
                             {"edge_orphans", edge_orphans_a, orphans_b, 0},
                             {"reused", reused_a, reused_b, 0},
                             {"removed", removed_a, removed_b, 0},
                             {"child_removed", child_removed_a, child_removed_b, 0},
                             {"child_late", child_late_a, child_late_b, 0},
                             {0}};
