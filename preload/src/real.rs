//! The functions behind our hooks: the next definition of each symbol (RTLD_NEXT), looked up once.
//!
//! The constructor fills the table; before it each entry is a function that fills the table and goes on.
//! So a call is one load and a jump. Calling through the next definition keeps other preloaded libraries,
//! cancellation points and sanitizers in the chain. Where glibc has no such symbol the caller gets ENOSYS.

#![allow(clippy::unused_unit, reason = "the table gives each function a result")]

use libc::{
    FILE, aiocb, c_char, c_int, c_long, c_short, c_uint, c_ulong, c_void, epoll_event, fd_set, gid_t, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t,
    pollfd, sigevent, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, uid_t,
};
use std::sync::atomic::{AtomicPtr, Ordering::*};

macro_rules! table {
    ($($name:ident($($a:ident: $t:ty),*) -> $r:ty = $missing:expr;)*) => {
        #[allow(non_upper_case_globals)]
        pub(crate) mod slot {
            use super::*;
            $(pub static $name: AtomicPtr<c_void> =
                AtomicPtr::new(super::early::$name as *const () as *mut c_void);)*
        }

        /// What the slots hold until the symbols are looked up, and where there is no such symbol.
        mod early {
            use super::*;
            $(
                #[cold]
                #[allow(non_snake_case)]
                pub unsafe extern "C-unwind" fn $name($($a: $t),*) -> $r {
                    let own = $name as *const () as *mut c_void;
                    if !is_found(&slot::$name, own, concat!(stringify!($name), "\0")) {
                        crate::sys::set_errno(crate::sys::Errno(libc::ENOSYS));
                        return $missing;
                    }
                    // SAFETY: the caller's arguments.
                    unsafe { super::$name($($a),*) }
                }
            )*
        }

        /// Looks all symbols up.
        pub fn resolve() {
            $(
                let name = concat!(stringify!($name), "\0");
                if const { !is_late(stringify!($name)) } {
                    look_up(&slot::$name, name);
                }
            )*
        }

        /// Those that this glibc lacks.
        #[cfg(test)]
        fn missing() -> Vec<&'static str> {
            resolve();
            let all = [$((stringify!($name), slot::$name.load(Relaxed) == early::$name as *const () as *mut c_void)),*];
            all.into_iter().filter(|(_, is_early)| *is_early).map(|(name, _)| name).collect()
        }

        $(
            /// The next definition of the function of this name.
            ///
            /// # Safety
            /// As for the function itself.
            #[inline]
            #[allow(non_snake_case)]
            pub unsafe fn $name($($a: $t),*) -> $r {
                let p = slot::$name.load(Relaxed);
                // SAFETY: the symbol has this C type.
                let f = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($t),*) -> $r>(p)
                };
                // SAFETY: by the contract.
                unsafe { f($($a),*) }
            }
        )*
    };
}

/// Symbols that a glibc which the library runs with may not have (2.35, 2.39). Where dlsym finds nothing it calls malloc, and the call that
/// made all be looked up may be that of an allocator which just begins (jemalloc). So these are looked up when they are called.
const LATE: [&str; 3] = ["epoll_pwait2", "pidfd_spawn", "pidfd_spawnp"];

const fn is_late(name: &str) -> bool {
    const fn is_same(a: &[u8], b: &[u8], at: usize) -> bool {
        a.len() == b.len() && (at == a.len() || a[at] == b[at] && is_same(a, b, at + 1))
    }
    let mut i = 0;
    while i < LATE.len() && !is_same(LATE[i].as_bytes(), name.as_bytes(), 0) {
        i += 1;
    }
    i < LATE.len()
}

fn is_found(slot: &AtomicPtr<c_void>, early: *mut c_void, name: &'static str) -> bool {
    resolve();
    if slot.load(Relaxed) == early {
        look_up(slot, name);
    }
    slot.load(Relaxed) != early
}

/// `name` ends with NUL.
fn look_up(slot: &AtomicPtr<c_void>, name: &'static str) {
    // SAFETY: a NUL-terminated name.
    let p = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
    if !p.is_null() {
        slot.store(p, Relaxed);
    }
}

table! {
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int = -1;
    socket(family: c_int, kind: c_int, protocol: c_int) -> c_int = -1;
    bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = -1;
    listen(fd: c_int, backlog: c_int) -> c_int = -1;
    accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = -1;
    accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int = -1;
    connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = -1;
    shutdown(fd: c_int, how: c_int) -> c_int = -1;
    getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = -1;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int = -1;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int = -1;
    read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t = -1;
    readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t = -1;
    recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t = -1;
    recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> ssize_t = -1;
    recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t = -1;
    recvmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int = -1;
    __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t = -1;
    __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t = -1;
    __recvfrom_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> ssize_t = -1;
    write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t = -1;
    writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t = -1;
    send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t = -1;
    sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, addr: *const sockaddr, len: socklen_t) -> ssize_t = -1;
    sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t = -1;
    sendmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int = -1;
    sendfile(out: c_int, file: c_int, off: *mut off_t, n: size_t) -> ssize_t = -1;
    sendfile64(out: c_int, file: c_int, off: *mut off_t, n: size_t) -> ssize_t = -1;
    splice(from: c_int, off_in: *mut i64, to: c_int, off_out: *mut i64, n: size_t, flags: c_uint) -> ssize_t = -1;
    aio_read(one: *mut aiocb) -> c_int = -1;
    aio_write(one: *mut aiocb) -> c_int = -1;
    lio_listio(mode: c_int, list: *const *mut aiocb, n: c_int, sig: *mut sigevent) -> c_int = -1;
    preadv2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t = -1;
    preadv64v2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t = -1;
    pwritev2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t = -1;
    pwritev64v2(fd: c_int, iov: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t = -1;
    open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int = -1;
    open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int = -1;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int = -1;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int = -1;
    creat(path: *const c_char, mode: c_uint) -> c_int = -1;
    creat64(path: *const c_char, mode: c_uint) -> c_int = -1;
    pipe(fds: *mut c_int) -> c_int = -1;
    pipe2(fds: *mut c_int, flags: c_int) -> c_int = -1;
    socketpair(family: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int = -1;
    eventfd(count: c_uint, flags: c_int) -> c_int = -1;
    timerfd_create(clock: c_int, flags: c_int) -> c_int = -1;
    signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int = -1;
    inotify_init1(flags: c_int) -> c_int = -1;
    memfd_create(name: *const c_char, flags: c_uint) -> c_int = -1;
    close(fd: c_int) -> c_int = -1;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = -1;
    closefrom(low: c_int) -> () = ();
    dup(fd: c_int) -> c_int = -1;
    dup2(old: c_int, new: c_int) -> c_int = -1;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int = -1;
    fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int = -1;
    fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int = -1;
    ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int = -1;
    poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int = -1;
    __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, room: size_t) -> c_int = -1;
    ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    __ppoll_chk(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int = -1;
    select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int = -1;
    pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    epoll_create(size: c_int) -> c_int = -1;
    epoll_create1(flags: c_int) -> c_int = -1;
    epoll_ctl(ep: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int = -1;
    epoll_wait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int = -1;
    epoll_pwait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int = -1;
    epoll_pwait2(ep: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = std::ptr::null_mut();
    fclose(file: *mut FILE) -> c_int = -1;
    freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE = std::ptr::null_mut();
    freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE = std::ptr::null_mut();
    dprintf(fd: c_int, format: *const c_char) -> c_int = -1;
    __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char) -> c_int = -1;
    vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int = -1;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, args: *mut c_void) -> c_int = -1;
    setuid(user: uid_t) -> c_int = -1;
    seteuid(user: uid_t) -> c_int = -1;
    setreuid(real: uid_t, effective: uid_t) -> c_int = -1;
    setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int = -1;
    setgid(group: gid_t) -> c_int = -1;
    setegid(group: gid_t) -> c_int = -1;
    setregid(real: gid_t, effective: gid_t) -> c_int = -1;
    setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int = -1;
    setgroups(n: size_t, groups: *const gid_t) -> c_int = -1;
    initgroups(user: *const c_char, group: gid_t) -> c_int = -1;
    capset(head: *mut c_void, data: *const c_void) -> c_int = -1;
    unshare(flags: c_int) -> c_int = -1;
    fork() -> pid_t = -1;
    vfork() -> pid_t = -1;
    daemon(stays: c_int, keeps: c_int) -> c_int = -1;
    forkpty(terminal: *mut c_int, name: *mut c_char, settings: *const c_void, size: *const c_void) -> pid_t = -1;
    _Fork() -> pid_t = -1;
    _exit(status: c_int) -> () = ();
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int = -1;
    execv(path: *const c_char, argv: *const *const c_char) -> c_int = -1;
    execvp(path: *const c_char, argv: *const *const c_char) -> c_int = -1;
    execvpe(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int = -1;
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int = -1;
    execveat(dir: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int = -1;
    clone(run: *const c_void, stack: *mut c_void, flags: c_int, arg: *mut c_void, parent: *mut pid_t, tls: *mut c_void, child: *mut pid_t) -> c_int = -1;
    posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *const c_char, envp: *const *const c_char) -> c_int = libc::ENOSYS;
    posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *const c_char, envp: *const *const c_char) -> c_int = libc::ENOSYS;
    pidfd_spawn(pidfd: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *const c_char, envp: *const *const c_char) -> c_int = libc::ENOSYS;
    pidfd_spawnp(pidfd: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *const c_char, envp: *const *const c_char) -> c_int = libc::ENOSYS;
    posix_spawn_file_actions_init(actions: *mut c_void) -> c_int = libc::ENOSYS;
    posix_spawn_file_actions_destroy(actions: *mut c_void) -> c_int = libc::ENOSYS;
    posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int = libc::ENOSYS;
    sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int = -1;
    signal(signal: c_int, handler: usize) -> usize = libc::SIG_ERR;
    bsd_signal(signal: c_int, handler: usize) -> usize = libc::SIG_ERR;
    ssignal(signal: c_int, handler: usize) -> usize = libc::SIG_ERR;
    sysv_signal(signal: c_int, handler: usize) -> usize = libc::SIG_ERR;
    __sysv_signal(signal: c_int, handler: usize) -> usize = libc::SIG_ERR;
    sigset(signal: c_int, handler: usize) -> usize = libc::SIG_ERR;
    siginterrupt(signal: c_int, flag: c_int) -> c_int = -1;
    longjmp(buffer: *mut c_void, value: c_int) -> () = ();
    _longjmp(buffer: *mut c_void, value: c_int) -> () = ();
    siglongjmp(buffer: *mut c_void, value: c_int) -> () = ();
    __longjmp_chk(buffer: *mut c_void, value: c_int) -> () = ();
    setcontext(context: *const libc::ucontext_t) -> c_int = -1;
    pthread_cancel(thread: libc::pthread_t) -> c_int = libc::ENOSYS;
    pthread_testcancel() -> () = ();
    pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int = libc::ENOSYS;
    pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int = libc::ENOSYS;
    syscall(nr: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long = -1;
}

/// Silences the unused import where a type is needed on some targets only.
const _: Option<c_short> = None;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_up_at_the_start_is_there() {
        let rest: Vec<_> = missing().into_iter().filter(|name| !LATE.contains(name)).collect();
        assert!(rest.is_empty(), "dlsym calls malloc for {rest:?}");
    }
}
