/* Owns: a connection that changes hands, or becomes the kernel's alone, while its sender, which has gone to TCP by itself, goes on
 * sending: more than any queue holds, and as fast as it is taken up. */
#include "given.h"

enum { AT = 10, SIZE = 96 * MIB };
/* What fits into the queues of TCP behind a ring, and a part of it. */
enum { SOME = 700 * KIB, PART = 300 * KIB };

static char buf[64 * KIB];

static void all(int fd) {
    get_stream(fd, SIZE, 5);
    R(recv(fd, buf, 1, 0));
}
static void executed(void) {
    static char some[SOME - PART];
    const char *role = getenv("EXEC_ROLE");
    if (!role)
        return;
    if (!strcmp(role, "all")) {
        all(AT);
    } else {
        got(AT, some, sizeof some, PART, 5);
        R(send(AT, "thanks", 6, 0));
        R(recv(AT, buf, 1, 0));
    }
    exit(0);
}

static void goes(char **env) {
    int fd = ahead();
    placed(fd, AT);
    exec_self("all", env);
}
static void with_a(void) { goes(environ); }
static void without_a(void) { goes(without()); }
static void passed_a(void) {
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t child = fork();
    if (child == 0) {
        all(passed_one(pair[1]));
        _exit(0);
    }
    int fd = ahead();
    pass(pair[0], &fd, 1);
    close(fd);
    wait_for(child);
}
/* The program's own all the time. */
static void to_itself_a(void) {
    int pair[2], fd = ahead();
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pass(pair[0], &fd, 1);
    close(fd);
    all(passed_one(pair[1]));
}
static void ulp_a(void) {
    int fd = ahead();
    R(setsockopt(fd, IPPROTO_TCP, TCP_ULP, "none", 4));
    all(fd);
}
static void low_water_a(void) {
    int fd = ahead(), n = 64 * KIB;
    R(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n));
    all(fd);
}

static char *stream(int *file) {
    *file = MUST(memfd_create("stream", MFD_CLOEXEC));
    MUST(ftruncate(*file, SIZE));
    char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
    if (p == MAP_FAILED)
        die("mmap");
    fill(p, SIZE, 0, 5);
    return p;
}
static void over(int fd) {
    payload(SIZE);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
/* In one call. */
static void send_b(void) {
    int file, fd = conn();
    char *p = stream(&file);
    meet();
    R(send(fd, p, SIZE, 0));
    over(fd);
}
/* One that begins when the direction is on TCP. */
static void send_later_b(void) {
    int file, fd = conn();
    char *p = stream(&file);
    size_t first = 2 * MIB;
    meet();
    R(send(fd, p, first, 0));
    R(send(fd, p + first, SIZE - first, 0));
    over(fd);
}
static void file_b(void) {
    int file, fd = conn();
    stream(&file);
    off_t from = 0;
    meet();
    R(sendfile(fd, file, &from, SIZE));
    say("%lld", (long long)from);
    over(fd);
}
/* Not blocking, and the library sees nobody who waits. */
static void unseen_b(void) {
    int file, fd = conn();
    char *p = stream(&file);
    nonblocking(fd, 1);
    meet();
    for (size_t done = 0; done < SIZE;) {
        ssize_t n = send(fd, p + done, SIZE - done < 20000 ? SIZE - done : 20000, 0);
        if (n < 0 && errno != EAGAIN)
            die("send");
        if (n < 0)
            raw_poll(fd, POLLOUT, 200);
        else
            done += n;
    }
    nonblocking(fd, 0);
    over(fd);
}

/* An edge-triggered set that the library does not see, whose program takes a short count for a full queue (epoll(7)). */
static void edges_b(void) {
    int file, fd = conn(), waits = 0;
    char *p = stream(&file);
    nonblocking(fd, 1);
    int ep = MUST(raw(SYS_epoll_create1, 0, 0, 0, 0, 0, 0));
    struct epoll_event e = {.events = EPOLLOUT | EPOLLET};
    MUST(raw(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, fd, (long)&e, 0, 0));
    MUST(raw(SYS_epoll_wait, ep, (long)&e, 1, 0, 0, 0));
    meet();
    for (size_t done = 0; done < SIZE;) {
        size_t want = SIZE - done < MIB ? SIZE - done : MIB;
        ssize_t n = send(fd, p + done, want, 0);
        if (n < 0 && errno != EAGAIN)
            die("send");
        done += n > 0 ? n : 0;
        if (n == (ssize_t)want)
            continue;
        waits++;
        if (MUST(raw(SYS_epoll_wait, ep, (long)&e, 1, 5000, 0, 0)) == 0) {
            say("no edge");
            break;
        }
    }
    say("waited %d", waits > 0);
    raw(SYS_close, ep, 0, 0, 0, 0, 0);
    nonblocking(fd, 0);
    over(fd);
}
static void edges_a(void) {
    int fd = conn();
    meet_settled();
    all(fd);
}

/* The sender has sent all and makes no call, so nothing comes again; the program stays. */
static int still(void) {
    int fd = ahead();
    R(setsockopt(fd, IPPROTO_TCP, TCP_ULP, "none", 4));
    say("%s %d", poll_text(events(fd, POLLIN, 0)), now_in(fd) > 0);
    R(recv(fd, buf, 1000, MSG_PEEK));
    say("%d", matches(buf, 1000, 0, 5));
    return fd;
}
static void still_a(void) {
    static char some[SOME];
    int fd = still();
    got(fd, some, PART, 0, 5);
    got(fd, some, SOME - PART, PART, 5);
    say("%d", now_in(fd));
    meet();
    got(fd, buf, 10000, SOME, 5);
    R(recv(fd, buf, 1, 0));
}
static int put_some(void) {
    static char some[SOME];
    int fd = conn();
    fill(some, SOME, 0, 5);
    meet();
    put(fd, some, SOME);
    return fd;
}
static void still_b(void) {
    int fd = put_some();
    meet();
    fill(buf, 10000, SOME, 5);
    put(fd, buf, 10000);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
/* It gives the rest away when the sender is back. */
static void still_goes_a(void) {
    static char some[PART];
    int fd = still();
    got(fd, some, PART, 0, 5);
    meet_settled();
    placed(fd, AT);
    exec_self("rest", without());
}
static void still_goes_b(void) {
    int fd = put_some();
    meet();
    R(get(fd, buf, 6));
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}

const struct test tests[] = {{"exec_send", without_a, send_b, SLOW},
                             {"exec_send_with", with_a, send_b, SLOW},
                             {"exec_later", without_a, send_later_b, SLOW},
                             {"exec_file", without_a, file_b, SLOW},
                             {"exec_unseen", without_a, unseen_b, SLOW},
                             {"pass_send", passed_a, send_b, SLOW},
                             {"pass_file", passed_a, file_b, SLOW},
                             {"pass_unseen", passed_a, unseen_b, SLOW},
                             {"to_itself", to_itself_a, file_b, SLOW},
                             {"ulp_send", ulp_a, send_b, SLOW},
                             {"ulp_file", ulp_a, file_b, SLOW},
                             {"ulp_unseen", ulp_a, unseen_b, SLOW},
                             {"low_water_send", low_water_a, send_b, SLOW},
                             {"low_water_file", low_water_a, file_b, SLOW},
                             {"low_water_unseen", low_water_a, unseen_b, SLOW},
                             {"still", still_a, still_b, 0},
                             {"still_goes", still_goes_a, still_goes_b, 0},
                             {"edges", edges_a, edges_b, SLOW},
                             {"executed", executed, executed, ROLE},
                             {0}};
