/* Owns: a peer that makes no call for longer than it is waited for, while its connection is given away, or a helper is started beside it; and two
 * ends that give theirs away at once. */
#include <sys/epoll.h>
#include "last_words.h"

enum { FIRST = 10, SECOND = 20 }; /* where the next program finds the connections */
enum { MUCH = 9 << 20 };          /* more than a ring, and what TCP has room for */

static void executed(void) {
    const char *role = getenv("EXEC_ROLE");
    int fd;
    if (!role)
        return;
    if (!strcmp(role, "passed")) {
        passed(MESSAGES, &fd, 1);
        got(fd, buf, 20000, 10000, 5);
        echo(fd, "receiver", 7);
    } else if (!strcmp(role, "much")) {
        passed(MESSAGES, &fd, 1);
        get_stream(fd, MUCH, 5);
        echo(fd, "receiver", 7);
    } else if (!strcmp(role, "some")) {
        get_stream(FIRST, SOME, 5);
        meet();
    }
    exit(0); /* a helper, which has no use for it */
}

/* To a program without the library; its own number is closed. */
static void passed_a(void) {
    int over;
    pid_t child = helper("passed", without(), &over);
    int fd = conn();
    got(fd, buf, 10000, 0, 5);
    meet();
    pass(over, &fd, 1);
    int closed = close(fd);
    meet();
    wait_for(child); /* which tells what it has meanwhile */
    say("close %d", closed);
}
static void passed_b(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    meet();
    meet();
    echo_until_end(fd);
}

/* The sender waits for room all the while: it answers, and has not gone on by itself. */
static void much_a(char **env) {
    int over, fd = conn();
    wait_for_spill(fd);
    meet_settled(); /* it takes no more */
    pid_t child = helper("much", env, &over);
    pass(over, &fd, 1);
    int closed = close(fd);
    wait_for(child);
    say("close %d", closed);
}
static void much_with(void) { much_a(environ); }
static void much_without(void) { much_a(without()); }
static void much_b(void) {
    static char all[MUCH];
    int fd = conn();
    size_t at = 0;
    int full = 0;
    fill(all, MUCH, 0, 5);
    nonblocking(fd, 1);
    while (at < MUCH) {
        ssize_t n = send(fd, all + at, MUCH - at, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            die("send");
        at += n > 0 ? n : 0;
        if (n < 0 && !events(fd, POLLOUT, full ? 20000 : 400) && !full++)
            meet();
    }
    if (!full)
        meet();
    nonblocking(fd, 0);
    echo_until_end(fd);
}

/* What lies unread is readable, whatever the child of fork asks its sender for. */
static void helped(void (*reads)(int)) {
    int fd = placed(conn(), FIRST);
    meet_settled();
    pid_t child = start(FORK, "helper", environ);
    usleep(300000);
    reads(fd);
    wait_for(child);
    echo(fd, "after", 5);
    meet();
    close(fd);
}
static void by_poll(int fd) {
    say("%s", poll_text(events(fd, POLLIN, 6000)));
    got(fd, buf, 20000, 0, 5);
    meet();
}
static void by_recv(int fd) {
    got(fd, buf, 20000, 0, 5);
    meet();
}
static void by_epoll(int fd) {
    struct epoll_event e = {EPOLLIN, {.fd = fd}};
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    R(epoll_wait(set, &e, 1, 6000));
    by_recv(fd);
}
static void helped_poll_a(void) { helped(by_poll); }
static void helped_recv_a(void) { helped(by_recv); }
static void helped_epoll_a(void) { helped(by_epoll); }
static void helped_b(void) {
    int fd = conn();
    fill(buf, 20000, 0, 5);
    put(fd, buf, 20000);
    meet_settled();
    meet(); /* it has been read */
    get(fd, buf, 20000);
    put(fd, buf, 20000);
    meet();
}

/* Of another one the peer has said its last word. */
static void ended_a(void) {
    int first = placed(conn(), FIRST), second = placed(came_before(), SECOND);
    pid_t child = start(FORK, "helper", environ);
    usleep(300000);
    got_before(second, 10000);
    answer(second);
    close(second);
    meet();
    wait_for(child);
    echo(first, "after", 5);
    close(first);
}
static void ended_b(void) {
    int first = conn(), second = before_b(10000);
    meet();
    answered(second);
    echo_until_end(first);
}

/* Each has sent what the other one has not read, and is called for it while it calls itself. */
static void both(void) {
    static char some[SOME];
    int fd = conn();
    fill(some, sizeof some, 0, 5);
    put(fd, some, sizeof some);
    wait_for_spill(fd);
    settle();
    meet();
    placed(fd, FIRST);
    exec_self("some", environ);
}

const struct test tests[] = {{"passed", passed_a, passed_b, 0},
                             {"much_with", much_with, much_b, 0},
                             {"much_without", much_without, much_b, 0},
                             {"helped_poll", helped_poll_a, helped_b, 0},
                             {"helped_recv", helped_recv_a, helped_b, 0},
                             {"helped_epoll", helped_epoll_a, helped_b, 0},
                             {"ended", ended_a, ended_b, COLD | SWITCHES},
                             {"both", both, both, 0},
                             {"executed", executed, executed, ROLE},
                             {0}};
