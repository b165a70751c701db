//! The pieces from which the tests build ends: addresses, rings, offers.

use smcr_proto::smc::clc::accept::Endpoint;
use smcr_proto::smc::clc::proposal::{Limits, OfferV2, Prefixes, Proposal, Release};
use smcr_proto::smc::handshake::Host;
use smcr_proto::smc::handshake::server::Offer;
use smcr_proto::smc::id::{Eid, Gid, Mac, Mtu, PeerId, Psn, Qpn, Rkey, RmbeIndex, RmbeSize, Token};
use smcr_proto::smc::list::List;

pub const CLIENT: u8 = 2;
pub const SERVER: u8 = 1;

pub fn eid() -> Eid {
    Eid::new("SMCR-LAB2").unwrap()
}

pub fn limits(max_links: u8) -> Limits {
    Limits {
        max_conns: 255,
        max_links,
        features: 0,
    }
}

pub fn subnet() -> Prefixes {
    Prefixes {
        v4: ([10, 77, 0, 0], 24),
        v6: List::new(),
    }
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
    let offer = |release| OfferV2 {
        gid: end.gid,
        release,
        eids: List::of(&[eid()]),
    };
    Proposal {
        peer_id: end.peer_id,
        gid: end.gid,
        mac: end.mac,
        v1: v1.then(subnet),
        v2: v2.map(offer),
    }
}

/// What the server can do.
pub fn offer(v1: bool, v2: Option<Limits>) -> Offer {
    Offer {
        v1: v1.then(subnet),
        v2: v2.map(|limits| (List::of(&[eid()]), limits)),
    }
}
