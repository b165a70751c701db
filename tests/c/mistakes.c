/* Owns: what the check by valgrind (tests/tests/memcheck.rs) must find. The program gives the library memory that it may
 * not touch, on a connection in memory, where the copies are the library's own. Never run without valgrind. */
#include "case.h"

static char *volatile block; /* the compiler must not know what it is */

static void into_freed_a(void) {
    int fd = conn();
    block = malloc(1000);
    free(block);
    R(recv(fd, block, 100, MSG_WAITALL));
}
static void from_beyond_a(void) {
    int fd = conn();
    char buf[200];
    say("%zu", get(fd, buf, sizeof buf));
}
static void sends_100_b(void) {
    int fd = conn();
    char buf[100] = {0};
    put(fd, buf, sizeof buf);
}
static void from_beyond_b(void) {
    int fd = conn();
    block = calloc(100, 1);
    R(send(fd, block, 200, 0));
    free(block);
}

const struct test tests[] = {
    {"into_freed", into_freed_a, sends_100_b, 0},
    {"from_beyond", from_beyond_a, from_beyond_b, 0},
    {0},
};
