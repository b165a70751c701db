//! The process ends: what its connections still owe their peers, and their end. Called by `rendezvous::smc::farewell`.

use super::leave::Leaving;
use super::lock::{mark, now};
use super::slot::{Closing, Slot};
use super::state::{State, is_over};
use crate::family::{holders, process};
use crate::layout::fin;
use smcr_proto::smc::conn;
use std::sync::atomic::Ordering::*;

/// How far the connections of a process are that ends: the one that is least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Parting {
    /// All have said so, and a kernel that is the peer as well.
    Quiet,
    /// A peer has yet to hear it, or to say so.
    Unanswered,
    /// Bytes have yet to reach their peer: by the link, or on the way back to TCP.
    Owed,
}

impl Slot {
    /// Whether relatives have the connection as well.
    pub(super) fn is_shared(&self) -> bool {
        self.sock().is_some_and(holders::has_others)
    }

    /// The same of a connection of which only this process can end the handshake: it has a ring in a group of ours. When that is
    /// over it has a link, from which it goes back to TCP, or is there.
    pub(super) fn is_shared_in_handshake(&self) -> bool {
        self.in_handshake && self.rx.is_some() && self.is_shared()
    }

    /// Relatives alone have it, and cannot go on without this process: nothing is to look like the end of what they read and say.
    pub(super) fn abandon(&mut self) {
        let is_used_here = self.sock().is_some_and(|s| s.is_held_in(process::index()));
        if !is_used_here && self.tx_dir().fin.load(Relaxed) & fin::CLOSED == 0 {
            self.tx_dir().fin.fetch_or(fin::WRITE | fin::CLOSED | fin::RESET, Release);
            self.broken(None);
        }
    }

    /// Whether it is being reset.
    pub(super) fn is_abandoned(&self) -> bool {
        const RESET: u32 = fin::CLOSED | fin::RESET;
        self.tx_dir().fin.load(Relaxed) & RESET == RESET
    }
}

impl State {
    /// Ends all groups, because the process ends. A kernel that has not closed all connections yet is not told: it would show
    /// its programs a reset where they have an end to read. Its next Test Link finds out.
    pub fn end_all(&mut self) {
        let State { groups, slots, devices, .. } = self;
        for (place, group) in groups.iter_mut().enumerate() {
            let Some(group) = group else { continue };
            let open = |s: &Slot| s.group == Some(place) && s.conn.as_ref().is_some_and(|c| !c.is_finished());
            if group.ours || !slots.iter().flatten().any(|s| open(s)) {
                group.end(devices, true, now());
            }
        }
    }

    /// Whether a connection whose handshake is on its way needs this process until that is over: it has bytes in its ring, or relatives
    /// that cannot go on with it.
    pub fn owes_handshake(&self) -> bool {
        let owes = |s: &Slot| {
            let out = s.tx_dir();
            // Those that others hold go on without this process, unless there is a ring.
            let alone = s.sock().is_none_or(|s| s.holders.load(Relaxed) <= 1);
            s.is_shared_in_handshake()
                || alone && !s.active && !s.on_tcp && s.leaving != Leaving::Gone && out.head.load(Acquire) != out.tail.load(Relaxed)
        };
        self.slots.iter().flatten().any(|s| owes(s))
    }

    /// Closes the connections that the program has left open.
    pub fn close_all(&mut self, first: bool) -> Parting {
        let mut all = Parting::Quiet;
        for slot in self.slots.iter_mut().flatten().filter(|s| s.active) {
            if first {
                slot.closing = slot.closing.max(Closing::Close);
                mark(slot.index);
            }
            if slot.is_leaving() {
                all = all.max(if slot.leaving == Leaving::Gone { Parting::Quiet } else { Parting::Owed });
                continue;
            }
            let head = slot.tx_dir().head.load(Relaxed);
            let unsendable = slot.conn.as_mut().is_none_or(|c| c.write(0, false).is_err());
            let said = slot.conn.as_ref().is_none_or(|c| !matches!(c.state(), conn::State::Init | conn::State::Active | conn::State::AppCloseWait1));
            let over = is_over(&self.groups, slot.group);
            let answered = slot.ours || over || slot.conn.as_ref().is_none_or(conn::Conn::is_finished);
            let owed = slot.in_flight > 0 || slot.pumped != head && !unsendable;
            all = all.max(match () {
                () if owed && !over => Parting::Owed,
                () if owed || !said || !answered => Parting::Unanswered,
                () => Parting::Quiet,
            });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::rig;
    use smcr_proto::smc::handshake::Role;

    #[test]
    fn a_handshake_with_a_ring_is_waited_for_where_relatives_have_the_connection() {
        let (mut all, _, id) = rig::one(Role::Server, 1);
        let slot = rig::slot(&mut all, id);
        (slot.in_handshake, slot.active) = (true, false);
        let s = slot.sock().unwrap();
        assert_eq!((all.owes_handshake(), all.leave_to_relatives()), (false, false), "nobody else has it");
        s.holders.store(1, Relaxed); // not this process
        assert_eq!((all.owes_handshake(), all.leave_to_relatives()), (true, true));
        let slot = rig::slot(&mut all, id);
        (slot.in_handshake, slot.leaving) = (false, Leaving::Wanted);
        assert_eq!((all.owes_handshake(), all.leave_to_relatives()), (false, true), "no link came up, and it goes back");
        let slot = rig::slot(&mut all, id);
        (slot.in_handshake, slot.leaving) = (true, Leaving::No);
        all.leave_group(id);
        assert_eq!((all.owes_handshake(), all.leave_to_relatives()), (false, false), "without a ring they go on");
    }

    #[test]
    fn from_a_kernel_what_relatives_alone_have_is_reset() {
        crate::family::open().unwrap(); // where this process has a record
        let ends = |slot: &Slot| [slot.tx_dir(), slot.rx_dir()].map(|dir| dir.fin.load(Relaxed) & fin::RESET != 0);
        for (own, reset) in [(1, false), (0, true)] {
            let (mut all, _, id) = rig::one(Role::Server, 1);
            let slot = rig::slot(&mut all, id);
            slot.ours = false;
            let s = slot.sock().unwrap();
            s.holders.store(1 + own, Relaxed); // one is another process
            if own == 1 {
                s.held_in(process::index());
            }
            assert_eq!(all.leave_to_relatives(), reset, "until the peer has heard it");
            assert_eq!(ends(rig::slot(&mut all, id)), [reset; 2]);
            all.groups[0] = None;
            assert!(!all.leave_to_relatives());
        }
    }
}
