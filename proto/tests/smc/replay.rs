//! This library in the place of one of the two kernels of a capture: it has to write to the same
//! addresses and send the same bytes.

use smcr_proto::smc::Time;
use smcr_proto::smc::cdc::{Cdc, ConnFlags};
use smcr_proto::smc::clc::Message as Clc;
use smcr_proto::smc::clc::accept::{Endpoint, Form};
use smcr_proto::smc::clc::proposal::Limits;
use smcr_proto::smc::conn::Conn;
use smcr_proto::smc::handshake::client::{Client, Event as ClientEvent};
use smcr_proto::smc::handshake::server::{Event as ServerEvent, Offer, Server};
use smcr_proto::smc::handshake::{Host, Outcome, Role};
use smcr_proto::smc::id::{Eid, Mtu, PeerId, Qpn, Rkey};
use smcr_proto::smc::link::{Config, Event, Group, NewLink, OwnKey, State};
use smcr_proto::smc::list::List;
use smcr_proto::smc::llc::{AddKind, AddLink, Family, LinkReason, Message as Llc};

use crate::parts::group_config;
use crate::vectors::{self, Line, What};

const NOW: Time = Time::from_secs(100);

/// The capture's connections: their events, with the endpoints of client and server.
fn connections() -> Vec<(Vec<Line>, Endpoint, Endpoint)> {
    let mut out = Vec::new();
    let mut server = None;
    for line in vectors::kernel_smcr() {
        if let What::Clc(bytes) = &line.what {
            match Clc::parse(bytes).unwrap() {
                Clc::Accept(accept) => server = Some(accept.endpoint),
                Clc::Confirm(confirm) => {
                    out.push((Vec::new(), confirm.endpoint, server.take().unwrap()));
                }
                _ => {}
            }
        } else if let Some((lines, ..)) = out.last_mut() {
            lines.push(line);
        }
    }
    out
}

#[test]
fn connections_write_and_tell_what_the_kernels_did() {
    let mut messages = 0;
    for (lines, client, server) in connections() {
        messages += replay(&lines, true, &client, &server);
        messages += replay(&lines, false, &server, &client);
    }
    assert_eq!(messages, 64, "each message of the capture was made once");
}

fn replay(lines: &[Line], as_client: bool, own: &Endpoint, peer: &Endpoint) -> usize {
    let mut conn = Conn::new(own.token, own.size);
    conn.activate(peer).unwrap();
    let mut writes = Vec::new();
    let mut made = 0;
    for line in lines {
        match &line.what {
            What::Write(address, rkey, len) if line.from_client == as_client => {
                writes.push((*address, Rkey(*rkey), *len));
            }
            What::Cdc(bytes) if line.from_client == as_client => {
                if Cdc::parse(bytes).unwrap().conn_flags.contains(ConnFlags::CLOSED) {
                    conn.close();
                }
                let len = writes.iter().map(|w| w.2).sum();
                if len > 0 {
                    let segments = conn.write(len, false).unwrap();
                    let place = |s: &_| conn.remote(*s).unwrap();
                    let placed: Vec<_> = segments.iter().map(|s| (place(s).0, place(s).1, s.len)).collect();
                    assert_eq!(placed, writes);
                }
                writes.clear();
                assert_eq!(conn.poll_cdc().map(|m| m.to_vec()), Some(bytes.clone()));
                assert_eq!(conn.poll_cdc(), None);
                made += 1;
            }
            What::Cdc(bytes) => {
                conn.handle_cdc(&Cdc::parse(bytes).unwrap()).unwrap();
                conn.consume(conn.readable());
            }
            _ => {}
        }
    }
    assert!(conn.is_finished(), "{:?}", conn.state());
    made
}

#[test]
fn a_client_confirms_as_the_kernel_did() {
    let capture = vectors::kernel_smcr();
    let clc = vectors::clc(&capture);
    for (proposal, accept, confirm) in [(clc[0], clc[1], clc[2]), (clc[3], clc[4], clc[5])] {
        let Ok(Clc::Proposal(offer)) = Clc::parse(proposal) else { panic!() };
        let Ok(Clc::Confirm(expected)) = Clc::parse(confirm) else { panic!() };
        let mut client = Client::new(NOW, offer, Host::linux("labB"));
        assert_eq!(*client.poll_transmit().unwrap(), *proposal);
        assert_eq!(client.handle_bytes(accept), accept.len());
        let Some(ClientEvent::Accepted(accepted)) = client.poll_event() else { panic!() };
        client.confirm(expected.endpoint, true);
        assert_eq!(*client.poll_transmit().unwrap(), *confirm);
        client.link_ready();
        let Some(Outcome::Smc(params)) = client.outcome() else { panic!() };
        assert_eq!(params.peer, accepted.endpoint);
        assert_eq!(params.first_contact, matches!(accepted.form, Form::V2 { first_contact: Some(_), .. }));
    }
}

#[test]
fn a_server_accepts_as_the_kernel_did() {
    let capture = vectors::kernel_smcr();
    let clc = vectors::clc(&capture);
    let eids = List::of(&[Eid::new("OTHER").unwrap(), Eid::new("SMCR-LAB2").unwrap()]);
    let limits = Limits { max_conns: 255, max_links: 2, features: 1 };
    for (proposal, accept, confirm) in [(clc[0], clc[1], clc[2]), (clc[3], clc[4], clc[5])] {
        let Ok(Clc::Accept(expected)) = Clc::parse(accept) else { panic!() };
        let offer = Offer { v1: None, v2: Some((eids, limits)) };
        let mut server = Server::new(NOW, PeerId([1; 8]), Ok(offer), Host::linux("labA"));
        server.handle_bytes(proposal);
        let Some(ServerEvent::Proposed(..)) = server.poll_event() else { panic!() };
        server.accept(NOW, expected.endpoint, expected.first_contact(), true);
        assert_eq!(*server.poll_transmit().unwrap(), *accept);
        server.handle_bytes(confirm);
        server.link_ready();
        let Some(Outcome::Smc(params)) = server.outcome() else { panic!() };
        assert_eq!(params.peer.peer_id.0[..2], [0x84, 0x48], "named in Confirm only");
        if params.first_contact {
            assert_eq!(params.version.limits(), Some(limits));
        }
    }
}

fn group(role: Role, own: &Endpoint, peer: &Endpoint) -> Group {
    let mut group = Group::new(Config {
        mac: own.mac,
        gid: own.gid,
        qpn: own.qpn,
        peer_gid: peer.gid,
        link_uid: 0x101,
        test_link: None,
        ..group_config(role, Family::V2)
    });
    group.start(NOW);
    group
}

/// What a server had for the second link that it offered.
fn new_link(m: &AddLink) -> NewLink {
    let ext = m.ext.expect("version 2");
    NewLink { mac: m.mac, gid: m.gid, qpn: m.qpn, psn: m.psn, mtu: Mtu::from_code(m.mtu_code).unwrap(), peer_gid: ext.target_gid, rkeys: ext.rkeys }
}

/// Lets a group answer a capture; its own requests are made when the capture has them.
fn replay_llc(lines: &[Line], role: Role, group: &mut Group) -> usize {
    let mut made = 0;
    for line in lines {
        let What::Llc(bytes) = &line.what else {
            continue;
        };
        let message = Llc::parse(bytes).unwrap().1;
        if line.from_client != (role == Role::Client) {
            group.handle_llc(NOW, 0, bytes).unwrap();
            while let Some(event) = group.poll_event() {
                if let Event::LinkOffered(_) = event {
                    group.reject_link(); // as the kernel with one device did
                }
            }
            continue;
        }
        match message {
            Llc::DeleteRkey(m) if !m.response => group.delete_rkeys(NOW, &m.keys).unwrap(),
            Llc::ConfirmRkey(m) if !m.response => {
                group.confirm_rkey(NOW, [OwnKey { rkey: m.rkey, address: m.address }; 2]).unwrap();
            }
            // A kernel asks for a second link over its one device.
            Llc::AddLink(m) if m.kind == AddKind::Request => {
                group.offer_link(NOW, &new_link(&m)).unwrap();
            }
            _ => {}
        }
        let (_, sent) = group.poll_transmit().unwrap_or_else(|| panic!("nothing for {message:?}"));
        while group.poll_event().is_some() {}
        made += 1;
        assert_eq!(*sent, bytes[..], "{message:?}");
    }
    assert_eq!(group.poll_transmit(), None);
    made
}

#[test]
fn a_link_group_answers_as_the_kernels_did() {
    let (_, client, server) = connections().remove(0);
    let lines = vectors::kernel_smcr();
    let mut as_client = group(Role::Client, &client, &server);
    assert_eq!(replay_llc(&lines, Role::Client, &mut as_client), 8);
    assert_eq!((as_client.state(), as_client.number(0)), (State::Active, 1));
    let mut as_server = group(Role::Server, &server, &client);
    assert_eq!(replay_llc(&lines, Role::Server, &mut as_server), 8);

    // The server goes on into the later capture: the client asks to end the group.
    let end = vectors::smcr_then_plain_client();
    let deletes: Vec<_> = end.iter().filter(|l| matches!(l.what, What::Llc(_))).collect();
    let (What::Llc(asked), What::Llc(told)) = (&deletes[0].what, &deletes[1].what) else { panic!() };
    as_server.handle_llc(NOW, 0, asked).unwrap();
    assert_eq!(*as_server.poll_transmit().unwrap().1, told[..]);
    let over = Event::Terminated { by_peer: true, reason: LinkReason::OPERATOR };
    assert_eq!(as_server.poll_event(), Some(over));
    assert_eq!(client.qpn, Qpn::truncate(0x11));
}
