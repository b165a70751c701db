//! Calls that give a new descriptor which is no tracked socket: open, pipe, eventfd and so on. Where
//! such a number is still in the table, its close was not seen, and the old entry goes.

use super::hooks;
use crate::real;
use crate::table::life;
use libc::{c_char, c_int, c_uint, sigset_t};

/// The number is new: whatever the table says of it is over.
#[inline]
fn fresh(fd: c_int) -> c_int {
    if fd >= 0 {
        life::forget_stale(fd);
    }
    fd
}

hooks! {
    fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        // SAFETY: the program's arguments (a missing mode is a register that nobody reads).
        fresh(unsafe { real::open(path, flags, mode) })
    }

    fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        // SAFETY: as `open`.
        fresh(unsafe { real::open64(path, flags, mode) })
    }

    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        // SAFETY: as `open`.
        fresh(unsafe { real::openat(dir, path, flags, mode) })
    }

    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        // SAFETY: as `open`.
        fresh(unsafe { real::openat64(dir, path, flags, mode) })
    }

    fn creat(path: *const c_char, mode: c_uint) -> c_int {
        // SAFETY: the program's arguments.
        fresh(unsafe { real::creat(path, mode) })
    }

    fn creat64(path: *const c_char, mode: c_uint) -> c_int {
        // SAFETY: the program's arguments.
        fresh(unsafe { real::creat64(path, mode) })
    }

    fn pipe(fds: *mut c_int) -> c_int {
        // SAFETY: the program's arguments.
        pair(fds, unsafe { real::pipe(fds) })
    }

    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int {
        // SAFETY: the program's arguments.
        pair(fds, unsafe { real::pipe2(fds, flags) })
    }

    fn socketpair(family: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int {
        // SAFETY: the program's arguments.
        pair(fds, unsafe { real::socketpair(family, kind, protocol, fds) })
    }

    fn eventfd(count: c_uint, flags: c_int) -> c_int {
        // SAFETY: the program's arguments.
        fresh(unsafe { real::eventfd(count, flags) })
    }

    fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
        // SAFETY: the program's arguments.
        fresh(unsafe { real::timerfd_create(clock, flags) })
    }

    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int {
        // SAFETY: the program's arguments.
        fresh(unsafe { real::signalfd(fd, mask, flags) })
    }

    fn inotify_init1(flags: c_int) -> c_int {
        // SAFETY: the program's arguments.
        fresh(unsafe { real::inotify_init1(flags) })
    }

    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
        // SAFETY: the program's arguments.
        fresh(unsafe { real::memfd_create(name, flags) })
    }
}

fn pair(fds: *const c_int, r: c_int) -> c_int {
    if r == 0 {
        // SAFETY: the call succeeded, so both are there.
        unsafe {
            fresh(*fds);
            fresh(*fds.add(1));
        }
    }
    r
}
