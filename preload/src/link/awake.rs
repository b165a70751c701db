//! Whether this process has stood still: it was stopped, or its whole host was.
//!
//! The clocks have gone on meanwhile, and what the peers have said has not been heard, so no deadline counts before there was time to
//! hear it. Known by the service thread alone ([`super::arrive`]): it comes later than it was to. While an answer is awaited
//! it comes once in a [`STEP`], so that it is known wherever in a wait it was.

use smcr_proto::smc::Time;

/// How often the service thread comes while an answer is awaited, or has been within this time.
pub(super) const STEP: Time = Time::from_secs(1);
/// How late it may be on a busy machine.
const LATE: Time = Time::from_millis(500);
/// How long no deadline counts after that: what was sent meanwhile is repeated by the peer's network card within this time.
const GRACE: Time = Time::from_secs(1);

/// What the service thread knows of its own time.
pub(super) struct Awake {
    /// When it is to come.
    comes: Option<Time>,
    /// From when deadlines count.
    count_from: Time,
}

impl Awake {
    /// It has not come yet.
    pub const NEW: Awake = Awake { comes: None, count_from: Time::ZERO };

    /// It is there now. From when deadlines count.
    pub fn look(&mut self, now: Time) -> Time {
        if self.comes.is_some_and(|at| now > at + LATE) {
            self.count_from = now + GRACE;
        }
        self.count_from
    }

    /// It comes again at this time, if nothing calls it.
    pub fn comes_at(&mut self, at: Option<Time>) {
        self.comes = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_deadline_counts_right_after_a_standstill() {
        let mut awake = Awake::NEW;
        let at = Time::from_secs(100);
        assert_eq!(awake.look(at), Time::ZERO, "the first time");
        awake.comes_at(Some(at + STEP));
        assert!(awake.look(at + STEP + LATE) <= at + STEP, "late is not still");
        awake.comes_at(Some(at + STEP + STEP));
        let up = at + Time::from_secs(9);
        assert_eq!(awake.look(up), up + GRACE);
        awake.comes_at(Some(up + GRACE));
        assert_eq!(awake.look(up + GRACE), up + GRACE, "they count again");
        awake.comes_at(None);
        assert_eq!(awake.look(up + Time::from_secs(900)), up + GRACE, "it was not to come");
    }
}
