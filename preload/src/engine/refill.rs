//! What a former program has left to this one (`rendezvous::rest`), where that is more than a ring: all of it lies in the annex of its
//! file, each byte at its position, and goes through the ring from there.
//!
//! The reader fills the ring itself, with the lock held, whenever half of it has been read: so it is empty only when all has been.
//! [`super::bell`] calls for that where it would tell a producer of room.

use super::bulk;
use crate::family::sock::Sock;
use crate::layout::word::MORE;
use crate::sys::Res;
use crate::transport::annex::{self, Annex};
use crate::transport::region::{self, Dir, RING_MAX, RegionHeader, setup};
use smcr_proto::cursor;
use std::ops::Range;
use std::sync::atomic::Ordering::*;

/// Puts `total` bytes, at most an annex of them, into direction `way` of a fresh rest, of which this process has the only mapping.
pub fn put(rest: &RegionHeader, way: usize, total: usize, fill: impl FnOnce(&mut [u8])) -> Res<()> {
    let to = &rest.dirs[way];
    let in_ring = total.min(RING_MAX);
    let start = region::ring_of(rest, way, RING_MAX);
    // SAFETY: the ring of a live mapping, which has RING_MAX bytes; the caller's alone.
    let ring = unsafe { std::slice::from_raw_parts_mut(start, in_ring) };
    if in_ring == total {
        fill(ring);
    } else {
        let mut annex = Annex::map(rest, to)?;
        fill(&mut annex.bytes()[..total]);
        ring.copy_from_slice(&annex.bytes()[..in_ring]);
        to.space.store(MORE, Relaxed);
    }
    to.head.store(in_ring as u64, Release); // pairs with the Acquire in `follow::follow`
    Ok(())
}

/// What lies behind the ring, as places in the annex.
pub fn behind_ring(s: &Sock, dir: &Dir) -> Range<usize> {
    let is_rest = s.region().is_some_and(|r| setup::is_left(r.server.load(Relaxed)));
    if !is_rest || !s.rx_in_memory() || dir.space.load(Relaxed) != MORE {
        return 0..0;
    }
    let end = dir.at_ring(s.rx.switches.load(Relaxed).wrapping_add(1)).load(Relaxed).min(annex::LEN as u64);
    dir.head.load(Relaxed).min(end) as usize..end as usize
}

/// The receiver has given room back.
#[cold]
pub fn refill(s: &Sock, dir: &Dir) {
    let behind = behind_ring(s, dir);
    if behind.is_empty() {
        return dir.space.store(0, Relaxed);
    }
    let Some((ring, size)) = bulk::rx_ring(s, dir) else { return };
    let Some(unread) = cursor::readable(behind.start as u64, s.rx.cursor.load(Relaxed), size) else { return };
    if unread > size / 2 {
        return;
    }
    let n = behind.len().min(size - unread);
    match s.region_of_peers().map(|r| Annex::map(r, dir)) {
        Some(Ok(mut annex)) => {
            // SAFETY: so many bytes lie there; the ring has room for them.
            unsafe { ring.put(behind.start as u64, annex.bytes()[behind.start..][..n].as_ptr(), n) };
            dir.head.store((behind.start + n) as u64, Release); // as in `put`
        }
        _ if unread == 0 => s.error.store(libc::ECONNRESET as u32, Relaxed), // it comes no more
        _ => {}
    }
}
