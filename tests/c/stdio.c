/* Owns: stdio on connections: fdopen, dprintf, fclose, freopen, in both directions. */
#include "case.h"

static char buf[64 * KIB];

static void lines_a(void) {
    int fd = conn();
    FILE *in = fdopen(fd, "r"), *out = fdopen(MUST(dup(fd)), "w");
    char line[100];
    for (int i = 0; i < 300 && fgets(line, sizeof line, in); i++)
        if (fprintf(out, "%d %s", i, line) < 0 || fflush(out))
            die("fprintf");
    say("last %s", line);
    R(fclose(out));
    R(fgets(line, sizeof line, in) == NULL);
    R(feof(in) != 0);
    R(fclose(in));
    R(fcntl(fd, F_GETFD));
    meet();
}
static void lines_b(void) {
    int fd = conn();
    int good = 1;
    for (int i = 0; i < 300; i++) {
        char mine[100], back[120];
        int n = sprintf(mine, "line %d\n", i * 7), m = sprintf(back, "%d %s", i, mine);
        put(fd, mine, n);
        good = good && get(fd, buf, m) == (size_t)m && !memcmp(buf, back, m);
    }
    say("good %d", good);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
    meet();
}

static void bulk_a(void) {
    int fd = conn();
    FILE *f = fdopen(fd, "r+");
    setvbuf(f, NULL, _IOFBF, 10000);
    uint64_t o = 0;
    int good = 1;
    for (size_t n; o < 5 * MIB && (n = fread(buf, 1, 1000, f)) > 0; o += n)
        good = good && matches(buf, n, o, 1);
    say("%llu whole %d", (unsigned long long)o, good);
    for (o = 0; o < 5 * MIB; o += 1000) {
        fill(buf, 1000, o, 2);
        if (fwrite(buf, 1, 1000, f) != 1000)
            die("fwrite");
    }
    R(fflush(f));
    R(fclose(f));
    meet();
}
static void bulk_b(void) {
    int fd = conn();
    put_stream(fd, 5243000, 1);
    say("%lu", drain(fd, 2));
    meet();
}

static void dprintf_a(void) {
    int fd = conn();
    for (int i = 0; i < 100; i++) {
        R(dprintf(fd, "<%d>", i) > 0);
        if (send(fd, "|", 1, 0) != 1)
            die("send");
    }
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void dprintf_b(void) {
    int fd = conn();
    size_t n = get(fd, buf, sizeof buf);
    char want[2000] = "";
    for (int i = 0; i < 100; i++)
        sprintf(want + strlen(want), "<%d>|", i);
    say("%zu %d", n, n == strlen(want) && !memcmp(buf, want, n));
}

/* fclose closes the number behind libc's hooks; it becomes a file. */
static void fclose_a(void) {
    int fd = conn();
    FILE *f = fdopen(fd, "w");
    fputs("one line\n", f);
    R(fclose(f));
    int file = MUST(memfd_create("f", 0));
    say("same number %d", file == fd);
    R(write(file, "file", 4));
    R(lseek(file, 0, SEEK_END));
    R(recv(file, buf, 1, 0));
    meet();
}
/* The same in a process of several threads. */
static void *sleeps(void *pipe) { return (void *)(intptr_t)read(*(int *)pipe, buf, 1); }
static void fclose_threads_a(void) {
    int ends[2];
    pthread_t t;
    MUST(pipe(ends));
    MUST(-pthread_create(&t, NULL, sleeps, ends));
    fclose_a();
    close(ends[1]);
    pthread_join(t, NULL);
}
static void fclose_b(void) {
    int fd = conn();
    say("%zu %.9s", get(fd, buf, 100), buf);
    meet();
}

/* stdin and stdout are the connection, as under inetd; freopen leaves it. */
static void standard_a(void) {
    int fd = conn(), old = MUST(dup(1));
    MUST(dup2(fd, 0));
    MUST(dup2(fd, 1));
    close(fd);
    char word[50] = "";
    int n = scanf("%49s", word);
    printf("got %d %s\n", n, word);
    fflush(stdout);
    if (!freopen("/dev/null", "r", stdin))
        die("freopen");
    if (!freopen("/dev/null", "w", stdout))
        die("freopen");
    dup2(old, 1);
    say("%s", word);
    meet();
}
static void standard_b(void) {
    int fd = conn();
    put(fd, "hello \n", 7);
    say("%zu %.11s", get(fd, buf, 100), buf);
    meet();
}

const struct test tests[] = {{"lines", lines_a, lines_b, 0},
                             {"bulk", bulk_a, bulk_b, 0},
                             {"dprintf", dprintf_a, dprintf_b, 0},
                             {"fclose", fclose_a, fclose_b, 0},
                             {"fclose_threads", fclose_threads_a, fclose_b, 0},
                             {"standard", standard_a, standard_b, 0},
                             {0}};
