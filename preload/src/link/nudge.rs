//! When a sender that waits for room at a kernel gives its peer something to read.
//!
//! Linux may lose what it was to tell of a read, and tells it with the next one; a peer that has read everything reads no more
//! (docs/wire.md, "An update that Linux loses"). So a little of its ring is kept free for bytes that are written then
//! ([`smcr_proto::smc::conn::Conn::nudge`]): one after [`FIRST`], the next after twice as long, and so on. A reader that just does not read gets them as
//! well, and may use them up: after 36 hours. State of a [`super::slot::Slot`]; [`super::arrive`] calls for what is due.

use super::cover::rest;
use super::lock::{call_by, mark, now};
use super::state::State;
use smcr_proto::smc::Time;

/// Bytes of a kernel's ring that are kept for it.
pub(super) const RESERVE: u32 = 16;
/// How long the peer tells nothing before the first. Linux tells at once, or where it had to try again, after 1 s.
const FIRST: Time = Time::from_secs(2);

/// When it is time for one.
#[derive(Clone, Copy)]
pub(super) struct Nudge {
    /// How far the peer had read, by its word.
    read: u64,
    /// How long it may tell nothing more.
    patience: Time,
    /// Until when.
    due: Option<Time>,
}

impl Nudge {
    /// Nothing waits yet.
    pub const NEW: Nudge = Nudge { read: 0, patience: FIRST, due: None };

    /// Bytes wait for room, and the peer is known to have read so far. When to look again.
    pub fn waits(&mut self, read: u64, now: Time) -> Time {
        if read != self.read {
            *self = Nudge { read, ..Nudge::NEW };
        }
        let patience = self.patience;
        *self.due.get_or_insert_with(|| now + patience)
    }

    /// Whether it is time, while bytes wait; the next one takes twice as long.
    pub fn is_due(&mut self, now: Time) -> bool {
        let is = self.due.is_some_and(|at| at <= now);
        if is {
            self.patience += self.patience;
            self.due = Some(now + self.patience);
        }
        is
    }
}

impl State {
    /// Bytes of a connection wait for room: if the peer is a kernel, not for ever.
    pub(super) fn note_wait(&mut self, index: u32) {
        if let Some(slot) = self.slot(index).filter(|s| !s.ours)
            && let Some((_, read)) = slot.conn.as_ref().map(|c| c.sent_bytes())
        {
            call_by(slot.nudge.waits(read, now()));
        }
    }

    /// Sends what is due; when the next is.
    pub(super) fn nudge(&mut self, now: Time) -> Option<Time> {
        if !rest::is_room_waited_for() {
            return None;
        }
        let mut next = None;
        for slot in self.slots.iter_mut().flatten().filter(|s| s.waits_for_room && !s.ours) {
            if slot.nudge.is_due(now)
                && let Some(conn) = &mut slot.conn
            {
                conn.nudge();
                mark(slot.index);
            }
            next = [next, slot.nudge.due].into_iter().flatten().min();
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Time = Time::from_secs(100);

    #[test]
    fn each_takes_twice_as_long_as_the_one_before() {
        let mut n = Nudge::NEW;
        assert!(!n.is_due(AT), "nothing waits");
        let (mut at, mut patience) = (AT, FIRST);
        for _ in 0..RESERVE {
            assert_eq!(n.waits(0, at), at + patience);
            assert_eq!(n.waits(0, at + FIRST), at + patience, "looking does not put it off");
            at += patience;
            assert!(n.is_due(at) && !n.is_due(at));
            patience += patience;
        }
        assert!(at > AT + Time::from_secs(36 * 3600));
    }

    #[test]
    fn who_tells_of_something_is_not_nudged() {
        let mut n = Nudge::NEW;
        n.waits(0, AT);
        assert!(n.is_due(AT + FIRST));
        let later = AT + FIRST + FIRST;
        assert_eq!(n.waits(1, later), later + FIRST, "it counts from there, and from the first on");
        assert!(!n.is_due(later));
    }
}
