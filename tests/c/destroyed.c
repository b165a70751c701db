/* Owns: connections that the administrator ends, as ss -K does: ECONNABORTED for the owner, a reset for the peer. What had come before
 * is read first. */
#include "case.h"
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>

static char buf[100];

static void *destroy(void *p) {
    int fd = *(int *)p, nl = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG));
    struct sockaddr_in here, there;
    socklen_t l = sizeof here;
    MUST(getsockname(fd, (void *)&here, &l));
    MUST(getpeername(fd, (void *)&there, &l));
    struct {
        struct nlmsghdr h;
        struct inet_diag_req_v2 r;
    } ask = {{sizeof ask, SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK, 1, 0},
             {.sdiag_family = AF_INET,
              .sdiag_protocol = IPPROTO_TCP,
              .idiag_states = -1,
              .id = {.idiag_sport = here.sin_port,
                     .idiag_dport = there.sin_port,
                     .idiag_src = {here.sin_addr.s_addr},
                     .idiag_dst = {there.sin_addr.s_addr},
                     .idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}}};
    struct {
        struct nlmsghdr h;
        struct nlmsgerr e;
        char more[256];
    } answer = {0};
    settle();
    settle();
    MUST(send(nl, &ask, sizeof ask, 0));
    MUST(recv(nl, &answer, sizeof answer, 0));
    close(nl);
    return (void *)(long)-answer.e.error;
}
static void waiting_a(void) {
    int fd = conn();
    pthread_t t;
    void *error;
    pthread_create(&t, NULL, destroy, &fd);
    R(recv(fd, buf, 100, 0));
    pthread_join(t, &error);
    say("destroyed: %s", err_name((long)error));
    say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
    R(recv(fd, buf, 100, 0));
    R(send(fd, buf, 1, MSG_NOSIGNAL));
    R(close(fd));
    meet();
}
static void waiting_b(void) {
    int fd = conn();
    say("over %d", recv(fd, buf, 100, 0) <= 0); /* the end, or a reset: docs/interpose.md */
    meet();
}
/* The owner is told by a send, or by poll and SO_ERROR. */
static void busy_a(void) {
    for (int i = 0; i < 2; i++) {
        int fd = conn();
        say("destroyed: %s", err_name((long)destroy(&fd)));
        if (i == 0) {
            R(send(fd, buf, 1, MSG_NOSIGNAL));
        } else {
            say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
            say("SO_ERROR %s", err_name(so_error(fd)));
        }
        say("poll: %s", poll_text(events(fd, POLLIN | POLLOUT | POLLRDHUP, 0)));
        R(recv(fd, buf, 100, 0));
        R(send(fd, buf, 1, MSG_NOSIGNAL));
        close(fd);
    }
}
static void busy_b(void) {
    for (int i = 0; i < 2; i++) {
        int fd = conn();
        say("over %d", recv(fd, buf, 100, 0) <= 0); /* as above */
        close(fd);
    }
}
static void unread_a(void) {
    int fd = conn();
    void *error;
    put(fd, "to the peer", 11);
    meet_settled();
    error = destroy(&fd);
    say("destroyed: %s", err_name((long)error));
    R(recv(fd, buf, 4, 0));
    R(recv(fd, buf, 100, 0));
    R(recv(fd, buf, 100, 0));
    R(send(fd, buf, 1, MSG_NOSIGNAL));
    meet();
}
static void unread_b(void) {
    int fd = conn();
    put(fd, "to the destroyed", 16);
    meet_settled();
    meet();
    settle();
    R(recv(fd, buf, 4, 0));
    R(recv(fd, buf, 100, 0));
    R(recv(fd, buf, 100, 0));
    R(send(fd, buf, 1, MSG_NOSIGNAL));
}

const struct test tests[] = {{"waiting", waiting_a, waiting_b, 0},
                             {"busy", busy_a, busy_b, 0},
                             {"unread", unread_a, unread_b, 0},
                             {0}};
