/* Owns: several programs that have a connection whose peer can't send again what lies unread (silent.h), and read of it by turns or at once: each byte
 * is for the first who reads it. */
#include "silent.h"

/* What one of several readers is to do: a part of the stream, or to end. */
struct part {
    int from, n, peeks;
};
static void take(const char *who, int fd, struct part p) {
    if (p.peeks)
        say("%s: %d there, peek %d", who, now_in(fd), (int)recv(fd, buf, 1000, MSG_PEEK));
    say("%s: %d from %d, %s", who, p.n, p.from, poll_text(events(fd, POLLIN, 2000)));
    got(fd, whole, p.n, p.from, 5);
}

/* All of them at once: each notes on a board, a file, how often it had which word of the stream. */
enum { WORDS = SOME / 4 };
static char *board(int file) {
    char *p = mmap(NULL, WORDS, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p == MAP_FAILED)
        die("board");
    return p;
}
static void reads_some(int fd, char *had) {
    unsigned *words = (unsigned *)buf, seed = (unsigned)getpid();
    while (events(fd, POLLIN, 700)) {
        seed = seed * 1103515245 + 12345;
        ssize_t n = recv(fd, buf, 4 * (1 + (seed >> 16) % 700), MSG_DONTWAIT);
        for (ssize_t i = 0; i < n / 4; i++) {
            if (words[i] >= WORDS || words[i] != words[0] + i)
                die("words");
            __atomic_fetch_add(&had[words[i]], 1, __ATOMIC_SEQ_CST);
        }
    }
}
static void executed(void) {
    int fd, turn, done;
    char who[20];
    if (sscanf(getenv("EXEC_ROLE"), "some %d %d", &fd, &turn) == 2) {
        reads_some(fd, board(turn));
        _exit(0); /* in any order */
    }
    struct part p;
    if (sscanf(getenv("EXEC_ROLE"), "turns %d %d %d %19s", &fd, &turn, &done, who) == 4)
        while (read(turn, &p, sizeof p) == sizeof p && p.n > 0) {
            take(who, fd, p);
            MUST(write(done, "", 1));
        }
}

/* Programs that were started with it read of the same bytes as this one, in turns: each byte comes once, to whoever asks. */
struct heir {
    int turn, done;
    pid_t pid;
};
static struct heir heir(int how, int fd, const char *who) {
    int turn[2], done[2];
    char role[60];
    MUST(pipe(turn)), MUST(pipe(done));
    sprintf(role, "turns %d %d %d %s", fd, turn[0], done[1], who);
    struct heir h = {turn[1], done[0], start(how, role, environ)};
    return h;
}
static void takes(const struct heir *h, int from, int n, int peeks) {
    struct part p = {from, n, peeks};
    char c;
    MUST(write(h->turn, &p, sizeof p));
    if (n > 0)
        MUST(read(h->done, &c, 1));
    else
        wait_for(h->pid);
}
static void shared_a(int how) {
    int fd = ahead();
    pid_t peer = stop();
    struct heir first = heir(how, fd, "first");
    take("own", fd, (struct part){0, 10000, 0});
    takes(&first, 10000, 16, 0);
    takes(&first, 10016, 5000, 0);
    take("own", fd, (struct part){15016, 1, 0});
    struct heir second = heir(how, fd, "second");
    takes(&second, 15017, 7000, 0);
    takes(&first, 22017, 1000, 0);
    take("own", fd, (struct part){23017, SOME - 23017 - 3000, 0});
    takes(&second, SOME - 3000, 1000, 1);
    takes(&first, SOME - 2000, 1000, 1);
    take("own", fd, (struct part){SOME - 1000, 500, 1});
    takes(&second, SOME - 500, 500, 1);
    say("%s, %d there", poll_text(events(fd, POLLIN, 0)), now_in(fd));
    MUST(kill(peer, SIGCONT));
    meet();
    takes(&first, SOME, 10000, 0);
    take("own", fd, (struct part){SOME + 10000, 10000, 0});
    takes(&second, SOME + 20000, 10000, 0);
    takes(&first, 0, 0, 0);
    takes(&second, 0, 0, 0);
    echo(fd, "afterwards", 2);
    close(fd);
    meet();
}
static void shared_b(void) {
    int fd = conn();
    fill(whole, SOME, 0, 5);
    send_ahead(fd);
    meet();
    fill(whole, 30000, SOME, 5);
    put(fd, whole, 30000);
    echo_until_end(fd);
    meet();
}
static void at_once_a(void) {
    enum { READERS = 4 };
    int fd = ahead(), file = MUST(memfd_create("board", 0)), missing = 0, twice = 0;
    pid_t peer = stop(), readers[READERS];
    char role[40];
    MUST(ftruncate(file, WORDS));
    char *had = board(file);
    sprintf(role, "some %d %d", fd, file);
    for (int i = 0; i < READERS; i++)
        if (i < READERS - 1) {
            readers[i] = start(i % 2 ? FORK : SPAWN, role, environ);
        } else if ((readers[i] = MUST(fork())) == 0) {
            reads_some(fd, had);
            _exit(0);
        }
    reads_some(fd, had);
    for (int i = 0; i < READERS; i++)
        wait_for(readers[i]);
    for (int i = 0; i < WORDS; i++)
        missing += had[i] == 0, twice += had[i] > 1;
    say("%d missing, %d twice", missing, twice);
    go_on(fd, peer);
}
static void at_once_b(void) {
    int fd = conn();
    for (unsigned i = 0; i < WORDS; i++)
        memcpy(whole + 4 * i, &i, 4);
    send_ahead(fd);
    echo_until_end(fd);
    meet();
}
static void shared_spawn(void) { shared_a(SPAWN); }
static void shared_pidfd(void) { shared_a(SPAWN_PIDFD); }
static void shared_vfork(void) { shared_a(VFORK); }
static void shared_fork(void) { shared_a(FORK); }

/* Children look at it all the time while it is left to one program after another. */
static void looked_at(void) {
    enum { LOOKERS = 2, HEIRS = 20 };
    int fd = ahead(), at = 0;
    pid_t peer = stop(), lookers[LOOKERS];
    for (int i = 0; i < LOOKERS; i++)
        if ((lookers[i] = MUST(fork())) == 0)
            for (;;)
                events(fd, POLLIN, 0), now_in(fd);
    for (int i = 0; i < HEIRS; i++, at += 1000) {
        struct heir h = heir(SPAWN, fd, "heir");
        takes(&h, at, 1000, 0);
        takes(&h, 0, 0, 0);
    }
    for (int i = 0; i < LOOKERS; i++)
        MUST(kill(lookers[i], SIGKILL)), wait_for(lookers[i]);
    got(fd, whole, SOME - at, at, 5);
    go_on(fd, peer);
}

static void last_a(int how) {
    int fd = said_all();
    struct heir first = heir(how, fd, "first");
    take("own", fd, (struct part){0, 1000, 1});
    takes(&first, 1000, 2000, 1);
    struct heir second = heir(how, fd, "second");
    takes(&second, 3000, 20000, 1);
    take("own", fd, (struct part){23000, 16, 1});
    takes(&first, 23016, 6984, 1);
    say("%s, %d there", poll_text(events(fd, POLLIN, 0)), now_in(fd));
    takes(&first, 0, 0, 0);
    takes(&second, 0, 0, 0);
    answer(fd);
    close(fd);
}
static void last_spawn(void) { last_a(SPAWN); }
static void last_pidfd(void) { last_a(SPAWN_PIDFD); }
static void last_fork(void) { last_a(FORK); }

const struct test tests[] = {{"spawn", shared_spawn, shared_b, 0},
                             {"pidfd_spawn", shared_pidfd, shared_b, 0},
                             {"vfork", shared_vfork, shared_b, 0},
                             {"fork", shared_fork, shared_b, 0},
                             {"at_once", at_once_a, at_once_b, 0},
                             {"looked_at", looked_at, ahead_b, 0},
                             {"last_spawn", last_spawn, last_b, 0},
                             {"last_pidfd_spawn", last_pidfd, last_b, 0},
                             {"last_fork", last_fork, last_b, 0},
                             {"executed", executed, executed, ROLE},
                             {0}};
