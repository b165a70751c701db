//! What can be wrong with the text of an attribute, in one line that names the mend.

use core::fmt;

use super::list::{PortRange, Prefix};

/// A piece of text that is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextError<'a> {
    /// The piece as it was written.
    pub item: &'a str,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a piece of text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Not a switch.
    NotAFlag,
    /// Not a mode.
    NotAMode,
    /// Not a number up to this one.
    NotANumber(u64),
    /// Neither a port nor a range of ports.
    NotAPort,
    /// A port that does not exist.
    PortOutOfRange,
    /// A range from a higher port to a lower one.
    Backwards(u16, u16),
    /// A range that shares ports with this one.
    PortsOverlap(PortRange),
    /// Two separators in a row, or one at an end.
    EmptyItem,
    /// More values than this.
    TooMany(usize),
    /// Not an address.
    NotAnAddress,
    /// More bits than the address has.
    BadBits(u8),
    /// Bits beyond the prefix, which would be this.
    HostBits(Prefix),
    /// A prefix that shares addresses with this one.
    AddressesOverlap(Prefix),
    /// A word of a rule that is none.
    NotAWord,
    /// The same thing twice.
    Twice,
    /// A rule without an order.
    NoUse,
    /// An order that is none.
    NotAUse,
    /// A role that is none.
    NotARole,
    /// A pattern that is empty or longer than this.
    BadPattern(usize),
    /// Not an EID of at most this many characters.
    BadEid(usize),
    /// Not a rule about the users of peers.
    NotAPeerUid,
}

impl Fault {
    /// The error that this piece of text has this fault.
    pub(super) const fn at(self, item: &str) -> TextError<'_> {
        TextError { item, fault: self }
    }
}

impl fmt::Display for TextError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.item, self.fault)
    }
}

impl core::error::Error for TextError<'_> {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NotAFlag => f.write_str("write 0 or 1"),
            Fault::NotAMode => f.write_str("write auto, shm, rdma or off"),
            Fault::NotANumber(most) => write!(f, "write a number from 0 to {most}"),
            Fault::NotAPort => f.write_str("write a port or a range of ports, such as 23 or 1-20"),
            Fault::PortOutOfRange => f.write_str("ports go from 1 to 65535"),
            Fault::Backwards(first, last) => {
                write!(f, "the range runs backwards; write {last}-{first}")
            }
            Fault::PortsOverlap(other) => {
                write!(f, "overlaps {other} of the same list; write one range")
            }
            Fault::EmptyItem => f.write_str("an empty item; remove the extra separator"),
            Fault::TooMany(most) => write!(f, "there is room for {most} items only; join some"),
            Fault::NotAnAddress => f.write_str("write an address or a prefix, such as 10.0.0.1 or 10.0.0.0/8"),
            Fault::BadBits(most) => write!(f, "a prefix length goes from 0 to {most}"),
            Fault::HostBits(prefix) => {
                write!(f, "has bits beyond the prefix length; write {prefix}")
            }
            Fault::AddressesOverlap(other) => {
                write!(f, "overlaps {other} of the same list; leave one out")
            }
            Fault::NotAWord => f.write_str("write use=, program=, role=, uid=, addr= or port= with a value"),
            Fault::Twice => f.write_str("is there twice; leave one out"),
            Fault::NoUse => f.write_str("a rule needs use=smcr or use=tcp"),
            Fault::NotAUse => f.write_str("write use=smcr or use=tcp"),
            Fault::NotARole => f.write_str("write role=client or role=server"),
            Fault::BadPattern(most) => {
                write!(f, "a program pattern has 1 to {most} characters and no directory")
            }
            Fault::BadEid(most) => write!(f, "a user EID has 1 to {most} characters of A-Z, 0-9, `.` and `-`, the first a letter or digit"),
            Fault::NotAPeerUid => f.write_str("write any, same, anyone or the number of a user"),
        }
    }
}
