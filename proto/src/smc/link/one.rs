//! One link of a group: this end's port and queue pair, how far it has come, its clocks.
//!
//! Owned by [`super::Group`], which moves it from state to state.

use super::Config;
use super::timers::{LinkTimers, OfLink};
use crate::smc::Time;
use crate::smc::id::{Gid, Mac, Mtu, Psn, Qpn, Rkey};
use crate::smc::list::List;
use crate::smc::llc::{AddKind, AddLink, AddLinkExt, ConfirmLink, Family, MAX_RKEYS, RkeyMap};

/// This end's port and queue pair for a second link, and what its memories are called there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewLink {
    /// The port.
    pub mac: Mac,
    /// GID of the port.
    pub gid: Gid,
    /// The queue pair.
    pub qpn: Qpn,
    /// First sequence number of its send queue.
    pub psn: Psn,
    /// MTU of the port; in an answer the smaller of both.
    pub mtu: Mtu,
    /// The peer's GID that the link leads to; a server has only the one of the first link.
    pub peer_gid: Gid,
    /// Memories that the peer writes to: their keys on the first link, keys and addresses on this one.
    pub rkeys: List<RkeyMap, MAX_RKEYS>,
}

impl NewLink {
    /// As a request or an answer of this number.
    pub(super) fn message(&self, kind: AddKind, link: u8, config: &Config) -> AddLink {
        let ext = AddLinkExt { direct: config.direct, target_gid: self.peer_gid, rkeys: self.rkeys };
        AddLink {
            kind,
            mac: self.mac,
            gid: self.gid,
            qpn: self.qpn,
            link,
            mtu_code: self.mtu.code(),
            psn: self.psn,
            ext: (config.family == Family::V2).then_some(ext),
        }
    }
}

/// How far a link has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Server: Add Link was sent, the client's answer is missing.
    Offered,
    /// Confirm Link was sent, or is waited for.
    Confirming,
    /// In use.
    Active,
    /// It was, and has failed or was deleted.
    Down,
}

/// One link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Its number, chosen by the server, not 0.
    pub number: u8,
    pub stage: Stage,
    mac: Mac,
    gid: Gid,
    qpn: Qpn,
    uid: u32,
    /// When anything last arrived.
    last_arrival: Time,
    pub timers: LinkTimers,
}

impl Link {
    /// The link that the handshake has made.
    pub fn first(config: &Config, now: Time) -> Link {
        Link {
            number: config.link,
            stage: Stage::Confirming,
            mac: config.mac,
            gid: config.gid,
            qpn: config.qpn,
            uid: config.link_uid,
            last_arrival: now,
            timers: LinkTimers::default(),
        }
    }

    /// A second one.
    pub fn second(config: &Config, number: u8, stage: Stage, own: &NewLink, now: Time) -> Link {
        Link {
            number,
            stage,
            mac: own.mac,
            gid: own.gid,
            qpn: own.qpn,
            uid: config.link_uid.wrapping_add(u32::from(number)),
            last_arrival: now,
            timers: LinkTimers::default(),
        }
    }

    pub fn is_active(&self) -> bool {
        self.stage == Stage::Active
    }

    pub fn confirm(&self, config: &Config, response: bool) -> ConfirmLink {
        ConfirmLink {
            response,
            no_eyecatcher: true,
            mac: self.mac,
            gid: self.gid,
            qpn: self.qpn,
            link: self.number,
            link_uid: self.uid,
            max_links: config.max_links,
            max_conns: if config.family == Family::V2 { config.max_conns } else { 0 },
        }
    }

    /// It carries data from now on.
    pub fn activate(&mut self, test_after: Option<Time>) {
        self.stage = Stage::Active;
        self.timers.clear(OfLink::Confirm);
        self.arm_test(test_after);
    }

    /// Something came by it.
    pub fn arrived(&mut self, now: Time, test_after: Option<Time>) {
        self.last_arrival = now;
        self.timers.clear(OfLink::TestAnswer);
        self.arm_test(test_after);
    }

    fn arm_test(&mut self, test_after: Option<Time>) {
        if let (Stage::Active, Some(after)) = (self.stage, test_after) {
            self.timers.set(OfLink::Test, self.last_arrival + after);
        }
    }

    /// It is of no use any more.
    pub fn put_down(&mut self) {
        self.stage = Stage::Down;
        self.timers = LinkTimers::default();
    }
}

/// A memory of this end as the peer may name it on each link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OwnKey {
    /// Its key.
    pub rkey: Rkey,
    /// Its address.
    pub address: u64,
}
