/* Owns: workers that a process forks which has served others: what it had with those is not theirs. */
#include "case.h"
#include <sys/resource.h>

static char buf[64];

/* Few descriptors, of which the clients of the parent have taken all that there are for others. */
enum { CLIENTS = 30, ROUNDS = 200, FEW = 128 };
static void after_many_a(void) {
    struct rlimit few = {FEW, FEW};
    MUST(setrlimit(RLIMIT_NOFILE, &few));
    int l = listen_on(PORT), fd[CLIENTS];
    meet();
    for (int i = 0; i < CLIENTS; i++) {
        fd[i] = accept_from(l);
        for (int k = 0; k < ROUNDS; k++) {
            if (get(fd[i], buf, sizeof buf) != sizeof buf)
                die("round");
            put(fd[i], buf, sizeof buf);
        }
    }
    pid_t worker = MUST(fork());
    if (worker == 0) {
        for (int i = 0; i < CLIENTS; i++)
            close(fd[i]);
        meet();
        int own = accept_from(l);
        warm(own);
        echo_until_end(own);
        _exit(0);
    }
    wait_for(worker);
    for (int i = 0; i < CLIENTS; i++)
        put(fd[i], buf, 1);
    meet();
}
static void after_many_b(void) {
    meet();
    for (int i = 0; i < CLIENTS; i++)
        if (MUST(fork()) == 0) {
            int fd = dial(PORT);
            for (int k = 0; k < ROUNDS; k++) {
                put(fd, buf, sizeof buf);
                if (get(fd, buf, sizeof buf) != sizeof buf)
                    _exit(1);
            }
            _exit(get(fd, buf, 1) != 1); /* it is there until the worker is done */
        }
    meet();
    int fd = dial(PORT);
    warm(fd);
    echo(fd, "by the worker", 4);
    close(fd);
    int status, sound = 0;
    meet();
    while (wait(&status) > 0)
        sound += status == 0;
    say("%d sound", sound);
}

const struct test tests[] = {{"after_many", after_many_a, after_many_b, 0}, {0}};
