//! The end of a stream, where what tells of it is no proof that nothing more comes.
//!
//! Linux says "closed" or "done writing" also while bytes lie in its sending buffer: at once where a process exits, after 2 s else, or
//! SO_LINGER (`smc_close_stream_wait`). Then it sends them, as room comes and its messages complete. So the program is not
//! shown the end before a Test Link has been answered that was sent when no byte waited for room any more, and nothing came
//! before that answer. One Test Link of a link is on its way at a time, whoever it is for. Between two libsmcr the end comes behind the bytes;
//! but a program may close, or shut down, by an inline system call, which its library does not see: then TCP alone tells. A peer that says
//! nothing of an end behind that, in two answers, does not know of it, and the program is shown what TCP shows.
//!
//! The state of a [`Slot`] and what [`State`] does with it. Called by [`super::heard`] for the end, by [`super::arrive`] after it has sent
//! for a connection, for answers, and when time has passed.

use super::lock::{call_by, mark, now};
use super::slot::Slot;
use super::state::State;
use crate::layout::fin;
use smcr_proto::smc::Time;
use std::sync::atomic::Ordering::*;

/// How long an answer is waited for. A link that is dead is found out by other means, later.
const PATIENCE: Time = Time::from_secs(2);

/// Whether an end has come that the program has not been shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Late {
    /// No.
    No,
    /// It has.
    Held,
    /// The same, and one answer was behind so many bytes.
    Doubted { received: u64 },
    /// It is shown with this answer, if no more has been received by then.
    Asked { number: u128, received: u64, sure: bool },
}

/// The Test Links of a link.
#[derive(Default)]
pub struct Questions {
    /// The last one.
    number: u128,
    /// By when its answer is to come.
    due: Option<Time>,
}

impl Questions {
    /// Another one; None while one is on its way.
    pub fn next(&mut self, now: Time) -> Option<u128> {
        if self.due.is_some() {
            return None;
        }
        self.due = Some(now + PATIENCE);
        self.number += 1;
        Some(self.number)
    }

    /// The answer; false: it is not to the last one.
    fn answered(&mut self, number: u128) -> bool {
        self.number == number && self.due.take().is_some()
    }

    /// When it is overdue.
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    fn overdue(&self, now: Time) -> Option<u128> {
        self.due.filter(|due| *due <= now).map(|_| self.number)
    }
}

impl Slot {
    /// The end has come; true: it is not to be shown yet.
    pub(super) fn holds_end(&mut self) -> bool {
        let is_shown = self.rx_dir().fin.load(Relaxed) & fin::WRITE != 0;
        // Also in the handshake: a client has sent Confirm, and may have said all by the link before that is read.
        let holds = !is_shown && self.conn.as_ref().is_some_and(|c| !c.is_libsmcr());
        if holds && self.late == Late::No {
            self.late = Late::Held;
        }
        holds
    }

    /// TCP has ended below, and the peer, which is libsmcr, has not said so.
    pub(super) fn doubts_end(&mut self) {
        let is_told = self.conn.as_ref().is_none_or(|c| c.is_eof());
        if self.ours && self.active && self.late == Late::No && !is_told && !self.is_leaving() {
            self.late = Late::Held;
            mark(self.index); // it is not calm any more: what the program reads decides when to ask
        }
    }

    /// Its link is another one: no answer comes to what was asked by the old one.
    pub(super) fn ask_again(&mut self) {
        if matches!(self.late, Late::Asked { .. }) {
            self.late = Late::Held;
        }
    }

    /// Whether it is time to ask.
    fn is_to_ask(&self) -> bool {
        let all_read = self.rx_dir().tail.load(Acquire) == self.rx_dir().head.load(Relaxed);
        let is_open = matches!(self.late, Late::Held | Late::Doubted { .. });
        // A libsmcr does not always say that it is blocked: a write with immediate data has no flags.
        is_open && self.conn.as_ref().is_some_and(|c| all_read || !self.ours && !c.peer_is_blocked())
    }

    /// An answer has come, or will not (`is_answer`). True: it may be time to ask again.
    fn hear_answer(&mut self, number: u128, is_answer: bool) -> bool {
        let now = self.conn.as_ref().map_or(0, |c| c.received_bytes().0);
        let is_told = self.ours && self.conn.as_ref().is_none_or(|c| c.is_eof());
        self.late = match self.late {
            Late::No => return false,
            Late::Doubted { .. } if !is_told => return true, // it was another one's
            _ if is_told || self.is_leaving() => Late::No,
            Late::Asked { number: n, received, sure } if n == number && received == now => {
                if !self.ours || is_answer && sure {
                    self.show_end();
                    Late::No
                } else if is_answer {
                    Late::Doubted { received }
                } else {
                    Late::Held // who does not answer may be dead, of which more is known soon
                }
            }
            _ => Late::Held,
        };
        true
    }

    fn show_end(&mut self) {
        self.late = Late::No;
        if self.ours && self.tcp_reset {
            self.broken(None);
        } else {
            self.mark_end(fin::WRITE);
        }
    }

    /// The link is down before the end was shown; true: bytes may be lost.
    pub(super) fn ends_without_answer(&mut self) -> bool {
        if self.late == Late::No || self.ours {
            return false;
        }
        let lost = self.conn.as_ref().is_some_and(|c| c.peer_is_blocked());
        if !lost {
            self.show_end();
        }
        lost
    }
}

impl State {
    /// Asks what lies behind the end of a connection, if it is time.
    pub(super) fn ask_behind_end(&mut self, index: u32) {
        let Some(slot) = self.slot(index).filter(|s| s.is_to_ask()) else { return };
        let (place, link) = (slot.group, slot.link);
        let received = slot.conn.as_ref().map_or(0, |c| c.received_bytes().0);
        let sure = slot.late == Late::Doubted { received };
        let Some(Some(group)) = place.and_then(|p| self.groups.get_mut(p)) else { return };
        if let Some(number) = group.ask(link)
            && let Some(slot) = self.slot(index)
        {
            slot.late = Late::Asked { number, received, sure };
            call_by(now() + PATIENCE);
        }
    }

    /// An answer has come by a link.
    pub(super) fn answered(&mut self, place: usize, link: usize, number: u128) {
        self.look_behind_ends(place, link, number, true);
    }

    fn look_behind_ends(&mut self, place: usize, link: usize, number: u128, is_answer: bool) {
        let Some(Some(group)) = self.groups.get_mut(place) else { return };
        if !group.links.get_mut(link).is_some_and(|l| l.questions.answered(number)) {
            return;
        }
        for slot in self.slots.iter_mut().flatten().filter(|s| s.group == Some(place) && s.link == link) {
            if slot.hear_answer(number, is_answer) {
                mark(slot.index);
            }
        }
    }

    /// Who has not answered in time does not.
    pub(super) fn give_up_answers(&mut self, place: usize, now: Time) {
        let Some(Some(group)) = self.groups.get(place) else { return };
        let late: Vec<_> = group.links.iter().enumerate().filter_map(|(i, l)| Some((i, l.questions.overdue(now)?))).collect();
        for (link, number) in late {
            self.look_behind_ends(place, link, number, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::rig;
    use smcr_proto::smc::cdc::{Cdc, ConnFlags, ProducerFlags};
    use smcr_proto::smc::cursor::Cursor;
    use smcr_proto::smc::handshake::Role;

    #[test]
    fn one_question_at_a_time_and_its_own_answer() {
        let (mut q, at) = (Questions::default(), Time::from_secs(5));
        assert_eq!(q.next(at), Some(1));
        assert_eq!(q.next(at), None, "it is on its way");
        assert!(!q.answered(2));
        assert_eq!(q.overdue(at), None);
        assert_eq!(q.overdue(at + PATIENCE), Some(1));
        assert!(q.answered(1));
        assert!(!q.answered(1), "once");
        assert_eq!((q.due(), q.next(at)), (None, Some(2)));
        assert!(!q.answered(1), "that was before");
    }

    #[test]
    fn an_end_that_comes_in_the_handshake_is_held_where_the_peer_is_a_kernel() {
        for (is_kernel, late) in [(true, Late::Held), (false, Late::No)] {
            let (mut all, _, id) = rig::one(Role::Server, 1);
            let slot = rig::slot(&mut all, id);
            (slot.in_handshake, slot.active, slot.ours) = (true, false, false);
            let conn = slot.conn.as_mut().unwrap();
            conn.set_libsmcr(!is_kernel);
            let (token, zero) = (conn.token(), Cursor::ZERO);
            let (producer_flags, conn_flags) = (ProducerFlags::WRITE_BLOCKED, ConnFlags::CLOSED);
            let cdc = Cdc { sequence: 1, token, producer: Cursor { wrap: 0, count: 9 }, consumer: zero, producer_flags, conn_flags };
            slot.handle_cdc(&cdc).unwrap();
            assert_eq!((slot.late, slot.rx_dir().fin.load(Relaxed) & fin::WRITE == 0), (late, is_kernel), "more may follow");
        }
    }
}
