//! The other public names that glibc gives to functions which the library takes: each is that hook by another name.
//!
//! Libraries that were made against older headers call some of them (libnsl calls `__poll`, libio's users `_IO_fclose`). What they do
//! is what the first name does, so nothing is decided here. Names of GLIBC_PRIVATE are glibc's own, and not among them.

use super::{data_in, data_out, fds, hooks, process, readiness, sockets, stdio, vforks};
use libc::{FILE, c_char, c_int, c_void, fd_set, nfds_t, pid_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};

/// Second name, first name, and where that is.
macro_rules! second {
    ($($second:ident = $home:ident::$first:ident($($a:ident: $t:ty),*) -> $r:ty;)*) => {
        hooks! {
            $(fn $second($($a: $t),*) -> $r {
                // SAFETY: the same function.
                unsafe { $home::$first($($a),*) }
            })*
        }
    };
}

second! {
    __read = data_in::read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t;
    __write = data_out::write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t;
    __send = data_out::send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t;
    __connect = sockets::connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    __close = fds::close(fd: c_int) -> c_int;
    __dup2 = fds::dup2(old: c_int, new: c_int) -> c_int;
    __fcntl = fds::fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int;
    __poll = readiness::poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int;
    __select = readiness::select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int;
    __fork = process::fork() -> pid_t;
    __sigaction = process::sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    _IO_fdopen = stdio::fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    _IO_fclose = stdio::fclose(file: *mut FILE) -> c_int;
}

/// # Safety
/// As for the function of this name in libc.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __vfork() {
    core::arch::naked_asm!("jmp {first}", first = sym vforks::vfork)
}

/// # Safety
/// As for the function of this name in libc.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __clone() {
    core::arch::naked_asm!("jmp {first}", first = sym vforks::clone)
}
