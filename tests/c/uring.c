/* Owns: programs that send and receive through io_uring, by system calls that nobody sees: alone, and
 * beside hooked calls on other connections. */
#include "ring.h"
#include <dlfcn.h>

static char buf[64 * KIB];
static struct ring ring;
static int has_ring(void) { return make_ring(&ring, raw, 4, 0); }
static int through_ring(int op, int fd, void *data, unsigned len) {
    return ring_does(&ring, (struct io_uring_sqe){.opcode = (unsigned char)op, .fd = fd, .addr = (uintptr_t)data, .len = len});
}
static void echo_through_ring(int fd) {
    long all = 0;
    int n;
    while ((n = through_ring(IORING_OP_RECV, fd, buf, sizeof buf)) > 0) {
        for (int done = 0, m; done < n; done += m)
            if ((m = through_ring(IORING_OP_SEND, fd, buf + done, n - done)) <= 0)
                die("send through the ring");
        all += n;
    }
    say("echoed %ld, then %d", all, n);
}

static void alone_a(void) {
    int fd = conn_cold();
    if (has_ring())
        echo_through_ring(fd);
    close(fd);
}
static void asks(int fd, unsigned seed) {
    for (int i = 0; i < 300; i++) {
        char back[3000];
        fill(buf, sizeof back, i, seed);
        if (send(fd, buf, sizeof back, 0) != sizeof back || get(fd, back, sizeof back) != sizeof back)
            break;
        if (memcmp(buf, back, sizeof back))
            die("another answer");
    }
    shutdown(fd, SHUT_WR);
    recv(fd, buf, 1, 0);
    close(fd);
}
static void alone_b(void) { asks(conn_cold(), 1); }

/* A ring for one connection, calls for the other, which goes to memory as ever. */
static void beside_a(void) {
    int l = listen_on(PORT);
    meet();
    int by_ring = accept_from(l), by_calls = accept_from(l);
    warm(by_calls);
    if (has_ring())
        echo_through_ring(by_ring);
    close(by_ring);
    for (ssize_t n; (n = recv(by_calls, buf, sizeof buf, 0)) > 0;)
        put(by_calls, buf, n);
    close(by_calls);
}
static void beside_b(void) {
    meet();
    int by_ring = dial(PORT), by_calls = dial(PORT);
    warm(by_calls);
    asks(by_ring, 2);
    asks(by_calls, 3);
}

/* By that function, where liburing has it: not each version has all. */
static void begin_by(const char *name) {
    static char its_ring[4096], memory[64 * KIB] __attribute__((aligned(4096)));
    static struct io_uring_params params;
    void *lib = dlopen("liburing.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (!lib || !dlsym(lib, name))
        name = "io_uring_queue_init";
    void *begin = lib ? dlsym(RTLD_DEFAULT, name) : NULL;
    if (!begin)
        die("liburing");
    memset(its_ring, 0, sizeof its_ring);
    memset(&params, 0, sizeof params);
    int r = !strcmp(name, "io_uring_setup")               ? ((int (*)(unsigned, void *))begin)(4, &params)
            : !strcmp(name, "io_uring_queue_init_params") ? ((int (*)(unsigned, void *, void *))begin)(4, its_ring, &params)
            : !strcmp(name, "io_uring_queue_init_mem")    ? ((int (*)(unsigned, void *, void *, void *, size_t))begin)(4, its_ring, &params, memory, sizeof memory)
                                                          : ((int (*)(unsigned, void *, unsigned))begin)(4, its_ring, 0);
    say("begins: %d", r < 0);
}

/* liburing begins when a connection is in memory already; each time by the first function that the process makes a ring by. */
static void after_by(const char *name) {
    int fd = conn();
    begin_by(name);
    if (has_ring())
        echo_through_ring(fd);
    close(fd);
}
static void after_a(void) { after_by("io_uring_queue_init"); }
static void after_params_a(void) { after_by("io_uring_queue_init_params"); }
static void after_mem_a(void) { after_by("io_uring_queue_init_mem"); }
static void after_setup_a(void) { after_by("io_uring_setup"); }
static void after_b(void) { asks(conn(), 4); }

/* When there is a listener: what that accepts later moves as ever (qemu-nbd). */
static void listens_a(void) {
    int l = listen_on(PORT);
    begin_by("io_uring_queue_init");
    meet();
    int fd = accept_from(l);
    warm(fd);
    close(fd);
}
static void listens_b(void) {
    meet();
    int fd = dial(PORT);
    warm(fd);
    recv(fd, buf, 1, 0);
    close(fd);
}

const struct test tests[] = {{"alone", alone_a, alone_b, COLD},
                             {"beside", beside_a, beside_b, 0},
                             {"after", after_a, after_b, 0},
                             {"after_params", after_params_a, after_b, 0},
                             {"after_mem", after_mem_a, after_b, 0},
                             {"after_setup", after_setup_a, after_b, 0},
                             {"listens", listens_a, listens_b, 0},
                             {0}};
