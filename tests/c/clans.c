/* Owns: random walks of two families. Each end is up to four processes that share two connections: they fork, exec, spawn, pass descriptors on by messages,
 * duplicate, close, end and are killed, in any order, and any of them sends and receives. One process acts at a time, by order of its end's first one, and
 * the others wait in poll; so natively a seed has one transcript. CLAN_SEED=N walks another way. */
#include "dice.h"
#include "given.h"
#include <sys/prctl.h>

enum { ROUNDS = 3, MEMBERS = 4, STREAMS = 2, NUMBERS = 2, FIRST = 100, PAIRS = 40, MAIL = 60, MOST_IN_FLIGHT = 30000, TAIL = 15 };
/* What a walk may do beside the rest. */
enum { EXECS = 1, STRANGERS = 2, KILLS = 4 };
enum op { SEND, RECEIVE, ASK, DOUBLE, CLOSE, CLOEXEC, NONBLOCK, SHUT, FORKS, SPAWNS, BECOMES, PASSES, TAKES, ENDS };

struct order {
    int op, stream, slot, strange, patient; /* of a new member, or by _exit; without the library; a call that waits would end */
    long room;
    unsigned dice;
};
struct reply {
    long put, got;
    int shut, nonblocking, held[STREAMS];
    pid_t pid;
};
/* What is told to the other end. */
struct done {
    int stream, shut, closed[STREAMS], given[STREAMS];
    long put, got;
};

static int me; /* 0: the first of its end */
static char buf[64 * KIB];

static int number(int stream, int k) { return FIRST + stream * NUMBERS + k; }
static int is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }
static int one_of(int stream) { /* -1: none */
    int k = (int)die_of(NUMBERS);
    return is_open(number(stream, k)) ? number(stream, k) : is_open(number(stream, !k)) ? number(stream, !k) : -1;
}
static int free_of(int stream) { return !is_open(number(stream, 0)) ? number(stream, 0) : !is_open(number(stream, 1)) ? number(stream, 1) : -1; }

/* ---- what a member does ---- */

static long some(void) {
    static const int sizes[] = {1, 1, 2, 7, 8, 16, 40, 100, 300, 1000, 4096, 5000, 12000};
    return sizes[die_of(sizeof sizes / sizeof *sizes)];
}
static void told(const char *call, int fd, long asked, long r, const void *bytes) {
    if (r < 0)
        say("%d: %s %d of %ld: %s", me, call, fd, asked, err_name(errno));
    else
        say("%d: %s %d of %ld: %ld %08x", me, call, fd, asked, r, bytes ? digest(bytes, r) : 0);
}
static long sends(int fd, long room) {
    long n = some(), r;
    if (n > room)
        n = 1;
    memset(buf, (int)die_of(256), (size_t)n);
    struct iovec v[2] = {{buf, n / 3}, {buf + n / 3, n - n / 3}};
    switch (die_of(3)) {
    default: r = send(fd, buf, n, MSG_NOSIGNAL); break;
    case 1: r = write(fd, buf, n); break;
    case 2: r = writev(fd, v, 2); break;
    }
    told("send", fd, n, r, NULL);
    return r > 0 ? r : 0;
}
static long receives(int fd, int patient) {
    long n = die_of(3) ? some() : (long)sizeof buf, r;
    int peeks = die_of(5) == 0, how = (int)die_of(3), flags = (patient ? 0 : MSG_DONTWAIT) | (peeks ? MSG_PEEK : 0);
    struct iovec v[2] = {{buf, n / 3}, {buf + n / 3, n - n / 3}};
    switch (flags ? 0 : how) {
    default: r = recv(fd, buf, n, flags); break;
    case 1: r = read(fd, buf, n); break;
    case 2: r = readv(fd, v, 2); break;
    }
    told(peeks ? "peek" : "recv", fd, n, r, buf);
    return r > 0 && !peeks ? r : 0;
}
static void asks(int fd) {
    struct epoll_event e = {EPOLLIN | EPOLLOUT | EPOLLRDHUP, {.u64 = 7}};
    int v = -1, r, set;
    socklen_t len = sizeof v;
    switch (die_of(5)) {
    default: say("%d: poll %d: %s", me, fd, poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0))); break;
    case 1: r = ioctl(fd, FIONREAD, &v), say("%d: unread %d: %d %d", me, fd, r, v); break;
    case 2: r = getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &len), say("%d: error of %d: %d %s", me, fd, r, err_name(v)); break;
    case 3:
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
        r = epoll_wait(set, &e, 1, 0);
        say("%d: set of %d: %d %s", me, fd, r, r ? epoll_text(e.events) : "");
        close(set);
        break;
    }
}

static void serve(int s) __attribute__((noreturn));
static char **environment(int strange) { return strange ? without() : environ; }
static const char *role_of(int slot) {
    static char text[20];
    sprintf(text, "clan %d", slot);
    return text;
}
static pid_t begets(int slot, int how, int strange) {
    pid_t child;
    if (how > 0)
        return start(how == 1 ? SPAWN : VFORK, role_of(slot), environment(strange));
    child = MUST(fork());
    if (child == 0)
        serve(slot);
    return child;
}

static struct reply act(const struct order *o) {
    struct reply r = {.shut = -1, .nonblocking = -1};
    own = o->dice;
    int fd = one_of(o->stream), to = free_of(o->stream), how = die_of(2), v;
    if (o->op == FORKS || o->op == SPAWNS) {
        how = o->op == FORKS ? 0 : 1 + how;
        say("%d: %s %d%s", me, how == 0 ? "fork" : how == 1 ? "spawn" : "vfork", o->slot, o->strange ? ", strange" : "");
        r.pid = begets(o->slot, how, o->strange);
    } else if (o->op == BECOMES) {
        say("%d: exec%s", me, o->strange ? ", strange" : "");
        exec_self(role_of(me), environment(o->strange));
    } else if (o->op == TAKES) {
        v = passed_one(MAIL + 1); /* of the order's stream */
        say("%d: takes stream %d as %d", me, o->stream, to);
        if (to < 0)
            close(v);
        else
            placed(v, to);
    } else if (fd < 0) {
        say("%d: has none of %d", me, o->stream);
    } else {
        switch (o->op) {
        case SEND: r.put = sends(fd, o->room); break;
        case RECEIVE: r.got = receives(fd, o->patient); break;
        case ASK: asks(fd); break;
        case DOUBLE:
            if (to >= 0)
                say("%d: dup %d to %d: %d", me, fd, to, how ? dup2(fd, to) : fcntl(fd, F_DUPFD, to));
            break;
        case CLOSE: say("%d: close %d: %d", me, fd, close(fd)); break;
        case CLOEXEC: say("%d: cloexec of %d %d: %d", me, fd, how, fcntl(fd, F_SETFD, how)); break;
        case NONBLOCK: nonblocking(fd, how), r.nonblocking = how, say("%d: nonblocking %d: %d", me, how, fcntl(fd, F_GETFL) & O_NONBLOCK); break;
        case SHUT: v = shutdown(fd, SHUT_WR), r.shut = SHUT_WR, say("%d: shutdown: %d %s", me, v, v ? err_name(errno) : ""); break;
        case PASSES:
            pass(MAIL, &fd, 1);
            say("%d: passes %d on: %d", me, fd, close(fd));
            break;
        }
    }
    for (int s = 0; s < STREAMS; s++)
        r.held[s] = is_open(number(s, 0)) + is_open(number(s, 1));
    return r;
}

/* Till something comes on `f`: in a call that the library can be asked in. */
static void await(int f) {
    struct pollfd p[1 + STREAMS * NUMBERS] = {{f, POLLIN, 0}};
    for (int i = 0; i < STREAMS * NUMBERS; i++)
        p[1 + i] = (struct pollfd){is_open(FIRST + i) ? FIRST + i : -1, POLLIN, 0};
    while (!p[0].revents) {
        if (poll(p, 1 + STREAMS * NUMBERS, 60000) <= 0)
            die("await");
        for (int i = 1; i <= STREAMS * NUMBERS; i++)
            p[i].fd = p[i].revents & (POLLHUP | POLLERR) ? -1 : p[i].fd, p[i].events = p[i].revents & POLLRDHUP ? 0 : p[i].revents ? POLLRDHUP : p[i].events;
    }
}
static void answer(const struct reply *r) { MUST(send(PAIRS + 2 * me + 1, r, sizeof *r, 0)); }
static void serve(int s) {
    me = s;
    for (;;) {
        struct order o;
        await(PAIRS + 2 * me + 1);
        if (recv(PAIRS + 2 * me + 1, &o, sizeof o, 0) != sizeof o)
            _exit(0);
        if (o.op == ENDS) {
            if (o.slot)
                _exit(0);
            exit(0);
        }
        struct reply r = act(&o);
        answer(&r);
    }
}
static void executed(void) {
    const char *role = getenv("EXEC_ROLE");
    if (!role || sscanf(role, "clan %d", &me) != 1)
        die("role");
    struct order nothing = {.op = -1};
    struct reply r = act(&nothing);
    answer(&r);
    serve(me);
}

/* ---- what the first one knows ---- */

static pid_t pids[MEMBERS]; /* 0: there is none */
static int strange[MEMBERS], held[MEMBERS][STREAMS], mail[8], mails;
static struct stream {
    int is_given;       /* by the other end, to another program */
    int is_over, gone;  /* shut down here; there, or 2: closed there */
    int is_closed, is_nonblocking;
    long in, out;       /* bytes on their way to this end, and from it */
} streams[STREAMS];

static int holders(int s) {
    int n = 0;
    for (int m = 0; m < MEMBERS; m++)
        n += pids[m] ? held[m][s] : 0;
    for (int i = 0; i < mails; i++)
        n += mail[i] == s;
    return n;
}
static void await_end(pid_t pid) {
    for (int i = 0; kill(pid, 0) == 0; i++) {
        if (i > 20000)
            die("a member does not end");
        usleep(500);
    }
}
static struct reply heard(int m) {
    struct reply r;
    await(PAIRS + 2 * m);
    if (recv(PAIRS + 2 * m, &r, sizeof r, 0) != sizeof r)
        die("reply");
    memcpy(held[m], r.held, sizeof r.held);
    return r;
}
static struct reply ordered(int m, const struct order *o) {
    struct reply r;
    if (m == 0) {
        unsigned kept = own;
        r = act(o);
        own = kept;
        memcpy(held[0], r.held, sizeof r.held);
    } else {
        MUST(send(PAIRS + 2 * m, o, sizeof *o, 0));
        r = heard(m);
    }
    if (o->op == FORKS || o->op == SPAWNS) {
        pids[o->slot] = r.pid, strange[o->slot] = strange[m] || o->strange;
        if (o->op == FORKS)
            memcpy(held[o->slot], held[m], sizeof held[m]);
        else
            heard(o->slot);
    }
    return r;
}
static void ends(int m, int way) { /* exit, _exit, killed */
    struct order o = {.op = ENDS, .slot = way == 1};
    say("%d: ends by %d", m, way);
    if (way == 2)
        MUST(kill(pids[m], SIGKILL));
    else
        MUST(send(PAIRS + 2 * m, &o, sizeof o, 0));
    await_end(pids[m]);
    pids[m] = 0;
    memset(held[m], 0, sizeof held[m]);
}

/* A step that may be made: the member, its stream, and what it does. */
struct choice {
    int m, s, op, slot, is_strange;
};
/* Where the library is known to differ (docs/faults.md): the other end can't send again what a program without the library may read here; and a reset
 * that memory alone knows stays with those who have been told of it. */
static int may_go(const struct choice *c) {
    int is_one_strange = c->is_strange;
    for (int m = 0; m < MEMBERS; m++)
        is_one_strange |= pids[m] && strange[m];
    for (int i = 0; i < STREAMS; i++) {
        const struct stream *t = &streams[i];
        int comes = !t->is_given && !t->gone && !t->is_over;
        if (held[c->m][i] && ((t->gone > 1 && t->out > 0) || (!comes && t->in > 0 && is_one_strange)))
            return 0;
    }
    return 1;
}
static struct choice chosen(unsigned kind) {
    static const int ops[] = {SEND, SEND, SEND, SEND, RECEIVE, RECEIVE, RECEIVE, RECEIVE, ASK, ASK, ASK, DOUBLE, CLOSE, CLOEXEC, NONBLOCK,
                              FORKS, FORKS, SPAWNS, BECOMES, PASSES, TAKES, ENDS};
    struct choice c = {.s = (int)die_of(STREAMS), .op = ops[die_of(sizeof ops / sizeof *ops)]};
    unsigned odd = die_of(60);
    c.s = streams[c.s].is_closed ? !c.s : c.s;
    for (int i = 0; i < 30 && (c.m = (int)die_of(MEMBERS), !pids[c.m] || (i < 20 && !held[c.m][c.s])); i++) {
    }
    c.m = pids[c.m] ? c.m : 0;
    c.is_strange = strange[c.m] || (kind & STRANGERS && die_of(2));
    for (int i = 1; i < MEMBERS; i++)
        c.slot = pids[i] ? c.slot : i;
    const struct stream *t = &streams[c.s];
    if (odd == 0)
        c.op = SHUT;
    if (!(kind & EXECS) && (c.op == SPAWNS || c.op == BECOMES))
        c.op = SEND;
    if ((c.op == FORKS || c.op == SPAWNS) && !c.slot)
        c.op = ENDS;
    if ((c.op == ENDS || c.op == BECOMES) && c.m == 0)
        c.op = RECEIVE;
    if ((c.op == PASSES && mails == 3) || (c.op == TAKES && mails == 0))
        c.op = SEND;
    if (c.op == PASSES && (holders(c.s) != held[c.m][c.s] || held[c.m][c.s] != 1)) /* who passes it on has it alone */
        c.op = RECEIVE;
    if ((c.op == SHUT && t->gone > 1 && t->out > 0) || (c.op == CLOSE && holders(c.s) < 2 && odd % 20))
        c.op = ASK;
    if ((c.op == PASSES || c.op == SPAWNS || c.op == BECOMES) && !may_go(&c))
        c.op = ASK;
    c.s = c.op == TAKES ? mail[0] : c.s;
    return c;
}

static struct done step(unsigned kind) {
    struct choice c = chosen(kind);
    unsigned dice = rnd(&own), way = die_of(kind & KILLS ? 3 : 2);
    struct stream *t = &streams[c.s];
    struct done d = {.stream = c.s, .shut = -1};
    if (c.op == ENDS) {
        ends(c.m, (int)way);
    } else {
        int had[STREAMS];
        memcpy(had, held[c.m], sizeof had);
        struct order o = {c.op, c.s, c.slot, c.is_strange, t->gone || t->in > 0 || t->is_nonblocking, MOST_IN_FLIGHT - t->out, dice};
        struct reply r = ordered(c.m, &o);
        if (c.op == PASSES)
            mail[mails++] = c.s;
        if (c.op == TAKES)
            memmove(mail, mail + 1, sizeof *mail * (size_t)--mails);
        if (c.op == BECOMES)
            strange[c.m] = c.is_strange;
        if (r.nonblocking >= 0)
            t->is_nonblocking = r.nonblocking;
        for (int i = 0; i < STREAMS; i++)
            d.given[i] = (c.op == PASSES && i == c.s) || ((c.op == SPAWNS || c.op == BECOMES) && had[i]);
        d.put = r.put, d.got = r.got, d.shut = r.shut;
    }
    for (int i = 0; i < STREAMS; i++)
        if (!streams[i].is_closed && !holders(i))
            streams[i].is_closed = d.closed[i] = 1, say("stream %d is closed, %ld unread", i, streams[i].in);
    t->in -= d.got, t->out += d.put;
    t->is_over |= d.shut == SHUT_WR;
    return d;
}
static void hear_step(void) {
    struct done d;
    await(3);
    if (recv(3, &d, sizeof d, MSG_WAITALL) != sizeof d)
        die("step");
    streams[d.stream].in += d.put, streams[d.stream].out -= d.got;
    for (int s = 0; s < STREAMS; s++) {
        streams[s].is_given |= d.given[s];
        streams[s].gone |= d.closed[s] * 2 + (s == d.stream && d.shut == SHUT_WR);
    }
}
static void makes_step(unsigned kind) {
    struct done d = step(kind);
    if (d.put || d.shut >= 0 || d.closed[0] || d.closed[1])
        usleep(3000);
    MUST(send(3, &d, sizeof d, 0));
}

static void begin(void) {
    memset(pids, 0, sizeof pids), memset(held, 0, sizeof held), memset(strange, 0, sizeof strange);
    memset(streams, 0, sizeof streams);
    pids[0] = getpid(), mails = 0;
    for (int m = 1; m <= MEMBERS; m++) {
        int pair[2];
        MUST(socketpair(AF_UNIX, m == MEMBERS ? SOCK_DGRAM : SOCK_SEQPACKET, 0, pair));
        int at = m == MEMBERS ? MAIL : PAIRS + 2 * m;
        placed(pair[0], at + 200), placed(pair[1], at + 201);
        placed(at + 200, at), placed(at + 201, at + 1);
    }
    for (int s = 0; s < STREAMS; s++) {
        int fd = conn_cold();
        sol_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
        small_talk(fd, rnd(&shared) % 4 ? 60 : 0);
        placed(fd, number(s, 0));
        held[0][s] = 1;
        meet();
    }
}
static void end(void) {
    for (int m = 1; m < MEMBERS; m++)
        if (pids[m])
            ends(m, 0);
    for (int f = FIRST; f < FIRST + STREAMS * NUMBERS; f++)
        close(f);
    for (int m = 1; m <= MEMBERS; m++)
        for (int i = 0; i < 2; i++)
            close((m == MEMBERS ? MAIL : PAIRS + 2 * m) + i);
}

static void walk(unsigned seed, unsigned kind) {
    seed += (unsigned)asked_for("CLAN", "SEED", 0);
    signal(SIGPIPE, SIG_IGN), signal(SIGCHLD, SIG_IGN);
    MUST(prctl(PR_SET_CHILD_SUBREAPER, 1)); /* nobody is left for a parent that is late */
    for (unsigned w = 0; w < ROUNDS; w++) {
        begin_round(seed, w);
        say("walk %u", w);
        begin();
        unsigned steps = 20 + rnd(&shared) % 200;
        by_turns(steps, makes_step, kind, hear_step);
        if (is_my_turn()) {
            end();
            tell('c');
        } else {
            await(3), hear();
            for (int s = 0; s < STREAMS; s++)
                streams[s].gone |= 2;
            usleep(5000);
            for (unsigned i = steps; i < steps + TAIL; i++) {
                say("%u:", i);
                step(kind);
                usleep(3000);
            }
            end();
        }
        meet();
    }
}
static void forks_1(void) { walk(1, 0); }
static void forks_2(void) { walk(2, KILLS); }
static void execs_1(void) { walk(3, EXECS); }
static void execs_2(void) { walk(4, EXECS | KILLS); }
static void execs_3(void) { walk(880006, EXECS | KILLS); } /* what a program has left is shared before the proof's register is given back */
static void strangers_1(void) { walk(5, EXECS | STRANGERS); }
static void strangers_2(void) { walk(6, EXECS | STRANGERS | KILLS); }

const struct test tests[] = {{"forks_1", forks_1, forks_1, COLD | SWITCHES},
                             {"forks_2", forks_2, forks_2, COLD | SWITCHES},
                             {"execs_1", execs_1, execs_1, COLD | SWITCHES},
                             {"execs_2", execs_2, execs_2, COLD | SWITCHES},
                             {"execs_3", execs_3, execs_3, COLD | SWITCHES},
                             {"strangers_1", strangers_1, strangers_1, COLD | SWITCHES},
                             {"strangers_2", strangers_2, strangers_2, COLD | SWITCHES},
                             {"executed", executed, executed, ROLE},
                             {0}};
