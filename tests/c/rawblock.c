/* Owns: blocking sockets whose program waits by system calls that don't go through libc, and reads by those that do, mostly less than
 * there is. Nothing but the doorbells on the connection tells such a waiter, and it never meets EAGAIN: it does not read before it is told. */
#include "rawwait.h"

enum { MANY = 150, MUCH = 4 * MIB, PART = 3000, MESSAGE = 100 };

static char buf[256 * KIB];

/* One of the ways to read a part. */
static ssize_t part(int fd, int how, char *to, size_t n) {
    static int pipe_ends[2] = {-1, -1};
    struct iovec v[2] = {{to, n / 2}, {to + n / 2, n - n / 2}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    struct mmsghdr mm[1] = {{.msg_hdr = m}};
    switch (how % 9) {
    case 0: return recv(fd, to, n, 0);
    case 1: return read(fd, to, n);
    case 2: return readv(fd, v, 2);
    case 3: return recvmsg(fd, &m, 0);
    case 4: return recvmmsg(fd, mm, 1, MSG_WAITFORONE, NULL) == 1 ? (ssize_t)mm[0].msg_len : -1;
    case 5: return recv(fd, to, n, MSG_DONTWAIT);
    case 6: {
        ssize_t there = recv(fd, to, n, MSG_PEEK);
        if (there <= 0)
            return there;
        if (raw_poll(fd, POLLIN, 5000) != POLLIN)
            die("peeked: no event");
        return recv(fd, to, there, MSG_WAITALL);
    }
    case 7: {
        if (pipe_ends[0] < 0)
            MUST(pipe(pipe_ends));
        ssize_t there = splice(fd, NULL, pipe_ends[1], NULL, n, 0);
        return there <= 0 ? there : read(pipe_ends[0], to, there);
    }
    default: return recvfrom(fd, to, n, 0, NULL, NULL);
    }
}

/* What is told of a connection, level- or edge-triggered. */
static int set = -1;
static void watch(int fd, uint32_t trigger) {
    set = raw_epoll();
    MUST(raw_ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | trigger, 1));
}
static int told(int fd, int i, int ms) {
    struct epoll_event e;
    return i % 2 ? raw_poll(fd, POLLIN, ms) == POLLIN : raw_wait(set, &e, ms) == 1;
}

/* More messages than the doorbells after which it might be taken for a reader that waits in its reads; each is read whole, and then
 * hardly ever is one more told of. */
static void messages_a(int fd) {
    int stale = 0;
    for (int i = 0; i < MANY; i++) {
        meet();
        if (!told(fd, i, 20000))
            die("messages: no event");
        for (ssize_t n, left = MESSAGE; left > 0; left -= n) {
            if (left < MESSAGE && !told(fd, i, 20000))
                die("messages: no event of the rest");
            n = MUST(recv(fd, buf, left > 40 ? 40 : left, 0));
        }
        stale += raw_poll(fd, POLLIN, 1) != 0;
    }
    say("told of nothing often: %d", stale > MANY / 4);
}
static void messages_b(int fd) {
    memset(buf, 'm', MESSAGE);
    for (int i = 0; i < MANY; i++) {
        meet();
        put(fd, buf, MESSAGE);
    }
}

/* A stream that comes faster than it is read, in parts. */
static void stream_a(int fd, int ways) {
    int good = 1;
    meet();
    for (uint64_t o = 0, i = 0; o < MUCH; i++) {
        if (!told(fd, i, 20000))
            die("stream: no event");
        if (i % 16 == 0)
            usleep(100); /* the other end is ahead */
        ssize_t n = part(fd, ways ? (int)i : 0, buf, PART);
        if (n < 0 && errno == EAGAIN)
            continue; /* what the event was for may be no payload */
        good = good && n > 0 && matches(buf, n, o, 9);
        o += MUST(n);
    }
    say("whole %d", good);
}
static void stream_b(int fd) {
    meet();
    long before = lo_bytes();
    put_stream(fd, MUCH, 9);
    meet();
    warmed(MUCH, lo_bytes() - before);
}

static void level(int sends, int ways) {
    int fd = conn_raw();
    if (is_a) {
        watch(fd, 0);
        long all = sends ? glut(fd) : 0;
        messages_a(fd);
        stream_a(fd, ways);
        meet();
        tell_pid((pid_t)all);
    } else {
        messages_b(fd);
        stream_b(fd);
        for (long all = hear_pid(); all > 0;)
            all -= get(fd, buf, all > (long)sizeof buf ? sizeof buf : (size_t)all);
    }
    meet();
}
static void memory(void) { level(0, 0); }
static void memory_ways(void) { level(0, 1); }
static void tcp(void) { level(1, 0); }
static void tcp_ways(void) { level(1, 1); }

/* Edge-triggered: a read that gives less than was asked for says that this was all. */
static void edge(int sends) {
    int fd = conn_raw();
    if (is_a) {
        watch(fd, EPOLLET);
        long all = sends ? glut(fd) : 0;
        struct epoll_event e;
        long have = 0;
        for (int i = 0; i < MANY; i++) {
            meet();
            while (have < (i + 1) * MESSAGE) {
                if (raw_wait(set, &e, 20000) != 1)
                    die("edge: no event");
                ssize_t n;
                do
                    have += n = MUST(recv(fd, buf, 40, 0));
                while (n == 40);
            }
        }
        say("have %ld", have);
        meet();
        tell_pid((pid_t)all);
    } else {
        messages_b(fd);
        meet();
        for (long all = hear_pid(); all > 0;)
            all -= get(fd, buf, all > (long)sizeof buf ? sizeof buf : (size_t)all);
    }
    meet();
}
static void edge_memory(void) { edge(0); }
static void edge_tcp(void) { edge(1); }

/* It has read a part, and sends more than there is room for: what is left is still told of. */
static void full(int nonblock) {
    int fd = nonblock ? conn() : conn_raw();
    if (is_a) {
        watch(fd, 0);
        if (nonblock) {
            nonblocking(fd, 1);
            R(recv(fd, buf, 1, 0));
        }
        meet();
        for (int i = 0; i < 3; i++) {
            meet_settled();
            say("told %d", told(fd, i, 5000));
            R(recv(fd, buf, 40, 0));
            long all = glut(fd);
            say("told %d %d", told(fd, 0, 5000), told(fd, 1, 5000));
            R(recv(fd, buf, MESSAGE, 0));
            tell_pid((pid_t)all);
        }
    } else {
        meet();
        for (int i = 0; i < 3; i++) {
            put(fd, buf, MESSAGE);
            meet_settled();
            for (long all = hear_pid(); all > 0;)
                all -= get(fd, buf, all > (long)sizeof buf ? sizeof buf : (size_t)all);
        }
    }
    meet();
}
static void full_blocking(void) { full(0); }
static void full_refused(void) { full(1); }

/* The same of a send that waits for room, until the library takes it through TCP. */
static void full_asleep_a(void) {
    int fd = conn_raw();
    watch(fd, 0);
    meet_settled();
    say("told %d", told(fd, 0, 5000));
    R(recv(fd, buf, 40, 0));
    put_stream(fd, MIB, 3);
    say("told %d %d", told(fd, 0, 5000), told(fd, 1, 5000));
    R(recv(fd, buf, MESSAGE, 0));
    meet();
}
static void full_asleep_b(void) {
    int fd = conn_raw();
    put(fd, buf, MESSAGE);
    meet_settled();
    usleep(600000);
    get_stream(fd, MIB, 3);
    meet();
}

const struct test tests[] = {{"memory", memory, memory, 0},
                             {"memory_ways", memory_ways, memory_ways, 0},
                             {"tcp", tcp, tcp, 0},
                             {"tcp_ways", tcp_ways, tcp_ways, 0},
                             {"edge_memory", edge_memory, edge_memory, 0},
                             {"edge_tcp", edge_tcp, edge_tcp, 0},
                             {"full_blocking", full_blocking, full_blocking, 0},
                             {"full_refused", full_refused, full_refused, 0},
                             {"full_asleep", full_asleep_a, full_asleep_b, 0},
                             {0}};
