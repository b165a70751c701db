//! How a handshake begins: a port, the greeting between two libsmcr, what is offered.

use super::about::{find_port, names, no_device};
use super::{Machine, Shake};
use crate::control;
use crate::link::lock::{self, now};
use crate::sys::few::Brief;
use crate::sys::{Errno, Res, fd};
use smcr_proto::handshake::HELLO;
use smcr_proto::reason::Reason;
use smcr_proto::smc::Time;
use smcr_proto::smc::clc::proposal::{Limits, OfferV2, Proposal, Release};
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::handshake::client::Client;
use smcr_proto::smc::handshake::server::{Offer, Server};
use smcr_proto::smc::immediate;

/// How long a client waits for the greeting of a server that has the library.
const GREETING: Time = Time::from_secs(2);
/// Towards a kernel a group has one link.
const LIMITS: Limits = Limits { max_conns: 255, max_links: 1, features: 0 };
/// Between two libsmcr it has two where there are devices for them, and a write may announce itself.
const LIMITS_OF_OURS: Limits = Limits { features: immediate::FEATURE, max_links: 2, ..LIMITS };
/// A kernel's client with two links waits for Add Link, and then looks whether the link was declined: where RoCE passes
/// from this end to the other alone it would take the link for confirmed else.
const LIMITS_OF_KERNELS: Limits = Limits { max_links: 2, ..LIMITS };

impl Shake {
    pub(super) fn start(&mut self) {
        if self.refusal.is_none() {
            // Opened before the first message: the first time takes long, and the peer waits 6 s for the next one.
            self.refusal = self.open_device().err().map(|e| match no_device(e) {
                code @ Diagnosis::MEMORY => (Reason::NoResources, code),
                code => (Reason::SmcNoRdma, code),
            });
        }
        let ours = self.is_ours();
        if self.is_client() {
            if ours {
                self.machine = Machine::Greeting(now() + GREETING);
            } else {
                self.propose();
            }
            return;
        }
        if ours {
            if self.has_gone_on() {
                return self.fall_back(Reason::PeerSilent);
            }
            self.out.extend_from_slice(&HELLO);
        }
        let (peer_id, host) = names();
        let offer = match self.refusal {
            Some((_, code)) => Err(code),
            None => {
                let limits = if ours { LIMITS_OF_OURS } else { LIMITS_OF_KERNELS };
                Ok(Offer { v1: None, v2: Some((control::user_eids(), limits)) })
            }
        };
        self.machine = Machine::Server(Server::new(now(), peer_id, offer, host));
    }

    fn open_device(&mut self) -> Res<()> {
        self.port = find_port(self.fd);
        match &self.port {
            Some(port) => lock::with(|all| all.device(port)).unwrap_or(Err(Errno(libc::EBUSY))).map(drop),
            // A process that may open nothing sees none.
            None => Err(Brief::open(|| fd::dup_from(self.fd, 3)).err().unwrap_or(Errno(libc::ENODEV))),
        }
    }

    pub(super) fn propose(&mut self) {
        let (peer_id, host) = names();
        let machine = match (self.refusal, &self.port) {
            (None, Some(port)) => {
                let offer = OfferV2 {
                    gid: port.gid,
                    release: Release::V21(if self.is_ours() { LIMITS_OF_OURS } else { LIMITS }),
                    eids: control::user_eids(),
                };
                let proposal = Proposal { peer_id, gid: port.gid, mac: port.mac, v1: None, v2: Some(offer) };
                Client::new(now(), proposal, host)
            }
            (refusal, _) => {
                let code = refusal.map_or(Diagnosis::NO_SMCR_DEVICE, |r| r.1);
                Client::refusing(peer_id, code, host)
            }
        };
        self.machine = Machine::Client(machine);
    }
}
