/* Owns: epoll sets that a program has from the one that its process was before exec: what is registered there is what that program has
 * registered, as it did, and nothing else; and sets that are waited in on where exec fails. */
#include "given.h"

static char buf[64 * KIB];

enum { AT = 10, OTHER = 12, SET = 13 }; /* two connections and the set, for the next program */

/* What the kernel has registered, members by their data. */
static void registered(void) {
    char line[200], path[40];
    sprintf(path, "/proc/self/fdinfo/%d", SET);
    FILE *f = fopen(path, "r");
    if (!f)
        die(path);
    int all = 0;
    unsigned of[OTHER + 1] = {0};
    while (fgets(line, sizeof line, f)) {
        unsigned events;
        unsigned long long data;
        if (sscanf(line, "tfd: %*d events: %x data: %llx", &events, &data) != 2)
            continue;
        all++;
        if (data <= OTHER)
            of[data] = events;
    }
    fclose(f);
    say("%d: %x, %d: %x", AT, of[AT], OTHER, of[OTHER]);
    say("%d registered", all);
}
static void what_set(int ms) {
    struct epoll_event e[8];
    int n = epoll_wait(SET, e, 8, ms);
    say("%d events", n);
    for (uint64_t fd = AT; fd <= OTHER; fd++) /* they come in any order */
        for (int i = 0; i < n; i++)
            if (e[i].data.u64 == fd)
                say("%llu: %s", (unsigned long long)fd, epoll_text(e[i].events));
}

static void executed(void) {
    const char *role = getenv("EXEC_ROLE");
    if (!role)
        return;
    registered();
    meet();
    meet_settled(); /* 5,000 bytes are there on the one, and 5,000 on the other */
    what_set(2000);
    what_set(2000);
    got(AT, buf, 5000, 0, 6);
    if (!strcmp(role, "both")) {
        what_set(2000);
        got(OTHER, buf, 5000, 0, 7);
    }
    what_set(0);
    meet();
    echo(AT, "executed", 3);
    exit(0);
}

static int second_a(void) {
    int l = listen_on(PORT + 1);
    meet();
    int fd = accept_from(l);
    close(l);
    warm(fd);
    return fd;
}
static int second_b(void) {
    meet();
    int fd = dial(PORT + 1);
    warm(fd);
    return fd;
}
static void join(int fd, uint32_t events) {
    struct epoll_event e = {.events = events, .data.u64 = fd};
    MUST(epoll_ctl(SET, EPOLL_CTL_ADD, fd, &e));
}
/* Both are members of a set that was waited in, also asleep, and are in memory. */
static void set_up(void) {
    placed(conn(), AT);
    placed(second_a(), OTHER);
    placed(MUST(epoll_create1(0)), SET);
    join(AT, EPOLLIN);
    join(OTHER, EPOLLIN | EPOLLRDHUP);
    for (int i = 0; i < 20; i++) {
        struct epoll_event e;
        meet();
        while (epoll_wait(SET, &e, 1, -1) != 1)
            ;
        got(e.data.u64, buf, 1000, 0, 5);
    }
}
static void set_up_b(int *fd, int *other) {
    *fd = conn();
    *other = second_b();
    fill(buf, 1000, 0, 5);
    for (int i = 0; i < 20; i++) {
        meet();
        if (i % 4 < 2)
            usleep(10000); /* the other end sleeps */
        put(i % 2 ? *fd : *other, buf, 1000);
    }
}

static void both_a(void) {
    set_up();
    exec_self("both", environ);
}
static void both_without_a(void) {
    set_up();
    exec_self("both", without());
}
/* One was removed, and is open on. */
static void removed_a(void) {
    set_up();
    MUST(epoll_ctl(SET, EPOLL_CTL_DEL, OTHER, NULL));
    exec_self("removed", environ);
}
/* In poll till the other end comes: here this one can do what it is asked for. */
static void meet_in_poll(int fd, int other) {
    enum { CTL = 3 };
    struct pollfd all[3] = {{fd, 0, 0}, {other, 0, 0}, {CTL, POLLIN, 0}};
    MUST(poll(all, 3, -1));
    meet();
}
static void b(void) {
    int fd, other;
    set_up_b(&fd, &other);
    meet_in_poll(fd, other);
    fill(buf, 5000, 0, 7);
    put(other, buf, 5000);
    fill(buf, 5000, 0, 6);
    put(fd, buf, 5000);
    meet();
    meet();
    echo_until_end(fd);
}

/* It comes back: the connections are as they were, and one thread sleeps in the set all the while. */
static void *waits(void *arg) {
    struct epoll_event e = {0};
    while (epoll_wait(SET, &e, 1, -1) != 1)
        ;
    say("%llu: %s", (unsigned long long)e.data.u64, epoll_text(e.events));
    got(e.data.u64, buf, 1000, 0, 5);
    return arg;
}
static void fails_a(void) {
    set_up();
    for (int fd = AT; fd <= OTHER; fd += OTHER - AT)
        MUST(fcntl(fd, F_SETFD, FD_CLOEXEC));
    for (int i = 0; i < 4; i++) {
        pthread_t t;
        pthread_create(&t, NULL, waits, NULL);
        usleep(20000);
        R(execv("/nowhere", (char *[]){"nowhere", NULL}));
        meet();
        pthread_join(t, NULL);
    }
    echo(AT, "afterwards", 3);
    close(AT);
}
static void fails_b(void) {
    int fd, other;
    set_up_b(&fd, &other);
    for (int i = 0; i < 4; i++) {
        fill(buf, 1000, 0, 5);
        meet();
        usleep(i * 20000);
        put(i % 2 ? fd : other, buf, 1000);
    }
    echo_until_end(fd);
}

const struct test tests[] = {{"both_with", both_a, b, 0},
                             {"both_without", both_without_a, b, 0},
                             {"removed", removed_a, b, 0},
                             {"fails", fails_a, fails_b, 0},
                             {"executed", executed, executed, ROLE},
                             {0}};
