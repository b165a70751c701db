/* Owns: programs that are started with a connection under its own number, which the child that became the program has
 * never touched: by fork, vfork and posix_spawn, with the library and without, and what the one that started them does
 * with the connection meanwhile and afterwards. */
#include "given.h"

static char buf[64 * KIB];

enum { AT = 10 /* the connection */, TURN = 12 /* a pipe that says when */, OVER = 13 /* whose end says that all is over */ };
static void executed(void) {
    const char *role = getenv("EXEC_ROLE");
    if (!role)
        return;
    if (!strcmp(role, "talks")) {
        for (int i = 0; i < 40; i++)
            echo(AT, "executed", i);
    } else if (!strcmp(role, "reads")) {
        got(AT, buf, 15000, 5000, 5);
        echo(AT, "executed", 7);
    } else if (!strcmp(role, "reads late")) {
        settle();
        settle();
        got(AT, buf, 15000, 5000, 5);
        echo(AT, "executed", 7);
    } else if (!strcmp(role, "in turn")) {
        char number;
        MUST(read(TURN, &number, 1));
        echo(AT, "one of them", number++);
        MUST(write(TURN + 1, &number, 1));
    } else if (!strcmp(role, "sleeps")) {
        char c;
        MUST(read(TURN, &c, 1)); /* until the other one has closed its end */
    }
    exit(0);
}

/* Under its number for the next program; nothing here is closed by exec. */
static int connected(void) {
    int fd = placed(conn(), AT);
    echo(fd, "before", 1);
    return fd;
}
static void before_b(int fd) { put(fd, buf, get(fd, buf, 20000)); }

/* It talks at once, or has to read what had come before it was there. The other end says nothing until all is over. */
static void closes_a(enum how how, const char *role, char **env) {
    int fd = connected();
    meet_settled();
    if (role[0] == 'r')
        got(fd, buf, 5000, 0, 5);
    pid_t child = start(how, role, env);
    close(fd);
    wait_for(child);
    meet();
}
static void waits_a(enum how how, const char *role, char **env) {
    int fd = connected();
    meet_settled();
    if (role[0] == 'r')
        got(fd, buf, 5000, 0, 5);
    wait_for(start(how, role, env));
    echo(fd, "afterwards", 2);
    close(fd);
    meet();
}
/* The one that started it ends at once: without a word, or with exit(3). */
static void ends_a(enum how how, const char *role, int quietly) {
    int over[2];
    MUST(pipe(over));
    over[1] = placed(over[1], OVER);
    pid_t child = MUST(fork());
    if (child == 0) {
        close(over[0]);
        connected();
        meet_settled();
        got(AT, buf, 5000, 0, 5);
        start(how, role, environ);
        if (quietly)
            kill(getpid(), SIGKILL);
        exit(3);
    }
    close(OVER);
    wait_for(child);
    say("%zd", read(over[0], buf, 1));
    meet();
}
static void sends_b(size_t n) {
    int fd = conn();
    before_b(fd);
    fill(buf, n, 0, 5);
    put(fd, buf, n);
    meet();
    echo_until_end(fd);
    meet();
}
static void talks_b(void) { sends_b(0); }
static void reads_b(void) { sends_b(20000); }

static void fork_talks_with(void) { closes_a(FORK, "talks", environ); }
static void fork_talks_without(void) { closes_a(FORK, "talks", without()); }
static void vfork_talks_with(void) { closes_a(VFORK, "talks", environ); }
static void vfork_talks_without(void) { closes_a(VFORK, "talks", without()); }
static void spawn_talks_with(void) { closes_a(SPAWN, "talks", environ); }
static void spawn_talks_without(void) { closes_a(SPAWN, "talks", without()); }
static void fork_reads_with(void) { closes_a(FORK, "reads", environ); }
static void fork_reads_without(void) { closes_a(FORK, "reads", without()); }
static void vfork_reads_with(void) { closes_a(VFORK, "reads late", environ); }
static void vfork_reads_without(void) { closes_a(VFORK, "reads late", without()); }
static void spawn_reads_with(void) { closes_a(SPAWN, "reads late", environ); }
static void spawn_reads_without(void) { closes_a(SPAWN, "reads late", without()); }
static void fork_waits_with(void) { waits_a(FORK, "reads", environ); }
static void fork_waits_without(void) { waits_a(FORK, "talks", without()); }
static void vfork_waits(void) { waits_a(VFORK, "reads", environ); }
static void spawn_waits(void) { waits_a(SPAWN, "talks", environ); }
static void fork_ends(void) { ends_a(FORK, "reads late", 0); }
static void fork_dies(void) { ends_a(FORK, "reads late", 1); }
static void vfork_ends(void) { ends_a(VFORK, "reads late", 0); }
static void spawn_dies(void) { ends_a(SPAWN, "reads late", 1); }

/* Several programs have it, by turns; the one that started them has closed it. */
static void several_a(void) {
    int fd = connected(), turn[2];
    MUST(pipe(turn));
    turn[0] = placed(turn[0], TURN);
    turn[1] = placed(turn[1], TURN + 1);
    meet();
    pid_t child[3];
    for (int i = 0; i < 3; i++)
        child[i] = start(i, "in turn", i == 1 ? without() : environ);
    close(fd);
    MUST(write(TURN + 1, "\1", 1));
    for (int i = 0; i < 3; i++)
        MUST(waitpid(child[i], NULL, 0)); /* what they say comes by turns, how they end does not */
    meet();
}

/* Programs that have it and do not know: the one that started them goes on with it, and when they have ended it is in
 * memory again. */
enum { BACK = 64 * MIB };
static void comes_back_a(enum how how) {
    int fd = connected(), turn[2];
    MUST(pipe(turn));
    turn[0] = placed(turn[0], TURN);
    MUST(fcntl(turn[1], F_SETFD, FD_CLOEXEC));
    meet();
    pid_t child[2];
    for (int i = 0; i < 2; i++)
        child[i] = start(how, "sleeps", i ? without() : environ);
    for (int i = 0; i < 20; i++)
        echo(fd, "beside them", i);
    close(turn[1]);
    for (int i = 0; i < 2; i++)
        wait_for(child[i]);
    for (int i = 0; i < 200; i++, usleep(1000))
        put(fd, buf, get(fd, buf, 100));
    meet();
    put_stream(fd, BACK, 3);
    get_stream(fd, BACK, 4);
    close(fd);
    meet();
}
static void comes_back_b(void) {
    int fd = conn();
    before_b(fd);
    meet();
    for (int i = 0; i < 20; i++)
        before_b(fd);
    for (int i = 0; i < 200; i++) {
        put(fd, buf, 100);
        get(fd, buf, 100);
    }
    meet();
    long before = lo_bytes();
    get_stream(fd, BACK, 3);
    put_stream(fd, BACK, 4);
    R(recv(fd, buf, 1, 0));
    warmed(2L * BACK, lo_bytes() - before);
    close(fd);
    meet();
}
/* Something lay unread when they were started: when it is in memory again, that is behind it. */
static void back_unread_a(void) {
    int fd = connected(), turn[2], good = 1;
    MUST(pipe(turn));
    turn[0] = placed(turn[0], TURN);
    MUST(fcntl(turn[1], F_SETFD, FD_CLOEXEC));
    meet_settled();
    pid_t child = start(FORK, "sleeps", environ);
    got(fd, buf, 3000, 0, 5);
    close(turn[1]);
    wait_for(child);
    for (int i = 0; i < 400; i++, usleep(1000)) {
        good = good && get(fd, buf, 100) == 100 && matches(buf, 100, 100 * i, 6);
        put(fd, buf, 100);
    }
    say("whole %d, %d more", good, now_in(fd));
    meet();
    get_stream(fd, MIB, 4);
}
static void back_unread_b(void) {
    int fd = conn();
    before_b(fd);
    fill(buf, 3000, 0, 5);
    put(fd, buf, 3000);
    meet_settled();
    for (int i = 0; i < 400; i++) {
        fill(buf, 100, 100 * i, 6);
        put(fd, buf, 100);
        get(fd, buf, 100);
    }
    meet();
    put_stream(fd, MIB, 4);
    R(recv(fd, buf, 1, 0));
}
static void back_from_fork(void) { comes_back_a(FORK); }
static void back_from_vfork(void) { comes_back_a(VFORK); }
static void back_from_spawn(void) { comes_back_a(SPAWN); }

const struct test tests[] = {{"fork_talks_with", fork_talks_with, talks_b, 0},
                             {"fork_talks_without", fork_talks_without, talks_b, 0},
                             {"vfork_talks_with", vfork_talks_with, talks_b, 0},
                             {"vfork_talks_without", vfork_talks_without, talks_b, 0},
                             {"spawn_talks_with", spawn_talks_with, talks_b, 0},
                             {"spawn_talks_without", spawn_talks_without, talks_b, 0},
                             {"fork_reads_with", fork_reads_with, reads_b, 0},
                             {"fork_reads_without", fork_reads_without, reads_b, 0},
                             {"vfork_reads_with", vfork_reads_with, reads_b, 0},
                             {"vfork_reads_without", vfork_reads_without, reads_b, 0},
                             {"spawn_reads_with", spawn_reads_with, reads_b, 0},
                             {"spawn_reads_without", spawn_reads_without, reads_b, 0},
                             {"fork_waits_with", fork_waits_with, reads_b, 0},
                             {"fork_waits_without", fork_waits_without, talks_b, 0},
                             {"vfork_waits", vfork_waits, reads_b, 0},
                             {"spawn_waits", spawn_waits, talks_b, 0},
                             {"fork_ends", fork_ends, reads_b, 0},
                             {"fork_dies", fork_dies, reads_b, 0},
                             {"vfork_ends", vfork_ends, reads_b, 0},
                             {"spawn_dies", spawn_dies, reads_b, 0},
                             {"several", several_a, talks_b, 0},
                             {"back_unread", back_unread_a, back_unread_b, 0},
                             {"back_from_fork", back_from_fork, comes_back_b, 0},
                             {"back_from_vfork", back_from_vfork, comes_back_b, 0},
                             {"back_from_spawn", back_from_spawn, comes_back_b, 0},
                             {"executed", executed, executed, ROLE},
                             {0}};
