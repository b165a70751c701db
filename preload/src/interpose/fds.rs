//! close, close_range, closefrom, dup, dup2, dup3, fcntl, ioctl: the life of descriptors, and the
//! protection of the library's own ones (they look closed to the program).

use super::{cancel, guarded, hooks, stdio};
use crate::sys::probe::is_there;
use crate::sys::{Errno, fd as desc, porter, set_errno};
use crate::table::{life, options, own, passing};
use crate::{real, table};
use libc::{c_int, c_uint, c_ulong};

hooks! {
    fn close(fd: c_int) -> c_int {
        porter::await_none();
        if table::get(fd).is_some() {
            cancel::point(); // else libc's close would be one, where it is closed for us and not for the kernel
            guarded(|| life::before_close(fd));
        } else if is_hidden(fd) {
            return -1;
        }
        // SAFETY: the program's argument.
        unsafe { real::close(fd) }
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        const UNSHARE: c_int = 2;
        if flags & !UNSHARE != 0 || first > last {
            // SAFETY: the program's arguments. Ours are close-on-exec anyway.
            return unsafe { real::close_range(first, last, flags) }; // marks them, or refuses
        }
        guarded(|| {
            for (fd, _) in table::range(first, last) {
                life::before_close(fd);
            }
        });
        around_own(first, last, |a, b| {
            // SAFETY: the program's arguments, less our own descriptors.
            unsafe { real::close_range(a, b, flags) }
        })
    }

    fn closefrom(low: c_int) {
        let first = low.max(0) as c_uint;
        // SAFETY: as `close_range`.
        if unsafe { close_range(first, c_uint::MAX, 0) } != 0 {
            for fd in first..65_536 {
                // SAFETY: closing is what the program asked for.
                unsafe { close(fd as c_int) };
            }
        }
    }

    fn dup(fd: c_int) -> c_int {
        if is_hidden(fd) {
            return -1;
        }
        // SAFETY: the program's argument.
        let new = unsafe { real::dup(fd) };
        if new >= 0 {
            placed(fd, new);
        }
        new
    }

    fn dup2(old: c_int, new: c_int) -> c_int {
        if is_hidden(old) {
            return -1;
        }
        before_dup(old, new, 0);
        // SAFETY: the program's arguments.
        let r = unsafe { real::dup2(old, new) };
        if r >= 0 && old != new {
            placed(old, new);
        }
        r
    }

    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        if is_hidden(old) {
            return -1;
        }
        before_dup(old, new, flags);
        // SAFETY: the program's arguments.
        let r = unsafe { real::dup3(old, new, flags) };
        if r >= 0 {
            placed(old, new);
        }
        r
    }

    fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
        if is_hidden(fd) {
            return -1;
        }
        let keeps = before_fcntl(fd, cmd, arg);
        // SAFETY: the program's arguments.
        let r = unsafe { real::fcntl(fd, cmd, arg) };
        after_fcntl(fd, cmd, arg, r, keeps);
        r
    }

    fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int {
        if is_hidden(fd) {
            return -1;
        }
        let keeps = before_fcntl(fd, cmd, arg);
        // SAFETY: the program's arguments.
        let r = unsafe { real::fcntl64(fd, cmd, arg) };
        after_fcntl(fd, cmd, arg, r, keeps);
        r
    }

    /// libc's asks its own ioctl, past the hook.
    fn sockatmark(fd: c_int) -> c_int {
        let mut mark: c_int = 0;
        // SAFETY: the request gives an int.
        match unsafe { ioctl(fd, desc::SIOCATMARK, &raw mut mark as usize) } {
            0 => mark,
            failed => failed,
        }
    }

    fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
        let Some(s) = table::sock(fd) else {
            // SAFETY: the program's arguments.
            return unsafe { real::ioctl(fd, request, arg) };
        };
        let request = c_ulong::from(request as u32); // all that the kernel looks at
        let mut answer = None;
        guarded(|| {
            if matches!(request, libc::FIONREAD | desc::SIOCATMARK | libc::TIOCOUTQ) {
                life::first_use(s, fd); // they ask for the stream, which begins with the handshake's bytes
            }
            answer = options::ioctl(s, fd, request);
        });
        match answer {
            Some(Ok(n)) if is_there(arg as *const c_int, 1) => {
                // SAFETY: these requests give an int.
                unsafe { (arg as *mut c_int).write(n) };
                return 0;
            }
            Some(Err(e)) => {
                set_errno(e);
                return -1;
            }
            _ => {}
        }
        let keeps = request == libc::FIONCLEX && passing::would_keep(fd, 0);
        // SAFETY: the program's arguments.
        let r = unsafe { real::ioctl(fd, request, arg) };
        if r == 0 {
            guarded(|| options::after_ioctl(s, fd, request));
            if keeps {
                guarded(|| passing::on_kept(fd));
            }
        }
        r
    }
}

/// Whether a descriptor is the library's own: no such one is open (EBADF). A connection that has the number of a former one is the program's.
fn is_hidden(fd: c_int) -> bool {
    let hidden = own::is_own(fd) && table::get(fd).is_none();
    if hidden {
        set_errno(Errno(libc::EBADF));
    }
    hidden
}

fn placed(old: c_int, new: c_int) {
    guarded(|| life::on_dup(old, new));
    stdio::on_placed(new);
}

fn before_dup(old: c_int, new: c_int, flags: c_int) {
    if old == new || flags & !libc::O_CLOEXEC != 0 || !desc::is_open(old) {
        return; // it is refused
    }
    if table::get(new).is_some() {
        if own::exceeds_limit(new as u64 + 1) {
            return;
        }
        guarded(|| life::before_close(new));
    } else if own::is_own(new) {
        guarded(|| own::move_own(new));
    }
}

/// Whether it takes close-on-exec off a connection.
fn before_fcntl(fd: c_int, cmd: c_int, arg: usize) -> bool {
    cmd == libc::F_SETFD && passing::would_keep(fd, arg)
}

fn after_fcntl(fd: c_int, cmd: c_int, arg: usize, r: c_int, keeps: bool) {
    if r < 0 {
        return;
    }
    match cmd {
        libc::F_SETFD if keeps => guarded(|| passing::on_kept(fd)),
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => placed(fd, r),
        libc::F_SETFL => {
            if let Some(s) = table::sock(fd) {
                guarded(|| options::status_flags(s, fd, arg as c_int));
            }
        }
        _ => {}
    }
}

/// Calls `f` for the parts of the range that leave our own descriptors out.
fn around_own(first: c_uint, last: c_uint, f: impl Fn(c_uint, c_uint) -> c_int) -> c_int {
    let mut from = first;
    let mut result = 0;
    let mut own = [0 as c_int; 64];
    loop {
        let mut n = 0;
        guarded(|| n = own::own_descriptors(from, last, &mut own));
        for fd in own[..n].iter().map(|fd| *fd as c_uint) {
            if fd > from {
                result = f(from, fd - 1).min(result);
            }
            from = fd + 1;
        }
        if n < own.len() {
            break;
        }
    }
    if from <= last {
        result = f(from, last).min(result);
    }
    result
}
