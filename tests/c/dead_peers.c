/* Owns: what an end keeps of a peer that has died: nothing of what it woke it by; and that who asks for nothing is told of its death. */
#include "case.h"

static char buf[100];

/* A client whose threads sleep on a connection each is killed: when the server has closed these, it has nothing left of what
 * it woke them by. Itself it has nothing to be woken by. */
enum { THREADS = 6, ROUNDS = 60 };
static void serve(int fd[THREADS]) {
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < THREADS; i++) {
        fd[i] = accept_from(l);
        nonblocking(fd[i], 1);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < THREADS; i++) {
            ssize_t n;
            while ((n = recv(fd[i], buf, 100, 0)) < 0 && errno == EAGAIN)
                raw_poll(fd[i], POLLIN, 5000);
            usleep(1000); /* it sleeps by now */
            if (n != 100 || send(fd[i], buf, n, 0) != n)
                die("round");
        }
    settle();
}
static void dead_client_a(void) {
    int fd[THREADS];
    serve(fd);
    pid_t pid = hear_pid();
    MUST(kill(pid, SIGKILL));
    while (hear() != 0) {
    }
    settle();
    for (int i = 0; i < THREADS; i++) {
        say("over %d", recv(fd[i], buf, 1, 0) <= 0);
        close(fd[i]);
    }
    say("eventfds: %d", numbers_of("eventfd"));
}
static void *ask_on(void *fd) {
    char mine[100] = {0};
    for (;;) {
        if (send(*(int *)fd, mine, sizeof mine, MSG_NOSIGNAL) < 0 || recv(*(int *)fd, mine, sizeof mine, MSG_WAITALL) <= 0)
            return NULL;
        usleep(1000);
    }
}
static void dead_client_b(void) {
    static int fd[THREADS];
    pthread_t t;
    meet();
    for (int i = 0; i < THREADS; i++)
        fd[i] = dial(PORT);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&t, NULL, ask_on, &fd[i]);
    tell_pid(getpid());
    for (;;)
        pause();
}

/* The same where the client dies only when the connections are closed already: nothing tells the server any more. Its next
 * socket of any kind does. */
static void later_a(void) {
    int fd[THREADS];
    serve(fd);
    pid_t pid = hear_pid();
    for (int i = 0; i < THREADS; i++)
        close(fd[i]);
    settle();
    MUST(kill(pid, SIGKILL));
    for (int i = 0; i < 300 && (i == 0 || numbers_of("eventfd") > 0); i++) {
        usleep(10000);
        close(MUST(socket(AF_INET, SOCK_STREAM, 0)));
    }
    say("eventfds: %d", numbers_of("eventfd"));
}

/* Killed with something unread, while a poll that asks for nothing sleeps. */
static void *kill_later(void *pid) {
    settle();
    MUST(kill(*(pid_t *)pid, SIGKILL));
    return NULL;
}
static void unasked(short asked) {
    int fd = conn();
    pid_t pid = hear_pid();
    pthread_t t;
    put(fd, buf, 10);
    pthread_create(&t, NULL, kill_later, &pid);
    time_t from = time(NULL);
    say("poll: %s", poll_text(events(fd, asked, 10000)));
    say("soon: %d", time(NULL) - from < 5);
    pthread_join(t, NULL);
    R(recv(fd, buf, 1, 0));
}
static void unasked_a(void) { unasked(0); }
static void unasked_urgent_a(void) { unasked(POLLPRI); }
static void unasked_b(void) {
    conn();
    tell_pid(getpid());
    for (;;)
        pause();
}

/* An orderly end is nothing to such a poll, nor is one's own: it sleeps. */
static void sleeps_on(int fd) {
    struct timespec from, to;
    MUST(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from));
    say("poll: %s", poll_text(events(fd, 0, 600)));
    MUST(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to));
    say("slept: %d", (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000 < 100);
}
static void orderly_a(void) {
    int fd = conn();
    meet();
    sleeps_on(fd); /* it comes meanwhile */
    sleeps_on(fd);
    R(recv(fd, buf, 100, 0));
    R(recv(fd, buf, 100, 0));
    sleeps_on(fd);
    meet();
}
static void orderly_b(void) {
    int fd = conn();
    meet();
    settle();
    put(fd, buf, 5);
    settle();
    shutdown(fd, SHUT_WR);
    meet();
}
static void own_end_a(void) {
    int fd = conn();
    shutdown(fd, SHUT_RD);
    sleeps_on(fd);
    meet();
}
static void own_end_b(void) {
    conn();
    meet();
}

/* Killed with something unread: the connection has no other end any more, before its error is told and after that. */
static void names(int fd) {
    struct sockaddr_in name = {0};
    socklen_t len = sizeof name;
    R(getpeername(fd, (void *)&name, &len));
    R(syscall(SYS_getpeername, fd, &name, &len));
    R(getsockname(fd, (void *)&name, &len));
    R(shutdown(fd, 7));
    for (int how = SHUT_RD; how <= SHUT_RDWR; how++)
        R(shutdown(fd, how));
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
}
static void nameless(int told) {
    int fd = conn();
    pid_t pid = hear_pid();
    put(fd, buf, 10);
    R(getpeername(fd, (void *)&(struct sockaddr_in){0}, &(socklen_t){sizeof(struct sockaddr_in)}));
    MUST(kill(pid, SIGKILL));
    while (hear() != 0) {
    }
    settle();
    if (told)
        R(recv(fd, buf, 1, 0));
    names(fd);
    R(send(fd, buf, 1, MSG_NOSIGNAL));
    R(recv(fd, buf, 1, 0));
    R(so_error(fd));
    names(fd);
}
static void nameless_a(void) { nameless(0); }
static void nameless_told_a(void) { nameless(1); }

/* Killed when it had read everything: an end, behind which there is one's own. */
static void ended_a(void) {
    int fd = conn();
    pid_t pid = hear_pid();
    MUST(kill(pid, SIGKILL));
    while (hear() != 0) {
    }
    settle();
    R(recv(fd, buf, 1, 0));
    R(shutdown(fd, SHUT_WR));
}

const struct test tests[] = {{"client", dead_client_a, dead_client_b, COLD | SWITCHES},
                             {"later", later_a, dead_client_b, COLD | SWITCHES},
                             {"unasked", unasked_a, unasked_b, 0},
                             {"unasked_urgent", unasked_urgent_a, unasked_b, 0},
                             {"orderly", orderly_a, orderly_b, 0},
                             {"own_end", own_end_a, own_end_b, 0},
                             {"nameless", nameless_a, unasked_b, 0},
                             {"nameless_told", nameless_told_a, unasked_b, 0},
                             {"ended", ended_a, unasked_b, 0},
                             {0}};
