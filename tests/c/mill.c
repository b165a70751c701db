/* Owns: the streams of the mill and its ways to die (see mill.h).
 *   mill serve MODE PORT BOARD SEED
 *   mill call MODE PORT BOARD SEED LINES
 * MODE: threads (a reader and a writer for each connection, blocking), level, edge (epoll), raw (epoll
 * by inline system calls), poll.
 * Signals: USR1 _exit in the handler, USR2 exit in the main thread, SEGV abort in the handler, HUP exec
 * of a program without these connections in it: odd lines are close-on-exec, even ones are inherited. */
#include "mill.h"

struct board *board;
unsigned seed;
static volatile sig_atomic_t leave;

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

uint64_t roll(struct flow *f, uint64_t below) {
    f->chance ^= f->chance << 13;
    f->chance ^= f->chance >> 7;
    f->chance ^= f->chance << 17;
    return f->chance % below;
}

/* ---- the streams ---- */

static uint64_t word(uint64_t k, uint64_t s) { return (k + 1) * 0x9e3779b97f4a7c15ull ^ s; }

static void fill(char *p, size_t n, uint64_t at, uint64_t s) {
    for (; n && at % 8; n--, at++)
        *p++ = word(at / 8, s) >> at % 8 * 8;
    for (; n >= 8; n -= 8, at += 8, p += 8) {
        uint64_t w = word(at / 8, s);
        memcpy(p, &w, 8);
    }
    for (; n; n--, at++)
        *p++ = word(at / 8, s) >> at % 8 * 8;
}

static int matches(const char *p, size_t n, uint64_t at, uint64_t s) {
    static _Thread_local char want[ROOM];
    fill(want, n, at, s);
    return !memcmp(p, want, n);
}

struct flow *begin(int fd, int client, int line) {
    struct flow *f = calloc(1, sizeof *f);
    f->fd = fd;
    f->client = client;
    f->line = line;
    f->rhythm = line % RHYTHMS;
    f->me = &board->line[line][!client];
    f->out_seed = word(2 * line + client, seed);
    f->in_seed = word(2 * line + !client, seed);
    f->chance = word(board->go, f->out_seed) | 1;
    f->half = roll(f, 300000);
    f->can_in = f->can_out = 1;
    f->me->phase = 1;
    return f;
}

void finish(struct flow *f) {
    int client = f->client;
    close(f->fd);
    f->me->phase = 2;
    free(f);
    if (!client)
        board->open--;
}

static int is_quiet(struct flow *f) { return f->rhythm == (f->client ? DOWN : UP); }

size_t wants_to_send(struct flow *f) {
    if (f->me->out_end || board->stop || is_quiet(f))
        return 0;
    uint64_t sent = f->me->sent, got = f->me->got;
    switch (f->rhythm) {
    case PINGPONG:
        if (f->client)
            return got < sent ? 0 : 1 + roll(f, 2000);
        return got - sent < ROOM ? got - sent : ROOM;
    case TRICKLE:
        return 1 + roll(f, 200);
    case HALF:
        if (f->client)
            return f->half - sent < ROOM ? f->half - sent : ROOM;
        return 1 + roll(f, ROOM);
    default:
        return 1 + roll(f, ROOM);
    }
}

size_t wants_to_get(struct flow *f) { return f->me->in_end ? 0 : 1 + roll(f, ROOM); }

/* Nothing more is to be sent. What a dead peer's end makes of it shows a send, so only those that never
 * send go by the end of the other direction. */
int is_done_sending(struct flow *f) {
    if (f->me->out_end)
        return 0;
    int ended = f->me->in_end != 0;
    if (f->rhythm == HALF && f->client && f->me->sent >= f->half)
        return 1;
    if (is_quiet(f) || f->rhythm == PINGPONG)
        return ended || (board->stop && (!f->client || f->rhythm != PINGPONG || f->me->got == f->me->sent));
    return board->stop || f->me->in_end > ERROR;
}

static void pause_after(struct flow *f, uint64_t *at, uint64_t least_us, uint64_t most_us) {
    *at = now_ns() + 1000 * (least_us + roll(f, most_us - least_us));
}

ssize_t put(struct flow *f, size_t n, int flags) {
    struct side *me = f->me;
    fill(f->out, n, me->sent, f->out_seed);
    me->offered = me->sent + n;
    ssize_t r = send(f->fd, f->out, n, flags | MSG_NOSIGNAL);
    int e = errno;
    if (r > 0)
        me->sent += r;
    else if (r < 0 && e != EAGAIN && e != EINTR)
        me->out_end = ERROR + e;
    if (r >= 0 || e == EAGAIN)
        me->offered = (uint64_t)me->sent;
    if (f->rhythm == TRICKLE)
        pause_after(f, &f->out_at, 100, 3000);
    else if (f->rhythm == BURST && roll(f, 6) == 0)
        pause_after(f, &f->out_at, 3000, 20000);
    errno = e;
    return r;
}

ssize_t get(struct flow *f, size_t n, int flags) {
    struct side *me = f->me;
    me->asked = me->got + n;
    ssize_t r = recv(f->fd, f->in, n, flags);
    int e = errno;
    if (r > 0) {
        if (!matches(f->in, r, me->got, f->in_seed))
            me->wrong += r;
        me->got += r;
    } else if (r == 0)
        me->in_end = END;
    else if (e != EAGAIN && e != EINTR)
        me->in_end = ERROR + e;
    if (r >= 0 || e == EAGAIN)
        me->asked = (uint64_t)me->got;
    if (f->rhythm == SLOW)
        pause_after(f, &f->in_at, 100, 1000);
    errno = e;
    return r;
}

void shut(struct flow *f) {
    f->me->out_end = ENDING; /* who dies in the call may have ended */
    if (shutdown(f->fd, SHUT_WR))
        f->me->out_end = ERROR + errno;
    else
        f->me->out_end = END;
}

/* ---- connections ---- */

static struct sockaddr_in here(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons(port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in at = here(port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 128)) {
        perror("listen");
        exit(3);
    }
    return fd;
}

/* The first four bytes say which line it is. */
static int dial(int port, int line) {
    struct side *me = &board->line[line][0];
    struct sockaddr_in to = here(port);
    int fd = socket(AF_INET, SOCK_STREAM | (line % 2 ? SOCK_CLOEXEC : 0), 0);
    uint32_t name = line;
    me->phase = 1;
    if (connect(fd, (void *)&to, sizeof to) || send(fd, &name, 4, MSG_NOSIGNAL) != 4) {
        me->out_end = ERROR + errno;
        close(fd);
        me->phase = 2;
        return -1;
    }
    struct sockaddr_in own;
    socklen_t len = sizeof own;
    if (!getsockname(fd, (void *)&own, &len))
        me->port = ntohs(own.sin_port);
    return fd;
}

/* Waits for the next round, then starts each line that can be dialled. */
void dial_all(int port, int lines, void (*start)(struct flow *)) {
    static uint32_t seen;
    while (board->go == seen)
        usleep(500);
    seen = board->go;
    for (int i = 0; i < lines; i++) {
        int fd = dial(port, i);
        if (fd >= 0)
            start(begin(fd, 1, i));
    }
    board->dials = (uint32_t)board->go;
}

/* ---- deaths ---- */

static void on_signal(int sig) {
    if (sig == SIGUSR1)
        _exit(0);
    if (sig == SIGSEGV)
        abort();
    if (sig == SIGHUP) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    leave = 1;
}

static void *run(void *arg) {
    char **argv = arg;
    int serve = !strcmp(argv[1], "serve"), port = atoi(argv[3]);
    int threads = !strcmp(argv[2], "threads"), lines = serve ? 0 : atoi(argv[6]);
    if (serve) {
        int l = listen_on(port);
        threads ? threads_serve(l) : events_serve(l, argv[2]);
    } else {
        threads ? threads_call(port, lines) : events_call(port, lines, argv[2]);
    }
    exit(0);
}

int main(int argc, char **argv) {
    if (argc < 6)
        return 2;
    int fd = open(argv[4], O_RDWR);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || board == MAP_FAILED)
        return 3;
    close(fd);
    seed = strtoul(argv[5], NULL, 10);
    int all[] = {SIGUSR1, SIGUSR2, SIGSEGV, SIGHUP};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        signal(all[i], on_signal);
    pthread_t t;
    pthread_create(&t, NULL, run, argv);
    while (!leave)
        usleep(1000); /* the signal may have come to another thread */
    exit(0);
}
