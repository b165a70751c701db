//! Bulk: where the bytes of a ring lie, and when that is the wide ring (`transport::wide`).
//!
//! The sender measures what its large copies cost ([`Pace`]). Where the ring's lines come back slowly from the other processor it
//! says that it would like the wide ring ([`size::WISH`]); the receiver maps that and says so ([`ctl::WIDE`]); from then on the
//! sender chooses whenever the ring is empty: what is large goes through the wide one ([`size::WIDE`]), what is small does not. How
//! much may lie unread stays the same, unless the reader comes seldom ([`seldom`]): for that one everything goes there, as much as it
//! holds. Both map it only while no other process holds the connection, so that whoever comes to hold it later has inherited the
//! mapping. [`super::tx`], [`super::fast`], [`super::rx`] and whoever else looks into a ring call it.

use super::pace::{Kind, Pace, Speed};
use super::{near, seldom};
use crate::config;
use crate::family::sock::Sock;
use crate::family::{holders, index_of};
use crate::sys::{clock, processor};
use crate::transport::region::{self, Dir, RING_MAX, ctl, size};
use crate::transport::ring::Ring;
use crate::transport::wide;
use std::sync::atomic::Ordering::*;

/// From how many bytes on a send is large.
pub const LARGE: usize = 16 << 10;
/// Below how many it is small again.
const SMALL: usize = 4 << 10;

/// Values of `Half::wide`. Sending: no wish yet.
const NONE: u32 = 0;
/// Sending: the wish is stated, the ring is in use. Receiving: the answer is yes.
const WISHED: u32 = 1;
/// Sending: the wide ring is in use.
const IN_USE: u32 = 2;
/// Either: this end will not.
const NEVER: u32 = 3;

/// The ring that the sender writes; its lock is held, and so the region stays. `size`: of the ring, if the wide one is not in use.
#[inline]
pub fn tx_ring(s: &Sock, size: usize) -> Option<Ring> {
    let streams = pace(s).is_stream();
    if is_wide(s) {
        return Some(wide_ring(s, s.tx.dir()?, size)?.streamed(streams));
    }
    // SAFETY: the ring of this direction in a live region (the lock is held: `close` can't unmap).
    Some(unsafe { Ring::new(s.tx.ring.load(Relaxed), size, s.tx.base.load(Relaxed)) }.streamed(streams))
}

/// The ring that the receiver reads, and how much may lie unread, as the sender claims it; the receiver's lock is held. None: the
/// claim can't be right.
#[inline]
pub fn rx_ring(s: &Sock, dir: &Dir) -> Option<(Ring, usize)> {
    ring_claimed(s, dir, dir.size.load(Relaxed))
}

#[inline]
fn ring_claimed(s: &Sock, dir: &Dir, claimed: u32) -> Option<(Ring, usize)> {
    let bytes = region::size_of_ring(claimed)?;
    if claimed & size::WIDE != 0 {
        let ring = if s.rx.wide.load(Relaxed) == WISHED { wide_ring(s, dir, bytes) } else { None };
        return Some((ring?, bytes));
    }
    // SAFETY: the ring of this direction in a live region (the lock is held: `close` can't unmap);
    // the claimed base only moves the masked offset.
    Some((unsafe { Ring::new(start(s, dir, bytes), bytes, dir.base.load(Relaxed)) }, bytes))
}

/// First byte of the ring that is read while it has `size` bytes.
fn start(s: &Sock, dir: &Dir, size: usize) -> *mut u8 {
    match s.region_of_peers() {
        Some(region) => region::ring_of(region, region::number_of(region, dir), size),
        None => s.rx.ring.load(Relaxed), // the service thread's to store
    }
}

/// As [`rx_ring`], for a reader: answers a wish, and notes the claim as one that [`super::fast`] need not look at again.
#[inline]
pub fn ring_to_read(s: &Sock, dir: &Dir) -> Option<(Ring, usize)> {
    let claimed = dir.size.load(Relaxed);
    let found = ring_claimed(s, dir, claimed)?;
    let noted = claimed & !size::WIDE;
    if s.rx.size.load(Relaxed) != noted {
        s.rx.size.store(noted, Relaxed);
        if s.region_of_peers().is_some() {
            s.rx.ring.store(start(s, dir, found.1), Relaxed);
        }
    }
    if claimed & size::WISH != 0 && s.rx.wide.load(Relaxed) == NONE {
        answer(s, dir);
    }
    Some(found)
}

/// Whether the sender's bytes go through the wide ring.
#[inline]
pub fn is_wide(s: &Sock) -> bool {
    s.tx.wide.load(Relaxed) == IN_USE
}

/// The ring is empty and `want` bytes are to be sent, with the lock held: whether they go through the wide ring.
#[inline]
pub fn choose(s: &Sock, dir: &Dir, want: usize) -> bool {
    match s.tx.wide.load(Relaxed) {
        NONE if !pace(s).is_for_wide() && !seldom::is_any(s) => false,
        NEVER => false,
        _ => choose_one(s, dir, want),
    }
}

#[inline(never)]
fn choose_one(s: &Sock, dir: &Dir, want: usize) -> bool {
    let is_seldom = seldom::comes(s);
    let is_for_wide = pace(s).is_for_wide() || is_seldom;
    match s.tx.wide.load(Relaxed) {
        NONE => wish(s, dir),
        IN_USE if !is_for_wide => rest(s, dir),
        IN_USE if want < SMALL && !is_seldom => to_the_ring(s, dir),
        // Acquire pairs with the Release in `answer`.
        WISHED if (want >= LARGE || is_seldom) && is_for_wide && dir.ctl.load(Acquire) & ctl::WIDE != 0 => {
            // The consumer reads it only after it has seen a head beyond its tail, as with the base.
            dir.size.fetch_or(size::WIDE, Relaxed);
            s.tx.wide.store(IN_USE, Relaxed);
            s.tx.wants_more.fetch_or(seldom::FULL, Relaxed); // in the largest parts
        }
        _ => {}
    }
    let is_wide = is_wide(s);
    if is_wide {
        limit(s, dir, is_seldom);
    }
    is_wide
}

/// The wide ring is in use, and empty: how much of it may lie unread. The ring itself has its largest size before.
fn limit(s: &Sock, dir: &Dir, is_seldom: bool) {
    let size = s.tx.size.load(Relaxed) as usize;
    match is_seldom {
        true if size == RING_MAX => near::state_size(s, dir, wide::SIZE),
        false if size == wide::SIZE => near::state_size(s, dir, RING_MAX),
        _ => {}
    }
}

/// Sender: states the wish, if this end can.
#[cold]
fn wish(s: &Sock, dir: &Dir) {
    let is_mapped = can_map(s);
    s.tx.wide.store(if is_mapped { WISHED } else { NEVER }, Relaxed);
    if is_mapped {
        dir.size.fetch_or(size::WISH, Relaxed);
    }
}

/// Receiver: answers a wish, once.
#[cold]
fn answer(s: &Sock, dir: &Dir) {
    let is_mapped = can_map(s);
    s.rx.wide.store(if is_mapped { WISHED } else { NEVER }, Relaxed);
    if is_mapped {
        dir.ctl.fetch_or(ctl::WIDE, Release); // pairs with the Acquire in `choose_one`
    }
}

fn can_map(s: &Sock) -> bool {
    s.region_of_peers().is_some_and(|r| !holders::is_shared(s) && wide::map(index_of(s), r))
}

/// `limit`: how much may lie unread.
fn wide_ring(s: &Sock, dir: &Dir, limit: usize) -> Option<Ring> {
    let region = s.region_of_peers()?;
    let index = index_of(s);
    let number = region::number_of(region, dir);
    let start = wide::of(index, number).or_else(|| wide::map(index, region).then(|| wide::of(index, number))?)?;
    // SAFETY: mapped as long as the region, which a lock of this direction keeps.
    Some(unsafe { Ring::new(start, limit.max(wide::SWEPT), 0) })
}

fn to_the_ring(s: &Sock, dir: &Dir) {
    limit(s, dir, false);
    dir.size.fetch_and(!size::WIDE, Relaxed);
    s.tx.wide.store(WISHED, Relaxed);
}

/// The connection is idle, or the wide ring no better, and it is empty: gives the sender's part of it back. The lock is held.
pub fn rest(s: &Sock, dir: &Dir) {
    if s.tx.wide.load(Relaxed) == NONE {
        return;
    }
    if is_wide(s) {
        to_the_ring(s, dir);
    }
    if pace(s).is_for_wide() {
        s.tx.waiter.store(0, Relaxed); // fresh pages are slow at first
    }
    if let Some(region) = s.region_of_peers() {
        wide::give_back(index_of(s), region::number_of(region, dir));
    }
}

/// Tick before a part of so many bytes is put into the ring, if it is to be measured: where the processor stores strings well,
/// neither the wide ring nor a way past the caches is any better.
#[inline]
pub fn before_part(kind: Kind, bytes: usize) -> u64 {
    let is_measured = bytes >= LARGE && kind != Kind::Pipe && (!processor::stores_strings_well() || config::flips());
    if is_measured { clock::ticks() } else { 0 }
}

/// After it.
#[inline]
pub fn after_part(s: &Sock, kind: Kind, began: u64, bytes: usize) {
    if began != 0 && !s.is_linked() {
        let speed = if config::flips() { imagined(s) } else { speed_since(began, bytes) };
        s.tx.waiter.store(pace(s).after_part(kind, speed, bytes, is_wide(s)).0, Relaxed);
    }
}

/// Of `bytes` since that tick.
#[inline]
pub fn speed_since(began: u64, bytes: usize) -> Speed {
    Speed::of(bytes, clock::ticks().wrapping_sub(began), clock::ticks_of_us(1000))
}

/// In the mode in which connections change their medium at random: every kind of neighbour on any machine, the same for long enough.
#[cold]
fn imagined(s: &Sock) -> Speed {
    match s.tx.cursor.load(Relaxed) >> 21 & 15 {
        0 => Speed::Fast,
        15 => Speed::Crawl,
        14 => Speed::Slow,
        _ if is_wide(s) => Speed::Fast,
        _ => Speed::Slow,
    }
}

fn pace(s: &Sock) -> Pace {
    Pace(s.tx.waiter.load(Relaxed))
}
