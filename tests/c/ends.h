/* Owns: what the programs of tests/tests/faults.rs share, which play both ends of their connections by themselves. */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Of a message. */
enum { BYTES = 100 };

static void die(const char *what) {
    fprintf(stderr, "%d: %s: %s\n", getpid(), what, strerror(errno));
    exit(1);
}

/* As die, where no call has failed. */
static void wrong(const char *what) {
    errno = 0;
    die(what);
}

static struct sockaddr_in here(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

static int listen_on(int port) {
    struct sockaddr_in at = here(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 8))
        die("listen");
    return fd;
}

static int dial(int port) {
    struct sockaddr_in to = here(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (void *)&to, sizeof to))
        die("connect");
    return fd;
}

/* How much of the library's memory is mapped. */
__attribute__((unused)) static int regions(void) {
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    int n = 0;
    while (f && fgets(line, sizeof line, f))
        n += strstr(line, "smcr-region") != NULL;
    if (f)
        fclose(f);
    return n;
}

__attribute__((unused)) static void give(int fd, char what) {
    char bytes[BYTES];
    memset(bytes, what, sizeof bytes);
    if (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes)
        die("send");
}
