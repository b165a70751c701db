/* Owns: a server that runs as root and forks a child which gives its privileges up and is then taken over.
 *   drops serve PORT SECONDS SEED HOW   echoes on connections of its own, a thread each, while the child writes into
 *                                       whatever it has got from the library
 *   drops call PORT SECONDS SEED        connections whose every byte is checked, of which some wait between their exchanges
 * HOW: look (nothing, but tells what it could write to), random (bytes anywhere), chosen (numbers and addresses in their places), eat (descriptors: reads what wakes
 * others), all (one after the other). The server says how many pages of the library's the child could write before and after,
 * that are the parent's too, and how many bytes it has written and eaten; the caller says how many it has got back. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS = 8, NOBODY = 65534, MOST = 24 * 1024, MAPPINGS = 256 };

static int port, seconds;
static uint64_t seed, ends;
static _Atomic uint64_t echoed;

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}
static uint64_t roll(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}
static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

/* -- the child after its fall: memory, and descriptors that are not its own doing */

struct mapping {
    unsigned char *from;
    size_t bytes;
    unsigned long inode;
};

/* Whatever of the library's it may write: its memfds by name, and what has no name but is shared. */
static int mappings(struct mapping *found) {
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512], rights[8];
    unsigned long from, to, inode;
    int n = 0;
    while (f && n < MAPPINGS && fgets(line, sizeof line, f))
        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &from, &to, rights, &inode) == 4 && rights[1] == 'w' && rights[3] == 's' &&
            (strstr(line, "smcr-") || strstr(line, "/dev/zero")))
            found[n++] = (struct mapping){(unsigned char *)from, to - from, inode};
    if (f)
        fclose(f);
    return n;
}

/* Its descriptor can be mapped anew where the mapping itself is gone. */
static int mapped_anew(struct mapping *found, int n) {
    for (int fd = 3; fd < 4096 && n < MAPPINGS; fd++) {
        char path[64], to[128];
        struct stat st;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(path, to, sizeof to - 1);
        if (len <= 0 || (to[len] = 0, !strstr(to, "smcr-")) || fstat(fd, &st))
            continue;
        void *p = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p != MAP_FAILED)
            found[n++] = (struct mapping){p, st.st_size, st.st_ino};
    }
    return n;
}

static uint64_t chosen(uint64_t *chance, const struct mapping *in) {
    static const uint64_t values[] = {0,          1,          2,           ~0ull,      0x7fffffff,
                                      0x80000000, 0xffffffff, 0x100000001, 0x4141414141414140, 4096,
                                      1ull << 20, 1ull << 63, 65536};
    uint64_t r = roll(chance);
    switch (r % 4) {
    case 0:
        return (uint64_t)in->from + r / 4 % in->bytes / 8 * 8; /* a place in the page */
    case 1:
        return (uint64_t)&seconds + r / 4 % 4096; /* the program's own memory */
    case 2:
        return r / 4 % 1024 << 32 | (uint64_t)getppid();
    default:
        return values[r / 4 % (sizeof values / sizeof *values)];
    }
}

static uint64_t scribble(uint64_t until, uint64_t *chance, int by_choice) {
    static struct mapping found[MAPPINGS];
    uint64_t written = 0;
    int n = mapped_anew(found, mappings(found));
    while (n && now_ms() < until) {
        for (int i = 0; i < 4096; i++) {
            struct mapping *in = &found[roll(chance) % n];
            /* What is in use lies at the front as a rule. */
            size_t span = roll(chance) % 4 ? in->bytes : in->bytes < 1 << 21 ? in->bytes : 1 << 21;
            size_t at = roll(chance) % span / 8 * 8;
            volatile uint64_t *word = (void *)(in->from + at);
            *word = by_choice ? chosen(chance, in) : roll(chance);
            written += 8;
        }
        sched_yield();
    }
    return written;
}

/* Takes what wakes others out of every descriptor but those that it had before the library came. */
static uint64_t eat(uint64_t until) {
    static char buf[4096];
    uint64_t eaten = 0;
    do {
        for (int fd = 3; fd < 4096; fd++) {
            char path[64], to[128];
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            ssize_t len = readlink(path, to, sizeof to - 1);
            if (len <= 0)
                continue;
            to[len] = 0;
            int is_socket = !strncmp(to, "socket:", 7), domain = 0;
            socklen_t size = sizeof domain;
            if (is_socket && (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) || domain != AF_UNIX))
                continue;
            if (!is_socket && !strstr(to, "eventfd") && strncmp(to, "pipe:", 5))
                continue;
            int flags = fcntl(fd, F_GETFL);
            if (flags < 0 || !(flags & O_NONBLOCK))
                continue;
            ssize_t got = is_socket ? recv(fd, buf, sizeof buf, MSG_DONTWAIT) : read(fd, buf, sizeof buf);
            eaten += got > 0 ? got : 0;
            if (is_socket)
                send(fd, buf, 40, MSG_DONTWAIT | MSG_NOSIGNAL);
        }
        sched_yield();
    } while (now_ms() < until);
    return eaten;
}

/* How many of those are still there. */
static int kept(const struct mapping *before, int n) {
    static struct mapping now[MAPPINGS];
    int m = mapped_anew(now, mappings(now)), count = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++)
            if (before[i].inode == now[j].inode) {
                count++;
                break;
            }
    return count;
}

enum { BEFORE, AFTER, WRITTEN, EATEN, REPORTED };

static void taken_over(const char *how, int report) {
    static struct mapping before[MAPPINGS];
    uint64_t chance = seed * 2654435761u + 1, did[REPORTED] = {0}, from = now_ms(), span = seconds * 1000ull;
    int n = mappings(before);
    did[BEFORE] = n;
    if (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY))
        fail("setresuid");
    did[AFTER] = kept(before, n);
    if (!strcmp(how, "random") || !strcmp(how, "all"))
        did[WRITTEN] += scribble(from + span / 3, &chance, 0);
    if (!strcmp(how, "eat") || !strcmp(how, "all"))
        did[EATEN] += eat(from + span * 2 / 3);
    if (!strcmp(how, "chosen") || !strcmp(how, "all"))
        did[WRITTEN] += scribble(from + span, &chance, 1);
    if (write(report, did, sizeof did) != sizeof did)
        fail("report");
    /* Without a function of the library, whose memory is spoilt. */
    kill(getpid(), SIGKILL);
}

/* -- the server */

static void *echo(void *p) {
    static _Thread_local char buf[64 * 1024];
    int fd = (int)(intptr_t)p;
    ssize_t got;
    while ((got = recv(fd, buf, sizeof buf, 0)) > 0)
        for (ssize_t sent = 0, n; sent < got; sent += n) {
            if ((n = send(fd, buf + sent, got - sent, MSG_NOSIGNAL)) <= 0)
                fail("send");
            echoed += n;
        }
    if (got < 0)
        fail("recv");
    close(fd);
    return NULL;
}

static void serve(const char *how) {
    int l = socket(AF_INET, SOCK_STREAM, 0), one = 1, pipes[2];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    pthread_t threads[CONNECTIONS];
    setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(l, (void *)&at, sizeof at) || listen(l, 64) || pipe(pipes))
        fail("listen");
    /* One that is in memory before the fork, so that the child gets all that is made for the first one. It is closed
     * there and goes on here. */
    int first = accept(l, NULL, NULL);
    char buf[256];
    for (int i = 0; i < 64; i++)
        if (recv(first, buf, sizeof buf, MSG_WAITALL) != sizeof buf || send(first, buf, sizeof buf, 0) != sizeof buf)
            fail("first");
    pid_t child = fork();
    if (child == 0) {
        close(first);
        close(pipes[0]);
        taken_over(how, pipes[1]);
    }
    close(pipes[1]);
    for (int i = 0; i < CONNECTIONS; i++)
        pthread_create(&threads[i], NULL, echo, (void *)(intptr_t)accept(l, NULL, NULL));
    echo((void *)(intptr_t)first);
    for (int i = 0; i < CONNECTIONS; i++)
        pthread_join(threads[i], NULL);
    uint64_t did[REPORTED] = {0};
    int status;
    if (read(pipes[0], did, sizeof did) != sizeof did || waitpid(child, &status, 0) != child)
        fail("the child");
    printf("echoed %llu, shared before %llu, after %llu, written %llu, eaten %llu\n", (unsigned long long)echoed,
           (unsigned long long)did[BEFORE], (unsigned long long)did[AFTER], (unsigned long long)did[WRITTEN],
           (unsigned long long)did[EATEN]);
}

/* -- the caller */

static unsigned char byte_at(uint64_t stream, uint64_t at) {
    return (at * 0x9e3779b97f4a7c15ull + stream * 0xff51afd7ed558ccdull) >> 56;
}

static _Atomic uint64_t got_back;

static void exchange(int fd, uint64_t stream, uint64_t *at, size_t n) {
    static _Thread_local unsigned char out[MOST], in[MOST];
    for (size_t i = 0; i < n; i++)
        out[i] = byte_at(stream, *at + i);
    if (send(fd, out, n, MSG_NOSIGNAL) != (ssize_t)n)
        fail("send");
    for (size_t have = 0; have < n;) {
        ssize_t got = recv(fd, in + have, n - have, 0);
        if (got <= 0)
            fail(got ? "recv" : "end");
        have += got;
    }
    if (memcmp(in, out, n)) {
        fprintf(stderr, "wrong bytes on %llu behind %llu\n", (unsigned long long)stream, (unsigned long long)*at);
        exit(1);
    }
    *at += n;
    got_back += n;
}

static int dial(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (void *)&to, sizeof to))
        fail("connect");
    return fd;
}

struct stream {
    int fd, number;
    uint64_t at;
};

static void *talk(void *p) {
    struct stream *s = p;
    uint64_t chance = seed + s->number * 7919ull + 1;
    while (now_ms() < ends) {
        exchange(s->fd, s->number, &s->at, 1 + roll(&chance) % MOST);
        /* Long enough for the other end to fall asleep, and for this one. */
        if (s->number % 2 == 0 && roll(&chance) % 8 == 0)
            usleep(roll(&chance) % 3000);
    }
    shutdown(s->fd, SHUT_WR);
    char rest;
    if (recv(s->fd, &rest, 1, 0) != 0)
        fail("no end");
    return NULL;
}

static void call(void) {
    static struct stream streams[1 + CONNECTIONS];
    pthread_t threads[1 + CONNECTIONS];
    streams[0].fd = dial();
    for (int i = 0; i < 64; i++)
        exchange(streams[0].fd, 0, &streams[0].at, 256);
    for (int i = 1; i <= CONNECTIONS; i++)
        streams[i] = (struct stream){dial(), i, 0};
    ends = now_ms() + seconds * 1000ull;
    for (int i = 0; i <= CONNECTIONS; i++)
        pthread_create(&threads[i], NULL, talk, &streams[i]);
    for (int i = 0; i <= CONNECTIONS; i++)
        pthread_join(threads[i], NULL);
    printf("got back %llu\n", (unsigned long long)got_back);
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    port = atoi(argv[2]), seconds = atoi(argv[3]), seed = strtoull(argv[4], NULL, 10);
    if (!strcmp(argv[1], "call"))
        call();
    else if (argc > 5)
        serve(argv[5]);
    return 0;
}
