//! The CLC handshake by itself: choices, refusals, timeouts and garbage, at both ends.

use smcr_proto::reason::Reason;
use smcr_proto::smc::Time;
use smcr_proto::smc::clc::decline::Decline;
use smcr_proto::smc::clc::proposal::{Limits, Release};
use smcr_proto::smc::clc::{Frame, Message};
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::error::WireError;
use smcr_proto::smc::handshake::client::{Client, Event as ClientEvent};
use smcr_proto::smc::handshake::server::{Choice, Event as ServerEvent, Offer, Server};
use smcr_proto::smc::handshake::{
    ACCEPT_TIMEOUT, CONFIRM_TIMEOUT, DECLINE_TIMEOUT_CLIENT, DECLINE_TIMEOUT_SERVER, Failure, Fallback, MESSAGE_TIMEOUT, Outcome,
};
use smcr_proto::smc::id::{Gid, Mtu, RmbeSize};

use crate::parts::{self, CLIENT, SERVER, eid, limits, offer, proposal};

pub const START: Time = Time::from_secs(50);

pub fn client(v1: bool, v2: Option<Release>) -> Client {
    Client::new(START, proposal(v1, v2), parts::host())
}

pub fn server(offer: Result<Offer, Diagnosis>) -> Server {
    Server::new(START, parts::peer_id(SERVER), offer, parts::host())
}

/// Runs both up to Confirm on first contact; gives the Accept and the Confirm.
pub fn until_confirm(client: &mut Client, server: &mut Server) -> (Frame, Frame) {
    server.handle_bytes(&client.poll_transmit().unwrap());
    assert!(matches!(server.poll_event(), Some(ServerEvent::Proposed(..))));
    server.accept(START, parts::endpoint(SERVER, 1, RmbeSize::MIN), true, true);
    let accept = server.poll_transmit().unwrap();
    client.handle_bytes(&accept);
    assert!(matches!(client.poll_event(), Some(ClientEvent::Accepted(_))));
    client.confirm(parts::endpoint(CLIENT, 1, RmbeSize::MIN), true);
    (accept, client.poll_transmit().unwrap())
}

pub fn declined(frame: Option<Frame>) -> (Diagnosis, bool) {
    match Message::parse(&frame.expect("a Decline")) {
        Ok(Message::Decline(Decline { diagnosis, out_of_sync, .. })) => (diagnosis, out_of_sync),
        other => panic!("{other:?}"),
    }
}

fn choice(offered: (bool, Option<Release>), ours: Offer) -> Result<Choice, Diagnosis> {
    let mut server = server(Ok(ours));
    server.handle_bytes(&client(offered.0, offered.1).poll_transmit().unwrap());
    match server.poll_event() {
        Some(ServerEvent::Proposed(_, choice)) => Ok(choice),
        _ => Err(declined(server.poll_transmit()).0),
    }
}

#[test]
fn the_server_prefers_version_2_and_names_the_first_thing_that_failed() {
    let v21 = |conns, links| Release::V21(Limits { max_conns: conns, max_links: links, features: 0 });
    let both = offer(true, Some(limits(1)));
    let stranger = Offer { v2: Some((Default::default(), limits(1))), ..both };
    let chosen = Ok(Choice::V2(eid(), v21(64, 1)));
    assert_eq!(choice((true, Some(v21(64, 2))), both), chosen, "the smaller of each limit");
    assert_eq!(choice((true, Some(Release::V20)), both), Ok(Choice::V2(eid(), Release::V20)));
    assert_eq!(choice((true, None), both), Ok(Choice::V1));
    assert_eq!(choice((true, Some(Release::V20)), stranger), Ok(Choice::V1), "no common EID");
    assert_eq!(choice((false, Some(Release::V20)), stranger), Err(Diagnosis::NO_UEID));
    let elsewhere = Offer { v1: Some(Default::default()), ..stranger };
    assert_eq!(choice((true, Some(Release::V20)), elsewhere), Err(Diagnosis::NO_UEID));
    assert_eq!(choice((true, None), elsewhere), Err(Diagnosis::PREFIX));
    assert_eq!(choice((true, None), offer(false, Some(limits(1)))), Err(Diagnosis::MODE_MISMATCH));
    assert_eq!(choice((false, Some(v21(15, 1))), both), Err(Diagnosis::MAX_CONNECTIONS));
    assert_eq!(choice((false, Some(v21(64, 0))), both), Err(Diagnosis::MAX_LINKS));
}

#[test]
fn both_ends_come_to_the_same_parameters() {
    for (ours, theirs) in [(Mtu::B1024, Mtu::B4096), (Mtu::B4096, Mtu::B1024)] {
        let (mut client, mut server) = (client(true, None), server(Ok(offer(true, None))));
        let mut own = parts::endpoint(CLIENT, 1, RmbeSize::MIN);
        let mut peer = parts::endpoint(SERVER, 4, RmbeSize::MAX);
        (own.mtu, peer.mtu) = (ours, theirs);
        server.handle_bytes(&client.poll_transmit().unwrap());
        server.poll_event();
        server.accept(START, peer, false, true);
        client.handle_bytes(&server.poll_transmit().unwrap());
        client.poll_event();
        client.confirm(own, true);
        let confirm = client.poll_transmit().unwrap();
        assert_eq!(confirm[50] & 0x0f, Mtu::B1024.code(), "Confirm names the smaller MTU");
        server.handle_bytes(&confirm);
        let (Some(Outcome::Smc(c)), Some(Outcome::Smc(s))) = (client.outcome(), server.outcome()) else {
            panic!("not first contact: over with Confirm");
        };
        assert_eq!((c.local, c.peer), (s.peer, s.local));
        assert_eq!((c.mtu, s.mtu, s.peer.token.value()), (Mtu::B1024, Mtu::B1024, 1));
        assert_eq!((client.want(), server.want()), (0, 0), "the stream is not theirs any more");
    }
}

#[test]
fn the_server_takes_the_clients_addresses_from_the_proposal() {
    for (version, gid) in [(1, Gid([1; 16])), (2, Gid([2; 16]))] {
        let mut offered = proposal(true, (version == 2).then_some(Release::V20));
        offered.gid = Gid([1; 16]);
        if let Some(offer) = &mut offered.v2 {
            offer.gid = Gid([2; 16]);
        }
        let (id, mac) = (offered.peer_id, offered.mac);
        let mut client = Client::new(START, offered, parts::host());
        let mut server = server(Ok(offer(true, Some(limits(1)))));
        server.handle_bytes(&client.poll_transmit().unwrap());
        server.poll_event();
        server.accept(START, parts::endpoint(SERVER, 1, RmbeSize::MIN), false, true);
        client.handle_bytes(&server.poll_transmit().unwrap());
        client.poll_event();
        client.confirm(parts::endpoint(77, 1, RmbeSize::MIN), true);
        server.handle_bytes(&client.poll_transmit().unwrap());
        let Some(Outcome::Smc(params)) = server.outcome() else { panic!() };
        assert_eq!((params.peer.gid, params.peer.peer_id, params.peer.mac), (gid, id, mac));
        assert_eq!(params.peer.qpn.value(), 0x10 + 77, "the rest is in the Confirm");
    }
}

#[test]
fn a_decline_voids_what_was_not_sent_yet() {
    let mut client = client(true, None);
    client.handle_bytes(&Decline::new(parts::peer_id(SERVER), Diagnosis::MEMORY).emit());
    assert_eq!(client.poll_transmit(), None);
    assert!(matches!(client.outcome(), Some(Outcome::Fallback(_))));
}

#[test]
fn without_an_answer_in_time_both_fail_and_do_not_pretend_to_be_tcp() {
    let (mut client, mut server) = (client(true, None), server(Ok(offer(true, None))));
    client.poll_transmit();
    assert_eq!(client.poll_timeout(), Some(START + ACCEPT_TIMEOUT));
    client.handle_timeout(START + ACCEPT_TIMEOUT - Time::from_millis(1));
    assert_eq!(client.outcome(), None);
    client.handle_timeout(START + ACCEPT_TIMEOUT);
    server.handle_timeout(START + MESSAGE_TIMEOUT);
    assert_eq!(client.outcome(), Some(Outcome::Fail(Failure::Timeout)));
    assert_eq!(server.outcome(), Some(Outcome::Fail(Failure::Timeout)));
    let (mut client, mut server) = (self::client(true, None), self::server(Ok(offer(true, None))));
    until_confirm(&mut client, &mut server);
    while let Some(at) = server.poll_timeout().filter(|at| *at < START + CONFIRM_TIMEOUT) {
        server.handle_timeout(at);
        assert_eq!(server.outcome(), None);
    }
    assert_eq!(server.poll_timeout(), Some(START + CONFIRM_TIMEOUT));
    server.handle_timeout(START + CONFIRM_TIMEOUT);
    assert_eq!(server.outcome(), Some(Outcome::Fail(Failure::Timeout)), "no Confirm");
}

#[test]
fn a_confirm_that_has_begun_is_not_awaited_for_long() {
    let (mut client, mut server) = (client(true, None), server(Ok(offer(true, None))));
    let (_, confirm) = until_confirm(&mut client, &mut server);
    server.handle_timeout(START + MESSAGE_TIMEOUT);
    assert_eq!(server.handle_bytes(&confirm[..20]), 20);
    server.handle_timeout(START + MESSAGE_TIMEOUT + MESSAGE_TIMEOUT);
    assert_eq!(server.outcome(), None, "it has begun a moment ago");
    let at = server.poll_timeout().unwrap();
    server.handle_timeout(at);
    assert_eq!((at, server.outcome()), (START + Time::from_secs(18), Some(Outcome::Fail(Failure::Timeout))));
}

#[test]
fn garbage_and_messages_out_of_turn_fail() {
    let mut client = client(true, None);
    let proposal = client.poll_transmit().unwrap();
    client.handle_bytes(b"HTTP/1.1 200 OK");
    let failed = Outcome::Fail(Failure::Protocol(WireError::Eyecatcher));
    assert_eq!(client.outcome(), Some(failed));
    client.decline(Diagnosis::MEMORY, false);
    assert_eq!(client.poll_transmit(), None, "nothing is said after that");

    let mut client = self::client(true, None);
    client.poll_transmit();
    client.handle_bytes(&proposal);
    assert_eq!(client.outcome(), Some(Outcome::Fail(Failure::Unexpected)));

    let mut server = server(Ok(offer(true, None)));
    server.handle_bytes(&proposal[..20]);
    server.handle_eof();
    assert_eq!(server.outcome(), Some(Outcome::Fail(Failure::Closed)));
}

#[test]
fn a_decline_ends_on_tcp_and_leaves_the_next_byte_alone() {
    let mut client = client(true, None);
    client.poll_transmit();
    let mut decline = Decline::new(parts::peer_id(SERVER), Diagnosis::NO_SMCR_DEVICE);
    decline.out_of_sync = true;
    let mut stream = decline.emit().to_vec();
    let len = stream.len();
    stream.extend(b"220 ready");
    assert_eq!(client.want(), 8, "first the header");
    assert_eq!(client.handle_bytes(&stream), len);
    assert_eq!(client.handle_bytes(&stream[len..]), 0);
    let Some(Outcome::Fallback(fallback)) = client.outcome() else { panic!() };
    let code = Diagnosis::NO_SMCR_DEVICE;
    assert_eq!(fallback, Fallback { code, by_peer: true, end_group: true });
    assert_eq!(fallback.reason(), Some(Reason::SmcDeclined));
    assert_eq!(client.poll_transmit(), None, "a Decline is not answered");
}

#[test]
fn an_end_that_can_do_nothing_says_so_in_place_of_its_first_message() {
    let mut client = Client::refusing(parts::peer_id(CLIENT), Diagnosis::NO_DEVICE, parts::host());
    assert_eq!(client.outcome(), None, "the Decline comes before the program's bytes");
    let decline = client.poll_transmit();
    let Some(Outcome::Fallback(ours)) = client.outcome() else { panic!() };
    assert_eq!((ours.by_peer, ours.reason()), (false, Some(Reason::SmcNoDevice)));
    let mut server = server(Ok(offer(true, None)));
    server.handle_bytes(&decline.unwrap());
    assert!(matches!(server.outcome(), Some(Outcome::Fallback(Fallback { by_peer: true, .. }))));

    // A server reads the Proposal first, or its bytes would be taken for the program's.
    let mut server = self::server(Err(Diagnosis::NO_DEVICE));
    assert_eq!((server.poll_transmit(), server.want()), (None, 8));
    server.handle_bytes(&self::client(true, None).poll_transmit().unwrap());
    assert_eq!(declined(server.poll_transmit()), (Diagnosis::NO_DEVICE, false));
}

#[test]
fn a_client_that_changes_its_mind_waits_for_the_accept() {
    let (mut client, mut server) = (client(true, None), server(Ok(offer(true, None))));
    server.handle_bytes(&client.poll_transmit().unwrap());
    server.poll_event();
    server.accept(START, parts::endpoint(SERVER, 1, RmbeSize::MIN), true, true);
    client.decline(Diagnosis::MEMORY, false);
    assert_eq!(client.poll_transmit(), None);
    client.handle_bytes(&server.poll_transmit().unwrap());
    assert_eq!(client.poll_event(), None);
    let decline = client.poll_transmit();
    assert_eq!(declined(decline), (Diagnosis::MEMORY, false));
}

#[test]
fn a_link_that_fails_leaves_time_for_the_peers_decline() {
    let (mut client, mut server) = (client(true, None), server(Ok(offer(true, None))));
    let (_, confirm) = until_confirm(&mut client, &mut server);
    server.handle_bytes(&confirm);
    assert!(matches!(server.poll_event(), Some(ServerEvent::BringUpLink(_))));
    assert!(matches!(client.poll_event(), Some(ClientEvent::BringUpLink(_))));
    let at = START + Time::from_secs(2);
    server.link_failed(at, Diagnosis::TIMEOUT_CONFIRM_LINK);
    server.handle_timeout(at + DECLINE_TIMEOUT_SERVER - Time::from_millis(1));
    assert_eq!(server.poll_transmit(), None);
    server.handle_timeout(at + DECLINE_TIMEOUT_SERVER);
    let decline = server.poll_transmit().unwrap();
    client.link_failed(at + Time::from_secs(2), Diagnosis::TIMEOUT_CONFIRM_LINK);
    // A Linux server's Decline comes 5 s after Confirm, when the client's link had 4.
    client.handle_timeout(at + Time::from_secs(2) + DECLINE_TIMEOUT_CLIENT - Time::from_millis(1));
    assert_eq!(client.poll_transmit(), None);
    client.handle_bytes(&decline);
    client.handle_timeout(at + Time::from_secs(20));
    assert_eq!(client.poll_transmit(), None, "one Decline is enough");
    let code = Diagnosis::TIMEOUT_CONFIRM_LINK;
    let fallback = |by_peer| Some(Outcome::Fallback(Fallback { code, by_peer, end_group: false }));
    assert_eq!((client.outcome(), server.outcome()), (fallback(true), fallback(false)));
}
