//! What one blocking call waits by: its limit, and from when on handlers run only while it sleeps. Made by `rx` and `tx`, used by
//! [`super::wait`].

use super::signals;
use crate::sys::{clock, proc};

/// SO_RCVTIMEO or SO_SNDTIMEO of one call; the clock is read only when the call waits.
pub struct Timer {
    limit: u64,
    deadline: u64,
    has_slept: bool,
    /// The program's signal mask, while its signals are kept for the sleeps.
    kept: Option<u64>,
}

impl Timer {
    /// A limit in ns; 0 = none.
    pub fn lazy(limit: u64) -> Timer {
        Timer { limit, deadline: 0, has_slept: false, kept: None }
    }

    /// Time left: None without a limit, Some(0) when it is over.
    pub fn left(&mut self) -> Option<u64> {
        if self.limit == 0 {
            return None;
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

    /// Before each sleep. A call that sleeps again is inside the kernel all the time for the program, and a signal ends it: so
    /// from then on none is handled between its sleeps, where it would end nothing. `again`: there was a sleep, or will be more.
    pub fn begin_sleep(&mut self, again: bool) {
        if (again || self.has_slept) && self.kept.is_none() && signals::has_handlers() {
            self.kept = Some(proc::block_signals());
        }
        self.has_slept = true;
    }

    /// The mask to sleep with, if it is another one than the thread has.
    pub fn mask(&self) -> Option<libc::sigset_t> {
        self.kept.map(proc::signal_set)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(mask) = self.kept {
            proc::set_signal_mask(mask);
        }
    }
}
