/* Owns: things that happen at the same moment, in a build of the library that takes its time at the right place
 * (tests/tests/faults.rs).
 *   races taken   a thread reads a connection, in whose call the library maps its memory; another one closes it. The memory is
 *                 given back, and the next connection is whole
 *   races edge    bytes come while epoll_wait, edge-triggered, has looked and found nothing: they are told
 *   races end     a reader has found the ring empty when the last bytes come, and the end behind them: it gets both
 *   races limit   a thread receives by a time limit from the listener while another one brings its connection to memory: each of
 *                 its calls ends by the limit
 *   races beside  a thread is about to sleep in recv beside another one, which brings the connection to memory and then does something else: it
 *                 gets what comes
 * Exit 0: right. Both ends are here, the connecting one in a child that connects by itself. */
#define _GNU_SOURCE
#include "pings.h"
#include "raw.h"
#include <fcntl.h>
#include <linux/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

enum { PORT = 7070, ROUNDS = 5, LOOKS = 30 };

/* -- taken */

static atomic_int stop;

static void *serve(void *arg) {
    int fd = *(int *)arg;
    while (!stop && answer(fd))
        ;
    return NULL;
}

static void taken_client(void) {
    for (int i = 0; i < ROUNDS; i++) {
        int first = dial(PORT), second = dial(PORT), n = 0;
        while (ping(first, n++))
            ;
        close(first);
        for (n = 0; n < 300; n++)
            if (!ping(second, n + i))
                die("the next connection has ended");
        close(second);
    }
}

static void taken_server(int listener) {
    int met = 0;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t thread;
        int first = accept(listener, NULL, NULL);
        stop = 0;
        if (first < 0 || pthread_create(&thread, NULL, serve, &first))
            die("accept");
        for (int ms = 0; !regions() && ms < 20000; ms++)
            usleep(1000);
        met += regions() == 1;
        stop = 1; /* the library is about to take the memory for it, in the other thread's call */
        close(first);
        pthread_join(thread, NULL);
        int second = accept(listener, NULL, NULL);
        if (second < 0)
            die("accept");
        while (answer(second))
            ;
        close(second);
        for (int ms = 0; regions() && ms < 5000; ms++)
            usleep(1000);
        if (regions())
            wrong("memory of a closed connection is mapped");
    }
    if (met < ROUNDS)
        wrong("the memory did not come");
    printf("taken: %d times\n", met);
}

/* -- edge */

static void edge_client(void) {
    int fd = dial(PORT);
    char c;
    while (read(gate[0], &c, 1) == 1) {
        if (c == 'x') {
            unsigned char first[BYTES] = {0};
            if (send(fd, first, sizeof first, MSG_NOSIGNAL) != sizeof first)
                die("send");
            usleep(8000); /* it has read that, and looks now */
        }
        if (!ping(fd, c))
            die("ping");
    }
}

/* What the kernel's own connection has carried: no libc in between. */
static unsigned long long received(int fd) {
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    if (raw(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)&info, (long)&len, 0))
        die("TCP_INFO");
    return info.tcpi_bytes_received;
}

static void edge_server(int listener) {
    int fd = accept(listener, NULL, NULL), set = epoll_create1(EPOLL_CLOEXEC), told = 0;
    struct epoll_event e = {EPOLLIN | EPOLLOUT | EPOLLET, {.fd = fd}}; /* its bits are remembered */
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (fd < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &e))
        die("a connection");
    unsigned long long before = 0;
    int warm = 0; /* messages before it was in memory */
    while (!warm || told < warm + LOOKS) {
        if (!warm && told % 20 == 0) {
            unsigned long long now = received(fd);
            if (told && now - before < 10 * BYTES)
                warm = told;
            else if (told == 1000)
                wrong("it is not in memory");
            before = now;
        }
        if (write(gate[1], warm ? "x" : "w", 1) != 1)
            die("gate");
        unsigned char bytes[BYTES];
        for (ssize_t n = 0, more; warm && n < BYTES;) /* read without being told */
            if ((more = recv(fd, bytes + n, sizeof bytes - n, 0)) > 0)
                n += more;
        for (ssize_t n = 0, more; n < BYTES;) {
            if (epoll_wait(set, &e, 1, 10000) != 1)
                wrong("bytes were not told");
            while ((more = recv(fd, bytes + n, sizeof bytes - n, 0)) > 0)
                n += more;
        }
        if (send(fd, bytes, BYTES, MSG_NOSIGNAL) != BYTES)
            die("send");
        told++;
    }
    if (received(fd) - before >= LOOKS * BYTES)
        wrong("it has left memory");
    close(gate[1]);
    printf("edge: told %d times, %d of them before it was in memory\n", told, warm);
}

/* -- end */

enum { PINGS = 60 };

static void end_client(void) {
    for (int i = 0; i < ROUNDS; i++) {
        int fd = dial(PORT);
        unsigned char last[BYTES] = {0}, c;
        for (int n = 0; n < PINGS; n++)
            if (!ping(fd, n))
                die("ping");
        usleep(5000); /* it has answered, and looks now */
        if (send(fd, last, sizeof last, MSG_NOSIGNAL) != sizeof last || shutdown(fd, SHUT_WR))
            die("send");
        while (recv(fd, &c, 1, 0) > 0)
            ;
        close(fd);
    }
}

static void end_server(int listener) {
    for (int i = 0; i < ROUNDS; i++) {
        int fd = accept(listener, NULL, NULL);
        long long all = 0;
        for (int n = 0; n < PINGS; n++) {
            if (!answer(fd))
                wrong("an early end");
            all += BYTES;
        }
        unsigned char bytes[BYTES];
        for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, 0)) != 0; all += n)
            if (n < 0)
                die("recv");
        if (all != (PINGS + 1) * BYTES)
            wrong("the last bytes are lost");
        close(fd);
    }
    printf("end: %d times\n", ROUNDS);
}

/* -- limit */

static void limit_client(void) {
    unsigned char bytes[BYTES];
    if (read(gate[0], bytes, 1) != 1) /* a connection has the limit that its listener had when it came */
        die("read");
    int fd = dial(PORT);
    while (recv(fd, bytes, sizeof bytes, 0) > 0)
        ;
}

static atomic_int limits;

static void *limited(void *fd) {
    unsigned char bytes[BYTES];
    while (!stop)
        if (recv(*(int *)fd, bytes, sizeof bytes, 0) < 0 && errno == EAGAIN)
            limits++;
    return NULL;
}

static void limit_server(int listener) {
    pthread_t thread;
    unsigned char bytes[BYTES] = {0};
    struct timeval t = {0, 20000};
    if (setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t))
        die("SO_RCVTIMEO");
    if (write(gate[1], "x", 1) != 1)
        die("write");
    int fd;
    while ((fd = accept(listener, NULL, NULL)) < 0 && errno == EAGAIN)
        ;
    if (fd < 0 || pthread_create(&thread, NULL, limited, &fd))
        die("accept");
    /* One of these brings the memory, and the other thread calls again meanwhile. */
    for (int n = 0; !regions() && n < 20000; n++) {
        if (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes)
            die("send");
        usleep(1000);
    }
    if (!regions())
        wrong("the memory did not come");
    for (int more = 0, before; more < 5; more++) {
        before = limits;
        for (int ms = 0; limits == before && ms < 10000; ms++)
            usleep(1000);
        if (limits == before)
            wrong("a call waits beyond its limit");
    }
    stop = 1;
    pthread_join(thread, NULL);
    close(fd);
    printf("limit: kept\n");
}

/* -- beside */

enum { TALK = 400 };

static void beside_client(void) {
    char c;
    if (read(gate[0], &c, 1) != 1)
        die("gate");
    int fd = dial(PORT);
    if (read(gate[0], &c, 1) != 1)
        die("gate");
    for (int n = 0; n < TALK; n++)
        if (!ping(fd, n))
            die("ping");
    sleep(1); /* the other thread sleeps */
    give(fd, 'x');
    while (recv(fd, &c, 1, 0) > 0)
        ;
}

static atomic_int talked;

static void *talks(void *fd) {
    for (int n = 0; n < TALK; n++)
        if (!answer(*(int *)fd))
            die("answer");
    talked = 1;
    while (!stop)
        usleep(1000);
    return NULL;
}

static void *listens(void *fd) {
    char bytes[BYTES];
    return (void *)(long)recv(*(int *)fd, bytes, sizeof bytes, MSG_WAITALL);
}

static void beside_server(int listener) {
    pthread_t one, other;
    if (write(gate[1], "x", 1) != 1)
        die("gate");
    int fd = accept(listener, NULL, NULL);
    if (fd < 0 || pthread_create(&one, NULL, talks, &fd))
        die("accept");
    usleep(100000); /* it sleeps in the kernel */
    if (pthread_create(&other, NULL, listens, &fd))
        die("thread");
    usleep(100000);
    if (write(gate[1], "x", 1) != 1)
        die("gate");
    while (!talked)
        usleep(1000);
    if (regions() != 1)
        wrong("it is not in memory");
    if (returned(other, "it sleeps beside what has come") != BYTES)
        wrong("it got something else");
    stop = 1;
    pthread_join(one, NULL);
    close(fd);
    printf("beside: got it\n");
}

int main(int argc, char **argv) {
    static const struct meeting cases[] = {{"taken", taken_client, taken_server}, {"edge", edge_client, edge_server}, {"end", end_client, end_server},
                                           {"limit", limit_client, limit_server}, {"beside", beside_client, beside_server}};
    return play(cases, sizeof cases / sizeof *cases, argc > 1 ? argv[1] : NULL, PORT, -1);
}
