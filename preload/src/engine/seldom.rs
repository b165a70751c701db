//! A reader that comes seldom, and then takes all there is: one that works by ticks, or computes over what it has for long.
//!
//! While it is away its peer can send what the ring holds, and over TCP what both sockets' buffers hold, which is megabytes. So a
//! sender that finds the ring full again and again, a millisecond and more after it was so before, is for the wide ring, and for all
//! of it ([`super::bulk`]). [`super::stuck`] tells of each time. Where the ring was not full for longer than such a reader is away, it
//! costs some credit for each time that it is empty; where too little is left all is as before.
//!
//! The reader for its part looks for a moment whether more comes before it says that nothing is there: its sender is as fast as it
//! is, and awake, and to miss it by a microsecond would be to come back a tick later.
//!
//! The credit is the upper part of `Half::wants_more`, whose lowest bit says that the ring was found full. A change that is lost
//! between two threads costs one step of it.

use super::{budget, follow, spin, stuck};
use crate::config;
use crate::family::sock::Sock;
use crate::sys::clock;
use crate::transport::region::{self, RING_MAX};
use crate::transport::wide;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Credit for a time that the ring was found full so long after the last one, and from how much on the reader counts as one.
const SLOW: u32 = 8;
const ENOUGH: u32 = 4 * SLOW;
const MOST: u32 = 8 * SLOW;
/// No more than this moves from one time to the next while the ring has its own size.
const TURN: u64 = 4 * RING_MAX as u64;
/// Milliseconds for which no reader that is to come is away ([`stuck`]).
const AWAY: u32 = 256;
/// How long a reader that comes seldom looks whether more comes: several of the largest parts that are copied at once.
const MOMENT_US: u64 = 20;
/// The lowest bit of the word.
pub const FULL: u32 = 1;

/// The ring was found full, so many milliseconds and bytes after the time before. A stream whose reader lost its processor for a while
/// moves much more in between.
pub fn note_full(s: &Sock, ms: u32, moved: u64) {
    let had = credit(s);
    match ms {
        0 => set(s, had.saturating_sub(1)),
        _ if had >= ENOUGH || moved <= TURN => set(s, (had + SLOW).min(MOST)),
        _ => {}
    }
}

/// Whether the reader seems to be one. In the mode in which connections change at random the time that things take asks for nothing.
#[inline]
pub fn is_any(s: &Sock) -> bool {
    credit(s) >= ENOUGH && !config::flips()
}

/// The ring is empty, with the lock held: whether its reader comes seldom.
pub fn comes(s: &Sock) -> bool {
    if config::flips() {
        return s.tx.cursor.load(Relaxed) >> 19 & 1 != 0; // one half mebibyte of two
    }
    let had = credit(s);
    if had > 0 && stuck::since_full(s) > AWAY {
        set(s, had - 1);
    }
    had >= ENOUGH
}

/// The receiver: nothing is there for a call that may not wait, whose program will then be away for long. Whether more has come in a
/// moment: its sender, which was woken as soon as there was room, is most likely in the middle of a copy. One such moment in vain at each place.
pub fn has_come(s: &Sock) -> bool {
    let Some(dir) = s.rx.dir().filter(|d| s.rx_in_memory() && region::size_of_ring(d.size.load(Relaxed)) == Some(wide::SIZE)) else { return false };
    let at = s.rx.cursor.load(Relaxed) as u32;
    if s.rx.released.swap(at, Relaxed) == at {
        return false;
    }
    let moment = AtomicU32::new(0);
    budget::set_budget(&moment, clock::ticks_of_us(MOMENT_US));
    spin::spin(&moment, dir.producer_cpu.load(Relaxed), || follow::pending(s, dir))
}

fn credit(s: &Sock) -> u32 {
    s.tx.wants_more.load(Relaxed) >> 1
}

fn set(s: &Sock, credit: u32) {
    let _ = s.tx.wants_more.fetch_update(Relaxed, Relaxed, |word| Some(credit << 1 | word & FULL));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was found full so many milliseconds ago.
    fn full(s: &Sock, ms: u32) {
        s.tx.full.store(0, Relaxed);
        s.tx.full.store(stuck::since_full(s).wrapping_sub(ms) & 4095, Relaxed);
    }

    #[test]
    fn it_is_one_after_some_slow_times_and_until_it_stays() {
        // SAFETY: all zero is a fresh record.
        let s: Sock = unsafe { std::mem::zeroed() };
        s.tx.wants_more.store(FULL, Relaxed);
        for _ in 0..100 {
            note_full(&s, 0, 0);
            note_full(&s, 5, TURN + 1);
        }
        assert!(!is_any(&s) && !comes(&s), "always full, or a stream with a pause");
        for ms in [1, 0, 3, 0, 0, 200] {
            note_full(&s, ms, TURN);
        }
        assert!(!is_any(&s));
        [7, 7].into_iter().for_each(|ms| note_full(&s, ms, 0));
        full(&s, AWAY / 2);
        for _ in 0..1000 {
            assert!(is_any(&s) && comes(&s), "it was full just now");
        }
        note_full(&s, 1, u64::MAX);
        full(&s, AWAY + 2);
        assert!((0..MOST).any(|_| !comes(&s)) && !is_any(&s));
        assert_eq!(s.tx.wants_more.load(Relaxed) & FULL, FULL);
    }
}
