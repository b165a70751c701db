/* Owns: processes that end while a doorbell lies unread, or is on its way, in a build of the library that takes its time at the right
 * place (tests/tests/faults.rs). What they had sent lies in TCP, before a peer that does not read: a reset would destroy it.
 *   last_bells late    a reader that nobody sees wait takes bytes before it is called for them, and is killed
 *   last_bells exits   a reader that is called for each byte takes the last one; another thread ends the process meanwhile by _exit
 *   last_bells handler the same, in a handler of the reader itself
 * Exit 0: the peer has got all, and the end. Both ends are here, the connecting one in a child that connects by itself. */
#define _GNU_SOURCE
#include "pings.h"
#include "raw.h"
#include <poll.h>
#include <stdatomic.h>

enum { PORT = 7070, BEFORE = 300000, TRICKLES = 200, FEW = 12 };

/* Sends single bytes, and reads when nobody takes them any more: the other end of the pipe ends with whoever does. */
static void mourn(int trickles) {
    int fd = dial(PORT);
    unsigned char c = 1;
    ssize_t n;
    long long all = 0;
    for (int i = 0; i < trickles; i++)
        if (send(fd, &c, 1, MSG_NOSIGNAL) != 1 || (read(gate[0], &c, 1) != 1 && i < trickles - 1))
            die("trickle");
    while (read(gate[0], &c, 1) == 1)
        ;
    static unsigned char bytes[65536];
    for (; (n = recv(fd, bytes, sizeof bytes, 0)) > 0; all += n)
        ;
    if (n || all < BEFORE)
        wrong(n ? "a reset" : "less than was sent");
    printf("%lld bytes, and the end\n", all);
    fflush(stdout);
    close(fd);
}

static void mourn_many(void) { mourn(TRICKLES); }
static void mourn_few(void) { mourn(FEW); }

static int accept_and_send(int listener) {
    static unsigned char before[BEFORE];
    int fd = accept(listener, NULL, NULL);
    if (fd < 0 || send(fd, before, sizeof before, MSG_NOSIGNAL) != sizeof before)
        die("send");
    return fd;
}

/* How the child has ended that was the accepting end. */
static int status_of(void (*victim)(int), int listener) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        victim(listener);
    }
    close(gate[1]);
    if (waitpid(child, &status, 0) != child)
        die("waitpid");
    return status;
}

/* -- late */

static void killed(int listener) {
    int fd = accept_and_send(listener);
    for (int i = 0; i < TRICKLES; i++) {
        unsigned char c;
        while (recv(fd, &c, 1, MSG_DONTWAIT) != 1)
            ; /* as one that is told by a wait of its own */
        if (write(gate[1], "x", 1) != 1)
            die("gate");
    }
    usleep(200000);
    raise(SIGKILL);
}

static void late_server(int listener) {
    int status = status_of(killed, listener);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        wrong("it has died otherwise");
}

/* -- exits, handler */

static atomic_int reads_last;

/* A wait that no library sees. */
static int is_called(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    return raw(SYS_ppoll, (long)&p, 1, (long)&(struct timespec){10, 0}, 0, 0, 0) == 1 && p.revents == POLLIN;
}

static void *trickle_in(void *arg) {
    int fd = *(int *)arg;
    for (int i = 0; i < FEW; i++) {
        unsigned char c;
        if (!is_called(fd))
            die("it was not called");
        reads_last = i == FEW - 1;
        if (recv(fd, &c, 1, 0) != 1)
            die("recv");
        if (i < FEW - 1 && write(gate[1], "x", 1) != 1)
            die("gate");
    }
    return NULL;
}

static void leave(int sig) {
    (void)sig;
    _exit(0);
}

/* The reader is in the middle of its last call. */
static pthread_t wait_for_last(int listener) {
    static int fd;
    pthread_t thread;
    fd = accept_and_send(listener);
    signal(SIGUSR1, leave);
    if (pthread_create(&thread, NULL, trickle_in, &fd))
        die("thread");
    while (!reads_last)
        usleep(1000);
    usleep(30000);
    return thread;
}

static void exits(int listener) {
    wait_for_last(listener);
    _exit(0);
}

static void exits_in_handler(int listener) {
    pthread_kill(wait_for_last(listener), SIGUSR1);
    pause();
}

static void orderly(void (*victim)(int), int listener) {
    int status = status_of(victim, listener);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        wrong("it has died otherwise");
}

static void exits_server(int listener) { orderly(exits, listener); }
static void handler_server(int listener) { orderly(exits_in_handler, listener); }

int main(int argc, char **argv) {
    static const struct meeting cases[] = {{"late", mourn_many, late_server}, {"exits", mourn_few, exits_server}, {"handler", mourn_few, handler_server}};
    return play(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL, PORT, -1);
}
