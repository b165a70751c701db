//! Near: the bytes of a ring that lie in the page of the header (`layout::NEAR`). Small messages keep to them, so that a connection
//! of such touches one page, and an idle one has none to give back.
//!
//! A ring that is empty begins anew ([`super::tx`]): at its near bytes if what comes fits there, else at its start. What follows
//! while it isn't empty lies behind that as in any ring: of ring 0 the pages behind the header, of ring 1, which ends with its near
//! bytes, its first pages. [`super::idle`] gives those back.

use crate::family::sock::Sock;
use crate::transport::region::{self, Dir, NEAR};
use std::sync::atomic::Ordering::*;

/// While a ring stays this full at most, the same pages of it are used again and again: what is sent stays in the cache.
pub const SOFT: u64 = 4096;

/// The ring is empty, and the next `want` bytes go in at `head`: chooses where that is. The lock is held.
#[inline]
pub fn begin(s: &Sock, dir: &Dir, head: u64, want: usize, size: usize) {
    let Some(region) = s.region_of_peers() else { return };
    let way = region::number_of(region, dir);
    note(s, way, head, size);
    let (base, mark) = if want <= NEAR[way] {
        let from = if way == 0 { 0 } else { size - NEAR[1] };
        (head.wrapping_sub(from as u64), NEAR[way] as u64)
    } else {
        s.tx.deep.store(1, Relaxed);
        (head, SOFT)
    };
    // The consumer reads base and size only after it has seen a head beyond its tail, which the
    // Release store of the next publish orders after these stores.
    s.tx.base.store(base, Relaxed);
    dir.base.store(base, Relaxed);
    s.tx.mark.store(head + mark, Relaxed);
}

/// Notes whether more than the near bytes has been used since the ring began.
#[inline]
fn note(s: &Sock, way: usize, head: u64, size: usize) {
    let near = if way == 0 { NEAR[0] } else { size }; // behind the end of ring 1 comes its start
    if head.wrapping_sub(s.tx.base.load(Relaxed)) > near as u64 {
        s.tx.deep.store(1, Relaxed);
    }
}

/// The ring, which was full, is empty and of `size` bytes from now on.
pub fn resize(s: &Sock, dir: &Dir, size: usize) {
    let Some(region) = s.region_of_peers() else { return };
    s.tx.deep.store(1, Relaxed);
    s.tx.ring.store(region::ring_of(region, region::number_of(region, dir), size), Relaxed);
    state_size(s, dir, size);
}

/// The ring, which is empty, holds so much from now on. The consumer reads it only after it has seen a head beyond its tail, as with the base.
pub fn state_size(s: &Sock, dir: &Dir, size: usize) {
    s.tx.size.store(size as u32, Relaxed);
    s.tx_ring.store(size as u32, Relaxed);
    let bits = dir.size.load(Relaxed) & (region::size::WISH | region::size::WIDE);
    dir.size.store(size as u32 | bits, Relaxed);
}

/// The connection is idle and its ring empty: gives back the pages of the ring that are not the header's. The lock is held.
pub fn give_back(s: &Sock, dir: &Dir) {
    let Some(region) = s.region_of_peers() else { return };
    let (way, size) = (region::number_of(region, dir), s.tx.size.load(Relaxed) as usize);
    note(s, way, s.tx.cursor.load(Relaxed), size);
    if s.tx.deep.swap(0, Relaxed) != 0 {
        region::give_back(region, way, size);
    }
}
