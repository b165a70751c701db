//! What can be wrong with a message of a peer, and what follows from it.
//!
//! Every parser of this folder returns [`WireError`]; the handshake turns it into a Decline (the
//! message was read whole, its values are refused: both ends go on with TCP) or into the end of
//! the connection (the stream is not what both ends agreed on: TCP option set, then garbage).

use super::diagnosis::Diagnosis;

/// Why a message was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// Shorter than a field, a list or the type needs.
    Truncated,
    /// The length field does not fit the type, the version or the content.
    Length,
    /// Longer than any message this library knows.
    TooLong,
    /// Does not begin with the CLC eyecatcher.
    Eyecatcher,
    /// Does not end with the CLC eyecatcher.
    Trailer,
    /// Unknown type (the byte as received).
    Type(u8),
    /// A version that does not exist.
    Version(u8),
    /// An offset points outside its area.
    Offset,
    /// A list has more entries than the protocol allows.
    Count,
    /// SMC-D where SMC-R is spoken.
    SmcD,
    /// RMBE index 0: the writer would write before the RMB.
    RmbeIndex,
    /// A size code above [`super::id::RmbeSize::MAX_CODE`].
    RmbeSize,
    /// Alert token 0, which is reserved.
    Token,
    /// An MTU code outside 1..=5.
    Mtu,
    /// RMB address, index and size reach beyond the 64-bit address space.
    Address,
    /// An answer of a release above 2.1, which was not offered.
    Release,
}

impl WireError {
    /// The code of the Decline that answers this error; `None` where the byte stream itself cannot
    /// be trusted any more and the connection has to fail (Linux: EPROTO).
    pub const fn diagnosis(self) -> Option<Diagnosis> {
        match self {
            WireError::SmcD => Some(Diagnosis::MODE_MISMATCH),
            WireError::RmbeIndex | WireError::RmbeSize | WireError::Address => Some(Diagnosis::RTOKEN),
            WireError::Token => Some(Diagnosis::INTERNAL),
            WireError::Mtu => Some(Diagnosis::LINK_READY),
            WireError::Release => Some(Diagnosis::RELEASE),
            WireError::Truncated
            | WireError::Length
            | WireError::TooLong
            | WireError::Eyecatcher
            | WireError::Trailer
            | WireError::Type(_)
            | WireError::Version(_)
            | WireError::Offset
            | WireError::Count => None,
        }
    }

    /// One sentence for a log.
    pub const fn text(self) -> &'static str {
        match self {
            WireError::Truncated => "the message is shorter than its content",
            WireError::Length => "the length field does not fit the message",
            WireError::TooLong => "the message is longer than any known one",
            WireError::Eyecatcher => "the message does not begin with an SMC eyecatcher",
            WireError::Trailer => "the message does not end with an SMC eyecatcher",
            WireError::Type(_) => "the type of the message is unknown",
            WireError::Version(_) => "the version of the message is unknown",
            WireError::Offset => "an offset points outside the message",
            WireError::Count => "a list has too many entries",
            WireError::SmcD => "the message speaks SMC-D",
            WireError::RmbeIndex => "the RMBE index is 0",
            WireError::RmbeSize => "the RMBE size code is too large",
            WireError::Token => "the alert token is 0",
            WireError::Mtu => "the MTU code is outside 1 to 5",
            WireError::Address => "the RMBE reaches beyond the address space",
            WireError::Release => "the release was not offered",
        }
    }
}
