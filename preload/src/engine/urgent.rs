//! The urgent byte over a link (MSG_OOB): SMC-R's urgent cursor flags, shown to the program as TCP shows its own.
//!
//! In shared memory urgent bytes go through TCP; a kernel behind a link has nothing but the flags. Sending, [`mark`]
//! notes behind which byte of the ring the link has to set them. Receiving, the link notes it (`link::urgent`); reads stop before
//! the byte and pass over it ([`limit`], [`pass_over`]), MSG_OOB takes it ([`take`]). The peer sends nothing more until all has been
//! read, so the byte is passed over as soon as it is next, whoever comes: a reader, a wait, the link itself. As with TCP
//! it can be fetched until something behind it has been read.

use super::rx;
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::layout::oob;
use crate::sys::{Errno, Res};
use crate::transport::region::{self, Dir};
use std::sync::atomic::Ordering::*;

/// The byte before this position of the sending ring is urgent. Called with the sending lock held, before the
/// byte is published.
pub fn mark(dir: &Dir, behind: u64) {
    dir.urgent.store(behind, Relaxed); // the Release of the publish makes it visible with the byte
}

/// Whether anything here is to be looked at.
#[inline]
pub fn is_near(s: &Sock) -> bool {
    s.has(flag::URGENT)
}

/// How many of `n` bytes of the ring may be read in one go.
#[inline]
pub fn limit(s: &Sock, dir: &Dir, n: u64) -> u64 {
    if !is_near(s) {
        return n;
    }
    let (at, cursor) = (dir.urgent.load(Relaxed).wrapping_sub(1), s.rx.cursor.load(Relaxed));
    match at.checked_sub(cursor) {
        Some(0) if !s.has(flag::OOB_INLINE) => 0, // passed over first
        Some(before @ 1..) => n.min(before),
        _ => n,
    }
}

/// If the urgent byte is next, and not to be read like others, it is passed over. The receiving lock is held.
pub fn pass_over(s: &Sock, dir: &Dir) {
    if !is_near(s) || s.has(flag::OOB_INLINE) {
        return;
    }
    let (behind, cursor) = (dir.urgent.load(Relaxed), s.rx.cursor.load(Relaxed));
    if cursor + 1 != behind || dir.head.load(Acquire) < behind {
        return;
    }
    if let Some(size) = region::size_of_ring(dir.size.load(Relaxed)) {
        rx::give_back(s, dir, size, behind);
    }
}

/// As [`pass_over`], for whoever does not read.
pub fn look(s: &Sock) {
    if is_near(s)
        && let Some(dir) = s.rx.dir()
    {
        let marker = Marker::new();
        if let Some(_held) = s.rx.lock.try_take(&marker) {
            pass_over(s, dir);
        }
    }
}

/// Something was read: behind the byte it can't be fetched any more. The receiving lock is held.
pub fn after_read(s: &Sock, dir: &Dir) {
    if !is_near(s) {
        return;
    }
    if s.rx.cursor.load(Relaxed) > dir.urgent.load(Relaxed) || s.has(flag::OOB_INLINE) && s.rx.cursor.load(Relaxed) == dir.urgent.load(Relaxed) {
        dir.oob.store(0, Relaxed);
        s.clear(flag::URGENT);
    } else {
        pass_over(s, dir);
    }
}

/// Whether a byte waits to be fetched (POLLPRI).
pub fn is_unread(s: &Sock) -> bool {
    is_near(s) && s.rx.dir().is_some_and(|d| d.oob.load(Relaxed) & oob::UNREAD != 0)
}

/// recv(MSG_OOB).
pub fn take(s: &Sock, peek: bool) -> Res<u8> {
    let dir = s.rx.dir().filter(|_| is_near(s) && !s.has(flag::OOB_INLINE)).ok_or(Errno(libc::EINVAL))?;
    let marker = Marker::new();
    let Ok(_held) = s.rx.lock.take(&marker) else { return Err(Errno(libc::EAGAIN)) };
    let now = dir.oob.load(Relaxed);
    if now & oob::UNREAD == 0 {
        return Err(Errno(libc::EINVAL));
    }
    if !peek {
        dir.oob.store(0, Relaxed);
    }
    Ok(now as u8)
}

/// ioctl(SIOCATMARK).
pub fn is_at_mark(s: &Sock) -> bool {
    let Some(dir) = s.rx.dir().filter(|_| is_near(s)) else { return false };
    let (behind, cursor) = (dir.urgent.load(Relaxed), s.rx.cursor.load(Relaxed));
    cursor + 1 == behind || !s.has(flag::OOB_INLINE) && cursor == behind
}

/// The program has set SO_OOBINLINE.
pub fn set_inline(s: &Sock, on: bool) {
    s.put(flag::OOB_INLINE, on);
    if !on {
        look(s);
    }
}
