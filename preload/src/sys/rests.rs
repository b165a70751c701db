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

    /// Whether they are left alone at `now`. Where there is no place for more of them, all others are as well.
    pub fn has(&self, who: u64, now: u64) -> bool {
        let mut is_full = true;
        for rest in &self.0 {
            let lasts = rest.until.load(Relaxed) > now;
            if lasts && rest.who.load(Relaxed) == who {
                return true;
            }
            is_full &= lasts;
        }
        is_full
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
    fn each_rests_for_its_time_and_all_where_they_are_too_many() {
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
        assert!(t.has(8, 1000), "too many");
        assert!(!t.has(8, 1500));
        t.begin(8, 1500, 3000);
        assert!(t.has(8, 2999) && !t.has(99, 2999));
    }
}
