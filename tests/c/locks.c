/* Owns: a thread or process that goes away, or calls again, with the lock of a direction in its hands, in a build of the library
 * that takes its time there (tests/tests/faults.rs).
 *   locks killed        a child is killed in send; its parent sends on the same connection
 *   locks killed_in_recv    the same in recv
 *   locks jumped        a handler leaves send by siglongjmp; the same thread sends again
 *   locks jumped_in_recv    the same in recv
 *   locks again         a handler calls send and recv on the connection of the send that it interrupts
 *   locks again_in_recv     the same in recv
 * What the call that was left had not published never happened; all other bytes come, once and in order. Exit 0: right. */
#include "held.h"

static int gate[2];

static void say(char c) {
    if (write(gate[1], &c, 1) != 1)
        die("gate");
}

/* A child calls, and is killed within the call. */
static void kill_in(void (*call)(char)) {
    pid_t killed = fork();
    if (killed == 0) {
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
    kill(killed, SIGKILL);
    int status;
    if (waitpid(killed, &status, 0) != killed || !WIFSIGNALED(status))
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
    if (pipe(gate))
        die("pipe");
    begin(send_back);
    strstr(argv[1], "_in_recv") ? in_recv(argv[1]) : in_send(argv[1]);
    end(argv[1]);
    return 0;
}
