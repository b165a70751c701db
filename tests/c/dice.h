/* Owns: the dice of random walks, and what all of them say by. Natively a seed has one transcript. */
#pragma once
#include "case.h"

static unsigned shared, own; /* dice: of both ends, of this one */

static unsigned die_of(unsigned n) { return rnd(&own) % n; }
static void begin_round(unsigned seed, unsigned round) { shared = seed * 1000 + round, own = shared * 2 + (unsigned)is_a; }
static inline int is_my_turn(void) { return rnd(&shared) % 2 == (unsigned)is_a; }
/* So many steps, of which each is one end's: `mine` makes it, and tells the other, which hears of it by `theirs`. */
static inline void by_turns(unsigned steps, void (*mine)(unsigned kind), unsigned kind, void (*theirs)(void)) {
    for (unsigned i = 0; i < steps; i++) {
        if (is_my_turn()) {
            say("%u:", i);
            mine(kind);
        } else {
            theirs();
        }
    }
}

/* A number of NAME_WHAT in the environment. */
static long asked_for(const char *name, const char *what, long otherwise) {
    char whole[40];
    snprintf(whole, sizeof whole, "%s_%s", name, what);
    const char *value = getenv(whole);
    return value ? atol(value) : otherwise;
}

static inline unsigned digest(const void *bytes, long n) {
    unsigned h = 2166136261u;
    for (long i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)bytes)[i]) * 16777619u;
    return h;
}
