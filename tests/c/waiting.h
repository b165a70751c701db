/* Owns: a thread that waits in a call, for cases in which another thread does something to what it waits for. */
#pragma once
#include "case.h"

struct waiting {
    const char *name;
    long (*call)(void);
    pthread_t thread;
    pid_t tid;
    long result;
    int error, over;
};

static void *waiting_thread(void *p) {
    struct waiting *w = p;
    __atomic_store_n(&w->tid, gettid(), __ATOMIC_RELEASE);
    errno = 0;
    w->result = w->call();
    w->error = errno;
    return NULL;
}

static char waiting_state(pid_t tid) {
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *f = fopen(path, "re");
    char *end = f && fgets(text, sizeof text, f) ? strrchr(text, ')') : NULL;
    if (f)
        fclose(f);
    return end ? end[2] : 0;
}

/* Starts it and comes back when it sleeps in its call. */
static inline void waiting_start(struct waiting *w, const char *name, long (*call)(void)) {
    *w = (struct waiting){.name = name, .call = call};
    MUST(-pthread_create(&w->thread, NULL, waiting_thread, w));
    for (int calm = 0; calm < 20; usleep(3000)) {
        pid_t tid = __atomic_load_n(&w->tid, __ATOMIC_ACQUIRE);
        calm = tid && waiting_state(tid) == 'S' ? calm + 1 : 0;
    }
}

/* Whether it has returned, which is waited for so long. */
static inline int waiting_is_over(struct waiting *w, int ms) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += ms % 1000 * 1000000L;
    t.tv_sec += ms / 1000 + t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    if (!w->over)
        w->over = pthread_timedjoin_np(w->thread, NULL, &t) == 0;
    return w->over;
}
