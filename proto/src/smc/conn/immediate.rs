//! Data that the write itself announces, between two libsmcr: see [`crate::smc::immediate`].
//!
//! One message for each write, of which the receiver believes as much as of a CDC message: no byte beyond
//! the free space, no progress beyond what was sent. It has a number, the next one of the connection's messages of both kinds: its length
//! is progress, so it must not count twice. On one queue pair nothing overtakes and nothing is missing, but soft RoCE may bring a
//! message again, behind others.

use super::{Conn, State, Update, Violation};
use crate::smc::cdc::ProducerFlags;
use crate::smc::cursor::CursorError;
use crate::smc::immediate::{Immediate, MAX_PROGRESS, Order, name};

impl Conn {
    /// Takes the place of [`Conn::poll_cdc`] where nothing else is to be said than that the `len` bytes
    /// taken by the last [`Conn::write`], one segment, have been written: the immediate of that write. `None`: a CDC
    /// message is due.
    pub fn poll_immediate(&mut self, len: u32) -> Option<u32> {
        let peer = self.peer.as_mut().filter(|_| self.cdc_due && !self.link_down && self.failover.is_none())?;
        let plain = self.told == self.local && self.rx.unconfirmed() <= MAX_PROGRESS && !self.unnumbered;
        if !plain || !peer.tx.is_plain(len) {
            return None;
        }
        self.cdc_due = false;
        self.sent = self.sent.wrapping_add(1);
        peer.tx.announce();
        self.rx.confirm();
        let consumed = self.rx.consumed() as u16;
        Some(Immediate { name: name(peer.token), sequence: self.sent as u8, consumed }.emit())
    }

    /// Takes the immediate of a write of `len` bytes into this end's ring.
    pub fn handle_immediate(&mut self, len: u32, immediate: Immediate) -> Result<Update, Violation> {
        let over = matches!(self.state, State::Closed | State::ProcessAbort);
        // No bytes say nothing: soft RoCE makes such a write by itself, of one that it repeats and that has arrived whole. What is
        // read with it is old.
        if over || len == 0 || immediate.name != name(self.token) || self.link_down {
            return Ok(Update::default());
        }
        match immediate.order(self.seen) {
            Order::Next => {}
            Order::Again => return Ok(Update::default()),
            // There is a way back: the driver decides what becomes of the connection.
            Order::Gap => return Err(Violation::Lost),
        }
        if len > self.rx.free() {
            return Err(self.violated(Violation::Producer(CursorError::BeyondLimit)));
        }
        let freed = immediate.progress(self.peer.as_ref().map_or(0, |peer| peer.tx.consumed()));
        let unread = self.peer.as_ref().map_or(0, |peer| peer.tx.unread());
        if freed > unread {
            return Err(self.violated(Violation::Consumer(CursorError::BeyondLimit)));
        }
        self.seen = self.seen.wrapping_add(1);
        if let Some(peer) = &mut self.peer {
            peer.tx.advance(freed);
        }
        self.rx.advance(len, ProducerFlags::empty());
        self.update_if_due();
        self.end_if_due();
        Ok(Update { received: len, freed, urgent: None, closing: false })
    }
}
