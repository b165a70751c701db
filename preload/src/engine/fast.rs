//! The usual send and receive: one buffer, both ends in memory, nothing else to look at.
//!
//! Called by the socket table before the general code in [`super::tx`] and [`super::rx`], which knows
//! every case; here each case but the usual one ends with None and nothing done. What is done is what
//! the general code would do, in the same order of stores. Nothing here can panic, so there is no guard.

use super::{rx, tx, wait};
use crate::config;
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::transport::region::{self, ctl, fin};
use crate::transport::ring::Ring;
use smcr_proto::cursor;
use std::sync::atomic::Ordering::*;

/// Flags that change nothing while the call needs no wait.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
const RECV_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | rx::FROM_READ;

/// Sends `n` bytes if they fit into the ring now.
///
/// # Safety
/// `p` must be valid for reads of `n` bytes, as the program promised the kernel.
#[inline(never)]
pub unsafe fn send(s: &Sock, sock: i32, p: *const u8, n: usize, flags: i32) -> Option<usize> {
    if flags & !SEND_FLAGS != 0 || !s.tx_in_memory() || config::flips() {
        return None;
    }
    let marker = Marker::new();
    let _held = s.tx.lock.try_take(&marker)?;
    let (dir, back) = (s.tx.dir()?, s.rx.dir()?);
    let unusual = back.fin.load(Relaxed) & (fin::WRITE | fin::CLOSED)
        | dir.ctl.load(Relaxed) & (ctl::RETURN | ctl::PINNED)
        | s.flags.load(Relaxed) & flag::SHUT_WR
        | s.rx.end.load(Relaxed)
        | s.buffer_limit.load(Relaxed);
    if unusual != 0 || !s.tx_in_memory() || wait::is_look_due(s) {
        return None;
    }
    let mut size = s.tx.size.load(Relaxed) as usize;
    let head = s.tx.cursor.load(Relaxed);
    let mut free = size.saturating_sub(head.wrapping_sub(s.tx.seen.load(Relaxed)) as usize);
    // The subtraction keeps 0 and all that is too large for one publish out.
    if n.wrapping_sub(1) >= size / 4 {
        return None;
    }
    if free < n || head.wrapping_add(n as u64) > s.tx.mark.load(Relaxed) {
        (free, size) = tx::look_at_tail(s, dir, head, size)?;
        if free < n {
            return None;
        }
    }
    // SAFETY: the ring of this direction in a live region (the lock is held: `end` can't unmap).
    let ring = unsafe { Ring::new(s.tx.ring.load(Relaxed), size, s.tx.base.load(Relaxed)) };
    // SAFETY: by the contract; `n` is at most the size.
    unsafe { ring.put(head, p, n) };
    tx::publish(s, sock, dir, head + n as u64);
    s.count_size(0, n);
    Some(n)
}

/// Receives up to `n` bytes from the ring if it has any.
///
/// # Safety
/// `p` must be valid for writes of `n` bytes, as the program promised the kernel.
#[inline(never)]
pub unsafe fn recv(s: &Sock, p: *mut u8, n: usize, flags: i32) -> Option<usize> {
    if flags & !RECV_FLAGS != 0 || !s.rx_in_memory() || !s.tx_in_memory() {
        return None;
    }
    let marker = Marker::new();
    let _held = s.rx.lock.try_take(&marker)?;
    let dir = s.rx.dir()?;
    let unusual = dir.switch.load(Acquire) ^ s.rx.switches.load(Relaxed)
        | s.flags.load(Relaxed) & (flag::FROZEN | flag::PEEK_OFF | flag::URGENT)
        | s.low_water.load(Relaxed) >> 1;
    if unusual != 0 || !s.rx_in_memory() {
        return None;
    }
    // A waiter that we do not see may have to find a doorbell after this read, or none.
    if s.is_public()
        || s.flags.load(Relaxed) & (flag::SEEN | flag::BLOCKS) == 0
            && dir.bells.load(Relaxed) != s.bells_rx.load(Relaxed)
    {
        return None;
    }
    let tail = s.rx.cursor.load(Relaxed);
    // Pairs with the Release publish in `tx`: the bytes below head are there.
    let head = dir.head.load(Acquire);
    let size = region::size_of_ring(dir.size.load(Relaxed))?;
    let take = cursor::readable(head, tail, size)?.min(n);
    if take.wrapping_sub(1) >= size / 4 {
        return None; // nothing there, or so much that the space is given back in parts
    }
    s.rx.seen.store(head, Relaxed);
    // SAFETY: the ring of this direction in a live region (the lock is held: `end` can't unmap);
    // the claimed base only moves the masked offset.
    let ring = unsafe { Ring::new(s.rx.ring.load(Relaxed), size, dir.base.load(Relaxed)) };
    // SAFETY: by the contract; `take` is at most the size.
    unsafe { ring.get(tail, p, take) };
    rx::give_back(s, dir, size, tail + take as u64);
    s.count_size(1, take);
    Some(take)
}
