/* Owns: what others do to a socket or have told it: a child by calls that no hook sees, a listener for the connections that it
 * accepts, a thread that disconnects it while a child or another thread has it. */
#include "waiting.h"

static char buf[64 * KIB];

/* ---- what a child sets by a call that no hook sees holds for all that have the descriptor ---- */

static void by_child_a(void) {
    int fd = conn();
    static char b[64 * KIB];
    pid_t child = MUST(fork());
    if (child == 0)
        _exit(raw(SYS_fcntl, fd, F_SETFL, O_RDWR | O_NONBLOCK, 0, 0, 0) != 0);
    wait_for(child);
    R(recv(fd, buf, 10, 0));
    meet();
    say("%s", poll_text(events(fd, POLLIN, 20000)));
    R(recv(fd, buf, 10, 0));
    while (send(fd, b, sizeof b, 0) > 0)
        ;
    say("full: %s", err_name(errno));
    meet();
    R(shutdown(fd, SHUT_WR));
    say("%s", poll_text(events(fd, POLLIN, 20000)));
    R(recv(fd, buf, 10, 0));
}
static void by_child_b(void) {
    int fd = conn();
    static char b[64 * KIB];
    meet();
    put(fd, "signal", 6);
    meet();
    while (recv(fd, b, sizeof b, 0) > 0)
        ;
    say("all");
}

/* ---- what a listener was told, and its children are not ---- */

static void of_listeners_a(void) {
    for (int i = 0; i < 3; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int l = MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), off = -1;
        sol_int(l, SOL_SOCKET, SO_REUSEADDR, 1);
        if (i == 1)
            MUST(fcntl(l, F_SETFL, O_RDWR | O_ASYNC));
        MUST(bind(l, (void *)&at, sizeof at));
        MUST(listen(l, 5));
        if (i == 0)
            setsockopt(l, SOL_SOCKET, SO_PEEK_OFF, &off, sizeof off); /* TCP has none before Linux 6.9 */
        if (i == 2)
            MUST(fcntl(l, F_SETFL, O_RDWR | O_ASYNC));
        meet();
        int fd = accept_from(l);
        close(l);
        say("O_ASYNC %d", !!(MUST(fcntl(fd, F_GETFL)) & O_ASYNC));
        warm(fd);
        R(recv(fd, buf, 1, 0));
        close(fd);
    }
}
static void of_listeners_b(void) {
    for (int i = 0; i < 3; i++) {
        meet();
        int fd = dial(PORT);
        warm(fd);
        close(fd);
    }
}

/* ---- disconnected by AF_UNSPEC and connected again while a child has the socket, or a thread waits in recv ---- */

static int shared;
static void echo_to_end(int fd) {
    for (ssize_t n; (n = recv(fd, buf, sizeof buf, 0)) > 0;)
        put(fd, buf, n);
    close(fd);
}
static long w_recv(void) { return recv(shared, buf, 64, 0); }
static void again_shared_b(void) {
    meet();
    for (int i = 0; i < 2; i++) {
        struct waiting w;
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        struct sockaddr none = {.sa_family = AF_UNSPEC};
        shared = dial(PORT);
        warm(shared);
        pid_t child = i == 0 ? MUST(fork()) : 0;
        if (i == 0 && child == 0)
            for (;;)
                pause();
        if (i == 1)
            waiting_start(&w, "reader", w_recv);
        R(connect(shared, &none, sizeof none));
        if (i == 1 && !waiting_is_over(&w, 20000))
            die("it waits on");
        R(send(shared, "x", 1, MSG_NOSIGNAL));
        R(recv(shared, buf, 1, MSG_DONTWAIT));
        R(connect(shared, (void *)&to, sizeof to));
        say("%s", poll_text(events(shared, POLLIN | POLLOUT | POLLRDHUP, 0)));
        echo(shared, "again", 1);
        R(shutdown(shared, SHUT_WR));
        R(recv(shared, buf, 1, 0));
        if (child) {
            kill(child, SIGKILL);
            wait_for(child);
        }
        close(shared);
    }
}
static void again_shared_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < 2; i++) {
        int fd = accept_from(l);
        warm(fd);
        R(recv(fd, buf, 1, 0));
        close(fd);
        echo_to_end(accept_from(l));
    }
}

const struct test tests[] = {{"nonblocking_by_child", by_child_a, by_child_b, 0},
                             {"of_listeners", of_listeners_a, of_listeners_b, 0},
                             {"connected_again", again_shared_a, again_shared_b, 0},
                             {0}};
