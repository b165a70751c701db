//! The pieces from which the tests build ends: addresses, rings, offers.

use smcr_proto::smc::Time;
use smcr_proto::smc::clc::accept::Endpoint;
use smcr_proto::smc::clc::proposal::{Limits, OfferV2, Prefixes, Proposal, Release};
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::handshake::client::Client;
use smcr_proto::smc::handshake::server::{Offer, Server};
use smcr_proto::smc::handshake::{Host, Role};
use smcr_proto::smc::id::{Eid, Gid, Mac, Mtu, PeerId, Psn, Qpn, Rkey, RmbeIndex, RmbeSize, Token};
use smcr_proto::smc::link::{Config, NewLink, TEST_LINK};
use smcr_proto::smc::list::List;
use smcr_proto::smc::llc::Family;

pub const CLIENT: u8 = 2;
pub const SERVER: u8 = 1;

pub fn eid() -> Eid {
    Eid::new("SMCR-LAB2").unwrap()
}

pub fn limits(max_links: u8) -> Limits {
    Limits { max_conns: 255, max_links, features: 0 }
}

pub fn subnet() -> Prefixes {
    Prefixes { v4: ([10, 77, 0, 0], 24), v6: List::new() }
}

pub fn host() -> Host {
    Host::linux("test")
}

pub fn peer_id(who: u8) -> PeerId {
    PeerId([who; 8])
}

/// The end of host `who` (the last byte of its address), with a ring of this size and this token.
pub fn endpoint(who: u8, token: u32, size: RmbeSize) -> Endpoint {
    Endpoint {
        peer_id: peer_id(who),
        gid: Gid::from_ipv4([10, 77, 0, who]),
        mac: Mac([0x52, 0x54, 0, 0x77, 0, who]),
        qpn: Qpn::truncate(0x10 + who as u32),
        psn: Psn::truncate(0x1000 * who as u32),
        mtu: Mtu::B4096,
        rkey: Rkey(0x100 * who as u32 + token),
        rmb_address: 0x7f00_0000_0000 + ((who as u64) << 32) + ((token as u64) << 20),
        index: RmbeIndex::FIRST,
        token: Token::new(token).unwrap(),
        size,
    }
}

/// What the client offers: version 1, version 2, or both.
pub fn proposal(v1: bool, v2: Option<Release>) -> Proposal {
    let end = endpoint(CLIENT, 1, RmbeSize::MIN);
    let offer = |release| OfferV2 { gid: end.gid, release, eids: List::of(&[eid()]) };
    Proposal { peer_id: end.peer_id, gid: end.gid, mac: end.mac, v1: v1.then(subnet), v2: v2.map(offer) }
}

/// What the server can do.
pub fn offer(v1: bool, v2: Option<Limits>) -> Offer {
    Offer { v1: v1.then(subnet), v2: v2.map(|limits| (List::of(&[eid()]), limits)) }
}

/// What a link group of this end begins with.
pub fn group_config(role: Role, family: Family) -> Config {
    let (own, peer) = match role {
        Role::Server => (SERVER, CLIENT),
        Role::Client => (CLIENT, SERVER),
    };
    let (own, peer) = (endpoint(own, 1, RmbeSize::MIN), endpoint(peer, 1, RmbeSize::MIN));
    Config {
        role,
        family,
        mac: own.mac,
        gid: own.gid,
        qpn: own.qpn,
        direct: true,
        peer_gid: peer.gid,
        link: if role == Role::Server { 1 } else { 0 },
        link_uid: 0x100,
        max_links: 2,
        max_conns: 255,
        test_link: Some(TEST_LINK),
    }
}

/// The end of host `who` on its second device, without memories.
pub fn second_link(who: u8) -> NewLink {
    let end = endpoint(who, 1, RmbeSize::MIN);
    NewLink {
        mac: Mac([0x52, 0x54, 0, 0x78, 0, who]),
        gid: Gid::from_ipv4([10, 78, 0, who]),
        qpn: Qpn::truncate(0x20 + who as u32),
        psn: end.psn,
        mtu: end.mtu,
        peer_gid: Gid::from_ipv4([10, 77, 0, 3 - who]),
        rkeys: List::new(),
    }
}

/// Both ends of the CLC handshake are told these bytes, then the time passes: they must come to an end. So must the ends that
/// went on in another process, and one that has nothing to offer.
pub fn handshake_ends<'a>(told: impl Iterator<Item = &'a [u8]> + Clone) {
    for release in [Release::V20, Release::V21(limits(1))] {
        let client = Client::new(Time::ZERO, proposal(true, Some(release)), host());
        let server = Server::new(Time::ZERO, peer_id(1), Ok(offer(true, Some(limits(1)))), host());
        come_to_an_end(client, server, told.clone());
    }
    let (until, code) = (Time::from_secs(5), Diagnosis::MEMORY);
    let client = Client::proposed(until, peer_id(2), code, host());
    come_to_an_end(client, Server::greeted(until, peer_id(1), code, host()), told.clone());
    let client = Client::refusing(peer_id(2), code, host());
    come_to_an_end(client, Server::new(Time::ZERO, peer_id(1), Err(code), host()), told);
}

fn come_to_an_end<'a>(mut client: Client, mut server: Server, told: impl Iterator<Item = &'a [u8]>) {
    for bytes in told {
        client.handle_bytes(bytes);
        server.handle_bytes(bytes);
        while client.poll_event().is_some() || server.poll_event().is_some() {}
        // The driver decides at once; without a decision to make these do nothing.
        client.confirm(endpoint(2, 1, RmbeSize::MIN), true);
        server.accept(Time::ZERO, endpoint(1, 1, RmbeSize::MIN), true, true);
        while client.poll_transmit().is_some() || server.poll_transmit().is_some() {}
    }
    for second in [7, 13, 19, 31, 61, 75] {
        let now = Time::from_secs(second);
        client.link_failed(now, Diagnosis::LINK_READY);
        server.link_failed(now, Diagnosis::LINK_READY);
        client.handle_timeout(now);
        server.handle_timeout(now);
        while client.poll_transmit().is_some() || server.poll_transmit().is_some() {}
    }
    assert!(client.outcome().is_some() && client.poll_timeout().is_none());
    assert!(server.outcome().is_some() && server.poll_timeout().is_none());
}
