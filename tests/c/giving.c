/* Owns: a program that gives its connections away in the middle of their streams, while somebody drains them all the time
 * (tests/tests/handovers.rs): by a message over a Unix socket, to a program that it starts, or by becoming another one.
 *   giving message|spawn|exec ROUNDS SEED [COMMAND]      the command drains the sender, which does that once, with much unread, and sends more
 *   giving after FIRST LINES AT...       the program that it starts, or becomes: descriptors from FIRST on, and where their streams stand
 * Exit 0: each stream has come whole, and then its end. */
#define _GNU_SOURCE
#include "ends.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { PORT = 7073, LINES = 10, SMALL = 40, ALL = 700000, PIECE = 30000, FIRST = 200, MOST_MS = 20 };

static char *self, *how, *drain;
static int drained[2];
static unsigned dice;
static int lines[LINES], to_heir = -1;
static long at[LINES];

static unsigned roll(unsigned below) {
    dice ^= dice << 13;
    dice ^= dice >> 17;
    dice ^= dice << 5;
    return dice % below;
}

static char byte_of(long at, int line) { return (uint64_t)(at / 8 + 1) * 0x9e3779b97f4a7c15ull >> at % 8 * 8 ^ line; }

/* ---- who sends ---- */

static char out[PIECE];
static long sent[LINES];

static int put(int i, long n, int flags) {
    for (long k = 0; k < n; k++)
        out[k] = byte_of(sent[i] + k, i);
    if ((n = send(lines[i], out, n, MSG_NOSIGNAL | flags)) < 0)
        return -1;
    sent[i] += n;
    return 0;
}

static void put_to_all(void) {
    for (int i = 0; i < LINES; i++)
        if (put(i, PIECE, 0))
            die("send");
}

static void sender(void) {
    int left = LINES;
    char c = 0;
    for (int i = 0; i < LINES; i++)
        lines[i] = dial(PORT);
    for (int n = 0; n < SMALL; n++)
        for (int i = 0; i < LINES; i++)
            if (send(lines[i], &c, 1, MSG_NOSIGNAL) != 1 || recv(lines[i], &c, 1, 0) != 1)
                die("small talk of the sender");
    if (drain) {
        put_to_all();
        if (system(drain) < 0)
            die(drain);
        poll(NULL, 0, 50); /* where it hears of that */
        put_to_all();
        if (write(drained[1], "", 1) != 1)
            die("write");
    }
    while (left) {
        struct pollfd p[LINES];
        for (int i = 0; i < LINES; i++)
            p[i] = (struct pollfd){sent[i] < ALL ? lines[i] : -1, POLLOUT, 0};
        poll(p, LINES, 1000);
        for (int i = 0; i < LINES; i++) {
            if (!p[i].revents)
                continue;
            long n = 1 + roll(PIECE);
            if (n > ALL - sent[i])
                n = ALL - sent[i];
            if (put(i, n, MSG_DONTWAIT) && errno != EAGAIN)
                die("send");
            if (sent[i] == ALL) {
                shutdown(lines[i], SHUT_WR);
                left--;
            }
        }
    }
    for (int i = 0; i < LINES; i++)
        if (recv(lines[i], &c, 1, 0) != 0)
            die("the sender's end");
    exit(0);
}

/* ---- who receives: in part the giver, then who is given it ---- */

/* Reads up to there. */
static void check(int fd, int line, long *at, long until) {
    static char in[PIECE];
    for (ssize_t n; *at < until; *at += n) {
        n = recv(fd, in, until - *at < PIECE ? until - *at : PIECE, 0);
        if (n <= 0) {
            fprintf(stderr, "line %d at %ld: ", line, *at);
            die(n ? "recv" : "an early end");
        }
        for (ssize_t k = 0; k < n; k++)
            if (in[k] != byte_of(*at + k, line)) {
                fprintf(stderr, "line %d at %ld: ", line, *at + k);
                wrong("another byte");
            }
    }
}

static void check_rest(int fd, int line, long at) {
    char c;
    check(fd, line, &at, ALL);
    if (recv(fd, &c, 1, 0) != 0)
        die("the end");
    close(fd);
}

struct given {
    struct msghdr m;
    struct iovec v;
    union {
        struct cmsghdr c;
        char bytes[CMSG_SPACE(sizeof(int))];
    } with;
    int line;
};

/* A message with a descriptor: which line, and where it stands. */
static struct given *message(long *word) {
    static struct given g;
    g.v = (struct iovec){word, 2 * sizeof *word};
    g.m = (struct msghdr){.msg_iov = &g.v, .msg_iovlen = 1, .msg_control = g.with.bytes, .msg_controllen = sizeof g.with.bytes};
    return &g;
}

static void heir(int from) {
    for (int i = 0; i < LINES; i++) {
        long word[2];
        struct given *g = message(word);
        if (recvmsg(from, &g->m, 0) != sizeof word)
            die("recvmsg");
        check_rest(*(int *)CMSG_DATA(CMSG_FIRSTHDR(&g->m)), word[0], word[1]);
    }
    exit(0);
}

/* ---- who gives ---- */

static void give_by_messages(void) {
    for (int i = 0; i < LINES; i++) {
        long word[2] = {i, at[i]};
        struct given *g = message(word);
        struct cmsghdr *c = CMSG_FIRSTHDR(&g->m);
        *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(c), &lines[i], sizeof(int));
        if (sendmsg(to_heir, &g->m, MSG_NOSIGNAL) != sizeof word)
            die("sendmsg");
        close(lines[i]);
    }
}

static void give_to_program(int becomes) {
    static char words[LINES + 2][24];
    char *args[LINES + 5] = {self, "after"};
    posix_spawn_file_actions_t acts;
    posix_spawn_file_actions_init(&acts);
    snprintf(words[0], sizeof words[0], "%d", FIRST);
    snprintf(words[1], sizeof words[1], "%d", LINES);
    for (int i = 0; i < LINES; i++) {
        snprintf(words[i + 2], sizeof words[0], "%ld", at[i]);
        posix_spawn_file_actions_adddup2(&acts, lines[i], FIRST + i);
        if (becomes && dup2(lines[i], FIRST + i) < 0)
            die("dup2");
    }
    for (int i = 0; i < LINES + 2; i++)
        args[i + 2] = words[i];
    extern char **environ;
    if (becomes) {
        execv(self, args);
        die("execv");
    }
    pid_t pid;
    int status;
    if ((errno = posix_spawn(&pid, self, &acts, NULL, args, environ)))
        die("posix_spawn");
    for (int i = 0; i < LINES; i++)
        close(lines[i]);
    if (waitpid(pid, &status, 0) != pid || status)
        wrong("the program that was started has failed");
}

static void *give_away(void *unused) {
    (void)unused;
    if (!strcmp(how, "message"))
        give_by_messages();
    else
        give_to_program(!strcmp(how, "exec"));
    exit(0);
}

static void giver(int listener) {
    char c;
    pthread_t t;
    for (int i = 0; i < LINES; i++)
        if ((lines[i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
            die("accept");
    close(listener);
    for (int n = 0; n < SMALL; n++)
        for (int i = 0; i < LINES; i++)
            if (recv(lines[i], &c, 1, 0) != 1 || send(lines[i], &c, 1, MSG_NOSIGNAL) != 1)
                die("small talk");
    if (regions())
        puts("in memory"); /* unless a drain was sooner */
    fflush(stdout);
    for (int i = 0; i < LINES; i++)
        check(lines[i], i, &at[i], drain ? 1 : roll(200000));
    if (drain && read(drained[0], &c, 1) != 1)
        die("read");
    usleep(roll(MOST_MS * 1000));
    pthread_create(&t, NULL, give_away, NULL);
    for (;;)
        poll(NULL, 0, 1); /* where this thread hears of a drain */
}

static pid_t child(void) {
    pid_t pid = fork();
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

int main(int argc, char **argv) {
    self = "/proc/self/exe";
    if (argc > 4 && !strcmp(argv[1], "after")) {
        for (int i = 0; i < atoi(argv[3]); i++)
            check_rest(atoi(argv[2]) + i, i, atol(argv[4 + i]));
        return 0;
    }
    if (argc < 4)
        return 2;
    how = argv[1];
    drain = argv[4];
    if (pipe(drained))
        die("pipe");
    dice = atoi(argv[3]) * 2654435761u | 1;
    for (int round = 0; round < atoi(argv[2]); round++) {
        int listener = listen_on(PORT), pair[2], status, want = 2;
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
            die("socketpair");
        roll(2);
        if (!child())
            sender();
        if (!strcmp(how, "message")) {
            want++;
            if (!child())
                heir(pair[0]);
        }
        to_heir = pair[1];
        if (!child())
            giver(listener);
        close(listener);
        for (; want; want--)
            if (wait(&status) < 0 || status) {
                fprintf(stderr, "round %d: status %x\n", round, status);
                return 1;
            }
        close(pair[0]);
        close(pair[1]);
    }
    return 0;
}
