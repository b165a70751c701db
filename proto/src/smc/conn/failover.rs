//! A connection moves to another link of its group, and the check that nothing was lost on the way.
//!
//! The sender goes back to what the peer is known to have read, says so by a message with the failover flag, the first on the
//! new link, and writes from there again: the same bytes to the same places, so that it does not matter which of them
//! had arrived. Linux keeps no byte whose message has completed; there the number of that message is what is checked. Linux
//! `smc_switch_conns` and `smc_cdc_msg_validate`.

use super::{Conn, State, Update, Violation};
use crate::smc::cdc::{Cdc, ConnFlags, LEN, ProducerFlags};
use crate::smc::id::Rkey;

impl Conn {
    /// Goes on over another link, where the peer's memory has this key and address. `uncompleted` messages of the
    /// connection were on their way by the old one. The driver writes from [`Conn::sent_bytes`] on again.
    pub fn move_to_link(&mut self, rkey: Rkey, rmb_address: u64, uncompleted: u32) {
        let Some(peer) = self.peer.as_mut().filter(|_| !self.link_down) else { return };
        (peer.rkey, peer.ring) = (rkey, rmb_address.wrapping_add(peer.offset));
        peer.tx.rewind();
        // What was lost with the old link has numbers, too.
        self.unnumbered = true;
        // One that is over says its end again, unless that is known to have arrived. Who has it has forgotten the connection.
        if self.state != State::Closed || self.cdc_due || uncompleted > 0 {
            // What is written before the message goes is repeated, too.
            self.failover = Some((self.sent.wrapping_sub(uncompleted as u16), peer.tx.cursor()));
            self.cdc_due = true;
        }
    }

    /// Whether a failover message is to be sent before anything else.
    pub fn is_moving(&self) -> bool {
        self.failover.is_some()
    }

    /// Whether bytes are to be sent again. Not into a ring that its owner has given up.
    pub fn is_repeating(&self) -> bool {
        let gone = self.remote.intersects(ConnFlags::ANY_CLOSE) || self.state == State::ProcessAbort;
        !gone && self.peer.as_ref().is_some_and(|peer| peer.tx.is_repeating())
    }

    /// The program writes no more.
    pub(super) fn is_done(&self) -> bool {
        self.closed || self.local.contains(ConnFlags::DONE_WRITING)
    }

    /// The peer has read what was to be sent again: it has to hear of the end.
    pub(super) fn end_if_due(&mut self) {
        self.cdc_due |= self.told != self.local && !self.is_repeating();
    }

    /// Bytes from the start that the peer may know of: after a failover more than those that have been sent again.
    pub fn told_bytes(&self) -> u64 {
        self.peer.as_ref().map_or(0, |peer| peer.tx.announced())
    }

    /// The key of the peer's memory on the link that is used.
    pub fn peer_rkey(&self) -> Option<Rkey> {
        self.peer.as_ref().map(|peer| peer.rkey)
    }

    /// The failover message, if one is to be sent; a message proper follows it.
    pub(super) fn poll_failover(&mut self) -> Option<[u8; LEN]> {
        let peer = self.peer.as_ref().filter(|_| !self.link_down)?;
        let (sequence, producer) = self.failover.take()?;
        let message = Cdc {
            sequence,
            token: peer.token,
            producer,
            // A peer that goes by cursors knows now what was read, and may fill that before the next message finds a slot.
            consumer: if self.by_cursor { self.rx.confirm() } else { self.rx.cursor() },
            producer_flags: ProducerFlags::FAILOVER,
            conn_flags: ConnFlags::empty(),
        };
        Some(message.emit())
    }

    /// Takes a failover message. Says only what the sender believes to have been received.
    pub(super) fn validate(&mut self, cdc: &Cdc) -> Result<Update, Violation> {
        if !self.by_cursor {
            let ahead = cdc.sequence.wrapping_sub(self.seen) as i16;
            return if ahead > 0 { Err(self.violated(Violation::Lost)) } else { Ok(Update::default()) };
        }
        // There is a way back: the driver decides what becomes of the connection.
        if !self.rx.has(cdc.producer) {
            return Err(Violation::Lost);
        }
        let Some(peer) = &mut self.peer else { return Ok(Update::default()) };
        match peer.tx.check(cdc.consumer) {
            Ok(freed) => {
                peer.tx.advance(freed);
                self.end_if_due();
                Ok(Update { freed, ..Update::default() })
            }
            Err(_) => Err(Violation::Lost),
        }
    }
}
