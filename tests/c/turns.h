/* Owns: the two ends of a connection that take turns by dice. Whoever has the turn makes one step, and tells the other end what it has moved; nothing runs
 * meanwhile, so natively a seed has one transcript. Programs of random walks (walks.c, rambles.c) say before this how much there is of it: CONNECTIONS, NUMBERS
 * of each socket, WARM_UP bytes there and back, TAIL steps behind the other end's close, and whether it is waited behind those (TAIL_WAITS). */
#pragma once
#include "dice.h"

enum { MOST_IN_FLIGHT = 40000 };

static int fd[NUMBERS];             /* numbers of the socket, all the same */
static int nonblock, patience;      /* O_NONBLOCK; SO_RCVTIMEO is set */
static int over_in, over_out, gone; /* this end has shut down; the other one sends nothing more */
static long in, out;                /* bytes on their way to this end, and from it */
static long put_now, got_now;       /* of this step */
static int shut_now;                /* the same: 1 + how */
static volatile sig_atomic_t pipes;
static useconds_t arrives;          /* how long bytes may take to the other end */
static char buf[64 * KIB];

/* The program's: a connection is there; one step, of what the walk may do; its end. */
static void opened(int s);
static void step(unsigned kind);
static void end(void);

static void broken(int sig) { pipes++; }
static int number(void) { return fd[die_of(NUMBERS)]; }

/* What a call has come to, with a digest of the bytes. */
static void told(const char *call, long asked, int flags, long r, const void *bytes) {
    int e = errno;
    if (r < 0)
        say("%s %ld %#x = %s, %d SIGPIPE", call, asked, flags, err_name(e), pipes);
    else if (bytes)
        say("%s %ld %#x = %ld %08x", call, asked, flags, r, digest(bytes, r));
    else
        say("%s %ld %#x = %ld", call, asked, flags, r);
}

static void fill_by_dice(long n) {
    for (long i = 0; i < n; i += 64)
        memset(buf + i, die_of(256), n - i < 64 ? n - i : 64);
}

static void tell_step(void) {
    tell('s');
    tell((char)(put_now >> 8)), tell((char)put_now), tell((char)(got_now >> 8)), tell((char)got_now), tell((char)shut_now);
    out += put_now, in -= got_now;
}
static void makes_step(unsigned kind) {
    step(kind);
    usleep(put_now > 0 || shut_now ? arrives : 0);
    tell_step();
}
static void hear_step(void) {
    if (hear() != 's')
        die("step");
    unsigned char n[5];
    for (int i = 0; i < 5; i++)
        n[i] = (unsigned char)hear();
    in += n[0] << 8 | n[1], out -= n[2] << 8 | n[3];
    if (n[4] == 1 + SHUT_WR || n[4] == 1 + SHUT_RDWR)
        gone = 1;
}

static void begin(int is_warm) {
    int s = conn_cold();
    sol_int(s, IPPROTO_TCP, TCP_NODELAY, 1);
    small_talk(s, is_warm * WARM_UP);
    fd[0] = s;
    for (int i = 1; i < NUMBERS; i++)
        fd[i] = MUST(fcntl(s, F_DUPFD_CLOEXEC, 60 + i));
    in = out = nonblock = patience = over_in = over_out = gone = 0;
    opened(s);
}
static void close_numbers(void) {
    say("close with %ld unread, %ld sent", in, out);
    for (int i = 0; i < NUMBERS; i++)
        close(fd[i]);
}

/* NAME_SEED=N walks another way; NAME_ARRIVES is how long bytes may take to the other end, in microseconds: their way may be paced. */
static void take_turns(const char *name, unsigned seed, unsigned kind) {
    seed += (unsigned)asked_for(name, "SEED", 0);
    arrives = (useconds_t)asked_for(name, "ARRIVES", 2000);
    on_signal(SIGPIPE, broken, 0);
    for (unsigned c = 0; c < CONNECTIONS; c++) {
        begin_round(seed, c);
        unsigned steps = 20 + rnd(&shared) % 300;
        say("connection %u", c);
        begin(rnd(&shared) % 4 != 0);
        meet();
        by_turns(steps, makes_step, kind, hear_step);
        if (is_my_turn()) {
            end();
            tell('c');
        } else {
            hear();
            gone = 1;
            usleep(arrives + 3000);
            for (unsigned i = steps; i < steps + TAIL; i++) {
                say("%u:", i);
                step(kind);
                usleep(TAIL_WAITS && (put_now > 0 || shut_now) ? arrives : 0); /* an answer to it may come */
                in -= got_now, out += put_now;
            }
            end();
        }
        meet();
    }
}
