/* Owns: a program of nothing but POSIX, for builds that are not the usual: static, musl, setuid.
 *   plain server PORT     accepts one connection and echoes
 *   plain client PORT     sends 4 MB, reads them back, compares; prints "whole" */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 4000000 };
static unsigned char there[SIZE], back[SIZE];

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!strcmp(argv[1], "server")) {
        if (bind(fd, (void *)&at, sizeof at) || listen(fd, 5))
            return 3;
        fd = accept(fd, NULL, NULL);
        for (ssize_t n; (n = read(fd, there, sizeof there)) > 0;)
            for (ssize_t o = 0, m; o < n; o += m)
                if ((m = write(fd, there + o, n - o)) <= 0)
                    return 4;
        return 0;
    }
    if (connect(fd, (void *)&at, sizeof at))
        return 5;
    for (int i = 0; i < SIZE; i++)
        there[i] = i * 7 + i / 1000;
    for (ssize_t sent = 0, got = 0; got < SIZE;) {
        struct pollfd p = {fd, POLLIN | (sent < SIZE ? POLLOUT : 0), 0};
        if (poll(&p, 1, 20000) != 1)
            return 6;
        if (p.revents & POLLOUT) {
            ssize_t n = send(fd, there + sent, SIZE - sent < 3000 ? SIZE - sent : 3000, MSG_DONTWAIT);
            sent += n > 0 ? n : 0;
        }
        if (p.revents & POLLIN) {
            ssize_t n = recv(fd, back + got, SIZE - got, MSG_DONTWAIT);
            if (n == 0)
                return 7;
            got += n > 0 ? n : 0;
        }
    }
    puts(memcmp(there, back, SIZE) ? "DIFFERENT" : "whole");
    return 0;
}
