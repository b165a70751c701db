/* Owns: connections of processes that change what they may do: from then on nothing of the library's is shared with the
 * processes that they were forked from or have forked. Runs as root to the full; others fail to change, and go on. */
#include "case.h"
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

static char buf[64 * KIB];

enum { NOBODY = 65534 };

/* The transcript must not depend on who runs it: whether it worked is not said. */
static void drop(void) {
    if (setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0)
        (void)!setresuid(NOBODY, NOBODY, NOBODY);
}
static void drop_by_syscall(void) { (void)!syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY); }
static void drop_capabilities(void) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    (void)!syscall(SYS_capset, &head, none);
}
static void drop_calls(void) {
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {1, all};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    (void)!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0);
}

static void exchange(int fd, int times) {
    for (int i = 0; i < times; i++) {
        fill(buf, 4000, 0, i);
        put(fd, buf, 4000);
        if (get(fd, buf + 4000, 4000) != 4000 || memcmp(buf, buf + 4000, 4000))
            die("exchange");
    }
}

/* The usual server: a child for each connection, which gives its privileges up and serves; the parent closes. Another user
 * than the one that accepted it cannot answer for the connection: it stays on TCP, but for the same user without
 * capabilities. */
static void each_with(void (*gives_up)(void)) {
    int fd = conn_cold();
    pid_t child = fork();
    if (child == 0) {
        gives_up();
        warm(fd);
        echo(fd, "the child", 7);
        _exit(0);
    }
    close(fd);
    wait_for(child);
    meet();
}
static void each_a(void) { each_with(drop); }
static void by_syscall_a(void) { each_with(drop_by_syscall); }
static void capabilities_a(void) { each_with(drop_capabilities); }
static void warm_b(void) {
    int fd = conn_cold();
    warm(fd);
    echo_until_end(fd);
    meet();
}

/* The child had the connection in memory, alone, when it gave them up: it stays there. */
static void alone_a(void) {
    int fd = conn_cold(), closed[2];
    MUST(pipe(closed));
    pid_t child = fork();
    if (child == 0) {
        MUST(read(closed[0], buf, 1));
        warm(fd);
        drop();
        long before = lo_bytes();
        for (int i = 0; i < 20; i++)
            exchange(fd, 20);
        long moved = lo_bytes() - before;
        warmed(20 * 20 * 8000, moved);
        echo(fd, "the child", 7);
        _exit(0);
    }
    close(fd);
    MUST(write(closed[1], "x", 1));
    wait_for(child);
    meet();
}

/* As sshd: one that gives them up speaks first and ends, then the one that made it goes on, and again a child. Where that
 * one has come to memory between two children, it is on TCP after the next for good; who only waits for them ends in memory. */
static void in_turns(int speaks_between) {
    int fd = conn_cold();
    int twin = MUST(dup(fd)); /* as sshd has it: one to read, one to write */
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            drop();
            exchange(fd, 8);
            echo(fd, "a child", i);
            _exit(0);
        }
        wait_for(child);
        if (speaks_between)
            exchange(fd, 4);
    }
    warm(fd);
    echo(fd, "the parent", 7);
    close(fd);
    close(twin);
    meet();
}
static void in_turns_a(void) { in_turns(1); }
static void one_by_one_a(void) { in_turns(0); }
static void answer_turns(int exchanges) {
    int fd = conn_cold();
    for (int i = 0; i < 3; i++) {
        for (int n = 0; n < exchanges * 4000 + 20000;) {
            ssize_t got = MUST(recv(fd, buf, sizeof buf, 0));
            put(fd, buf, got);
            n += got;
        }
    }
    warm(fd);
    echo_until_end(fd);
    meet();
}
static void in_turns_b(void) { answer_turns(12); }
static void one_by_one_b(void) { answer_turns(8); }

/* Both hold it and use it in turns, without an end of either. */
static void both_with(void (*gives_up)(void), int warmed_up) {
    int fd = conn_cold(), turn[2], done[2];
    MUST(pipe(turn));
    MUST(pipe(done));
    if (warmed_up)
        warm(fd);
    pid_t child = fork();
    if (child == 0) {
        close(turn[1]);
        gives_up();
        while (read(turn[0], buf, 1) == 1) {
            echo(fd, "the child", 5);
            MUST(write(done[1], "x", 1));
        }
        _exit(0);
    }
    for (int i = 0; i < 6; i++) {
        MUST(write(turn[1], "x", 1));
        MUST(read(done[0], buf, 1));
        echo(fd, "the parent", 6);
    }
    close(turn[1]);
    wait_for(child);
    close(fd);
    meet();
}
static void both_a(void) { both_with(drop, 0); }
static void both_b(void) {
    echo_until_end(conn_cold());
    meet();
}
/* In memory when the child gives them up: back to TCP for both. */
static void in_memory_a(void) { both_with(drop, 1); }
static void filtered_a(void) { both_with(drop_calls, 1); }

/* A child that never had anything to do with the connection leaves it to the parent, and its next ones go to memory. */
static void bystander_a(void) {
    int l = listen_on(PORT), end[2];
    MUST(pipe(end));
    pid_t child = fork();
    if (child == 0) {
        close(end[1]);
        drop();
        if (read(end[0], buf, 1) != 0)
            die("not the end");
        _exit(0);
    }
    close(end[0]);
    meet();
    int fd = accept_from(l);
    warm(fd);
    echo(fd, "the parent", 7);
    close(fd);
    close(end[1]);
    wait_for(child);
    close(l);
    meet();
}
/* The process itself becomes another user than its peer, which was of the same one and sleeps until there is room; then both
 * wait for each other, for bytes and for room. */
static void itself_a(void) {
    int fd = conn();
    usleep(20000); /* the ring is full */
    drop();
    long before = lo_bytes();
    get_stream(fd, 4 * 1024 * KIB, 3);
    exchange(fd, 100);
    put_stream(fd, 4 * 1024 * KIB, 4);
    exchange(fd, 100);
    warmed(8 * 1024 * KIB + 200 * 8000, lo_bytes() - before);
    close(fd);
    meet();
}
static void itself_b(void) {
    int fd = conn();
    put_stream(fd, 4 * 1024 * KIB, 3);
    for (int n = 0; n < 100 * 4000;) {
        ssize_t more = MUST(recv(fd, buf, sizeof buf, 0));
        put(fd, buf, more);
        n += more;
    }
    usleep(20000); /* as above */
    get_stream(fd, 4 * 1024 * KIB, 4);
    echo_until_end(fd);
    meet();
}
const struct test tests[] = {{"each", each_a, warm_b, COLD},
                             {"by_syscall", by_syscall_a, warm_b, COLD},
                             {"capabilities", capabilities_a, warm_b, 0},
                             {"alone", alone_a, warm_b, 0},
                             {"in_turns", in_turns_a, in_turns_b, COLD | SWITCHES},
                             {"one_by_one", one_by_one_a, one_by_one_b, 0},
                             {"both", both_a, both_b, COLD},
                             {"in_memory", in_memory_a, warm_b, 0},
                             {"filtered", filtered_a, warm_b, 0},
                             {"bystander", bystander_a, warm_b, 0},
                             {"itself", itself_a, itself_b, 0},
                             {0}};
