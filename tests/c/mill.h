/* Owns: what the parts of the mill share. The mill is the stream program of the kill tests: one
 * process accepts, one connects, and streams whose every byte is known run both ways on several
 * connections, each in another rhythm. What each end has sent and got stands on a board, a file that
 * both map: it outlives whoever is killed. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LINES = 64, ROOM = 1 << 16, ERROR = 1000, END = 1, ENDING = 2 };

/* One end of one connection, as tests/src/mill.rs reads it. */
struct side {
    _Atomic uint64_t sent;    /* what send() has returned */
    _Atomic uint64_t offered; /* and what the call in progress wants to send */
    _Atomic uint64_t got;     /* what recv() has returned */
    _Atomic uint64_t asked;   /* and what the call in progress wants at most */
    _Atomic uint32_t wrong;   /* bytes that were not those of the stream */
    _Atomic uint32_t in_end;  /* END, or ERROR + errno of recv */
    _Atomic uint32_t out_end; /* ENDING, END: own shutdown, begun and done; ERROR + errno of send or connect */
    _Atomic uint32_t phase;   /* 1: in use; 2: closed */
    _Atomic uint32_t port;    /* of the connecting end */
    _Atomic uint32_t spare;
};
struct board {
    _Atomic uint32_t go;     /* the connecting end dials again when it changes */
    _Atomic uint32_t stop;   /* both ends finish in order */
    _Atomic uint32_t open;   /* connections that the accepting end has open */
    _Atomic uint32_t served; /* and has ever had */
    _Atomic uint32_t dials;  /* the round whose connections were all dialled */
    _Atomic uint32_t spare[27];
    struct side line[LINES][2]; /* connecting end, accepting end */
};
extern struct board *board;

enum rhythm { BULK, PINGPONG, SLOW, TRICKLE, UP, DOWN, HALF, BURST, RHYTHMS };

/* One end at work. */
struct flow {
    int fd, client, line;
    enum rhythm rhythm;
    struct side *me;
    uint64_t in_seed, out_seed, chance;
    uint64_t half;            /* HALF: bytes before the shutdown */
    uint64_t in_at, out_at;   /* not before (ns) */
    int can_in, can_out;      /* edge-triggered: the kernel has not said EAGAIN since */
    uint32_t events;          /* registered */
    char in[ROOM], out[ROOM];
};

extern unsigned seed;
uint64_t now_ns(void);
uint64_t roll(struct flow *f, uint64_t below);

struct flow *begin(int fd, int client, int line);
void finish(struct flow *f); /* closes */
int listen_on(int port);

/* What the rhythm wants next: bytes (0: nothing now), and when. */
size_t wants_to_send(struct flow *f);
size_t wants_to_get(struct flow *f);
int is_done_sending(struct flow *f); /* shutdown is due */
/* One call each; the result as of send and recv. */
ssize_t put(struct flow *f, size_t n, int flags);
ssize_t get(struct flow *f, size_t n, int flags);
void shut(struct flow *f);
static inline int is_over(struct flow *f) { return f->me->in_end && f->me->out_end; }

/* The two ways to run. */
void threads_serve(int listener);
void threads_call(int port, int lines);
void events_serve(int listener, const char *mode);
void events_call(int port, int lines, const char *mode);
void dial_all(int port, int lines, void (*start)(struct flow *));
