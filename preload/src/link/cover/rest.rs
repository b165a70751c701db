//! When the service thread leaves the completion channel to the threads of the program, and for how long.
//!
//! It rests after two of their looks within [`MOST`], for that long, and goes on while each rest has had one. While bytes of a
//! connection wait for room at the peer it rests only as long as [`RATIO`] looks take: the room may come while the program
//! computes, and the bytes lie the shorter the more often its threads look. All else that nobody takes is for the program, when it
//! looks, or has time.

use super::is_anybody_deaf;
use crate::link::lock;
use crate::sys::thread::full_fence;
use smcr_proto::smc::Time;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// How long the service thread stays away at least, and at most.
const LEAST: Time = Time::from_millis(5);
const MOST: Time = Time::from_millis(40);
const RATIO: u32 = 8;

/// It does not listen.
static RESTS: AtomicU32 = AtomicU32::new(0);
/// The same, for long.
static RESTS_LONG: AtomicU32 = AtomicU32::new(0);
/// Connections whose bytes wait for room at the peer.
static WAITING: AtomicU32 = AtomicU32::new(0);
/// When the last of them began to, in nanoseconds: who waited a moment ago will wait again.
static WAITED: AtomicU64 = AtomicU64::new(0);
const MOMENT: Time = Time::from_millis(200);
/// Times that threads of the program have looked, and found something or slept.
static LOOKS: AtomicU32 = AtomicU32::new(0);

/// A thread of the program has looked.
pub fn note_look() {
    LOOKS.fetch_add(1, Relaxed);
}

/// Bytes of a connection begin to wait for room at the peer: no long rest from now on.
pub fn room_is_waited_for() {
    WAITED.store(lock::now().as_nanos() as u64, Relaxed);
    WAITING.fetch_add(1, Relaxed);
    // Pairs with the fence in `Rest::look`: either it sees the number, or we that it rests for long.
    full_fence();
    if RESTS_LONG.swap(0, Relaxed) != 0 {
        super::call_up();
    }
}

/// No more.
pub fn room_is_not_waited_for() {
    WAITING.fetch_sub(1, Relaxed);
}

/// Whether bytes of a connection do.
pub fn is_room_waited_for() -> bool {
    WAITING.load(Relaxed) != 0
}

/// Whether the service thread rests, or is about to.
pub fn is_on() -> bool {
    RESTS.load(Relaxed) != 0
}

/// It is not to rest; true if it did.
pub fn end() -> bool {
    RESTS.swap(0, AcqRel) != 0
}

/// A forked child has neither the service thread nor the connections.
pub fn forget_in_child() {
    for word in [&RESTS, &RESTS_LONG, &WAITING] {
        word.store(0, Relaxed);
    }
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
        let short = WAITING.load(Relaxed) != 0 || now < Time::from_nanos(WAITED.load(Relaxed)) + MOMENT;
        let until = self.decide(now, LOOKS.load(Relaxed), may && !called && !is_anybody_deaf(), short);
        RESTS_LONG.store(u32::from(until.is_some() && !short), Relaxed);
        if until.is_none() {
            end();
            return None;
        }
        RESTS.store(1, Relaxed);
        // Pairs with the fences in `leave`, `call_up`, `room_is_waited_for` and `Waiter::fall_asleep`: either we see who sleeps or
        // waits, or that one sees that we rest.
        full_fence();
        if is_anybody_deaf() || lock::is_stalled() || !short && WAITING.load(Relaxed) != 0 {
            end();
            self.until = None;
            return None;
        }
        until
    }

    /// The same, from the number of looks; `short`: bytes wait for room.
    fn decide(&mut self, now: Time, looks: u32, may: bool, short: bool) -> Option<Time> {
        let (new, took) = (looks.wrapping_sub(self.looks), now.saturating_sub(self.since));
        let goes_on = match self.until.filter(|_| may) {
            Some(until) if now < until => return Some(until),
            Some(_) => new > 0,
            None => may && new > 1 && took < MOST,
        };
        if goes_on || !may || self.until.is_some() || took >= MOST {
            (self.since, self.looks) = (now, looks);
        }
        let long = if short { (took * RATIO / new.max(1)).clamp(LEAST, MOST) } else { MOST };
        self.until = goes_on.then(|| now + long);
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
        assert_eq!(r.decide(at(0), 7, true, false), None, "nothing is known of what was before");
        assert_eq!(r.decide(at(1), 8, true, false), None, "one look is none");
        assert_eq!(r.decide(at(2), 9, true, false), Some(at(42)));
        assert_eq!(r.decide(at(5), 9, true, false), Some(at(42)), "called for something else");
        assert_eq!(r.decide(at(42), 10, true, false), Some(at(82)), "looks are rare");
        assert_eq!(r.decide(at(82), 10, true, false), None, "nobody has looked");
        assert_eq!(r.decide(at(500), 4002, true, false), None, "two looks within half a second");
    }

    #[test]
    fn it_rests_the_less_while_bytes_wait_the_more_others_look() {
        let mut r = Rest::default();
        r.decide(at(0), 7, true, true);
        assert_eq!(r.decide(at(2), 9, true, true), Some(at(10)));
        assert_eq!(r.decide(at(10), 10, true, true), Some(at(50)), "looks are rare");
        assert_eq!(r.decide(at(50), 4000, true, true), Some(at(55)), "and often");
        assert_eq!(r.decide(at(55), 4001, true, false), Some(at(95)), "none wait");
        assert_eq!(r.decide(at(95), 4001, true, true), None, "nobody has looked");
    }

    #[test]
    fn it_listens_where_others_wait() {
        let mut r = Rest::default();
        r.decide(at(0), 0, true, false);
        assert!(r.decide(at(1), 2, true, false).is_some());
        assert_eq!(r.decide(at(2), 5, false, false), None);
        assert_eq!(r.decide(at(3), 6, true, false), None, "what was before does not count");
        assert!(r.decide(at(4), 8, true, false).is_some());
    }
}
