/* read() and write() on what is no socket: the hooks must cost nothing here.
 *   what=pipe|file|null size=64 n=400000 (calls in all); one process, one thread, nothing sleeps */
#include "common.h"

int main(int argc, char **argv) {
    start(argc, argv);
    long n = argn("n", 400000), rounds = 10;
    size_t size = (size_t)argn("size", 64);
    const char *what = arg("what", "pipe");
    char *b = calloc(1, size);
    int p[2], seek = 0;
    if (!strcmp(what, "pipe")) {
        if (pipe(p)) die("pipe");
    } else if (!strcmp(what, "null")) {
        p[0] = open("/dev/zero", O_RDONLY);
        p[1] = open("/dev/null", O_WRONLY);
    } else {
        char name[] = "bench-file-XXXXXX";
        p[0] = mkstemp(name);
        p[1] = dup(p[0]);
        unlink(name);
        seek = 1;
    }
    if (p[0] < 0 || p[1] < 0) die("open");
    /* the best of ten rounds: what the code costs, not what the neighbours did */
    uint64_t best = UINT64_MAX;
    for (long r = 0; r <= rounds; r++) {
        uint64_t t0 = now_ns();
        for (long i = 0; i < n / rounds; i += 2) {
            if (write(p[1], b, size) != (ssize_t)size) die("write");
            if (seek) lseek(p[0], 0, SEEK_SET);
            if (read(p[0], b, size) != (ssize_t)size) die("read");
        }
        uint64_t d = now_ns() - t0;
        if (r && d < best) best = d;
    }
    printf("{\"ns_per_call\":%.3f}\n", (double)best / (double)(n / rounds));
    return 0;
}
