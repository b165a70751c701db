/* Owns: what must hold when large amounts go through a connection's wide ring and small ones do not: a stream in which both
 * kinds take turns, that is forked, peeked at, left unread and pinned to TCP, and one of files. Run by tests/bulk.rs, with copies that
 * count as slow. */
#include "case.h"

enum { BLOCK = 64 * KIB, LOT = 16 * MIB };
static char buf[256 * KIB];

/* How many mappings of a region the process has that are larger than the region. */
static void show(const char *who) {
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long from, to, large = 0;
    while (f && fgets(line, sizeof line, f))
        large += strstr(line, "smcr-region") && sscanf(line, "%lx-%lx", &from, &to) == 2 && to - from > 4 * MIB;
    fclose(f);
    fprintf(stderr, "%s %lu wide\n", who, large);
}

static void give_on(int fd, uint64_t from, uint64_t len, size_t block, unsigned seed) {
    for (uint64_t o = from; o < from + len;) {
        size_t n = block < from + len - o ? block : from + len - o;
        fill(buf, n, o, seed);
        put(fd, buf, n);
        o += n;
    }
    payload(len);
}

static void take_on(int fd, uint64_t from, uint64_t len, unsigned seed) {
    for (uint64_t o = from; o < from + len;) {
        size_t n = sizeof buf < from + len - o ? sizeof buf : from + len - o;
        ssize_t r = MUST(recv(fd, buf, n, 0));
        if (r == 0 || !matches(buf, r, o, seed))
            die("bytes differ");
        o += r;
    }
}

/* After each MiB the giver waits until nothing is left unread: only an empty ring is left for the wide one. */
static void give(int fd, uint64_t from, uint64_t len, size_t block, unsigned seed) {
    for (uint64_t o = from; o < from + len; o += MIB) {
        give_on(fd, o, MIB, block, seed);
        get(fd, buf, 1);
    }
}

static void take(int fd, uint64_t from, uint64_t len, unsigned seed) {
    for (uint64_t o = from; o < from + len; o += MIB) {
        take_on(fd, o, MIB, seed);
        put(fd, "r", 1);
    }
    say("%llu bytes from %llu, whole", (unsigned long long)len, (unsigned long long)from);
}

/* 16 MiB of blocks, small ones to and fro, blocks again; then the same in the other direction. */
static void turns(void) {
    int fd = conn();
    for (unsigned way = 0; way < 2; way++)
        for (unsigned turn = 0; turn < 3; turn++) {
            if (is_a == (int)way)
                take(fd, 0, LOT, 5 + turn);
            else
                give(fd, 0, LOT, BLOCK, 5 + turn);
            for (int i = 0; i < 500; i++) {
                char c[100];
                if (is_a == (int)way)
                    fill(c, sizeof c, 0, i), put(fd, c, sizeof c), get(fd, c, 1);
                else if (get(fd, c, sizeof c) != sizeof c || !matches(c, sizeof c, 0, i))
                    die("small bytes differ");
                else
                    put(fd, "y", 1);
            }
        }
    show("turns");
    meet();
}

/* A header before each block, and blocks of sizes that divide nothing. */
static void headers(void) {
    int fd = conn();
    uint64_t o = 0;
    for (int i = 0; o < 3 * LOT; i++) {
        size_t n = i % 2 ? 10 : 40000 + i % 300 * 311;
        if (is_a) {
            if (get(fd, buf, n) != n || !matches(buf, n, o, 9))
                die("bytes differ");
        } else {
            fill(buf, n, o, 9);
            put(fd, buf, n);
        }
        o += n;
        if (i % 16 == 15 && is_a)
            put(fd, "r", 1);
        else if (i % 16 == 15)
            get(fd, buf, 1);
    }
    say("%llu", (unsigned long long)o);
    show("headers");
    meet();
}

/* Each end forks in the middle, and the child goes on. */
static void forked(void) {
    int fd = conn();
    for (int part = 0; part < 4; part++) {
        pid_t child = part == 1 || part == 3 ? fork() : 0;
        if (child > 0) {
            wait_for(child);
            continue;
        }
        if (is_a)
            take(fd, (uint64_t)part * LOT, LOT, 3);
        else
            give(fd, (uint64_t)part * LOT, LOT, BLOCK, 3);
        if (part == 1 || part == 3) {
            fflush(NULL);
            _exit(0);
        }
    }
    show("forked");
    meet();
}

/* Another process has the connection from the beginning: the ring stays as it is. */
static void shared(void) {
    int fd = conn();
    pid_t child = fork();
    if (child == 0) {
        for (;;)
            pause();
    }
    if (is_a)
        take(fd, 0, 2 * LOT, 4);
    else
        give(fd, 0, 2 * LOT, BLOCK, 4);
    show("shared");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    meet();
}

static void peeked(void) {
    int fd = conn();
    if (!is_a)
        give(fd, 0, 2 * LOT, 100000, 8);
    for (uint64_t o = 0; is_a && o < 2 * LOT;) {
        ssize_t p = MUST(recv(fd, buf, 50000, MSG_PEEK));
        if (!matches(buf, p, o, 8))
            die("bytes seen differ");
        ssize_t n = MUST(recv(fd, buf, 70000, 0));
        if (n == 0 || !matches(buf, n, o, 8))
            die("bytes differ");
        o += n;
        if (o % MIB == 0)
            put(fd, "r", 1);
    }
    show("peeked");
    meet();
}

/* The reader rests while the writer fills whatever there is, then reads all of it; and again. */
static void unread(void) {
    int fd = conn();
    if (is_a)
        take(fd, 0, LOT, 2);
    else
        give(fd, 0, LOT, BLOCK, 2);
    show("unread");
    for (int turn = 1; turn < 3; turn++) {
        if (is_a) {
            usleep(600000);
            take_on(fd, (uint64_t)turn * LOT, LOT, 2);
        } else {
            give_on(fd, (uint64_t)turn * LOT, LOT, BLOCK, 2);
        }
    }
    meet();
}

/* The reader turns to a FILE, which pins the connection to TCP, while blocks are on their way. */
static void pinned(void) {
    int fd = conn();
    if (is_a) {
        take(fd, 0, LOT, 6);
        show("pinned");
        FILE *f = fdopen(fd, "r");
        for (uint64_t o = LOT; o < 2 * LOT; o += BLOCK)
            if (fread(buf, 1, BLOCK, f) != BLOCK || !matches(buf, BLOCK, o, 6))
                die("bytes differ");
        say("the rest, whole");
    } else {
        give(fd, 0, LOT, BLOCK, 6);
        show("pinned");
        give_on(fd, LOT, LOT, BLOCK, 6);
    }
    meet();
}

/* A file of 4 MiB, again and again: by sendfile, whose parts the kernel reads. */
static void files(void) {
    int fd = conn(), file = is_a ? -1 : MUST(memfd_create("file", 0));
    enum { FILE_BYTES = 4 * MIB };
    for (uint64_t o = 0; !is_a && o < FILE_BYTES; o += sizeof buf) {
        fill(buf, sizeof buf, o, 7);
        if (MUST(write(file, buf, sizeof buf)) != sizeof buf)
            die("short write");
    }
    for (int turn = 0; turn < 14; turn++) {
        if (is_a) {
            take_on(fd, 0, FILE_BYTES, 7);
            put(fd, "r", 1);
            continue;
        }
        for (off_t at = 0; at < FILE_BYTES;)
            MUST(sendfile(fd, file, &at, turn % 2 ? 50001 : FILE_BYTES));
        payload(FILE_BYTES);
        get(fd, buf, 1);
    }
    if (is_a)
        say("14 times, whole");
    show("files");
    meet();
}

/* More connections than may have one. */
static void forty(void) {
    enum { CONNECTIONS = 40, EACH = 8 * MIB };
    int fd[CONNECTIONS];
    int l = is_a ? listen_on(PORT) : -1;
    meet();
    for (int i = 0; i < CONNECTIONS; i++)
        fd[i] = is_a ? accept_from(l) : dial(PORT);
    for (int i = 0; i < CONNECTIONS; i++) {
        warm(fd[i]);
        if (is_a)
            take(fd[i], 0, EACH, i);
        else
            give(fd[i], 0, EACH, BLOCK, i);
    }
    show("forty");
    meet();
    for (int i = 0; i < CONNECTIONS; i++)
        close(fd[i]);
    show("after");
    meet();
}

const struct test tests[] = {{"turns", turns, turns, 0},    {"headers", headers, headers, 0}, {"forked", forked, forked, 0},
                             {"shared", shared, shared, 0}, {"peeked", peeked, peeked, 0},    {"unread", unread, unread, 0},
                             {"pinned", pinned, pinned, 0}, {"files", files, files, 0},
                             {"forty", forty, forty, COLD},
                             {0}};
