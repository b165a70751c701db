/* Owns: connections that are FILEs, further than stdio.c goes: freopen and freopen64 of any number, single characters and lines,
 * what can't be done with a socket, what is printed on one past any FILE, perror, and popen beside one. */
#include "case.h"

static char buf[256 * KIB];

/* ---- reopened ---- */

static FILE *with_text(int fd, const char *text) {
    FILE *f = fdopen(fd, "w");
    setvbuf(f, NULL, _IOFBF, 4096);
    R(fputs(text, f) >= 0);
    return f;
}
static const char *file_path(int file) {
    static char path[64];
    sprintf(path, "/proc/self/fd/%d", file);
    return path;
}
/* A file under the connection's number: what was buffered is the peer's, and then the end. */
static void files_a(void) {
    for (int i = 0; i < 4; i++) {
        int fd = conn(), file = MUST(memfd_create("f", MFD_CLOEXEC)), number = i == 3 ? MUST(dup2(fd, 90)) : fd;
        if (number != fd)
            close(fd);
        FILE *f = i == 2 ? fdopen(number, "r+") : with_text(number, "buffered, and the end");
        if (i == 2) { /* what was read ahead goes with it */
            R(fgets(buf, 100, f) != NULL);
            say("'%s'", buf);
        }
        FILE *g = (i % 2 ? freopen64 : freopen)(file_path(file), i == 2 ? "r+" : "w+", f);
        say("%d: same FILE %d, same number %d, close-on-exec %d", i, f == g, fileno(g) == number, fcntl(number, F_GETFD));
        meet(); /* the peer has read, and seen the end */
        R(recv(number, buf, 1, MSG_DONTWAIT));
        R(fprintf(g, "file %d\n", i));
        rewind(g);
        say("%ld '%s'", ftell(g), fgets(buf, 100, g) ? buf : "");
        R(fclose(g));
        R(fcntl(number, F_GETFD));
        say("%zd", pread(file, buf, 100, 0));
        close(file);
    }
}
static void files_b(void) {
    for (int i = 0; i < 4; i++) {
        int fd = conn();
        if (i == 2)
            put(fd, "first\nsecond\n", 13);
        ssize_t n = get(fd, buf, i == 2 ? 0 : 100);
        say("%d: %zd '%.*s'", i, n, (int)n, buf);
        n = recv(fd, buf, 1, 0);
        say("then %zd %s", n, n < 0 ? err_name(errno) : "");
        meet();
        close(fd);
    }
}
/* One that fails closes it all the same. */
static void fails_a(void) {
    for (int i = 0; i < 4; i++) {
        int fd = conn();
        FILE *f = with_text(fd, "buffered");
        FILE *g = (i % 2 ? freopen64 : freopen)(i < 2 ? "/nonexistent/file" : NULL, "w", f);
        say("%d: %d %s", i, g != NULL, err_name(errno));
        meet();
        R(fcntl(fd, F_GETFD));
    }
}
static void fails_b(void) {
    for (int i = 0; i < 4; i++) {
        int fd = conn();
        size_t n = get(fd, buf, 100);
        say("%d: %zu '%.*s'", i, n, (int)n, buf);
        meet();
        close(fd);
    }
}
/* A duplicate goes on, and another connection in memory, and the numbers are used again. */
static void twins_a(void) {
    int first = conn(), other = conn(), twin = MUST(dup(first));
    FILE *f = with_text(first, "from the FILE.");
    if (!freopen("/dev/null", "w", f))
        die("freopen");
    put(twin, "from the twin.", 14);
    R(get(twin, buf, 5));
    put(other, "other", 5);
    R(get(other, buf, 5));
    FILE *g = freopen64("/dev/zero", "r", fdopen(other, "r+"));
    say("%zu %d", fread(buf, 1, 7, g), buf[6]);
    int third = conn();
    R(fclose(g));
    R(fclose(f));
    int fourth = conn();
    say("%d", fourth == first || fourth == other);
    warm_end(third, 1);
    close(third);
    close(fourth);
    R(shutdown(twin, SHUT_WR));
    R(recv(twin, buf, 1, 0));
    meet();
}
static void twins_b(void) {
    int first = conn(), other = conn();
    say("%zu '%.28s'", get(first, buf, 28), buf);
    put(first, "there", 5);
    put(other, buf, get(other, buf, 5));
    R(recv(other, buf, 1, 0));
    int third = conn(), fourth = conn();
    warm_end(third, 0);
    R(recv(third, buf, 1, 0) + recv(fourth, buf, 1, 0));
    R(recv(first, buf, 1, 0));
    close(first);
    meet();
}

/* ---- read and written ---- */

static void chars_a(void) {
    int fd = conn(), number = 0;
    FILE *f = fdopen(fd, "r+");
    char *line = NULL, word[20] = "";
    size_t room = 0;
    say("%d %d", fileno(f) == fd, setvbuf(f, NULL, _IOFBF, 300));
    R(fseek(f, 0, SEEK_SET));
    R(ftell(f));
    R(fseeko(f, 1, SEEK_CUR));
    R(feof(f) + ferror(f));
    put(fd, "go", 2);
    R(getc(f));
    R(ungetc('X', f));
    R(fgetc(f));
    R(getc(f));
    R(fgets(buf, 4, f) != NULL);
    say("'%s'", buf);
    R(getline(&line, &room, f));
    say("'%s'", line);
    R(getdelim(&line, &room, ';', f));
    say("'%s'", line);
    R(fscanf(f, "%d %19s", &number, word));
    say("%d %s", number, word);
    R(getc(f));
    R(fread(buf, 1, 2000, f));
    say("%d", matches(buf, 2000, 0, 3));
    R(fflush(f));
    for (int i = 0; i < 3; i++) {
        R(setvbuf(f, NULL, i == 0 ? _IOLBF : i == 1 ? _IONBF : _IOFBF, 1000));
        R(putc('p', f) + fputc('q', f));
        R(fputs("uts\n", f) >= 0);
        R(fwrite("0123456789", 2, 5, f));
        R(fprintf(f, "%s %*d", "printed", 1000, i));
        R(fflush(f));
        say("%s", fgets(buf, 100, f) ? buf : "none");
    }
    /* No buffer: each call takes what it asks for, and the rest is the program's by other calls. */
    R(setvbuf(f, NULL, _IONBF, 0));
    put(fd, "go", 2);
    R(getc(f));
    R(recv(fd, buf, 3, MSG_WAITALL));
    say("'%.3s'", buf);
    R(getc(f));
    R(fread(buf, 1, 3, f));
    say("'%.3s' %s", buf, poll_text(events(fd, POLLIN, 5000)));
    R(recv(fd, buf, 10, 0));
    R(getline(&line, &room, f)); /* the end */
    R(feof(f));
    R(getc(f));
    clearerr(f);
    R(feof(f) + ferror(f));
    free(line);
    R(fclose(f));
    R(fcntl(fd, F_GETFD));
    meet();
}
static void chars_b(void) {
    int fd = conn();
    get(fd, buf, 2);
    memcpy(buf, "abcdefgh\nthe line\nup to;42 word.\n", 33);
    put(fd, buf, 2);
    settle();
    put(fd, buf + 2, 31);
    fill(buf, 2000, 0, 3);
    put(fd, buf, 2000);
    for (int i = 0; i < 3; i++) {
        static char want[1100];
        size_t n = sprintf(want, "pquts\n0123456789%s %*d", "printed", 1000, i);
        say("%d", get(fd, buf, n) == n && !memcmp(buf, want, n));
        put(fd, "answer\n", 7);
    }
    get(fd, buf, 2);
    put(fd, "1234567890", 10);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
    meet();
}
/* All that there is both ways, in pieces of any size; a FILE for each direction. */
enum { MUCH = 2 * MIB };
static void *writes(void *of) {
    static char out[20000];
    unsigned r = 7;
    for (long o = 0; o < MUCH;) {
        long n = 1 + rnd(&r) % sizeof out;
        if (n > MUCH - o)
            n = MUCH - o;
        fill(out, n, o, 8);
        if (fwrite(out, 1, n, of) != (size_t)n || (rnd(&r) % 4 == 0 && fflush(of)))
            die("fwrite");
        o += n;
    }
    return (void *)(long)fflush(of);
}
static void much_a(void) {
    int fd = conn();
    FILE *in = fdopen(fd, "r"), *out = fdopen(MUST(dup(fd)), "w");
    pthread_t t;
    unsigned r = 3;
    MUST(-pthread_create(&t, NULL, writes, out));
    for (long o = 0; o < MUCH;) {
        long most = 1 + rnd(&r) % 30000; /* which fread waits for */
        size_t n = fread(buf, 1, most < MUCH - o ? most : MUCH - o, in);
        if (n == 0 || !matches(buf, n, o, 9))
            die("fread");
        o += n;
    }
    pthread_join(t, NULL);
    R(fclose(out));
    R(shutdown(fd, SHUT_WR));
    R(fgetc(in));
    R(fclose(in));
    meet();
}
static void *sends(void *fd) { return put_stream(*(int *)fd, MUCH, 9), NULL; }
static void much_b(void) {
    int fd = conn();
    pthread_t t;
    MUST(-pthread_create(&t, NULL, sends, &fd));
    say("%lu", drain(fd, 8));
    pthread_join(t, NULL);
    close(fd);
    meet();
}

/* ---- printed ---- */

static int prints(int fd, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int n = vdprintf(fd, format, ap);
    va_end(ap);
    return n;
}
static void printed_a(void) {
    int fd = conn(), saved = MUST(dup(2));
    R(prints(fd, "%s %d %g %c|", "words", 7, 2.5, 'c'));
    put(fd, "sent|", 5);
    R(dprintf(fd, "%s %d %g %c %d %d %g|", "words", 7, 2.5, 'c', 1, 2, 0.125));
    R(prints(fd, "%*d|", 99999, 5));
    R(dprintf(fd, "%*d|", 99999, 6));
    MUST(dup2(fd, 2));
    errno = ENOENT;
    perror("said");
    fprintf(stderr, "and so %s\n", "on");
    MUST(dup2(saved, 2));
    put(fd, ".", 1);
    R(get(fd, buf, 3));
    close(saved);
    signal(SIGPIPE, SIG_IGN);
    meet(); /* the peer has closed */
    R(prints(fd, "%d", 1));
    settle();
    R(dprintf(fd, "%d", 2));
    R(prints(fd, "%d", 3));
    close(fd);
    R(prints(fd, "%d", 1));
    R(dprintf(fd, "%d", 1));
    R(prints(-1, "%d", 1));
    errno = 0;
    R(fdopen(fd, "w") == NULL);
    R(fdopen(1, "?") == NULL);
}
static void printed_b(void) {
    int fd = conn();
    static char want[250000];
    size_t n = sprintf(want, "words 7 2.5 c|sent|words 7 2.5 c 1 2 0.125|%*d|%*d|said: No such file or directory\nand so on\n.", 99999, 5, 99999, 6);
    say("%d", get(fd, buf, n) == n && !memcmp(buf, want, n));
    put(fd, "yes and more that nobody reads", 30);
    settle();
    close(fd);
    meet();
}

/* A connection that gets the number of a FILE which was something else. */
static void under_a(void) {
    for (int i = 0; i < 5; i++) {
        FILE *f = fopen("/dev/null", "r+");
        int fd = conn(), number = fileno(f);
        if (i > 1)
            close(number);
        say("%d: %d", i, number == (i == 0 ? dup2(fd, number) : i == 1 ? dup3(fd, number, O_CLOEXEC) : i == 2 ? dup(fd) : fcntl(fd, i == 3 ? F_DUPFD : F_DUPFD_CLOEXEC, number)));
        put(fd, "one.", 4);
        R(fputs("two.", f) + fflush(f) >= 0);
        put(fd, "three.", 6);
        setvbuf(f, NULL, _IONBF, 0);
        say("%s", fgets(buf, 10, f) ? buf : "none");
        R(get(fd, buf, 3));
        R(fclose(f));
        R(shutdown(fd, SHUT_WR));
        R(recv(fd, buf, 1, 0));
        close(fd);
    }
    meet();
}
static void under_b(void) {
    for (int i = 0; i < 5; i++) {
        int fd = conn();
        say("%zu '%.14s'", get(fd, buf, 14), buf);
        put(fd, "line\nmore", 8);
        R(recv(fd, buf, 1, 0));
        close(fd);
    }
    meet();
}

/* A listener there: what it accepts is no FILE's, and in memory as from any other one. */
static void under_listener_a(void) {
    for (int i = 0; i < 3; i++) {
        FILE *f = fopen("/dev/null", "r+");
        int l = listen_on(PORT), number = fileno(f);
        if (i == 2)
            close(number);
        say("%d: %d", i, number == (i == 0 ? dup2(l, number) : i == 1 ? dup3(l, number, O_CLOEXEC) : fcntl(l, F_DUPFD, number)));
        close(l);
        meet();
        int fd = accept_from(number);
        warm(fd); /* and that is counted */
        R(fclose(f));
        R(accept(number, NULL, NULL));
        echo(fd, "accepted", i);
        R(shutdown(fd, SHUT_WR));
        R(recv(fd, buf, 1, 0));
        close(fd);
        meet();
    }
}
static void under_listener_b(void) {
    for (int i = 0; i < 3; i++) {
        meet();
        int fd = dial(PORT);
        warm(fd);
        echo_until_end(fd);
        meet();
    }
}

/* What is buffered at the end of a process goes out, or does not, by how it ends. */
static void at_exit_a(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        pid_t child = MUST(fork());
        if (child == 0) {
            fputs(i == 1 ? "nothing" : i ? "third." : "first.", fdopen(fd, "w"));
            i == 1 ? _exit(i) : exit(i);
        }
        wait_for(child);
        echo(fd, "the parent", i);
    }
    fputs("the last", fdopen(fd, "r+")); /* which ends by the end of this process */
}
static void at_exit_b(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        if (i != 1) {
            get(fd, buf, 6);
            say("%.6s", buf);
        }
        put(fd, buf, get(fd, buf, 20000));
    }
    say("%zu '%.8s'", get(fd, buf, 100), buf);
}

/* ---- a program beside it ---- */

static void beside_a(void) {
    int fd = conn(), other = conn();
    FILE *f = fdopen(other, "r+");
    for (int i = 0; i < 4; i++) {
        FILE *p = popen(i % 2 ? "cat >/dev/null; exit 3" : "printf 'one\\ntwo\\n'; exit 5", i % 2 ? "w" : "r");
        if (!p)
            die("popen");
        echo(fd, "meanwhile", i);
        R(fputs("line\n", f) + fflush(f) >= 0);
        say("%s", fgets(buf, 100, f) ? buf : "none");
        if (i % 2)
            R(fputs("to it", p) >= 0);
        else
            while (fgets(buf, 100, p))
                say("%s", buf);
        int status = pclose(p);
        say("exit %d", WEXITSTATUS(status));
        echo(fd, "then", i);
    }
    warm_end(fd, 1);
    R(fclose(f));
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
    meet();
}
static void beside_b(void) {
    int fd = conn(), other = conn();
    for (int i = 0; i < 4; i++) {
        for (int turn = 0; turn < 2; turn++) {
            put(fd, buf, get(fd, buf, 20000));
            if (turn == 0)
                put(other, buf, get(other, buf, 5));
        }
    }
    warm_end(fd, 0);
    R(recv(other, buf, 1, 0));
    echo_until_end(fd);
    meet();
}

const struct test tests[] = {{"files", files_a, files_b, 0},
                             {"fails", fails_a, fails_b, 0},
                             {"twins", twins_a, twins_b, 0},
                             {"chars", chars_a, chars_b, 0},
                             {"much", much_a, much_b, 0},
                             {"printed", printed_a, printed_b, 0},
                             {"under", under_a, under_b, 0},
                             {"under_listener", under_listener_a, under_listener_b, 0},
                             {"at_exit", at_exit_a, at_exit_b, 0},
                             {"beside", beside_a, beside_b, 0},
                             {0}};
