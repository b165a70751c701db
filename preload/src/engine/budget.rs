//! The budget of a direction for polling: what the waits before have taught. Used by [`super::spin`] and by every wait that has
//! slept.
//!
//! It lies between 0 and the limit, and doubles when polling paid, or when the sleep that followed says that polling for the
//! whole limit would have: the peer rang within one limit of the beginning of the wait, or, where it does not say when, the
//! wait was over within 1.5 limits, the wake included. Else it halves, down to 0. What counts is the wait and not the sleep
//! alone: behind 50 us of polling 15 us of sleep are short, and waits of 65 us would be polled at for ever and never met.

use super::spin::renew_cpu;
use crate::config;
use crate::sys::{clock, thread};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// After a sleep that began at `since`, when polling had failed or was not tried: whether more of it would have paid.
pub fn slept(word: &AtomicU32, since: u64) {
    let limit = clock::ticks_of_us(u64::from(config::spin_us()));
    let budget = budget_of(word, limit);
    let (missed, rung) = thread::with(|t| {
        renew_cpu(t);
        (t.missed.get(), t.rung.replace(0))
    });
    // The polling that failed, unless it was another wait's.
    let began = if budget > 0 && since.saturating_sub(missed) < 2 * limit { missed.min(since) } else { since };
    let now = clock::ticks();
    let came = Came::new(began, now, Some(rung).filter(|at| *at > since && *at <= now), limit);
    set_budget(word, after_sleep(budget, limit, came));
}

/// The peer rang this thread at this tick, says the peer: for the [`slept`] that follows.
pub fn was_rung(at: u64) {
    thread::with(|t| t.rung.set(at));
}

/// What a sleep says of polling for the whole limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Came {
    /// It would have met what came.
    InTime,
    /// Perhaps: the wait was short, but took longer than polling may.
    Soon,
    /// It would not.
    Late,
}

impl Came {
    fn new(began: u64, now: u64, rung: Option<u64>, limit: u64) -> Self {
        match rung {
            Some(at) if at.saturating_sub(began) < limit => Self::InTime,
            None if now.saturating_sub(began) < limit + limit / 2 => Self::Soon,
            _ => Self::Late,
        }
    }
}

/// The budget after a sleep that says so.
fn after_sleep(budget: u64, limit: u64, came: Came) -> u64 {
    if came == Came::InTime || came == Came::Soon && budget < limit {
        (budget * 2).clamp(limit / 16, limit)
    } else if budget < limit / 32 {
        0
    } else {
        budget / 2
    }
}

/// Ticks that may be polled. Stored budgets are offset by one, so that a fresh record (0) starts with the whole limit.
pub fn budget_of(word: &AtomicU32, limit: u64) -> u64 {
    match word.load(Relaxed) {
        0 => limit,
        n => u64::from(n - 1).min(limit),
    }
}

/// Stores it.
pub fn set_budget(word: &AtomicU32, ticks: u64) {
    word.store(ticks.min(u64::from(u32::MAX - 1)) as u32 + 1, Relaxed);
}

/// The budget after a poll that paid.
#[inline(always)]
pub fn paid(budget: u64, limit: u64) -> u64 {
    (budget * 2).min(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks; 50 us at 2 GHz.
    const LIMIT: u64 = 100_000;
    const LONG: u64 = LIMIT * 100;

    #[test]
    fn a_fresh_record_has_the_whole_limit_and_none_exceeds_it() {
        let word = AtomicU32::new(0);
        assert_eq!(budget_of(&word, LIMIT), LIMIT);
        for ticks in [0, 1, LIMIT - 1, LIMIT] {
            set_budget(&word, ticks);
            assert_eq!(budget_of(&word, LIMIT), ticks);
        }
        // A limit that was lowered meanwhile holds, and what does not fit is the most that does.
        assert_eq!(budget_of(&word, LIMIT / 4), LIMIT / 4);
        set_budget(&word, u64::MAX);
        assert_eq!(budget_of(&word, u64::MAX), u64::from(u32::MAX - 1));
    }

    #[test]
    fn what_pays_doubles_up_to_the_limit() {
        let (mut budget, mut times) = (LIMIT / 16, 0);
        while budget < LIMIT {
            let next = paid(budget, LIMIT);
            assert_eq!(next, (budget * 2).min(LIMIT));
            (budget, times) = (next, times + 1);
        }
        assert_eq!((budget, times), (LIMIT, 4));
        assert_eq!(paid(LIMIT, LIMIT), LIMIT);
    }

    #[test]
    fn late_arrivals_halve_it_to_nothing() {
        let (mut budget, mut polled, mut times) = (LIMIT, 0, 0);
        while budget > 0 {
            let next = after_sleep(budget, LIMIT, Came::Late);
            assert_eq!(next, if budget < LIMIT / 32 { 0 } else { budget / 2 });
            polled += budget;
            (budget, times) = (next, times + 1);
        }
        // Whatever a connection waits for, it polls less than two limits for nothing before it stops.
        assert!(times == 7 && polled < 2 * LIMIT, "{times} {polled}");
        assert_eq!(after_sleep(0, LIMIT, Came::Late), 0);
    }

    #[test]
    fn an_early_ring_brings_it_back() {
        for came in [Came::InTime, Came::Soon] {
            assert_eq!(after_sleep(0, LIMIT, came), LIMIT / 16);
            assert_eq!(after_sleep(LIMIT / 4, LIMIT, came), LIMIT / 2);
        }
        assert_eq!(after_sleep(LIMIT, LIMIT, Came::InTime), LIMIT);
        // Polling for all of it has just failed.
        assert_eq!(after_sleep(LIMIT, LIMIT, Came::Soon), LIMIT / 2);
    }

    #[test]
    fn when_the_peer_rang_counts_or_how_long_the_wait_was() {
        let came = |now, rung| Came::new(1000, 1000 + now, rung, LIMIT);
        // However long the wake took.
        assert_eq!(came(LONG, Some(1000 + LIMIT - 1)), Came::InTime);
        assert_eq!(came(LIMIT + 1, Some(1000 + LIMIT)), Came::Late);
        assert_eq!(came(LIMIT + LIMIT / 2 - 1, None), Came::Soon);
        assert_eq!(came(LIMIT + LIMIT / 2, None), Came::Late);
    }

    #[test]
    fn what_comes_just_behind_the_limit_is_not_polled_for() {
        // A wait of 1.3 limits each time, of which nobody says more; a wake takes 0.4.
        let (mut budget, mut polled) = (LIMIT, 0);
        for _ in 0..100 {
            polled += budget;
            budget = after_sleep(budget, LIMIT, Came::new(0, LIMIT * 17 / 10, None, LIMIT));
        }
        assert!(budget == 0 && polled < 2 * LIMIT, "{budget} {polled}");
    }

    #[test]
    fn a_limit_of_nothing_stays_nothing() {
        for came in [Came::InTime, Came::Soon, Came::Late] {
            assert_eq!(after_sleep(0, 0, came), 0);
        }
        assert_eq!(paid(0, 0), 0);
    }
}
