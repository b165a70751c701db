/* Owns: the mill with one thread and non-blocking sockets: epoll level- and edge-triggered, epoll by
 * inline system calls, and poll (see mill.h). */
#include "mill.h"
#include "raw.h"

enum { MOST = 4 * LINES };
static struct flow *flows[MOST];
static int count, ep, unseen, edge, polls;

static void ctl(int op, int fd, uint32_t events, void *p) {
    struct epoll_event e = {events, {.ptr = p}};
    if (polls)
        return;
    if (unseen)
        raw(SYS_epoll_ctl, ep, op, fd, (long)&e, 0, 0);
    else
        epoll_ctl(ep, op, fd, &e);
}

static void nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

static void add(struct flow *f) {
    if (count == MOST) {
        finish(f);
        return;
    }
    nonblocking(f->fd);
    flows[count++] = f;
    f->events = edge ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET : 0;
    ctl(EPOLL_CTL_ADD, f->fd, f->events, f);
}

/* As far as the rhythm wants and the socket gives; a bounded number of calls for each turn. */
static void turn(struct flow *f) {
    for (int i = 0; i < 4 && f->can_in && now_ns() >= f->in_at; i++) {
        size_t n = wants_to_get(f);
        if (!n)
            break;
        if (get(f, n, 0) < 0 && errno == EAGAIN)
            f->can_in = 0;
    }
    for (int i = 0; i < 4 && f->can_out && now_ns() >= f->out_at; i++) {
        size_t n = wants_to_send(f);
        if (!n)
            break;
        if (put(f, n, 0) < 0 && errno == EAGAIN)
            f->can_out = 0;
    }
    if (is_done_sending(f))
        shut(f);
}

/* Whether it could go on at once; level-triggered sets ask for what it waits for. */
static int prepare(struct flow *f, uint64_t now, int *timeout) {
    int in = !f->me->in_end, out = 0;
    if (!f->me->out_end && !(f->rhythm == PINGPONG && f->me->sent >= f->me->got && !f->client))
        out = wants_to_send(f) != 0;
    if (in && now < f->in_at)
        in = 0, *timeout = *timeout ? 1 : 0;
    if (out && now < f->out_at)
        out = 0, *timeout = *timeout ? 1 : 0;
    if (edge) {
        if ((in && f->can_in) || (out && f->can_out))
            *timeout = 0;
        return 0;
    }
    return (in ? EPOLLIN : 0) | (out ? EPOLLOUT : 0);
}

static void ready(struct flow *f, uint32_t events) {
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        f->can_in = 1;
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
        f->can_out = 1;
}

/* One wait and one turn for everybody. `listener` -1: until all are closed. */
static void go_round(int listener, int *welcome) {
    int timeout = 20;
    uint64_t now = now_ns();
    struct pollfd p[MOST + 1];
    for (int i = 0; i < count; i++) {
        struct flow *f = flows[i];
        uint32_t want = prepare(f, now, &timeout);
        p[i] = (struct pollfd){f->fd, (short)want, 0};
        if (!edge) {
            f->can_in = f->can_out = 0;
            if (want != f->events)
                ctl(EPOLL_CTL_MOD, f->fd, want, f);
            f->events = want;
        }
    }
    p[count] = (struct pollfd){listener, POLLIN, 0};
    *welcome = 0;
    if (polls) {
        poll(p, count + 1, timeout);
        for (int i = 0; i < count; i++)
            ready(flows[i], p[i].revents);
        *welcome = p[count].revents != 0;
    } else {
        struct epoll_event e[32];
        int n = unseen ? (int)raw(SYS_epoll_pwait, ep, (long)e, 32, timeout, 0, 8) : epoll_wait(ep, e, 32, timeout);
        for (int i = 0; i < n; i++)
            if (e[i].data.ptr)
                ready(e[i].data.ptr, e[i].events);
            else
                *welcome = 1;
    }
    for (int i = 0; i < count; i++) {
        turn(flows[i]);
        if (is_over(flows[i])) {
            finish(flows[i]);
            flows[i--] = flows[--count];
        }
    }
}

static void prepare_mode(const char *mode) {
    unseen = !strcmp(mode, "raw");
    edge = !strcmp(mode, "edge");
    polls = !strcmp(mode, "poll");
    ep = polls ? -1 : unseen ? (int)raw(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0, 0, 0) : epoll_create1(EPOLL_CLOEXEC);
}

void events_serve(int listener, const char *mode) {
    int welcome;
    prepare_mode(mode);
    nonblocking(listener);
    ctl(EPOLL_CTL_ADD, listener, EPOLLIN, NULL);
    for (;;) {
        go_round(listener, &welcome);
        int fd = welcome ? accept4(listener, NULL, NULL, 0) : -1;
        if (fd < 0)
            continue;
        board->open++;
        board->served++;
        uint32_t name;
        if (recv(fd, &name, 4, MSG_WAITALL) != 4 || name >= LINES) {
            close(fd);
            board->open--;
            continue;
        }
        add(begin(fd, 0, name));
    }
}

void events_call(int port, int lines, const char *mode) {
    int welcome;
    prepare_mode(mode);
    for (;;) {
        dial_all(port, lines, add);
        while (count)
            go_round(-1, &welcome);
    }
}
