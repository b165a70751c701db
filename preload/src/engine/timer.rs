//! What one blocking call waits by: its limit, and whether a signal has come since it began. Made by `rx` and `tx`, used by
//! [`super::wait`].

use super::handlers::Since;
use crate::sys::clock;

/// The limit of a time before now, by which a call never waits. The kernel keeps it as well, and shows it as none.
pub const AT_ONCE: u64 = 1;

/// SO_RCVTIMEO or SO_SNDTIMEO of one call; the clock is read only when the call waits.
pub struct Timer {
    limit: u64,
    deadline: u64,
    since: Since,
}

impl Timer {
    /// A limit in ns; 0 = none. The call begins now.
    pub fn lazy(limit: u64) -> Timer {
        Timer::since(limit, Since::now())
    }

    /// Of a call that has polled already.
    pub fn since(limit: u64, since: Since) -> Timer {
        Timer { limit, deadline: 0, since }
    }

    /// Time left: None without a limit, Some(0) when it is over.
    pub fn left(&mut self) -> Option<u64> {
        match self.limit {
            0 => return None,
            AT_ONCE => return Some(0),
            _ => {}
        }
        let now = clock::now_ns();
        if self.deadline == 0 {
            self.deadline = now.saturating_add(self.limit);
        }
        Some(self.deadline.saturating_sub(now))
    }

    pub fn has_limit(&self) -> bool {
        self.limit != 0
    }

    /// Whether some of it is over.
    pub fn has_begun(&self) -> bool {
        self.deadline != 0
    }

    /// When the call began, or since when it knows what handlers have run.
    pub fn when(&self) -> Since {
        self.since
    }

    /// Whether a handler has run since the call began, or since this was asked last: for the program the call is inside the
    /// kernel all the time, and ends by that.
    pub fn is_interrupted(&mut self) -> bool {
        let is_interrupted = self.since.has_one_run();
        self.since = Since::now();
        is_interrupted
    }
}
