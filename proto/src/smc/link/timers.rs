//! The clocks of a link group and of its links, and their lengths in Linux.
//!
//! Owned by [`super::Group`] and [`super::one::Link`].

use core::marker::PhantomData;

use crate::smc::Time;

/// Wait for an answer to any request (SMC_LLC_WAIT_TIME).
pub const FLOW: Time = Time::from_secs(2);
/// A client's wait for the first Confirm Link (SMC_LLC_WAIT_FIRST_TIME).
pub const CONFIRM_CLIENT: Time = Time::from_secs(4);
/// Wait for each step of a second link, on both sides. The peer may have to open its device; nobody waits for it.
pub const SECOND: Time = Time::from_secs(10);
/// Wait before another attempt at a second link that was lost; twice as long after each that fails.
pub const AGAIN: Time = Time::from_secs(5);
/// The longest such wait.
pub const AGAIN_MOST: Time = Time::from_secs(60);
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
    /// Another attempt at a second link.
    Again,
}

/// What names a clock.
pub(super) trait Which: Copy {
    fn place(self) -> usize;
}

impl Which for OfLink {
    fn place(self) -> usize {
        self as usize
    }
}

impl Which for OfGroup {
    fn place(self) -> usize {
        self as usize
    }
}

/// Clocks, each named by its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers<W>([Option<Time>; 3], PhantomData<W>);

/// Those of a link.
pub(super) type LinkTimers = Timers<OfLink>;
/// Those of the group.
pub(super) type GroupTimers = Timers<OfGroup>;

impl<W> Default for Timers<W> {
    fn default() -> Self {
        Timers([None; 3], PhantomData)
    }
}

impl<W: Which> Timers<W> {
    pub fn set(&mut self, timer: W, at: Time) {
        self.0[timer.place()] = Some(at);
    }

    pub fn clear(&mut self, timer: W) {
        self.0[timer.place()] = None;
    }

    /// Whether it has run out; it is stopped then.
    pub fn take_due(&mut self, timer: W, now: Time) -> bool {
        let clock = &mut self.0[timer.place()];
        let due = clock.is_some_and(|at| at <= now);
        if due {
            *clock = None;
        }
        due
    }

    /// Whether it runs.
    pub fn runs(&self, timer: W) -> bool {
        self.0[timer.place()].is_some()
    }

    /// The first to run out.
    pub fn next(&self) -> Option<Time> {
        self.0.iter().flatten().min().copied()
    }
}
