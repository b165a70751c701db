/* Owns: what every run-twice program stands on. A program is a list of cases; a case is two
 * functions, one for each end of a TCP connection. Each end runs in its own process and prints a
 * transcript that must not depend on whether libsmcr.so is loaded. See case.c, and bytes.c for streams. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "raw.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct test {
    const char *name;
    void (*a)(void); /* listens */
    void (*b)(void); /* connects */
    unsigned flags;
};
/* COLD: has no warm-up, acceleration isn't asked for unless it is WHOLE: all the payload that the case reports,
 * not only the warm-up, must stay off TCP; or SWITCHES: a direction goes to memory, by the library's own count (it may have begun on TCP on purpose).
 * SLOW: takes longer than most natively. ROLE: no case, but what the cases of this program execute; it is in no list. */
enum { COLD = 1, WHOLE = 2, SLOW = 4, SWITCHES = 8, ROLE = 16 };
extern const struct test tests[];

enum { KIB = 1024, MIB = 1024 * 1024, PORT = 7000 };

extern int complaints; /* the descriptor for what is wrong */
/* The transcript. R(call) prints the text of the call and its result, with errno if it is -1. */
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
long say_result(const char *call, long result);
const char *err_name(int e);
#define R(call) (errno = 0, say_result(#call, (long)(call)))
void die(const char *what) __attribute__((noreturn));
#define MUST(call)                                                                                 \
    ({                                                                                             \
        __auto_type must_ = (call);                                                                \
        if (must_ < 0)                                                                             \
            die(#call);                                                                            \
        must_;                                                                                     \
    })

/* Connections. conn() is warmed up: enough went through it to have moved to memory. */
int conn(void);
int conn_cold(void);
int listen_on(int port);
int dial(int port);
int accept_from(int listener);
void warm(int fd);      /* as a() or b(), whichever this process is */
void warm_end(int fd, int first);
void warmed(long payload, long lo); /* told to the harness: what a warm-up of another kind did */

/* Meeting the other end, outside TCP: both wait for both. */
void meet(void);
void meet_settled(void); /* and then long enough for what was sent before to arrive */
int placed(int fd, int at); /* under that number, and no other */
long long cpu_ns(void); /* of this thread, until now */
int so_error(int fd); /* SO_ERROR, which is told once */
void settle(void);
void tell(char c);
char hear(void); /* 0 when the other end is gone */
void tell_pid(pid_t pid);
pid_t hear_pid(void);

/* A stream whose every byte follows from its offset and a seed. */
void fill(void *buf, size_t len, uint64_t offset, unsigned seed);
int matches(const void *buf, size_t len, uint64_t offset, unsigned seed);
void put(int fd, const void *buf, size_t len);
size_t get(int fd, void *buf, size_t len); /* until len or end of stream */
void got(int fd, void *buf, size_t len, uint64_t offset, unsigned seed); /* get, and say how */
void put_stream(int fd, uint64_t len, unsigned seed);
void get_stream(int fd, uint64_t len, unsigned seed);
void trickle(int fd);                      /* 300 bytes, each sent when the one before was read ... */
void trickled(int fd);                     /* ... by the other side */
void small_talk(int fd, int n);            /* a byte there and back, b first, n times; at both sides */
void echo(int fd, const char *what, unsigned seed); /* 20,000 bytes there and back, and say how */
void echo_until_end(int fd);                        /* the other side of it; closes */
uint64_t drain(int fd, unsigned seed); /* till the end; says the count and whether it matched */
long glut(int fd); /* zeros, till it takes no more for a while; how much */
unsigned rnd(unsigned *state);

/* Small ones. */
void nonblocking(int fd, int on);
void sol_int(int fd, int level, int name, int value);
void timeouts(int fd, int name, int ms);
int now_in(int fd);  /* FIONREAD */
short events(int fd, short wanted, int ms);
const char *poll_text(short ev);
const char *epoll_text(uint32_t ev);
void wait_for_spill(int fd); /* until the ring is full, and the rest of what nobody reads is in TCP */
short raw_poll(int fd, short wanted, int ms); /* as events, by the same way */
long lo_bytes(void);
int numbers_of(const char *kind); /* of this process, the library's among them: eventfd, eventpoll */
void wait_for(pid_t child); /* and say how it ended */
void on_signal(int sig, void (*handler)(int), int flags);
void tick(int ms, int every_ms); /* SIGALRM */
void payload(uint64_t bytes);    /* told to the harness: these went through connections */
extern int is_a;
