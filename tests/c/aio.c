/* Owns: asynchronous I/O on connections: glibc's aio_*, whose threads call the kernel past every hook, and the kernel's
 * io_submit by syscall(2) and by libaio. */
#include "case.h"
#include <aio.h>
#include <dlfcn.h>
#include <linux/aio_abi.h>

static char buf[64 * KIB];

/* Waits for one request and gives what it returned. */
static long done(struct aiocb *one) {
    const struct aiocb *list[] = {one};
    while (aio_error(one) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    int e = aio_error(one);
    long n = aio_return(one);
    errno = e;
    return n;
}

static struct aiocb request(int fd, void *p, size_t n) {
    return (struct aiocb){.aio_fildes = fd, .aio_buf = p, .aio_nbytes = n, .aio_sigevent.sigev_notify = SIGEV_NONE};
}

/* Six of the ten bytes that are there. */
static void read_six(int fd) {
    meet_settled();
    struct aiocb in = request(fd, buf, 6);
    R(aio_read(&in));
    R(done(&in));
    say("'%.6s'", buf);
}

static void posix_a(void) {
    int fd = conn();
    read_six(fd);
    say("%zu '%.4s'", get(fd, buf, 4), buf);
    struct aiocb in = request(fd, buf, 100);
    R(aio_read(&in)); /* before they come */
    put(fd, ".", 1);
    R(done(&in));
    say("'%.3s'", buf);
    struct aiocb out = request(fd, "answer", 6);
    R(aio_write(&out));
    R(done(&out));
    put(fd, "!", 1);
    meet();
    struct aiocb one = request(fd, "uvw", 3), two = request(fd, "xyz", 3), *both[] = {&one, NULL, &two};
    one.aio_lio_opcode = two.aio_lio_opcode = LIO_WRITE;
    R(lio_listio(LIO_WAIT, both, 3, NULL));
    say("%ld %ld", done(&one), done(&two));
    meet();
    in = request(fd, buf, 10);
    R(aio_read(&in)); /* the end of the stream */
    R(done(&in));
    in = request(999, buf, 10);
    R(aio_read(&in));
    R(done(&in));
}
static void posix_b(void) {
    int fd = conn();
    put(fd, "0123456789", 10);
    meet_settled();
    say("%zu", get(fd, buf, 1)); /* it has its part in the return to TCP */
    put(fd, "abc", 3);
    meet();
    say("%zu '%.7s'", get(fd, buf, 7), buf);
    say("%zu %d", get(fd, buf, 6), !memcmp(buf, "uvwxyz", 6) || !memcmp(buf, "xyzuvw", 6));
    R(shutdown(fd, SHUT_WR));
    meet();
    R(recv(fd, buf, 1, 0));
}

static long submit(aio_context_t ctx, int op, int fd, void *p, size_t n) {
    struct iocb one = {.aio_lio_opcode = op, .aio_fildes = fd, .aio_buf = (uintptr_t)p, .aio_nbytes = n}, *list[] = {&one};
    struct io_event got[1];
    if (syscall(SYS_io_submit, ctx, 1L, list) != 1 || syscall(SYS_io_getevents, ctx, 1L, 1L, got, NULL) != 1)
        return -1;
    return got[0].res;
}

static void kernel_a(void) {
    int fd = conn();
    aio_context_t ctx = 0;
    MUST(syscall(SYS_io_setup, 4L, &ctx));
    meet_settled();
    R(submit(ctx, IOCB_CMD_PREAD, fd, buf, 6));
    say("'%.6s'", buf);
    say("%zu '%.4s'", get(fd, buf, 4), buf);
    R(submit(ctx, IOCB_CMD_PWRITE, fd, "answer", 6));
    put(fd, "!", 1);
    struct iovec v[2] = {{"ab", 2}, {"cd", 2}};
    R(submit(ctx, IOCB_CMD_PWRITEV, fd, v, 2));
    meet();
    R(submit(ctx, IOCB_CMD_POLL, fd, (void *)POLLIN, 0)); /* comes after a while */
    say("%zu '%.3s'", get(fd, buf, 3), buf);
    meet();
    R(submit(ctx, IOCB_CMD_PREAD, fd, buf, 10));
    R(submit(ctx, IOCB_CMD_PREAD, 999, buf, 10));
    R(syscall(SYS_io_submit, ctx, 1L, NULL));
    R(syscall(SYS_io_submit, ctx, 1L, (void *)8));
    R(syscall(SYS_io_submit, ctx, -1L, NULL));
    R(syscall(SYS_io_destroy, ctx));
}
static void kernel_b(void) {
    int fd = conn();
    put(fd, "0123456789", 10);
    meet_settled();
    say("%zu '%.11s'", get(fd, buf, 11), buf);
    meet();
    settle();
    put(fd, "xyz", 3);
    R(shutdown(fd, SHUT_WR));
    meet();
    R(recv(fd, buf, 1, 0));
}

/* libaio's io_submit, which makes the system call itself (by an instruction of its own up to 0.3.112): one like it. The library's, where
 * that is the program's first, with or without a libaio behind. */
static int own_submit(aio_context_t ctx, long n, struct iocb **list) {
    return (int)raw(SYS_io_submit, (long)ctx, n, (long)list, 0, 0, 0) < 0 ? -errno : (int)n;
}
static int (*found(void))(aio_context_t, long, struct iocb **) {
    void *p = dlsym(RTLD_DEFAULT, "io_submit");
    return p ? (int (*)(aio_context_t, long, struct iocb **))p : own_submit;
}
static long submit_by(int (*submits)(aio_context_t, long, struct iocb **), aio_context_t ctx, int op, int fd, void *p, size_t n) {
    struct iocb one = {.aio_lio_opcode = op, .aio_fildes = fd, .aio_buf = (uintptr_t)p, .aio_nbytes = n}, *list[] = {&one};
    struct io_event got[1];
    int r = submits(ctx, 1, list);
    if (r != 1)
        return r;
    return syscall(SYS_io_getevents, ctx, 1L, 1L, got, NULL) == 1 ? (long)got[0].res : -1;
}
static void libaio_a(void) {
    int fd = conn();
    aio_context_t ctx = 0;
    MUST(syscall(SYS_io_setup, 4L, &ctx));
    int (*submits)(aio_context_t, long, struct iocb **) = found();
    meet_settled();
    R(submit_by(submits, ctx, IOCB_CMD_PREAD, fd, buf, 6));
    say("'%.6s'", buf);
    say("%zu '%.4s'", get(fd, buf, 4), buf);
    R(submit_by(submits, ctx, IOCB_CMD_PWRITE, fd, "answer", 6));
    put(fd, "!", 1);
    dlopen("libaio.so.1", RTLD_NOW | RTLD_GLOBAL);
    submits = found();
    struct iovec v[2] = {{"ab", 2}, {"cd", 2}};
    R(submit_by(submits, ctx, IOCB_CMD_PWRITEV, fd, v, 2));
    meet();
    R(submit_by(submits, ctx, IOCB_CMD_POLL, fd, (void *)POLLIN, 0));
    say("%zu '%.3s'", get(fd, buf, 3), buf);
    meet();
    R(submit_by(submits, ctx, IOCB_CMD_PREAD, 999, buf, 10) == -EBADF);
    R(submits(ctx, 1, NULL) == -EFAULT);
    R(submits(ctx, -1, NULL) == -EINVAL);
    R(submits(0, 1, NULL) == -EINVAL);
    R(syscall(SYS_io_destroy, ctx));
}

/* The kernel's poll alone: the connection is read by calls that are seen, and stays where it is. */
static void polled_a(void) {
    int fd = conn();
    aio_context_t ctx = 0;
    MUST(syscall(SYS_io_setup, 4L, &ctx));
    nonblocking(fd, 1);
    meet();
    int good = 0;
    for (int i = 0; i < 2000; i++) {
        ssize_t n;
        do
            submit(ctx, IOCB_CMD_POLL, fd, (void *)POLLIN, 0);
        while ((n = recv(fd, buf, 10, 0)) < 0 && errno == EAGAIN);
        good += n == 10 && send(fd, buf, 10, 0) == 10;
    }
    say("good %d", good);
    R(syscall(SYS_io_destroy, ctx));
}
static void polled_b(void) {
    int fd = conn(), good = 0;
    meet();
    for (int i = 0; i < 2000; i++) {
        put(fd, "0123456789", 10);
        good += get(fd, buf, 10) == 10;
    }
    say("good %d", good);
}

/* The other end does nothing for longer than the return to TCP is waited for, and then ends. */
static void late_a(void) {
    int fd = conn();
    read_six(fd);
    say("%zu '%.4s'", get(fd, buf, 10), buf);
}
static int late(void) {
    int fd = conn();
    put(fd, "0123456789", 10);
    meet_settled();
    usleep(2500 * 1000);
    return fd;
}
static void late_shutdown_b(void) {
    int fd = late();
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buf, 1, 0));
}
static void late_close_b(void) { R(close(late())); }
static void late_exit_b(void) { late(); }

const struct test tests[] = {{"posix", posix_a, posix_b, 0},
                             {"kernel", kernel_a, kernel_b, 0},
                             {"libaio", libaio_a, kernel_b, 0},
                             {"polled", polled_a, polled_b, 0},
                             {"late_shutdown", late_a, late_shutdown_b, SLOW},
                             {"late_close", late_a, late_close_b, SLOW},
                             {"late_exit", late_a, late_exit_b, SLOW},
                             {0}};
