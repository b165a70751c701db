//! The second link of a group by itself: how it is offered, accepted and refused, and what its end brings about.

use smcr_proto::smc::Time;
use smcr_proto::smc::handshake::Role;
use smcr_proto::smc::id::Rkey;
use smcr_proto::smc::link::{AGAIN, Event, Group, GroupError, NewLink, OwnKey, SECOND, State};
use smcr_proto::smc::list::List;
use smcr_proto::smc::llc::{
    AddKind, AddLink, ConfirmLink, ConfirmRkey, DeleteLink, DeleteRkey, Family, LinkReason, Message, RequestAddLink, RkeyMap, RkeyOnLink,
};

use crate::links::{START, active, confirm_link};
use crate::parts;

const V2: Family = Family::V2;

fn own(who: u8) -> NewLink {
    let map = RkeyMap { known: Rkey(0x10), new: Rkey(0x20), address: 0x2000 };
    NewLink { rkeys: List::of(&[map]), ..parts::second_link(who) }
}

fn tell(group: &mut Group, by: usize, message: Message) {
    group.handle_llc(START, by, &message.emit(V2)).unwrap();
}

/// Everything that the group has for its driver.
fn drain(group: &mut Group) -> (Vec<Event>, Vec<(usize, Message)>) {
    let (mut events, mut messages) = (Vec::new(), Vec::new());
    loop {
        if let Some(event) = group.poll_event() {
            events.push(event);
        } else if let Some((link, frame)) = group.poll_transmit() {
            messages.push((link, Message::parse(&frame).unwrap().1));
        } else {
            return (events, messages);
        }
    }
}

fn add_link(kind: AddKind, link: u8) -> AddLink {
    let own = own(parts::SERVER);
    let ext = smcr_proto::smc::llc::AddLinkExt { direct: true, target_gid: own.peer_gid, rkeys: own.rkeys };
    AddLink { kind, mac: own.mac, gid: own.gid, qpn: own.qpn, link, mtu_code: own.mtu.code(), psn: own.psn, ext: Some(ext) }
}

fn second_confirm(response: bool) -> Message {
    let Message::ConfirmLink(m) = confirm_link(response) else { unreachable!() };
    Message::ConfirmLink(ConfirmLink { link: 2, ..m })
}

fn delete(link: u8, response: bool) -> DeleteLink {
    DeleteLink { response, all: false, orderly: true, link, reason: LinkReason::LOST_PATH }
}

/// A group of two links.
fn with_two(role: Role) -> Group {
    let mut group = active(role, V2);
    match role {
        Role::Server => {
            group.offer_link(START, &own(parts::SERVER)).unwrap();
            drain(&mut group);
            tell(&mut group, 0, Message::AddLink(add_link(AddKind::Accept, 2)));
            drain(&mut group);
            tell(&mut group, 1, second_confirm(true));
        }
        Role::Client => {
            tell(&mut group, 0, Message::AddLink(add_link(AddKind::Request, 2)));
            drain(&mut group);
            group.accept_link(START, &own(parts::CLIENT)).unwrap();
            drain(&mut group);
            tell(&mut group, 1, second_confirm(false));
        }
    }
    drain(&mut group);
    assert!(group.is_active(0) && group.is_active(1));
    group
}

#[test]
fn a_server_offers_its_second_device_and_confirms_over_it() {
    let mut group = active(Role::Server, V2);
    group.offer_link(START, &own(parts::SERVER)).unwrap();
    let (_, messages) = drain(&mut group);
    assert_eq!(messages, [(0, Message::AddLink(add_link(AddKind::Request, 2)))]);
    assert_eq!(group.offer_link(START, &own(parts::SERVER)), Err(GroupError::Unavailable));

    let other = AddLink { link: 3, ..add_link(AddKind::Accept, 2) };
    tell(&mut group, 0, Message::AddLink(other));
    assert_eq!(drain(&mut group), (vec![], vec![]), "another number");
    let answer = add_link(AddKind::Accept, 2);
    tell(&mut group, 0, Message::AddLink(answer));
    assert_eq!(group.poll_transmit(), None, "its queue pair is raised first");
    let (events, messages) = drain(&mut group);
    assert_eq!(events, [Event::LinkAccepted { link: 1, answer }]);
    let [(1, Message::ConfirmLink(confirm))] = messages[..] else { panic!("{messages:?}") };
    assert_eq!((confirm.link, confirm.response, confirm.gid), (2, false, own(parts::SERVER).gid));
    assert!(!group.is_active(1), "not before the client has answered");
    tell(&mut group, 1, second_confirm(true));
    assert_eq!(drain(&mut group), (vec![Event::LinkReady { link: 1 }], vec![]));
    assert_eq!(group.peer_key(0, Rkey(0x10), 1), Some((Rkey(0x20), 0x2000)));
}

#[test]
fn a_client_accepts_with_its_second_device_or_rejects() {
    let request = add_link(AddKind::Request, 2);
    let mut group = active(Role::Client, V2);
    tell(&mut group, 0, Message::AddLink(request));
    assert_eq!(drain(&mut group), (vec![Event::LinkOffered(request)], vec![]));
    group.reject_link();
    let (_, messages) = drain(&mut group);
    assert!(matches!(messages[..], [(0, Message::AddLink(AddLink { kind: AddKind::Reject(_), .. }))]));
    assert_eq!(group.accept_link(START, &own(parts::CLIENT)), Err(GroupError::Unavailable));

    tell(&mut group, 0, Message::AddLink(request));
    drain(&mut group);
    group.accept_link(START, &own(parts::CLIENT)).unwrap();
    let (_, messages) = drain(&mut group);
    let [(0, Message::AddLink(accept))] = messages[..] else { panic!("{messages:?}") };
    assert_eq!((accept.kind, accept.link), (AddKind::Accept, 2));
    assert_eq!(accept.ext.unwrap().rkeys, own(parts::CLIENT).rkeys);
    tell(&mut group, 1, second_confirm(false));
    assert_eq!(group.poll_event(), Some(Event::RaiseToRts { link: 1 }));
    let (events, messages) = drain(&mut group);
    assert!(matches!(messages[..], [(1, Message::ConfirmLink(ConfirmLink { response: true, link: 2, .. }))]));
    assert_eq!(events, [Event::LinkReady { link: 1 }]);
}

#[test]
fn what_cannot_be_a_second_link_is_rejected_without_asking() {
    let good = add_link(AddKind::Request, 2);
    for bad in [AddLink { mtu_code: 0, ..good }, AddLink { link: 0, ..good }, AddLink { link: 1, ..good }, AddLink { ext: None, ..good }] {
        let mut group = active(Role::Client, V2);
        tell(&mut group, 0, Message::AddLink(bad));
        let (events, messages) = drain(&mut group);
        assert_eq!(events, []);
        assert!(matches!(messages[..], [(0, Message::AddLink(AddLink { kind: AddKind::Reject(_), .. }))]));
    }
    // A third link.
    let mut group = with_two(Role::Client);
    tell(&mut group, 0, Message::AddLink(AddLink { link: 3, ..good }));
    assert!(matches!(drain(&mut group).1[..], [(0, Message::AddLink(AddLink { kind: AddKind::Reject(_), .. }))]));
}

#[test]
fn an_offer_that_is_rejected_or_not_answered_leaves_one_link() {
    let gone = vec![Event::LinkGone { link: 1 }];
    let mut group = active(Role::Server, V2);
    group.offer_link(START, &own(parts::SERVER)).unwrap();
    drain(&mut group);
    tell(&mut group, 0, Message::AddLink(AddLink { ext: None, ..add_link(AddKind::Reject(0), 2) }));
    assert_eq!(drain(&mut group), (gone.clone(), vec![]));

    for role in [Role::Server, Role::Client] {
        let mut group = active(role, V2);
        if role == Role::Server {
            group.offer_link(START, &own(parts::SERVER)).unwrap();
        } else {
            tell(&mut group, 0, Message::AddLink(add_link(AddKind::Request, 2)));
            drain(&mut group);
            group.accept_link(START, &own(parts::CLIENT)).unwrap();
        }
        drain(&mut group);
        group.handle_timeout(START + SECOND);
        let (events, messages) = drain(&mut group);
        assert_eq!(events, gone);
        assert_eq!(messages, [(0, Message::DeleteLink(delete(2, false)))], "the peer may think otherwise");
        assert!(group.is_active(0));
    }
}

#[test]
fn a_link_that_fails_is_deleted_over_the_other() {
    for role in [Role::Server, Role::Client] {
        for (dead, left) in [(0, 1), (1, 0)] {
            let mut group = with_two(role);
            group.handle_link_down(dead);
            let (events, messages) = drain(&mut group);
            assert_eq!(events, [Event::LinkDown { link: dead, to: left }]);
            assert_eq!(messages, [(left, Message::DeleteLink(delete(dead as u8 + 1, false)))]);
            assert_eq!(group.state(), State::Active);
            group.handle_link_down(dead);
            assert_eq!(drain(&mut group), (vec![], vec![]), "once");
            // The answer, or the server's own request.
            tell(&mut group, left, Message::DeleteLink(delete(dead as u8 + 1, role == Role::Server)));
            let (events, messages) = drain(&mut group);
            assert_eq!((events, messages.len()), (vec![], usize::from(role == Role::Client)));
            group.handle_link_down(left);
            let reason = LinkReason::LOST_PATH;
            assert_eq!(drain(&mut group).0, [Event::Terminated { by_peer: false, reason }]);
        }
    }
}

#[test]
fn a_peer_that_deletes_a_link_moves_this_end_as_well() {
    let mut server = with_two(Role::Server);
    tell(&mut server, 1, Message::DeleteLink(delete(1, false)));
    let (events, messages) = drain(&mut server);
    assert_eq!(events, [Event::LinkDown { link: 0, to: 1 }]);
    assert_eq!(messages, [(1, Message::DeleteLink(delete(1, false)))], "the client asks, the server deletes");

    let mut client = with_two(Role::Client);
    tell(&mut client, 0, Message::DeleteLink(delete(2, false)));
    let (events, messages) = drain(&mut client);
    assert_eq!(events, [Event::LinkDown { link: 1, to: 0 }]);
    let answer = DeleteLink { reason: LinkReason::NONE, ..delete(2, true) };
    assert_eq!(messages, [(0, Message::DeleteLink(answer))]);

    // All links, and one that nobody knows.
    tell(&mut client, 0, Message::DeleteLink(delete(7, false)));
    let unknown = DeleteLink { reason: LinkReason::UNKNOWN_LINK, ..delete(7, true) };
    assert_eq!(drain(&mut client), (vec![], vec![(0, Message::DeleteLink(unknown))]));
    let mut client = with_two(Role::Client);
    tell(&mut client, 1, Message::DeleteLink(DeleteLink { all: true, link: 0, ..delete(0, false) }));
    let reason = LinkReason::LOST_PATH;
    assert_eq!(drain(&mut client).0, [Event::Terminated { by_peer: true, reason }]);
}

#[test]
fn each_link_is_tested_and_one_that_is_silent_goes_alone() {
    let mut group = with_two(Role::Server);
    let at = START + Time::from_secs(30);
    group.handle_arrival(at, 0);
    group.handle_timeout(at);
    assert!(matches!(drain(&mut group).1[..], [(1, Message::TestLink(_))]));
    group.handle_timeout(at + Time::from_secs(2));
    assert_eq!(drain(&mut group).0, [Event::LinkDown { link: 1, to: 0 }]);
}

#[test]
fn memories_are_announced_and_withdrawn_on_both_links() {
    let mut group = with_two(Role::Server);
    let keys = [OwnKey { rkey: Rkey(5), address: 50 }, OwnKey { rkey: Rkey(6), address: 60 }];
    group.confirm_rkey(START, keys).unwrap();
    let (_, messages) = drain(&mut group);
    let others = List::of(&[RkeyOnLink { link: 2, rkey: Rkey(6), address: 60 }]);
    let request = ConfirmRkey { response: false, negative: false, retry: false, rkey: Rkey(5), address: 50, others };
    assert_eq!(messages, [(0, Message::ConfirmRkey(request))]);

    // The peer's, by the second link.
    let others = List::of(&[RkeyOnLink { link: 1, rkey: Rkey(8), address: 80 }]);
    tell(&mut group, 1, Message::ConfirmRkey(ConfirmRkey { rkey: Rkey(7), address: 70, others, ..request }));
    assert!(matches!(drain(&mut group).1[..], [(1, Message::ConfirmRkey(ConfirmRkey { negative: false, .. }))]));
    assert_eq!(group.peer_key(0, Rkey(8), 1), Some((Rkey(7), 70)));
    assert_eq!(group.peer_key(1, Rkey(7), 0), Some((Rkey(8), 80)));
    let keys = List::of(&[Rkey(7)]);
    let gone = DeleteRkey { response: false, negative: false, errors: 0, keys, more: 0 };
    tell(&mut group, 1, Message::DeleteRkey(gone));
    let (events, _) = drain(&mut group);
    let there = Event::RkeysDeleted { link: 0, keys: List::of(&[Rkey(8)]) };
    assert_eq!(events, [Event::RkeysDeleted { link: 1, keys }, there]);
    assert_eq!(group.peer_key(0, Rkey(8), 1), None);
}

#[test]
fn a_client_asks_for_another_attempt_and_does_not_decide_how_often() {
    let mut client = with_two(Role::Client);
    client.retry_link(START);
    assert_eq!(drain(&mut client), (vec![], vec![]), "both are there");
    client.handle_link_down(0);
    drain(&mut client);
    client.retry_link(START);
    let ask = Message::RequestAddLink(RequestAddLink { response: false, gids: List::new() });
    assert_eq!(drain(&mut client), (vec![], vec![(1, ask)]));

    let mut server = active(Role::Server, V2);
    let mut attempts = 0;
    for ms in (0..20_000).step_by(10) {
        let now = START + Time::from_millis(ms);
        server.handle_llc(now, 0, &ask.emit(V2)).unwrap();
        server.handle_timeout(now);
        let (events, messages) = drain(&mut server);
        assert!(matches!(messages[..], [(0, Message::RequestAddLink(RequestAddLink { response: true, .. }))]));
        attempts += events.iter().filter(|e| **e == Event::SecondLinkDue).count();
    }
    assert!((3..=5).contains(&attempts), "{attempts} in 20 s");
    // With a link there is nothing to ask for.
    let mut server = with_two(Role::Server);
    tell(&mut server, 0, ask);
    server.handle_timeout(START + AGAIN);
    assert_eq!(drain(&mut server).0, []);
}

#[test]
fn another_link_takes_the_place_of_the_first() {
    let mut server = with_two(Role::Server);
    server.handle_link_down(0);
    drain(&mut server);
    assert_eq!(server.vacant(), Some(0));
    server.handle_timeout(START + AGAIN);
    assert_eq!(drain(&mut server).0, [Event::SecondLinkDue]);
    assert_eq!(server.offer_link(START + AGAIN, &own(parts::SERVER)), Ok(0));
    assert_eq!(drain(&mut server).1, [(1, Message::AddLink(add_link(AddKind::Request, 3)))]);
    tell(&mut server, 1, Message::DeleteLink(delete(1, true)));
    let answer = add_link(AddKind::Accept, 3);
    tell(&mut server, 1, Message::AddLink(answer));
    let (events, messages) = drain(&mut server);
    assert_eq!(events, [Event::LinkAccepted { link: 0, answer }]);
    assert!(matches!(messages[..], [(0, Message::ConfirmLink(ConfirmLink { link: 3, .. }))]));
    let Message::ConfirmLink(m) = confirm_link(true) else { unreachable!() };
    tell(&mut server, 0, Message::ConfirmLink(m));
    assert_eq!(drain(&mut server), (vec![], vec![]), "the number of the one that has gone");
    tell(&mut server, 0, Message::ConfirmLink(ConfirmLink { link: 3, ..m }));
    assert_eq!(drain(&mut server).0, [Event::LinkReady { link: 0 }]);
    assert_eq!(server.peer_key(1, Rkey(0x10), 0), Some((Rkey(0x20), 0x2000)));
    assert_eq!(server.peer_key(0, Rkey(0x10), 1), None, "a key of the old one");
}
