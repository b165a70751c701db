//! Whether a set is lenient: says with its sleep that peers on its processor may ring it late (`engine::kept`).
//!
//! It is where it was woken often and for little: most of its hot members had nothing yet, since who rang it could not go on. That stands
//! for a number of sleeps and is then asked anew. A ring that never came costs the bound, so what came without one ends it for a while, longer
//! each time, as does a number of sleeps that had hardly more to wake for. Owned by `table::set`; called by `ready::sleep`, with the set locked or by one of those that sleep in it: what two of them write over
//! each other is a guess all the same.

use crate::fault;
use crate::sys::clock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Woken for little: no more than one of so many hot members had an event.
const THIN: u32 = 4;
/// So many times more often than not, within so long.
const TIMES: u32 = 8;
const WITHIN_US: u64 = 4000;
/// It stands for so many sleeps.
const SLEEPS: u32 = 128;
/// A rest after what was in vain, in us: at first, and the longest ([`longer`]).
pub const REST_US: (u64, u64) = (20_000, 1_000_000);

/// It pays where a wake has so many times the events of before, in halves.
const PAYS: u64 = 3;

/// In [`Lenient::score`]: it is, for so many sleeps more; below: thin wakes.
const IS: u32 = 1 << 16;

/// What a set has learned; all zero at its start.
pub struct Lenient {
    score: AtomicU32,
    /// The bound of its last sleep has passed: the next one has none.
    passed: AtomicU32,
    /// Tick of the first of the thin wakes.
    since: AtomicU64,
    /// Wakes since the score was 0, and since it is lenient; their events; and those of [`SLEEPS`] wakes before it was.
    wakes: AtomicU64,
    events: AtomicU64,
    before: AtomicU64,
    /// Ticks of the last rest, and when it ends.
    rest: AtomicU64,
    until: AtomicU64,
}

impl Lenient {
    /// Whether the sleep that is prepared may be one.
    pub fn is(&self) -> bool {
        fault::is_lenient() || self.score.load(Relaxed) > IS && self.passed.load(Relaxed) == 0
    }

    /// A sleep was ended by something, and so many events of so many hot members were there.
    pub fn woke(&self, events: usize, hot: u32) {
        self.passed.store(0, Relaxed);
        let (score, now, events) = (self.score.load(Relaxed), clock::ticks(), events as u64);
        let is_thin = events * u64::from(THIN) <= u64::from(hot);
        let (wakes, had) = (self.wakes.load(Relaxed) + 1, self.events.load(Relaxed) + events);
        self.wakes.store(wakes, Relaxed);
        self.events.store(had, Relaxed);
        let in_so_many_sleeps = || had * u64::from(SLEEPS) / wakes;
        let score = match score {
            IS => {
                self.ends(in_so_many_sleeps());
                0
            }
            on if on > IS => on - 1,
            0 if is_thin => {
                self.since.store(now, Relaxed);
                self.counts_from(1, events);
                1
            }
            _ if !is_thin => score.saturating_sub(2),
            ..TIMES => score + 1,
            _ if self.is_due(now) => {
                self.before.store(in_so_many_sleeps(), Relaxed);
                self.counts_from(0, 0);
                IS + SLEEPS
            }
            _ => 0,
        };
        self.score.store(score, Relaxed);
    }

    fn counts_from(&self, wakes: u64, events: u64) {
        self.wakes.store(wakes, Relaxed);
        self.events.store(events, Relaxed);
    }

    /// It stood for its time, and had so many events.
    fn ends(&self, had: u64) {
        if 2 * had < PAYS * self.before.load(Relaxed) {
            self.rests();
        } else {
            self.rest.store(self.rest.load(Relaxed) / 2, Relaxed);
        }
    }

    fn is_due(&self, now: u64) -> bool {
        now.wrapping_sub(self.since.load(Relaxed)) < clock::ticks_of_us(WITHIN_US) && now >= self.until.load(Relaxed)
    }

    /// The bound passed without a ring; `in_vain`: something had come.
    pub fn passed(&self, in_vain: bool) {
        self.passed.store(1, Relaxed);
        if in_vain {
            self.rests();
            self.score.store(0, Relaxed);
        }
    }

    fn rests(&self) {
        let rest = longer(self.rest.load(Relaxed));
        self.rest.store(rest, Relaxed);
        self.until.store(clock::ticks() + rest, Relaxed);
    }
}

/// The rest behind one of so many ticks: twice as long. Of a set, and of a sender ([`super::kept`]).
pub fn longer(rest: u64) -> u64 {
    (rest * 2).clamp(clock::ticks_of_us(REST_US.0), clock::ticks_of_us(REST_US.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> Lenient {
        // SAFETY: all zero is one that has learned nothing.
        unsafe { std::mem::zeroed() }
    }

    fn thin(p: &Lenient, times: u32) {
        (0..times).for_each(|_| p.woke(1, 2 * THIN));
    }

    #[test]
    fn often_woken_for_little_it_is_lenient_for_a_number_of_sleeps() {
        let p = new();
        thin(&p, TIMES);
        assert!(!p.is());
        thin(&p, 1);
        assert!(p.is());
        thin(&p, SLEEPS - 1);
        assert!(p.is());
        thin(&p, 1);
        assert!(!p.is());
    }

    #[test]
    fn woken_for_much_or_seldom_it_is_not() {
        let p = new();
        for _ in 0..100 {
            thin(&p, 1);
            p.woke(8, 8);
        }
        p.woke(1, THIN - 1);
        assert!(!p.is());
        thin(&p, TIMES);
        p.since.store(clock::ticks() - 2 * clock::ticks_of_us(WITHIN_US), Relaxed);
        thin(&p, 1);
        assert!(!p.is());
    }

    #[test]
    fn a_bound_that_passes_is_left_out_once_and_in_vain_for_a_while() {
        let p = new();
        thin(&p, TIMES + 1);
        p.passed(false);
        assert!(!p.is());
        thin(&p, 1);
        assert!(p.is());
        p.passed(true);
        let rest = p.rest.load(Relaxed);
        assert_eq!(rest, clock::ticks_of_us(REST_US.0));
        thin(&p, 4 * TIMES);
        assert!(!p.is());
        p.passed(true);
        assert_eq!(p.rest.load(Relaxed), 2 * rest);
        p.until.store(0, Relaxed);
        thin(&p, TIMES + 1);
        assert!(p.is());
        // It pays.
        (0..=SLEEPS).for_each(|_| p.woke(2, 8));
        assert_eq!(p.rest.load(Relaxed), rest);
    }

    #[test]
    fn where_wakes_have_hardly_more_it_rests() {
        let p = new();
        thin(&p, TIMES + 1);
        thin(&p, SLEEPS + 1);
        assert_eq!(p.rest.load(Relaxed), clock::ticks_of_us(REST_US.0));
        thin(&p, 4 * TIMES);
        assert!(!p.is());
    }
}
