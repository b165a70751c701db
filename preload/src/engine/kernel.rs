//! The kernel's socket beside the ring: its doorbells and its end, and what waiters that we never see
//! find in it.
//!
//! Called by readers, by waits before they sleep and when the kernel woke them.

use super::follow::pending;
use super::{bell, end};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::sys::fd;
use crate::transport::region::Dir;
use std::sync::atomic::Ordering::*;

/// Takes doorbells off and finds FIN or RST, without taking the kernel's error. Called with the
/// receiving lock held.
pub fn look_at_kernel(s: &Sock, sock: i32, dir: &Dir) {
    bell::drain(s, dir, sock);
    if s.rx.end.load(Relaxed) >= end::RST || !s.rx_in_memory() {
        return;
    }
    let bits = fd::poll_now(sock, libc::POLLRDHUP);
    // ERR alone is the error queue (zero-copy completions).
    if bits & libc::POLLERR != 0 && bits & libc::POLLHUP != 0 {
        end::found(s, end::RST);
    } else if bits & libc::POLLRDHUP != 0 && !s.has(flag::SHUT_RD) {
        // With our own SHUT_RD the kernel shows RDHUP without a FIN.
        end::found(s, end::FIN);
    } else if bits & libc::POLLHUP != 0 {
        end::found(s, if s.has(flag::SHUT_WR) { end::FIN } else { end::RST });
    }
}

/// As [`look_at_kernel`] for a sender, which leaves doorbells to the reader.
pub fn look_at_kernel_for_sender(s: &Sock, sock: i32, _back: &Dir) {
    let bits = fd::poll_now(sock, libc::POLLRDHUP);
    // ERR alone is the error queue (zero-copy completions).
    if bits & libc::POLLERR != 0 && bits & libc::POLLHUP != 0 {
        end::found(s, end::RST);
    } else if bits & (libc::POLLRDHUP | libc::POLLHUP) != 0 && !s.has(flag::SHUT_RD) {
        end::found(s, end::FIN);
    }
}

/// From now on the kernel must show whoever waits that there is something.
pub fn expose(s: &Sock, sock: i32) {
    let marker = Marker::new();
    if let Some(dir) = s.rx.dir()
        && let Some(_held) = s.rx.lock.try_take(&marker)
    {
        settle(s, dir, sock);
    }
}

/// Keeps the invariant of the unseen waiter (`bell`): armed, and an unread doorbell in the kernel
/// exactly while there is something to read.
pub fn settle(s: &Sock, dir: &Dir, sock: i32) {
    // A doorbell on its way comes in a moment; taking it now spares its waiter a look at nothing.
    for _ in 0..2000 {
        if dir.bell.load(Acquire) != bell::RINGING {
            break;
        }
        std::hint::spin_loop();
    }
    // Doorbells sent before the word is armed may be taken off if the ring is empty after that: what
    // comes later rings again.
    let known = dir.bells.load(Acquire);
    bell::arm_each(s, dir);
    if s.rx_in_memory() && dir.head.load(Acquire) == s.rx.cursor.load(Relaxed) {
        bell::drain_to(s, dir, sock, known);
    }
}

/// The waiter may be one that we never see: the doorbell byte is armed before EAGAIN is returned.
/// True: data came meanwhile.
pub fn arm_unseen(s: &Sock, sock: i32) -> bool {
    let marker = Marker::new();
    let Some(_held) = s.rx.lock.try_take(&marker) else { return false };
    let Some(dir) = s.rx.dir() else { return false };
    if s.has(flag::BLOCKS) {
        s.clear(flag::BLOCKS);
    }
    settle(s, dir, sock);
    pending(s, dir)
}

/// From here on the reader is one that waits in blocking calls: an unread doorbell may lie in the
/// kernel all the time, and arrivals ring no more until it sleeps. A waiter that we do not see would
/// find too much rather than too little. Called with the receiving lock held.
#[cold]
pub fn reads_blocking(s: &Sock, dir: &Dir) {
    s.set(flag::BLOCKS);
    if s.rx.waiter.load(Relaxed) == bell::EACH {
        bell::arm(s, dir);
    }
}
