//! When the service thread leaves the completion channel to the threads of the program, and for how long.
//!
//! It rests after two of their looks within [`MOST`], for as long as [`RATIO`] of them take, and goes on while each rest has had
//! one: so it wakes less often than they do, and what nobody takes lies the shorter the more often they come.

use super::is_anybody_deaf;
use crate::link::lock;
use smcr_proto::smc::Time;
use std::sync::atomic::{AtomicU32, Ordering::*, fence};

/// How long the service thread stays away at least, and at most.
const LEAST: Time = Time::from_millis(5);
const MOST: Time = Time::from_millis(40);
const RATIO: u32 = 8;

/// It does not listen.
static RESTS: AtomicU32 = AtomicU32::new(0);
/// Times that threads of the program have looked, and found something or slept.
static LOOKS: AtomicU32 = AtomicU32::new(0);

/// A thread of the program has looked.
pub fn note_look() {
    LOOKS.fetch_add(1, Relaxed);
}

/// Whether the service thread rests, or is about to.
pub fn is_on() -> bool {
    RESTS.load(Relaxed) != 0
}

/// It is not to rest; true if it did.
pub fn end() -> bool {
    RESTS.swap(0, AcqRel) != 0
}

/// The service thread's own.
#[derive(Default)]
pub struct Rest {
    /// Until when it rests; None: it listens.
    until: Option<Time>,
    /// From when looks are counted, and how many there had been.
    since: Time,
    looks: u32,
}

impl Rest {
    /// Before it sleeps: until when it rests. None: it listens. `may`: nothing that is under way is waited for.
    pub fn look(&mut self, now: Time, may: bool) -> Option<Time> {
        let called = self.until.is_some() && !is_on();
        let until = self.decide(now, LOOKS.load(Relaxed), may && !called && !is_anybody_deaf());
        if until.is_none() {
            end();
            return None;
        }
        RESTS.store(1, Relaxed);
        // Pairs with the fences in `leave`, `call_up` and `Waiter::fall_asleep`: either we see who sleeps or waits, or that one
        // sees that we rest.
        fence(SeqCst);
        if is_anybody_deaf() || lock::is_stalled() {
            end();
            self.until = None;
            return None;
        }
        until
    }

    /// The same, from the number of looks.
    fn decide(&mut self, now: Time, looks: u32, may: bool) -> Option<Time> {
        let (new, took) = (looks.wrapping_sub(self.looks), now.saturating_sub(self.since));
        let goes_on = match self.until.filter(|_| may) {
            Some(until) if now < until => return Some(until),
            Some(_) => new > 0,
            None => may && new > 1 && took < MOST,
        };
        if goes_on || !may || self.until.is_some() || took >= MOST {
            (self.since, self.looks) = (now, looks);
        }
        self.until = goes_on.then(|| now + (took * RATIO / new).clamp(LEAST, MOST));
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(1000 + ms)
    }

    #[test]
    fn it_rests_while_others_look() {
        let mut r = Rest::default();
        assert_eq!(r.decide(at(0), 7, true), None, "nothing is known of what was before");
        assert_eq!(r.decide(at(1), 8, true), None, "one look is none");
        assert_eq!(r.decide(at(2), 9, true), Some(at(10)));
        assert_eq!(r.decide(at(5), 9, true), Some(at(10)), "called for something else");
        assert_eq!(r.decide(at(10), 10, true), Some(at(50)), "looks are rare");
        assert_eq!(r.decide(at(50), 4000, true), Some(at(55)), "and often");
        assert_eq!(r.decide(at(55), 4000, true), None, "nobody has looked");
        assert_eq!(r.decide(at(500), 4002, true), None, "two looks within half a second");
    }

    #[test]
    fn it_listens_where_others_wait() {
        let mut r = Rest::default();
        r.decide(at(0), 0, true);
        assert!(r.decide(at(1), 2, true).is_some());
        assert_eq!(r.decide(at(2), 5, false), None);
        assert_eq!(r.decide(at(3), 6, true), None, "what was before does not count");
        assert!(r.decide(at(4), 8, true).is_some());
    }
}
