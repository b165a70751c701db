//! The names and numbers that SMC-R messages carry, each with its own type and range.
//!
//! Parsers make them, so that code behind a parser cannot meet an index 0, a token 0, a 25-bit
//! queue pair number or an MTU code that does not exist.

use core::num::{NonZeroU8, NonZeroU32};

use super::error::WireError;

/// 8 bytes that name one SMC peer. Linux: two random bytes and a MAC. This library: one per process
/// and start, because a kernel server picks an existing link group by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerId(pub [u8; 8]);

/// A RoCE address (GID), 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IPv4 address (RoCEv2), `::ffff:a.b.c.d`.
    pub const fn from_ipv4([a, b, c, d]: [u8; 4]) -> Gid {
        Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// The IPv4 address inside, if this is a v4-mapped GID.
    pub fn ipv4(self) -> Option<[u8; 4]> {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mac(pub [u8; 6]);

macro_rules! u24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name(u32);

        impl $name {
            /// The number, if it fits 24 bits.
            pub const fn new(value: u32) -> Option<$name> {
                if value < 1 << 24 { Some($name(value)) } else { None }
            }

            /// The low 24 bits of a number.
            pub const fn truncate(value: u32) -> $name {
                $name(value & 0xff_ffff)
            }

            /// The number, below 2^24.
            pub const fn value(self) -> u32 {
                self.0
            }
        }
    };
}

u24! {
    /// A queue pair number.
    Qpn
}
u24! {
    /// The packet sequence number with which a send queue begins.
    Psn
}

/// The remote key of a registered memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rkey(pub u32);

/// The alert token: the number by which the receiver of a CDC message knows the connection. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(NonZeroU32);

impl Token {
    /// The token of this number; 0 is refused.
    pub const fn new(value: u32) -> Result<Token, WireError> {
        match NonZeroU32::new(value) {
            Some(value) => Ok(Token(value)),
            None => Err(WireError::Token),
        }
    }

    /// The number.
    pub const fn value(self) -> u32 {
        self.0.get()
    }
}

/// The place of a ring (RMBE) inside its registered memory (RMB), counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RmbeIndex(NonZeroU8);

impl RmbeIndex {
    /// The first element, the only one that Linux uses.
    pub const FIRST: RmbeIndex = RmbeIndex(NonZeroU8::MIN);

    /// The index of this number; 0 is refused, because its ring would lie before the RMB.
    pub const fn new(value: u8) -> Result<RmbeIndex, WireError> {
        match NonZeroU8::new(value) {
            Some(value) => Ok(RmbeIndex(value)),
            None => Err(WireError::RmbeIndex),
        }
    }

    /// The number, 1..=255.
    pub const fn value(self) -> u8 {
        self.0.get()
    }
}

/// The size of a ring: 16 KiB << code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RmbeSize(u8);

impl RmbeSize {
    /// The largest code that is sent or taken: 512 KiB, SMC-R's limit in Linux.
    pub const MAX_CODE: u8 = 5;
    /// 16 KiB.
    pub const MIN: RmbeSize = RmbeSize(0);
    /// 512 KiB.
    pub const MAX: RmbeSize = RmbeSize(Self::MAX_CODE);

    /// The size with this code; codes above [`RmbeSize::MAX_CODE`] are refused.
    pub const fn from_code(code: u8) -> Result<RmbeSize, WireError> {
        if code <= Self::MAX_CODE { Ok(RmbeSize(code)) } else { Err(WireError::RmbeSize) }
    }

    /// The smallest size that holds this many bytes, at most [`RmbeSize::MAX`].
    pub fn at_least(bytes: u32) -> RmbeSize {
        (0..Self::MAX_CODE).map(RmbeSize).find(|s| s.bytes() >= bytes).unwrap_or(Self::MAX)
    }

    /// The code, 0..=5.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Bytes of the ring, a power of two.
    pub const fn bytes(self) -> u32 {
        (16 << 10) << self.0
    }
}

/// The path MTU of a RoCE port, as the code of the InfiniBand verbs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// The MTU with this code, 1..=5.
    pub const fn from_code(code: u8) -> Result<Mtu, WireError> {
        Ok(match code {
            1 => Mtu::B256,
            2 => Mtu::B512,
            3 => Mtu::B1024,
            4 => Mtu::B2048,
            5 => Mtu::B4096,
            _ => return Err(WireError::Mtu),
        })
    }

    /// The code, 1..=5.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The MTU in bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u8
    }
}

/// A user enterprise ID (UEID): 32 characters, padded with spaces. Two ends speak SMC-Rv2 only if
/// they have one in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Eid(pub [u8; 32]);

impl Eid {
    /// The EID of this text: 1 to 32 of `A-Z 0-9 . -`, the first a letter or digit (Linux
    /// `smc_clc_ueid_valid`).
    pub fn new(text: &str) -> Option<Eid> {
        let text = text.as_bytes();
        let good = |c: &u8| matches!(c, b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-');
        let first = *text.first()?;
        if text.len() > 32 || !text.iter().all(good) || matches!(first, b'.' | b'-') {
            return None;
        }
        let mut out = [b' '; 32];
        out[..text.len()].copy_from_slice(text);
        Some(Eid(out))
    }
}

impl Default for Eid {
    fn default() -> Eid {
        Eid([b' '; 32])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_values_are_refused() {
        assert_eq!(Token::new(0), Err(WireError::Token));
        assert_eq!(RmbeIndex::new(0), Err(WireError::RmbeIndex));
        assert_eq!(RmbeSize::from_code(6), Err(WireError::RmbeSize));
        assert_eq!(Mtu::from_code(0), Err(WireError::Mtu));
        assert_eq!(Mtu::from_code(6), Err(WireError::Mtu));
        assert_eq!(Qpn::new(1 << 24), None);
    }

    #[test]
    fn sizes_and_mtus_in_bytes() {
        assert_eq!(RmbeSize::from_code(2).map(RmbeSize::bytes), Ok(64 << 10));
        assert_eq!(RmbeSize::MAX.bytes(), 512 << 10);
        assert_eq!(RmbeSize::at_least(0), RmbeSize::MIN);
        assert_eq!(RmbeSize::at_least((16 << 10) + 1).code(), 1);
        assert_eq!(RmbeSize::at_least(u32::MAX), RmbeSize::MAX);
        assert_eq!([Mtu::B256.bytes(), Mtu::B1024.bytes(), Mtu::B4096.bytes()], [256, 1024, 4096]);
    }

    #[test]
    fn eids_follow_the_rules_of_linux() {
        assert_eq!(Eid::new("SMCR-LAB2").map(|e| e.0[9]), Some(b' '));
        for bad in ["", "-A", ".A", "a", "A B", "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456"] {
            assert_eq!(Eid::new(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn v4_mapped_gids() {
        let gid = Gid::from_ipv4([10, 77, 0, 2]);
        assert_eq!(gid.ipv4(), Some([10, 77, 0, 2]));
        assert_eq!(Gid([0xfe; 16]).ipv4(), None);
    }
}
