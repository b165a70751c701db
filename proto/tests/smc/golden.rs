//! Every message that two Linux kernels exchanged is read, and emitted again byte by byte.

use smcr_proto::smc::cdc::{Cdc, ConnFlags, ProducerFlags};
use smcr_proto::smc::clc::Message as Clc;
use smcr_proto::smc::clc::accept::{AcceptConfirm, Form};
use smcr_proto::smc::clc::proposal::{Limits, Release};
use smcr_proto::smc::cursor::Cursor;
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::id::{Eid, Gid, Mac, Mtu, PeerId};
use smcr_proto::smc::llc::{AddKind, Family, LinkReason, Message as Llc};

use crate::vectors::{self, What};

#[test]
fn every_captured_message_is_emitted_as_it_was_read() {
    let mut counts = [0; 3];
    let captures = [vectors::kernel_smcr(), vectors::client_declines(), vectors::plain_server(), vectors::smcr_then_plain_client()];
    for line in captures.iter().flatten() {
        match &line.what {
            What::Clc(bytes) => {
                let message = Clc::parse(bytes).expect("a kernel's CLC message");
                assert_eq!(*message.emit(), bytes[..], "{message:?}");
                counts[0] += 1;
            }
            What::Llc(bytes) => {
                let (family, message) = Llc::parse(bytes).expect("a kernel's LLC message");
                assert_eq!(family, Family::V2);
                assert_eq!(*message.emit(family), bytes[..], "{message:?}");
                counts[1] += 1;
            }
            What::Cdc(bytes) => {
                let message = Cdc::parse(bytes).expect("a kernel's CDC message");
                assert_eq!(message.emit()[..], bytes[..], "{message:?}");
                counts[2] += 1;
            }
            What::Write(..) | What::Other => {}
        }
    }
    assert_eq!(counts, [7, 18, 64], "messages of each kind in the captures");
}

#[test]
fn the_proposal_of_linux_6_12() {
    let capture = vectors::kernel_smcr();
    let Ok(Clc::Proposal(proposal)) = Clc::parse(vectors::clc(&capture)[0]) else { panic!() };
    assert_eq!(proposal.peer_id, PeerId::default(), "version 2 only: the client is not named");
    assert_eq!(proposal.v1, None);
    let offer = proposal.v2.unwrap();
    assert_eq!(offer.gid, Gid::from_ipv4([10, 77, 0, 2]));
    assert_eq!(*offer.eids, [Eid::new("SMCR-LAB2").unwrap()]);
    let limits = Limits { max_conns: 255, max_links: 2, features: 1 };
    assert_eq!(offer.release, Release::V21(limits));
}

#[test]
fn accept_and_confirm_of_first_contact_and_of_reuse() {
    let capture = vectors::kernel_smcr();
    let messages = vectors::clc(&capture);
    let Ok(Clc::Accept(accept)) = Clc::parse(messages[1]) else { panic!() };
    let end = accept.endpoint;
    assert_eq!(end.gid, Gid::from_ipv4([10, 77, 0, 1]));
    assert_eq!(end.mac, Mac([0x52, 0x54, 0, 0x77, 0, 1]));
    assert_eq!((end.qpn.value(), end.psn.value()), (0x11, 0xce_d419));
    assert_eq!((end.rkey.0, end.rmb_address), (0x3b1, 0xff3d_f2ae_45c2_0000));
    assert_eq!((end.index.value(), end.token.value()), (1, 1));
    assert_eq!((end.size.bytes(), end.mtu), (64 << 10, Mtu::B1024));
    let first = first_contact(&accept);
    assert!(first.direct && first.gids.is_empty());
    assert_eq!((first.os, &first.hostname[..5]), (2, b"labA ".as_slice()));

    let Ok(Clc::Confirm(confirm)) = Clc::parse(messages[2]) else { panic!() };
    assert_eq!(*first_contact(&confirm).gids, [Gid::from_ipv4([10, 77, 0, 2])]);

    let Ok(Clc::Accept(again)) = Clc::parse(messages[4]) else { panic!() };
    assert!(!again.first_contact());
    assert_eq!((again.endpoint.qpn, again.endpoint.token.value()), (end.qpn, 2));
}

fn first_contact(message: &AcceptConfirm) -> smcr_proto::smc::clc::accept::FirstContact {
    match message.form {
        Form::V2 { first_contact: Some(first), .. } => first,
        _ => panic!("no first contact in {message:?}"),
    }
}

#[test]
fn the_decline_of_a_client_without_a_device() {
    let capture = vectors::client_declines();
    let messages = vectors::clc(&capture);
    let Ok(Clc::Decline(decline)) = Clc::parse(messages[0]) else { panic!() };
    assert_eq!((decline.diagnosis, decline.out_of_sync), (Diagnosis::NO_DEVICE, false));
    assert_eq!(decline.v2, None);
    assert_eq!(messages.len(), 1);
    assert!(vectors::clc(&vectors::plain_server()).is_empty(), "no option, no CLC");
}

#[test]
fn the_messages_of_a_link() {
    let llc: Vec<_> = vectors::kernel_smcr()
        .into_iter()
        .filter_map(|line| match line.what {
            What::Llc(bytes) => Some(Llc::parse(&bytes).unwrap().1),
            _ => None,
        })
        .collect();
    let [Llc::ConfirmLink(request), Llc::ConfirmLink(response), Llc::AddLink(add), ..] = llc[..] else {
        panic!("{:?}", &llc[..3]);
    };
    assert!(!request.response && response.response);
    assert!(request.no_eyecatcher && response.no_eyecatcher);
    assert_eq!((request.link, request.link_uid, request.max_links), (1, 0x101, 2));
    assert_eq!((add.kind, add.link, add.mtu_code, add.psn.value()), (AddKind::Request, 2, 3, 0xfc_4e95));
    let ext = add.ext.unwrap();
    assert_eq!((ext.rkeys[0].known.0, ext.rkeys[0].new.0), (0x3b1, 0x5b6));
    let Llc::AddLink(reject) = llc[3] else { panic!() };
    assert_eq!(reject.kind, AddKind::Reject(0));
}

#[test]
fn the_end_of_a_link_group() {
    let capture = vectors::smcr_then_plain_client();
    let mut deletes = capture.iter().filter_map(|line| match &line.what {
        What::Llc(bytes) => Some(Llc::parse(bytes).unwrap().1),
        _ => None,
    });
    let (Some(Llc::DeleteLink(asked)), Some(Llc::DeleteLink(told))) = (deletes.next(), deletes.next()) else {
        panic!();
    };
    assert_eq!((asked.all, asked.orderly, asked.reason), (true, false, LinkReason::OPERATOR));
    assert_eq!((told.all, told.orderly, told.response), (true, true, false));
}

#[test]
fn a_cursor_that_passed_the_ring_and_a_close() {
    let cdc: Vec<Cdc> = vectors::kernel_smcr()
        .into_iter()
        .filter_map(|line| match line.what {
            What::Cdc(bytes) => Some(Cdc::parse(&bytes).unwrap()),
            _ => None,
        })
        .collect();
    let wrapped = cdc.iter().find(|c| c.producer.wrap == 1).unwrap();
    assert_eq!(wrapped.producer, Cursor { wrap: 1, count: 0xc20 });
    assert_eq!((wrapped.sequence, wrapped.consumer), (11, Cursor { wrap: 0, count: 0xec20 }));
    assert!(cdc.iter().all(|c| c.producer_flags == ProducerFlags::empty()));
    assert_eq!(cdc.iter().filter(|c| c.conn_flags == ConnFlags::CLOSED).count(), 4);
}
