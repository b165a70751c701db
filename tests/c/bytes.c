/* Owns: the streams of the run-twice programs: bytes that follow from their offset and a seed (see case.h). */
#include "case.h"

static inline unsigned char at(uint64_t o, unsigned seed) {
    return (unsigned char)((o * 131) ^ (o >> 8) * 37 ^ (o >> 16) * 11 ^ seed * 89);
}

void fill(void *buf, size_t len, uint64_t offset, unsigned seed) {
    unsigned char *p = buf;
    for (size_t i = 0; i < len; i++)
        p[i] = at(offset + i, seed);
}

int matches(const void *buf, size_t len, uint64_t offset, unsigned seed) {
    const unsigned char *p = buf;
    for (size_t i = 0; i < len; i++)
        if (p[i] != at(offset + i, seed)) {
            dprintf(complaints, "byte %llu of stream %u differs\n", (unsigned long long)(offset + i), seed);
            return 0;
        }
    return 1;
}

void put(int fd, const void *buf, size_t len) {
    while (len > 0) {
        ssize_t n = send(fd, buf, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            events(fd, POLLOUT, -1);
            continue;
        }
        if (n < 0)
            die("put");
        buf = (const char *)buf + n;
        len -= n;
    }
}

size_t get(int fd, void *buf, size_t len) {
    size_t have = 0;
    while (have < len) {
        ssize_t n = recv(fd, (char *)buf + have, len - have, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            events(fd, POLLIN, -1);
            continue;
        }
        if (n < 0)
            die("get");
        if (n == 0)
            break;
        have += n;
    }
    return have;
}

void got(int fd, void *buf, size_t len, uint64_t offset, unsigned seed) {
    size_t n = get(fd, buf, len);
    say("%zu whole %d", n, matches(buf, n, offset, seed));
}

void put_stream(int fd, uint64_t len, unsigned seed) {
    char *buf = malloc(256 * KIB);
    unsigned r = seed + 7;
    for (uint64_t o = 0; o < len;) {
        size_t n = rnd(&r) % 4 == 0 ? rnd(&r) % (256 * KIB) + 1 : rnd(&r) % 9000 + 1;
        if (n > len - o)
            n = len - o;
        fill(buf, n, o, seed);
        put(fd, buf, n);
        o += n;
    }
    free(buf);
    payload(len);
}

void get_stream(int fd, uint64_t len, unsigned seed) {
    char *buf = malloc(256 * KIB);
    unsigned r = seed + 70;
    for (uint64_t o = 0; o < len;) {
        size_t n = rnd(&r) % 4 == 0 ? rnd(&r) % (256 * KIB) + 1 : rnd(&r) % 9000 + 1;
        if (n > len - o)
            n = len - o;
        if (get(fd, buf, n) != n)
            die("get_stream: early end");
        if (!matches(buf, n, o, seed))
            die("get_stream: bytes differ");
        o += n;
    }
    free(buf);
    say("stream %u: %llu bytes, whole", seed, (unsigned long long)len);
}

void trickle(int fd) {
    for (int i = 0; i < 300; i++) {
        put(fd, "x", 1);
        tell('.');
        hear();
    }
}

void trickled(int fd) {
    char c;
    for (int i = 0; i < 300; i++) {
        hear();
        MUST(recv(fd, &c, 1, 0));
        tell('.');
    }
}

void small_talk(int fd, int n) {
    char c = 'x';
    for (int i = 0; i < n; i++) {
        if (!is_a)
            put(fd, &c, 1);
        if (get(fd, &c, 1) != 1)
            die("small talk");
        if (is_a)
            put(fd, &c, 1);
    }
}

void echo(int fd, const char *what, unsigned seed) {
    static char a[20000], b[20000];
    fill(a, sizeof a, 0, seed);
    put(fd, a, sizeof a);
    size_t n = get(fd, b, sizeof b);
    say("%s: %zu %s", what, n, n == sizeof b && !memcmp(a, b, n) ? "whole" : "DIFFERENT");
}

void echo_until_end(int fd) {
    static char buf[64 * KIB];
    long all = 0;
    ssize_t n;
    for (; (n = recv(fd, buf, sizeof buf, 0)) > 0; all += n)
        put(fd, buf, n);
    say("echoed %ld, then %s", all, n == 0 ? "end" : err_name(errno));
    close(fd);
}

uint64_t drain(int fd, unsigned seed) {
    char *buf = malloc(256 * KIB);
    uint64_t o = 0;
    ssize_t n;
    int good = 1;
    while ((n = recv(fd, buf, 256 * KIB, 0)) > 0 || (n < 0 && errno == EINTR)) {
        if (n < 0)
            continue;
        good = good && matches(buf, n, o, seed);
        o += n;
    }
    say("stream %u: whole = %d, then %s", seed, good, n == 0 ? "end" : err_name(errno));
    free(buf);
    return o;
}

unsigned rnd(unsigned *s) {
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

long glut(int fd) {
    static char buf[20000];
    long all = 0;
    for (int calm = 0; calm < 6; calm++, settle())
        for (ssize_t n; (n = send(fd, buf, sizeof buf, MSG_DONTWAIT)) > 0; all += n)
            calm = 0;
    return all;
}
