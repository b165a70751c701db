//! The clocks of a link group, and their lengths in Linux.
//!
//! Owned by [`super::Group`].

use crate::smc::Time;

/// Wait for an answer to any request (SMC_LLC_WAIT_TIME).
pub const FLOW: Time = Time::from_secs(2);
/// A client's wait for the first Confirm Link (SMC_LLC_WAIT_FIRST_TIME).
pub const CONFIRM_CLIENT: Time = Time::from_secs(4);
/// Linux tests a link after this long without any arrival (net.smc.smcr_testlink_time).
pub const TEST_LINK: Time = Time::from_secs(30);
/// How long a group without connections is kept by its server end.
pub const IDLE_SERVER: Time = Time::from_secs(600);
/// The same for the client end, which waits for the server to go first.
pub const IDLE_CLIENT: Time = Time::from_secs(610);

/// What a clock is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(super) enum Timer {
    /// Confirm Link has to come.
    Confirm,
    /// The answer to a request of this end.
    Flow,
    /// Time for a Test Link.
    Test,
    /// A sign of life after a Test Link.
    TestAnswer,
    /// The group has no connection.
    Idle,
}

/// All of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timers([Option<Time>; 5]);

impl Timers {
    pub fn set(&mut self, timer: Timer, at: Time) {
        self.0[timer as usize] = Some(at);
    }

    pub fn clear(&mut self, timer: Timer) {
        self.0[timer as usize] = None;
    }

    /// Whether it has run out; it is stopped then.
    pub fn take_due(&mut self, timer: Timer, now: Time) -> bool {
        let due = self.0[timer as usize].is_some_and(|at| at <= now);
        if due {
            self.clear(timer);
        }
        due
    }

    /// The first to run out.
    pub fn next(&self) -> Option<Time> {
        self.0.iter().flatten().min().copied()
    }
}
