//! Which link group a new connection may join.
//!
//! The engine keeps its groups; it asks here with the Proposal (server) or the Accept (client) in
//! hand. Rules of Linux `net/smc/smc_core.c`.

use crate::smc::clc::accept::AcceptConfirm;
use crate::smc::clc::proposal::Proposal;
use crate::smc::diagnosis::Diagnosis;
use crate::smc::handshake::{Params, Role};
use crate::smc::id::{Gid, Mac, PeerId, Qpn};
use crate::smc::llc::Family;

/// What identifies a group's peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupKey {
    /// This end's role in the group.
    pub role: Role,
    /// The version that it speaks.
    pub family: Family,
    /// The peer.
    pub peer_id: PeerId,
    /// The peer's GID on the link.
    pub gid: Gid,
    /// The peer's MAC on the link; looked at in version 1 only.
    pub mac: Mac,
    /// The peer's queue pair on the link.
    pub qpn: Qpn,
}

impl GroupKey {
    /// The key of the group that a first contact made.
    pub fn of(params: &Params) -> GroupKey {
        GroupKey {
            role: params.role,
            family: params.version.family(),
            peer_id: params.peer.peer_id,
            gid: params.peer.gid,
            mac: params.peer.mac,
            qpn: params.peer.qpn,
        }
    }

    /// Server: whether the group (active, not full) serves this client in this version. A Linux
    /// client that offers version 2 only does not name itself in the Proposal: then its GID decides,
    /// and it will decline with "out of sync" if it has forgotten the group.
    pub fn serves(&self, family: Family, proposal: &Proposal) -> bool {
        let gid = match (family, &proposal.v2) {
            (Family::V2, Some(offer)) => offer.gid,
            _ => proposal.gid,
        };
        let unnamed = family == Family::V2 && proposal.peer_id == PeerId::default();
        self.role == Role::Server
            && self.family == family
            && self.gid == gid
            && (unnamed || self.peer_id == proposal.peer_id)
            && (family == Family::V2 || self.mac == proposal.mac)
    }

    fn has_link(&self, accept: &AcceptConfirm) -> bool {
        let end = &accept.endpoint;
        self.qpn == end.qpn && self.gid == end.gid && (self.family == Family::V2 || self.mac == end.mac)
    }
}

/// Client: the place among the active `groups` of the one that an Accept without first contact
/// names. The error is the code to decline with, and whether the server has to end the group.
pub fn find<'a>(groups: impl IntoIterator<Item = &'a GroupKey>, accept: &AcceptConfirm) -> Result<usize, (Diagnosis, bool)> {
    let family = if accept.version() == 1 { Family::V1 } else { Family::V2 };
    let mut peer_known = false;
    for (place, group) in groups.into_iter().enumerate() {
        let candidate = group.role == Role::Client && group.family == family;
        if candidate && group.peer_id == accept.endpoint.peer_id {
            if group.has_link(accept) {
                return Ok(place);
            }
            peer_known = true;
        }
    }
    Err(if peer_known { (Diagnosis::NO_SUCH_LINK, false) } else { (Diagnosis::OUT_OF_SYNC, true) })
}
