//! Requests to move live connections back to TCP (`smcrctl drain`).
//!
//! A page keeps the last [`RING`] requests, numbered from 1. A process notes the number of the
//! newest one when it first maps the page, since older ones do not concern it, and later asks for
//! those that came after the newest it has seen.

/// Requests that a page keeps.
pub const RING: usize = 8;

/// Which connections are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Target {
    /// Those of every process.
    #[default]
    All,
    /// Those of one process.
    Process {
        /// Its number as it sees it itself (the last one of `NSpid` in /proc/PID/status).
        pid: u32,
        /// Its start time in clock ticks since boot (field 22 of /proc/PID/stat).
        start: u64,
    },
    /// Those with this local or peer's port.
    Port(u16),
}

impl Target {
    /// True if a connection of this process between these two ports is meant.
    pub fn concerns(self, pid: u32, start: u64, local_port: u16, peer_port: u16) -> bool {
        match self {
            Target::All => true,
            Target::Process { pid: p, start: s } => p == pid && s == start,
            Target::Port(port) => port == local_port || port == peer_port,
        }
    }
}

/// The last requests of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drains {
    /// Number of the newest request; 0 = there was none.
    pub newest: u64,
    /// Request number n is at index n modulo [`RING`].
    pub(super) ring: [Target; RING],
}

impl Drains {
    /// Adds a request and gives its number.
    pub fn push(&mut self, target: Target) -> u64 {
        self.newest = self.newest.wrapping_add(1);
        if let Some(slot) = self.ring.get_mut(place(self.newest)) {
            *slot = target;
        }
        self.newest
    }

    /// The requests after number `seen`. If some of them are no longer kept, one for all
    /// connections stands for them: moving too many costs speed, moving too few breaks a promise.
    pub fn since(&self, seen: u64) -> impl Iterator<Item = Target> + '_ {
        let missed = self.newest.saturating_sub(seen);
        let lost = missed > RING as u64;
        let kept = if lost { 0 } else { missed };
        let first = self.newest - kept;
        lost.then_some(Target::All).into_iter().chain((1..=kept).filter_map(move |i| self.ring.get(place(first + i)).copied()))
    }
}

fn place(number: u64) -> usize {
    (number % RING as u64) as usize
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn requests_are_seen_once_and_in_order() {
        let mut drains = Drains::default();
        assert_eq!(drains.since(0).count(), 0);
        drains.push(Target::Port(80));
        let seen = drains.push(Target::All);
        let got: Vec<_> = drains.since(0).collect();
        assert_eq!(got, [Target::Port(80), Target::All]);
        assert_eq!(drains.since(seen).count(), 0);
        assert_eq!(drains.since(seen + 5).count(), 0, "a page made anew");
    }

    #[test]
    fn lost_requests_become_one_for_all() {
        let mut drains = Drains::default();
        for port in 1..=9 {
            drains.push(Target::Port(port));
        }
        assert_eq!(drains.since(0).collect::<Vec<_>>(), [Target::All]);
        assert_eq!(drains.since(1).count(), 8);
    }

    #[test]
    fn a_reused_pid_is_not_meant() {
        let target = Target::Process { pid: 7, start: 100 };
        assert!(target.concerns(7, 100, 1, 2));
        assert!(!target.concerns(7, 101, 1, 2));
        assert!(Target::Port(2).concerns(7, 100, 1, 2));
        assert!(!Target::Port(3).concerns(7, 100, 1, 2));
    }
}
