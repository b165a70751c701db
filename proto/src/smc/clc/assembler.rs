//! Cuts CLC messages out of the TCP stream without taking a byte too many.
//!
//! What follows a message in the stream may be the program's data (after a Decline), so the reader
//! asks [`Assembler::want`] how many bytes it may take. Called by [`crate::smc::handshake`].

use super::{HEADER_LEN, Header, MAX_LEN};
use crate::smc::error::WireError;
use crate::smc::list::List;

/// Collects one message after another.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    buffer: List<u8, MAX_LEN>,
    /// Length of the message, once its header is complete.
    length: Option<usize>,
}

impl Assembler {
    /// An assembler at the start of a message.
    pub fn new() -> Assembler {
        Assembler::default()
    }

    /// Bytes that are missing: first of the header, then of the message. 0 if it is complete.
    pub fn want(&self) -> usize {
        self.length.unwrap_or(HEADER_LEN) - self.buffer.len()
    }

    /// Whether part of a message has been taken.
    pub fn is_inside(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Takes bytes of the stream, at most to the end of the message; returns how many.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> Result<usize, WireError> {
        let mut taken = 0;
        while self.want() > 0 && taken < bytes.len() {
            let part = self.want().min(bytes.len() - taken);
            self.buffer.extend(&bytes[taken..taken + part]);
            taken += part;
            if self.length.is_none() && self.buffer.len() == HEADER_LEN {
                self.length = Some(Header::parse(&self.buffer)?.length as usize);
            }
        }
        Ok(taken)
    }

    /// The message, once it is complete.
    pub fn message(&self) -> Option<&[u8]> {
        (self.want() == 0).then_some(&*self.buffer)
    }

    /// Starts the next message.
    pub fn clear(&mut self) {
        *self = Assembler::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::decline::Decline;
    use super::*;
    use crate::smc::diagnosis::Diagnosis;
    use crate::smc::id::PeerId;

    #[test]
    fn takes_exactly_one_message_in_any_portions() {
        let message = Decline::new(PeerId([7; 8]), Diagnosis::NO_DEVICE).emit();
        for portion in 1..=message.len() + 3 {
            let mut stream = [0xaa_u8; 40];
            stream[..message.len()].copy_from_slice(&message);
            let mut assembler = Assembler::new();
            let mut at = 0;
            while assembler.message().is_none() {
                let end = (at + portion).min(stream.len());
                at += assembler.handle_bytes(&stream[at..end]).unwrap();
            }
            assert_eq!(at, message.len(), "portions of {portion}");
            assert_eq!(assembler.message(), Some(&*message));
        }
    }

    #[test]
    fn garbage_is_refused_at_the_header() {
        let mut assembler = Assembler::new();
        assert_eq!(assembler.handle_bytes(b"GET / HTTP/1.1"), Err(WireError::Eyecatcher));
        let mut long = [0xe2, 0xd4, 0xc3, 0xd9, 1, 0xff, 0xff, 0x20];
        assert_eq!(Assembler::new().handle_bytes(&long), Err(WireError::TooLong));
        long[5..7].copy_from_slice(&[0, 11]);
        assert_eq!(Assembler::new().handle_bytes(&long), Err(WireError::Length));
    }
}
