/* Owns: numbers of descriptors that the program gets while a thread is about to ring under them, in a build of the library
 * that takes its time at that place (tests/tests/faults.rs). A peer is rung:
 *   reuse moved    the program takes the numbers itself, by dup2
 *   reuse handler  so does a handler of the very thread that rings
 *   reuse closed   the peer has another waiter instead, the number is free, and the program's next descriptor has it
 * or another thread of the process, which sleeps in an epoll set:
 *   reuse own_moved    by dup2
 *   reuse own_closed   the set is closed, the number is free
 * Exit 0: nothing stands in the program's file, and everybody was woken. The connecting end is a program of its own, which
 * does not take its time. */
#define _GNU_SOURCE
#include "ends.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { PORT = 7070, ROUNDS = 3, NUMBERS = 400 };

/* What was given; 0: the other end is gone. */
static char get(int fd) {
    char bytes[BYTES];
    for (size_t n = 0; n < sizeof bytes;) {
        ssize_t more = recv(fd, bytes + n, sizeof bytes - n, 0);
        if (more == 0)
            return 0;
        if (more < 0 && errno != EAGAIN)
            die("recv");
        n += more > 0 ? more : 0;
    }
    return bytes[0];
}

/* -- the end that waits and is rung */

/* Until the other end says that it is in memory. */
static int dial_and_warm(void) {
    int fd = dial(PORT);
    do
        give(fd, 'w');
    while (get(fd) != 'm');
    return fd;
}

static void *ask(void *fd) {
    give(*(int *)fd, 'q');
    if (get(*(int *)fd) != 'a')
        die("no answer");
    return NULL;
}

static void client(int is_closed) {
    int first = dial_and_warm(), second = is_closed ? dial_and_warm() : -1;
    for (int i = 0; i < ROUNDS; i++) {
        if (!is_closed) {
            usleep(200000); /* the other end waits by then */
            ask(&first);
            continue;
        }
        /* The first thread looks by itself, for it is not rung yet, and ends; the second one has its slot. */
        struct timeval soon = {0, 150000};
        setsockopt(first, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        for (int n = 0; n < 2; n++) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, ask, n ? &second : &first) || pthread_join(thread, NULL))
                die("a thread");
        }
        give(second, 'n');
    }
}

/* -- the end that rings */

static int connections[2], file;
static atomic_int in_send, stop;

static int warm(int listener, int nth) {
    int fd = accept(listener, NULL, NULL), more = 10;
    for (int n = 0; fd >= 0 && get(fd) == 'w'; n++) {
        if (n == 20000)
            wrong("it is not in memory");
        more -= regions() == nth;
        give(fd, more > 0 ? 'w' : 'm');
        if (more == 0)
            return fd;
    }
    die("accept");
    return -1;
}

/* Answers, and rings for it: the other end sleeps by then. */
static void *answer(void *fd) {
    if (get(*(int *)fd) != 'q')
        die("no question");
    usleep(60000);
    in_send++;
    give(*(int *)fd, 'a');
    in_send--;
    return NULL;
}

static int is_eventfd(int fd) {
    char path[64], name[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, name, sizeof name);
    return n == 20 && !memcmp(name, "anon_inode:[eventfd]", 20);
}

/* All numbers of eventfds: the program has none itself. */
static int take_numbers(int *numbers) {
    int n = 0;
    for (int fd = 3; fd < 4096 && n < NUMBERS; fd++)
        if (is_eventfd(fd))
            numbers[n++] = fd;
    for (int i = 0; i < n; i++)
        if (dup2(file, numbers[i]) != numbers[i])
            die("dup2");
    return n;
}

/* Whatever number is free next. */
static void *open_more(void *numbers) {
    for (int *n = numbers; *n < NUMBERS && !stop; usleep(*n < NUMBERS / 2 ? 0 : 1000)) {
        int fd = fcntl(file, F_DUPFD_CLOEXEC, 3);
        if (fd >= 0)
            n[++*n] = fd;
    }
    return NULL;
}

static void check_file(void) {
    struct stat st;
    if (fstat(file, &st))
        die("fstat");
    if (st.st_size)
        wrong("there are bytes in the file that the program did not write");
}

static int taken[NUMBERS], taken_count;

static void take_all(int sig) { taken_count = take_numbers(taken); }

/* A thread is about to ring: the numbers are taken, and given back when it has. */
static int taken_from(pthread_t thread, int by_handler) {
    for (int ms = 0; !in_send && ms < 20000; ms++)
        usleep(1000);
    usleep(60000);
    int met = in_send; /* it is being held, with the number in its hands */
    if (by_handler)
        pthread_kill(thread, SIGUSR1);
    else
        take_all(0);
    pthread_join(thread, NULL);
    while (taken_count > 0)
        close(taken[--taken_count]);
    return met;
}

static int moved_round(int by_handler) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer, &connections[0]))
        die("a thread");
    return taken_from(thread, by_handler);
}

/* -- rings of its own threads */

static int set;
static atomic_int waited;

static void *wait_in_set(void *ms) {
    struct epoll_event e;
    epoll_wait(set, &e, 1, *(int *)ms);
    waited++;
    return NULL;
}

static void make_set(void) {
    struct epoll_event e = {.events = EPOLLIN};
    set = epoll_create1(EPOLL_CLOEXEC);
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, connections[0], &e))
        die("a set");
}

/* The one that sleeps in the set has to know. */
static void *add_more(void *fd) {
    struct epoll_event e = {.events = EPOLLOUT, .data = {.u64 = 1}};
    in_send++;
    if (epoll_ctl(set, EPOLL_CTL_ADD, *(int *)fd, &e))
        die("epoll_ctl");
    in_send--;
    return NULL;
}

static int own_moved_round(void) {
    pthread_t waiter, adder;
    int ms = 1000, other = fcntl(connections[0], F_DUPFD_CLOEXEC, 3); /* has room at once */
    if (get(connections[0]) != 'q' || other < 0)
        die("no question");
    make_set();
    if (pthread_create(&waiter, NULL, wait_in_set, &ms))
        die("a thread");
    usleep(100000);
    if (pthread_create(&adder, NULL, add_more, &other))
        die("a thread");
    int met = taken_from(adder, 0);
    pthread_join(waiter, NULL);
    close(other);
    close(set);
    give(connections[0], 'a');
    return met;
}

static int own_closed_round(void) {
    static int numbers[NUMBERS + 1];
    pthread_t waiters[2], opener;
    int ms = 2500, there = 0, met = 0;
    numbers[0] = stop = waited = 0;
    make_set();
    for (int i = 0; i < 2; i++)
        if (pthread_create(&waiters[i], NULL, wait_in_set, &ms))
            die("a thread");
    while (!there && !waited)
        if (usleep(1000), ioctl(connections[0], FIONREAD, &there))
            die("FIONREAD");
    usleep(150000);
    met = !waited; /* the first of them is about to wake the other */
    close(set);
    if (pthread_create(&opener, NULL, open_more, numbers))
        die("a thread");
    for (int i = 0; i < 2; i++)
        pthread_join(waiters[i], NULL);
    stop = 1;
    pthread_join(opener, NULL);
    while (numbers[0] > 0)
        close(numbers[numbers[0]--]);
    if (get(connections[0]) != 'q')
        die("no question");
    give(connections[0], 'a');
    return met;
}

static int closed_round(void) {
    static int numbers[NUMBERS + 1];
    pthread_t first, opener;
    int met = 0;
    numbers[0] = stop = 0;
    if (pthread_create(&first, NULL, answer, &connections[0]))
        die("a thread");
    if (get(connections[1]) != 'q')
        die("no question");
    met = in_send; /* as above */
    usleep(60000);
    if (pthread_create(&opener, NULL, open_more, numbers))
        die("a thread");
    give(connections[1], 'a');
    pthread_join(first, NULL);
    if (get(connections[1]) != 'n')
        die("no end");
    stop = 1;
    pthread_join(opener, NULL);
    while (numbers[0] > 0)
        close(numbers[numbers[0]--]);
    return met;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "moved";
    int is_closed = !strcmp(what, "closed"), status = 0, met = 0;
    signal(SIGUSR1, take_all);
    if (argc > 2)
        return client(is_closed), 0;
    int listener = listen_on(PORT);
    file = memfd_create("the program's", MFD_CLOEXEC);
    if (file < 0)
        die("memfd_create");
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        unsetenv("SMCR_HOLD");
        execl("/proc/self/exe", argv[0], what, "client", NULL);
        _exit(1);
    }
    for (int i = 0; i < 1 + is_closed; i++)
        connections[i] = warm(listener, i + 1);
    for (int i = 0; i < ROUNDS; i++) {
        if (!strncmp(what, "own_", 4))
            met += what[4] == 'm' ? own_moved_round() : own_closed_round();
        else
            met += is_closed ? closed_round() : moved_round(*what == 'h');
        check_file();
    }
    waitpid(child, &status, 0);
    if (!met)
        wrong("no thread was about to ring");
    printf("%s: %d times\n", what, met);
    return !WIFEXITED(status) || WEXITSTATUS(status);
}
