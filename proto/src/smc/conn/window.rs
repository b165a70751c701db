//! How much a sender may have unread, and what becomes of it.
//!
//! A receiver tells its peer by a share of its own ring, that of Linux or half, so a sender that keeps less unread than that share
//! would never hear of it. Between two libsmcr it asks by a flag of SMC-R ([`ProducerFlags::UPDATE_REQUESTED`]), which stands until the
//! sender takes it back. In Linux the flag ends with the next message that it sends, whatever was read by then, and a message
//! with the flag and without bytes is answered by none (6.12, `smc_cdc_msg_send`, `smc_tx_sndbuf_nonempty`): who has asked and waits may wait for
//! ever. Towards it a sender does as Linux's own does, and keeps nothing that has been written ([`Conn::forget_written`]): then the
//! peer's ring is what fills, and that the peer tells of. The rules are in [`super::receive`] and [`super::send`].
//!
//! Linux may also lose what it was to tell (docs/wire.md, "An update that Linux loses"). No message without bytes brings it back: it is told
//! with the next read, and who has read everything reads nothing. So towards it a few bytes of its ring are kept, for [`Conn::nudge`].
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

    /// Whether it is.
    pub fn is_libsmcr(&self) -> bool {
        self.by_cursor
    }

    /// The driver stops at so many bytes that it has to keep, however large the peer's ring is: those that the peer has not
    /// read, where nothing was forgotten.
    pub fn set_window(&mut self, bytes: u32) {
        if let Some(peer) = &mut self.peer {
            self.cdc_due |= peer.tx.set_window(bytes, self.by_cursor);
        }
    }

    /// So many bytes of the peer's ring are written to by nothing but [`Conn::nudge`]: for a peer that may lose what it was to tell.
    pub fn set_reserve(&mut self, bytes: u32) {
        if let Some(peer) = &mut self.peer {
            peer.tx.set_reserve(bytes);
        }
    }

    /// The peer has not told for long of anything that it has read, while bytes wait for room. The next write takes what there is
    /// room for, however little, or where there is none one byte of the reserve: whoever has read everything reads that as well,
    /// and then tells of all.
    pub fn nudge(&mut self) {
        if let Some(peer) = &mut self.peer {
            peer.tx.nudge();
        }
    }

    /// Whether the driver is to call [`Conn::forget_written`] when all messages so far have completed.
    pub fn forgets_written(&self) -> bool {
        !self.by_cursor && self.peer.as_ref().is_some_and(|peer| peer.tx.is_narrow())
    }

    /// All messages so far have completed: nothing of what was written is written again. Up to where, from the start of the stream.
    pub fn forget_written(&mut self) -> u64 {
        self.peer.as_mut().map_or(0, |peer| peer.tx.forget_written())
    }
}
