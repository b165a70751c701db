//! What a handshake waits for, which the service thread sleeps for.

use super::greet::Late;
use super::{Machine, Shake};
use crate::link::lock::now;
use smcr_proto::smc::Time;

/// What the thread waits for.
pub struct Wants {
    /// poll(2) events.
    pub events: i16,
    /// When to come again.
    pub at: Option<Time>,
}

/// A timeout of poll(2) that ends at this time. Rounded up: a deadline is never met too early, which would be a busy loop.
pub fn until(at: Time) -> i32 {
    at.saturating_sub(now()).as_micros().div_ceil(1000).min(60_000) as i32
}

impl Shake {
    /// Whether a step may get it further: something happened, its time has come, or it waits for what
    /// makes no event.
    pub fn is_due(&mut self, now: Time) -> bool {
        let asks = self.drained.is_some() || self.awaits_link || self.proposal.is_some();
        let signalled = std::mem::take(&mut self.is_signalled);
        signalled || asks || self.wants().at.is_some_and(|at| at <= now)
    }

    /// What to wait for.
    pub fn wants(&self) -> Wants {
        let mut events = 0;
        let (want, at) = match &self.machine {
            // It is readable all the time.
            Machine::Client(_) | Machine::Server(_) if self.awaits_link && self.ended.is_some() => (false, None),
            Machine::Client(_) | Machine::Server(_) if self.awaits_link && self.is_ours() => (true, None),
            Machine::Client(m) => (m.want() > 0, m.poll_timeout()),
            Machine::Server(m) => (m.want() > 0, m.poll_timeout()),
            Machine::Greeting(until) => (true, Some(*until)),
            Machine::Fresh => (false, Some(self.sight.at())),
            // A part of it makes the socket readable all the time.
            Machine::Over => (self.late != Late::Nothing && self.rest_until.is_none(), self.rest_until),
        };
        if want {
            events |= libc::POLLIN;
        }
        let mut at = at;
        if let Some(drained) = self.drained {
            if self.head() != drained {
                events |= libc::POLLOUT;
            } else if self.sends && !self.receives {
                // For what may come late, or the program's end.
                at = Some(now() + Time::from_secs(1));
            } else {
                // The program holds the lock of a direction at this moment, or is about to send.
                at = Some(now() + Time::from_millis(1));
            }
        } else if !self.out.is_empty() {
            events |= libc::POLLOUT;
        }
        if self.awaits_link || self.proposal.is_some() {
            let soon = now() + Time::from_millis(20);
            at = Some(at.map_or(soon, |t| t.min(soon)));
        }
        Wants { events, at }
    }
}
