//! How a link group waits, tests its link and ends.

use smcr_proto::smc::Time;
use smcr_proto::smc::handshake::Role;
use smcr_proto::smc::link::{CONFIRM_CLIENT, Config, Event, FLOW, Group, GroupError, IDLE_CLIENT, IDLE_SERVER, State};
use smcr_proto::smc::llc::{ConfirmLink, DeleteLink, Family, LinkReason, Message};

use crate::links::{START, active, confirm_link, drain, heads, started, tell};
use crate::parts;

#[test]
fn a_link_that_is_not_confirmed_ends() {
    for (role, wait) in [(Role::Server, FLOW), (Role::Client, CONFIRM_CLIENT)] {
        let mut group = started(role, Family::V2);
        drain(&mut group);
        assert_eq!(group.poll_timeout(), Some(START + wait));
        group.handle_timeout(START + wait - Time::from_millis(1));
        assert_eq!(group.state(), State::Confirming);
        // Who wants an eyecatcher in the ring, or names another link, has not confirmed it.
        let Message::ConfirmLink(good) = confirm_link(role == Role::Server) else { panic!() };
        tell(&mut group, Family::V2, Message::ConfirmLink(ConfirmLink { no_eyecatcher: false, ..good }));
        tell(&mut group, Family::V2, Message::ConfirmLink(ConfirmLink { link: 0, ..good }));
        if role == Role::Server {
            tell(&mut group, Family::V2, Message::ConfirmLink(ConfirmLink { link: 7, ..good }));
        }
        group.handle_timeout(START + wait);
        assert_eq!(drain(&mut group), (vec![Event::ConfirmFailed], vec![]));
        assert_eq!((group.state(), group.poll_timeout()), (State::Gone, None));
    }
}

#[test]
fn a_silent_link_is_tested_and_one_miss_ends_it() {
    let mut group = active(Role::Client, Family::V2);
    group.handle_arrival(START + Time::from_secs(10), 0);
    assert_eq!(group.poll_timeout(), Some(START + Time::from_secs(40)));
    let at = START + Time::from_secs(40);
    group.handle_timeout(at);
    assert_eq!(heads(&drain(&mut group).1), [[0x27, 0x2c, 0, 0]]);
    group.handle_arrival(at + Time::from_secs(1), 0);
    group.handle_timeout(at + FLOW);
    assert_eq!(group.state(), State::Active, "anything that arrives is a sign of life");

    let at = at + Time::from_secs(31);
    group.handle_timeout(at);
    drain(&mut group);
    group.handle_timeout(at + FLOW);
    let over = Event::Terminated { by_peer: false, reason: LinkReason::LOST_PATH };
    assert_eq!(drain(&mut group), (vec![over], vec![]));
}

#[test]
fn delete_link_by_role() {
    let all = DeleteLink { response: false, all: true, orderly: true, link: 0, reason: LinkReason::PROGRAM };
    let over = Event::Terminated { by_peer: true, reason: LinkReason::PROGRAM };

    let mut client = active(Role::Client, Family::V1);
    tell(&mut client, Family::V1, Message::DeleteLink(all));
    assert_eq!(drain(&mut client), (vec![over], vec![]), "all links: no answer is expected");

    let mut client = active(Role::Client, Family::V1);
    let one = DeleteLink { all: false, link: 1, ..all };
    tell(&mut client, Family::V1, Message::DeleteLink(DeleteLink { link: 7, ..one }));
    let (events, frames) = drain(&mut client);
    assert_eq!((events, &frames[0][3..9]), (vec![], [0xa0, 7, 0, 0x10, 0, 0].as_slice()));
    tell(&mut client, Family::V1, Message::DeleteLink(one));
    let (events, frames) = drain(&mut client);
    assert_eq!((events, &frames[0][3..9]), (vec![over], [0xa0, 1, 0, 0, 0, 0].as_slice()));

    let mut server = active(Role::Server, Family::V1);
    tell(&mut server, Family::V1, Message::DeleteLink(all));
    let (events, frames) = drain(&mut server);
    assert_eq!((events, heads(&frames)), (vec![over], vec![[0x04, 0x2c, 0, 0x60]]));
    assert_eq!(server.state(), State::Gone);
}

#[test]
fn a_group_without_connections_ends_in_order_after_ten_minutes() {
    for (role, wait) in [(Role::Server, IDLE_SERVER), (Role::Client, IDLE_CLIENT)] {
        let mut group = Group::new(Config { test_link: None, ..parts::group_config(role, Family::V1) });
        group.start(START);
        tell(&mut group, Family::V1, confirm_link(role == Role::Server));
        drain(&mut group);
        group.connection_opened().unwrap();
        group.connection_opened().unwrap();
        group.connection_closed(START);
        assert_eq!(group.poll_timeout(), None);
        group.connection_closed(START);
        group.connection_opened().unwrap();
        assert_eq!(group.poll_timeout(), None, "a new connection keeps it");
        group.connection_closed(START);
        group.handle_timeout(START + wait);
        assert_eq!(group.connection_opened(), Err(GroupError::Unavailable));
        let (events, frames) = drain(&mut group);
        assert_eq!(heads(&frames), [[0x04, 0x2c, 0, 0x60]]);
        let reason = LinkReason::PROGRAM;
        assert_eq!(events, [Event::Terminated { by_peer: false, reason }]);
    }
}

#[test]
fn a_link_that_ends_before_it_is_confirmed_has_failed() {
    let mut group = started(Role::Client, Family::V2);
    group.handle_link_down(0);
    assert_eq!(drain(&mut group), (vec![Event::ConfirmFailed], vec![]));
    let mut group = started(Role::Server, Family::V2);
    group.terminate(LinkReason::PROTOCOL_VIOLATION);
    assert_eq!(drain(&mut group).0, [Event::ConfirmFailed]);
}

#[test]
fn a_group_that_is_terminated_says_so_out_of_order() {
    let mut group = active(Role::Client, Family::V1);
    group.connection_opened().unwrap();
    group.terminate(LinkReason::PROTOCOL_VIOLATION);
    assert_eq!(group.state(), State::Closing);
    let (events, frames) = drain(&mut group);
    assert_eq!(heads(&frames), [[0x04, 0x2c, 0, 0x40]]);
    let reason = LinkReason::PROTOCOL_VIOLATION;
    assert_eq!(events, [Event::Terminated { by_peer: false, reason }]);
}
