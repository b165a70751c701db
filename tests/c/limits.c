/* Owns: programs at the end of their means: a full descriptor table before, while and after a
 * connection moves to memory, small stacks, alternate signal stacks, a limit on file sizes. Slower or
 * plain TCP, never wrong. */
#include "case.h"
#include <stdatomic.h>
#include <sys/resource.h>

static char buf[256 * KIB];
static int the_fd;

static void limit(int what, rlim_t value) {
    struct rlimit l = {value, value};
    MUST(setrlimit(what, &l));
}
/* Takes every descriptor that is left; returns the first one. */
static int hoard(void) {
    int first = -1, fd;
    while ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        first = first < 0 ? fd : first;
    if (errno != EMFILE)
        die("hoard");
    return first;
}
/* Gives back all of the hoard but what the library may have had in between. */
static void let_go(int first) {
    struct stat st, null;
    MUST(stat("/dev/null", &null));
    for (int fd = first; fd < 200; fd++)
        if (fd >= 3 && !fstat(fd, &st) && st.st_rdev == null.st_rdev && S_ISCHR(st.st_mode))
            close(fd);
}
static void *put_it(void *p) {
    put_stream(the_fd, 4 * MIB, is_a ? 1 : 2);
    return NULL;
}
static void *get_it(void *p) {
    get_stream(the_fd, 4 * MIB, is_a ? 2 : 1);
    return NULL;
}
/* Both ways at once, in threads that the library has not seen before. */
static void both_ways(size_t stack) {
    pthread_t t[2];
    pthread_attr_t at;
    pthread_attr_init(&at);
    if (stack)
        MUST(-pthread_attr_setstacksize(&at, stack));
    MUST(-pthread_create(&t[0], &at, put_it, NULL));
    MUST(-pthread_create(&t[1], &at, get_it, NULL));
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
}
/* A full ring and a reader that comes late, one way and then the other; each side waits in the call. */
static void slowly(int fd) {
    for (int turn = 0; turn < 2; turn++) {
        meet();
        if (turn == is_a) {
            put_stream(fd, 3 * MIB, 5 + turn);
        } else {
            settle();
            get_stream(fd, 3 * MIB, 5 + turn);
        }
        meet();
    }
}
static void by_turns(int fd) {
    for (int i = 0; i < 300; i++) {
        fill(buf, 900, i, 3);
        if (is_a)
            put(fd, buf, 900);
        if (get(fd, buf, 900) != 900 || !matches(buf, 900, i, 3))
            die("by_turns");
        if (!is_a)
            put(fd, buf, 900);
    }
    meet();
}

/* 1: this end is full, 2: the other, 3: both. Full from before the first byte, and then full again
 * while in memory. */
static void full(int who, int cold) {
    limit(RLIMIT_NOFILE, 128);
    int mine = who & (is_a ? 1 : 2), first = -1;
    int fd = the_fd = cold ? conn_cold() : conn();
    if (mine)
        first = hoard();
    meet();
    by_turns(fd);
    slowly(fd);
    both_ways(0);
    meet();
    if (mine)
        let_go(first);
    meet();
    by_turns(fd);
    both_ways(0);
    slowly(fd);
    say("whole");
}
static void full_a_cold(void) { full(1, 1); }
static void full_b_cold(void) { full(2, 1); }
static void full_both_cold(void) { full(3, 1); }
static void full_a(void) { full(1, 0); }
static void full_b(void) { full(2, 0); }
static void full_both(void) { full(3, 0); }

/* A thread takes the whole table and gives it back, again and again, while connections come and go. */
static volatile int stop;
static void *breathe(void *p) {
    while (!stop) {
        int first = hoard();
        sched_yield();
        if (first >= 0)
            let_go(first);
    }
    return NULL;
}
static void breathing(void) {
    enum { TIMES = 60 };
    limit(RLIMIT_NOFILE, 100);
    int l = is_a ? listen_on(PORT) : -1, whole = 0;
    meet();
    pthread_t t;
    pthread_create(&t, NULL, breathe, NULL);
    for (int i = 0; i < TIMES; i++) {
        int fd = -1;
        while (fd < 0) {
            fd = is_a ? accept(l, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
            if (fd < 0 && errno != EMFILE)
                die("a connection");
        }
        if (!is_a) {
            struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
            MUST(connect(fd, (void *)&to, sizeof to));
        }
        for (int k = 0; k < 20; k++) {
            fill(buf, 3000, k, i);
            if (is_a)
                put(fd, buf, 3000);
            if (get(fd, buf, 3000) != 3000 || !matches(buf, 3000, k, i))
                die("breathing");
            if (!is_a)
                put(fd, buf, 3000);
        }
        MUST(shutdown(fd, SHUT_WR));
        whole += recv(fd, buf, 1, 0) == 0;
        close(fd);
    }
    stop = 1;
    pthread_join(t, NULL);
    say("%d whole", whole);
}

/* 64 KiB of stack for everything, from the first byte on. */
static void small_stacks(void) {
    the_fd = conn_cold();
    for (int i = 0; i < 5; i++)
        both_ways(64 * KIB);
    meet();
    slowly(the_fd);
}

/* Handlers that send and receive on an alternate stack of the smallest size that a program may take, in
 * a thread that does the same. */
static volatile int ticks;
static void on_tick(int sig) {
    char c = 'h';
    if (send(the_fd, &c, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1)
        ticks++;
    recv(the_fd, &c, 0, MSG_DONTWAIT);
    struct pollfd p = {the_fd, POLLIN, 0};
    poll(&p, 1, 0);
}
static void alt_stack_a(void) {
    static char room[16 * KIB];
    stack_t s = {.ss_sp = room, .ss_size = sizeof room};
    struct sigaction sa = {.sa_handler = on_tick, .sa_flags = SA_ONSTACK | SA_RESTART};
    the_fd = conn();
    MUST(sigaltstack(&s, NULL));
    MUST(sigaction(SIGALRM, &sa, NULL));
    tick(1, 1);
    uint64_t all = 0;
    char *some = calloc(1, 100000);
    for (int i = 0; i < 400 || (ticks < 5 && i < 100000); i++) {
        ssize_t n = send(the_fd, some, 100000, MSG_NOSIGNAL);
        if (n > 0)
            all += n;
    }
    tick(0, 0);
    MUST(shutdown(the_fd, SHUT_WR));
    tell(0);
    uint64_t sum = all + ticks;
    while (write(3, &sum, sizeof sum) < 0) {
    }
    say("handlers ran: %d", ticks > 0);
    R(recv(the_fd, buf, 1, 0));
}
static void alt_stack_b(void) {
    int fd = conn();
    uint64_t all = 0, sum;
    ssize_t n;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
        all += n;
    hear();
    if (recv(3, &sum, sizeof sum, MSG_WAITALL) != sizeof sum)
        die("sum");
    say("as many as were sent: %d", sum == all);
}

/* A thread is cancelled in a blocking receive; the descriptor is closed, and the peer sees it. */
static atomic_int came;
static void *cancelled(void *p) {
    for (ssize_t n; (n = recv(the_fd, buf, sizeof buf, 0)) > 0;)
        came += n;
    return NULL;
}
static void cancel_and_close_a(void) {
    pthread_t t;
    the_fd = conn();
    pthread_create(&t, NULL, cancelled, NULL);
    meet();
    while (came < 5) /* what lies unread makes a reset */
        usleep(1000);
    settle();
    MUST(-pthread_cancel(t));
    pthread_join(t, NULL);
    R(send(the_fd, "last", 4, 0));
    R(close(the_fd));
    meet();
}
static void cancel_and_close_b(void) {
    int fd = conn();
    put(fd, "first", 5);
    meet();
    timeouts(fd, SO_RCVTIMEO, 3000);
    R(get(fd, buf, 4));
    R(recv(fd, buf, 1, 0));
    meet();
}
/* The same by a jump out of a handler. */
static sigjmp_buf out;
static void jump(int sig) { siglongjmp(out, 1); }
static void jump_and_close_a(void) {
    the_fd = conn();
    on_signal(SIGALRM, jump, 0);
    meet();
    settle();
    if (!sigsetjmp(out, 1)) {
        tick(100, 0);
        for (;;)
            recv(the_fd, buf, sizeof buf, 0);
    }
    R(send(the_fd, "last", 4, 0));
    R(close(the_fd));
    meet();
}

/* No file may grow beyond a megabyte: SIGXFSZ ends whoever tries. */
static void file_size(void) {
    limit(RLIMIT_FSIZE, MIB);
    the_fd = conn_cold();
    by_turns(the_fd);
    both_ways(0);
    slowly(the_fd);
}

/* ---- in a sandbox that may open nothing, where poll takes no descriptors ---- */

/* Three messages, each when the other end waits, and then it does once more. */
static int thrice(void) {
    int fd = conn();
    for (int i = 0; i < 3; i++) {
        meet();
        settle();
        put(fd, "abc", 3);
    }
    meet();
    settle();
    return fd;
}

static void no_descriptors_a(void) {
    int fd = conn();
    limit(RLIMIT_NOFILE, 0);
    for (int i = 0; i < 3; i++) {
        meet();
        R(recv(fd, buf, 3, i == 1 ? MSG_PEEK : i == 2 ? MSG_WAITALL : 0));
    }
    R(recv(fd, buf, 3, 0));
    meet();
    R(recv(fd, buf, 3, 0)); /* the end */
}

/* There select goes on, and a peer that dies is seen, by it and by a call that waits. */
static void blind(int by_select) {
    int fd = conn();
    limit(RLIMIT_NOFILE, 0);
    fd_set set;
    for (int i = 0; i < 3; i++) {
        FD_ZERO(&set);
        FD_SET(fd, &set);
        meet();
        if (by_select) {
            R(select(fd + 1, &set, NULL, NULL, &(struct timeval){20, 0}));
            R(!!FD_ISSET(fd, &set));
        }
        R(recv(fd, buf, 3, 0));
    }
    FD_ZERO(&set);
    FD_SET(fd, &set);
    if (by_select)
        R(select(fd + 1, &set, NULL, NULL, &(struct timeval){0, 30000}));
    meet();
    if (!by_select) {
        R(recv(fd, buf, 3, 0));
        return;
    }
    FD_SET(fd, &set);
    R(select(fd + 1, &set, NULL, NULL, &(struct timeval){20, 0}));
    R(recv(fd, buf, 3, MSG_DONTWAIT));
}
static void blind_recv_a(void) { blind(0); }
static void blind_select_a(void) { blind(1); }
static void blind_b(void) {
    thrice();
    raise(SIGKILL);
}
static void no_descriptors_b(void) { close(thrice()); }

/* A server with a client in most of its descriptors, each a process of its own: what the library has for each does not take
 * the rest. */
enum { CLIENTS = 60, TIMES = 200 };
static void many_peers_a(void) {
    limit(RLIMIT_NOFILE, 96);
    int l = listen_on(PORT), fds[CLIENTS], n = 0, open = 0;
    int ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    long echoes = 0;
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, l, &(struct epoll_event){EPOLLIN, {.fd = l}}));
    meet();
    while (echoes < CLIENTS * TIMES) {
        struct epoll_event ev[16];
        int ready = MUST(epoll_wait(ep, ev, 16, 30000));
        if (ready == 0)
            die("nothing comes");
        for (int i = 0; i < ready; i++) {
            int fd = ev[i].data.fd;
            if (fd == l) {
                fd = fds[n++] = accept_from(l);
                open++;
                MUST(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLIN, {.fd = fd}}));
            } else if (recv(fd, buf, 64, MSG_WAITALL) == 64) {
                put(fd, buf, 64);
                echoes++;
            } else {
                die("echo");
            }
        }
    }
    say("%d clients, %ld echoes", open, echoes);
    int spare = MUST(dup(l)); /* some are left */
    close(spare);
    while (n > 0)
        close(fds[--n]);
}
static void many_peers_b(void) {
    meet();
    for (int i = 0; i < CLIENTS; i++) {
        if (MUST(fork()) > 0)
            continue;
        int fd = dial(PORT);
        for (int k = 0; k < TIMES; k++) {
            put(fd, buf, 64);
            if (get(fd, buf, 64) != 64)
                _exit(1);
        }
        _exit(recv(fd, buf, 1, 0) != 0);
    }
    int status, sound = 0;
    while (wait(&status) > 0)
        sound += status == 0;
    say("%d sound", sound);
}

const struct test tests[] = {{"full_a_cold", full_a_cold, full_a_cold, COLD | SWITCHES},
                             {"full_b_cold", full_b_cold, full_b_cold, COLD},
                             {"full_both_cold", full_both_cold, full_both_cold, COLD},
                             {"full_a", full_a, full_a, 0},
                             {"full_b", full_b, full_b, 0},
                             {"full_both", full_both, full_both, 0},
                             {"breathing", breathing, breathing, COLD},
                             {"small_stacks", small_stacks, small_stacks, COLD | SWITCHES},
                             {"alt_stack", alt_stack_a, alt_stack_b, 0},
                             {"cancel_and_close", cancel_and_close_a, cancel_and_close_b, 0},
                             {"jump_and_close", jump_and_close_a, cancel_and_close_b, 0},
                             {"file_size", file_size, file_size, COLD},
                             {"no_descriptors", no_descriptors_a, no_descriptors_b, 0},
                             {"blind_recv", blind_recv_a, blind_b, 0},
                             {"blind_select", blind_select_a, blind_b, 0},
                             {"many_peers", many_peers_a, many_peers_b, COLD | SWITCHES},
                             {0}};
