//! fdopen, dprintf, fclose, freopen: stdio reads, writes and closes inside libc, past the hooks, so a
//! socket that becomes a FILE stays on TCP.

use super::{guarded, hooks};
use crate::table::{self, life};
use crate::{real};
use libc::{FILE, c_char, c_int, c_void};
use smcr_proto::reason::Reason;

hooks! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        to_tcp(fd);
        // SAFETY: the program's arguments.
        unsafe { real::fdopen(fd, mode) }
    }

    fn fclose(file: *mut FILE) -> c_int {
        forget(file);
        // SAFETY: the program's argument.
        unsafe { real::fclose(file) }
    }

    fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        forget(file);
        // SAFETY: the program's arguments.
        unsafe { real::freopen(path, mode, file) }
    }

    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        forget(file);
        // SAFETY: the program's arguments.
        unsafe { real::freopen64(path, mode, file) }
    }

    fn vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int {
        to_tcp(fd);
        // SAFETY: the program's arguments.
        unsafe { real::vdprintf(fd, format, args) }
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, args: *mut c_void) -> c_int {
        to_tcp(fd);
        // SAFETY: the program's arguments.
        unsafe { real::__vdprintf_chk(fd, flag, format, args) }
    }
}

fn to_tcp(fd: c_int) {
    if let Some(s) = table::sock(fd) {
        guarded(|| {
            life::hand_over(s, fd, Reason::Stdio);
        });
    }
}

fn forget(file: *mut FILE) {
    if file.is_null() {
        return;
    }
    // SAFETY: the program's FILE; the function only reads its number.
    let fd = unsafe { libc::fileno(file) };
    if fd >= 0 && table::get(fd).is_some() {
        guarded(|| life::before_close(fd));
    }
}
