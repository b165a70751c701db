//! The clocks of a link group and of its links, and their lengths in Linux.
//!
//! Owned by [`super::Group`] and [`super::one::Link`].

use crate::smc::Time;

/// Wait for an answer to any request (SMC_LLC_WAIT_TIME).
pub const FLOW: Time = Time::from_secs(2);
/// A client's wait for the first Confirm Link (SMC_LLC_WAIT_FIRST_TIME).
pub const CONFIRM_CLIENT: Time = Time::from_secs(4);
/// Wait for each step of a second link, on both sides. The peer may have to open its device; nobody waits for it.
pub const SECOND: Time = Time::from_secs(10);
/// Linux tests a link after this long without any arrival (net.smc.smcr_testlink_time).
pub const TEST_LINK: Time = Time::from_secs(30);
/// How long a group without connections is kept by its server end.
pub const IDLE_SERVER: Time = Time::from_secs(600);
/// The same for the client end, which waits for the server to go first.
pub const IDLE_CLIENT: Time = Time::from_secs(610);

/// What a clock of a link is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(super) enum OfLink {
    /// The next step of bringing it up has to come.
    Confirm,
    /// Time for a Test Link.
    Test,
    /// A sign of life after a Test Link.
    TestAnswer,
}

/// What a clock of the group is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(super) enum OfGroup {
    /// The answer to a request of this end.
    Flow,
    /// The group has no connection.
    Idle,
}

/// Clocks, each named by its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers<const N: usize>([Option<Time>; N]);

/// Those of a link.
pub(super) type LinkTimers = Timers<3>;
/// Those of the group.
pub(super) type GroupTimers = Timers<2>;

impl<const N: usize> Default for Timers<N> {
    fn default() -> Self {
        Timers([None; N])
    }
}

impl<const N: usize> Timers<N> {
    fn put(&mut self, place: usize, at: Option<Time>) {
        self.0[place] = at;
    }

    fn due(&mut self, place: usize, now: Time) -> bool {
        let due = self.0[place].is_some_and(|at| at <= now);
        if due {
            self.0[place] = None;
        }
        due
    }

    /// The first to run out.
    pub fn next(&self) -> Option<Time> {
        self.0.iter().flatten().min().copied()
    }
}

impl LinkTimers {
    pub fn set(&mut self, timer: OfLink, at: Time) {
        self.put(timer as usize, Some(at));
    }

    pub fn clear(&mut self, timer: OfLink) {
        self.put(timer as usize, None);
    }

    /// Whether it has run out; it is stopped then.
    pub fn take_due(&mut self, timer: OfLink, now: Time) -> bool {
        self.due(timer as usize, now)
    }
}

impl GroupTimers {
    pub fn set(&mut self, timer: OfGroup, at: Time) {
        self.put(timer as usize, Some(at));
    }

    pub fn clear(&mut self, timer: OfGroup) {
        self.put(timer as usize, None);
    }

    /// Whether it has run out; it is stopped then.
    pub fn take_due(&mut self, timer: OfGroup, now: Time) -> bool {
        self.due(timer as usize, now)
    }
}
