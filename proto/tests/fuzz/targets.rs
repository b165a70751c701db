//! What the fuzzers call with arbitrary bytes: every parser of CLC, LLC and CDC, and every machine that
//! acts on what they read; those of one host are in `host`. Used by the bounded run beside this file and by `fuzz/fuzz_targets`.
//!
//! Machines take several messages: each is one length byte and that many bytes ([`messages`]).

use smcr_proto::smc::Time;
use smcr_proto::smc::cdc::{self, Cdc};
use smcr_proto::smc::clc::Message as Clc;
use smcr_proto::smc::clc::assembler::Assembler;
use smcr_proto::smc::conn::Conn;
use smcr_proto::smc::handshake::Role;
use smcr_proto::smc::id::RmbeSize;
use smcr_proto::smc::immediate::Immediate;
use smcr_proto::smc::link::{Event, Group};
use smcr_proto::smc::llc::{Family, Message as Llc};

#[path = "host.rs"]
mod host;
#[path = "../smc/parts.rs"]
#[allow(dead_code)]
mod parts;

pub use host::{channel, control_page, link_record, ring, settings, way_back};

/// A target: its name (that of its corpus) and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

pub const ALL: &[Target] = &[
    ("clc", clc),
    ("clc_stream", clc_stream),
    ("llc", llc),
    ("cdc", cdc),
    ("handshake", handshake),
    ("group", group),
    ("connection", connection),
    ("channel", channel),
    ("way_back", way_back),
    ("control_page", control_page),
    ("settings", settings),
    ("link_record", link_record),
    ("ring", ring),
];

/// The messages of an input; the last may be cut.
pub fn messages(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = data.split_first()?;
        let (message, rest) = rest.split_at((*len as usize).min(rest.len()));
        data = rest;
        Some(message)
    })
}

/// What is read as a CLC message survives being emitted.
pub fn clc(data: &[u8]) {
    if let Ok(message) = Clc::parse(data) {
        // One that offers SMC-D alone is read, and answered with a Decline; we never send it.
        if matches!(&message, Clc::Proposal(p) if p.v1.is_none() && p.v2.is_none()) {
            return;
        }
        assert_eq!(Clc::parse(&message.emit()), Ok(message));
    }
}

/// A stream in any pieces gives the same messages, and takes nothing behind one.
pub fn clc_stream(data: &[u8]) {
    let mut whole = Assembler::new();
    let at_once = whole.handle_bytes(data);
    let mut pieces = Assembler::new();
    let mut taken = 0;
    let in_pieces = loop {
        let end = (taken + 1 + taken % 7).min(data.len());
        if pieces.message().is_some() || taken == data.len() {
            break Ok(taken);
        }
        match pieces.handle_bytes(&data[taken..end]) {
            Ok(n) => taken += n,
            Err(error) => break Err(error),
        }
    };
    assert_eq!(at_once, in_pieces);
    assert_eq!(whole.message(), pieces.message());
}

/// What is read as an LLC message survives being emitted.
pub fn llc(data: &[u8]) {
    if let Ok((family, message)) = Llc::parse(data) {
        // Keys beyond those that are kept cannot be emitted again.
        if !matches!(message, Llc::DeleteRkey(m) if m.more > 0) {
            assert_eq!(Llc::parse(&message.emit(family)), Ok((family, message)));
        }
    }
}

/// What is read as a CDC message survives being emitted, and its token can be had alone.
pub fn cdc(data: &[u8]) {
    if let Ok(message) = Cdc::parse(data) {
        assert_eq!(Cdc::parse(&message.emit()), Ok(message));
        assert_eq!(cdc::peek_token(data), Ok(message.token));
    }
}

/// Both ends of the CLC handshake come to an end, whatever they are told.
pub fn handshake(data: &[u8]) {
    let all: Vec<_> = messages(data).collect();
    parts::handshake_ends(all.into_iter());
}

/// A link group takes any messages by either link; the first byte says which end and version it is, and whether it has a
/// second device.
pub fn group(data: &[u8]) {
    let Some((what, data)) = data.split_first() else { return };
    let family = if what & 1 == 0 { Family::V1 } else { Family::V2 };
    let role = if what & 2 == 0 { Role::Client } else { Role::Server };
    let mut group = Group::new(parts::group_config(role, family));
    group.start(Time::ZERO);
    for (i, bytes) in messages(data).enumerate() {
        let now = Time::from_millis(100 * i as u64);
        let link = usize::from(what >> (4 + i % 4) & 1);
        let _ = group.handle_llc(now, link, bytes);
        if i % 32 == 31 {
            group.handle_link_down(link);
        }
        group.handle_timeout(now);
        if i % 8 == 7 {
            group.retry_link(now);
        }
        loop {
            let own = parts::second_link(1);
            match group.poll_event() {
                Some(Event::SecondLinkDue) if what & 4 != 0 => drop(group.offer_link(now, &own)),
                Some(Event::LinkOffered(_)) if what & 4 != 0 => drop(group.accept_link(now, &own)),
                Some(Event::SecondLinkDue) => group.forgo_link(),
                Some(Event::LinkOffered(_)) => group.reject_link(),
                Some(Event::LinkDown { link, to }) => assert!(group.is_active(to) && !group.is_active(link)),
                Some(_) => {}
                None => match group.poll_transmit() {
                    Some((link, _)) => assert!(group.number(link) != 0 || link == 0),
                    None => break,
                },
            }
        }
    }
}

/// A connection stays within both rings, whatever CDC messages claim.
pub fn connection(data: &[u8]) {
    let size = RmbeSize::MIN;
    let own = parts::endpoint(1, 1, size);
    let mut conn = Conn::new(own.token, size);
    let Ok(()) = conn.activate(&parts::endpoint(2, 9, size)) else { unreachable!("a fresh connection") };
    // Towards a libsmcr other rules hold; the first byte says what the peer is.
    conn.set_libsmcr(data.first().is_some_and(|b| b % 2 == 1));
    for bytes in messages(data) {
        if let Ok(message) = Cdc::parse(bytes) {
            let _ = conn.handle_cdc(&message);
        } else if let Some((head, [a, b, ..])) = bytes.split_first_chunk::<4>() {
            // A write that announces itself: its bits, and a length.
            let immediate = Immediate::parse(u32::from_be_bytes(*head));
            let _ = conn.handle_immediate(u32::from(*a) << 8 | u32::from(*b), immediate);
        }
        let work = bytes.iter().fold(0u32, |n, b| n.wrapping_mul(31).wrapping_add(u32::from(*b)));
        if let Ok(segments) = conn.write(work % 20_000, work % 7 == 0) {
            assert!(segments.iter().all(|s| s.offset + s.len <= size.bytes()));
        }
        if work % 3 > 0 || conn.poll_immediate(work % 20_000).is_none() {
            conn.poll_cdc();
        }
        let (received, read) = conn.received_bytes();
        let (sent, acknowledged) = conn.sent_bytes();
        let ring = u64::from(size.bytes());
        assert!(received - read <= ring && sent - acknowledged <= ring);
        assert!(conn.readable() <= size.bytes() && conn.writable() <= size.bytes());
        conn.consume(work % 9000);
    }
}
