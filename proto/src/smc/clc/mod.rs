//! CLC: the messages at the start of the TCP stream by which two ends agree on SMC-R.
//!
//! RFC 7609 appendix A.2 and Linux `net/smc/smc_clc.h`; versions 1 and 2 (2.0 and 2.1). Both ends
//! put them into the stream only after the TCP handshake carried the SMC option both ways. Called by
//! [`super::handshake`]; `assembler` cuts the stream into messages, the other files know one
//! message each.

pub mod accept;
pub mod assembler;
pub mod decline;
pub mod proposal;

use self::accept::AcceptConfirm;
use self::decline::Decline;
use self::proposal::Proposal;
use super::error::WireError;
use super::fields::{Fields, put, put_u16};
use super::list::List;

/// "SMCR" in EBCDIC: first and last four bytes of a message.
pub const SMCR: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];
/// "SMCD" in EBCDIC.
pub const SMCD: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xc4];
/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Bytes of the trailer, an eyecatcher.
pub const TRAILER_LEN: usize = 4;
/// The longest message taken, in bytes; the longest that the protocol can form is a Proposal of
/// [`proposal::MAX_LEN`].
pub const MAX_LEN: usize = 1024;

const _: () = assert!(proposal::MAX_LEN <= MAX_LEN && accept::MAX_LEN <= MAX_LEN);

/// An emitted message.
pub type Frame = List<u8, MAX_LEN>;

/// Offsets in the header (bytes).
mod field {
    pub const EYECATCHER: usize = 0;
    pub const TYPE: usize = 4;
    pub const LENGTH: usize = 5;
    pub const VERSION: usize = 7;
}

/// Bit 3 of byte 7: first contact in Accept and Confirm, out of sync in Decline.
const FLAG: u8 = 0x08;

/// Which message it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Client to server: what the client can do.
    Proposal = 1,
    /// Server to client: what was chosen, and the server's ring.
    Accept = 2,
    /// Client to server: the client's ring.
    Confirm = 3,
    /// Either: not SMC, go on with TCP.
    Decline = 4,
}

/// The first eight bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Which message follows.
    pub kind: Kind,
    /// Bytes of the whole message, header and trailer included.
    pub length: u16,
    /// SMC version, 1 or 2 (higher ones are read as 2).
    pub version: u8,
    /// The low four bits of byte 7; their meaning depends on the kind.
    pub bits: u8,
    /// The eyecatcher was that of SMC-D.
    pub smcd: bool,
}

impl Header {
    /// Reads the header from the first [`HEADER_LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Result<Header, WireError> {
        let fields = Fields(bytes);
        let smcd = match fields.array(field::EYECATCHER)? {
            SMCR => false,
            SMCD => true,
            _ => return Err(WireError::Eyecatcher),
        };
        let kind = match fields.u8(field::TYPE)? {
            1 => Kind::Proposal,
            2 => Kind::Accept,
            3 => Kind::Confirm,
            4 => Kind::Decline,
            other => return Err(WireError::Type(other)),
        };
        let length = fields.u16(field::LENGTH)?;
        let last = fields.u8(field::VERSION)?;
        let version = match last >> 4 {
            0 => return Err(WireError::Version(0)),
            1 => 1,
            _ => 2,
        };
        if (length as usize) < HEADER_LEN + TRAILER_LEN {
            return Err(WireError::Length);
        }
        if length as usize > MAX_LEN {
            return Err(WireError::TooLong);
        }
        Ok(Header { kind, length, version, bits: last & 0x0f, smcd })
    }
}

/// A message.
// One is parsed at a time, on the stack; boxing needs an allocator.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// See [`Kind::Proposal`].
    Proposal(Proposal),
    /// See [`Kind::Accept`].
    Accept(AcceptConfirm),
    /// See [`Kind::Confirm`].
    Confirm(AcceptConfirm),
    /// See [`Kind::Decline`].
    Decline(Decline),
}

impl Message {
    /// Reads one whole message; `bytes` is exactly as long as its header says.
    pub fn parse(bytes: &[u8]) -> Result<Message, WireError> {
        let header = Header::parse(bytes)?;
        if bytes.len() != header.length as usize {
            return Err(WireError::Length);
        }
        // Linux does not look at the trailer of a Decline.
        if header.kind == Kind::Decline {
            return Decline::parse(&header, bytes).map(Message::Decline);
        }
        let trailer: [u8; 4] = Fields(bytes).array(bytes.len() - TRAILER_LEN)?;
        if trailer != SMCR && trailer != SMCD {
            return Err(WireError::Trailer);
        }
        Ok(match header.kind {
            Kind::Proposal => Message::Proposal(Proposal::parse(&header, bytes)?),
            Kind::Accept => Message::Accept(AcceptConfirm::parse(&header, bytes)?),
            Kind::Confirm => Message::Confirm(AcceptConfirm::parse(&header, bytes)?),
            Kind::Decline => return Err(WireError::Type(Kind::Decline as u8)),
        })
    }

    /// The bytes of the message.
    pub fn emit(&self) -> Frame {
        match self {
            Message::Proposal(p) => p.emit(),
            Message::Accept(a) => a.emit(Kind::Accept),
            Message::Confirm(a) => a.emit(Kind::Confirm),
            Message::Decline(d) => d.emit(),
        }
    }
}

/// Writes header and trailer around a message that fills `out`.
fn frame(out: &mut [u8], kind: Kind, version: u8, bits: u8) -> Frame {
    put(out, field::EYECATCHER, &SMCR);
    out[field::TYPE] = kind as u8;
    put_u16(out, field::LENGTH, out.len() as u16);
    out[field::VERSION] = version << 4 | bits;
    put(out, out.len() - TRAILER_LEN, &SMCR);
    Frame::of(out)
}
