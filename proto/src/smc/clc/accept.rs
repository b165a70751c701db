//! CLC Accept (server to client) and Confirm (client to server), which share one layout.
//!
//! Version 1 has 68 bytes; version 2 adds the EID, and on first contact the first-contact extension
//! (and in Confirm the client's other GIDs). Made and read by [`crate::smc::handshake`].

use super::proposal::{Limits, MAX_ENTRIES, Release};
use super::{FLAG, Frame, Header, Kind, TRAILER_LEN, frame};
use crate::smc::error::WireError;
use crate::smc::fields::{Fields, put, put_u16, put_u24, put_u32, put_u64};
use crate::smc::id::{Eid, Gid, Mac, Mtu, PeerId, Psn, Qpn, Rkey, RmbeIndex, RmbeSize, Token};
use crate::smc::list::List;

/// Offsets from the start of the message (bytes).
mod field {
    pub const PEER_ID: usize = 8;
    pub const GID: usize = 16;
    pub const MAC: usize = 32;
    pub const QPN: usize = 38;
    pub const RKEY: usize = 41;
    pub const INDEX: usize = 45;
    pub const TOKEN: usize = 46;
    /// High nibble: size code; low nibble: MTU code.
    pub const SIZE_MTU: usize = 50;
    pub const ADDRESS: usize = 52;
    pub const PSN: usize = 61;
    pub const LEN_V1: usize = 68;

    // Version 2.
    pub const EID: usize = 64;
    /// First contact: bit 7 direct.
    pub const DIRECT: usize = 104;
    /// First contact: high nibble operating system, low nibble release.
    pub const OS_RELEASE: usize = 105;
    pub const HOSTNAME: usize = 108;
    pub const MAX_CONNS: usize = 140;
    pub const MAX_LINKS: usize = 141;
    pub const FEATURES: usize = 142;
    /// First contact, Confirm only.
    pub const GID_COUNT: usize = 156;
    pub const GIDS: usize = 160;
    pub const LEN_V2: usize = 108;
    /// End of the fields of release 2.1 and of the first-contact extension of Accept.
    pub const END_V21: usize = 156;
    /// End of the first-contact extension of release 2.0 as the protocol defines it.
    pub const END_V20: usize = 140;
}

/// The longest message that is emitted, in bytes.
pub const MAX_LEN: usize = field::GIDS + 16 * MAX_ENTRIES + TRAILER_LEN;

/// One end of the connection: its queue pair and the ring that the other end writes into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// The sender.
    pub peer_id: PeerId,
    /// GID of the sender's port on the chosen link.
    pub gid: Gid,
    /// MAC of that port.
    pub mac: Mac,
    /// The sender's queue pair on the chosen link.
    pub qpn: Qpn,
    /// First sequence number of its send queue; used on first contact.
    pub psn: Psn,
    /// MTU of the port (Accept), or the smaller of both ends' (Confirm).
    pub mtu: Mtu,
    /// Key of the registered memory.
    pub rkey: Rkey,
    /// Address of the registered memory, as the writer has to name it.
    pub rmb_address: u64,
    /// The ring's place in the registered memory.
    pub index: RmbeIndex,
    /// The number to put into CDC messages to the sender.
    pub token: Token,
    /// Size of the ring.
    pub size: RmbeSize,
}

impl Endpoint {
    /// Address of byte 0 of the ring: RMB address + size * (index - 1). Refused if the ring would
    /// reach beyond the address space.
    pub fn ring_address(&self) -> Result<u64, WireError> {
        let size = self.size.bytes() as u64;
        let start = self.rmb_address.checked_add(size * (self.index.value() as u64 - 1));
        match start {
            Some(start) if start.checked_add(size).is_some() => Ok(start),
            _ => Err(WireError::Address),
        }
    }
}

/// Accept or Confirm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcceptConfirm {
    /// The sender's end.
    pub endpoint: Endpoint,
    /// Version and first contact.
    pub form: Form,
}

/// The two versions of the message.
// The larger one is the usual one, and there is no allocator to box it with.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// SMC-Rv1.
    V1 {
        /// The link group is new.
        first_contact: bool,
    },
    /// SMC-Rv2.
    V2 {
        /// The EID that the server chose.
        eid: Eid,
        /// Present if the link group is new.
        first_contact: Option<FirstContact>,
    },
}

/// The first-contact extension of version 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstContact {
    /// Both ends are in one subnet; no gateway lies between them.
    pub direct: bool,
    /// Operating system, 0..=15: 1 z/OS, 2 Linux, 3 AIX.
    pub os: u8,
    /// The release that the server chose.
    pub release: Release,
    /// Name of the host, padded with spaces.
    pub hostname: [u8; 32],
    /// Confirm only: the client's GIDs, the used one first. Empty in Accept.
    pub gids: List<Gid, MAX_ENTRIES>,
}

impl AcceptConfirm {
    /// Whether the link group is new.
    pub const fn first_contact(&self) -> bool {
        match &self.form {
            Form::V1 { first_contact } => *first_contact,
            Form::V2 { first_contact, .. } => first_contact.is_some(),
        }
    }

    /// The release that is named: on first contact in version 2.
    pub fn release(&self) -> Option<Release> {
        match &self.form {
            Form::V1 { .. } => None,
            Form::V2 { first_contact, .. } => first_contact.map(|first| first.release),
        }
    }

    /// SMC version, 1 or 2.
    pub const fn version(&self) -> u8 {
        match self.form {
            Form::V1 { .. } => 1,
            Form::V2 { .. } => 2,
        }
    }

    /// Reads the fields of a message of this header.
    pub fn parse(header: &Header, bytes: &[u8]) -> Result<AcceptConfirm, WireError> {
        if header.smcd || header.bits & 3 != 0 {
            return Err(WireError::SmcD);
        }
        let first_contact = header.bits & FLAG != 0;
        let form = if header.version == 1 {
            if bytes.len() != field::LEN_V1 {
                return Err(WireError::Length);
            }
            Form::V1 { first_contact }
        } else {
            parse_v2(first_contact, header.kind, bytes)?
        };
        let endpoint = parse_endpoint(Fields(bytes))?;
        Ok(AcceptConfirm { endpoint, form })
    }

    /// The bytes of the message; `kind` is Accept or Confirm.
    pub fn emit(&self, kind: Kind) -> Frame {
        let mut out = [0; MAX_LEN];
        emit_endpoint(&self.endpoint, &mut out);
        let end = match &self.form {
            Form::V1 { .. } => field::LEN_V1 - TRAILER_LEN,
            Form::V2 { eid, first_contact } => {
                put(&mut out, field::EID, &eid.0);
                match first_contact {
                    None => field::LEN_V2 - TRAILER_LEN,
                    Some(first) => emit_first_contact(first, kind, &mut out),
                }
            }
        };
        let bits = if self.first_contact() { FLAG } else { 0 };
        frame(&mut out[..end + TRAILER_LEN], kind, self.version(), bits)
    }
}

fn parse_endpoint(fields: Fields) -> Result<Endpoint, WireError> {
    let size_mtu = fields.u8(field::SIZE_MTU)?;
    let endpoint = Endpoint {
        peer_id: PeerId(fields.array(field::PEER_ID)?),
        gid: Gid(fields.array(field::GID)?),
        mac: Mac(fields.array(field::MAC)?),
        qpn: Qpn::truncate(fields.u24(field::QPN)?),
        psn: Psn::truncate(fields.u24(field::PSN)?),
        mtu: Mtu::from_code(size_mtu & 0x0f)?,
        rkey: Rkey(fields.u32(field::RKEY)?),
        rmb_address: fields.u64(field::ADDRESS)?,
        index: RmbeIndex::new(fields.u8(field::INDEX)?)?,
        token: Token::new(fields.u32(field::TOKEN)?)?,
        size: RmbeSize::from_code(size_mtu >> 4)?,
    };
    endpoint.ring_address()?;
    Ok(endpoint)
}

fn emit_endpoint(end: &Endpoint, out: &mut [u8]) {
    put(out, field::PEER_ID, &end.peer_id.0);
    put(out, field::GID, &end.gid.0);
    put(out, field::MAC, &end.mac.0);
    put_u24(out, field::QPN, end.qpn.value());
    put_u32(out, field::RKEY, end.rkey.0);
    out[field::INDEX] = end.index.value();
    put_u32(out, field::TOKEN, end.token.value());
    out[field::SIZE_MTU] = end.size.code() << 4 | end.mtu.code();
    put_u64(out, field::ADDRESS, end.rmb_address);
    put_u24(out, field::PSN, end.psn.value());
}

fn parse_v2(first_contact: bool, kind: Kind, bytes: &[u8]) -> Result<Form, WireError> {
    let fields = Fields(bytes);
    if bytes.len() < field::LEN_V2 {
        return Err(WireError::Length);
    }
    let eid = Eid(fields.array(field::EID)?);
    if !first_contact {
        return Ok(Form::V2 { eid, first_contact: None });
    }
    // A peer of release 2.0 may end its message after the 36 bytes that the protocol names.
    let content = bytes.len() - TRAILER_LEN;
    if content < field::END_V20 {
        return Err(WireError::Length);
    }
    let os_release = fields.u8(field::OS_RELEASE)?;
    let number = os_release & 0x0f;
    let release = if number == 0 {
        Release::V20
    } else if number > 1 {
        return Err(WireError::Release);
    } else if content < field::END_V21 {
        return Err(WireError::Length);
    } else {
        Release::V21(Limits {
            max_conns: fields.u8(field::MAX_CONNS)?,
            max_links: fields.u8(field::MAX_LINKS)?,
            features: fields.u16(field::FEATURES)?,
        })
    };
    let mut gids = List::new();
    if kind == Kind::Confirm && content >= field::GIDS {
        let count = fields.u8(field::GID_COUNT)? as usize;
        if count > MAX_ENTRIES {
            return Err(WireError::Count);
        }
        if content < field::GIDS + 16 * count {
            return Err(WireError::Truncated);
        }
        for i in 0..count {
            gids.push(Gid(fields.array(field::GIDS + 16 * i)?));
        }
    }
    let first =
        FirstContact { direct: fields.u8(field::DIRECT)? & 0x80 != 0, os: os_release >> 4, release, hostname: fields.array(field::HOSTNAME)?, gids };
    Ok(Form::V2 { eid, first_contact: Some(first) })
}

/// Writes the extension; returns where it ends.
fn emit_first_contact(first: &FirstContact, kind: Kind, out: &mut [u8]) -> usize {
    out[field::DIRECT] = (first.direct as u8) << 7;
    out[field::OS_RELEASE] = first.os << 4 | first.release.number();
    put(out, field::HOSTNAME, &first.hostname);
    if let Release::V21(limits) = first.release {
        out[field::MAX_CONNS] = limits.max_conns;
        out[field::MAX_LINKS] = limits.max_links;
        put_u16(out, field::FEATURES, limits.features);
    }
    if kind != Kind::Confirm {
        return field::END_V21;
    }
    out[field::GID_COUNT] = first.gids.len() as u8;
    for (i, gid) in first.gids.iter().enumerate() {
        put(out, field::GIDS + 16 * i, &gid.0);
    }
    field::GIDS + 16 * first.gids.len()
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

    fn accept() -> AcceptConfirm {
        let endpoint = Endpoint {
            peer_id: PeerId([1; 8]),
            gid: Gid([2; 16]),
            mac: Mac([3; 6]),
            qpn: Qpn::truncate(0x11),
            psn: Psn::truncate(0xced419),
            mtu: Mtu::B1024,
            rkey: Rkey(0x3b1),
            rmb_address: 0x1000,
            index: RmbeIndex::FIRST,
            token: Token::new(1).unwrap(),
            size: RmbeSize::from_code(2).unwrap(),
        };
        AcceptConfirm { endpoint, form: Form::V1 { first_contact: true } }
    }

    fn refused(at: usize, value: u8) -> Option<WireError> {
        let mut bytes = Message::Accept(accept()).emit();
        bytes[at] = value;
        Message::parse(&bytes).err()
    }

    #[test]
    fn version_1_has_68_bytes_and_no_others() {
        let bytes = Message::Accept(accept()).emit();
        assert_eq!((bytes.len(), bytes[7]), (68, 0x18));
        assert_eq!(Message::parse(&bytes), Ok(Message::Accept(accept())));
        let mut longer = [0; 72];
        longer[..68].copy_from_slice(&bytes);
        longer[6] = 72;
        longer[68..].copy_from_slice(&super::super::SMCR);
        assert_eq!(Message::parse(&longer), Err(WireError::Length));
    }

    #[test]
    fn values_that_would_harm_are_refused() {
        assert_eq!(refused(field::INDEX, 0), Some(WireError::RmbeIndex));
        assert_eq!(refused(field::TOKEN + 3, 0), Some(WireError::Token));
        assert_eq!(refused(field::SIZE_MTU, 0x63), Some(WireError::RmbeSize));
        assert_eq!(refused(field::SIZE_MTU, 0x20), Some(WireError::Mtu));
        assert_eq!(refused(field::SIZE_MTU, 0x26), Some(WireError::Mtu));
        assert_eq!(refused(7, 0x19), Some(WireError::SmcD));
        assert_eq!(refused(3, 0xc4), Some(WireError::SmcD));
        assert_eq!(refused(65, 0), Some(WireError::Trailer));
        assert_eq!(refused(field::INDEX, 255), None, "any index but 0 is honoured");
    }

    #[test]
    fn a_ring_beyond_the_address_space_is_refused() {
        let mut end = accept().endpoint;
        end.rmb_address = u64::MAX - (128 << 10);
        end.index = RmbeIndex::new(2).unwrap();
        assert_eq!(end.ring_address(), Ok(end.rmb_address + (64 << 10)));
        end.index = RmbeIndex::new(3).unwrap();
        assert_eq!(end.ring_address(), Err(WireError::Address));
        end.index = RmbeIndex::FIRST;
        end.rmb_address = u64::MAX - 5;
        assert_eq!(end.ring_address(), Err(WireError::Address), "it ends beyond");
        let message = Message::Confirm(AcceptConfirm { endpoint: end, ..accept() });
        assert_eq!(Message::parse(&message.emit()), Err(WireError::Address));
    }
}
