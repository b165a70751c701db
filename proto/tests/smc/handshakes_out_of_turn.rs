//! Accepts and Confirms of version 2 whose bytes are wrong, and messages that come twice, too early or too late.

use smcr_proto::smc::Time;
use smcr_proto::smc::clc::decline::Decline;
use smcr_proto::smc::clc::proposal::Release;
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::error::WireError;
use smcr_proto::smc::handshake::client::Client;
use smcr_proto::smc::handshake::server::Server;
use smcr_proto::smc::handshake::{DECLINE_TIMEOUT_CLIENT, DECLINE_TIMEOUT_SERVER, Failure, Fallback, Outcome};

use crate::handshakes::{client, declined, server, until_confirm};
use crate::parts::{SERVER, limits, offer, peer_id};

/// Releases that the two ends of a handshake of version 2 may have.
fn releases() -> [Release; 2] {
    [Release::V20, Release::V21(limits(2))]
}

fn ends(release: Release) -> (Client, Server) {
    (client(true, Some(release)), server(Ok(offer(true, Some(limits(2))))))
}

/// A client that waits for an Accept.
fn waiting(release: Release) -> Client {
    let mut client = client(true, Some(release));
    client.poll_transmit();
    client
}

/// The message ends after `content` bytes and a trailer, and its header says so.
fn cut(message: &[u8], content: usize) -> Vec<u8> {
    let mut short = message[..content].to_vec();
    short.extend(&message[message.len() - 4..]);
    let len = short.len() as u16;
    short[5..7].copy_from_slice(&len.to_be_bytes());
    short
}

#[test]
fn values_of_version_2_are_refused_with_their_codes() {
    let refusals: [(usize, &[u8], Diagnosis); 9] = [
        (45, &[0], Diagnosis::RTOKEN),
        (46, &[0; 4], Diagnosis::INTERNAL),
        (50, &[0x63], Diagnosis::RTOKEN),
        (50, &[0xf3], Diagnosis::RTOKEN),
        (50, &[0x00], Diagnosis::LINK_READY),
        (50, &[0x06], Diagnosis::LINK_READY),
        (52, &[0xff; 8], Diagnosis::RTOKEN),
        (105, &[0x22], Diagnosis::RELEASE),
        (105, &[0x2f], Diagnosis::RELEASE),
    ];
    for release in releases() {
        for (at, bytes, code) in refusals {
            let (mut client, mut server) = ends(release);
            let (mut accept, mut confirm) = until_confirm(&mut client, &mut server);
            accept[at..at + bytes.len()].copy_from_slice(bytes);
            confirm[at..at + bytes.len()].copy_from_slice(bytes);
            let mut victim = waiting(release);
            assert_eq!(victim.handle_bytes(&accept), accept.len(), "all of it, or the rest is the program's");
            assert_eq!(declined(victim.poll_transmit()), (code, false), "{release:?}, Accept byte {at}");
            assert_eq!(server.handle_bytes(&confirm), confirm.len());
            assert_eq!(declined(server.poll_transmit()), (code, false), "{release:?}, Confirm byte {at}");
            for outcome in [victim.outcome(), server.outcome()] {
                assert!(matches!(outcome, Some(Outcome::Fallback(Fallback { by_peer: false, .. }))));
            }
        }
    }
}

#[test]
fn messages_of_version_2_that_are_too_short_for_their_contents_are_refused() {
    let release = Release::V21(limits(2));
    let (mut client, mut server) = ends(release);
    let (accept, confirm) = until_confirm(&mut client, &mut server);
    let answer = |bytes: &[u8]| {
        let mut victim = waiting(release);
        victim.handle_bytes(bytes);
        (victim.poll_transmit().map(|frame| declined(Some(frame)).0), victim.outcome())
    };
    assert_eq!(answer(&accept).0, None, "as it is, it fits");
    // Without the EID; without the extension; with less of it than its release has.
    for content in [64, 100, 104, 135, 140, 155] {
        let (said, outcome) = answer(&cut(&accept, content));
        let refused = matches!(outcome, Some(Outcome::Fail(Failure::Protocol(_)) | Outcome::Fallback(_)));
        assert!(refused, "{content}: {said:?}, {outcome:?}");
    }
    let to_server = |bytes: &[u8]| {
        let (mut client, mut server) = ends(release);
        until_confirm(&mut client, &mut server);
        server.handle_bytes(bytes);
        server.poll_transmit();
        server.outcome()
    };
    assert_eq!(to_server(&confirm), None, "waits for the link");
    let mut many = confirm.to_vec();
    many[156] = 9; // GIDs, of which a message has eight at most
    let mut more = confirm.to_vec();
    more[156] = 2; // and this one has one
    for bytes in [many, more, cut(&confirm, 104), cut(&confirm, 155)] {
        let outcome = to_server(&bytes);
        assert!(matches!(outcome, Some(Outcome::Fail(Failure::Protocol(_)) | Outcome::Fallback(_))), "{outcome:?}");
    }
}

#[test]
fn headers_that_are_no_message_fail_and_say_nothing() {
    let release = Release::V21(limits(1));
    let (mut client, mut server) = ends(release);
    let (accept, _) = until_confirm(&mut client, &mut server);
    // Kind 0 and 5; version 0; lengths below a header, beyond any message.
    let wrong: [(usize, &[u8]); 5] = [(4, &[0]), (4, &[5]), (7, &[0x08]), (5, &[0, 7]), (5, &[0xff, 0xff])];
    for (at, bytes) in wrong {
        let mut message = accept.to_vec();
        message[at..at + bytes.len()].copy_from_slice(bytes);
        let mut victim = waiting(release);
        victim.handle_bytes(&message);
        let said = victim.poll_transmit();
        let outcome = victim.outcome();
        let is_over = matches!(outcome, Some(Outcome::Fail(Failure::Protocol(_))) | Some(Outcome::Fallback(_)));
        assert!(is_over, "byte {at} = {bytes:?}: {outcome:?}");
        assert_eq!(said.is_some(), matches!(outcome, Some(Outcome::Fallback(_))), "who falls back says so");
        assert_eq!(victim.want(), 0);
    }
    let mut victim = waiting(release);
    victim.handle_bytes(b"\0\0\0\0\0\0\0\0");
    assert_eq!(victim.outcome(), Some(Outcome::Fail(Failure::Protocol(WireError::Eyecatcher))));
}

#[test]
fn a_server_takes_each_message_once_and_in_its_turn() {
    for release in releases() {
        let unexpected = Some(Outcome::Fail(Failure::Unexpected));
        let (mut client, mut server) = ends(release);
        let proposal = client.poll_transmit().unwrap();
        let (_, confirm) = until_confirm(&mut self::client(true, Some(release)), &mut ends(release).1);

        // Confirm or Accept in place of the Proposal.
        server.handle_bytes(&confirm);
        assert_eq!((server.outcome(), server.poll_transmit()), (unexpected, None));

        // A second Proposal while the first one is decided on is not read; in place of Confirm it is unexpected.
        let mut server = ends(release).1;
        server.handle_bytes(&proposal);
        assert_eq!((server.want(), server.handle_bytes(&proposal)), (0, 0));
        let (mut client, mut server) = ends(release);
        until_confirm(&mut client, &mut server);
        server.handle_bytes(&proposal);
        assert_eq!((server.outcome(), server.poll_transmit()), (unexpected, None));

        // A second Confirm while the link comes up.
        let (mut client, mut server) = ends(release);
        let (_, confirm) = until_confirm(&mut client, &mut server);
        server.handle_bytes(&confirm);
        assert_eq!(server.outcome(), None);
        server.handle_bytes(&confirm);
        assert_eq!((server.outcome(), server.poll_transmit()), (unexpected, None));
    }
}

#[test]
fn a_client_takes_each_message_once_and_in_its_turn() {
    for release in releases() {
        let unexpected = Some(Outcome::Fail(Failure::Unexpected));
        let (mut client, mut server) = ends(release);
        let (accept, confirm) = until_confirm(&mut client, &mut server);

        let mut victim = waiting(release);
        victim.handle_bytes(&confirm);
        assert_eq!((victim.outcome(), victim.poll_transmit()), (unexpected, None));

        // A second Accept: not read while the first one is decided on, unexpected while the link comes up.
        let mut victim = waiting(release);
        victim.handle_bytes(&accept);
        assert_eq!((victim.want(), victim.handle_bytes(&accept)), (0, 0));
        client.handle_bytes(&accept);
        assert_eq!((client.outcome(), client.poll_transmit()), (unexpected, None));
    }
}

#[test]
fn a_decline_is_taken_at_each_step_and_a_late_one_is_waited_for() {
    let decline = Decline::new(peer_id(SERVER), Diagnosis::MEMORY).emit();
    let now = Time::from_secs(60);
    for release in releases() {
        let by_peer = |outcome| matches!(outcome, Some(Outcome::Fallback(Fallback { by_peer: true, code: Diagnosis::MEMORY, .. })));
        // In place of the Proposal, of Confirm, and of the link.
        let mut server = ends(release).1;
        server.handle_bytes(&decline);
        assert!(by_peer(server.outcome()));
        let (mut client, mut server) = ends(release);
        let (_, confirm) = until_confirm(&mut client, &mut server);
        client.handle_bytes(&decline);
        assert!(by_peer(client.outcome()));
        server.handle_bytes(&confirm);
        server.handle_bytes(&decline);
        assert!(by_peer(server.outcome()));

        // The link fails: the peer's own Decline may come, and one that does not is replaced by ours.
        let (mut client, mut server) = ends(release);
        let (_, confirm) = until_confirm(&mut client, &mut server);
        server.handle_bytes(&confirm);
        client.link_failed(now, Diagnosis::TIMEOUT_CONFIRM_LINK);
        server.link_failed(now, Diagnosis::TIMEOUT_CONFIRM_LINK);
        client.handle_bytes(&decline);
        assert!(by_peer(client.outcome()));
        server.handle_timeout(now + DECLINE_TIMEOUT_SERVER);
        assert_eq!(declined(server.poll_transmit()).0, Diagnosis::TIMEOUT_CONFIRM_LINK);
        let (mut client, mut server) = ends(release);
        until_confirm(&mut client, &mut server);
        client.link_failed(now, Diagnosis::TIMEOUT_CONFIRM_LINK);
        client.handle_timeout(now + DECLINE_TIMEOUT_CLIENT);
        assert_eq!(declined(client.poll_transmit()).0, Diagnosis::TIMEOUT_CONFIRM_LINK);
    }
}
