/* What shared memory can do here at most, without any protocol: two threads, one on each of two processors.
 *   a 64 B message there and back (copy in, publish, spin, copy out), and 64 KiB blocks through a ring.
 *   cpu_a=0 cpu_b=1 n=300000 ring=2097152 size=65536 secs=0.4 */
#include "common.h"
#include <sched.h>
#include <stdatomic.h>

struct line {
    _Alignas(128) _Atomic uint64_t word;
    char data[64];
};
static struct line there, back;
static _Alignas(128) _Atomic uint64_t head;
static _Alignas(128) _Atomic uint64_t tail;
static char *ring;
static size_t ring_size, size;
static long n;
static uint64_t target;

static void pin(int cpu) {
    cpu_set_t s;
    CPU_ZERO(&s);
    CPU_SET(cpu, &s);
    sched_setaffinity(0, sizeof s, &s);
}
static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}
static void put(struct line *l, const char *b, uint64_t v) {
    memcpy(l->data, b, 64);
    atomic_store_explicit(&l->word, v, memory_order_release);
}
static void get(struct line *l, char *b, uint64_t v) {
    while (atomic_load_explicit(&l->word, memory_order_acquire) != v) relax();
    memcpy(b, l->data, 64);
}
static void *other(void *unused) {
    (void)unused;
    char b[64];
    pin((int)argn("cpu_b", 1));
    for (long i = 1; i <= n; i++) {
        get(&there, b, (uint64_t)i);
        put(&back, b, (uint64_t)i);
    }
    char *out = malloc(size);
    for (uint64_t t = 0; t < target; t += size) {
        while (atomic_load_explicit(&head, memory_order_acquire) - t < size) relax();
        memcpy(out, ring + t % ring_size, size);
        atomic_store_explicit(&tail, t + size, memory_order_release);
    }
    return NULL;
}

int main(int argc, char **argv) {
    start(argc, argv);
    ticks_calibrate();
    n = argn("n", 300000);
    size = (size_t)argn("size", 65536);
    ring_size = (size_t)argn("ring", 2097152) / size * size;
    target = (uint64_t)argn("mib", 4096) << 20;
    ring = aligned_alloc(4096, ring_size);
    memset(ring, 1, ring_size);
    static struct hist h;
    char b[64] = {0};
    pthread_t t;
    pin((int)argn("cpu_a", 0));
    if (pthread_create(&t, NULL, other, NULL)) die("thread");
    uint64_t t0 = ticks(), t1;
    for (long i = 1; i <= n; i++) {
        put(&there, b, (uint64_t)i);
        get(&back, b, (uint64_t)i);
        t1 = ticks();
        if (i > n / 4) hist_add(&h, ticks_ns(t1 - t0));
        t0 = t1;
    }
    char *in = malloc(size);
    memset(in, 2, size);
    t0 = ticks();
    for (uint64_t w = 0; w < target; w += size) {
        while (w + size - atomic_load_explicit(&tail, memory_order_acquire) > ring_size) relax();
        memcpy(ring + w % ring_size, in, size);
        atomic_store_explicit(&head, w + size, memory_order_release);
    }
    pthread_join(t, NULL);
    double gb_s = (double)target / (double)ticks_ns(ticks() - t0);
    printf("{\"gb_s\":%.3f,", gb_s);
    hist_print(&h);
    printf("}\n");
    return 0;
}
