/* Owns: programs that send and receive through io_uring, by system calls that nobody sees: alone, and
 * beside hooked calls on other connections. */
#include "case.h"
#include <dlfcn.h>
#include <linux/io_uring.h>

static char buf[64 * KIB];

/* One request at a time. */
static struct {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
} ring;

/* False where the kernel has no io_uring for this process: then each run says so. */
static int make_ring(void) {
    struct io_uring_params p = {0};
    ring.fd = (int)raw(SYS_io_uring_setup, 4, (long)&p, 0, 0, 0, 0);
    if (ring.fd < 0) {
        say("no io_uring");
        return 0;
    }
    size_t sq = p.sq_off.array + p.sq_entries * 4, cq = p.cq_off.cqes + p.cq_entries * sizeof *ring.cqes;
    int shared = MAP_SHARED | MAP_POPULATE;
    char *s = mmap(NULL, sq, PROT_READ | PROT_WRITE, shared, ring.fd, IORING_OFF_SQ_RING);
    char *c = mmap(NULL, cq, PROT_READ | PROT_WRITE, shared, ring.fd, IORING_OFF_CQ_RING);
    ring.sqes = mmap(NULL, p.sq_entries * sizeof *ring.sqes, PROT_READ | PROT_WRITE, shared, ring.fd, IORING_OFF_SQES);
    if (s == MAP_FAILED || c == MAP_FAILED || (void *)ring.sqes == MAP_FAILED)
        die("mmap of the ring");
    ring.sq_tail = (unsigned *)(s + p.sq_off.tail);
    ring.sq_mask = (unsigned *)(s + p.sq_off.ring_mask);
    ring.sq_array = (unsigned *)(s + p.sq_off.array);
    ring.cq_head = (unsigned *)(c + p.cq_off.head);
    ring.cq_tail = (unsigned *)(c + p.cq_off.tail);
    ring.cq_mask = (unsigned *)(c + p.cq_off.ring_mask);
    ring.cqes = (struct io_uring_cqe *)(c + p.cq_off.cqes);
    return 1;
}
static int through_ring(int op, int fd, void *data, unsigned len) {
    unsigned tail = *ring.sq_tail, at = tail & *ring.sq_mask;
    ring.sqes[at] = (struct io_uring_sqe){.opcode = op, .fd = fd, .addr = (uintptr_t)data, .len = len};
    ring.sq_array[at] = at;
    __atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
    if (raw(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 8) != 1)
        die("io_uring_enter");
    unsigned head = *ring.cq_head;
    if (head == __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE))
        die("no completion");
    int result = ring.cqes[head & *ring.cq_mask].res;
    __atomic_store_n(ring.cq_head, head + 1, __ATOMIC_RELEASE);
    return result;
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
    if (make_ring())
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
    if (make_ring())
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

/* liburing begins when a connection is in memory already. */
static void after_a(void) {
    static char its_ring[4096];
    int fd = conn();
    void *lib = dlopen("liburing.so.2", RTLD_NOW | RTLD_GLOBAL);
    int (*begin)(unsigned, void *, unsigned) = lib ? (int (*)(unsigned, void *, unsigned))dlsym(RTLD_DEFAULT, "io_uring_queue_init") : NULL;
    if (!begin)
        die("liburing");
    say("begins: %d", begin(4, its_ring, 0) < 0);
    if (make_ring())
        echo_through_ring(fd);
    close(fd);
}
static void after_b(void) { asks(conn(), 4); }

const struct test tests[] = {{"alone", alone_a, alone_b, COLD},
                             {"beside", beside_a, beside_b, 0},
                             {"after", after_a, after_b, 0},
                             {0}};
