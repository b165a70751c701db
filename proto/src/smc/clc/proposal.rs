//! CLC Proposal: what a client can do.
//!
//! Three areas behind the fixed part of 40 bytes: a pointer block (SMC-D and version 2), the IP area
//! (subnets, for version 1) and the version 2 extension (GID, EIDs). Linux is exact about the total
//! length, and so is this parser. Content for SMC-D is measured and skipped. Sent by the client half
//! of [`crate::smc::handshake`], read by the server half.

use super::{Frame, Header, Kind, TRAILER_LEN, frame};
use crate::smc::error::WireError;
use crate::smc::fields::{Fields, put, put_u16, put_u32};
use crate::smc::id::{Eid, Gid, Mac, PeerId};
use crate::smc::list::List;

/// Offsets from the start of the message (bytes).
mod field {
    pub const PEER_ID: usize = 8;
    pub const GID: usize = 16;
    pub const MAC: usize = 32;
    /// u16: from [`BASE_LEN`] to the IP area.
    pub const IP_OFFSET: usize = 38;
    pub const BASE_LEN: usize = 40;
    /// u16: from [`V2_BASE`] to the version 2 extension, 0 = none.
    pub const V2_OFFSET: usize = 50;
    pub const V2_BASE: usize = 52;
    /// The pointer block, always present in version 2.
    pub const POINTER_LEN: usize = 40;
}

/// Offsets in the IP area.
mod ip {
    pub const SUBNET: usize = 0;
    pub const PREFIX_LEN: usize = 4;
    pub const V6_COUNT: usize = 7;
    pub const V6: usize = 8;
    pub const V6_LEN: usize = 17;
}

/// Offsets in the version 2 extension.
mod ext {
    pub const EID_COUNT: usize = 0;
    pub const ISM_COUNT: usize = 1;
    /// High nibble: release.
    pub const RELEASE: usize = 3;
    pub const GID: usize = 8;
    pub const MAX_CONNS: usize = 24;
    pub const MAX_LINKS: usize = 25;
    pub const FEATURES: usize = 26;
    pub const EIDS: usize = 40;
    pub const EID_LEN: usize = 32;
}

/// System EID and reserved bytes of the SMC-Dv2 extension, and one GID/CHID entry.
const SMCD_EXT_LEN: usize = 48;
const SMCD_ENTRY_LEN: usize = 10;
/// Most entries in any of the lists.
pub const MAX_ENTRIES: usize = 8;
/// Largest distances that Linux takes.
const MAX_IP_OFFSET: usize = 40;
const MAX_V2_OFFSET: usize = 28 + 8 + 8 * 17;

/// The longest Proposal that can be formed, in bytes.
pub const MAX_LEN: usize = field::BASE_LEN
    + field::POINTER_LEN
    + ip::V6
    + MAX_ENTRIES * ip::V6_LEN
    + ext::EIDS
    + MAX_ENTRIES * ext::EID_LEN
    + SMCD_EXT_LEN
    + MAX_ENTRIES * SMCD_ENTRY_LEN
    + TRAILER_LEN;

/// A Proposal, as far as it concerns SMC-R.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The client. Zero in a Linux Proposal of version 2 only.
    pub peer_id: PeerId,
    /// The client's GID for version 1. Zero as above.
    pub gid: Gid,
    /// MAC of the client's RoCE port. Zero as above.
    pub mac: Mac,
    /// The subnets of the client, if it offers SMC-Rv1.
    pub v1: Option<Prefixes>,
    /// What belongs to SMC-Rv2, if the client offers it.
    pub v2: Option<OfferV2>,
}

/// The IP subnets of the interface that the TCP connection uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prefixes {
    /// IPv4 subnet and its length in bits; zero for an IPv6 connection.
    pub v4: ([u8; 4], u8),
    /// IPv6 prefixes and their lengths in bits.
    pub v6: List<([u8; 16], u8), MAX_ENTRIES>,
}

impl Prefixes {
    /// Whether one of them is also one of `other`'s.
    pub fn meet(&self, other: &Prefixes) -> bool {
        let v4 = self.v4 == other.v4 && self.v4 != ([0; 4], 0);
        v4 || self.v6.iter().any(|p| other.v6.contains(p))
    }
}

/// The offer of SMC-Rv2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OfferV2 {
    /// The client's RoCEv2 GID.
    pub gid: Gid,
    /// Release and what it brings.
    pub release: Release,
    /// The client's user EIDs in order of preference.
    pub eids: List<Eid, MAX_ENTRIES>,
}

/// The release of SMCv2, with the limits that exist from 2.1 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// 2.0: 255 connections and 2 links per link group.
    V20,
    /// 2.1.
    V21(Limits),
}

/// The limits of release 2.1, and its feature bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections per link group, 16..=255.
    pub max_conns: u8,
    /// Links per link group, 1 or 2.
    pub max_links: u8,
    /// Bit 0: emulated ISM.
    pub features: u16,
}

impl Release {
    /// The number on the wire.
    pub const fn number(self) -> u8 {
        match self {
            Release::V20 => 0,
            Release::V21(_) => 1,
        }
    }

    /// The feature bits that are named.
    pub const fn features(self) -> u16 {
        match self {
            Release::V20 => 0,
            Release::V21(limits) => limits.features,
        }
    }

    /// The same with those feature bits alone that the other end has named as well.
    pub const fn with_features_of(self, other: Release) -> Release {
        match self {
            Release::V20 => Release::V20,
            Release::V21(limits) => Release::V21(Limits { features: limits.features & other.features(), ..limits }),
        }
    }
}

impl Proposal {
    /// Reads the areas of a message of this header.
    pub fn parse(header: &Header, bytes: &[u8]) -> Result<Proposal, WireError> {
        let fields = Fields(bytes);
        let ip_offset = fields.u16(field::IP_OFFSET)? as usize;
        if ip_offset > MAX_IP_OFFSET {
            return Err(WireError::Offset);
        }
        // 0 R, 1 D, 2 neither, 3 both.
        let (v1_type, v2_type) = (header.bits & 3, header.bits >> 2);
        let two = header.version > 1;
        let (ip_len, prefixes) = match v1_type {
            2 if two => (0, None),
            2 => return Err(WireError::Length),
            _ => {
                let (len, prefixes) = parse_ip(fields, field::BASE_LEN + ip_offset)?;
                (len, (v1_type != 1).then_some(prefixes))
            }
        };
        let fixed = field::BASE_LEN + ip_len + TRAILER_LEN;
        let (rest, v2) = if two { parse_v2(fields, v2_type)? } else { (ip_offset, None) };
        if bytes.len() != fixed + rest {
            return Err(WireError::Length);
        }
        Ok(Proposal {
            peer_id: PeerId(fields.array(field::PEER_ID)?),
            gid: Gid(fields.array(field::GID)?),
            mac: Mac(fields.array(field::MAC)?),
            v1: prefixes,
            v2,
        })
    }

    /// The bytes of the message: 52 and more in version 1, Linux's form in version 2.
    pub fn emit(&self) -> Frame {
        let mut out = [0; MAX_LEN];
        put(&mut out, field::PEER_ID, &self.peer_id.0);
        put(&mut out, field::GID, &self.gid.0);
        put(&mut out, field::MAC, &self.mac.0);
        let mut end = field::BASE_LEN;
        if self.v2.is_some() {
            end += field::POINTER_LEN;
        }
        if let Some(prefixes) = &self.v1 {
            put_u16(&mut out, field::IP_OFFSET, (end - field::BASE_LEN) as u16);
            end += emit_ip(prefixes, &mut out[end..]);
        }
        if let Some(offer) = &self.v2 {
            put_u16(&mut out, field::V2_OFFSET, (end - field::V2_BASE) as u16);
            end += emit_v2(offer, &mut out[end..]);
        }
        let version = if self.v2.is_some() { 2 } else { 1 };
        let v1_type = if self.v1.is_some() { 0 } else { 2 };
        frame(&mut out[..end + TRAILER_LEN], Kind::Proposal, version, v1_type)
    }
}

/// Length of the IP area at `at`, and its content.
fn parse_ip(fields: Fields, at: usize) -> Result<(usize, Prefixes), WireError> {
    let count = fields.u8(at + ip::V6_COUNT)? as usize;
    if count > MAX_ENTRIES {
        return Err(WireError::Count);
    }
    let mut prefixes = Prefixes { v4: (fields.array(at + ip::SUBNET)?, fields.u8(at + ip::PREFIX_LEN)?), v6: List::new() };
    for i in 0..count {
        let entry = at + ip::V6 + i * ip::V6_LEN;
        prefixes.v6.push((fields.array(entry)?, fields.u8(entry + 16)?));
    }
    Ok((ip::V6 + count * ip::V6_LEN, prefixes))
}

/// Length of pointer block and extensions, and the SMC-R part of them.
fn parse_v2(fields: Fields, v2_type: u8) -> Result<(usize, Option<OfferV2>), WireError> {
    let offset = fields.u16(field::V2_OFFSET)? as usize;
    if offset > MAX_V2_OFFSET {
        return Err(WireError::Offset);
    }
    if v2_type == 2 || offset == 0 {
        return Ok((field::POINTER_LEN, None));
    }
    let at = field::V2_BASE + offset;
    let eid_count = fields.u8(at + ext::EID_COUNT)? as usize;
    let ism_count = fields.u8(at + ext::ISM_COUNT)? as usize;
    if eid_count > MAX_ENTRIES || ism_count > MAX_ENTRIES {
        return Err(WireError::Count);
    }
    let mut len = field::POINTER_LEN + ext::EIDS + eid_count * ext::EID_LEN;
    if v2_type & 1 != 0 {
        len += SMCD_EXT_LEN + ism_count * SMCD_ENTRY_LEN;
        if v2_type == 1 {
            return Ok((len, None));
        }
    }
    let mut eids = List::new();
    for i in 0..eid_count {
        eids.push(Eid(fields.array(at + ext::EIDS + i * ext::EID_LEN)?));
    }
    let release = match fields.u8(at + ext::RELEASE)? >> 4 {
        0 => Release::V20,
        _ => Release::V21(Limits {
            max_conns: fields.u8(at + ext::MAX_CONNS)?,
            max_links: fields.u8(at + ext::MAX_LINKS)?,
            features: fields.u16(at + ext::FEATURES)?,
        }),
    };
    Ok((len, Some(OfferV2 { gid: Gid(fields.array(at + ext::GID)?), release, eids })))
}

fn emit_ip(prefixes: &Prefixes, out: &mut [u8]) -> usize {
    put_u32(out, ip::SUBNET, u32::from_be_bytes(prefixes.v4.0));
    out[ip::PREFIX_LEN] = prefixes.v4.1;
    out[ip::V6_COUNT] = prefixes.v6.len() as u8;
    for (i, (prefix, len)) in prefixes.v6.iter().enumerate() {
        put(out, ip::V6 + i * ip::V6_LEN, prefix);
        out[ip::V6 + i * ip::V6_LEN + 16] = *len;
    }
    ip::V6 + prefixes.v6.len() * ip::V6_LEN
}

fn emit_v2(offer: &OfferV2, out: &mut [u8]) -> usize {
    out[ext::EID_COUNT] = offer.eids.len() as u8;
    out[ext::RELEASE] = offer.release.number() << 4;
    put(out, ext::GID, &offer.gid.0);
    if let Release::V21(limits) = offer.release {
        out[ext::MAX_CONNS] = limits.max_conns;
        out[ext::MAX_LINKS] = limits.max_links;
        put_u16(out, ext::FEATURES, limits.features);
    }
    for (i, eid) in offer.eids.iter().enumerate() {
        put(out, ext::EIDS + i * ext::EID_LEN, &eid.0);
    }
    ext::EIDS + offer.eids.len() * ext::EID_LEN
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

    fn v1_only() -> Proposal {
        let v1 = Some(Prefixes { v4: ([10, 77, 0, 0], 24), v6: List::new() });
        Proposal { peer_id: PeerId([1; 8]), gid: Gid([2; 16]), mac: Mac([3; 6]), v1, v2: None }
    }

    fn v2_offer() -> OfferV2 {
        let eids = List::of(&[Eid::new("SMCR-LAB2").unwrap()]);
        OfferV2 { gid: Gid::from_ipv4([10, 77, 0, 2]), release: Release::V20, eids }
    }

    #[test]
    fn the_sizes_are_those_of_the_rfc_and_of_linux() {
        let mut proposal = v1_only();
        let bytes = proposal.emit();
        assert_eq!((bytes.len(), bytes[7]), (52, 0x10));
        proposal.v2 = Some(v2_offer());
        let bytes = proposal.emit();
        assert_eq!((bytes.len(), bytes[7], bytes[39], bytes[51]), (164, 0x20, 40, 36));
        proposal.v1 = None;
        let bytes = proposal.emit();
        assert_eq!((bytes.len(), bytes[7], bytes[39], bytes[51]), (156, 0x22, 0, 28));
    }

    #[test]
    fn counts_and_offsets_beyond_the_message_are_refused() {
        let mut bytes = v1_only().emit();
        bytes[39] = 41;
        assert_eq!(Message::parse(&bytes), Err(WireError::Offset));
        bytes[39] = 0;
        bytes[47] = 9;
        assert_eq!(Message::parse(&bytes), Err(WireError::Count));
        bytes[47] = 1;
        assert_eq!(Message::parse(&bytes), Err(WireError::Truncated));
        let mut longer = [0; 56];
        longer[..48].copy_from_slice(&v1_only().emit()[..48]);
        longer[6] = 56;
        longer[52..].copy_from_slice(&super::super::SMCR);
        assert_eq!(Message::parse(&longer), Err(WireError::Length));
        longer[39] = 4;
        assert!(Message::parse(&longer).is_ok(), "the IP area may lie further on");
    }

    #[test]
    fn subnets_meet_only_if_equal() {
        let ours = v1_only().v1.unwrap();
        assert!(ours.meet(&ours));
        assert!(!ours.meet(&Prefixes { v4: ([10, 77, 0, 0], 16), ..ours }));
        assert!(!Prefixes::default().meet(&Prefixes::default()), "no IPv4 is no common subnet");
        let v6 = Prefixes { v6: List::of(&[([9; 16], 64)]), ..Prefixes::default() };
        assert!(v6.meet(&v6));
    }
}
