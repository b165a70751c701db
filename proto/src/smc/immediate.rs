//! The 32 bits that come with an RDMA write between two libsmcr, in place of a CDC message.
//!
//! Not part of SMC-R: both ends agree by [`FEATURE`] on first contact, and a Linux peer never sees it. Such a
//! write says what most messages say: so many bytes more (its length), for this connection, and how far the
//! other direction was read. All else goes by [`super::cdc`]. Made and read by [`super::conn`].
//!
//! | bits | |
//! |---|---|
//! | 31..29 | bits 18..16 of the receiver's alert token: which connection of that number |
//! | 28..17 | bits 11..0 of the token: the number |
//! | 16..14 | number of the message in its connection, CDC messages counted as well, modulo 8 |
//! | 13..0 | consumer cursor: bytes read since the start, modulo 16384 |

use super::id::Token;

/// Bit of the feature mask of release 2.1: data may be announced by the write itself. Bit 15 was the same without a number.
pub const FEATURE: u16 = 0x4000;
/// Progress that the bits can tell.
pub const MAX_PROGRESS: u32 = 0x3fff;

/// The meaning of the 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Immediate {
    /// What is told of the alert token, see [`name`].
    pub name: u16,
    /// Number of the message, modulo 8.
    pub sequence: u8,
    /// Bytes read since the start, modulo 16384.
    pub consumed: u16,
}

/// What the number of a message says against the last one that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// It is the next one.
    Next,
    /// It was taken already.
    Again,
    /// One before it is missing.
    Gap,
}

impl Immediate {
    /// From the value, in the host's order.
    pub const fn parse(value: u32) -> Immediate {
        Immediate { name: (value >> 17) as u16, sequence: (value >> 14) as u8 & 7, consumed: value as u16 & MAX_PROGRESS as u16 }
    }

    /// The value.
    pub const fn emit(self) -> u32 {
        (self.name as u32) << 17 | (self.sequence as u32 & 7) << 14 | self.consumed as u32 & MAX_PROGRESS
    }

    /// Bits 11..0 of the token.
    pub const fn number(self) -> u16 {
        self.name & 0x0fff
    }

    /// Bytes that were read since `before`, what was known of it.
    pub const fn progress(self, before: u64) -> u32 {
        self.consumed.wrapping_sub(before as u16) as u32 & MAX_PROGRESS
    }

    /// Judges the number, where that of the last message was `seen`.
    pub const fn order(self, seen: u16) -> Order {
        match self.sequence.wrapping_sub(seen as u8).wrapping_sub(1) & 7 {
            0 => Order::Next,
            1..=3 => Order::Gap,
            _ => Order::Again,
        }
    }
}

/// What an immediate tells of a token.
pub const fn name(token: Token) -> u16 {
    let value = token.value();
    (value >> 16 << 12) as u16 & 0x7000 | (value & 0x0fff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_has_one_place() {
        let token = Token::new(0xabcd_d123).unwrap();
        assert_eq!(name(token), 0x5123);
        let i = Immediate { name: name(token), sequence: 6, consumed: 0x3edc };
        assert_eq!(i.emit(), 0x5123 << 17 | 6 << 14 | 0x3edc);
        assert_eq!(Immediate::parse(i.emit()), i);
        assert_eq!(i.number(), 0x123);
        for bit in 0..32 {
            assert_eq!(Immediate::parse(1 << bit).emit(), 1 << bit);
        }
    }

    #[test]
    fn progress_passes_the_end_of_its_bits() {
        let at = |consumed: u64| Immediate { name: 1, sequence: 0, consumed: consumed as u16 & 0x3fff };
        for (before, bytes) in [(0, 0), (0, 0x3fff), (0x3fff, 1), (0xffff, 0x3fff), (1 << 40, 77)] {
            assert_eq!(at(before + bytes).progress(before), bytes as u32);
        }
    }

    #[test]
    fn numbers_go_on_at_their_end_and_tell_old_from_missing() {
        for seen in [0u16, 6, 7, 8, 0xffff] {
            let order = |ahead: i16| {
                let sequence = seen.wrapping_add_signed(ahead) as u8 & 7;
                Immediate { name: 1, sequence, consumed: 0 }.order(seen)
            };
            assert_eq!(order(1), Order::Next);
            assert!((-3..=0).all(|n| order(n) == Order::Again), "{seen}");
            assert!((2..=4).all(|n| order(n) == Order::Gap), "{seen}");
        }
    }
}
