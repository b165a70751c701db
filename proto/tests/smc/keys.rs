//! Which link group a connection may join, at each end.

use smcr_proto::smc::clc::accept::{AcceptConfirm, Form};
use smcr_proto::smc::clc::proposal::Release;
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::handshake::Role;
use smcr_proto::smc::id::{Gid, Mac, PeerId, Qpn, RmbeSize};
use smcr_proto::smc::link::key::{GroupKey, find};
use smcr_proto::smc::llc::Family;

use crate::parts::{self, CLIENT, SERVER, eid, proposal};

fn key(role: Role, family: Family) -> GroupKey {
    let peer = if role == Role::Server { CLIENT } else { SERVER };
    let end = parts::endpoint(peer, 1, RmbeSize::MIN);
    GroupKey { role, family, peer_id: end.peer_id, gid: end.gid, mac: end.mac, qpn: end.qpn }
}

#[test]
fn a_server_reuses_the_group_of_the_same_peer_and_port() {
    let v1 = key(Role::Server, Family::V1);
    let offer = proposal(true, None);
    assert!(v1.serves(Family::V1, &offer));
    assert!(!v1.serves(Family::V2, &offer));
    assert!(!GroupKey { role: Role::Client, ..v1 }.serves(Family::V1, &offer));
    assert!(!GroupKey { peer_id: PeerId([9; 8]), ..v1 }.serves(Family::V1, &offer));
    assert!(!GroupKey { gid: Gid([9; 16]), ..v1 }.serves(Family::V1, &offer));
    assert!(!GroupKey { mac: Mac([9; 6]), ..v1 }.serves(Family::V1, &offer));
    assert!(GroupKey { qpn: Qpn::truncate(9), ..v1 }.serves(Family::V1, &offer), "the client checks it");
}

#[test]
fn in_version_2_the_mac_does_not_count_and_an_unnamed_client_is_known_by_its_gid() {
    let v2 = key(Role::Server, Family::V2);
    let mut offer = proposal(false, Some(Release::V20));
    offer.gid = Gid([9; 16]);
    assert!(GroupKey { mac: Mac([9; 6]), ..v2 }.serves(Family::V2, &offer));
    assert!(!GroupKey { peer_id: PeerId([9; 8]), ..v2 }.serves(Family::V2, &offer));
    offer.peer_id = PeerId::default();
    assert!(GroupKey { peer_id: PeerId([9; 8]), ..v2 }.serves(Family::V2, &offer));
    assert!(!GroupKey { gid: Gid([9; 16]), ..v2 }.serves(Family::V2, &offer));
}

#[test]
fn a_client_finds_the_link_that_the_server_named_or_says_what_is_unknown() {
    let endpoint = parts::endpoint(SERVER, 5, RmbeSize::MIN);
    let v1 = AcceptConfirm { endpoint, form: Form::V1 { first_contact: false } };
    let v2 = AcceptConfirm { endpoint, form: Form::V2 { eid: eid(), first_contact: None } };
    let group = key(Role::Client, Family::V1);
    let other_link = GroupKey { qpn: Qpn::truncate(9), ..group };
    let other_port = GroupKey { mac: Mac([9; 6]), ..group };
    let stranger = GroupKey { peer_id: PeerId([9; 8]), ..group };
    let serving = GroupKey { role: Role::Server, ..group };
    assert_eq!(find(&[stranger, serving, other_link, group], &v1), Ok(3));
    let unknown_link = Err((Diagnosis::NO_SUCH_LINK, false));
    assert_eq!(find(&[other_link], &v1), unknown_link);
    assert_eq!(find(&[other_port], &v1), unknown_link);
    assert_eq!(find(&[GroupKey { gid: Gid([9; 16]), ..group }], &v1), unknown_link);
    let out_of_sync = Err((Diagnosis::OUT_OF_SYNC, true));
    assert_eq!(find(&[stranger, serving], &v1), out_of_sync);
    assert_eq!(find(&[group], &v2), out_of_sync, "another version is another group");
    assert_eq!(find(&[GroupKey { family: Family::V2, ..other_port }], &v2), Ok(0));
}
