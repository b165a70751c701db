//! When to look again at peers that connected to us and have no connection any more: one that dies closes its channel
//! after its connections, and one that goes on closes it a moment after the last of them, so that nothing told of that when it
//! went here.
//!
//! `peers` says that there is one; whoever is about to sleep asks (`engine::wait`, `ready`), and `table::life` as a socket begins,
//! whatever becomes of it.

use super::peers;
use crate::sys::clock;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// The tick of the next look; [`NEVER`] without such a peer.
static NEXT: AtomicU64 = AtomicU64::new(NEVER);
static GAP_US: AtomicU64 = AtomicU64::new(FIRST_US);

const NEVER: u64 = u64::MAX;
const FIRST_US: u64 = 1_000;
/// With many peers that stay without a connection a look costs something: the next one is so many times as far off.
const PART: u64 = 50;
const MOST_US: u64 = 1_000_000;

/// A peer has no connection any more, and its channel is open.
pub fn add() {
    GAP_US.store(FIRST_US / 2, Relaxed);
    NEXT.fetch_min(clock::ticks(), Relaxed);
}

/// Lets go of those that have ended, when it is time to look.
#[inline]
pub fn look() {
    if NEXT.load(Relaxed) != NEVER {
        look_if_due();
    }
}

#[cold]
fn look_if_due() {
    let begin = clock::ticks();
    let due = NEXT.load(Relaxed);
    if due > begin || NEXT.compare_exchange(due, NEVER, Relaxed, Relaxed).is_err() {
        return;
    }
    let gap = (GAP_US.load(Relaxed) * 2).min(MOST_US);
    for (_, p) in peers::all() {
        if p.is_idle() && p.hold() {
            p.release(); // the last one looks; who has not ended is added again
        }
    }
    let end = clock::ticks();
    if NEXT.load(Relaxed) != NEVER {
        GAP_US.store(gap, Relaxed);
        NEXT.store(end + clock::ticks_of_us(gap).max((end - begin) * PART), Relaxed);
    }
}
