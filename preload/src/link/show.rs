//! What `smcrctl linkgroup` shows of a link: its record in the family page, written by the service thread
//! ([`super::state::State::tick`]).

use super::group::Group;
use crate::family::process;
use crate::verbs::device::Device;
use smcr_proto::page::link::{self as page, Record};
use smcr_proto::smc::handshake::Role;
use smcr_proto::smc::llc::Family;

impl Group {
    /// What `smcrctl linkgroup` shows of a link.
    pub fn record(&self, place: usize, link: usize, devices: &[Device]) -> Option<Record> {
        let l = self.links.get(link).filter(|l| !l.is_down && self.over.is_none())?;
        let ((peer_id, family), peer) = (self.peer?, l.peer?);
        let mut name = [0; 32];
        for (to, from) in name.iter_mut().zip(devices[l.device].name.bytes()) {
            *to = from;
        }
        Some(Record {
            id: place as u32 + 1,
            pid: process::pid(),
            role: if self.role == Role::Server { page::Role::Server } else { page::Role::Client },
            version: if family == Family::V2 { 2 } else { 1 },
            port: l.port.port,
            link: self.machine.as_ref().map_or(0, |m| m.number(link)),
            is_active: l.is_ready,
            connections: l.users as u32,
            qpn: l.qp.as_ref().map_or(0, |q| q.number().value()),
            peer_qpn: peer.qpn.value(),
            mtu: l.mtu,
            rmb: self.size.bytes(),
            gid: l.port.gid.0,
            peer_gid: peer.gid.0,
            peer_id: peer_id.0,
            device: name,
            eid: self.eid,
            bytes: l.bytes,
            messages: l.messages,
        })
    }
}
