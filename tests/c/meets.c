/* Owns: a close that meets something in the middle: a step of the library in another thread's call, a relative's close, a thread that comes to
 * wait. In a build of the library that takes its time at the right place (tests/tests/faults.rs).
 *   meets step       a thread makes memory for a connection; another one closes it. The next connection is whole
 *   meets parted     a process and its child have a connection, and close it at the same time: its memory is given back by both
 *   meets unvisited  a thread comes to wait in an epoll set that another one is about to close: the wait goes on, as in the kernel
 *   meets found      a thread has found nothing, and another one closes the connection before it has said that it waits: its call ends
 * Exit 0: right. Both ends are here, the connecting one in a child that connects by itself. */
#define _GNU_SOURCE
#include "pings.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { PORT = 7071, ROUNDS = 5 };

static int back[2]; /* what the connecting end tells the other one */

static void none_left(void) {
    for (int ms = 0; regions() && ms < 5000; ms++)
        usleep(1000);
    if (regions())
        wrong("memory of a closed connection is mapped");
}

/* -- step: the other process, which does not take its time, has the accepting end of the first connection, and the connecting one of the next */

enum { PEER = PORT + 1, MORE = 300, MOST_S = 60 };

static void peer(void) {
    int listener = listen_on(PEER), n = 0;
    if (write(STDOUT_FILENO, "l", 1) != 1)
        die("write");
    int first = accept(listener, NULL, NULL);
    while (answer(first))
        ;
    close(first);
    int second = dial(PORT);
    while (ping(second, n))
        n++;
    exit(n < MORE);
}

static void step_client(void) {
    char self[256] = "";
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || dup2(gate[0], STDIN_FILENO) < 0 || dup2(back[1], STDOUT_FILENO) < 0)
        die("a peer");
    unsetenv("SMCR_HOLD");
    execl(self, self, "peer", NULL);
    die("execl");
}

static void *talk(void *arg) {
    for (int n = 0; ping(*(int *)arg, n); n++)
        ;
    return NULL;
}

static void step_server(int listener) {
    pthread_t thread;
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC), talks = 1;
    char c;
    if (nothing < 0 || read(back[0], &c, 1) != 1)
        die("the peer");
    int first = dial(PEER);
    if (pthread_create(&thread, NULL, talk, &first))
        die("thread");
    for (int ms = 0; !regions() && ms < 20000; ms++)
        usleep(1000);
    if (regions() != 1)
        wrong("no memory was made"); /* the thread stands behind that */
    if (dup2(nothing, first) != first)
        die("dup2");
    int second = accept(listener, NULL, NULL);
    struct timeval limit = {MOST_S / 2, 0};
    if (second < 0 || setsockopt(second, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit))
        die("accept");
    for (int n = 0; n < MORE; n += !talks) {
        if (!answer(second))
            wrong("the next connection has ended");
        talks = talks && pthread_tryjoin_np(thread, NULL) != 0;
    }
    close(second);
    none_left();
    printf("step: the next one is whole\n");
}

/* -- parted */

static void parted_client(void) {
    for (int i = 0; i < ROUNDS; i++) {
        int fd = dial(PORT);
        for (int n = 0; ping(fd, n); n++)
            ;
        close(fd);
    }
}

static void parted_server(int listener) {
    int shared = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int fd = accept(listener, NULL, NULL), go[2], status;
        for (int n = 0; n < 400; n++)
            if (!answer(fd))
                die("answer");
        shared += regions() == 1;
        if (pipe(go))
            die("pipe");
        pid_t child = fork();
        if (child == 0) {
            char c;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (read(go[0], &c, 1) != 1)
                die("read");
            usleep(100000); /* it is in its close */
            close(fd);
            _exit(regions() != 0);
        }
        if (write(go[1], "x", 1) != 1)
            die("write");
        close(fd);
        none_left();
        close(go[0]);
        close(go[1]);
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
            wrong("the child has it mapped");
    }
    if (shared < ROUNDS)
        wrong("it was not in memory");
    printf("parted: %d times\n", shared);
}

/* -- unvisited */

enum { WARM = 400 };

static void unvisited_client(void) {
    int fd = dial(PORT);
    char c;
    for (int n = 0; n < WARM; n++)
        if (!ping(fd, n))
            die("ping");
    if (read(gate[0], &c, 1) != 1)
        die("gate");
    give(fd, 'x');
    while (recv(fd, &c, 1, 0) > 0)
        ;
}

static int waits_in;
static atomic_int comes;

static void *come(void *arg) {
    struct epoll_event e;
    while (!comes)
        usleep(1000);
    usleep(100000); /* it is in its close */
    int n = epoll_wait(waits_in, &e, 1, 20000);
    *(int *)arg = n == 1 ? e.data.fd : -1;
    return NULL;
}

static void unvisited_server(int listener) {
    pthread_t thread;
    int fd = accept(listener, NULL, NULL), told = 0;
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    waits_in = epoll_create1(EPOLL_CLOEXEC);
    if (fd < 0 || epoll_ctl(waits_in, EPOLL_CTL_ADD, fd, &e) || pthread_create(&thread, NULL, come, &told))
        die("a connection");
    for (int n = 0; n < WARM; n++)
        if (epoll_wait(waits_in, &e, 1, 20000) != 1 || !answer(fd))
            die("answer");
    if (regions() != 1)
        wrong("it is not in memory");
    comes = 1;
    close(waits_in);
    if (write(gate[1], "x", 1) != 1)
        die("gate");
    pthread_join(thread, NULL);
    if (told != fd)
        wrong("the wait has ended");
    close(fd);
    printf("unvisited: told\n");
}

/* -- found: a reader that is told by poll looks before it waits */

/* A message that is waited for by poll; 0 at the end. */
static int told(int fd, unsigned char *bytes) {
    struct pollfd p = {fd, POLLIN, 0};
    for (ssize_t n = 0, more; n < BYTES; n += more)
        if (poll(&p, 1, 20000) != 1 || (more = recv(fd, bytes + n, BYTES - n, 0)) <= 0)
            return 0;
    return 1;
}

static void found_client(void) {
    unsigned char bytes[BYTES];
    int fd = dial(PORT);
    for (int n = 0; n < WARM; n++) {
        give(fd, 'x');
        if (!told(fd, bytes))
            die("told");
    }
    if (read(gate[0], bytes, 1) != 1) /* it has seen what became of its call */
        die("gate");
    close(fd);
}

static void *find(void *fd) {
    char c;
    return (void *)(long)(recv(*(int *)fd, &c, 1, 0) < 0 ? errno : 0);
}

static void found_server(int listener) {
    pthread_t thread;
    unsigned char bytes[BYTES];
    int fd = accept(listener, NULL, NULL);
    for (int n = 0; n < WARM; n++) {
        if (!told(fd, bytes))
            die("told");
        give(fd, 'x');
    }
    if (regions() != 1)
        wrong("it is not in memory");
    if (pthread_create(&thread, NULL, find, &fd))
        die("thread");
    usleep(100000); /* it has found nothing */
    close(fd);
    if (returned(thread, "its call goes on for ever") != EBADF)
        wrong("its call has ended otherwise");
    if (write(gate[1], "x", 1) != 1)
        die("gate");
    none_left();
    printf("found: ended\n");
}

int main(int argc, char **argv) {
    static const struct meeting cases[] = {
        {"step", step_client, step_server}, {"parted", parted_client, parted_server}, {"unvisited", unvisited_client, unvisited_server},
        {"found", found_client, found_server}};
    const char *name = argc > 1 ? argv[1] : NULL;
    if (name && !strcmp(name, "peer"))
        peer();
    if (pipe(back))
        die("pipe");
    return play(cases, sizeof cases / sizeof *cases, name, PORT, back[0]);
}
