/* Start-up of a program that opens no socket, with and without a preloaded library, in turn.
 *   prog=/bin/true n=200 lib=PATH (none: both without) */
#include "common.h"
#include <spawn.h>

extern char **environ;
static int cmp(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    start(argc, argv);
    long n = argn("n", 200), k = 0;
    const char *prog = arg("prog", "/bin/true"), *lib = arg("lib", "");
    char preload[4096];
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", lib);
    while (environ[k]) k++;
    char **env = calloc((size_t)k + 2, sizeof *env);
    memcpy(env, environ, (size_t)k * sizeof *env);
    if (*lib) env[k] = preload;
    char *av[] = {(char *)prog, NULL};
    uint64_t *t[2] = {calloc((size_t)n, 8), calloc((size_t)n, 8)};
    for (long i = -10; i < n; i++) {
        for (int with = 0; with < 2; with++) {
            pid_t p;
            int st;
            uint64_t t0 = now_ns();
            if (posix_spawn(&p, prog, NULL, NULL, av, with ? env : environ)) die("spawn %s", prog);
            if (waitpid(p, &st, 0) != p || st) die("%s ended with wait status %d", prog, st);
            if (i >= 0) t[with][i] = now_ns() - t0;
        }
    }
    qsort(t[0], (size_t)n, 8, cmp);
    qsort(t[1], (size_t)n, 8, cmp);
    printf("{\"without_ns\":%llu,\"with_ns\":%llu,\"min_without_ns\":%llu,\"min_with_ns\":%llu}\n",
           (unsigned long long)t[0][n / 2], (unsigned long long)t[1][n / 2], (unsigned long long)t[0][0],
           (unsigned long long)t[1][0]);
    return 0;
}
