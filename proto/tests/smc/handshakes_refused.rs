//! Accepts and Confirms that a handshake refuses, and the code with which it does.

use smcr_proto::smc::clc::Message;
use smcr_proto::smc::clc::accept::Form;
use smcr_proto::smc::clc::proposal::{Limits, Release};
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::handshake::client::Event as ClientEvent;
use smcr_proto::smc::handshake::server::Event as ServerEvent;
use smcr_proto::smc::handshake::{Outcome, Params};
use smcr_proto::smc::id::RmbeSize;

use crate::handshakes::{START, client, declined, server, until_confirm};
use crate::parts::{self, CLIENT, SERVER, limits, offer};

#[test]
fn values_that_are_refused_are_declined_with_their_code() {
    let refusals = [
        (45, 0, Diagnosis::RTOKEN),
        (50, 0x63, Diagnosis::RTOKEN),
        (50, 0x00, Diagnosis::LINK_READY),
        (49, 0, Diagnosis::INTERNAL),
        (7, 0x19, Diagnosis::MODE_MISMATCH),
    ];
    for (at, value, code) in refusals {
        let (mut client, mut server) = (client(true, None), server(Ok(offer(true, None))));
        let (mut accept, mut confirm) = until_confirm(&mut client, &mut server);
        accept[at] = value;
        let mut victim = crate::handshakes::client(true, None);
        victim.poll_transmit();
        victim.handle_bytes(&accept);
        assert_eq!(declined(victim.poll_transmit()), (code, false), "Accept byte {at}");
        confirm[at] = value;
        server.handle_bytes(&confirm);
        assert_eq!(declined(server.poll_transmit()), (code, false), "Confirm byte {at}");
        assert!(matches!(server.outcome(), Some(Outcome::Fallback(_))));
    }
}

#[test]
fn an_accept_outside_the_offer_is_declined() {
    let v21 = Release::V21(limits(2));
    let answer = |ours: (bool, Option<Release>), change: &dyn Fn(&mut Form)| {
        let mut client = client(true, Some(v21));
        let (accept, _) = until_confirm(&mut client, &mut server(Ok(offer(true, Some(limits(2))))));
        let Ok(Message::Accept(mut accept)) = Message::parse(&accept) else { panic!() };
        change(&mut accept.form);
        let mut victim = crate::handshakes::client(ours.0, ours.1);
        victim.poll_transmit();
        victim.handle_bytes(&Message::Accept(accept).emit());
        victim.poll_transmit().map(|frame| declined(Some(frame)).0)
    };
    let release = |release: Release| {
        move |form: &mut Form| {
            let Form::V2 { first_contact: Some(first), .. } = form else { panic!() };
            first.release = release;
        }
    };
    assert_eq!(answer((true, Some(v21)), &|_| ()), None, "as it is, it fits");
    assert_eq!(answer((true, None), &|_| ()), Some(Diagnosis::MODE_MISMATCH));
    let v1 = |form: &mut Form| *form = Form::V1 { first_contact: true };
    assert_eq!(answer((false, Some(v21)), &v1), Some(Diagnosis::MODE_MISMATCH));
    assert_eq!(answer((true, Some(Release::V20)), &|_| ()), Some(Diagnosis::RELEASE));
    let links = release(Release::V21(limits(3)));
    assert_eq!(answer((true, Some(v21)), &links), Some(Diagnosis::MAX_LINKS));
    let conns = release(Release::V21(Limits { max_conns: 8, ..limits(1) }));
    assert_eq!(answer((true, Some(v21)), &conns), Some(Diagnosis::MAX_CONNECTIONS));
    let eid = |form: &mut Form| {
        let Form::V2 { eid, .. } = form else { panic!() };
        eid.0[0] = b'X';
    };
    assert_eq!(answer((true, Some(v21)), &eid), Some(Diagnosis::NO_UEID));
}

#[test]
fn a_confirm_that_does_not_fit_the_accept_is_declined() {
    let answer = |change: &dyn Fn(&mut Form)| {
        let (mut client, mut server) = (client(true, Some(Release::V21(limits(2)))), server(Ok(offer(true, Some(limits(2))))));
        let (_, confirm) = until_confirm(&mut client, &mut server);
        let Ok(Message::Confirm(mut confirm)) = Message::parse(&confirm) else { panic!() };
        change(&mut confirm.form);
        server.handle_bytes(&Message::Confirm(confirm).emit());
        server.poll_transmit().map(|frame| declined(Some(frame)))
    };
    let links = |form: &mut Form| {
        let Form::V2 { first_contact: Some(first), .. } = form else { panic!() };
        first.release = Release::V21(limits(1));
    };
    let old = |form: &mut Form| {
        let Form::V2 { first_contact, .. } = form else { panic!() };
        *first_contact = None;
    };
    let v1 = |form: &mut Form| *form = Form::V1 { first_contact: true };
    assert_eq!(answer(&|_| ()), None);
    assert_eq!(answer(&links), Some((Diagnosis::MAX_LINKS, false)));
    assert_eq!(answer(&old), Some((Diagnosis::OUT_OF_SYNC, true)), "it means another group");
    assert_eq!(answer(&v1), Some((Diagnosis::VERSION_MISMATCH, false)));
}

/// What both ends have agreed on where the server's Accept and the client's Confirm name these features, and what the Confirm says by itself.
fn agreed(offered: u16, granted: u16, accept_names: u16, confirm_names: Option<u16>) -> (u16, u16, u16) {
    let with = |features: u16| Limits { features, ..limits(2) };
    let set = |form: &mut Form, features: u16| {
        let Form::V2 { first_contact: Some(first), .. } = form else { panic!() };
        first.release = Release::V21(with(features));
    };
    let mut client = client(true, Some(Release::V21(with(offered))));
    let mut server = server(Ok(offer(true, Some(with(granted)))));
    server.handle_bytes(&client.poll_transmit().unwrap());
    server.poll_event().unwrap();
    server.accept(START, parts::endpoint(SERVER, 1, RmbeSize::MIN), true, true);
    let Ok(Message::Accept(mut accept)) = Message::parse(&server.poll_transmit().unwrap()) else { panic!() };
    set(&mut accept.form, accept_names);
    client.handle_bytes(&Message::Accept(accept).emit());
    client.poll_event().unwrap();
    client.confirm(parts::endpoint(CLIENT, 1, RmbeSize::MIN), true);
    let Some(ClientEvent::BringUpLink(at_client)) = client.poll_event() else { panic!() };
    let Ok(Message::Confirm(mut confirm)) = Message::parse(&client.poll_transmit().unwrap()) else { panic!() };
    let said = confirm.release().unwrap().features();
    set(&mut confirm.form, confirm_names.unwrap_or(said));
    server.handle_bytes(&Message::Confirm(confirm).emit());
    let Some(ServerEvent::BringUpLink(at_server)) = server.poll_event() else { panic!() };
    let of = |params: Params| params.version.limits().unwrap().features;
    (of(at_client), said, of(at_server))
}

#[test]
fn a_feature_is_agreed_on_where_both_ends_have_named_it() {
    const A: u16 = 0x4000;
    const B: u16 = 0x8000;
    assert_eq!(agreed(A, A, A, None), (A, A, A));
    assert_eq!(agreed(A | B, A, A, None), (A, A, A));
    assert_eq!(agreed(0, A, 0, None), (0, 0, 0), "a client that knows none");
    assert_eq!(agreed(A, 0, 0, None), (0, 0, 0), "a server that knows none");
    assert_eq!(agreed(0, 0, A, None), (0, 0, 0), "an Accept that names what was not offered");
    assert_eq!(agreed(A, A, A | B, None), (A, A, A));
    assert_eq!(agreed(A, 0, 0, Some(A)).2, 0, "a Confirm that names what was not accepted");
    assert_eq!(agreed(A, A, A, Some(0)).2, 0, "a Confirm that takes it back");
}
