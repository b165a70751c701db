//! A link group by itself: what it answers, what it waits for, how it ends.

use smcr_proto::smc::Time;
use smcr_proto::smc::handshake::Role;
use smcr_proto::smc::id::{Gid, Mac, Qpn, Rkey};
use smcr_proto::smc::link::{Config, Event, FLOW, Group, GroupError, OwnKey, State};
use smcr_proto::smc::list::List;
use smcr_proto::smc::llc::{AddKind, AddLink, ConfirmLink, ConfirmRkey, DeleteRkey, Family, Message, RequestAddLink, TestLink};

use crate::parts;

pub const START: Time = Time::from_secs(1000);

pub fn started(role: Role, family: Family) -> Group {
    let mut group = Group::new(parts::group_config(role, family));
    group.start(START);
    group
}

pub fn confirm_link(response: bool) -> Message {
    Message::ConfirmLink(ConfirmLink {
        response,
        no_eyecatcher: true,
        mac: Mac([9; 6]),
        gid: Gid([9; 16]),
        qpn: Qpn::truncate(9),
        link: 1,
        link_uid: 0x900,
        max_links: 2,
        max_conns: 0,
    })
}

/// A group whose link is confirmed and whose driver has taken everything.
pub fn active(role: Role, family: Family) -> Group {
    let mut group = started(role, family);
    tell(&mut group, family, confirm_link(role == Role::Server));
    drain(&mut group);
    assert_eq!(group.state(), State::Active);
    group
}

pub fn tell(group: &mut Group, family: Family, message: Message) {
    group.handle_llc(START, 0, &message.emit(family)).unwrap();
}

/// Everything that the group has for its driver, messages as bytes.
pub fn drain(group: &mut Group) -> (Vec<Event>, Vec<Vec<u8>>) {
    let (mut events, mut frames) = (Vec::new(), Vec::new());
    loop {
        if let Some(event) = group.poll_event() {
            events.push(event);
        } else if let Some((link, frame)) = group.poll_transmit() {
            assert_eq!(link, 0, "there is one link");
            frames.push(frame.to_vec());
        } else {
            return (events, frames);
        }
    }
}

pub fn heads(frames: &[Vec<u8>]) -> Vec<[u8; 4]> {
    frames.iter().map(|f| f[..4].try_into().unwrap()).collect()
}

#[test]
fn a_server_confirms_the_link_and_then_only_seems_to_add_another() {
    let mut group = started(Role::Server, Family::V1);
    assert_eq!(heads(&drain(&mut group).1), [[0x01, 0x2c, 0, 0x03]]);
    tell(&mut group, Family::V1, confirm_link(true));
    let (events, frames) = drain(&mut group);
    assert_eq!((events, frames), (vec![Event::Ready, Event::SecondLinkDue], vec![]));
    group.forgo_link();
    let (_, frames) = drain(&mut group);
    assert_eq!(heads(&frames), [[0x02, 0x2c, 0, 0]]);
    assert_eq!(frames[0][32] & 0x0f, 0, "MTU 0: a Linux client rejects it at once");
    assert!(frames[0][4..].iter().any(|b| *b != 0), "all zero is a mark of Linux's own");
}

#[test]
fn with_one_link_agreed_no_second_is_mentioned() {
    let mut group = Group::new(Config { max_links: 1, ..parts::group_config(Role::Server, Family::V2) });
    group.start(START);
    drain(&mut group);
    tell(&mut group, Family::V2, confirm_link(true));
    assert_eq!(drain(&mut group), (vec![Event::Ready], vec![]));
}

#[test]
fn a_client_raises_its_queue_pair_answers_and_is_ready_in_this_order() {
    let mut group = started(Role::Client, Family::V1);
    tell(&mut group, Family::V1, confirm_link(false));
    assert_eq!(group.poll_transmit(), None, "not before the event was taken");
    assert_eq!(group.poll_event(), Some(Event::RaiseToRts { link: 0 }));
    assert_eq!(group.poll_event(), None, "not ready before the answer is on its way");
    assert_eq!(group.poll_transmit().unwrap().1[..4], [0x01, 0x2c, 0, 0x83]);
    assert_eq!(group.poll_event(), Some(Event::Ready));
    assert_eq!(group.number(0), 1, "the server's number");
}

#[test]
fn a_client_rejects_a_second_link_and_repeats_the_request() {
    let mut request = AddLink {
        kind: AddKind::Request,
        mac: Mac([5; 6]),
        gid: Gid([6; 16]),
        qpn: Qpn::truncate(7),
        link: 2,
        mtu_code: 3,
        psn: Default::default(),
        ext: None,
    };
    for (family, head) in [(Family::V1, [0x02, 0x2c, 1, 0xc0]), (Family::V2, [0x22, 0x2c, 0, 0xc0])] {
        let mut group = active(Role::Client, family);
        request.kind = AddKind::Request;
        tell(&mut group, family, Message::AddLink(request));
        let (_, frames) = drain(&mut group);
        assert_eq!(heads(&frames), [head]);
        assert_eq!(frames[0][4..], Message::AddLink(request).emit(family)[4..44]);
        // Neither its own hint nor an answer is answered.
        let mut server = active(Role::Server, family);
        tell(&mut server, family, Message::AddLink(request));
        request.kind = AddKind::Reject(1);
        tell(&mut server, family, Message::AddLink(request));
        assert_eq!(drain(&mut server), (vec![], vec![]));
    }
}

#[test]
fn requests_about_memory_and_life_are_answered() {
    let mut group = active(Role::Client, Family::V1);
    let confirm = ConfirmRkey { response: false, negative: false, retry: false, rkey: Rkey(5), address: 6, others: List::new() };
    let keys = List::of(&[Rkey(5), Rkey(6)]);
    let delete = DeleteRkey { response: false, negative: false, errors: 0, keys, more: 0 };
    tell(&mut group, Family::V1, Message::ConfirmRkey(confirm));
    tell(&mut group, Family::V1, Message::TestLink(TestLink { response: false, user_data: [7; 16] }));
    tell(&mut group, Family::V1, Message::DeleteRkey(delete));
    assert_eq!(group.poll_transmit(), None, "the driver has to stop writing first");
    let (events, frames) = drain(&mut group);
    assert_eq!(events, [Event::RkeysDeleted { link: 0, keys }]);
    assert_eq!(heads(&frames), [[6, 0x2c, 0, 0x80], [7, 0x2c, 0, 0x80], [9, 0x2c, 0, 0x80]]);
    assert_eq!(frames[0][5..17], [0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6]);
    assert_eq!(frames[1][4..20], [7; 16]);
    assert_eq!(frames[2][4..16], [2, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6]);

    let mut group = active(Role::Server, Family::V2);
    let ask = RequestAddLink { response: false, gids: List::of(&[Gid([4; 16])]) };
    tell(&mut group, Family::V2, Message::RequestAddLink(ask));
    let (_, frames) = drain(&mut group);
    assert_eq!(heads(&frames), [[0x25, 0x2c, 0, 0x80]]);
    assert_eq!(frames[0][4..], [0; 40]);
}

#[test]
fn more_keys_than_are_taken_at_once_are_refused_as_a_whole() {
    let mut group = active(Role::Server, Family::V2);
    let mut message = [0; 48];
    message[..8].copy_from_slice(&[0x29, 48, 0, 0, 10, 0, 0, 0]);
    group.handle_llc(START, 0, &message).unwrap();
    let (events, frames) = drain(&mut group);
    assert_eq!(events, []);
    assert_eq!(frames[0][..6], [0x29, 0x2c, 0, 0xa0, 10, 10]);
}

#[test]
fn one_exchange_of_its_own_at_a_time() {
    let mut group = active(Role::Client, Family::V1);
    assert_eq!(group.delete_rkeys(START, &[]), Err(GroupError::Count));
    assert_eq!(group.delete_rkeys(START, &[Rkey(1); 9]), Err(GroupError::Count));
    group.confirm_rkey(START, [OwnKey { rkey: Rkey(1), address: 2 }; 2]).unwrap();
    assert_eq!(group.delete_rkeys(START, &[Rkey(1)]), Err(GroupError::Busy));
    let (_, frames) = drain(&mut group);
    let mut answer = frames[0].clone();
    answer[3] = 0xb0;
    group.handle_llc(START, 0, &answer).unwrap();
    assert_eq!(drain(&mut group).0, [Event::FlowDone { agreed: false }]);
    group.handle_llc(START, 0, &answer).unwrap();
    assert_eq!(drain(&mut group).0, [], "an answer without a question");

    group.delete_rkeys(START, &[Rkey(1)]).unwrap();
    drain(&mut group);
    group.handle_timeout(START + FLOW);
    assert_eq!(drain(&mut group).0, [Event::FlowDone { agreed: false }]);
    assert_eq!(group.state(), State::Active, "the link lives on");
}

#[test]
fn a_group_takes_no_more_connections_than_agreed() {
    let mut group = Group::new(Config { max_conns: 16, ..parts::group_config(Role::Server, Family::V2) });
    for _ in 0..16 {
        group.connection_opened().unwrap();
    }
    assert_eq!(group.connection_opened(), Err(GroupError::Unavailable));
}

#[test]
fn a_peer_that_floods_has_to_wait_for_the_driver() {
    let mut group = active(Role::Server, Family::V2);
    let test = Message::TestLink(TestLink { response: false, user_data: [0; 16] }).emit(Family::V2);
    let mut taken = 0;
    while group.handle_llc(START, 0, &test).is_ok() {
        taken += 1;
        assert!(taken < 100, "it may not take them for ever");
    }
    assert_eq!(drain(&mut group).1.len(), taken);
    assert_eq!(group.handle_llc(START, 0, &test), Ok(()));
}

#[test]
fn messages_of_the_other_family_are_ignored() {
    let mut group = active(Role::Server, Family::V2);
    tell(&mut group, Family::V1, Message::TestLink(TestLink { response: false, user_data: [0; 16] }));
    assert_eq!(drain(&mut group), (vec![], vec![]));
}
