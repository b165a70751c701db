//! The kernel, called raw: every system call that the library makes for itself.
//!
//! Nothing here goes through libc's socket and file functions, which are our own hooks. All other
//! modules call these wrappers; this folder and `transport` are the only ones with pointers into
//! mapped memory. Errors are errno values ([`Errno`]), never the C variable `errno`.

pub mod addresses;
pub mod cgroup;
pub mod clock;
pub mod creds;
pub mod device;
pub mod diag;
pub mod dir;
pub mod epoll_list;
pub mod fd;
pub mod few;
pub mod filter;
pub mod free_list;
pub mod held;
pub mod jump;
pub mod left;
pub mod lines;
pub mod mem;
pub mod net;
pub mod pair;
pub mod porter;
pub mod postponed;
pub mod probe;
pub mod proc;
pub mod processor;
pub mod rests;
pub mod rights;
pub mod scratch;
pub mod spare;
pub mod start;
pub mod tcp_state;
pub mod tcp_table;
pub mod thread;
mod unpolled;
mod unwinder;
pub mod unwound;
pub mod uring;
pub mod users;

pub use syscalls::Sysno;

/// An errno value (positive).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// Result of a raw system call or of an operation that ends in an errno.
pub type Res<T = usize> = Result<T, Errno>;

/// Issues a system call.
///
/// # Safety
/// The arguments must be right for the call: pointers valid for what the kernel does with them.
#[inline]
pub unsafe fn call(nr: Sysno, args: [usize; 6]) -> Res {
    // SAFETY: forwarded to the caller.
    unsafe { syscalls::syscall6(nr, args[0], args[1], args[2], args[3], args[4], args[5]) }.map_err(|e| Errno(e.into_raw()))
}

/// Sets the calling thread's `errno`.
#[inline]
pub fn set_errno(e: Errno) {
    // SAFETY: glibc's accessor returns this thread's errno.
    unsafe { *libc::__errno_location() = e.0 }
}

/// The calling thread's `errno`.
#[inline]
pub fn errno() -> Errno {
    // SAFETY: as above.
    Errno(unsafe { *libc::__errno_location() })
}

/// Runs `f`, a call of the program's, of whose parts some may fail: where it succeeds, errno is what it was, as behind a system call.
#[inline]
pub fn keeping_errno(f: impl FnOnce() -> isize) -> isize {
    // SAFETY: as above.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let r = f();
    // SAFETY: as above.
    if r >= 0 && unsafe { *errno } != before {
        // SAFETY: as above.
        unsafe { *errno = before };
    }
    r
}

/// Runs `f`; None if it panicked. Never around a call that sleeps.
#[inline]
pub fn caught<T>(f: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).ok()
}
