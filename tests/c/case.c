/* Owns: the runtime of the run-twice programs (see case.h).
 *   PROGRAM list            the cases, one a line: name and flags
 *   PROGRAM CASE a|b        one end of a case; descriptor 3 is a Unix socket to the other end
 * The transcript goes to standard output. Lines on standard error that begin with '#' are for the
 * harness: "#warm PAYLOAD LO", "#payload BYTES", with the library "#memory N" and, with SMCR_FLIP, "#flips N". */
#include "case.h"

int is_a;
static int out = 1;
int complaints = 2; /* CASE_FDS="9 10": others, where the usual ones are closed */
enum { CTL = 3 };

void say(const char *fmt, ...) {
    char line[4096];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    if (n > (int)sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    if (write(out, line, n) != n)
        _exit(97);
}

const char *err_name(int e) {
    const char *n = strerrorname_np(e);
    return n ? n : "?";
}

long say_result(const char *call, long result) {
    int e = errno;
    if (result == -1)
        say("%s = -1 %s", call, err_name(e));
    else
        say("%s = %ld%s%s", call, result, e ? " and errno " : "", e ? err_name(e) : "");
    errno = e;
    return result;
}

void die(const char *what) {
    say("DIED at %s: %s", what, err_name(errno));
    exit(99);
}

/* ---- connections ---- */

/* Loopback, or this host's address that CASE_ADDRESS names. */
static struct sockaddr_in here(int port) {
    const char *address = getenv("CASE_ADDRESS");
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons(port),
                                .sin_addr.s_addr = address ? inet_addr(address) : htonl(INADDR_LOOPBACK)};
}

int listen_on(int port) {
    int l = MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sol_int(l, SOL_SOCKET, SO_REUSEADDR, 1);
    struct sockaddr_in at = here(port);
    MUST(bind(l, (void *)&at, sizeof at));
    MUST(listen(l, 128));
    return l;
}

int dial(int port) {
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in to = here(port);
    MUST(connect(fd, (void *)&to, sizeof to));
    return fd;
}

int accept_from(int listener) { return MUST(accept(listener, NULL, NULL)); }

int conn_cold(void) {
    int fd;
    if (is_a) {
        int l = listen_on(PORT);
        meet();
        fd = accept_from(l);
        close(l);
    } else {
        meet();
        fd = dial(PORT);
    }
    return fd;
}

int conn(void) {
    int fd = conn_cold();
    warm(fd);
    return fd;
}

long lo_bytes(void) {
    char text[8192];
    int f = open("/proc/thread-self/net/dev", O_RDONLY | O_CLOEXEC);
    if (f < 0)
        return -1;
    ssize_t n = read(f, text, sizeof text - 1);
    close(f);
    text[n > 0 ? n : 0] = 0;
    char *lo = strstr(text, "lo:");
    return lo ? atol(lo + 3) : -1;
}

int numbers_of(const char *kind) {
    int n = 0;
    for (int fd = 3; fd < 4096; fd++) {
        char path[64], to[128];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(path, to, sizeof to - 1);
        to[len > 0 ? len : 0] = 0;
        n += strstr(to, kind) != NULL;
    }
    return n;
}

/* Small exchanges that make the connection worth a switch, then larger ones. One end counts what
 * crossed `lo` meanwhile, so that a test in which nothing was accelerated does not pass. */
enum { WARM_SMALL = 50, WARM_LARGE = 200, WARM_SIZE = 8 * KIB };

void warm_end(int fd, int first) {
    static char buf[WARM_SIZE];
    long before = first ? lo_bytes() : 0;
    for (int i = 0; i < WARM_SMALL + WARM_LARGE; i++) {
        size_t n = i < WARM_SMALL ? 64 : WARM_SIZE;
        if (first) {
            fill(buf, n, i, 1);
            put(fd, buf, n);
        }
        if (get(fd, buf, n) != n || !matches(buf, n, i, first ? 2 : 1))
            die("warm-up");
        if (!first) {
            fill(buf, n, i, 2);
            put(fd, buf, n);
        }
    }
    if (first)
        warmed(2 * (WARM_SMALL * 64 + WARM_LARGE * WARM_SIZE), lo_bytes() - before);
    settle(); /* the last acknowledgement is delayed, and Nagle would hold back what comes next */
}

void warmed(long payload, long lo) { dprintf(complaints, "#warm %ld %ld\n", payload, lo); }

void warm(int fd) { warm_end(fd, !is_a); }

/* ---- meeting ---- */

void tell(char c) {
    if (write(CTL, &c, 1) != 1 && errno != EPIPE)
        die("tell");
}

char hear(void) {
    char c = 0;
    ssize_t n;
    do
        n = read(CTL, &c, 1);
    while (n < 0 && errno == EINTR);
    return n == 1 ? c : 0;
}

void meet(void) {
    tell('m');
    char c = hear();
    if (c != 'm' && c != 0)
        die("meet: another answer");
}

int placed(int fd, int at) {
    MUST(dup2(fd, at));
    close(fd);
    return at;
}

long long cpu_ns(void) {
    struct timespec t;
    MUST(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t));
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int so_error(int fd) {
    int e = -1;
    socklen_t l = sizeof e;
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &l));
    return e;
}

/* Longer than an acknowledgement is usually delayed. */
void settle(void) {
    struct timespec t = {0, 60 * 1000 * 1000};
    while (nanosleep(&t, &t) < 0 && errno == EINTR) {
    }
}

void meet_settled(void) {
    meet();
    settle();
}

void tell_pid(pid_t pid) {
    if (write(CTL, &pid, sizeof pid) != sizeof pid)
        die("tell_pid");
}

pid_t hear_pid(void) {
    pid_t pid;
    if (recv(CTL, &pid, sizeof pid, MSG_WAITALL) != sizeof pid)
        die("hear_pid");
    return pid;
}

/* ---- small ones ---- */

void wait_for(pid_t child) {
    int status;
    MUST(waitpid(child, &status, 0));
    if (WIFSIGNALED(status))
        say("child: signal %d", WTERMSIG(status));
    else
        say("child: exit %d", WEXITSTATUS(status));
}

void nonblocking(int fd, int on) {
    int f = MUST(fcntl(fd, F_GETFL));
    MUST(fcntl(fd, F_SETFL, on ? f | O_NONBLOCK : f & ~O_NONBLOCK));
}

void sol_int(int fd, int level, int name, int value) {
    MUST(setsockopt(fd, level, name, &value, sizeof value));
}

void timeouts(int fd, int name, int ms) {
    struct timeval t = {ms / 1000, ms % 1000 * 1000};
    MUST(setsockopt(fd, SOL_SOCKET, name, &t, sizeof t));
}

int now_in(int fd) {
    int n = -1;
    MUST(ioctl(fd, FIONREAD, &n));
    return n;
}

short events(int fd, short wanted, int ms) {
    struct pollfd p = {fd, wanted, 0};
    int n;
    do
        n = poll(&p, 1, ms);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -1 : p.revents;
}

static const char *bits(uint32_t v, const uint32_t *bit, const char *const *name, int count) {
    static char text[4][128];
    static int turn;
    char *t = text[turn++ % 4];
    *t = 0;
    for (int i = 0; i < count; i++)
        if (v & bit[i])
            sprintf(t + strlen(t), "%s%s", *t ? "|" : "", name[i]);
    if (!*t)
        strcpy(t, "none");
    return t;
}

/* The *NORM and *BAND twins are left out: they say what IN and OUT say. */
const char *poll_text(short ev) {
    static const uint32_t bit[] = {POLLIN, POLLPRI, POLLOUT, POLLERR, POLLHUP, POLLNVAL, POLLRDHUP};
    static const char *const name[] = {"IN", "PRI", "OUT", "ERR", "HUP", "NVAL", "RDHUP"};
    return bits((unsigned short)ev, bit, name, 7);
}

const char *epoll_text(uint32_t ev) { return poll_text((short)(ev & 0xffff)); }

void wait_for_spill(int fd) {
    int there = 0;
    while (there < 1000) { /* by calls that the library does not see: a doorbell is one byte */
        usleep(20000);
        MUST(raw(SYS_ioctl, fd, FIONREAD, (long)&there, 0, 0, 0));
    }
}
short raw_poll(int fd, short wanted, int ms) {
    struct pollfd p = {fd, wanted, 0};
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    return raw(SYS_ppoll, (long)&p, 1, (long)&t, 0, 8, 0) < 0 ? -1 : p.revents;
}

void on_signal(int sig, void (*handler)(int), int flags) {
    struct sigaction s = {.sa_handler = handler, .sa_flags = flags};
    MUST(sigaction(sig, &s, NULL));
}

void tick(int ms, int every_ms) {
    struct itimerval t = {{every_ms / 1000, every_ms % 1000 * 1000}, {ms / 1000, ms % 1000 * 1000}};
    MUST(setitimer(ITIMER_REAL, &t, NULL));
}

void payload(uint64_t bytes) { dprintf(complaints, "#payload %llu\n", (unsigned long long)bytes); }

/* Of this process and its relatives: "#memory N", sending directions that went to memory; "#flips N", sending directions that SMCR_FLIP has
 * moved back to TCP. The place of the counters is that of proto/src/page.rs. */
static void tell_counters(void) {
    enum { PROC_OFF = 12, PROC_SIZE = 16, PROC_HIGH = 52, COUNTERS = 64, TO_MEMORY = 3, TO_TCP = 4, SPILLS = 18, MOST = 19 };
    uint64_t flips = 0, memory = 0;
    int pages = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));) {
        char path[300], to[128];
        uint32_t head[16];
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        ssize_t len = readlink(path, to, sizeof to - 1);
        to[len > 0 ? len : 0] = 0;
        int f = strstr(to, "smcr-family") ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (f < 0 || pread(f, head, sizeof head, 0) != sizeof head)
            continue;
        pages++;
        for (uint32_t i = 0; i < head[PROC_HIGH / 4]; i++) {
            uint64_t n[MOST], at = head[PROC_OFF / 4] + (uint64_t)i * head[PROC_SIZE / 4];
            if (pread(f, n, sizeof n, at + COUNTERS) != sizeof n)
                continue;
            memory += n[TO_MEMORY];
            flips += n[TO_TCP] > n[SPILLS] ? n[TO_TCP] - n[SPILLS] : 0;
        }
        close(f);
    }
    closedir(dir);
    if (pages)
        dprintf(complaints, "#memory %llu\n", (unsigned long long)memory);
    if (getenv("SMCR_FLIP"))
        dprintf(complaints, "#flips %llu\n", (unsigned long long)flips);
}

int main(int argc, char **argv) {
    const char *fds = getenv("CASE_FDS");
    if (fds && sscanf(fds, "%d %d", &out, &complaints) != 2)
        return 98;
    if (argc == 2 && !strcmp(argv[1], "list")) {
        for (const struct test *t = tests; t->name; t++)
            if (!(t->flags & ROLE))
                say("%s%s%s%s%s", t->name, t->flags & COLD ? " cold" : "", t->flags & WHOLE ? " whole" : "",
                    t->flags & SLOW ? " slow" : "", t->flags & SWITCHES ? " switches" : "");
        return 0;
    }
    if (argc != 3)
        return 98;
    is_a = argv[2][0] == 'a';
    for (const struct test *t = tests; t->name; t++)
        if (!strcmp(t->name, argv[1])) {
            (is_a ? t->a : t->b)();
            say("done");
            tell_counters();
            return 0;
        }
    return 98;
}
