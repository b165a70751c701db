//! The LLC messages about links: Confirm, Add, Add Cont, Delete, Request Add.
//!
//! Offsets from the start of the message. A second link is made right after the first, when there are few memories:
//! of the key lists of Add Link the first [`MAX_RKEYS`] entries are kept. Called by the parent module.

use super::{Family, LEN, RESPONSE, field};
use crate::smc::error::WireError;
use crate::smc::fields::{Fields, put, put_u24, put_u32, put_u64};
use crate::smc::id::{Gid, Mac, Psn, Qpn, Rkey};
use crate::smc::list::List;

/// Confirm Link: "no eyecatcher in the RMBE".
const NO_EYECATCHER: u8 = 0x03;
/// Add Link, Delete Link: rejected; all links.
const REJECT: u8 = 0x40;
const ALL: u8 = 0x40;
/// Delete Link: orderly.
const ORDERLY: u8 = 0x20;

mod confirm {
    pub const MAC: usize = 4;
    pub const GID: usize = 10;
    pub const QPN: usize = 26;
    pub const LINK: usize = 29;
    pub const LINK_UID: usize = 30;
    pub const MAX_LINKS: usize = 34;
    pub const MAX_CONNS: usize = 35;
}

/// Confirm Link (server asks, client answers).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfirmLink {
    /// Answer to a request.
    pub response: bool,
    /// The sender needs no eyecatcher in the ring; Linux insists on it.
    pub no_eyecatcher: bool,
    /// The sender's port.
    pub mac: Mac,
    /// The sender's GID.
    pub gid: Gid,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// Number of the link, chosen by the server, not 0.
    pub link: u8,
    /// The sender's own number for the link.
    pub link_uid: u32,
    /// Most links the sender supports.
    pub max_links: u8,
    /// Release 2.1: most connections per link group; else 0.
    pub max_conns: u8,
}

impl ConfirmLink {
    pub(super) fn parse(f: Fields, flags: u8) -> Result<Self, WireError> {
        Ok(ConfirmLink {
            response: flags & RESPONSE != 0,
            no_eyecatcher: flags & NO_EYECATCHER != 0,
            mac: Mac(f.array(confirm::MAC)?),
            gid: Gid(f.array(confirm::GID)?),
            qpn: Qpn::truncate(f.u24(confirm::QPN)?),
            link: f.u8(confirm::LINK)?,
            link_uid: f.u32(confirm::LINK_UID)?,
            max_links: f.u8(confirm::MAX_LINKS)?,
            max_conns: f.u8(confirm::MAX_CONNS)?,
        })
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> u8 {
        put(out, confirm::MAC, &self.mac.0);
        put(out, confirm::GID, &self.gid.0);
        put_u24(out, confirm::QPN, self.qpn.value());
        out[confirm::LINK] = self.link;
        put_u32(out, confirm::LINK_UID, self.link_uid);
        out[confirm::MAX_LINKS] = self.max_links;
        out[confirm::MAX_CONNS] = self.max_conns;
        response(self.response) | if self.no_eyecatcher { NO_EYECATCHER } else { 0 }
    }
}

mod add {
    pub const MAC: usize = 4;
    pub const GID: usize = 12;
    pub const QPN: usize = 28;
    pub const LINK: usize = 31;
    pub const MTU: usize = 32;
    pub const PSN: usize = 33;
    /// Version 2 extension: bit 7 direct.
    pub const DIRECT: usize = 44;
    pub const TARGET_GID: usize = 46;
    /// u16 in the order of the sender's host.
    pub const RKEY_COUNT: usize = 70;
    pub const RKEYS: usize = 72;
    pub const RKEY_LEN: usize = 16;
}

/// Keys that an Add Link has room for here; Linux would send one for each of up to 255 memories.
pub const MAX_RKEYS: usize = 9;

/// What an Add Link says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddKind {
    /// Please add this link.
    Request,
    /// Agreed.
    Accept,
    /// No second link; version 1 gives a reason: 1 no alternate path, 2 bad MTU.
    Reject(u8),
}

/// Add Link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddLink {
    /// Request or answer.
    pub kind: AddKind,
    /// The sender's port for the new link.
    pub mac: Mac,
    /// Its GID.
    pub gid: Gid,
    /// The new queue pair.
    pub qpn: Qpn,
    /// Number of the new link.
    pub link: u8,
    /// MTU code as sent. A Linux client rejects a request with 0 at once.
    pub mtu_code: u8,
    /// First sequence number of the new queue pair.
    pub psn: Psn,
    /// Version 2, not in a reject.
    pub ext: Option<AddLinkExt>,
}

/// The part of Add Link that only version 2 has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddLinkExt {
    /// No gateway between the ends.
    pub direct: bool,
    /// The client's GID that the link shall lead to.
    pub target_gid: Gid,
    /// The first of the memories' keys on the new link.
    pub rkeys: List<RkeyMap, MAX_RKEYS>,
}

/// A registered memory's key on the old link, and key and address on the new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RkeyMap {
    /// Key on the known link.
    pub known: Rkey,
    /// Key on the new link.
    pub new: Rkey,
    /// Address on the new link.
    pub address: u64,
}

impl RkeyMap {
    fn parse(f: Fields, at: usize) -> Result<RkeyMap, WireError> {
        Ok(RkeyMap { known: Rkey(f.u32(at)?), new: Rkey(f.u32(at + 4)?), address: f.u64(at + 8)? })
    }

    fn emit(&self, out: &mut [u8], at: usize) {
        put_u32(out, at, self.known.0);
        put_u32(out, at + 4, self.new.0);
        put_u64(out, at + 8, self.address);
    }
}

impl AddLink {
    pub(super) fn parse(f: Fields, family: Family, (reason, flags): (u8, u8), arrived: usize) -> Result<Self, WireError> {
        let kind = match (flags & RESPONSE != 0, flags & REJECT != 0) {
            (false, _) => AddKind::Request,
            (true, false) => AddKind::Accept,
            // Byte 2 is half of the length in version 2.
            (true, true) => AddKind::Reject(if family == Family::V1 { reason } else { 0 }),
        };
        let long = family == Family::V2 && f.0.len() >= add::RKEYS;
        Ok(AddLink {
            kind,
            mac: Mac(f.array(add::MAC)?),
            gid: Gid(f.array(add::GID)?),
            qpn: Qpn::truncate(f.u24(add::QPN)?),
            link: f.u8(add::LINK)?,
            mtu_code: f.u8(add::MTU)? & 0x0f,
            psn: Psn::truncate(f.u24(add::PSN)?),
            ext: if long { Some(parse_ext(f, arrived)?) } else { None },
        })
    }

    pub(super) fn emit(&self, family: Family, out: &mut [u8]) -> (u8, usize) {
        put(out, add::MAC, &self.mac.0);
        put(out, add::GID, &self.gid.0);
        put_u24(out, add::QPN, self.qpn.value());
        out[add::LINK] = self.link;
        out[add::MTU] = self.mtu_code;
        put_u24(out, add::PSN, self.psn.value());
        let flags = match self.kind {
            AddKind::Request => 0,
            AddKind::Accept => RESPONSE,
            AddKind::Reject(reason) => {
                if family == Family::V1 {
                    out[field::REASON] = reason & 0x0f;
                }
                RESPONSE | REJECT
            }
        };
        let Some(ext) = self.ext.filter(|_| family == Family::V2) else {
            return (flags, LEN);
        };
        out[add::DIRECT] = (ext.direct as u8) << 7;
        put(out, add::TARGET_GID, &ext.target_gid.0);
        put(out, add::RKEY_COUNT, &(ext.rkeys.len() as u16).to_le_bytes());
        for (i, map) in ext.rkeys.iter().enumerate() {
            map.emit(out, add::RKEYS + add::RKEY_LEN * i);
        }
        (flags, add::RKEYS + add::RKEY_LEN * ext.rkeys.len())
    }
}

/// So many bytes have arrived; those that are here may be the first of them.
fn parse_ext(f: Fields, arrived: usize) -> Result<AddLinkExt, WireError> {
    let room = |bytes: usize| (bytes - add::RKEYS) / add::RKEY_LEN;
    let count: [u8; 2] = f.array(add::RKEY_COUNT)?;
    let count = u16::from_le_bytes(count).min(u16::from_be_bytes(count)) as usize;
    if count > room(arrived) {
        return Err(WireError::Count);
    }
    let mut rkeys = List::new();
    for i in 0..count.min(room(f.0.len())) {
        if !rkeys.push(RkeyMap::parse(f, add::RKEYS + add::RKEY_LEN * i)?) {
            break;
        }
    }
    let target_gid = Gid(f.array(add::TARGET_GID)?);
    Ok(AddLinkExt { direct: f.u8(add::DIRECT)? & 0x80 != 0, target_gid, rkeys })
}

mod cont {
    pub const LINK: usize = 4;
    pub const REMAINING: usize = 5;
    pub const FIRST: usize = 8;
    pub const SECOND: usize = 24;
}

/// Add Link Continuation (version 1): the keys of the memories on the new link, two at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddLinkCont {
    /// Answer to a request.
    pub response: bool,
    /// Number of the new link.
    pub link: u8,
    /// Keys that are still to come, those of this message included.
    pub remaining: u8,
    /// The entries; unused ones are zero.
    pub rkeys: [RkeyMap; 2],
}

impl AddLinkCont {
    pub(super) fn parse(f: Fields, response: bool) -> Result<Self, WireError> {
        let rkeys = [RkeyMap::parse(f, cont::FIRST)?, RkeyMap::parse(f, cont::SECOND)?];
        let (link, remaining) = (f.u8(cont::LINK)?, f.u8(cont::REMAINING)?);
        Ok(AddLinkCont { response, link, remaining, rkeys })
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> u8 {
        out[cont::LINK] = self.link;
        out[cont::REMAINING] = self.remaining;
        self.rkeys[0].emit(out, cont::FIRST);
        self.rkeys[1].emit(out, cont::SECOND);
        response(self.response)
    }
}

mod delete {
    pub const LINK: usize = 4;
    pub const REASON: usize = 5;
}

/// Why a link is deleted; other values are kept as they came. Of the RFC's numbers those are named that somebody here gives or meets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkReason(pub u32);

impl LinkReason {
    /// In a response: agreed.
    pub const NONE: LinkReason = LinkReason(0);
    /// The path is lost.
    pub const LOST_PATH: LinkReason = LinkReason(0x0001_0000);
    /// An operator ended it.
    pub const OPERATOR: LinkReason = LinkReason(0x0002_0000);
    /// The program ended, or the link was idle for long.
    pub const PROGRAM: LinkReason = LinkReason(0x0003_0000);
    /// The peer broke the protocol.
    pub const PROTOCOL_VIOLATION: LinkReason = LinkReason(0x0004_0000);
    /// In a response: there is no such link.
    pub const UNKNOWN_LINK: LinkReason = LinkReason(0x0010_0000);
}

/// Delete Link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeleteLink {
    /// Answer to a request.
    pub response: bool,
    /// Every link of the group; `link` is 0 then.
    pub all: bool,
    /// Connections were ended before.
    pub orderly: bool,
    /// Number of the link.
    pub link: u8,
    /// Why.
    pub reason: LinkReason,
}

impl DeleteLink {
    pub(super) fn parse(f: Fields, flags: u8) -> Result<Self, WireError> {
        Ok(DeleteLink {
            response: flags & RESPONSE != 0,
            all: flags & ALL != 0,
            orderly: flags & ORDERLY != 0,
            link: f.u8(delete::LINK)?,
            reason: LinkReason(f.u32(delete::REASON)?),
        })
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> u8 {
        out[delete::LINK] = self.link;
        put_u32(out, delete::REASON, self.reason.0);
        let all = if self.all { ALL } else { 0 };
        response(self.response) | all | if self.orderly { ORDERLY } else { 0 }
    }
}

mod request {
    pub const GID_COUNT: usize = 24;
    pub const GIDS: usize = 28;
}

/// Request Add Link (version 2): a client asks the server to add a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestAddLink {
    /// Answer to a request; its content is zero.
    pub response: bool,
    /// The first of the client's GIDs.
    pub gids: List<Gid, 4>,
}

impl RequestAddLink {
    pub(super) fn parse(f: Fields, response: bool) -> Result<Self, WireError> {
        let count = f.u8(request::GID_COUNT)? as usize;
        if request::GIDS + 16 * count > f.0.len() {
            return Err(WireError::Count);
        }
        let mut gids = List::new();
        for i in 0..count {
            if !gids.push(Gid(f.array(request::GIDS + 16 * i)?)) {
                break;
            }
        }
        Ok(RequestAddLink { response, gids })
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> (u8, usize) {
        out[request::GID_COUNT] = self.gids.len() as u8;
        for (i, gid) in self.gids.iter().enumerate() {
            put(out, request::GIDS + 16 * i, &gid.0);
        }
        (response(self.response), LEN.max(request::GIDS + 16 * self.gids.len()))
    }
}

fn response(yes: bool) -> u8 {
    if yes { RESPONSE } else { 0 }
}
