//! What holds for any input: messages survive emit and parse, no input panics, cursors agree with
//! plain numbers.

use proptest::collection::vec;
use proptest::prelude::*;

use smcr_proto::smc::Time;
use smcr_proto::smc::cdc::{self, Cdc, ConnFlags, ProducerFlags};
use smcr_proto::smc::clc::accept::{AcceptConfirm, Endpoint, FirstContact, Form};
use smcr_proto::smc::clc::assembler::Assembler;
use smcr_proto::smc::clc::decline::{Decline, DeclineV2};
use smcr_proto::smc::clc::proposal::{Limits, OfferV2, Prefixes, Proposal, Release};
use smcr_proto::smc::clc::{Kind, Message as Clc};
use smcr_proto::smc::conn::Conn;
use smcr_proto::smc::cursor::{Cursor, Step, segments};
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::id::*;
use smcr_proto::smc::list::List;
use smcr_proto::smc::llc::{self, Family, Message as Llc};

use crate::links::active;
use crate::parts;
use crate::vectors::{self, What};

fn gid() -> impl Strategy<Value = Gid> + Clone {
    any::<[u8; 16]>().prop_map(Gid)
}

fn release() -> impl Strategy<Value = Release> + Clone {
    prop_oneof![
        Just(Release::V20),
        any::<(u8, u8, u16)>().prop_map(|(max_conns, max_links, features)| { Release::V21(Limits { max_conns, max_links, features }) }),
    ]
}

fn proposal() -> impl Strategy<Value = Proposal> {
    let v1 = (any::<([u8; 4], u8)>(), vec(any::<([u8; 16], u8)>(), 0..9)).prop_map(|(v4, v6)| Prefixes { v4, v6: List::of(&v6) });
    let v2 = (gid(), release(), vec(any::<[u8; 32]>().prop_map(Eid), 0..9)).prop_map(|(gid, release, eids)| OfferV2 {
        gid,
        release,
        eids: List::of(&eids),
    });
    let offers = prop_oneof![
        v1.clone().prop_map(|v1| (Some(v1), None)),
        v2.clone().prop_map(|v2| (None, Some(v2))),
        (v1, v2).prop_map(|(v1, v2)| (Some(v1), Some(v2))),
    ];
    (any::<([u8; 8], [u8; 6])>(), gid(), offers).prop_map(|((id, mac), gid, (v1, v2))| Proposal { peer_id: PeerId(id), gid, mac: Mac(mac), v1, v2 })
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    let ids = (any::<([u8; 8], [u8; 6])>(), gid(), any::<(u32, u32, u32)>());
    let ring = (0u64..u64::MAX >> 1, 1u8.., 1u32.., 0u8..=5, 1u8..=5);
    (ids, ring).prop_map(|(((id, mac), gid, (qpn, psn, rkey)), (address, index, token, size, mtu))| Endpoint {
        peer_id: PeerId(id),
        gid,
        mac: Mac(mac),
        qpn: Qpn::truncate(qpn),
        psn: Psn::truncate(psn),
        mtu: Mtu::from_code(mtu).unwrap(),
        rkey: Rkey(rkey),
        rmb_address: address,
        index: RmbeIndex::new(index).unwrap(),
        token: Token::new(token).unwrap(),
        size: RmbeSize::from_code(size).unwrap(),
    })
}

fn confirm() -> impl Strategy<Value = AcceptConfirm> {
    let first = (any::<(bool, [u8; 32])>(), 0u8..16, release(), vec(gid(), 0..9)).prop_map(|((direct, hostname), os, release, gids)| FirstContact {
        direct,
        os,
        release,
        hostname,
        gids: List::of(&gids),
    });
    let form = prop_oneof![
        any::<bool>().prop_map(|first_contact| Form::V1 { first_contact }),
        (any::<[u8; 32]>().prop_map(Eid), proptest::option::of(first)).prop_map(|(eid, first_contact)| Form::V2 { eid, first_contact }),
    ];
    (endpoint(), form).prop_map(|(endpoint, form)| AcceptConfirm { endpoint, form })
}

/// A captured message with some bytes changed, and perhaps cut or lengthened.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let captured: Vec<Vec<u8>> = vectors::kernel_smcr()
        .into_iter()
        .filter_map(|line| match line.what {
            What::Clc(bytes) | What::Llc(bytes) | What::Cdc(bytes) => Some(bytes),
            _ => None,
        })
        .collect();
    let edits = vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (prop::sample::select(captured), edits, -4isize..20).prop_map(|(mut bytes, edits, more)| {
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.resize(bytes.len().saturating_add_signed(more), 0xe2);
        bytes
    })
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..200), mutated()]
}

/// Feeds every parser; what is read has to survive being emitted.
fn feed_parsers(data: &[u8]) {
    if let Ok(message) = Clc::parse(data) {
        assert_eq!(Clc::parse(&message.emit()), Ok(message));
    }
    if let Ok((family, message)) = Llc::parse(data) {
        // Keys beyond those that are kept cannot be emitted again.
        if !matches!(message, Llc::DeleteRkey(m) if m.more > 0) {
            assert_eq!(Llc::parse(&message.emit(family)), Ok((family, message)));
        }
    }
    if let Ok(message) = Cdc::parse(data) {
        assert_eq!(Cdc::parse(&message.emit()), Ok(message));
        assert_eq!(cdc::peek_token(data), Ok(message.token));
    }
    let mut assembler = Assembler::new();
    if let Ok(taken) = assembler.handle_bytes(data) {
        assert!(taken == data.len() || assembler.message().is_some());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_proposal_survives(p in proposal()) {
        let message = Clc::Proposal(p);
        prop_assert_eq!(Clc::parse(&message.emit()), Ok(message));
    }

    #[test]
    fn a_confirm_survives(c in confirm()) {
        let message = Clc::Confirm(c);
        prop_assert_eq!(Clc::parse(&message.emit()), Ok(message));
        prop_assert_eq!(Clc::Confirm(c).emit()[4], Kind::Confirm as u8);
    }

    #[test]
    fn a_decline_survives(
        id: [u8; 8], code: u32, out_of_sync: bool, v2 in proptest::option::of((0u8..16, any::<[u32; 4]>())),
    ) {
        let v2 = v2.map(|(os, extra)| DeclineV2 { os, extra });
        let decline = Decline { peer_id: PeerId(id), diagnosis: Diagnosis(code), out_of_sync, v2 };
        prop_assert_eq!(Clc::parse(&decline.emit()), Ok(Clc::Decline(decline)));
    }

    #[test]
    fn a_cdc_message_survives(
        sequence: u16, token in 1u32.., cursors: [(u16, u32); 2], producer: u8, conn: u8,
    ) {
        let [p, c] = cursors.map(|(wrap, count)| Cursor { wrap, count });
        let message = Cdc {
            sequence,
            token: Token::new(token).unwrap(),
            producer: p,
            consumer: c,
            producer_flags: ProducerFlags::from_bits_truncate(producer),
            conn_flags: ConnFlags::from_bits_truncate(conn),
        };
        prop_assert_eq!(Cdc::parse(&message.emit()), Ok(message));
    }

    #[test]
    fn any_llc_content_survives(kind in 0u8..16, two: bool, mut body in vec(any::<u8>(), 44..=120)) {
        let family = if two { Family::V2 } else { Family::V1 };
        body[0] = kind | if two { 0x20 } else { 0 };
        body[1] = llc::LEN as u8;
        body[2] &= if two { 0 } else { 0x0f };
        feed_parsers(&body);
        if let Ok((read, _)) = Llc::parse(&body) {
            prop_assert_eq!(read, family);
        }
    }

    #[test]
    fn no_bytes_make_a_parser_panic(data in any_bytes()) {
        feed_parsers(&data);
    }

    #[test]
    fn no_bytes_make_a_handshake_panic_or_hang(data in any_bytes(), more in any_bytes()) {
        parts::handshake_ends([&data[..], &more[..]].into_iter());
    }

    #[test]
    fn no_bytes_make_a_link_group_panic(messages in vec(any_bytes(), 0..20), two: bool) {
        let family = if two { Family::V2 } else { Family::V1 };
        for role in [smcr_proto::smc::handshake::Role::Client, smcr_proto::smc::handshake::Role::Server] {
            let mut group = active(role, family);
            for (i, bytes) in messages.iter().enumerate() {
                let _ = group.handle_llc(Time::from_secs(i as u64), 0, bytes);
                while group.poll_event().is_some() || group.poll_transmit().is_some() {}
            }
        }
    }

    /// Whatever a peer claims, a connection stays within both rings.
    #[test]
    fn no_message_moves_a_connection_outside_its_rings(
        messages in vec((any::<u16>(), any::<[(u16, u32); 2]>(), any::<(u8, u8)>(), 0u32..40_000), 0..40),
    ) {
        let own = parts::endpoint(1, 1, RmbeSize::MIN);
        let mut conn = Conn::new(own.token, own.size);
        conn.activate(&parts::endpoint(2, 9, RmbeSize::MIN)).unwrap();
        for (jump, cursors, (producer, state), work) in messages {
            // Mostly small steps, or every message would be refused.
            let [p, c] = cursors.map(|(wrap, count)| Cursor { wrap: wrap % 3, count: count % 20_000 });
            let _ = conn.handle_cdc(&Cdc {
                sequence: jump % 100,
                token: own.token,
                producer: p,
                consumer: c,
                producer_flags: ProducerFlags::from_bits_truncate(producer & 0xf0),
                conn_flags: ConnFlags::from_bits_truncate(state & state << 1 & state << 2),
            });
            if let Ok(segments) = conn.write(work, work % 7 == 0) {
                prop_assert!(segments.iter().all(|s| s.offset + s.len <= 16 << 10));
            }
            conn.poll_cdc();
            let (received, read) = conn.received_bytes();
            let (sent, acknowledged) = conn.sent_bytes();
            prop_assert!(received - read <= 16 << 10 && sent - acknowledged <= 16 << 10);
            prop_assert!(conn.readable() <= 16 << 10 && conn.writable() <= 16 << 10);
            conn.consume(work);
        }
    }

    #[test]
    fn cursors_agree_with_positions(code in 0u8..=5, position in 0u64..1 << 40, step: u32, limit: u32) {
        let size = RmbeSize::from_code(code).unwrap().bytes();
        let (step, limit) = (step % (size + 1), limit % (size + 1));
        let from = Cursor::at(position, size);
        let to = Cursor::at(position + step as u64, size);
        prop_assert_eq!(from.add(step, size), to);
        prop_assert_eq!(from.distance(to, size), step as u64);
        prop_assert_eq!(to.space(from, size), size - step);
        match from.step(to, limit, size) {
            Ok(moved) => prop_assert!(step <= limit && moved == Step::Forward(step)),
            Err(_) => prop_assert!(step > limit),
        }
        let back = to.step(from, size, size);
        prop_assert_eq!(back, Ok(if step == 0 { Step::Forward(0) } else { Step::Stale }));
    }

    #[test]
    fn segments_cover_the_run(code in 0u8..=5, position in 0u64..1 << 40, len: u32) {
        let size = RmbeSize::from_code(code).unwrap().bytes();
        let len = len % (size + 1);
        let run = segments(position, len, size);
        let mut at = position;
        for segment in run.iter() {
            prop_assert!(segment.len > 0 && segment.offset + segment.len <= size);
            prop_assert_eq!(segment.offset as u64, at % size as u64);
            at += segment.len as u64;
        }
        prop_assert_eq!(at, position + len as u64);
    }
}
