/* Owns: a server that ends, by exit or by exec, with much that it has sent still on its way, while its peer asks it for something: in a
 * build of the library in which the moment between its last look and the end takes long (tests/tests/faults.rs). What the peer would
 * ring for then must not lie unread, for that makes a reset of the end.
 *   last_look exit|exec COMMAND      the command drains the program
 * Exit 0: all that was sent has come, and then the end. */
#define _GNU_SOURCE
#include "ends.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { PORT = 7073, SMALL = 100, RING = 300000, MUCH = 1 << 20 };

static int told[2];
static char much[MUCH];

static void server(int listener, int execs) {
    char got;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    for (int i = 0; i < SMALL; i++)
        if (recv(fd, &got, 1, 0) != 1 || send(fd, "x", 1, MSG_NOSIGNAL) != 1)
            die("small talk of the server");
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (recv(fd, &got, 1, 0) != -1) /* whoever waits for more does so past the library */
        wrong("more has come");
    long sent = 0;
    for (ssize_t n; (n = send(fd, much, MUCH, MSG_NOSIGNAL)) > 0;) /* the ring, and then TCP, which keeps most of it */
        sent += n;
    if (write(told[1], &sent, sizeof sent) != sizeof sent)
        die("write");
    int in_a_row = 0;
    for (int i = 0; in_a_row < 1000; i++, usleep(100)) { /* when there is room, and behind that in memory again */
        ssize_t n = send(fd, much, 1, MSG_NOSIGNAL);
        in_a_row = n > 0 ? in_a_row + 1 : 0;
        sent += n > 0;
        if (i > 10000)
            wrong("no room comes");
    }
    if (write(told[1], &sent, sizeof sent) != sizeof sent)
        die("write");
    if (execs)
        execl("/bin/true", "true", (char *)NULL);
    exit(0);
}

int main(int argc, char **argv) {
    int listener = listen_on(PORT);
    if (pipe(told))
        die("pipe");
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        server(listener, argc > 1 && !strcmp(argv[1], "exec"));
    }
    static char got[1 << 14];
    long all = 0, sent;
    int fd = dial(PORT);
    for (int i = 0; i < SMALL; i++)
        if (send(fd, "x", 1, MSG_NOSIGNAL) != 1 || recv(fd, got, 1, 0) != 1)
            die("small talk");
    if (read(told[0], &sent, sizeof sent) != sizeof sent)
        die("read");
    for (ssize_t n; all < RING; all += n)
        if ((n = recv(fd, got, sizeof got, 0)) <= 0)
            die("recv of the ring");
    if (read(told[0], &sent, sizeof sent) != sizeof sent)
        die("read");
    if (argc > 2 && system(argv[2]))
        die(argv[2]);
    struct pollfd p = {fd, POLLPRI, 0};
    poll(&p, 1, 100); /* where it hears of that */
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
        wrong("the server has failed");
    for (ssize_t n; (n = recv(fd, got, sizeof got, 0)) != 0; all += n)
        if (n < 0) {
            fprintf(stderr, "%ld of %ld bytes: ", all, sent);
            die("recv");
        }
    if (all != sent)
        wrong("not all has come");
    return 0;
}
