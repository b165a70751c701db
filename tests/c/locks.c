/* Owns: a thread or process that goes away, or calls again, with the lock of a direction in its hands, in a build of the library
 * that takes its time there (tests/tests/faults.rs).
 *   locks killed        a child is killed in send; its parent sends on the same connection
 *   locks killed_in_recv    the same in recv
 *   locks jumped        a handler leaves send by siglongjmp; the same thread sends again
 *   locks jumped_in_recv    the same in recv: not always right, and no test runs it (docs/faults.md, Locks)
 *   locks again         a handler calls send and recv on the connection of the send that it interrupts
 *   locks again_in_recv     the same in recv
 * What the call that was left had not published never happened; all other bytes come, once and in order. Exit 0: right.
 * The other end is a child that sends back what it gets. */
#define _GNU_SOURCE
#include "ends.h"
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

/* HOLD_MS: what the test asks the library for. */
enum { PORT = 7080, BYTES = 100, HOLD_MS = 300, WITHIN_MS = 100, ROUNDS = 3, MOST = 400 };

static int fd, gate[2];

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void put(char c) {
    char bytes[BYTES];
    memset(bytes, c, sizeof bytes);
    if (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes)
        die("send");
}

static void expect(char c) {
    char bytes[BYTES];
    for (size_t n = 0; n < sizeof bytes;) {
        ssize_t more = recv(fd, bytes + n, sizeof bytes - n, 0);
        if (more <= 0)
            die("recv");
        n += more;
    }
    for (size_t i = 0; i < sizeof bytes; i++)
        if (bytes[i] != c)
            wrong("other bytes");
}

static void ping(char c) {
    put(c);
    expect(c);
}

static void send_back(void) {
    char bytes[BYTES];
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        if (send(fd, bytes, n, MSG_NOSIGNAL) != n)
            die("send back");
}

/* Till a call takes as long as the library was told to: the connection is in memory. */
static void warm_up(void (*call)(char)) {
    for (int i = 0; i < MOST; i++) {
        long before = now_ms();
        call('w');
        if (now_ms() - before >= HOLD_MS)
            return;
    }
    wrong("it is not in memory");
}

static void say(char c) {
    if (write(gate[1], &c, 1) != 1)
        die("gate");
}

/* A child calls, and is killed within the call. */
static void kill_in(void (*call)(char)) {
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        say('b');
        call('k');
        say('e');
        _exit(0);
    }
    char c;
    if (read(gate[0], &c, 1) != 1)
        die("gate");
    usleep(WITHIN_MS * 1000);
    kill(child, SIGKILL);
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
        wrong("the child was not killed in the call");
}

static sigjmp_buf out;
static volatile int results[2];
static volatile sig_atomic_t calls;

static void jump(int s) { siglongjmp(out, 1); }

static void call_again(int s) {
    char bytes[BYTES];
    memset(bytes, 'h', sizeof bytes);
    int e = errno;
    results[0] = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    results[1] = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    calls++;
    errno = e;
}

static void alarm_within(void (*handler)(int)) {
    struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval t = {{0, 0}, {0, WITHIN_MS * 1000}};
    sigaction(SIGALRM, &a, NULL);
    setitimer(ITIMER_REAL, &t, NULL);
}

static void left_by_jump(void (*call)(char)) {
    if (sigsetjmp(out, 1) == 0) {
        alarm_within(jump);
        call('j');
        wrong("the handler did not leave the call");
    }
}

/* What the handler sends may be refused as over a full socket, but not in part, and there is nothing for it to receive. */
static void met_by_a_call(void (*call)(char), char c, int nth) {
    alarm_within(call_again);
    call(c);
    if (calls != nth)
        wrong("the handler did not come");
    if ((results[0] != BYTES && results[0] != -1) || results[1] != -1)
        wrong("what the handler's calls returned");
}

static void in_send(const char *how) {
    warm_up(ping);
    for (int i = 0; i < ROUNDS; i++) {
        if (!strcmp(how, "killed"))
            kill_in(put);
        else if (!strcmp(how, "jumped"))
            left_by_jump(put);
        else {
            met_by_a_call(put, 'a', i + 1);
            char first = results[0] == BYTES ? 'h' : 'a';
            expect(first);
            if (first == 'h')
                expect('a');
        }
        ping('n');
        ping('o');
    }
}

static void in_recv(const char *how) {
    warm_up(ping);
    for (int i = 0; i < ROUNDS; i++) {
        put('k');
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, -1) != 1) /* it has come back */
            die("poll");
        if (!strcmp(how, "killed_in_recv"))
            kill_in(expect);
        else if (!strcmp(how, "jumped_in_recv"))
            left_by_jump(expect);
        else {
            met_by_a_call(expect, 'k', i + 1);
            if (results[0] == BYTES)
                expect('h');
            ping('n');
            continue;
        }
        expect('k');
        ping('n');
    }
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    int listener = listen_on(PORT), status;
    if (pipe(gate))
        die("pipe");
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(listener);
        fd = dial(PORT);
        send_back();
        exit(0);
    }
    fd = accept(listener, NULL, NULL);
    if (fd < 0)
        die("accept");
    strstr(argv[1], "_in_recv") ? in_recv(argv[1]) : in_send(argv[1]);
    shutdown(fd, SHUT_WR);
    char c;
    if (recv(fd, &c, 1, 0) != 0)
        wrong("more bytes than were sent");
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
        wrong("the other end");
    printf("%s: %d times\n", argv[1], ROUNDS);
    return 0;
}
