//! The wide ring of a direction: memory behind the region that bulk goes through instead of the ring, and where this process has
//! it mapped.
//!
//! A line that the other processor read last is slow to write again while it is in that one's second cache. In two MiB it has
//! left it by the time the sweep comes round (docs/decisions/12-copies.md). No more lies unread in it than in the ring, unless the reader comes
//! seldom (`engine::seldom`): then all of it may.
//! It is mapped once both ends agree (`engine::bulk`), costs nothing before, and a forked child inherits mapping and table alike.

use super::region::{self, LEN, RegionHeader};
use crate::config;
use crate::control;
use crate::family::{self, process};
use crate::sys::mem;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// Bytes of the wide ring of one direction, a power of two: no less than what TCP's buffers hold by default (6 MB were found in those
/// of Linux before 6.16).
pub const SIZE: usize = 8 << 20;
/// So many of them are swept over while no more lies unread than a ring holds, a power of two: twice the second cache of large processors.
pub const SWEPT: usize = 2 << 20;
/// Bytes of both in the region's file, right behind what is mapped from the beginning.
pub const BOTH: usize = 2 * SIZE;

/// The last page of the region, from which the mapping is made, and both rings.
const MAPPED: usize = PAGE + BOTH;
const PAGE: usize = 4096;
const _: () = assert!(LEN.is_multiple_of(PAGE));

/// Connections of a process that have one: what all of them together sweep over is to stay in a third cache.
const MOST: u32 = 32;
static USED: AtomicU32 = AtomicU32::new(0);

/// By the index of the socket's record. Of this process alone.
static PLACES: [AtomicPtr<u8>; family::SOCK_CAP] = [const { AtomicPtr::new(std::ptr::null_mut()) }; family::SOCK_CAP];

/// First byte of the wide ring of direction `dir` (0 or 1) of a socket. None: it is not mapped here.
#[inline]
pub fn of(index: u32, dir: usize) -> Option<*mut u8> {
    let p = PLACES.get(index as usize)?.load(Acquire); // pairs with the Release in `map`
    // SAFETY: stays inside the mapping.
    (!p.is_null()).then(|| unsafe { p.add(PAGE + (dir & 1) * SIZE) })
}

/// Maps both for a socket whose region stays mapped meanwhile. False: enough connections have them, no room below `max_memory`, or
/// none at all.
pub fn map(index: u32, region: &RegionHeader) -> bool {
    let Some(place) = PLACES.get(index as usize) else { return false };
    if !place.load(Acquire).is_null() {
        return true;
    }
    if control::is_restricted() || !take() {
        return false;
    }
    let last = region::start_of(region).wrapping_add(LEN - PAGE);
    let Ok(p) = mem::map_again(last, MAPPED) else {
        leave();
        return false;
    };
    // Release: pairs with the Acquire in `of`. The other direction's thread may have been first.
    if place.compare_exchange(std::ptr::null_mut(), p, AcqRel, Acquire).is_err() {
        let_go(p);
    }
    true
}

/// The socket's region goes, or a new one comes: nobody uses the wide rings of the old one any more.
pub fn unmap(index: u32) {
    if let Some(both) = take_out(index) {
        both.unmap();
    }
}

/// The wide rings of a record, which are not in the table.
pub struct Both(*mut u8);

/// The record may be another connection's soon.
pub fn take_out(index: u32) -> Option<Both> {
    let place = PLACES.get(index as usize).filter(|place| !place.load(Relaxed).is_null())?;
    let p = place.swap(std::ptr::null_mut(), AcqRel);
    (!p.is_null()).then_some(Both(p))
}

impl Both {
    pub fn unmap(self) {
        let_go(self.0);
    }

    /// It is not.
    pub fn put_back(self, index: u32) {
        if let Some(place) = PLACES.get(index as usize) {
            place.store(self.0, Release); // as in `map`
        }
    }
}

fn let_go(p: *mut u8) {
    mem::unmap(p, MAPPED);
    leave();
}

/// A place among those of this process, and its memory.
fn take() -> bool {
    let is_one = USED.fetch_update(Relaxed, Relaxed, |n| (n < MOST).then_some(n + 1)).is_ok();
    if is_one && !process::reserve_memory(BOTH as u64, config::max_memory()) {
        USED.fetch_sub(1, Relaxed);
        return false;
    }
    is_one
}

fn leave() {
    process::note_memory(-(BOTH as i64));
    USED.fetch_sub(1, Relaxed);
}

/// Gives the pages of a direction's wide ring back, which is empty.
pub fn give_back(index: u32, dir: usize) {
    if let Some(p) = of(index, dir) {
        let _ = mem::give_back(p, SIZE);
    }
}
