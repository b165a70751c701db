/* Owns: connections that are passed on while they are still on TCP: which of their holders goes on with them in memory, and which
 * stay on TCP because more than one may use them. */
#include "given.h"

static char buf[64 * KIB];
enum { NEXT = 12 }; /* where a helper finds its way to the next one */

static int accepted(void) {
    int l = listen_on(PORT);
    meet();
    int fd = accept_from(l);
    close(l);
    return fd;
}
static int dialled(void) {
    meet();
    return dial(PORT);
}

/* What the two that use a connection do with it, `first` in the end that began. */
static void use(int fd, int first) {
    warm_end(fd, first);
    first ? put_stream(fd, MIB, 3) : get_stream(fd, MIB, 3);
    first ? get_stream(fd, MIB, 4) : put_stream(fd, MIB, 4);
    close(fd);
}

/* Waits for the other end of a pair, which says that it has gone on. */
static void say_on(int over) { MUST(write(over, "", 1)); }
static void wait_on(int over) {
    char c;
    if (MUST(read(over, &c, 1)) != 1)
        die("wait_on");
}

/* Two messages at once, with a descriptor each: sent, or received. */
static void exchange_two(int over, int fds[2], int sends) {
    char c[2] = {1, 1}, control[2][CMSG_SPACE(sizeof(int))] = {{0}};
    struct iovec v[2] = {{&c[0], 1}, {&c[1], 1}};
    struct mmsghdr m[2];
    memset(m, 0, sizeof m);
    for (int i = 0; i < 2; i++) {
        m[i].msg_hdr = (struct msghdr){.msg_iov = &v[i], .msg_iovlen = 1, .msg_control = control[i], .msg_controllen = sizeof control[i]};
        if (!sends)
            continue;
        struct cmsghdr *h = CMSG_FIRSTHDR(&m[i].msg_hdr);
        *h = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(h), &fds[i], sizeof(int));
    }
    int n = MUST(sends ? sendmmsg(over, m, 2, 0) : recvmmsg(over, m, 2, MSG_WAITALL, NULL));
    if (n != 2)
        die("exchange_two");
    for (int i = 0; i < 2 && !sends; i++)
        memcpy(&fds[i], CMSG_DATA(CMSG_FIRSTHDR(&m[i].msg_hdr)), sizeof(int));
}

static void executed(void) {
    const char *role = getenv("EXEC_ROLE");
    int fd, again, fds[2];
    if (!role)
        return;
    if (!strcmp(role, "uses")) {
        fd = passed_one(MESSAGES);
        wait_on(MESSAGES); /* who passed it on has closed it */
        use(fd, !is_a);
    } else if (!strcmp(role, "reads all") || !strcmp(role, "reads the rest")) {
        int part = strcmp(role, "reads all") ? 5000 : 0;
        fd = passed_one(MESSAGES);
        wait_on(MESSAGES);
        got(fd, buf, 10000 - part, part, 5);
        use(fd, 0);
    } else if (!strcmp(role, "uses it before")) {
        fd = passed_one(MESSAGES);
        for (int i = 0; i < 50; i++)
            echo(fd, "it is open elsewhere", i);
        say_on(MESSAGES);
        wait_on(MESSAGES);
        get_stream(fd, 20 * MIB, 3);
        put_stream(fd, 20 * MIB, 4);
    } else if (!strcmp(role, "passes on")) {
        fd = passed_one(MESSAGES);
        wait_on(MESSAGES);
        pass(NEXT, &fd, 1);
        close(fd);
        say_on(NEXT);
    } else if (!strcmp(role, "passes on and keeps")) {
        fd = passed_one(MESSAGES);
        wait_on(MESSAGES);
        pass(NEXT, &fd, 1);
        wait_on(NEXT);
        for (int i = 0; i < 50; i++)
            echo(fd, "between", i);
        say_on(NEXT);
        wait_on(NEXT);
        close(fd);
    } else if (!strcmp(role, "takes turns")) {
        fd = passed_one(MESSAGES);
        for (int i = 0; i < 2; i++) {
            for (int k = 0; k < 50; k++)
                echo(fd, "last", k);
            say_on(MESSAGES);
            if (i == 0)
                wait_on(MESSAGES);
        }
    } else if (!strcmp(role, "echoes")) {
        fd = passed_one(MESSAGES);
        for (int i = 0; i < 50; i++)
            echo(fd, "receiver", i);
        close(fd);
        say_on(MESSAGES);
        (void)!read(MESSAGES, buf, 1);
    } else if (!strcmp(role, "peeks")) {
        receive_fds(MESSAGES, &again, 1, MSG_PEEK);
        fd = passed_one(MESSAGES);
        wait_on(MESSAGES);
        for (int i = 0; i < 50; i++)
            echo(i % 2 ? fd : again, i % 2 ? "one" : "the other", i);
    } else if (!strcmp(role, "two")) {
        exchange_two(MESSAGES, fds, 0);
        wait_on(MESSAGES);
        for (int i = 0; i < 2; i++)
            use(fds[i], 0);
    }
    exit(0);
}

/* ---- goes on in memory ---- */

/* The helper was started before the connection was there, so that it comes by the message alone. */
static void pass_to(pid_t child, int over, int fd) {
    pass(over, &fd, 1);
    close(fd);
    say_on(over);
    wait_for(child);
    meet();
}

static void stranger_a(void) {
    int over;
    pid_t child = helper("uses", environ, &over);
    pass_to(child, over, accepted());
}
static void stranger_b(void) {
    use(dialled(), 1);
    meet();
}

static void client_a(void) {
    use(accepted(), 0);
    meet();
}
static void client_b(void) {
    int over;
    pid_t child = helper("uses", environ, &over);
    pass_to(child, over, dialled());
}

/* The receiver uses it before it is closed. */
static void later_a(void) {
    int over;
    pid_t child = helper("uses it before", environ, &over);
    int fd = accepted();
    pass(over, &fd, 1);
    wait_on(over);
    close(fd);
    say_on(over);
    wait_for(child);
    meet();
}
static void later_b(void) {
    int fd = dialled();
    for (int i = 0; i < 50; i++) {
        got(fd, buf, 20000, 0, i);
        put(fd, buf, 20000);
    }
    put_stream(fd, 20 * MIB, 3);
    get_stream(fd, 20 * MIB, 4);
    meet();
}

static void relative_a(void) {
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t child = MUST(fork());
    if (child == 0) {
        int mine = passed_one(pair[1]);
        wait_on(pair[1]);
        use(mine, 0);
        exit(0);
    }
    pass_to(child, pair[0], accepted());
}

/* In one process. */
static void itself_a(void) {
    int pair[2], fd = accepted();
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
    pass(pair[0], &fd, 1);
    int again = passed_one(pair[1]);
    close(fd);
    use(again, 0);
    meet();
}

/* 10,000 bytes are there when it is passed on, of which `read` are read before. */
static void part_a(int read) {
    int over;
    pid_t child = helper(read ? "reads the rest" : "reads all", environ, &over);
    int fd = accepted();
    meet_settled();
    if (read)
        got(fd, buf, read, 0, 5);
    pass_to(child, over, fd);
}
static void unread_a(void) { part_a(0); }
static void part_read_a(void) { part_a(5000); } /* its way to memory has begun, and ends here */
static void unread_b(void) {
    int fd = dialled();
    fill(buf, 10000, 0, 5);
    put(fd, buf, 10000);
    meet_settled();
    use(fd, 1);
    meet();
}

/* From one helper to the next. */
static void chain(const char *first, char **env, const char *second) {
    int next, over;
    pid_t last = helper(second, environ, &next);
    MUST(dup2(next, NEXT));
    pid_t child = helper(first, env, &over);
    close(next);
    close(NEXT);
    pass_to(child, over, accepted());
    wait_for(last);
}
static void onwards_a(void) { chain("passes on", environ, "uses"); } /* each has closed it before */

static void two_a(void) {
    int over, fds[2], l = listen_on(PORT);
    pid_t child = helper("two", environ, &over);
    meet();
    for (int i = 0; i < 2; i++)
        fds[i] = accept_from(l);
    exchange_two(over, fds, 1);
    for (int i = 0; i < 2; i++)
        close(fds[i]);
    say_on(over);
    wait_for(child);
    meet();
}
static void two_b(void) {
    int fds[2];
    meet();
    for (int i = 0; i < 2; i++)
        fds[i] = dial(PORT);
    for (int i = 0; i < 2; i++)
        use(fds[i], 1);
    meet();
}

/* There is no room for the message: who could not pass it on uses it. */
static void unsent_a(void) {
    int pair[2], fd = accepted();
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    while (send(pair[0], buf, sizeof buf, MSG_DONTWAIT) > 0) {
    }
    for (int i = 0; i < 2; i++)
        R(send_fds(pair[0], &fd, 1, MSG_DONTWAIT));
    use(fd, 0);
    meet();
}

/* ---- stays on TCP ---- */

/* Two that have it use it in turn. */
static void kept_a(void) {
    int over;
    pid_t child = helper("echoes", environ, &over);
    int fd = accepted();
    pass(over, &fd, 1);
    wait_on(over);
    for (int i = 0; i < 50; i++)
        echo(fd, "the one that passed it", i);
    close(fd);
    close(over);
    wait_for(child);
    meet();
}
static void echoing_b(void) {
    echo_until_end(dialled());
    meet();
}

static void native_a(void) {
    int over;
    pid_t child = helper("echoes", without(), &over);
    int fd = accepted();
    pass(over, &fd, 1);
    close(fd);
    wait_on(over);
    close(over);
    wait_for(child);
    meet();
}

static void to_both_a(void) {
    int over[2];
    pid_t child[2];
    for (int i = 0; i < 2; i++)
        child[i] = helper("takes turns", environ, &over[i]);
    int fd = accepted();
    pass(over[0], &fd, 1);
    wait_on(over[0]);
    pass(over[1], &fd, 1);
    close(fd);
    wait_on(over[1]);
    say_on(over[0]);
    wait_on(over[0]);
    say_on(over[1]);
    wait_on(over[1]);
    for (int i = 0; i < 2; i++)
        wait_for(child[i]);
    meet();
}

static void peeked_a(void) {
    int over;
    pid_t child = helper("peeks", environ, &over);
    pass_to(child, over, accepted());
}

/* A program without the library passes it on and uses it as well. */
static void between_a(void) { chain("passes on and keeps", without(), "takes turns"); }

/* Relatives that have both ends of one pair: one that has received it passes it on by the same way, before the first has closed it. */
static void passed_back_a(void) {
    int pair[2], turn[2][2];
    pid_t child[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    for (int i = 0; i < 2; i++) {
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, turn[i]));
        child[i] = MUST(fork());
        if (child[i])
            continue;
        int mine = turn[i][1];
        wait_on(mine);
        int fd = passed_one(pair[1]);
        if (i == 0)
            pass(pair[0], &fd, 1);
        say_on(mine);
        for (int n = 0; n < 2; n++) {
            wait_on(mine);
            for (int k = 0; k < 50; k++)
                echo(fd, i ? "the last" : "between", k);
            say_on(mine);
        }
        exit(0);
    }
    int fd = accepted();
    pass(pair[0], &fd, 1);
    for (int n = 0; n < 6; n++) {
        say_on(turn[n % 2][0]);
        wait_on(turn[n % 2][0]);
        if (n == 1)
            close(fd); /* both have it */
    }
    for (int i = 0; i < 2; i++)
        wait_for(child[i]);
    meet();
}

const struct test tests[] = {{"to_stranger", stranger_a, stranger_b, 0},
                             {"from_client", client_a, client_b, 0},
                             {"closed_later", later_a, later_b, COLD | SWITCHES},
                             {"to_relative", relative_a, stranger_b, 0},
                             {"to_itself", itself_a, stranger_b, 0},
                             {"unread", unread_a, unread_b, 0},
                             {"part_read", part_read_a, unread_b, COLD},
                             {"onwards", onwards_a, stranger_b, 0},
                             {"two_at_once", two_a, two_b, 0},
                             {"unsent", unsent_a, stranger_b, 0},
                             {"kept", kept_a, echoing_b, COLD},
                             {"to_native", native_a, echoing_b, COLD},
                             {"to_both", to_both_a, echoing_b, COLD},
                             {"peeked", peeked_a, echoing_b, COLD},
                             {"between", between_a, echoing_b, COLD},
                             {"passed_back", passed_back_a, echoing_b, COLD},
                             {"executed", executed, executed, ROLE},
                             {0}};
