//! Several threads that read one connection while it is on TCP, or that write to it.
//!
//! Nothing moves to memory before every reader has come out of the kernel. So only one of them sleeps in
//! there, the others wait outside (the socket table asks), and what comes is left to it (`rx`). It is the same with
//! writers that wait for room.

use super::{shadow, wait};
use crate::family::sock::{Sock, flag, step};
use crate::sys::{Res, fd};
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

/// How long a send waits for room outside at most, in ns: poll calls a socket writable later than send takes bytes.
const OUTSIDE_NS: u64 = 20_000_000;

/// Before a send inside the kernel: where another thread is in there, and both ends may go on in memory, this one
/// waits for room outside. A time limit is the kernel's to keep, so such a call goes in at once. Errors as send(2)'s.
#[inline]
pub fn wait_for_room(s: &Sock, sock: i32, flags: i32) -> Res<()> {
    if s.tx.in_kernel.load(Relaxed) == 0 || !s.has(flag::CAREFUL) || flags & libc::MSG_DONTWAIT != 0 {
        return Ok(());
    }
    wait_outside(s, sock)
}

#[cold]
fn wait_outside(s: &Sock, sock: i32) -> Res<()> {
    shadow::learn(s, sock);
    if s.has(flag::NONBLOCK | flag::SHUT_WR) || s.send_timeout.load(Relaxed) != 0 || !may_come(s) {
        return Ok(());
    }
    wait::a_while_for_kernel_room(s, sock, OUTSIDE_NS)
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
    if s.has(flag::CAREFUL) && s.rx.hold.load(Relaxed) < COURTESY && s.rx.in_kernel.load(Relaxed) != 0 && fd::unread(sock).is_ok_and(|n| n > 0) {
        s.rx.hold.fetch_add(1, Relaxed);
        let _ = fd::poll(&mut [], 1);
    }
}
