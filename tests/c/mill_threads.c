/* Owns: the mill with two blocking threads for each connection (see mill.h). */
#include "mill.h"

static void start(void *(*body)(void *), void *arg) {
    pthread_t t;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    while (pthread_create(&t, &small, body, arg))
        usleep(1000);
    pthread_detach(t);
    pthread_attr_destroy(&small);
}

static void until(uint64_t at) {
    int64_t left = at - now_ns();
    if (left > 0)
        usleep(left / 1000 + 1);
}

static _Atomic int at_work;

static void *reader(void *arg) {
    struct flow *f = arg;
    while (!f->me->in_end) {
        until(f->in_at);
        get(f, wants_to_get(f), 0);
    }
    return NULL;
}

/* Ping and pong are one thread; the others have their reader beside them. */
static void *work(void *arg) {
    struct flow *f = arg;
    pthread_t t;
    int beside = f->rhythm != PINGPONG;
    if (beside)
        while (pthread_create(&t, NULL, reader, f))
            usleep(1000);
    while (!is_over(f)) {
        size_t n = wants_to_send(f);
        if (is_done_sending(f)) {
            shut(f);
        } else if (n) {
            until(f->out_at);
            put(f, n, 0);
        } else if (beside) {
            if (f->me->out_end)
                break;
            usleep(1000);
        } else if (!f->me->in_end) {
            get(f, wants_to_get(f), 0);
        }
    }
    if (beside)
        pthread_join(t, NULL);
    int client = f->client;
    finish(f);
    if (client)
        at_work--;
    return NULL;
}

static void *welcome(void *arg) {
    int fd = (int)(intptr_t)arg;
    uint32_t name;
    if (recv(fd, &name, 4, MSG_WAITALL) != 4 || name >= LINES) {
        close(fd);
        board->open--;
        return NULL;
    }
    return work(begin(fd, 0, name));
}

void threads_serve(int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, 0);
        if (fd < 0)
            continue;
        board->open++;
        board->served++;
        start(welcome, (void *)(intptr_t)fd);
    }
}

static void call(struct flow *f) {
    at_work++;
    start(work, f);
}

void threads_call(int port, int lines) {
    for (;;) {
        dial_all(port, lines, call);
        while (at_work)
            usleep(500);
    }
}
