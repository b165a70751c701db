//! Receiving on a tracked socket: from memory or through the kernel, as the direction stands.
//!
//! Called by the hooks as `sending`, with the same results.

use super::sending::{NO_BUFFER, after_kernel, cut, to_c};
use crate::engine::bufs::{self, Bufs, Control};
use crate::engine::{beside, end, fast, from_tcp, rx, urgent};
use crate::family::sock::{Sock, flag};
use crate::rendezvous;
use crate::sys::Errno;
use crate::table::{self, late, life};
use std::sync::atomic::Ordering::Relaxed;

/// recv(2) and its relatives.
///
/// # Safety
/// The entries of `iov` must be valid for writes, as the program promised the kernel.
pub unsafe fn recv(fd: i32, s: &'static Sock, iov: &[libc::iovec], flags: i32, control: Option<&Control>, real: impl Fn() -> isize) -> isize {
    // SAFETY: by the contract.
    if let Some(n) = unsafe { fast::recv_all(s, iov, flags) } {
        return n as isize;
    }
    // SAFETY: by the contract.
    unsafe { recv_slowly(fd, s, cut(iov, &mut [NO_BUFFER]), flags, control, real) }
}

/// As [`recv`] for a call that is not the usual one.
///
/// # Safety
/// As for [`recv`].
pub unsafe fn recv_slowly(fd: i32, s: &'static Sock, iov: &[libc::iovec], flags: i32, control: Option<&Control>, real: impl Fn() -> isize) -> isize {
    if bufs::reach_beyond(iov) {
        return to_c(Err(Errno(libc::EFAULT)));
    }
    loop {
        if s.has(flag::CAREFUL) {
            if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == libc::MSG_OOB && s.is_linked() {
                return take_urgent(s, iov, flags);
            }
            if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
                return real();
            }
            // SAFETY: by the contract.
            return unsafe { recv_carefully(fd, s, iov, flags, control, real) };
        }
        if s.has(flag::UNASKED) {
            life::first_use(s, fd);
            if s.has(flag::CAREFUL) {
                continue;
            }
        }
        if beside::waits_outside(s, fd, iov, flags) {
            // SAFETY: by the contract.
            return unsafe { recv_carefully(fd, s, iov, flags, control, real) };
        }
        let connection = s.connection();
        if let Some(n) = from_tcp::through_kernel(s, flags & libc::MSG_PEEK != 0, &real) {
            // Another thread may have closed or disconnected it meanwhile: the call went on in the kernel, the record is another's.
            if s.connection() != connection {
                return n;
            }
            after_kernel(fd, s, n);
            if from_tcp::is_end_in_doubt(s, n, iov.iter().map(|v| v.iov_len).sum()) && !late::has_lost(s, fd) {
                continue;
            }
            return n;
        }
    }
}

/// As [`recv`], never asleep in a call that consumes.
///
/// # Safety
/// As there.
unsafe fn recv_carefully(fd: i32, s: &'static Sock, iov: &[libc::iovec], flags: i32, control: Option<&Control>, real: impl Fn() -> isize) -> isize {
    let record = s.generation.load(Relaxed);
    // SAFETY: by the contract.
    let r = rx::receive(s, fd, unsafe { Bufs::new(iov) }.with(control), flags);
    if s.generation.load(Relaxed) != record {
        return to_c(r); // it is another connection's
    }
    if late::has_lost(s, fd) {
        late::leave(s);
        return to_c(r); // the number may be another connection's
    }
    if r.is_err_and(end::is_of_another_file) {
        // The descriptor is another file now, or none, and its close was not seen; now it is.
        if table::sock(fd).is_some_and(|now| std::ptr::eq(now, s)) {
            life::forget_stale(fd);
        }
        return real();
    }
    if !(s.tx_in_memory() && s.rx_in_memory()) {
        rendezvous::after_op(s, fd);
    }
    to_c(r)
}

/// recv(MSG_OOB) over a link.
#[cold]
fn take_urgent(s: &Sock, iov: &[libc::iovec], flags: i32) -> isize {
    let room = iov.iter().find(|v| v.iov_len > 0);
    match (urgent::take(s, flags & libc::MSG_PEEK != 0), room) {
        (Ok(byte), Some(v)) => {
            // SAFETY: the program's buffer, valid for writes as it promised the kernel.
            unsafe { v.iov_base.cast::<u8>().write(byte) };
            1
        }
        (Ok(_), None) => 0,
        (Err(e), _) => to_c(Err(e)),
    }
}
