//! Several threads that read one connection while it is on TCP.
//!
//! Nothing moves to memory before every reader has come out of the kernel. So only one of them sleeps in
//! there, the others wait outside (the socket table asks), and what comes is left to it (`rx`).

use super::shadow;
use crate::family::sock::{Sock, flag, step};
use crate::sys::fd;
use std::sync::atomic::Ordering::*;

/// Another thread sleeps in a read inside the kernel, and this read may sleep as well. Only one of them
/// does so in there: nothing moves to memory before all have come out, and of many some are always inside.
#[inline]
pub fn waits_outside(s: &Sock, fd: i32, iov: &[libc::iovec], flags: i32) -> bool {
    s.rx.in_kernel.load(Relaxed) != 0 && can_wait_outside(s, fd, iov, flags)
}

#[cold]
fn can_wait_outside(s: &Sock, fd: i32, iov: &[libc::iovec], flags: i32) -> bool {
    const OTHERWISE: i32 = libc::MSG_DONTWAIT | libc::MSG_OOB | libc::MSG_ERRQUEUE;
    if flags & OTHERWISE != 0 || !may_come(s) || iov.iter().all(|v| v.iov_len == 0) {
        return false;
    }
    shadow::learn(s, fd);
    !s.has(flag::NONBLOCK)
}

/// Whether nothing keeps the connection on TCP for good.
fn may_come(s: &Sock) -> bool {
    !s.has(flag::PINNED) && s.step.load(Relaxed) != step::FAILED && s.next_ops.load(Relaxed) != u32::MAX
}

/// Times that careful readers leave what has come to another one, for each socket.
const COURTESY: u32 = 100;

/// Another thread sleeps in a read inside the kernel since before reads were careful, and while it does
/// nothing moves to memory. What has come woke it too: it may have that, so that it comes out.
#[cold]
pub fn give_way(s: &Sock, sock: i32) {
    if s.has(flag::CAREFUL)
        && s.rx.hold.load(Relaxed) < COURTESY
        && s.rx.in_kernel.load(Relaxed) != 0
        && fd::unread(sock).is_ok_and(|n| n > 0)
    {
        s.rx.hold.fetch_add(1, Relaxed);
        let _ = fd::poll(&mut [], 1);
    }
}
