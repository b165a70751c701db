//! CLC Decline: "not SMC; go on with TCP". Legal in place of any expected message.
//!
//! 28 bytes in version 1, 44 in version 2. Sent and read by [`crate::smc::handshake`].

use super::{FLAG, Frame, Header, Kind, frame};
use crate::smc::diagnosis::Diagnosis;
use crate::smc::error::WireError;
use crate::smc::fields::{Fields, put, put_u32};
use crate::smc::id::PeerId;

mod field {
    pub const PEER_ID: usize = 8;
    pub const DIAGNOSIS: usize = 16;
    /// High nibble: operating system, 0 in version 1.
    pub const OS: usize = 20;
    /// Version 2: four further words.
    pub const EXTRA: usize = 24;
    pub use super::{LEN_V1, LEN_V2};
}

/// Bytes of a Decline of version 1.
pub const LEN_V1: usize = 28;
/// Bytes of a Decline of version 2.
pub const LEN_V2: usize = 44;

/// A Decline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decline {
    /// Who declines.
    pub peer_id: PeerId,
    /// Why.
    pub diagnosis: Diagnosis,
    /// The receiver has to end the link group of this connection.
    pub out_of_sync: bool,
    /// What only the layout of version 2 has; `None` is version 1.
    pub v2: Option<DeclineV2>,
}

/// The part of a Decline that version 1 does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeclineV2 {
    /// Operating system, 0..=15: 1 z/OS, 2 Linux, 3 AIX.
    pub os: u8,
    /// Further diagnosis words.
    pub extra: [u32; 4],
}

impl Decline {
    /// A Decline in the layout of version 1, which every peer reads.
    pub const fn new(peer_id: PeerId, diagnosis: Diagnosis) -> Decline {
        Decline { peer_id, diagnosis, out_of_sync: false, v2: None }
    }

    /// Reads the fields of a message of this header.
    pub fn parse(header: &Header, bytes: &[u8]) -> Result<Decline, WireError> {
        let fields = Fields(bytes);
        let expected = if header.version == 1 { field::LEN_V1 } else { field::LEN_V2 };
        if bytes.len() != expected {
            return Err(WireError::Length);
        }
        let v2 = if header.version == 1 {
            None
        } else {
            let mut extra = [0; 4];
            for (i, word) in extra.iter_mut().enumerate() {
                *word = fields.u32(field::EXTRA + 4 * i)?;
            }
            Some(DeclineV2 { os: fields.u8(field::OS)? >> 4, extra })
        };
        Ok(Decline {
            peer_id: PeerId(fields.array(field::PEER_ID)?),
            diagnosis: Diagnosis(fields.u32(field::DIAGNOSIS)?),
            out_of_sync: header.bits & FLAG != 0,
            v2,
        })
    }

    /// The bytes of the message.
    pub fn emit(&self) -> Frame {
        let mut out = [0; field::LEN_V2];
        put(&mut out, field::PEER_ID, &self.peer_id.0);
        put_u32(&mut out, field::DIAGNOSIS, self.diagnosis.0);
        let bits = if self.out_of_sync { FLAG } else { 0 };
        match self.v2 {
            None => frame(&mut out[..field::LEN_V1], Kind::Decline, 1, bits),
            Some(v2) => {
                out[field::OS] = v2.os << 4;
                for (i, word) in v2.extra.into_iter().enumerate() {
                    put_u32(&mut out, field::EXTRA + 4 * i, word);
                }
                frame(&mut out, Kind::Decline, 2, bits)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

    #[test]
    fn the_length_must_fit_the_version() {
        let mut bytes = Decline::new(PeerId([1; 8]), Diagnosis::MEMORY).emit();
        bytes[7] = 0x20;
        assert_eq!(Message::parse(&bytes), Err(WireError::Length));
    }

    #[test]
    fn the_trailer_is_not_looked_at() {
        let decline = Decline::new(PeerId([1; 8]), Diagnosis::MEMORY);
        let mut bytes = decline.emit();
        bytes[27] = 0;
        assert_eq!(Message::parse(&bytes), Ok(Message::Decline(decline)));
    }
}
