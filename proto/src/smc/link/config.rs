//! What a link group is made with, and how it presents itself and its link to the peer.
//!
//! Filled by the driver from the outcome of the handshake; read by [`super::Group`].

use crate::smc::Time;
use crate::smc::handshake::Role;
use crate::smc::id::{Gid, Mac, Qpn};
use crate::smc::list::List;
use crate::smc::llc::{AddKind, AddLink, AddLinkExt, Family};

/// Most connections in a group, unless release 2.1 agreed on fewer.
pub const MAX_CONNECTIONS: u8 = 255;

/// What a group is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// This end's role in the group.
    pub role: Role,
    /// Which messages it speaks.
    pub family: Family,
    /// This end's port and queue pair.
    pub mac: Mac,
    /// GID of the port.
    pub gid: Gid,
    /// The queue pair.
    pub qpn: Qpn,
    /// No gateway lies between the ends (version 2).
    pub direct: bool,
    /// The peer's GID.
    pub peer_gid: Gid,
    /// Number of the link, not 0; a client takes over the server's.
    pub link: u8,
    /// This end's own number for the link.
    pub link_uid: u32,
    /// Links per group as agreed in release 2.1; 2 if nothing was agreed.
    pub max_links: u8,
    /// Connections per group as agreed in release 2.1; [`MAX_CONNECTIONS`] if nothing was.
    pub max_conns: u8,
    /// After how long without any arrival the link is tested; `None` never.
    pub test_link: Option<Time>,
}

impl Config {
    /// A request that a Linux client rejects at once, because its MTU is 0. Without it the client
    /// waits 2 s + 1 s for one while it holds a lock of its whole host.
    pub(super) fn void_add_link(&self) -> AddLink {
        let (direct, target_gid) = (self.direct, self.peer_gid);
        let ext = AddLinkExt { direct, target_gid, rkeys: List::new() };
        AddLink {
            kind: AddKind::Request,
            mac: self.mac,
            gid: self.gid,
            qpn: self.qpn,
            link: self.link.wrapping_add(1),
            mtu_code: 0,
            psn: Default::default(),
            ext: (self.family == Family::V2).then_some(ext),
        }
    }
}
