/* Owns: threads that leave calls in which they sleep, by a jump or cancelled, and live on or end: nobody waits for them afterwards. */
#include "case.h"
#include <semaphore.h>
#include <sys/eventfd.h>

static int the_fd, the_set;
static sem_t has_left, may_end;
static _Thread_local sigjmp_buf out;

static void await(sem_t *sem) {
    while (sem_wait(sem)) { /* a handler ran */
    }
}
static void jump(int s) { siglongjmp(out, 1); }
static void begin(void) {
    sem_init(&has_left, 0, 0);
    sem_init(&may_end, 0, 0);
    on_signal(SIGUSR1, jump, 0);
}

/* The thread lives on without another call; the connection is closed, and the peer sees it. */
static void *sleeper(void *p) {
    if (!sigsetjmp(out, 1)) {
        sem_post(&has_left);
        char c;
        recv(the_fd, &c, 1, 0);
    }
    sem_post(&has_left);
    await(&may_end);
    return NULL;
}
static void then_closed_a(void) {
    pthread_t t;
    the_fd = conn();
    begin();
    MUST(-pthread_create(&t, NULL, sleeper, NULL));
    await(&has_left);
    settle();
    MUST(-pthread_kill(t, SIGUSR1));
    await(&has_left);
    R(close(the_fd));
    meet();
    meet();
    sem_post(&may_end);
    pthread_join(t, NULL);
}
static void then_closed_b(void) {
    int fd = conn();
    timeouts(fd, SO_RCVTIMEO, 3000);
    meet();
    R(recv(fd, &(char){0}, 1, 0));
    meet();
}

/* Threads leave calls in which they sleep, and their program goes on with one: whom the peer wakes by name, not by bytes on TCP. */
enum { LEAVERS = 12, QUIET_ROUNDS = 12000 };
static int other_fd;
static void *sleeps(void *polls) {
    struct pollfd two[2] = {{the_fd, POLLIN, 0}, {other_fd, POLLIN, 0}};
    char c;
    sem_post(&has_left);
    if (polls)
        poll(two, 2, -1);
    else
        recv(the_fd, &c, 1, 0);
    return NULL;
}
static void *sleeps_and_jumps(void *polls) {
    if (!sigsetjmp(out, 1))
        sleeps(polls);
    return NULL;
}
static void then_alone(long polls, int cancels) {
    char word[64];
    the_fd = conn();
    other_fd = MUST(eventfd(0, EFD_CLOEXEC));
    begin();
    for (int i = 0; i < LEAVERS; i++) {
        pthread_t t;
        MUST(-pthread_create(&t, NULL, cancels ? sleeps : sleeps_and_jumps, (void *)polls));
        await(&has_left);
        usleep(20000);
        MUST(-(cancels ? pthread_cancel(t) : pthread_kill(t, SIGUSR1)));
        pthread_join(t, NULL);
    }
    meet();
    for (int i = 0; i < QUIET_ROUNDS; i++) {
        put(the_fd, word, sizeof word);
        if (i % 4 == 0) /* asleep */
            usleep(1);
        get(the_fd, word, sizeof word);
    }
    payload(2L * QUIET_ROUNDS * sizeof word);
    meet();
}
static void then_alone_b(void) {
    char word[64];
    int fd = conn();
    meet();
    for (int i = 0; i < QUIET_ROUNDS; i++) {
        get(fd, word, sizeof word);
        if (i % 2 == 0)
            usleep(50);
        put(fd, word, sizeof word);
    }
    meet();
}
static void alone_recv_a(void) { then_alone(0, 0); }
static void alone_poll_a(void) { then_alone(1, 0); }
static void alone_recv_cancelled_a(void) { then_alone(0, 1); }
static void alone_poll_cancelled_a(void) { then_alone(1, 1); }

/* A thread jumps out of epoll_wait, and lives on; its set is closed, and the kernel has it no more. */
static void *waits_in_set(void *p) {
    struct epoll_event e;
    if (!sigsetjmp(out, 1)) {
        sem_post(&has_left);
        epoll_wait(the_set, &e, 1, -1);
    }
    sem_post(&has_left);
    await(&may_end);
    return NULL;
}
static void set_then_closed_a(void) {
    pthread_t t;
    struct epoll_event e = {EPOLLIN, {0}};
    the_fd = conn();
    begin();
    the_set = MUST(epoll_create1(0));
    MUST(epoll_ctl(the_set, EPOLL_CTL_ADD, the_fd, &e));
    MUST(-pthread_create(&t, NULL, waits_in_set, NULL));
    await(&has_left);
    settle();
    MUST(-pthread_kill(t, SIGUSR1));
    await(&has_left);
    say("%d set", numbers_of("eventpoll"));
    R(close(the_set));
    say("%d sets", numbers_of("eventpoll"));
    sem_post(&may_end);
    pthread_join(t, NULL);
    R(close(the_fd));
    meet();
}
static void set_then_closed_b(void) {
    int fd = conn();
    R(recv(fd, &(char){0}, 1, 0));
    meet();
}

const struct test tests[] = {{"set_then_closed", set_then_closed_a, set_then_closed_b, 0},
                             {"alone_after_recv", alone_recv_a, then_alone_b, WHOLE},
                             {"alone_after_poll", alone_poll_a, then_alone_b, WHOLE},
                             {"alone_after_recv_cancelled", alone_recv_cancelled_a, then_alone_b, WHOLE},
                             {"alone_after_poll_cancelled", alone_poll_cancelled_a, then_alone_b, WHOLE},
                             {"then_closed", then_closed_a, then_closed_b, 0},
                             {0}};
