//! The usual send and receive: both ends in memory, nothing else to look at, room or data there now.
//!
//! Called by the hooks and the socket table before the general code in [`super::tx`] and [`super::rx`],
//! which knows every case; here each case but the usual one ends with None and nothing done. What is done
//! is what the general code would do, in the same order of stores. Nothing here can panic, so there is no
//! guard. Inlined into the hooks: a call is one function, whose instructions docs/performance.md counts.

use super::bufs::is_nowhere;
use super::{kernel, rx, tx};
use crate::config;
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::transport::region::{ctl, fin};
use crate::transport::ring::Ring;
use smcr_proto::cursor;
use std::sync::atomic::Ordering::*;

/// Flags that change nothing while the call needs no wait.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
const RECV_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | rx::FROM_READ;
/// Most buffers of a call that goes this way.
const BUFFERS: usize = 8;

/// Sends `n` bytes if they fit into the ring now.
///
/// # Safety
/// `p` must be valid for reads of `n` bytes, as the program promised the kernel.
#[inline(always)]
pub unsafe fn send(s: &Sock, sock: i32, p: *const u8, n: usize, flags: i32) -> Option<usize> {
    if is_nowhere(p) {
        return None;
    }
    // SAFETY: by the contract; `n` is at most the size.
    put(s, sock, n, flags, |ring, at| unsafe { ring.put(at, p, n) })
}

/// As [`send`] for several buffers.
///
/// # Safety
/// The entries must be valid for reads, as the program promised the kernel.
#[inline(never)]
pub unsafe fn send_all(s: &Sock, sock: i32, iov: &[libc::iovec], flags: i32) -> Option<usize> {
    let n = total(iov)?;
    put(s, sock, n, flags, |ring, at| {
        let mut at = at;
        for v in iov {
            // SAFETY: by the contract; all of them together are at most the size.
            unsafe { ring.put(at, v.iov_base.cast(), v.iov_len) };
            at += v.iov_len as u64;
        }
    })
}

/// Receives up to `n` bytes from the ring if it has any.
///
/// # Safety
/// `p` must be valid for writes of `n` bytes, as the program promised the kernel.
#[inline(always)]
pub unsafe fn recv(s: &Sock, p: *mut u8, n: usize, flags: i32) -> Option<usize> {
    if is_nowhere(p) {
        return None;
    }
    // SAFETY: by the contract; `take` is at most `n` and the size.
    get(s, n, flags, |ring, at, take| unsafe { ring.get(at, p, take) })
}

/// As [`recv`], for those that have just waited.
///
/// # Safety
/// As for [`recv`].
#[inline(never)]
pub unsafe fn recv_again(s: &Sock, p: *mut u8, n: usize, flags: i32) -> Option<usize> {
    // SAFETY: by the contract.
    unsafe { recv(s, p, n, flags) }
}

/// As [`recv`] for several buffers.
///
/// # Safety
/// The entries must be valid for writes, as the program promised the kernel.
#[inline(never)]
pub unsafe fn recv_all(s: &Sock, iov: &[libc::iovec], flags: i32) -> Option<usize> {
    let n = total(iov)?;
    get(s, n, flags, |ring, at, take| {
        let (mut at, mut left) = (at, take);
        for v in iov {
            let part = left.min(v.iov_len);
            // SAFETY: by the contract; all parts together are `take`, at most the size.
            unsafe { ring.get(at, v.iov_base.cast(), part) };
            at += part as u64;
            left -= part;
        }
    })
}

#[inline]
fn total(iov: &[libc::iovec]) -> Option<usize> {
    if iov.len() > BUFFERS {
        return None;
    }
    iov.iter().try_fold(0usize, |n, v| {
        let is_sound = !is_nowhere(v.iov_base.cast());
        is_sound.then(|| n.checked_add(v.iov_len)).flatten()
    })
}

#[inline(always)]
fn put(s: &Sock, sock: i32, n: usize, flags: i32, copy: impl FnOnce(&Ring, u64)) -> Option<usize> {
    if flags & !SEND_FLAGS != 0 || !s.tx_in_memory() {
        return None;
    }
    let marker = Marker::new();
    let _held = s.tx.lock.try_take(&marker)?;
    let (dir, back) = (s.tx.dir()?, s.rx.dir()?);
    let unusual = back.fin.load(Relaxed) & (fin::WRITE | fin::CLOSED)
        | dir.ctl.load(Relaxed) & (ctl::RETURN | ctl::PINNED)
        | s.flags.load(Relaxed) & flag::SHUT_WR
        | s.rx.end.load(Relaxed)
        | s.buffer_limit.load(Relaxed)
        | config::flip_mean();
    if unusual != 0 || !s.tx_in_memory() || kernel::is_look_due(s) {
        return None;
    }
    let mut size = s.tx.size.load(Relaxed) as usize;
    // The subtraction keeps 0 and all that is too large for one publish out.
    if n.wrapping_sub(1) >= size / 4 {
        return None;
    }
    let head = s.tx.cursor.load(Relaxed);
    let used = head.wrapping_sub(s.tx.seen.load(Relaxed)) as usize;
    if used + n > size || head + n as u64 > s.tx.mark.load(Relaxed) {
        let (free, now) = tx::look_at_tail(s, dir, head, size)?;
        if free < n {
            return None;
        }
        size = now;
    }
    // SAFETY: the ring of this direction in a live region (the lock is held: `end` can't unmap).
    let ring = unsafe { Ring::new(s.tx.ring.load(Relaxed), size, s.tx.base.load(Relaxed)) };
    copy(&ring, head);
    tx::publish(s, sock, dir, head + n as u64);
    s.count_size(0, n);
    Some(n)
}

#[inline(always)]
fn get(s: &Sock, n: usize, flags: i32, copy: impl FnOnce(&Ring, u64, usize)) -> Option<usize> {
    if flags & !RECV_FLAGS != 0 || !s.rx_in_memory() || !s.tx_in_memory() {
        return None;
    }
    let marker = Marker::new();
    let _held = s.rx.lock.try_take(&marker)?;
    let dir = s.rx.dir()?;
    // Each bit says that something is unusual: what a peer claims only leads to the general code. A
    // waiter that we do not see may have to find a doorbell after this read, or none.
    let flags = s.flags.load(Relaxed);
    let unusual = dir.switch.load(Acquire) ^ s.rx.switches.load(Relaxed)
        | flags & (flag::FROZEN | flag::PEEK_OFF | flag::URGENT | flag::SHARED | flag::UNSEEN)
        | s.low_water.load(Relaxed) >> 1;
    if unusual != 0 || !s.rx_in_memory() {
        return None;
    }
    if flags & flag::SEEN == 0
        && (flags & flag::RAW != 0
            || flags & flag::BLOCKS == 0 && dir.bells.load(Relaxed) != s.bells_rx.load(Relaxed))
    {
        return None;
    }
    let tail = s.rx.cursor.load(Relaxed);
    // Pairs with the Release publish in `tx`: the bytes below head are there.
    let head = dir.head.load(Acquire);
    let claimed = dir.size.load(Relaxed);
    if claimed != s.rx.size.load(Relaxed) {
        return None; // not the size that was found sound (`rx::from_ring`)
    }
    let size = claimed as usize;
    let take = cursor::readable(head, tail, size)?.min(n);
    if take.wrapping_sub(1) >= size / 4 {
        return None; // nothing there, or so much that the space is given back in parts
    }
    s.rx.seen.store(head, Relaxed);
    // SAFETY: the ring of this direction in a live region (the lock is held: `end` can't unmap);
    // the claimed base only moves the masked offset.
    let ring = unsafe { Ring::new(s.rx.ring.load(Relaxed), size, dir.base.load(Relaxed)) };
    copy(&ring, tail, take);
    rx::give_back(s, dir, size, tail + take as u64);
    s.count_size(1, take);
    Some(take)
}
