//! How much a sender may have unread, and when it is told of what was read.
//!
//! A receiver tells its peer by a share of its own ring, that of Linux or half, so a sender that keeps less unread than that share
//! would never hear of it: it asks by a flag of SMC-R ([`ProducerFlags::UPDATE_REQUESTED`]). The rules are in [`super::receive`] and
//! [`super::send`].
//!
//! [`ProducerFlags::UPDATE_REQUESTED`]: crate::smc::cdc::ProducerFlags::UPDATE_REQUESTED

use super::Conn;

impl Conn {
    /// The peer is libsmcr. It is told of what was read by halves of the ring; its failover messages carry cursors, and those count,
    /// not the sequence number.
    pub fn set_libsmcr(&mut self, yes: bool) {
        self.by_cursor = yes;
        self.rx.set_halves(yes);
    }

    /// The driver stops at so many bytes that the peer has not read, however large the peer's ring is.
    pub fn set_window(&mut self, bytes: u32) {
        if let Some(peer) = &mut self.peer {
            self.cdc_due |= peer.tx.set_window(bytes);
        }
    }
}
