//! The usual send and receive: both ends in memory, nothing else to look at, room or data there now.
//!
//! Called by the hooks and the socket table before the general code in [`super::tx`] and [`super::rx`],
//! which knows every case; here each case but the usual one ends with None and nothing done. What is done
//! is what the general code would do, in the same order of stores. Nothing here can panic, so there is no
//! guard. Inlined into the hooks: a call is one function, whose instructions docs/performance.md counts.

use super::bufs::{MOST, is_nowhere};
use super::handlers::Since;
use super::inside;
use super::{bulk, follow, kernel, rx, spin, tx, wait};
use crate::config;
use crate::family::lock::{Held, Marker};
use crate::family::sock::{Sock, flag};
use crate::sys::clock;
use crate::transport::region::{self, Dir, ctl, fin};
use crate::transport::ring::Ring;
use smcr_proto::cursor;
use std::sync::atomic::Ordering::*;

/// Flags that change nothing while the call needs no wait.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
const RECV_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | rx::FROM_READ | rx::ANY;
/// Flags of a socket that is not received from in this way.
const UNUSUAL: u32 = flag::FROZEN | flag::PEEK_OFF | flag::URGENT | flag::SHARED | flag::UNSEEN | flag::BEHIND;
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
    let marker = Marker::new();
    let room = room(s, &marker, n, flags)?;
    // SAFETY: by the contract; `n` is at most the size.
    unsafe { room.ring.put(room.at, p, n) };
    Some(room.filled(s, sock, n))
}

/// As [`send`] for several buffers.
///
/// # Safety
/// The entries must be valid for reads, as the program promised the kernel.
#[inline(never)]
pub unsafe fn send_all(s: &Sock, sock: i32, iov: &[libc::iovec], flags: i32) -> Option<usize> {
    let n = total(iov)?;
    let marker = Marker::new();
    let room = room(s, &marker, n, flags)?;
    let mut at = room.at;
    for v in iov {
        // SAFETY: by the contract; all of them together are at most the size.
        unsafe { room.ring.put(at, v.iov_base.cast(), v.iov_len) };
        at += v.iov_len as u64;
    }
    Some(room.filled(s, sock, n))
}

/// Receives up to `n` bytes from the ring, and polls for them where the program waits. The error is what
/// the general code has to add to the flags.
///
/// # Safety
/// `p` must be valid for writes of `n` bytes, as the program promised the kernel.
#[inline(always)]
pub unsafe fn recv(s: &Sock, p: *mut u8, n: usize, flags: i32) -> Result<usize, usize> {
    // Without the lock: a hint, and `data` looks again.
    if let Some(dir) = s.rx.dir()
        && dir.head.load(Relaxed) == s.rx.cursor.load(Relaxed)
    {
        // SAFETY: by the contract.
        return unsafe { wait_and_take(s, p, n, flags) };
    }
    // SAFETY: by the contract.
    unsafe { take(s, p, n, flags) }.ok_or(0)
}

/// The ring is empty. What can be looked at before the bytes come is, so that little is left to do then.
#[inline(never)]
unsafe fn wait_and_take(s: &Sock, p: *mut u8, n: usize, flags: i32) -> Result<usize, usize> {
    const POLLED: usize = rx::POLLED as usize;
    const WAITS: u32 = flag::BLOCKS | flag::NONBLOCK | flag::LINKED;
    let known = s.flags.load(Relaxed);
    let is_usual = known & (WAITS | UNUSUAL) == flag::BLOCKS
        && known & (flag::SEEN | flag::RAW) != flag::RAW
        && flags & !(RECV_FLAGS & !libc::MSG_DONTWAIT) == 0
        && s.low_water.load(Relaxed) <= 1
        && s.tx_in_memory();
    let Some(dir) = s.rx.dir().filter(|_| is_usual && n != 0 && n <= MOST && !is_nowhere(p) && s.rx_in_memory()) else {
        return Err(0);
    };
    dir.consumer_cpu.store(spin::cpu(), Relaxed);
    let since = Since::now();
    let polled = || {
        since.has_polled(); // the last thing: a handler may have polled as well
        POLLED
    };
    let marker = Marker::new();
    let visit = inside::visit(s, &marker);
    if !wait::poll_first(s, dir) {
        if let Some(visit) = visit {
            visit.is_continued();
        }
        return Err(polled());
    }
    let held = s.rx.lock.try_take_by(&marker, s.is_alone()).ok_or_else(polled)?;
    // As before the wait, or the general code looks.
    let is_same = s.flags.load(Relaxed) == known && s.rx.gate.load(Relaxed) == 0 && s.rx_in_memory() && std::ptr::eq(s.rx.dir.load(Acquire), dir);
    if !is_same || follow::is_marked(s, dir) {
        return Err(polled());
    }
    let data = there(s, dir, n, held).ok_or_else(polled)?;
    // SAFETY: by the contract; `data.n` is at most `n` and the size.
    unsafe { data.ring.get(data.at, p, data.n) };
    rx::give_back_from_here(s, dir, data.size, data.at + data.n as u64);
    tx::fetch_next(s);
    s.count_size(1, data.n);
    Ok(data.n)
}

/// As [`recv`], for those that have just waited.
///
/// # Safety
/// As for [`recv`].
#[inline(never)]
pub unsafe fn recv_again(s: &Sock, p: *mut u8, n: usize, flags: i32) -> Option<usize> {
    // SAFETY: by the contract.
    unsafe { take(s, p, n, flags) }
}

#[inline(always)]
unsafe fn take(s: &Sock, p: *mut u8, n: usize, flags: i32) -> Option<usize> {
    if is_nowhere(p) || n > MOST {
        return None;
    }
    let marker = Marker::new();
    let data = data(s, &marker, n, flags)?;
    // SAFETY: by the contract; `data.n` is at most `n` and the size.
    unsafe { data.ring.get(data.at, p, data.n) };
    Some(data.taken(s))
}

/// As [`recv`] for several buffers, without polling.
///
/// # Safety
/// The entries must be valid for writes, as the program promised the kernel.
#[inline(never)]
pub unsafe fn recv_all(s: &Sock, iov: &[libc::iovec], flags: i32) -> Option<usize> {
    let n = total(iov)?;
    let marker = Marker::new();
    let data = data(s, &marker, n, flags)?;
    let (mut at, mut left) = (data.at, data.n);
    for v in iov {
        let part = left.min(v.iov_len);
        // SAFETY: by the contract; all parts together are `data.n`, at most the size.
        unsafe { data.ring.get(at, v.iov_base.cast(), part) };
        at += part as u64;
        left -= part;
    }
    Some(data.taken(s))
}

#[inline]
fn total(iov: &[libc::iovec]) -> Option<usize> {
    if iov.len() > BUFFERS {
        return None;
    }
    let n = iov.iter().try_fold(0usize, |n, v| {
        let is_sound = !is_nowhere(v.iov_base.cast());
        is_sound.then(|| n.checked_add(v.iov_len)).flatten()
    });
    n.filter(|n| *n <= MOST)
}

/// Room in the ring of a direction that is locked.
struct Room<'a> {
    dir: &'static Dir,
    ring: Ring,
    at: u64,
    _held: Held<'a>,
}

/// Finds room for `n` bytes.
#[inline(always)]
fn room<'a>(s: &'a Sock, marker: &'a Marker, n: usize, flags: i32) -> Option<Room<'a>> {
    // First, for reading the clock takes as long as half of what follows.
    let now = clock::ticks();
    if flags & !SEND_FLAGS != 0 || !s.tx_in_memory() {
        return None;
    }
    let held = s.tx.lock.try_take_by(marker, s.is_alone())?;
    let (dir, back) = (s.tx.dir()?, s.rx.dir()?);
    let unusual = back.fin.load(Relaxed) & (fin::WRITE | fin::CLOSED)
        | dir.ctl.load(Relaxed) & (ctl::RETURN | ctl::PINNED)
        | s.flags.load(Relaxed) & flag::SHUT_WR
        | s.rx.end.load(Relaxed)
        | s.buffer_limit.load(Relaxed)
        | config::flip_mean();
    if unusual != 0 || !s.tx_in_memory() || kernel::is_look_due_at(s, now) {
        return None;
    }
    let mut size = s.tx.size.load(Relaxed) as usize;
    // The subtraction keeps 0 and all that is too large for one publish out.
    if n.wrapping_sub(1) >= (size / 4).min(bulk::LARGE - 1) || bulk::is_wide(s) {
        return None;
    }
    let head = s.tx.cursor.load(Relaxed);
    let used = head.wrapping_sub(s.tx.seen.load(Relaxed)) as usize;
    if used + n > size || head + n as u64 > s.tx.mark.load(Relaxed) {
        let (free, now) = tx::look_at_tail(s, dir, head, size, n)?;
        if free < n || bulk::is_wide(s) {
            return None;
        }
        size = now;
    }
    // SAFETY: the ring of this direction in a live region (the lock is held: `close` can't unmap).
    let ring = unsafe { Ring::new(s.tx.ring.load(Relaxed), size, s.tx.base.load(Relaxed)) };
    Some(Room { dir, ring, at: head, _held: held })
}

impl Room<'_> {
    /// The bytes are there: shows them to the consumer.
    #[inline(always)]
    fn filled(self, s: &Sock, sock: i32, n: usize) -> usize {
        tx::publish(s, sock, self.dir, self.at + n as u64);
        s.count_size(0, n);
        n
    }
}

/// Bytes in the ring of a direction that is locked.
struct Data<'a> {
    dir: &'static Dir,
    ring: Ring,
    size: usize,
    at: u64,
    n: usize,
    _held: Held<'a>,
}

/// Finds up to `n` bytes.
#[inline(always)]
fn data<'a>(s: &'a Sock, marker: &'a Marker, n: usize, flags: i32) -> Option<Data<'a>> {
    if flags & !RECV_FLAGS != 0 || !s.rx_in_memory() || !s.tx_in_memory() {
        return None;
    }
    let held = s.rx.lock.try_take_by(marker, s.is_alone())?;
    let dir = s.rx.dir()?;
    // Each bit says that something is unusual: what a peer claims only leads to the general code. A
    // waiter that we do not see may have to find a doorbell after this read, or none.
    let flags = s.flags.load(Relaxed);
    let unusual = dir.switch.load(Acquire) ^ s.rx.switches.load(Relaxed) | flags & UNUSUAL | s.rx.gate.load(Relaxed) | s.low_water.load(Relaxed) >> 1;
    if unusual != 0 || !s.rx_in_memory() {
        return None;
    }
    if flags & flag::SEEN == 0
        && (flags & flag::RAW != 0
            || flags & flag::BLOCKS == 0
                && (flags & flag::NONBLOCK == 0 || dir.bells.load(Relaxed) != s.bells_rx.load(Relaxed) || kernel::is_unasked(s)))
    {
        return None;
    }
    there(s, dir, n, held)
}

/// Up to `n` bytes of what the ring holds; None where that is nothing, or so much that the space is given back
/// in parts.
#[inline(always)]
fn there<'a>(s: &'a Sock, dir: &'static Dir, n: usize, held: Held<'a>) -> Option<Data<'a>> {
    let tail = s.rx.cursor.load(Relaxed);
    // Pairs with the Release publish in `tx`: the bytes below head are there.
    let head = dir.head.load(Acquire);
    let claimed = dir.size.load(Relaxed);
    if claimed != s.rx.size.load(Relaxed) {
        return None; // not the size that was found sound, or the wide ring (`rx::from_ring`)
    }
    let size = (claimed & !region::size::WISH) as usize;
    let n = cursor::readable(head, tail, size)?.min(n);
    if n.wrapping_sub(1) >= size / 4 {
        return None;
    }
    s.rx.seen.store(head, Relaxed);
    // SAFETY: the ring of this direction in a live region (the lock is held: `close` can't unmap);
    // the claimed base only moves the masked offset.
    let ring = unsafe { Ring::new(s.rx.ring.load(Relaxed), size, dir.base.load(Relaxed)) };
    Some(Data { dir, ring, size, at: tail, n, _held: held })
}

impl Data<'_> {
    /// The bytes are copied out: gives their room back.
    #[inline(always)]
    fn taken(self, s: &Sock) -> usize {
        rx::give_back(s, self.dir, self.size, self.at + self.n as u64);
        tx::fetch_next(s);
        s.count_size(1, self.n);
        self.n
    }
}
