/* Owns: socket filters (SO_ATTACH_FILTER and its like): what comes through memory would pass them by. A segment that a filter
 * drops is sent again, so it arrives when the filter has gone. */
#include "case.h"
#include <linux/filter.h>

static char buf[64 * KIB];

/* Drops segments whose payload begins with "DROP". */
static int attach(int fd, int option) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 12), /* the length of TCP's header */
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),
        BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 2),
        BPF_STMT(BPF_MISC | BPF_TAX, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
        BPF_STMT(BPF_ALU | BPF_SUB | BPF_X, 0),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 4, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_IND, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x44524f50, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, 0xffffffff),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog p = {sizeof code / sizeof *code, code};
    return setsockopt(fd, SOL_SOCKET, option, &p, sizeof p);
}
static int detach(int fd) { return setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, "", 4); }

/* The filter is there: ten bytes come that it drops, and then what it lets through stays behind them. */
static void filtered(int fd) {
    meet();
    meet_settled();
    R(recv(fd, buf, 100, MSG_DONTWAIT));
    say("%s", poll_text(events(fd, POLLIN, 20)));
    R(detach(fd));
    say("%zu '%.10s'", get(fd, buf, 10), buf);
    R(detach(fd));
    echo(fd, "without it", 3);
}
static void sends(int fd) {
    meet();
    put(fd, "DROPabcdef", 10);
    meet_settled();
    echo_until_end(fd);
}

static void attached_a(void) {
    int fd = conn();
    R(attach(fd, SO_ATTACH_FILTER));
    echo(fd, "with it", 1);
    filtered(fd);
}
static void attached_b(void) {
    static char b[20000];
    int fd = conn();
    put(fd, b, get(fd, b, sizeof b));
    sends(fd);
}

/* The connecting end has it, from before the connection. */
static void before_a(void) {
    int fd = conn();
    sends(fd);
}
static void before_b(void) {
    meet();
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    R(attach(fd, SO_ATTACH_FILTER));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(connect(fd, (void *)&to, sizeof to));
    warm(fd);
    filtered(fd);
}

/* What is accepted has the listener's. */
static void listener_a(void) {
    int l = listen_on(PORT);
    R(attach(l, SO_ATTACH_FILTER));
    meet();
    int fd = accept_from(l);
    warm(fd);
    filtered(fd);
    R(close(fd));
    R(detach(l));
    meet();
    fd = accept_from(l);
    warm(fd);
    meet();
    meet_settled();
    R(recv(fd, buf, 100, MSG_DONTWAIT));
    echo(fd, "another one", 4);
}
static void listener_b(void) {
    for (int i = 0; i < 2; i++) {
        meet();
        int fd = dial(PORT);
        warm(fd);
        sends(fd);
    }
}

/* What the kernel refuses, and the lock. */
static void locked_a(void) {
    int fd = conn(), on = 1;
    struct sock_fprog none = {0, NULL};
    int nothing = -1;
    R(setsockopt(fd, SOL_SOCKET, SO_ATTACH_BPF, &nothing, sizeof nothing));
    R(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &none, sizeof none));
    R(detach(fd));
    R(setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &on, sizeof on));
    R(attach(fd, SO_ATTACH_FILTER));
    meet();
    meet_settled();
    R(recv(fd, buf, 100, MSG_DONTWAIT));
    echo(fd, "locked", 1);
}
static void locked_b(void) {
    int fd = conn();
    sends(fd);
}

const struct test tests[] = {{"attached", attached_a, attached_b, 0}, {"before", before_a, before_b, COLD},
                             {"listener", listener_a, listener_b, COLD | SWITCHES}, {"locked", locked_a, locked_b, 0}, {0}};
