/* Owns: calls with wrong arguments: the errno, and that the connection is whole afterwards. */
#include "case.h"

static char buf[4096];

static void arguments_a(void) {
    int fd = conn();
    struct iovec v[1] = {{buf, 2}};
    meet_settled();
    R(recv(fd, buf, 10, MSG_ERRQUEUE | MSG_DONTWAIT));
    R(readv(fd, v, 1));
    R(accept(fd, NULL, NULL));
    R(listen(fd, 1));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    R(connect(fd, (void *)&to, sizeof to));
    R(bind(fd, (void *)&to, sizeof to));
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    R(recvfrom(fd, buf, 2, 0, (void *)&from, &len));
    say("address length %d", (int)len);
    R(sendto(fd, "xy", 2, 0, (void *)&to, sizeof to));
    meet();
    say("rest %zu", get(fd, buf, 6));
}
static void arguments_b(void) {
    int fd = conn();
    put(fd, "0123456789", 10);
    meet_settled();
    meet();
    say("got %zu %.2s", get(fd, buf, 2), buf);
}

/* Pointers to nowhere: EFAULT, and nothing is lost. */
static void pointers_a(void) {
    int fd = conn();
    char *hole = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *const bad[] = {NULL, (char *)100, (char *)-1, (char *)0xffff800000000000};
    meet_settled();
    R(recvmsg(fd, NULL, 0));
    R(sendto(fd, buf, 0, 0, (void *)hole, 5));
    R(sendto(fd, buf, 1, 0, (void *)hole, 5));
    R(sendto(fd, buf, 1, 0, (void *)buf, 129));
    R(sendto(fd, buf, 1, 0, (void *)buf, -1));
    R(sendto(fd, buf, 0, 0, (void *)buf, 16));
    for (int i = 0; i < 4; i++) {
        struct iovec first[] = {{bad[i], 10}, {buf, 10}}, second[] = {{buf, 2}, {bad[i], 10}};
        R(recv(fd, bad[i], 10, 0));
        R(recv(fd, bad[i], 10, MSG_PEEK));
        R(recv(fd, bad[i], 0, MSG_DONTWAIT));
        R(read(fd, bad[i], 10));
        R(readv(fd, first, 2));
        R(write(fd, bad[i], 10));
        R(send(fd, bad[i], 10, 0));
        R(send(fd, bad[i], 0, 0));
        R(writev(fd, first, 2));
        R(readv(fd, second, 2));
        R(writev(fd, second, 2));
    }
    R(recv(fd, (char *)-1, 2, MSG_TRUNC));
    meet();
    say("rest %zu", get(fd, buf, 10));
}
/* Nor memory behind an address in the program's half: known by the kernel alone. */
static void holes_a(void) {
    int fd = conn();
    char *hole = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    meet_settled();
    R(read(fd, hole, 10));
    R(send(fd, hole, 10, 0));
    meet();
    say("rest %zu", get(fd, buf, 10));
}
static void holes_b(void) {
    int fd = conn();
    put(fd, "0123456789", 10);
    meet_settled();
    meet();
    recv(fd, buf, 10, 0);
}
static void pointers_b(void) {
    int fd = conn();
    put(fd, "01234567890123456789", 20);
    meet_settled();
    meet();
    R(recv(fd, buf, 10, 0));
}

const struct test tests[] = {{"arguments", arguments_a, arguments_b, 0},
                             {"pointers", pointers_a, pointers_b, 0},
                             {"holes", holes_a, holes_b, 0},
                             {0}};
