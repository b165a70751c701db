//! How a connection ends: this end's shutdown, close and abort, what the peer says of its own, and a link or a peer that fails.
//!
//! The driver calls it through [`Conn`]; what each flag means for the state is in [`super::state`].

use super::Conn;
use super::report::{ConnError, Violation};
use super::state::{Farewell, State};
use crate::smc::cdc::ConnFlags;
use crate::smc::id::Rkey;

impl Conn {
    /// This end is done writing (shutdown for writing).
    pub fn shutdown(&mut self) {
        let (next, tell) = self.state.on_shutdown();
        self.state = next;
        if tell {
            self.local |= ConnFlags::DONE_WRITING;
            self.cdc_due = true;
        }
    }

    /// The program closes. Data that it left unread makes this an abort, as in Linux.
    pub fn close(&mut self) {
        self.leave(self.rx.readable() > 0);
    }

    /// As [`Conn::close`], where both ends were done writing before the program closed: what it left unread aborts nothing, as in TCP. (Linux
    /// aborts, and takes either from a peer.)
    pub fn close_ended(&mut self) {
        let has_ended = matches!(self.state, State::PeerCloseWait2 | State::AppCloseWait2 | State::AppFinCloseWait);
        self.leave(!has_ended && self.rx.readable() > 0);
    }

    /// As [`Conn::close`], but always an abort: the peer is told that data may be lost.
    pub fn abort(&mut self) {
        self.leave(true);
    }

    fn leave(&mut self, abort: bool) {
        if self.closed {
            return;
        }
        self.closed = true;
        let (next, farewell) = self.state.on_close(self.local, self.remote);
        self.state = next;
        let flag = match farewell {
            Farewell::None => return,
            Farewell::Close if !abort => ConnFlags::CLOSED,
            Farewell::Close | Farewell::Abort => ConnFlags::ABORTED,
        };
        // An abort that was sent already is not sent again.
        if !self.local.contains(flag) {
            self.local |= flag;
            self.cdc_due = true;
        }
    }

    /// Both directions have ended in order, and the peer was told of this end's.
    pub fn has_ended(&self) -> bool {
        let both = matches!(self.state, State::PeerCloseWait2 | State::AppCloseWait2 | State::AppFinCloseWait);
        both && !self.closed && !self.cdc_due && self.told == self.local
    }

    /// The same, and neither end has anything left to read.
    pub fn is_through(&self) -> bool {
        let (sent, read) = self.sent_bytes();
        // Who closes in order has read all.
        let is_read = sent == read || self.remote.contains(ConnFlags::CLOSED);
        self.has_ended() && is_read && self.rx.readable() == 0
    }

    /// The peer withdrew these memories ([`crate::smc::link::Event::RkeysDeleted`]). A connection that
    /// could still write into one of them is aborted; one that is done with writing does not care.
    pub fn handle_rkeys_deleted(&mut self, keys: &[Rkey]) {
        let withdrawn = self.peer.as_ref().is_some_and(|peer| keys.contains(&peer.rkey));
        if withdrawn && self.write_error().is_none() {
            self.violated(Violation::RingWithdrawn);
        }
    }

    /// The link died: nothing can be sent or will come.
    pub fn handle_link_down(&mut self) {
        self.link_down = true;
        if self.state == State::Closed {
            return;
        }
        self.error.get_or_insert(ConnError::Aborted);
        self.state = if self.closed { State::Closed } else { State::PeerAbortWait };
    }

    /// Whether it did.
    pub fn is_cut(&self) -> bool {
        self.link_down
    }

    /// Takes over the peer's flags; true if there are new ones.
    pub(super) fn peer_flags(&mut self, flags: ConnFlags) -> bool {
        let fresh = flags.difference(self.remote);
        self.remote |= flags;
        if fresh.contains(ConnFlags::ABORTED) {
            self.error.get_or_insert(ConnError::Reset);
        }
        if !self.remote.is_empty() {
            self.state = self.state.on_peer(self.local, self.remote);
        }
        !fresh.is_empty()
    }

    /// Aborts: the peer's word cannot be trusted any more.
    pub(super) fn violated(&mut self, violation: Violation) -> Violation {
        self.error.get_or_insert(ConnError::Reset);
        self.state = if self.closed { State::Closed } else { State::ProcessAbort };
        if !self.local.contains(ConnFlags::ABORTED) {
            self.local |= ConnFlags::ABORTED;
            self.cdc_due = true;
        }
        violation
    }
}
