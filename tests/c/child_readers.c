/* Owns: children that read what the peer of their parent's connection sends, and the peer that waits for them. */
#include "case.h"

static char buf[64 * KIB];

/* The child reads what a thread sends that began after the fork, and that waits for room more than once. */
static void of_late_sender_a(void) {
    int fd = conn();
    pid_t child = fork();
    if (child == 0) {
        meet();
        for (int i = 0; i < 4; i++) {
            settle();
            get_stream(fd, MIB, i);
        }
        _exit(0);
    }
    wait_for(child);
    R(close(fd));
    meet();
}
static void *late_put(void *fd) {
    for (int i = 0; i < 4; i++)
        put_stream(*(int *)fd, MIB, i);
    return NULL;
}
static void of_late_sender_b(void) {
    int fd = conn();
    meet();
    pthread_t t;
    pthread_create(&t, NULL, late_put, &fd);
    pthread_join(t, NULL);
    R(recv(fd, buf, 1, 0));
    close(fd);
    meet();
}

/* The reader is a child, forked since the connection is in memory, and slow: the writer waits for room by what
 * the child has never been told of. In a blocking call, in poll, and in an epoll set. */
static void slow_a(void) {
    int fd = conn();
    pid_t child = fork();
    if (child == 0) {
        for (unsigned part = 0; part < 3; part++)
            for (uint64_t o = 0; o < 6 * MIB; o += 32 * KIB) {
                if (get(fd, buf, 32 * KIB) != 32 * KIB || !matches(buf, 32 * KIB, o, part))
                    die("child: other bytes");
                if (o % (512 * KIB) == 0)
                    usleep(700);
            }
        R(recv(fd, buf, 1, 0));
        _exit(0);
    }
    meet();
    wait_for(child);
    R(close(fd));
}
static void wait_for_room(int fd, int set) {
    struct epoll_event e;
    if (set < 0)
        events(fd, POLLOUT, -1);
    else if (epoll_wait(set, &e, 1, -1) != 1)
        die("epoll_wait");
}
static void *slow_put(void *p) {
    int fd = *(int *)p, set = -1;
    for (unsigned part = 0; part < 3; part++) {
        nonblocking(fd, part > 0);
        if (part == 2) {
            struct epoll_event e = {.events = EPOLLOUT};
            MUST(set = epoll_create1(0));
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
        }
        if (part > 0)
            wait_for_room(fd, set);
        for (uint64_t o = 0; o < 6 * MIB;) {
            size_t n = 6 * MIB - o < sizeof buf ? 6 * MIB - o : sizeof buf;
            fill(buf, n, o, part);
            ssize_t sent = send(fd, buf, n, 0);
            if (sent > 0)
                o += sent;
            else if (sent < 0 && errno == EAGAIN)
                wait_for_room(fd, set);
            else
                die("send");
        }
    }
    payload(18 * MIB);
    return NULL;
}
static void slow_b(void) {
    int fd = conn();
    pthread_t t;
    meet();
    pthread_create(&t, NULL, slow_put, &fd);
    pthread_join(t, NULL);
    R(shutdown(fd, SHUT_WR));
    nonblocking(fd, 0);
    R(recv(fd, buf, 1, 0));
}

/* All that the peer will ever send lies unread when a child is forked for it; the parent closes at once. */
static void half_closed_a(void) {
    int fd = conn();
    meet_settled();
    pid_t child = fork();
    if (child) {
        close(fd);
        wait_for(child);
        meet();
        return;
    }
    settle();
    got(fd, buf, 20000, 0, 5);
    R(recv(fd, buf, 1, 0));
    fill(buf, 20000, 0, 6);
    put(fd, buf, 20000);
    _exit(0);
}
static void half_closed_b(void) {
    int fd = conn();
    fill(buf, 20000, 0, 5);
    put(fd, buf, 20000);
    R(shutdown(fd, SHUT_WR));
    meet_settled();
    got(fd, buf, 20000, 0, 6);
    R(recv(fd, buf, 1, 0));
    meet();
}

const struct test tests[] = {{"half_closed", half_closed_a, half_closed_b, 0},
                             {"of_late_sender", of_late_sender_a, of_late_sender_b, 0},
                             {"slow", slow_a, slow_b, WHOLE},
                             {0}};
