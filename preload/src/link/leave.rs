//! A connection leaves its link: the link's part of the way back to TCP.
//!
//! Only between two libsmcr. [`State::want_back`] is called where a link has broken, where the peer has spoken
//! over TCP, and where the program's end asks for TCP (`ctl::RETURN`); the service thread then goes the way
//! (`rendezvous::smc::way_back`). What an end has stated is final: what the link brings after that is not
//! shown to the program, because the peer sends it again. Unless TCP ends before the peer has said where it stands:
//! then it knew of nothing when it closed, and what came by the link is what there is.

use super::lock::{self, mark, now};
use super::slot::{Closing, Slot};
use super::state::{State, is_over};
use crate::family::sock::flag;
use crate::layout::{ctl, fin};
use crate::sys::spare;
use smcr_proto::reason::Reason;
use smcr_proto::smc::Time;
use smcr_proto::smc::conn::{self, Conn, ConnError};
use std::sync::atomic::Ordering::*;

/// How far a connection has left its link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// It has not.
    No,
    /// It is to.
    Wanted,
    /// The peer is being told that this much of its stream has been received.
    Stated(u64),
    /// It is on TCP.
    Gone,
}

/// What the TCP connection below shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpEvent {
    /// The peer has said something.
    Readable,
    /// It has ended.
    Ended,
    /// It was reset.
    Reset,
}

/// How long a waiter that may be one that we never see is left alone.
const UNSEEN: Time = Time::from_millis(20);

/// Something that a waiter may wait for which we never see.
#[derive(Clone, Copy)]
pub struct Unseen {
    index: u32,
    /// It waits for room; else for bytes that have arrived.
    writes: bool,
    /// How far the program had come.
    at: u64,
    since: Time,
}

impl Slot {
    /// Whether it is on its way back, or there.
    pub fn is_leaving(&self) -> bool {
        self.leaving != Leaving::No
    }

    /// Whether it is on its way.
    pub fn is_on_way_back(&self) -> bool {
        matches!(self.leaving, Leaving::Wanted | Leaving::Stated(_))
    }

    /// Whether what arrives may be shown to the program.
    pub(super) fn shows(&self) -> bool {
        matches!(self.leaving, Leaving::No | Leaving::Wanted)
    }

    /// Whether the program's end asks for TCP.
    pub(super) fn is_asked(&self) -> bool {
        self.leaving == Leaving::No && self.rx_dir().ctl.load(Acquire) & ctl::RETURN != 0
    }

    /// Whether the peer has been told of the end, and has everything.
    pub fn has_said_all(&self) -> bool {
        let said = self.conn.as_ref().is_none_or(|c| !matches!(c.state(), conn::State::Init | conn::State::Active | conn::State::AppCloseWait1));
        let again = self.conn.as_ref().is_some_and(Conn::is_repeating);
        self.closing >= Closing::Close && said && self.in_flight == 0 && !again
    }

    /// The descriptor of the TCP connection that was kept when the program closed its own is not needed.
    pub(super) fn let_tcp_go(&mut self) {
        if let Some(tcp) = self.tcp.take() {
            spare::give_back(tcp, lock::service());
        }
    }

    /// What a waiter that we never see may wait for now; how far the program has come with it.
    fn unseen(&self, writes: bool) -> Option<u64> {
        let s = self.sock().filter(|s| self.leaving == Leaving::No && s.can_return())?;
        if writes {
            return (!s.has(flag::SEEN) || s.has(flag::UNSEEN)).then(|| self.tx_dir().head.load(Relaxed));
        }
        let (tail, head) = (self.rx_dir().tail.load(Relaxed), self.rx_dir().head.load(Relaxed));
        (s.is_public() && tail != head).then_some(tail)
    }
}

impl State {
    /// The connection is to leave its link for TCP. False: there is no way back (a kernel is the peer, or the
    /// peer has closed, or TCP has ended).
    pub fn want_back(&mut self, index: u32) -> bool {
        let Some(slot) = self.slot(index) else { return false };
        if slot.is_leaving() {
            return true;
        }
        let closed = slot.rx_dir().fin.load(Relaxed) & fin::CLOSED != 0;
        let gone = slot.sock().is_none() && slot.tcp.is_none();
        if !slot.ours || !slot.active || closed || slot.tcp_ended || gone {
            return false;
        }
        slot.leaving = Leaving::Wanted;
        self.leavers.push(index);
        lock::call_service();
        true
    }

    /// The process ends: connections that its relatives have as well are to go on over TCP; from a kernel there is no way there, and those that they
    /// alone have are reset. Whether any of these is on its way, or has yet to find out whether it has a link.
    pub fn leave_to_relatives(&mut self) -> bool {
        let theirs = self.slots.iter().flatten().filter(|s| s.active && s.is_shared());
        for index in theirs.map(|s| s.index).collect::<Vec<u32>>() {
            let Some(slot) = self.slot(index) else { continue };
            if !slot.ours {
                slot.abandon();
                mark(index);
            } else if let Some(s) = slot.sock().filter(|_| !slot.is_leaving()) {
                s.note(Reason::SharedByFork);
            }
            self.want_back(index);
        }
        let State { slots, groups, .. } = self;
        // Some of them without ever having had a link.
        slots.iter().flatten().any(|s| {
            s.is_shared_in_handshake() || s.is_shared() && (s.is_on_way_back() || s.is_abandoned() && !s.has_said_all() && !is_over(groups, s.group))
        })
    }

    /// What this end has received of the peer's stream, to be stated: nothing more is shown from the link
    /// after this. None: messages are still on their way.
    pub fn state_back(&mut self, index: u32) -> Option<u64> {
        self.poll_all(); // what has arrived counts
        let State { slots, groups, .. } = self;
        let slot = slots.get_mut(index as usize)?.as_deref_mut()?;
        if let Leaving::Stated(at) = slot.leaving {
            return Some(at);
        }
        if slot.in_flight > 0 && !is_over(groups, slot.group) {
            return None;
        }
        let back = slot.rx_dir();
        let asked = back.ctl.fetch_update(AcqRel, Acquire, |c| (c & ctl::RETURN != 0).then_some(c & !ctl::RETURN | ctl::TAKEN));
        let at = if asked.is_ok() { back.frozen.load(Relaxed) } else { back.head.load(Relaxed) };
        slot.leaving = Leaving::Stated(at);
        Some(at)
    }

    /// What this end has handed to the link, and what the peer is known to have taken of it.
    pub fn sent_by_link(&mut self, index: u32) -> (u64, u64) {
        self.slot(index).map_or((0, 0), |s| {
            // After a failover the peer may have more than has been sent again.
            let conn = s.conn.as_ref();
            (s.pumped.max(conn.map_or(0, |c| c.told_bytes())), conn.map_or(0, |c| c.sent_bytes().1))
        })
    }

    /// TCP has ended before the peer said where it stands: it goes on as it was, as far as it still does.
    pub fn cancel_back(&mut self, index: u32) {
        let Some(slot) = self.slot(index) else { return };
        slot.leaving = Leaving::No;
        slot.tcp_ended = true;
        slot.rx_dir().ctl.fetch_and(!(ctl::TAKEN | ctl::RETURN), AcqRel);
        if let Some(s) = slot.sock() {
            s.clear(flag::FROZEN);
        }
        slot.show_all();
        if !slot.active {
            // There never was a link by which more could come.
            slot.broken(None);
        }
        let (place, stranded) = (slot.group, slot.stranded);
        let over = is_over(&self.groups, place);
        if over || stranded {
            if let Some(slot) = self.slot(index) {
                slot.link_down();
                if slot.is_finished(over) {
                    self.release(index);
                }
            }
        } else {
            self.probe(index);
            mark(index);
        }
    }

    /// The peer says what cannot be right: the connection is reset.
    pub fn break_back(&mut self, index: u32) {
        let Some(slot) = self.slot(index) else { return };
        slot.tainted = true;
        slot.broken(None);
        self.left(index);
    }

    /// The connection is on TCP.
    pub fn left(&mut self, index: u32) {
        let Some(slot) = self.slot(index) else { return };
        slot.leaving = Leaving::Gone;
        slot.conn = None;
        slot.let_tcp_go();
        mark(index);
        if slot.is_finished(false) {
            self.release(index);
        }
    }

    /// Waiters that may be unseen: where nothing has moved for a moment the connection leaves, and the kernel shows
    /// them what there is. Gives when to come again.
    pub(super) fn look_at_unseen(&mut self) -> Option<Time> {
        let now = now();
        let mut i = 0;
        while let Some(&u) = self.unseen.get(i) {
            match self.slot(u.index).and_then(|s| s.unseen(u.writes)) {
                Some(at) if at != u.at && !u.writes => {
                    self.unseen[i] = Unseen { at, since: now, ..u };
                    i += 1;
                }
                Some(at) if at == u.at && u.since + UNSEEN > now => i += 1,
                other => {
                    self.unseen.swap_remove(i);
                    if other == Some(u.at) {
                        let why = if u.writes { Reason::UnseenWriter } else { Reason::UnseenWaiter };
                        if let Some(s) = self.slot(u.index).and_then(|s| s.sock()) {
                            s.note(why);
                        }
                        self.want_back(u.index);
                    }
                }
            }
        }
        self.unseen.iter().map(|u| u.since + UNSEEN).min()
    }

    /// Something came, or there is no room, and the waiter may be one that we never see.
    pub fn note_unseen(&mut self, index: u32, writes: bool) {
        let Some(at) = self.slot(index).and_then(|s| s.unseen(writes)) else { return };
        if !self.unseen.iter().any(|u| u.index == index && u.writes == writes) {
            self.unseen.push(Unseen { index, writes, at, since: now() });
            lock::call_service();
        }
    }

    /// Something happened on the TCP connection below a connection over a link.
    pub fn tcp_event(&mut self, index: u32, serial: u32, what: TcpEvent) {
        let Some(slot) = self.slot(index).filter(|s| s.serial == serial) else {
            return; // another connection's by now
        };
        slot.tcp_reset |= what == TcpEvent::Reset;
        if what == TcpEvent::Reset && slot.is_destroyed() {
            slot.tcp_ended = true;
            return slot.broken(Some(ConnError::Aborted));
        }
        // After the handshake a peer says one thing only, and does not end before it has its answer.
        if what != TcpEvent::Readable {
            self.probe(index);
            mark(index);
        } else if !slot.is_leaving() {
            self.want_back(index);
            // Perhaps the peer has given the link up, and could not say so by it.
            self.ask_its_link(index);
        }
    }
}
