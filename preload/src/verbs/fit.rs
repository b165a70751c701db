//! Whether a link can be had here at all: asked before a connection is marked (`rendezvous::smc`), for a mark is a handshake.
//!
//! Not where no port has an address that a link could be found by (InfiniBand, iWARP, RoCE v1 alone), and for a while not where the process could
//! not make a first domain: too little memory may be locked, or the card has no shared receive queue. That is a minute, and twice as long after
//! each further failure, up to [`LONGEST`]. Where one was made before it was a lack of the moment.

use super::port;
use crate::sys::clock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How long what was found of ports holds: addresses come and go without a word.
const FRESH: u64 = 2_000_000_000;
/// After the first failure.
const FIRST: u64 = 60_000_000_000;
/// At most.
const LONGEST: u64 = 960_000_000_000;

/// What is known of this process.
struct Fit {
    /// When ports were looked at, with what was found in the lowest bit.
    looked: AtomicU64,
    /// How long none is tried; 0 none has failed, [`MADE`] one was made.
    pause: AtomicU64,
    /// Until when.
    until: AtomicU64,
}

const MADE: u64 = u64::MAX;

static FIT: Fit = Fit { looked: AtomicU64::new(0), pause: AtomicU64::new(0), until: AtomicU64::new(0) };

/// Whether it can, as far as is known.
pub fn is_fit() -> bool {
    let now = clock::now_ns();
    port::any() && FIT.may_try(now) && FIT.has_port(now, port::has_address)
}

/// A domain was made, or could not be.
pub(super) fn note_domain(made: bool) {
    FIT.note(made, clock::now_ns());
}

/// A forked child may have other limits.
pub fn forget_in_child() {
    FIT.pause.store(0, Relaxed);
    FIT.until.store(0, Relaxed);
}

impl Fit {
    fn may_try(&self, now: u64) -> bool {
        self.until.load(Relaxed) <= now
    }

    fn has_port(&self, now: u64, look: impl FnOnce() -> bool) -> bool {
        let known = self.looked.load(Relaxed);
        if known != 0 && now < known + FRESH {
            return known & 1 != 0;
        }
        let found = look();
        self.looked.store(now & !1 | u64::from(found), Relaxed);
        found
    }

    fn note(&self, made: bool, now: u64) {
        let pause = self.pause.load(Relaxed);
        if made {
            self.pause.store(MADE, Relaxed);
            self.until.store(0, Relaxed);
        } else if pause != MADE && self.may_try(now) {
            // Those that began together fail together: that is one failure.
            let pause = (pause * 2).clamp(FIRST, LONGEST);
            self.pause.store(pause, Relaxed);
            self.until.store(now + pause, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit() -> Fit {
        Fit { looked: AtomicU64::new(0), pause: AtomicU64::new(0), until: AtomicU64::new(0) }
    }

    #[test]
    fn who_cannot_make_the_first_domain_tries_again_ever_less_often() {
        let (f, mut now) = (fit(), 5_000_000_000);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            f.note(false, now);
            f.note(false, now + 1); // one that began at the same time
            let begun = now;
            while !f.may_try(now) {
                now += 1_000_000_000;
            }
            pauses.push((now - begun) / 1_000_000_000);
        }
        assert_eq!(pauses, [60, 120, 240, 480, 960, 960]);
        f.note(true, now);
        f.note(false, now);
        assert!(f.may_try(now), "what was possible before");
    }

    #[test]
    fn ports_are_looked_at_from_time_to_time() {
        let (f, now, looks) = (fit(), 7_000_000_001, std::cell::Cell::new(0));
        // What is known then where a look would find this, and how often there was one.
        let known = |at: u64, found: bool| {
            let known = f.has_port(at, || {
                looks.set(looks.get() + 1);
                found
            });
            (known, looks.get())
        };
        assert_eq!(known(now, false), (false, 1));
        assert_eq!(known(now + FRESH / 2, true), (false, 1));
        assert_eq!(known(now + FRESH, true), (true, 2));
        assert_eq!(known(now + FRESH + 5, false), (true, 2));
        assert_eq!(known(now + 2 * FRESH + 5, false), (false, 3));
    }
}
