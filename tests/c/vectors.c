/* Owns: calls with many buffers or many messages: their limits, what they check first, and what they
 * return at the end of a stream and after an error. */
#include "case.h"

static char buf[64 * KIB];
static struct iovec many[1100];

static void ones(void) {
    for (size_t i = 0; i < sizeof many / sizeof *many; i++)
        many[i] = (struct iovec){buf + i, 1};
}

static void limits_a(void) {
    int fd = conn();
    meet();
    ones();
    struct msghdr m = {.msg_iov = many, .msg_iovlen = 1025};
    R(readv(fd, many, 1025));
    R(readv(fd, many, -1));
    R(recvmsg(fd, &m, 0));
    R(writev(fd, many, 1025));
    R(writev(fd, many, -1));
    R(writev(fd, many, 0));
    R(sendmsg(fd, &m, 0));
    meet_settled(); /* 1024 bytes are there */
    R(readv(fd, many, 1024));
    meet();
    struct iovec wrong[2] = {{buf, 4}, {buf, (size_t)-1}};
    struct iovec sum[2] = {{buf, 4}, {buf, SSIZE_MAX}};
    m = (struct msghdr){.msg_iov = wrong, .msg_iovlen = 2};
    R(readv(fd, wrong, 2));
    R(writev(fd, wrong, 2));
    R(recvmsg(fd, &m, MSG_DONTWAIT));
    R(sendmsg(fd, &m, MSG_DONTWAIT));
    meet_settled(); /* four more */
    R(readv(fd, sum, 1));
    R(now_in(fd));
}
static void limits_b(void) {
    int fd = conn();
    meet();
    ones();
    put(fd, buf, 1024);
    meet_settled();
    meet();
    put(fd, "abcd", 4);
    meet_settled();
}

static struct mmsghdr msgs[8];
static struct iovec parts[8];
static void set_up(size_t each) {
    memset(buf, 0, 256);
    for (int i = 0; i < 8; i++) {
        parts[i] = (struct iovec){buf + 16 * i, each};
        msgs[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[i], .msg_iovlen = 1}, .msg_len = 77};
    }
}
static void show(const char *what, int n) {
    int e = errno;
    say("%s = %d %s", what, n, n < 0 ? err_name(e) : "");
    for (int i = 0; i < n; i++)
        say("  %u '%.*s' flags %#x", msgs[i].msg_len, msgs[i].msg_len < 16 ? (int)msgs[i].msg_len : 0, buf + 16 * i,
            msgs[i].msg_hdr.msg_flags);
}

static void messages_a(void) {
    int fd = conn();
    meet_settled(); /* ten bytes */
    set_up(4);
    show("wait for one", recvmmsg(fd, msgs, 5, MSG_WAITFORONE, NULL));
    set_up(4);
    show("nothing", recvmmsg(fd, msgs, 5, MSG_DONTWAIT, NULL));
    set_up(4);
    show("none", recvmmsg(fd, msgs, 0, 0, NULL));
    struct timespec t = {0, 1000000000};
    show("wrong ns", recvmmsg(fd, msgs, 2, MSG_DONTWAIT, &t));
    t = (struct timespec){-1, 0};
    show("wrong s", recvmmsg(fd, msgs, 2, MSG_DONTWAIT, &t));
    meet();
    meet_settled(); /* eight bytes */
    t = (struct timespec){0, 0};
    show("no time", recvmmsg(fd, msgs, 2, 0, &t));
    say("left %ld %ld", (long)t.tv_sec, t.tv_nsec);
    t = (struct timespec){50, 0};
    show("much time", recvmmsg(fd, msgs, 1, 0, &t));
    say("less is left: %d", t.tv_sec == 49);
    t = (struct timespec){50, 0};
    show("much time, nothing", recvmmsg(fd, msgs, 2, MSG_DONTWAIT, &t));
    say("untouched: %d", t.tv_sec == 50 && t.tv_nsec == 0);
    show("sends", sendmmsg(fd, msgs, 3, 0));
    show("sends none", sendmmsg(fd, msgs, 0, 0));
    meet();
    meet_settled(); /* six bytes and the end */
    set_up(4);
    show("to the end", recvmmsg(fd, msgs, 5, 0, NULL));
    set_up(4);
    show("at the end", recvmmsg(fd, msgs, 3, 0, NULL));
    say("%u", msgs[1].msg_len);
}
static void messages_b(void) {
    int fd = conn();
    put(fd, "0123456789", 10);
    meet_settled();
    meet();
    put(fd, "abcdefgh", 8);
    meet_settled();
    meet();
    put(fd, "ijklmn", 6);
    shutdown(fd, SHUT_WR);
    meet_settled();
    R(get(fd, buf, 12));
}

static void reset_a(void) {
    int fd = conn();
    meet_settled(); /* six bytes, then a reset */
    set_up(4);
    show("after a reset", recvmmsg(fd, msgs, 5, 0, NULL));
    set_up(4);
    show("behind it", recvmmsg(fd, msgs, 2, 0, NULL));
    signal(SIGPIPE, SIG_IGN);
    show("sends", sendmmsg(fd, msgs, 2, 0));
}
static void reset_b(void) {
    int fd = conn();
    put(fd, "ijklmn", 6);
    settle();
    struct linger l = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(fd);
    meet_settled();
}

/* What is no memory: null, the kernel's half, a page without rights. */
static void *nowhere(int i) {
    static void *page;
    if (!page)
        page = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return i == 0 ? NULL : i == 1 ? (void *)-1 : page;
}
static void nowhere_a(void) {
    int fd = conn(), set = MUST(epoll_create1(0)), cold = MUST(socket(AF_INET, SOCK_STREAM, 0));
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    struct epoll_event ev = {EPOLLIN, {.fd = fd}};
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev));
    char byte = 0;
    struct iovec v = {&byte, 1};
    for (int i = 0; i < 3; i++) {
        void *p = nowhere(i);
        say("%d", i);
        struct msghdr m = {.msg_iov = p, .msg_iovlen = 1};
        struct msghdr named = {.msg_iov = &v, .msg_iovlen = 1, .msg_name = p, .msg_namelen = i ? 16 : 0};
        struct mmsghdr mm = {.msg_hdr = m};
        struct timespec *t = p;
        struct timespec now = {0, 0};
        int fds[] = {fd, cold, pair[0]};
        for (int k = 0; k < 3; k++) {
            int f = fds[k];
            R(sendmsg(f, p, MSG_NOSIGNAL));
            R(recvmsg(f, p, MSG_DONTWAIT));
            R(sendmsg(f, &m, MSG_NOSIGNAL));
            R(recvmsg(f, &m, MSG_DONTWAIT));
            R(sendmmsg(f, p, 2, MSG_NOSIGNAL));
            R(recvmmsg(f, p, 2, MSG_DONTWAIT, NULL));
            R(sendmmsg(f, &mm, 1, MSG_NOSIGNAL));
            R(recvmmsg(f, &mm, 1, MSG_DONTWAIT, NULL));
            R(readv(f, p, 1));
            R(writev(f, p, 1));
            R(connect(f, p, 16));
        }
        if (i)
            R(sendmsg(fd, &named, MSG_NOSIGNAL));
        if (i)
            R(recvmmsg(fd, &mm, 1, MSG_DONTWAIT, t));
        R(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, p, 4));
        R(setsockopt(cold, IPPROTO_TCP, TCP_NODELAY, p, 4));
        R(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &byte, p));
        R(poll(p, 1, 0));
        R(ppoll(p, 1, &now, NULL));
        R(epoll_ctl(set, EPOLL_CTL_MOD, fd, p));
        R(epoll_ctl(set, EPOLL_CTL_ADD, cold, p));
        if (i) {
            R(select(fd + 1, p, NULL, NULL, (struct timeval *)&now));
            R(pselect(fd + 1, NULL, p, NULL, &now, NULL));
            R(raw(SYS_ppoll, (long)&(struct pollfd){fd, POLLIN, 0}, 1, (long)p, 0, 8, 0)); /* libc would look itself */
            R(epoll_pwait2(set, &ev, 1, t, NULL));
        }
    }
    meet();
}
static void nowhere_b(void) {
    conn();
    meet();
}

/* Over TCP a received message has no name: the place for one is not looked at. */
static void named(int fd, void *at, socklen_t len) {
    struct iovec v = {buf, 2};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_name = at, .msg_namelen = len};
    struct mmsghdr mm = {.msg_hdr = m};
    R(recvmsg(fd, &m, MSG_DONTWAIT));
    say("length %d", (int)m.msg_namelen);
    R(recvmmsg(fd, &mm, 1, MSG_DONTWAIT, NULL));
    say("length %d", (int)mm.msg_hdr.msg_namelen);
}
static void names_a(void) {
    int fd = conn();
    struct sockaddr_storage s;
    meet_settled();
    for (int i = 0; i < 3; i++) {
        named(fd, nowhere(i), 16);
        named(fd, nowhere(i), 0);
        named(fd, nowhere(i), -1);
    }
    named(fd, (void *)100, 1000);
    named(fd, &s, sizeof s);
    R(now_in(fd));
    meet();
}
static void names_b(void) {
    int fd = conn();
    fill(buf, 100, 0, 1);
    put(fd, buf, 100);
    meet_settled();
    meet();
}

/* Flags that mean nothing here: a receive of nothing waits for something, as ever. */
static void odd_flags_a(void) {
    int fd = conn();
    struct msghdr m = {0};
    meet_settled();
    for (int bit = 20; bit < 31; bit++)
        if (bit != 25 && bit != 26 && bit != 27 && bit != 29) {
            say("bit %d", bit);
            R(recv(fd, buf, 0, MSG_DONTWAIT | 1 << bit));
            R(recvfrom(fd, buf, 0, MSG_DONTWAIT | 1 << bit, NULL, NULL));
            R(recvmsg(fd, &m, MSG_DONTWAIT | 1 << bit));
        }
    meet();
    meet_settled();
    struct iovec v = {buf, 3};
    m = (struct msghdr){.msg_iov = &v, .msg_iovlen = 1};
    R(recvmsg(fd, &m, MSG_CMSG_CLOEXEC));
    say("flags %#x", m.msg_flags);
    meet();
}
static void odd_flags_b(void) {
    int fd = conn();
    meet_settled();
    meet();
    put(fd, "abc", 3);
    meet_settled();
    meet();
}

/* Control messages that can't be: the kernel says so, in memory and where the same call would go there. */
static void with_control(int fd, void *at, size_t len) {
    struct iovec v = {buf, 10};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = at, .msg_controllen = len};
    R(sendmsg(fd, &m, MSG_NOSIGNAL));
}
static struct cmsghdr wrong = {.cmsg_len = sizeof wrong, .cmsg_level = SOL_SOCKET, .cmsg_type = 9999};
static void control_a(void) {
    int fd = conn();
    with_control(fd, NULL, 0);
    with_control(fd, &wrong, 0);
    with_control(fd, NULL, 16);
    with_control(fd, NULL, (size_t)INT_MAX + 1);
    with_control(fd, &wrong, (size_t)INT_MAX + 1);
    with_control(fd, &wrong, sizeof wrong);
    with_control(fd, &wrong, 4);
    put(fd, buf, 10);
    meet();
}
static void control_b(void) {
    int fd = conn();
    say("%zu", get(fd, buf, 40));
    meet();
}

enum { TURNS = 400, SIZE = 500 };
static void control_first_a(void) {
    int fd = conn_cold(), refused = 0;
    struct iovec v = {buf, SIZE};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &wrong, .msg_controllen = sizeof wrong};
    for (int i = 0; i < TURNS; i++) {
        refused += sendmsg(fd, &m, MSG_NOSIGNAL) < 0;
        put(fd, buf, SIZE);
        if (get(fd, buf, SIZE) != SIZE)
            die("turn");
    }
    say("refused: %d", refused);
    shutdown(fd, SHUT_WR);
    meet();
}
static void control_first_b(void) {
    int fd = conn_cold();
    for (int i = 0; i < TURNS; i++) {
        if (get(fd, buf, SIZE) != SIZE)
            die("turn");
        put(fd, buf, SIZE);
    }
    say("%zu more", get(fd, buf, SIZE));
    meet();
}

const struct test tests[] = {
    {"limits", limits_a, limits_b, 0},
    {"messages", messages_a, messages_b, 0},
    {"reset", reset_a, reset_b, 0},
    {"nowhere", nowhere_a, nowhere_b, 0},
    {"names", names_a, names_b, 0},
    {"odd_flags", odd_flags_a, odd_flags_b, 0},
    {"control", control_a, control_b, 0},
    {"control_first", control_first_a, control_first_b, COLD},
    {"control_first_back", control_first_b, control_first_a, COLD},
    {NULL, NULL, NULL, 0},
};
