//! Groups and connections without a network card, for tests of what is decided about them: nothing can be registered or posted.

use super::admit::Hosts;
use super::group::Group;
use super::one::{Link, PeerEnd};
use super::slot::{Id, Slot};
use super::state::State;
use crate::family::sock::Sock;
use crate::verbs::port::Port;
use crate::verbs::qp::Room;
use smcr_proto::smc::Time;
use smcr_proto::smc::clc::accept::Endpoint;
use smcr_proto::smc::conn::Conn;
use smcr_proto::smc::handshake::Role;
use smcr_proto::smc::id::{Gid, Mac, Mtu, PeerId, Psn, Qpn, Rkey, RmbeIndex, RmbeSize, Token};
use smcr_proto::smc::link::{self as machine, Config};
use smcr_proto::smc::llc::{Family, Message};

/// The addresses of the TCP connections.
pub(super) const HOSTS: Hosts = Hosts { peer: [2; 16], own: [1; 16] };
pub(super) const SIZE: RmbeSize = RmbeSize::MIN;

pub(super) fn port(host: u8) -> Port {
    Port { device: String::from("none"), port: 1, index: 0, gid: Gid::from_ipv4([192, 0, 2, host]), mac: Mac([2, 0, 0, 0, 0, host]) }
}

/// The end of another host, with a token of its own.
pub(crate) fn peer(token: u32) -> Endpoint {
    let Port { gid, mac, .. } = port(2);
    Endpoint {
        peer_id: PeerId([2; 8]),
        gid,
        mac,
        qpn: Qpn::truncate(0x12),
        psn: Psn::truncate(1),
        mtu: Mtu::B1024,
        rkey: Rkey(0x200),
        rmb_address: 0x7000_0000,
        index: RmbeIndex::FIRST,
        token: Token::new(token).unwrap(),
        size: SIZE,
    }
}

fn config(role: Role) -> Config {
    let (own, other) = if role == Role::Client { (port(1), port(2)) } else { (port(2), port(1)) };
    Config {
        role,
        family: Family::V2,
        mac: own.mac,
        gid: own.gid,
        qpn: Qpn::truncate(if role == Role::Client { 0x11 } else { 0x12 }),
        direct: true,
        peer_gid: other.gid,
        link: 1,
        link_uid: 1,
        max_links: 1,
        max_conns: 255,
        test_link: None,
    }
}

/// The machine of an end whose link is confirmed.
fn active(role: Role) -> machine::Group {
    let now = Time::from_secs(1);
    let [mut client, mut server] = [Role::Client, Role::Server].map(|role| machine::Group::new(config(role)));
    client.start(now);
    server.start(now);
    pass(&mut server, &mut client, now);
    pass(&mut client, &mut server, now);
    let own = if role == Role::Client { client } else { server };
    assert_eq!(own.state(), machine::State::Active);
    own
}

fn pass(from: &mut machine::Group, to: &mut machine::Group, now: Time) {
    while from.poll_event().is_some() {}
    while let Some((link, frame)) = from.poll_transmit() {
        to.handle_message(now, link, Message::parse(&frame).ok()).unwrap();
        while to.poll_event().is_some() {}
    }
}

/// A group that is confirmed, with so many links.
pub(crate) fn group(all: &mut State, role: Role, links: usize) -> usize {
    let link = |n: usize| {
        let mut link = Link::without_card(0, &port(1), Psn::truncate(0), Room { at: std::ptr::null_mut(), lkey: 0 });
        link.is_ready = true;
        link.peer = Some(PeerEnd { gid: peer(1).gid, mac: peer(1).mac, qpn: Qpn::truncate(0x12 + n as u32) });
        link
    };
    let mut group = Group::new(role, link(0), SIZE);
    group.links.extend((1..links).map(link));
    group.machine = Some(Box::new(active(role)));
    group.hosts = Some(HOSTS);
    (group.peer, group.is_ready, group.ours) = (Some((peer(1).peer_id, Family::V2)), true, true);
    all.groups.push(Some(group));
    all.groups.len() - 1
}

/// A record of nobody's.
pub(crate) fn record() -> &'static Sock {
    // SAFETY: atomics, for which all zero is a value.
    Box::leak(Box::new(unsafe { std::mem::zeroed() }))
}

/// A connection of a group whose handshake is over, on its first link.
pub(crate) fn connection(all: &mut State, place: usize) -> Id {
    let s = record();
    let slot = all.reserve(s, SIZE.bytes()).unwrap();
    let id = slot.id();
    slot.conn = Some(conn(id.index + 1));
    (slot.group, slot.in_handshake, slot.active, slot.ours) = (Some(place), false, true, true);
    s.link.store(id.index + 1, std::sync::atomic::Ordering::Release);
    let group = all.groups[place].as_mut().unwrap();
    group.users += 1;
    group.links[0].users += 1;
    let ring = group.rings.take().unwrap();
    all.slot(id.index).unwrap().rx = Some(ring);
    id
}

/// A group with so many links, and a connection of it.
pub(super) fn one(role: Role, links: usize) -> (State, usize, Id) {
    let mut all = State::EMPTY;
    let place = group(&mut all, role, links);
    let id = connection(&mut all, place);
    (all, place, id)
}

fn conn(token: u32) -> Conn {
    let mut conn = Conn::new(Token::new(token).unwrap(), SIZE);
    conn.activate(&peer(token)).unwrap();
    conn.set_libsmcr(true);
    conn
}

/// The connection itself.
pub(crate) fn slot(all: &mut State, id: Id) -> &mut Slot {
    all.slot_of(id).unwrap()
}
