//! The 32 bits that come with an RDMA write between two libsmcr, in place of a CDC message.
//!
//! Not part of SMC-R: both ends agree by [`FEATURE`] on first contact, and a Linux peer never sees it. Such a
//! write says what most messages say: so many bytes more (its length), for this connection, and how far the
//! other direction was read. All else goes by [`super::cdc`]. Made and read by [`super::conn`].
//!
//! | bits | |
//! |---|---|
//! | 31..28 | bits 19..16 of the receiver's alert token: which connection of that number |
//! | 27..16 | bits 11..0 of the token: the number |
//! | 15..0 | consumer cursor: bytes read since the start, modulo 65536 |

use super::id::Token;

/// Bit of the feature mask of release 2.1: data may be announced by the write itself.
pub const FEATURE: u16 = 0x8000;
/// Progress that 16 bits can tell.
pub const MAX_PROGRESS: u32 = 0xffff;

/// The meaning of the 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Immediate {
    /// What is told of the alert token, see [`name`].
    pub name: u16,
    /// Bytes read since the start, modulo 65536.
    pub consumed: u16,
}

impl Immediate {
    /// From the value, in the host's order.
    pub const fn parse(value: u32) -> Immediate {
        Immediate { name: (value >> 16) as u16, consumed: value as u16 }
    }

    /// The value.
    pub const fn emit(self) -> u32 {
        (self.name as u32) << 16 | self.consumed as u32
    }

    /// Bits 11..0 of the token.
    pub const fn number(self) -> u16 {
        self.name & 0x0fff
    }
}

/// What an immediate tells of a token.
pub const fn name(token: Token) -> u16 {
    let value = token.value();
    (value >> 16 << 12) as u16 | (value & 0x0fff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_has_one_place() {
        let token = Token::new(0xabc5_d123).unwrap();
        assert_eq!(name(token), 0x5123);
        let i = Immediate { name: name(token), consumed: 0xfedc };
        assert_eq!(i.emit(), 0x5123_fedc);
        assert_eq!(Immediate::parse(i.emit()), i);
        assert_eq!(i.number(), 0x123);
    }
}
