/* Owns: a thread that leaves send or recv otherwise than by returning, in a build of the library that takes its time there
 * (tests/tests/faults.rs), and comes never again, or deeper in its stack:
 *   leaves HOW          HOW is jumps, exits, is_cancelled (at once) or is_cancelled_above (in a call of the handler's)
 *   leaves HOW_in_recv  the same in recv; another thread goes on with the connection
 *   leaves deeper       by a jump; its next calls lie deeper than the one that was left, and do not touch what that one had there
 *   leaves rung         by a jump, when the bytes are there and the other end, which sleeps, is not told
 *   leaves exits_unheard   by the end of its thread, at the same place
 *   leaves rung_byte    the same where it is told by a byte on TCP; then the connection returns to TCP
 * What the call that was left had not published never happened; all other bytes come, once and in order. Exit 0: right. */
#include "held.h"
#include <alloca.h>
#include <linux/net_tstamp.h>
#include <semaphore.h>

static sigjmp_buf out;
static sem_t is_about_to, has_left, may_end;
static const char *how;
static void (*volatile called)(char);

static int is(const char *name) { return !strncmp(how, name, strlen(name)); }

static void jump(int s) { siglongjmp(out, 1); }

static void leave(int s) {
    if (is("exits"))
        pthread_exit(NULL);
    if (is("is_cancelled_above")) {
        pthread_cancel(pthread_self());
        for (;;)
            pause();
    }
    jump(s);
}

static void call(void) {
    sem_post(&is_about_to);
    called('j');
    wrong("it returned");
}

static void *leaves(void *p) {
    int old;
    if (!strncmp(how, "is_cancelled", 12) && !is("is_cancelled_above"))
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    if (sigsetjmp(out, 1) == 0)
        call();
    sem_post(&has_left);
    while (sem_wait(&may_end)) {
    }
    return NULL;
}

/* A thread calls, and leaves the call; the caller's thread has the connection then. */
static void left_by_a_thread(void (*in)(char)) {
    pthread_t t;
    called = in;
    if (pthread_create(&t, NULL, leaves, NULL))
        wrong("pthread_create");
    while (sem_wait(&is_about_to)) {
    }
    usleep(WITHIN_MS * 1000);
    if (is("is_cancelled") && !is("is_cancelled_above"))
        pthread_cancel(t);
    else
        pthread_kill(t, SIGUSR1);
    if (is("jumps")) {
        while (sem_wait(&has_left)) {
        }
    } else {
        pthread_join(t, NULL);
    }
    if (strstr(how, "_unheard"))
        expect('j');
    if (strstr(how, "_in_recv"))
        expect('k');
    ping('n');
    ping('o');
    if (is("jumps")) {
        sem_post(&may_end);
        pthread_join(t, NULL);
    }
}

static void left_by_jump(void (*in)(char)) {
    struct sigaction a = {.sa_handler = jump, .sa_flags = SA_RESTART};
    struct itimerval t = {{0, 0}, {0, WITHIN_MS * 1000}};
    if (sigsetjmp(out, 1) == 0) {
        sigaction(SIGALRM, &a, NULL);
        setitimer(ITIMER_REAL, &t, NULL);
        in('j');
        wrong("the handler did not leave the call");
    }
}

/* Below much that nobody writes to. */
static void __attribute__((noinline)) ping_deeper(char c) {
    volatile char *some = alloca(1 << 16);
    some[0] = c;
    ping(some[0]);
}

static void *wait_as_well(void *p) { /* till the process ends */
    struct pollfd one = {fd, POLLIN, 0};
    while (poll(&one, 1, -1) == 1)
        usleep(1000);
    return NULL;
}

/* With two that wait there is no name to call. */
static void send_back_beside_another(void) {
    pthread_t t;
    if (pthread_create(&t, NULL, wait_as_well, NULL))
        wrong("pthread_create");
    send_back();
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    how = argv[1];
    struct sigaction a = {.sa_handler = leave, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &a, NULL);
    begin(is("rung_byte") ? send_back_beside_another : send_back);
    warm_up(ping);
    for (int i = 0; i < ROUNDS; i++) {
        if (is("deeper")) {
            left_by_jump(put);
            ping_deeper('n');
            ping_deeper('o');
        } else if (is("rung")) {
            usleep(3 * HOLD_MS * 1000); /* the other end sleeps */
            left_by_jump(put);
            expect('j');
            ping('n');
        } else if (strstr(how, "_in_recv")) {
            put('k');
            struct pollfd p = {fd, POLLIN, 0};
            if (poll(&p, 1, -1) != 1) /* it has come back */
                die("poll");
            left_by_a_thread(expect);
        } else {
            if (is("exits_unheard"))
                usleep(3 * HOLD_MS * 1000); /* the other end sleeps */
            left_by_a_thread(put);
        }
    }
    if (is("rung_byte")) {
        int software = SOF_TIMESTAMPING_RX_SOFTWARE;
        if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &software, sizeof software)) /* TCP from here on */
            die("SO_TIMESTAMPING");
        ping('p');
        ping('q');
    }
    end(how);
    return 0;
}
