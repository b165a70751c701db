/* Owns: programs that are started beside a connection, which they inherit and do not use, or not yet, while the other end makes no call (it is
 * stopped) or has said its last word: natively nothing happens to the connection, and what lies unread is there to be read. */
#include "given.h"

static char buf[64 * KIB];

enum { BEFORE = 300 * KIB /* unread before the connection moves to memory */, AHEAD = 700 * KIB /* more than a ring holds */ };
static char all[AHEAD];

/* What one of several readers is to do: a part of the stream, or to end. */
struct part {
    int from, n, peeks;
};
static void take(const char *who, int fd, struct part p) {
    if (p.peeks)
        say("%s: %d there, peek %d", who, now_in(fd), (int)recv(fd, buf, 1000, MSG_PEEK));
    say("%s: %d from %d, %s", who, p.n, p.from, poll_text(events(fd, POLLIN, 2000)));
    got(fd, all, p.n, p.from, 5);
}

/* All of them at once: each notes on a board, a file, how often it had which word of the stream. */
enum { WORDS = AHEAD / 4 };
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
    if (sscanf(getenv("EXEC_ROLE"), "reads %d %d", &fd, &turn) == 2 && read(turn, buf, 1) == 1) {
        got(fd, buf, 20000, 10000, 5);
        got(fd, buf, 10000, 0, 6);
    }
}

enum { SYSTEM = SPAWN + 1, POPEN, SPAWN_WITH /* the library */ };
static void run(int how) {
    if (how == SYSTEM) {
        say("system %d", system("exit 7") >> 8);
    } else if (how == POPEN) {
        FILE *f = popen("echo hello", "r");
        say("popen %s", f && fgets(buf, 6, f) ? buf : "nothing");
        pclose(f);
    } else {
        wait_for(start(how == SPAWN_WITH ? SPAWN : how, "nothing", how == SPAWN_WITH ? environ : without()));
    }
}

/* The other end stands still from here on; all that it has sent is here. */
static pid_t stop(void) {
    pid_t peer = hear_pid();
    char path[40], state = 0;
    sprintf(path, "/proc/%d/stat", peer);
    settle();
    MUST(kill(peer, SIGSTOP));
    while (state != 'T') {
        FILE *f = fopen(path, "r");
        if (!f || fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
            die(path);
        fclose(f);
        usleep(1000);
    }
    return peer;
}

static void what_set(int set, const char *when) {
    struct epoll_event e = {0};
    int n = epoll_wait(set, &e, 1, 2000);
    say("%s: %d %s", when, n, epoll_text(e.events));
}
static int set_of(int fd) {
    int set = MUST(epoll_create1(0));
    struct epoll_event e = {.events = EPOLLIN};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    what_set(set, "before");
    return set;
}

static void go_on(int fd, pid_t peer) {
    say("%d more", now_in(fd));
    MUST(kill(peer, SIGCONT));
    echo(fd, "afterwards", 2);
    close(fd);
    meet();
}
static void silent_a(int how) {
    int fd = conn(), set;
    pid_t peer = stop();
    set = set_of(fd);
    run(how);
    what_set(set, "beside");
    say("%d there", now_in(fd));
    got(fd, buf, 10000, 0, 5);
    run(how);
    what_set(set, "beside");
    got(fd, buf, 20000, 10000, 5);
    go_on(fd, peer);
}
static void silent_b(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    tell_pid(getpid());
    echo_until_end(fd);
    meet();
}
static void silent_fork(void) { silent_a(FORK); }
static void silent_vfork(void) { silent_a(VFORK); }
static void silent_spawn(void) { silent_a(SPAWN); }
static void silent_system(void) { silent_a(SYSTEM); }
static void silent_popen(void) { silent_a(POPEN); }

/* Nobody reads until it goes on: all of it comes, once. */
static void later_a(void) {
    int fd = conn();
    pid_t peer = stop();
    run(SPAWN);
    MUST(kill(peer, SIGCONT));
    meet();
    got(fd, buf, 30000, 0, 5);
    say("%d more", now_in(fd));
    echo(fd, "afterwards", 2);
    close(fd);
    meet();
}
static void later_b(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    tell_pid(getpid());
    meet();
    echo_until_end(fd);
    meet();
}

/* This end reads a part, and the program what is left, and what comes then. */
static void used_a(char **env) {
    int fd = conn(), turn[2];
    char role[40];
    pid_t peer = stop();
    MUST(pipe(turn));
    sprintf(role, "reads %d %d", fd, turn[0]);
    pid_t child = start(SPAWN, role, env);
    got(fd, buf, 10000, 0, 5);
    MUST(kill(peer, SIGCONT));
    meet();
    MUST(write(turn[1], "", 1));
    wait_for(child);
    echo(fd, "afterwards", 2);
    close(fd);
    meet();
}
static void used_b(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    tell_pid(getpid());
    meet();
    fill(buf, 10000, 0, 6);
    put(fd, buf, 10000);
    echo_until_end(fd);
    meet();
}
static void used_with(void) { used_a(environ); }
static void used_without(void) { used_a(without()); }

/* It does not go on. */
static void killed_a(void) {
    int fd = conn();
    pid_t peer = stop();
    run(SPAWN);
    MUST(kill(peer, SIGKILL));
    settle();
    got(fd, buf, 30000, 0, 5);
    R(recv(fd, buf, 1, 0));
}

/* The most of it has come through TCP, before the connection moved to memory. */
static void put_both(int fd) {
    fill(all, BEFORE, 0, 5);
    put(fd, all, BEFORE);
    trickled(fd);
    fill(buf, 10000, 0, 6);
    put(fd, buf, 10000);
}
static void got_both(int fd) {
    got(fd, all, BEFORE, 0, 5);
    got(fd, buf, 10000, 0, 6);
}
static void before_a(int how) {
    int fd = conn_cold();
    trickle(fd);
    pid_t peer = stop();
    run(how);
    got_both(fd);
    go_on(fd, peer);
}
static void before_b(void) {
    int fd = conn_cold();
    put_both(fd);
    tell_pid(getpid());
    echo_until_end(fd);
    meet();
}
static void before_fork(void) { before_a(FORK); }
static void before_spawn(void) { before_a(SPAWN); }

/* It has gone back to TCP by itself behind what nobody reads. */
static void ahead_a(int how) {
    int fd = ahead();
    pid_t peer = stop();
    run(how);
    got(fd, all, AHEAD, 0, 5);
    go_on(fd, peer);
}
/* The whole of `all`, and who could send it again. */
static void send_ahead(int fd) {
    meet();
    put(fd, all, AHEAD);
    tell_pid(getpid());
}
static void ahead_b(void) {
    int fd = conn();
    fill(all, AHEAD, 0, 5);
    send_ahead(fd);
    echo_until_end(fd);
    meet();
}
static void ahead_fork(void) { ahead_a(FORK); }
static void ahead_spawn(void) { ahead_a(SPAWN); }

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
    take("own", fd, (struct part){23017, AHEAD - 23017 - 3000, 0});
    takes(&second, AHEAD - 3000, 1000, 1);
    takes(&first, AHEAD - 2000, 1000, 1);
    take("own", fd, (struct part){AHEAD - 1000, 500, 1});
    takes(&second, AHEAD - 500, 500, 1);
    say("%s, %d there", poll_text(events(fd, POLLIN, 0)), now_in(fd));
    MUST(kill(peer, SIGCONT));
    meet();
    takes(&first, AHEAD, 10000, 0);
    take("own", fd, (struct part){AHEAD + 10000, 10000, 0});
    takes(&second, AHEAD + 20000, 10000, 0);
    takes(&first, 0, 0, 0);
    takes(&second, 0, 0, 0);
    echo(fd, "afterwards", 2);
    close(fd);
    meet();
}
static void shared_b(void) {
    int fd = conn();
    fill(all, AHEAD, 0, 5);
    send_ahead(fd);
    meet();
    fill(all, 30000, AHEAD, 5);
    put(fd, all, 30000);
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
        memcpy(all + 4 * i, &i, 4);
    send_ahead(fd);
    echo_until_end(fd);
    meet();
}
static void shared_spawn(void) { shared_a(SPAWN); }
static void shared_vfork(void) { shared_a(VFORK); }
static void shared_fork(void) { shared_a(FORK); }

/* It has said its last word, and waits for the answer. */
static void answer(int fd) {
    R(recv(fd, buf, 1, 0));
    fill(buf, 20000, 0, 6);
    put(fd, buf, 20000);
    close(fd);
    meet();
}
static void last_a(int how) {
    int fd = conn();
    meet_settled();
    run(how);
    got(fd, buf, 30000, 0, 5);
    answer(fd);
}
static void last_word(int fd) {
    R(shutdown(fd, SHUT_WR));
    meet();
    got(fd, buf, 20000, 0, 6);
    R(recv(fd, buf, 1, 0));
    meet();
}
static void last_b(void) {
    int fd = conn();
    fill(buf, 30000, 0, 5);
    put(fd, buf, 30000);
    last_word(fd);
}
static void last_shared_a(int how) {
    int fd = conn();
    meet_settled();
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
}
static void last_shared_spawn(void) { last_shared_a(SPAWN); }
static void last_shared_fork(void) { last_shared_a(FORK); }
static void last_spawn(void) { last_a(SPAWN); }
static void last_vfork(void) { last_a(VFORK); }
static void last_before_a(int how) {
    int fd = conn_cold();
    trickle(fd);
    meet_settled();
    run(how);
    got_both(fd);
    answer(fd);
}
static void last_before_b(void) {
    int fd = conn_cold();
    put_both(fd);
    last_word(fd);
}
static void last_before_fork(void) { last_before_a(FORK); }
static void last_before_vfork(void) { last_before_a(VFORK); }
static void last_before_spawn(void) { last_before_a(SPAWN); }
static void last_before_spawn_with(void) { last_before_a(SPAWN_WITH); }

const struct test tests[] = {{"silent_fork", silent_fork, silent_b, 0},
                             {"silent_vfork", silent_vfork, silent_b, 0},
                             {"silent_spawn", silent_spawn, silent_b, 0},
                             {"silent_system", silent_system, silent_b, 0},
                             {"silent_popen", silent_popen, silent_b, 0},
                             {"silent_later", later_a, later_b, 0},
                             {"silent_used_with", used_with, used_b, 0},
                             {"silent_used_without", used_without, used_b, 0},
                             {"silent_killed", killed_a, silent_b, 0},
                             {"silent_before_fork", before_fork, before_b, COLD | SWITCHES},
                             {"silent_before_spawn", before_spawn, before_b, COLD | SWITCHES},
                             {"silent_ahead_fork", ahead_fork, ahead_b, 0},
                             {"silent_ahead_spawn", ahead_spawn, ahead_b, 0},
                             {"shared_spawn", shared_spawn, shared_b, 0},
                             {"shared_vfork", shared_vfork, shared_b, 0},
                             {"shared_fork", shared_fork, shared_b, 0},
                             {"shared_at_once", at_once_a, at_once_b, 0},
                             {"last_spawn", last_spawn, last_b, 0},
                             {"last_vfork", last_vfork, last_b, 0},
                             {"last_shared_spawn", last_shared_spawn, last_b, 0},
                             {"last_shared_fork", last_shared_fork, last_b, 0},
                             {"last_before_fork", last_before_fork, last_before_b, COLD | SWITCHES},
                             {"last_before_vfork", last_before_vfork, last_before_b, COLD | SWITCHES},
                             {"last_before_spawn", last_before_spawn, last_before_b, COLD | SWITCHES},
                             {"last_before_spawn_with", last_before_spawn_with, last_before_b, COLD | SWITCHES},
                             {"executed", executed, executed, ROLE},
                             {0}};
