//! What two libsmcr say to each other in the TCP stream when a connection leaves its RDMA link.
//!
//! After the handshake nothing stands in the TCP stream below a connection over a link. When the link is
//! dead, or one end wants TCP, each end puts one [`WayBack`] there: how many bytes of the other's
//! stream it has, and will not take from the link any more. Behind it comes the rest of its own
//! stream, from the byte on that the other end has named. Shaped as a CLC message of a type that no other
//! implementation has; a kernel has no way back and never gets one.

use crate::smc::clc::SMCR;

/// Bytes of the message.
pub const LEN: usize = 24;
/// Type of the message: behind the one of [`crate::handshake::HELLO`].
const TYPE: u8 = 0x21;
/// Version nibble, as in HELLO.
const VERSION: u8 = 0x20;

/// The message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WayBack {
    /// Bytes of the other end's stream that this end has, from its first on.
    pub received: u64,
}

impl WayBack {
    /// The bytes of the message.
    pub fn emit(self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..4].copy_from_slice(&SMCR);
        out[4] = TYPE;
        out[6] = LEN as u8;
        out[7] = VERSION;
        out[8..16].copy_from_slice(&self.received.to_be_bytes());
        out[LEN - 4..].copy_from_slice(&SMCR);
        out
    }

    /// Reads the message. None: it is something else.
    pub fn parse(bytes: &[u8; LEN]) -> Option<WayBack> {
        let mut received = [0; 8];
        received.copy_from_slice(&bytes[8..16]);
        let message = WayBack { received: u64::from_be_bytes(received) };
        (message.emit() == *bytes).then_some(message)
    }

    /// Where the sender of a stream goes on: it has sent up to `sent`, and knew before that the other end has taken
    /// `taken`. None: the claim can't be right.
    pub fn resume(self, taken: u64, sent: u64) -> Option<u64> {
        (taken..=sent).contains(&self.received).then_some(self.received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes() {
        let bytes = WayBack { received: 0x0102_0304_0506_0708 }.emit();
        assert_eq!(bytes[..8], [0xe2, 0xd4, 0xc3, 0xd9, 0x21, 0, 24, 0x20]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(WayBack::parse(&bytes), Some(WayBack { received: 0x0102_0304_0506_0708 }));
        for at in (0..8).chain(16..LEN) {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert_eq!(WayBack::parse(&wrong), None, "byte {at}");
        }
    }

    #[test]
    fn no_more_than_was_sent_and_no_less_than_was_taken() {
        let at = |received| WayBack { received }.resume(10, 20);
        assert_eq!((at(9), at(10), at(20), at(21)), (None, Some(10), Some(20), None));
    }
}
