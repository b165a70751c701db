//! The sleep words of this family: what a waiter says there, and what it has said.
//!
//! Even: awake; odd: asleep, a new number for each sleep; [`LENIENT`] beside the number.

use super::{LOCAL, Waiter, word_of};
use std::sync::atomic::{AtomicU32, Ordering::*, fence};

/// In a sleep word: who sleeps looks again by itself (`engine::kept`).
const LENIENT: u32 = 1 << 31;

impl Waiter {
    /// Says "asleep"; the caller looks at its connections once more before it sleeps.
    #[inline]
    pub fn fall_asleep(self) {
        self.fall_asleep_as(0);
    }

    /// As [`Waiter::fall_asleep`], and the caller sleeps for `engine::kept::BOUND_MS` at most: peers may ring late.
    pub fn fall_asleep_lenient(self) {
        self.fall_asleep_as(LENIENT);
    }

    #[inline]
    fn fall_asleep_as(self, how: u32) {
        if let Some(w) = self.own_word() {
            // A new number even if others of the same waiter sleep already: a peer rings once per
            // number, and an earlier ring may have been taken by a thread that did not sleep.
            w.store(next_sleep(w.load(Relaxed)) | how, Relaxed);
        }
        // Pairs with the fence in `engine::bell::after_publish`: either the peer sees the odd word,
        // or we see its cursor in the look that follows.
        fence(SeqCst);
    }

    /// Says "awake".
    #[inline]
    pub fn wake_up(self) {
        let Some(w) = self.own_word() else { return };
        if self.is_hearing() {
            LOCAL[self.slot()].hears.store(0, Relaxed);
        }
        let v = w.load(Relaxed);
        if v & 1 != 0 {
            w.store(awake(v), Relaxed);
        }
    }

    /// Says "asleep" with a new number: one was woken, others sleep on.
    pub fn sleep_on(self) {
        if let Some(w) = self.own_word() {
            w.store(next_sleep(w.load(Relaxed) | 1), Relaxed);
        }
        fence(SeqCst); // as in `fall_asleep`
    }

    /// Its word, unless somebody else has the slot by now: in a child that was forked from a handler on top of its sleep that is the parent.
    #[inline]
    fn own_word(self) -> Option<&'static AtomicU32> {
        if self.is_ours() { word_of(self.slot()) } else { None }
    }

    /// Whether it says "asleep".
    pub fn is_asleep(self) -> bool {
        word_of(self.slot()).is_some_and(|w| w.load(Relaxed) & 1 != 0)
    }

    /// The number of its sleep; None: it is awake.
    pub fn sleep(self) -> Option<u32> {
        word_of(self.slot()).map(|w| w.load(Relaxed)).filter(|v| v & 1 != 0)
    }
}

/// The word of the sleep behind this one.
#[inline]
fn next_sleep(v: u32) -> u32 {
    (if v & 1 == 0 { v.wrapping_add(1) } else { v.wrapping_add(2) }) & !LENIENT
}

/// Whether a sleep word says so.
#[inline]
pub fn is_lenient(sleep: u32) -> bool {
    sleep & LENIENT != 0
}

/// The word behind a sleep, or the same.
pub(super) fn awake(v: u32) -> u32 {
    (v & !LENIENT).next_multiple_of(2) & !LENIENT
}

#[cfg(test)]
mod tests {
    use super::super::take;
    use super::*;

    #[test]
    fn each_sleep_has_a_number_and_leniency_is_no_part_of_it() {
        assert_eq!([0, 1, 2, LENIENT | 1, LENIENT | 3].map(next_sleep), [1, 3, 3, 3, 5]);
        // The numbers come round without the mark.
        assert_eq!([LENIENT - 2, LENIENT - 1].map(next_sleep), [LENIENT - 1, 1]);
        let w = take().expect("a waiter");
        w.fall_asleep_lenient();
        let first = w.sleep().expect("asleep");
        assert!(is_lenient(first));
        w.sleep_on();
        let second = w.sleep().expect("asleep");
        assert!(!is_lenient(second) && second != first & !LENIENT);
        w.fall_asleep_lenient();
        w.wake_up();
        assert_eq!(w.sleep(), None);
        w.fall_asleep();
        assert!(w.sleep().is_some_and(|v| !is_lenient(v) && v != second));
        w.release();
    }
}
