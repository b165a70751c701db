//! Who is left alone for a while, since something was tried with them in vain. `engine::patience` and `rendezvous::refusals` use it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// So many at a time. Of this process; a forked child goes on with a copy.
pub struct Rests<const N: usize>([Rest; N]);

struct Rest {
    who: AtomicU64,
    /// In ns.
    until: AtomicU64,
}

impl<const N: usize> Rests<N> {
    /// Nobody.
    pub const fn none() -> Rests<N> {
        Rests([const { Rest { who: AtomicU64::new(0), until: AtomicU64::new(0) } }; N])
    }

    /// Whether they are left alone at `now`.
    pub fn has(&self, who: u64, now: u64) -> bool {
        self.0.iter().any(|rest| rest.until.load(Relaxed) > now && rest.who.load(Relaxed) == who)
    }

    /// Whether there is no place for more of them at `now`.
    pub fn is_full(&self, now: u64) -> bool {
        self.0.iter().all(|rest| rest.until.load(Relaxed) > now)
    }

    /// They are, from `now` until then. Of two threads that take the same place one is remembered.
    pub fn begin(&self, who: u64, now: u64, until: u64) {
        let its = self.0.iter().find(|rest| rest.until.load(Relaxed) > now && rest.who.load(Relaxed) == who);
        if let Some(rest) = its.or_else(|| self.0.iter().find(|rest| rest.until.load(Relaxed) <= now)) {
            rest.who.store(who, Relaxed);
            rest.until.fetch_max(until, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rests_for_its_time_and_it_is_known_where_they_are_too_many() {
        let t = Rests::<4>::none();
        assert!(!t.has(7, 1000));
        t.begin(7, 1000, 2000);
        assert!(t.has(7, 1999) && !t.has(7, 2000) && !t.has(8, 1000));
        t.begin(7, 1500, 1600);
        assert!(t.has(7, 1999), "no less for a shorter one");
        t.begin(100, 1000, 2000);
        t.begin(101, 1000, 2000);
        assert!(!t.has(8, 1000));
        t.begin(99, 1000, 1500);
        assert!(t.is_full(1000) && !t.has(8, 1000), "too many");
        assert!(!t.is_full(1500));
        t.begin(8, 1500, 3000);
        assert!(t.has(8, 2999) && !t.has(99, 2999));
    }
}
