/* Owns: fork: connections used by the parent, the child, both; servers that fork for each
 * connection or before; vfork, posix_spawn, system and popen beside traffic. */
#include "case.h"
#include <spawn.h>

static char buf[64 * KIB];
extern char **environ;

static void echo_b(void) {
    echo_until_end(conn());
    meet();
}

static void child_uses_a(void) {
    int fd = conn();
    pid_t child = fork();
    if (child == 0) {
        echo(fd, "child", 1);
        echo(fd, "child", 2);
        _exit(3);
    }
    wait_for(child);
    echo(fd, "parent afterwards", 3);
    child = fork();
    if (child == 0) {
        R(close(fd)); /* must not be an end for the peer */
        _exit(4);
    }
    wait_for(child);
    echo(fd, "after the child's close", 4);
    child = fork();
    if (child == 0)
        exit(5);
    wait_for(child);
    echo(fd, "after the child's exit", 5);
    R(close(fd));
    meet();
}

/* The parent closes, the child goes on: as inetd and sshd do. */
static void parent_closes_a(void) {
    int fd = conn();
    pid_t child = fork();
    if (child == 0) {
        settle();
        echo(fd, "child alone", 1);
        put_stream(fd, 5 * MIB, 7);
        R(shutdown(fd, SHUT_WR));
        R(recv(fd, buf, 1, 0));
        _exit(0);
    }
    R(close(fd));
    wait_for(child);
    meet();
}
static void parent_closes_b(void) {
    int fd = conn();
    static char b[20000];
    size_t n = get(fd, b, sizeof b);
    put(fd, b, n);
    get_stream(fd, 5 * MIB, 7);
    R(recv(fd, buf, 1, 0));
    close(fd);
    meet();
}

/* Both at once: one writes and the other reads; then in turns, message by message. */
static void both_a(void) {
    int fd = conn(), turn[2][2];
    MUST(pipe(turn[0]));
    MUST(pipe(turn[1]));
    pid_t child = fork();
    if (child == 0) {
        put_stream(fd, 8 * MIB, 1);
        for (int i = 0; i < 50; i++) {
            MUST(read(turn[0][0], buf, 1));
            put(fd, "child!", 6);
            if (get(fd, buf, 6) != 6 || memcmp(buf, "child!", 6))
                die("child's turn");
            MUST(write(turn[1][1], "x", 1));
        }
        _exit(0);
    }
    get_stream(fd, 8 * MIB, 2);
    meet(); /* the peer has all of the child's stream */
    for (int i = 0; i < 50; i++) {
        put(fd, "parent", 6);
        if (get(fd, buf, 6) != 6 || memcmp(buf, "parent", 6))
            die("parent's turn");
        MUST(write(turn[0][1], "x", 1));
        MUST(read(turn[1][0], buf, 1));
    }
    wait_for(child);
    R(close(fd));
    meet();
}
static void *both_put(void *fd) {
    put_stream(*(int *)fd, 8 * MIB, 2);
    return NULL;
}
static void both_b(void) {
    int fd = conn();
    pthread_t t;
    pthread_create(&t, NULL, both_put, &fd);
    get_stream(fd, 8 * MIB, 1);
    pthread_join(t, NULL);
    meet();
    echo_until_end(fd);
    meet();
}

/* A server that forks for each connection, and one that forked before. */
static void clients_b(int count) {
    meet();
    for (int i = 0; i < count; i++) {
        int fd = dial(PORT);
        warm(fd);
        echo(fd, "client", i);
        put_stream(fd, 2 * MIB, i);
        MUST(shutdown(fd, SHUT_WR));
        R(recv(fd, buf, 1, 0));
        close(fd);
    }
    meet();
}
static void serve_one(int fd, unsigned seed) {
    static char b[20000];
    warm(fd);
    put(fd, b, get(fd, b, sizeof b));
    get_stream(fd, 2 * MIB, seed);
    close(fd);
}
static void fork_each_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < 6; i++) {
        int fd = accept_from(l);
        pid_t child = fork();
        if (child == 0) {
            close(l);
            serve_one(fd, i);
            _exit(0);
        }
        close(fd);
        wait_for(child);
    }
    meet();
}
static void fork_each_b(void) { clients_b(6); }

static void prefork_a(void) {
    int l = listen_on(PORT), next[2];
    pid_t child[4];
    MUST(pipe(next));
    MUST(write(next[1], "\0", 1));
    for (int i = 0; i < 4; i++)
        if ((child[i] = fork()) == 0) {
            for (;;) {
                char number;
                if (read(next[0], &number, 1) != 1 || number >= 12)
                    break;
                int fd = accept_from(l);
                serve_one(fd, number++);
                MUST(write(next[1], &number, 1));
                if (number >= 12)
                    for (int k = 0; k < 4; k++)
                        MUST(write(next[1], &number, 1));
            }
            _exit(0);
        }
    close(l);
    meet();
    for (int i = 0; i < 4; i++)
        wait_for(child[i]);
    meet();
}
static void prefork_b(void) { clients_b(12); }

/* Children that have nothing to do with the connection, while it is busy. */
static void *traffic(void *p) {
    put_stream(*(int *)p, 60 * MIB, 3);
    return NULL;
}
static volatile int vforked;
static void unrelated_a(void) {
    int fd = conn();
    pthread_t t;
    pthread_create(&t, NULL, traffic, &fd);
    for (int i = 0; i < 5; i++) {
        FILE *f = popen("echo popen", "r");
        char line[20] = "";
        if (!fgets(line, sizeof line, f) || pclose(f) != 0)
            die("popen");
        if (system("exit 7") != 7 << 8)
            die("system");
        pid_t pid;
        char *args[] = {"true", NULL};
        if (posix_spawnp(&pid, "true", NULL, NULL, args, environ) != 0)
            die("posix_spawnp");
        int status;
        if (waitpid(pid, &status, 0) != pid || status)
            die("spawned");
        pid = vfork();
        if (pid == 0) {
            vforked++;
            execlp("true", "true", NULL);
            _exit(1);
        }
        if (waitpid(pid, &status, 0) != pid || status)
            die("vforked");
        pid = fork(); /* as BGSAVE: a copy that works on and ends */
        if (pid == 0) {
            settle();
            _exit(0);
        }
        if (waitpid(pid, &status, 0) != pid || status)
            die("forked");
    }
    pthread_join(t, NULL);
    say("children %d", vforked);
    echo(fd, "afterwards", 4);
    R(close(fd));
    meet();
}
static void unrelated_b(void) {
    int fd = conn();
    get_stream(fd, 60 * MIB, 3);
    echo_until_end(fd);
    meet();
}

/* A child is killed in the middle of a send, of a receive: the parent's stream goes on where the
 * kernel had it. The transcript says only what must be. */
static void killed_a(void) {
    int fd = conn();
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0)
            for (;;) { /* in recv, holding whatever a reader holds */
                ssize_t n = recv(fd, buf, 1, MSG_PEEK | (i % 2 ? MSG_DONTWAIT : 0));
                if (n == 0)
                    _exit(0);
            }
        settle();
        kill(child, SIGKILL);
        wait_for(child);
        echo(fd, "parent", i);
    }
    R(close(fd));
    meet();
}

/* fork while another thread is in the middle of everything, many times. */
static int forking_fd;
static void *forking_echo(void *p) {
    for (int i = 0; i < 2000; i++) {
        char a[500], b[500];
        fill(a, sizeof a, i, 9);
        put(forking_fd, a, sizeof a);
        if (get(forking_fd, b, sizeof b) != sizeof b || memcmp(a, b, sizeof a))
            die("echo while forking");
    }
    return NULL;
}
static void forking_a(void) {
    forking_fd = conn();
    pthread_t t;
    pthread_create(&t, NULL, forking_echo, NULL);
    for (int i = 0; i < 40; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(i % 2 ? (close(forking_fd), 0) : 0);
        int status;
        if (waitpid(child, &status, 0) != child || status)
            die("child");
    }
    pthread_join(t, NULL);
    say("40 children, 2000 echoes");
    R(close(forking_fd));
    meet();
}

/* A fork between the moment when the connecting side asks for memory and the one when the accepting side
 * hears of it: the connection moves all the same, when the child is gone. */
enum { FORKS = 4, AFTER = 2 * MIB };
static void young_a(void) {
    int l = listen_on(PORT);
    meet();
    for (int i = 0; i < FORKS; i++) {
        int fd = accept_from(l);
        for (int n = 0; n < 40; n++)
            get(fd, buf, 1);
        meet();
        meet();
        pid_t child = MUST(fork());
        if (child == 0) {
            usleep(50000);
            _exit(0);
        }
        for (int n = 0; n < 40; n++)
            get(fd, buf, 1);
        MUST(waitpid(child, NULL, 0));
        for (int n = 0; n < 20; n++, usleep(5000))
            put(fd, buf, get(fd, buf, 64));
        put_stream(fd, AFTER, i);
        close(fd);
    }
    say("%d children", FORKS);
    meet();
}
static void young_b(void) {
    meet();
    for (int i = 0; i < FORKS; i++) {
        int fd = dial(PORT);
        put(fd, buf, 40);
        meet();
        for (int n = 0; n < 40; n++)
            put(fd, buf, 1);
        meet();
        for (int n = 0; n < 20; n++) {
            put(fd, buf, 64);
            get(fd, buf, 64);
        }
        get_stream(fd, AFTER, i);
        close(fd);
    }
    meet();
}

const struct test tests[] = {{"child_uses", child_uses_a, echo_b, 0},
                             {"parent_closes", parent_closes_a, parent_closes_b, 0},
                             {"both_use", both_a, both_b, 0},
                             {"fork_each", fork_each_a, fork_each_b, 0},
                             {"prefork", prefork_a, prefork_b, 0},
                             {"unrelated_children", unrelated_a, unrelated_b, WHOLE},
                             {"killed_child", killed_a, echo_b, 0},
                             {"forking_beside_traffic", forking_a, echo_b, 0},
                             {"fork_while_young", young_a, young_b, COLD | WHOLE},
                             {0}};
