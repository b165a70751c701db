//! A ring that stays full because nobody reads it: how long its producer waits before its direction
//! goes on through TCP, whose buffers hold megabytes more.
//!
//! Programs rely on those: one that sends 1 MB before it reads the echo of it never waits for ever
//! over TCP, as long as both directions' buffers take it. Asked by `switch`, for a sender and for every wait for room.

use super::seldom;
use crate::family::sock::Sock;
use crate::sys::clock;
use crate::transport::peers;
use crate::transport::region::{Dir, size_of_ring};
use crate::transport::waiters::Waiter;
use smcr_proto::cursor;
use std::sync::atomic::Ordering::*;

/// A ring unread for so long is given up, in units.
const PATIENCE: u32 = 240;
/// The same where the peer waits for room in the other ring: it is likely that neither reads.
const PATIENCE_MUTUAL: u32 = 20;
/// How often such a ring is looked at, in units.
const STEP: u32 = 4;
/// A unit is 2^20 ns, about a millisecond.
const UNIT_SHIFT: u32 = 20;
/// Bits of the time in `Half::full`; the rest is the consumer's cursor in units of 64 bytes.
const TIME_BITS: u32 = 12;
const TIME: u32 = (1 << TIME_BITS) - 1;
const PLACE: u32 = u32::MAX >> TIME_BITS;

/// What a look at a full ring says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Its consumer may just be slow: look again after so many ns at the latest.
    Wait(u64),
    /// Nothing was read for too long.
    Unread,
    /// As `Unread`, and the peer waits for room in our ring.
    Mutual,
}

/// Looks at a ring without room, and notes where and when it was first seen so. Both are short: a ring that
/// is full again exactly 64 MiB and less than 2 s later may leave for TCP without need. `reads`: the caller takes
/// what comes from the peer while it waits for room, so the two can't wait for each other.
pub fn look(s: &Sock, dir: &Dir, reads: bool) -> Look {
    let now = now();
    let seen = Seen::now(s, dir.tail.load(Relaxed), now);
    let resting = rests_since(s, now);
    let mutual = !reads && is_mutual(s);
    let patience = if mutual { PATIENCE_MUTUAL } else { PATIENCE };
    let mut passed = seen.passed;
    if !seen.is_same() {
        s.tx.full.store(seen.note, Relaxed);
        if seen.old != 0 {
            seldom::note_full(s, passed, seen.moved());
        }
        return Look::Wait(ns(if mutual { STEP } else { patience }));
    }
    if mutual {
        passed = passed.min(resting);
    }
    match patience.saturating_sub(passed) {
        0 if mutual => Look::Mutual,
        0 => Look::Unread,
        left if mutual => Look::Wait(ns(left.min(STEP))),
        left => Look::Wait(ns(left)),
    }
}

/// For how many units the consumer is known to have read nothing of a ring that has something. As [`look`], but that need not be full.
pub fn rests_for(s: &Sock, dir: &Dir) -> u32 {
    let tail = dir.tail.load(Acquire); // as in `tx::look_at_tail`
    let seen = Seen::now(s, tail, now());
    if tail == s.tx.cursor.load(Relaxed) || !seen.is_same() {
        s.tx.full.store(seen.note, Relaxed);
        return 0;
    }
    seen.passed
}

/// Where the consumer stands, against what was noted last (`Half::full`).
struct Seen {
    old: u32,
    note: u32,
    /// Units since the old note, if it says anything.
    passed: u32,
}

impl Seen {
    fn now(s: &Sock, tail: u64, now: u32) -> Seen {
        let old = s.tx.full.load(Relaxed);
        Seen { old, note: ((tail >> 6) as u32) << TIME_BITS | now.max(1), passed: now.wrapping_sub(old) & TIME }
    }

    /// It stood there already, not too long ago.
    fn is_same(&self) -> bool {
        self.old != 0 && (self.old ^ self.note) >> TIME_BITS == 0 && self.passed <= TIME / 2
    }

    /// Bytes that it has come since.
    fn moved(&self) -> u64 {
        let [to, from] = [self.note, self.old].map(|note| note >> TIME_BITS);
        u64::from(to.wrapping_sub(from) & PLACE) << 6
    }
}

/// In ns.
pub fn ns(units: u32) -> u64 {
    u64::from(units) << UNIT_SHIFT
}

/// How many units ago the ring was last found full; of more than 4 s less.
pub fn since_full(s: &Sock) -> u32 {
    now().wrapping_sub(s.tx.full.load(Relaxed)) & TIME
}

/// In units.
fn now() -> u32 {
    (clock::now_ns() >> UNIT_SHIFT) as u32 & TIME
}

/// For how many units this side has been seen to read nothing. While it reads, the peer's ring empties, and the two do
/// not wait for each other: the peer may have megabytes before it that came through TCP, and pass them on to a slow
/// reader. A long time between two looks counts as [`STEP`]: others had the processor.
fn rests_since(s: &Sock, now: u32) -> u32 {
    let taken = s.rx.cursor.load(Relaxed).wrapping_add(s.rx.kernel.load(Relaxed)) << (2 * TIME_BITS);
    let old = s.rested.load(Relaxed);
    let (last, rested) = ((old >> TIME_BITS) as u32 & TIME, old as u32 & TIME);
    let rested = match old >> (2 * TIME_BITS) == taken >> (2 * TIME_BITS) {
        true => (rested + (now.wrapping_sub(last) & TIME).min(STEP)).min(TIME),
        false => 0,
    };
    s.rested.store(taken | u64::from(now << TIME_BITS | rested), Relaxed);
    rested
}

/// Whether a waiter of the peer's sleeps for room in the ring that we would have to read.
fn is_mutual(s: &Sock) -> bool {
    let (Some(back), Some(peer)) = (s.rx.dir(), peers::get(s.peer.load(Relaxed))) else { return false };
    let Some(size) = size_of_ring(back.size.load(Relaxed)) else { return false };
    let unread = back.head.load(Relaxed).wrapping_sub(s.rx.cursor.load(Relaxed));
    Waiter::of_word(back.space.load(Relaxed)).and_then(|w| peer.sleep_word(w)).is_some_and(|sleep| sleep & 1 != 0)
        && unread > (size - cursor::wake_space(size)) as u64
}
