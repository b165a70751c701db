//! A reader that comes seldom, and then takes all there is: one that works by ticks, or computes over what it has for long.
//!
//! While it is away its peer can send what the ring holds, and over TCP what both sockets' buffers hold, which is megabytes. So a
//! sender that finds the ring full again and again, a millisecond and more after it was so before, is for the wide ring, and for all
//! of it ([`super::bulk`]). [`super::stuck`] tells of each time. It costs some credit for each time that the ring is empty although
//! less than two rings' bytes had gone through it since the last one; where too little is left all is as before.
//!
//! The credit is the upper part of `Half::wants_more`, whose lowest bit says that the ring was found full. A change that is lost
//! between two threads costs one step of it.

use crate::config;
use crate::family::sock::Sock;
use crate::transport::region::RING_MAX;
use std::sync::atomic::Ordering::*;

/// Credit for a time that the ring was found full so long after the last one, and from how much on the reader counts as one.
const SLOW: u32 = 8;
const ENOUGH: u32 = 4 * SLOW;
const MOST: u32 = 8 * SLOW;
/// The lowest bit of the word.
pub const FULL: u32 = 1;

/// The ring was found full, so many milliseconds after the time before.
pub fn note_full(s: &Sock, ms: u32) {
    let had = credit(s);
    set(s, if ms >= 1 { (had + SLOW).min(MOST) } else { had.saturating_sub(1) });
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
    let moved = s.tx.cursor.load(Relaxed).wrapping_sub(s.tx.base.load(Relaxed));
    let had = credit(s);
    if had > 0 && moved < 2 * RING_MAX as u64 {
        set(s, had - 1);
    }
    had >= ENOUGH
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

    #[test]
    fn it_is_one_after_some_slow_times_and_until_little_comes_at_a_time() {
        // SAFETY: all zero is a fresh record.
        let s: Sock = unsafe { std::mem::zeroed() };
        s.tx.wants_more.store(FULL, Relaxed);
        for _ in 0..100 {
            note_full(&s, 0);
        }
        assert!(!is_any(&s) && !comes(&s));
        for ms in [1, 0, 3, 0, 0, 200] {
            note_full(&s, ms);
        }
        assert!(!is_any(&s));
        [7, 7].into_iter().for_each(|ms| note_full(&s, ms));
        s.tx.cursor.store(2 * RING_MAX as u64, Relaxed);
        for _ in 0..1000 {
            assert!(is_any(&s) && comes(&s), "much has gone through it each time");
        }
        s.tx.base.store(1, Relaxed);
        assert!((0..MOST).any(|_| !comes(&s)) && !is_any(&s));
        assert_eq!(s.tx.wants_more.load(Relaxed) & FULL, FULL);
    }
}
