//! Loops that a peer can make turn for nothing, and what slows them down.
//!
//! Used by `rx` and by the hooked waits.

use crate::sys::{clock, fd};

/// Counts rounds of a loop that found nothing to do although it was woken. Honest peers make a few; one
/// that writes nonsense can make them without end, and then each costs a millisecond of sleep.
#[derive(Default)]
pub struct Rounds {
    n: u32,
    since: u64,
}

/// Round at which the clock is read: most loops make one.
const FIRST: u32 = 2;
/// Rounds that may be fast.
const FREE_ROUNDS: u32 = 64;

impl Rounds {
    /// One more round; true if they come so fast that the caller has to slow down.
    #[inline]
    pub fn are_too_fast(&mut self) -> bool {
        self.n += 1;
        if self.n < FREE_ROUNDS {
            if self.n == FIRST {
                self.since = clock::ticks();
            }
            return false;
        }
        // Real sleeps and wakes are slower than that.
        let fast = clock::ticks().wrapping_sub(self.since) < clock::ticks_of_us(u64::from(self.n) * 10);
        if !fast {
            self.n = 0;
        }
        fast
    }

    /// One more round; sleeps a millisecond if they come too fast.
    #[inline]
    pub fn another(&mut self) {
        if self.are_too_fast() {
            let _ = fd::poll(&mut [], 1);
        }
    }
}
