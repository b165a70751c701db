/* Owns: the files as a program of Debian's redis-server.service sees them, in a mount namespace: for
 * reading only (ProtectSystem=strict) but for /var/lib/redis, nothing executable but its program and
 * what is below /usr/lib and /lib (NoExecPaths, ExecPaths), own /tmp and /dev (PrivateTmp,
 * PrivateDevices), no homes (ProtectHome), of /proc only what is its own (ProtectProc=invisible), and
 * nothing of it to write to (ProtectKernelTunables, ProtectKernelLogs). Part of confine.c. */
#define _GNU_SOURCE
#include "confine.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DATA "/var/lib/redis"
/* Where things are made, before all of it is the program's own empty /tmp. */
#define SCRATCH "/tmp"

static void must(int result, const char *what) {
    if (result < 0)
        fail(what);
}
static int exists(const char *path) { return access(path, F_OK) == 0; }
static void bind(const char *from, const char *to) { must(mount(from, to, NULL, MS_BIND | MS_REC, NULL), to); }
static void tmpfs(const char *at, const char *options) {
    must(mount("tmpfs", at, "tmpfs", MS_NOSUID, options), at);
}
static void change(const char *path, unsigned flags, unsigned set, unsigned clear) {
    struct mount_attr attr = {.attr_set = set, .attr_clr = clear};
    must(mount_setattr(AT_FDCWD, path, flags, &attr, sizeof attr), path);
}

/* Opened before what hides them is mounted. */
static int hold(const char *path) {
    int fd = path ? open(path, O_PATH | O_CLOEXEC) : -1;
    if (path && fd < 0)
        fail(path);
    return fd;
}
static void bind_held(int fd, const char *to) {
    char from[40];
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    bind(from, to);
}

static void copy(int held, const char *to) {
    char from[40], block[1 << 16];
    snprintf(from, sizeof from, "/proc/self/fd/%d", held);
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    must(in, from);
    must(out, to);
    for (ssize_t n; (n = read(in, block, sizeof block)) != 0;)
        if (n < 0 || write(out, block, n) != n)
            fail(to);
    close(in);
    close(out);
}

/* A layer over the directory, so that nothing is changed but this view. */
static void install(int library, const char *as) {
    char dir[PATH_MAX], file[PATH_MAX], layer[3 * PATH_MAX];
    snprintf(dir, sizeof dir, "%s", as);
    *strrchr(dir, '/') = 0;
    must(mkdir(SCRATCH "/upper", 0755), "upper");
    must(mkdir(SCRATCH "/work", 0755), "work");
    snprintf(file, sizeof file, SCRATCH "/upper%s", strrchr(as, '/'));
    copy(library, file);
    snprintf(layer, sizeof layer, "lowerdir=%s,upperdir=" SCRATCH "/upper,workdir=" SCRATCH "/work", dir);
    must(mount("overlay", dir, "overlay", 0, layer), "overlay");
}

static void own_devices(void) {
    static const struct {
        const char *path;
        int minor;
    } made[] = {{"null", 3}, {"zero", 5}, {"full", 7}, {"random", 8}, {"urandom", 9}};
    char path[40];
    must(mkdir(SCRATCH "/dev", 0755), "dev");
    tmpfs(SCRATCH "/dev", "mode=755");
    for (unsigned i = 0; i < sizeof made / sizeof *made; i++) {
        snprintf(path, sizeof path, SCRATCH "/dev/%s", made[i].path);
        must(mknod(path, S_IFCHR | 0666, makedev(1, made[i].minor)), path);
        must(chmod(path, 0666), path);
    }
    must(symlink("/proc/self/fd", SCRATCH "/dev/fd"), "fd");
    must(mkdir(SCRATCH "/dev/shm", 01777), "shm");
    if (exists("/dev/shm"))
        bind("/dev/shm", SCRATCH "/dev/shm");
    must(mount(SCRATCH "/dev", "/dev", NULL, MS_MOVE, NULL), "/dev");
}

/* Nobody looks into these. */
static void hide(void) {
    static const char *const dirs[] = {"/home", "/root", "/run/user", "/usr/lib/modules"};
    static const char *const files[] = {"/proc/kallsyms", "/proc/kcore", "/proc/kmsg"};
    for (unsigned i = 0; i < sizeof dirs / sizeof *dirs; i++)
        if (exists(dirs[i]))
            tmpfs(dirs[i], "mode=000");
    must(mknod(SCRATCH "/nothing", S_IFREG, 0), "nothing");
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++)
        if (exists(files[i]))
            bind(SCRATCH "/nothing", files[i]);
}

void own_view(const struct view *v) {
    static const char *const fixed[] = {"/proc/acpi", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/mtrr",
                                        "/proc/sys", "/proc/sysrq-trigger"};
    char program[PATH_MAX];
    if (!realpath(v->program, program))
        fail(v->program);
    must(unshare(CLONE_NEWNS | CLONE_NEWUTS), "unshare");
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private");
    int data = hold(v->data), library = hold(v->library);
    tmpfs(SCRATCH, "mode=755");
    if (library >= 0)
        install(library, v->as);
    own_devices();
    must(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV, "hidepid=2"), "/proc");
    for (unsigned i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (exists(fixed[i]))
            bind(fixed[i], fixed[i]);
    hide();
    must(umount2(SCRATCH, MNT_DETACH), SCRATCH);
    tmpfs("/tmp", "mode=1777");
    tmpfs("/var/tmp", "mode=1777");
    if (data >= 0)
        bind_held(data, DATA);
    /* mounts of their own, to be other than what is around them */
    bind("/usr/lib", "/usr/lib");
    bind(program, program);
    if (v->executable)
        bind(v->executable, v->executable);

    change("/", AT_RECURSIVE, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOEXEC, 0);
    static const char *const writable[] = {"/proc", "/dev", "/dev/shm", "/tmp", "/var/tmp"};
    for (unsigned i = 0; i < sizeof writable / sizeof *writable; i++)
        change(writable[i], 0, 0, MOUNT_ATTR_RDONLY);
    if (data >= 0)
        change(DATA, 0, 0, MOUNT_ATTR_RDONLY);
    change("/usr/lib", AT_RECURSIVE, 0, MOUNT_ATTR_NOEXEC);
    change(program, 0, 0, MOUNT_ATTR_NOEXEC);
    if (v->executable)
        change(v->executable, AT_RECURSIVE, 0, MOUNT_ATTR_NOEXEC);
    must(chdir(data >= 0 ? DATA : "/"), "chdir");
}
