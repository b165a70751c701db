//! LLC: the messages by which the two ends of an RDMA link manage it.
//!
//! RFC 7609 appendix A.3 and Linux `net/smc/smc_llc.h`; RDMA SENDs of 44 bytes (some of version 2 are
//! longer). Version 1 has types 0x01..0x09, version 2 the same with high nibble 2. Made and read by
//! [`super::link`]; `link_messages` and `rkey_messages` know the bodies.

mod link_messages;
mod rkey_messages;

pub use self::link_messages::{AddKind, AddLink, AddLinkCont, AddLinkExt, ConfirmLink, DeleteLink, LinkReason, MAX_RKEYS, RequestAddLink, RkeyMap};
pub use self::rkey_messages::{ConfirmRkey, DeleteRkey, MAX_DELETE_KEYS, RkeyOnLink, TestLink};

use super::error::WireError;
use super::fields::Fields;
use super::list::List;

/// Bytes of a message without extension.
pub const LEN: usize = 44;
/// Most bytes of a message that is emitted.
pub const MAX_EMIT: usize = 224;

/// An emitted message.
pub type Frame = List<u8, MAX_EMIT>;

/// Flag of a response, in byte 3.
const RESPONSE: u8 = 0x80;

/// Which version of SMC-R a link group speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// SMC-Rv1.
    V1,
    /// SMC-Rv2.
    V2,
}

/// A message.
// Parsed one at a time, on the stack.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Type 1: proves that a new link works.
    ConfirmLink(ConfirmLink),
    /// Type 2: asks for a second link.
    AddLink(AddLink),
    /// Type 3 (version 1): remote keys for a second link.
    AddLinkCont(AddLinkCont),
    /// Type 4: ends a link or all of them.
    DeleteLink(DeleteLink),
    /// Type 5 (version 2): asks the server to add a link.
    RequestAddLink(RequestAddLink),
    /// Type 6: announces a registered memory.
    ConfirmRkey(ConfirmRkey),
    /// Type 7: asks for a sign of life.
    TestLink(TestLink),
    /// Type 9: withdraws registered memory.
    DeleteRkey(DeleteRkey),
}

/// Where the header has what (bytes).
mod field {
    pub const TYPE: usize = 0;
    pub const LENGTH: usize = 1;
    /// Version 1 Add Link: low nibble is the reason of a reject.
    pub const REASON: usize = 2;
    pub const FLAGS: usize = 3;
}

impl Message {
    /// Reads a message. An unknown type is an error that the receiver ignores.
    pub fn parse(bytes: &[u8]) -> Result<(Family, Message), WireError> {
        Message::parse_first(bytes, bytes.len())
    }

    /// The same of the first bytes of one of which so many have arrived: the keys of an Add Link that lie behind them are left out.
    pub fn parse_first(bytes: &[u8], arrived: usize) -> Result<(Family, Message), WireError> {
        let arrived = arrived.max(bytes.len());
        let fields = Fields(bytes);
        let first = fields.u8(field::TYPE)?;
        let family = match first >> 4 {
            0 => Family::V1,
            2 => Family::V2,
            _ => return Err(WireError::Type(first)),
        };
        if bytes.len() < LEN {
            return Err(WireError::Truncated);
        }
        check_length(family, fields, arrived)?;
        let reason = fields.u8(field::REASON)? & 0x0f;
        let flags = fields.u8(field::FLAGS)?;
        let response = flags & RESPONSE != 0;
        let message = match (first & 0x0f, family) {
            (1, _) => Message::ConfirmLink(ConfirmLink::parse(fields, flags)?),
            (2, _) => Message::AddLink(AddLink::parse(fields, family, (reason, flags), arrived)?),
            (3, Family::V1) => Message::AddLinkCont(AddLinkCont::parse(fields, response)?),
            (4, _) => Message::DeleteLink(DeleteLink::parse(fields, flags)?),
            (5, Family::V2) => Message::RequestAddLink(RequestAddLink::parse(fields, response)?),
            (6, _) => Message::ConfirmRkey(ConfirmRkey::parse(fields, flags)?),
            (7, _) => Message::TestLink(TestLink::parse(fields, response)?),
            (9, _) => Message::DeleteRkey(DeleteRkey::parse(fields, family, flags)?),
            _ => return Err(WireError::Type(first)),
        };
        Ok((family, message))
    }

    /// The bytes of the message in this family.
    pub fn emit(&self, family: Family) -> Frame {
        let mut out = [0; MAX_EMIT];
        let (kind, flags, len) = match self {
            Message::ConfirmLink(m) => (1, m.emit(&mut out), LEN),
            Message::AddLink(m) => {
                let (flags, len) = m.emit(family, &mut out);
                (2, flags, len)
            }
            Message::AddLinkCont(m) => (3, m.emit(&mut out), LEN),
            Message::DeleteLink(m) => (4, m.emit(&mut out), LEN),
            Message::RequestAddLink(m) => {
                let (flags, len) = m.emit(&mut out);
                (5, flags, len)
            }
            Message::ConfirmRkey(m) => (6, m.emit(&mut out), LEN),
            Message::TestLink(m) => (7, m.emit(&mut out), LEN),
            Message::DeleteRkey(m) => (9, m.emit(&mut out), LEN),
        };
        out[field::TYPE] = kind | if family == Family::V2 { 0x20 } else { 0 };
        // In version 2 a 16-bit length in Linux's order; below 256 that is the same byte.
        out[field::LENGTH] = len as u8;
        out[field::FLAGS] = flags;
        Frame::of(&out[..len])
    }
}

const _: () = assert!(MAX_EMIT < 256);

/// Linux writes the 16-bit length of version 2 in host order, so either order may arrive.
fn check_length(family: Family, fields: Fields, arrived: usize) -> Result<(), WireError> {
    let good = match family {
        Family::V1 => fields.u8(field::LENGTH)? as usize == LEN,
        Family::V2 => {
            let length: [u8; 2] = fields.array(field::LENGTH)?;
            let fits = |len: u16| (LEN..=arrived).contains(&(len as usize));
            fits(u16::from_le_bytes(length)) || fits(u16::from_be_bytes(length))
        }
    };
    if good { Ok(()) } else { Err(WireError::Length) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smc::id::{Gid, Mac, Psn, Qpn};
    use crate::smc::list::List;

    #[test]
    fn the_length_is_checked_in_either_order() {
        let test = Message::TestLink(TestLink { response: false, user_data: [0; 16] });
        let mut bytes = test.emit(Family::V2);
        assert_eq!(bytes[..4], [0x27, 44, 0, 0]);
        assert_eq!(Message::parse(&bytes), Ok((Family::V2, test)));
        bytes[1..3].copy_from_slice(&[0, 44]);
        assert_eq!(Message::parse(&bytes), Ok((Family::V2, test)));
        bytes[1..3].copy_from_slice(&[45, 0]);
        assert_eq!(Message::parse(&bytes), Err(WireError::Length));
        let mut bytes = test.emit(Family::V1);
        bytes[1] = 43;
        assert_eq!(Message::parse(&bytes), Err(WireError::Length));
        assert_eq!(Message::parse(&bytes[..43]), Err(WireError::Truncated));
    }

    #[test]
    fn of_a_long_add_link_the_beginning_is_enough() {
        let ext = AddLinkExt { direct: true, target_gid: Gid([7; 16]), rkeys: List::new() };
        let (mac, gid) = (Mac([1; 6]), Gid([2; 16]));
        let add = AddLink { kind: AddKind::Request, mac, gid, qpn: Qpn::truncate(3), link: 4, mtu_code: 5, psn: Psn::truncate(6), ext: Some(ext) };
        // As a kernel has it that names 255 memories.
        const WHOLE: usize = 72 + 16 * 255;
        let mut bytes = [0u8; WHOLE];
        bytes[..72].copy_from_slice(&Message::AddLink(add).emit(Family::V2)[..72]);
        bytes[1..3].copy_from_slice(&(WHOLE as u16).to_le_bytes());
        bytes[70..72].copy_from_slice(&255u16.to_le_bytes());
        let whole = Message::parse(&bytes).unwrap();
        assert_eq!(Message::parse_first(&bytes[..256], WHOLE), Ok(whole));
        let Message::AddLink(AddLink { ext: Some(ext), link: 4, .. }) = whole.1 else { panic!("{whole:?}") };
        assert_eq!(ext.rkeys.len(), MAX_RKEYS);
        assert_eq!(Message::parse(&bytes[..256]), Err(WireError::Length));
        assert_eq!(Message::parse_first(&bytes[..256], WHOLE - 1), Err(WireError::Length));
        bytes[1..3].copy_from_slice(&256u16.to_le_bytes());
        assert_eq!(Message::parse(&bytes[..256]), Err(WireError::Count));
    }

    #[test]
    fn unregistered_types_are_unknown() {
        for first in [0x00, 0x05, 0x08, 0x0a, 0x11, 0x23, 0x28, 0xfe] {
            let mut bytes = [0; LEN];
            bytes[0] = first;
            bytes[1] = LEN as u8;
            assert_eq!(Message::parse(&bytes), Err(WireError::Type(first)));
        }
    }
}
