/* Owns: senders whose rings are kept (SMCR_LENIENT, tests/tests/faults.rs): the other end sleeps in an epoll set, and gets each message whatever
 * its sender does behind the send.
 *   kept waits     it waits for the answer: in recv, poll, select, an epoll set, or by looking again and again
 *   kept away      it waits for something that the library does not see, a pipe
 *   kept threads   its thread ends
 *   kept forks     it forks, and parent and child go on
 *   kept execs     it becomes another program
 *   kept dies      it is killed
 * Exit 0: all came, and the end. The connecting end is a child that connects by itself. */
#define _GNU_SOURCE
#include "pings.h"
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

enum { PORT = 7075, TIMES = 60, WARM = 40, ENDS = 12 };

/* Sends back what comes in capital letters, and passes on by the pipe what comes in small ones; how much came in all. */
static long serve(int fd) {
    int set = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN};
    long all = 0;
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &e))
        die("epoll_ctl");
    for (;;) {
        char c;
        if (epoll_wait(set, &e, 1, -1) != 1)
            die("epoll_wait");
        ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            continue;
        if (n < 0)
            die("recv");
        if (n == 0)
            break;
        all++;
        if (c >= 'a' ? write(gate[1], &c, 1) != 1 : send(fd, &c, 1, MSG_NOSIGNAL) != 1)
            die("answer");
    }
    close(set);
    close(fd);
    return all;
}

/* Once the other end sleeps. */
static void say(int fd, char c) {
    usleep(2000);
    if (send(fd, &c, 1, MSG_NOSIGNAL) != 1)
        die("send");
}

static void hear(int fd, char said) {
    char c;
    if (read(fd, &c, 1) != 1 || c != said)
        wrong("another answer");
}

static int begin(void) {
    int fd = dial(PORT);
    for (int i = 0; i < WARM; i++) {
        say(fd, 'A');
        hear(fd, 'A');
    }
    return fd;
}

static void one_server(int listener) {
    int fd = accept(listener, NULL, NULL);
    if (fd < 0)
        die("accept");
    printf("%ld messages\n", serve(fd));
}

/* Some ends, one after the other, each with its own process or connection. */
static void many_server(int listener) {
    for (int i = 0; i < ENDS; i++) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            die("accept");
        long all = serve(fd);
        if (all != WARM + 1)
            wrong("a message is lost");
    }
    printf("%d ends\n", ENDS);
}

/* -- waits */

static void waits(void) {
    int fd = begin(), set = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN};
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &e))
        die("epoll_ctl");
    for (int i = 0; i < 5 * TIMES; i++) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        fd_set reads;
        FD_ZERO(&reads);
        FD_SET(fd, &reads);
        say(fd, 'W');
        char c = 0;
        if ((i % 5 == 1 && poll(&p, 1, -1) != 1) || (i % 5 == 2 && select(fd + 1, &reads, NULL, NULL, NULL) != 1) ||
            (i % 5 == 3 && epoll_wait(set, &e, 1, -1) != 1))
            die("wait");
        while (i % 5 == 4 && recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK) != 1)
            ;
        hear(fd, 'W');
    }
}

/* -- away */

static void away(void) {
    int fd = begin();
    for (int i = 0; i < TIMES; i++) {
        say(fd, 'a');
        hear(gate[0], 'a');
        usleep(500 * (i % 5));
    }
}

/* -- threads */

static void *says_and_ends(void *fd) {
    say((int)(long)fd, 't');
    return NULL;
}

static void threads(void) {
    int fd = begin();
    for (int i = 0; i < TIMES; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, says_and_ends, (void *)(long)fd))
            die("pthread_create");
        hear(gate[0], 't');
        pthread_join(thread, NULL);
    }
}

/* -- forks */

static void forks(void) {
    int fd = begin();
    for (int i = 0; i < TIMES; i++) {
        say(fd, 'f');
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        hear(gate[0], 'f');
        waitpid(child, NULL, 0);
        say(fd, 'F');
        hear(fd, 'F');
    }
}

/* -- execs, dies */

static void ends(int by_exec) {
    for (int i = 0; i < ENDS; i++) {
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            say(begin(), 'e');
            if (by_exec)
                execl("/bin/true", "true", (char *)NULL);
            raise(SIGKILL);
        }
        int status;
        if (waitpid(child, &status, 0) != child || (by_exec ? status : WTERMSIG(status) != SIGKILL))
            wrong("it has ended otherwise");
        hear(gate[0], 'e');
    }
}

static void execs(void) { ends(1); }
static void dies(void) { ends(0); }

static const struct meeting CASES[] = {
    {"waits", waits, one_server},   {"away", away, one_server},   {"threads", threads, one_server},
    {"forks", forks, one_server},   {"execs", execs, many_server}, {"dies", dies, many_server},
};

int main(int argc, char **argv) { return play(CASES, sizeof CASES / sizeof *CASES, argc > 1 ? argv[1] : NULL, PORT, -1); }
