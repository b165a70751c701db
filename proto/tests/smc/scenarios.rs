//! Two ends on one link: streams, closing, urgent data, the end of the link, a hostile peer.

use smcr_proto::smc::Time;
use smcr_proto::smc::cdc::{Cdc, ConnFlags, ProducerFlags};
use smcr_proto::smc::conn::{ConnError, State, Violation, WriteError};
use smcr_proto::smc::cursor::{Cursor, CursorError};
use smcr_proto::smc::id::{RmbeSize, Token};
use smcr_proto::smc::link::Event;
use smcr_proto::smc::llc::LinkReason;

use crate::pair::{CLIENT, Pair, SERVER};

/// A stream of so many bytes from an end of a connection to the other.
pub struct Stream {
    from: usize,
    place: usize,
    len: usize,
    sent: usize,
    received: usize,
}

impl Stream {
    pub fn new(from: usize, place: usize, len: usize) -> Stream {
        Stream { from, place, len, sent: 0, received: 0 }
    }

    /// No two streams, and no two rings of one, look alike.
    fn byte(&self, at: usize) -> u8 {
        let salt = self.from * 31 + self.place * 7;
        (at * 167 + (at >> 8) * 13 + (at >> 16) * 5 + salt) as u8
    }

    fn write_some(&mut self, pair: &mut Pair) -> bool {
        let part = (1 + pair.random(9000)).min(self.len - self.sent);
        let bytes: Vec<u8> = (self.sent..self.sent + part).map(|at| self.byte(at)).collect();
        let written = pair.write(self.from, self.place, &bytes);
        self.sent += written;
        written > 0
    }

    fn read_some(&mut self, pair: &mut Pair) -> bool {
        let max = 1 + pair.random(7000);
        let bytes = pair.read(1 - self.from, self.place, max);
        for byte in &bytes {
            assert_eq!(*byte, self.byte(self.received), "byte {} of a stream", self.received);
            self.received += 1;
        }
        !bytes.is_empty()
    }
}

/// Runs streams beside each other in an order of the seed's until so many bytes have been received, or all; panics if
/// nothing moves any more.
pub fn transfer(pair: &mut Pair, streams: &mut [Stream], up_to: usize) {
    while streams.iter().any(|s| s.received < s.len) && streams.iter().map(|s| s.received).sum::<usize>() < up_to {
        let stream = &mut streams[pair.random(streams.len())];
        let _ = match pair.random(4) {
            0 if stream.sent < stream.len => stream.write_some(pair),
            1 => stream.read_some(pair),
            _ => pair.step(),
        };
        if pair.random(50) == 0 {
            pair.run();
            let moved = streams.iter_mut().any(|s| s.read_some(pair) || s.sent < s.len && s.write_some(pair));
            assert!(moved || pair.step() || streams.iter().all(|s| s.received == s.len), "all stand still");
        }
    }
}

#[test]
fn the_first_connection_makes_a_link_and_the_next_ones_use_it() {
    let mut pair = Pair::new(1);
    let first = pair.connect();
    assert_eq!(pair.write(CLIENT, first, b"hello"), 5);
    pair.run();
    assert_eq!(pair.read(SERVER, first, 100), b"hello");
    for _ in 0..3 {
        let next = pair.connect();
        assert!(!params(&mut pair, next).first_contact);
        pair.write(SERVER, next, b"welcome back");
        pair.run();
        assert_eq!(pair.read(CLIENT, next, 100), b"welcome back");
    }
    assert!(params(&mut pair, first).first_contact);
}

fn params(pair: &mut Pair, place: usize) -> smcr_proto::smc::handshake::Params {
    match pair.slot(CLIENT, place).outcome {
        Some(smcr_proto::smc::handshake::Outcome::Smc(params)) => params,
        other => panic!("{other:?}"),
    }
}

#[test]
fn streams_arrive_whole_under_any_order_of_events() {
    for seed in 0..12 {
        let mut pair = Pair::new(seed);
        let sizes = [RmbeSize::MIN, RmbeSize::at_least(64 << 10)];
        let small = pair.connect();
        let mixed = pair.begin(sizes[0], sizes[1]);
        pair.run();
        let mut streams = [
            Stream::new(CLIENT, small, 150_000),
            Stream::new(SERVER, small, 90_000),
            Stream::new(CLIENT, mixed, 200_000),
            Stream::new(SERVER, mixed, 120_000),
        ];
        transfer(&mut pair, &mut streams, usize::MAX);
    }
}

#[test]
fn a_full_ring_stops_the_writer_and_a_read_wakes_it() {
    let mut pair = Pair::new(3);
    let c = pair.connect();
    assert_eq!(pair.write(CLIENT, c, &[7; 20_000]), 16 << 10);
    pair.run();
    assert_eq!(pair.write(CLIENT, c, b"more"), 0);
    assert_eq!(pair.read(SERVER, c, 8191), [7; 8191]);
    pair.run();
    assert_eq!(pair.slot(CLIENT, c).conn.writable(), 0, "too little to be told");
    assert_eq!(pair.read(SERVER, c, 3), [7; 3]);
    pair.run();
    assert_eq!(pair.slot(CLIENT, c).conn.writable(), 8194, "told");
    assert_eq!(pair.write(CLIENT, c, &[7; 9000]), 8194);
}

#[test]
fn a_half_closed_connection_carries_the_answer() {
    let mut pair = Pair::new(4);
    let c = pair.connect();
    pair.write(CLIENT, c, b"question");
    pair.shutdown(CLIENT, c);
    pair.run();
    assert_eq!(pair.read(SERVER, c, 100), b"question");
    assert!(pair.slot(SERVER, c).conn.is_eof());
    transfer(&mut pair, &mut [Stream::new(SERVER, c, 100_000)], usize::MAX);
    pair.close(SERVER, c);
    pair.run();
    assert!(pair.slot(CLIENT, c).conn.is_eof());
    pair.close(CLIENT, c);
    pair.run();
    for end in [CLIENT, SERVER] {
        let conn = &mut pair.slot(end, c).conn;
        assert_eq!((conn.is_finished(), conn.take_error()), (true, None));
    }
}

#[test]
fn both_may_close_at_once() {
    for seed in 0..10 {
        let mut pair = Pair::new(seed);
        let c = pair.connect();
        pair.close(CLIENT, c);
        pair.close(SERVER, c);
        pair.run();
        assert!(pair.slot(CLIENT, c).conn.is_finished() && pair.slot(SERVER, c).conn.is_finished());
    }
}

#[test]
fn leaving_data_unread_resets_the_peer() {
    let mut pair = Pair::new(5);
    let c = pair.connect();
    pair.write(SERVER, c, b"last words");
    pair.write(CLIENT, c, b"ignored");
    pair.run();
    pair.close(SERVER, c);
    pair.run();
    let conn = &mut pair.slot(CLIENT, c).conn;
    assert_eq!(conn.take_error(), Some(ConnError::Reset));
    assert_eq!(conn.write(1, false), Err(WriteError::Reset));
    assert_eq!(pair.read(CLIENT, c, 100), b"last words");
    pair.close(CLIENT, c);
    pair.run();
    assert!(pair.slot(CLIENT, c).conn.is_finished() && pair.slot(SERVER, c).conn.is_finished());
}

#[test]
fn an_urgent_byte_comes_apart_and_the_writer_waits_for_it() {
    for seed in 0..10 {
        let mut pair = Pair::new(seed);
        let c = pair.connect();
        pair.write(CLIENT, c, b"ab");
        assert_eq!(pair.write_urgent(CLIENT, c, b"c!"), 2);
        assert_eq!(pair.write(CLIENT, c, b"later"), 0);
        pair.run();
        assert!(pair.slot(SERVER, c).conn.urgent_unread());
        assert_eq!(pair.slot(SERVER, c).urgent, Some(b'!'));
        assert_eq!(pair.read(SERVER, c, 100), b"abc");
        assert!(pair.slot(SERVER, c).conn.at_mark());
        pair.run();
        assert_eq!(pair.write(CLIENT, c, b"later"), 5);
        pair.run();
        assert!(pair.slot(SERVER, c).conn.take_urgent(false));
        assert_eq!(pair.read(SERVER, c, 100), b"later");
    }
}

#[test]
fn an_urgent_byte_alone_does_not_block_the_stream() {
    let mut pair = Pair::new(6);
    let c = pair.connect();
    for round in 0..3 {
        assert_eq!(pair.write_urgent(CLIENT, c, &[round]), 1, "round {round}");
        pair.run();
        assert_eq!(pair.slot(SERVER, c).urgent, Some(round));
        assert!(pair.slot(SERVER, c).conn.readable() == 0);
    }
}

#[test]
fn a_link_that_dies_silently_is_noticed_by_the_test_and_ends_every_connection() {
    let mut pair = Pair::new(7);
    let (a, b) = (pair.connect(), pair.connect());
    pair.advance(Time::from_secs(300));
    assert!(pair.ends[CLIENT].group.is_some(), "an idle link is tested and lives");
    pair.write(CLIENT, a, b"arrived");
    pair.run();
    pair.link_up[0] = false;
    pair.write(CLIENT, a, b"lost");
    pair.advance(Time::from_secs(33));
    for end in [CLIENT, SERVER] {
        let over = Event::Terminated { by_peer: false, reason: LinkReason::LOST_PATH };
        assert_eq!(pair.ends[end].terminated, [over]);
        for place in [a, b] {
            let conn = &mut pair.slot(end, place).conn;
            assert_eq!(conn.take_error(), Some(ConnError::Aborted));
            assert_eq!(conn.state(), State::PeerAbortWait);
        }
    }
    // What the receiver believes and what the sender keeps fit together.
    let (believed, _) = pair.slot(SERVER, a).conn.received_bytes();
    let (sent, read) = pair.slot(CLIENT, a).conn.sent_bytes();
    assert_eq!((believed, sent), (7, 11));
    assert!(read <= believed);
    assert_eq!(pair.read(SERVER, a, 100), b"arrived");
}

#[test]
fn a_link_without_connections_is_ended_in_order_by_the_server() {
    let mut pair = Pair::new(8);
    let c = pair.connect();
    pair.close(CLIENT, c);
    pair.close(SERVER, c);
    pair.run();
    pair.leave(CLIENT, c);
    pair.leave(SERVER, c);
    pair.advance(Time::from_secs(599));
    assert!(pair.ends[SERVER].group.is_some());
    pair.advance(Time::from_secs(2));
    let reason = LinkReason::PROGRAM;
    assert_eq!(pair.ends[SERVER].terminated, [Event::Terminated { by_peer: false, reason }]);
    assert_eq!(pair.ends[CLIENT].terminated, [Event::Terminated { by_peer: true, reason }]);
    let c = pair.connect();
    assert!(params(&mut pair, c).first_contact, "the next connection makes a new link");
}

#[test]
fn a_connection_that_breaks_the_rules_ends_alone() {
    let mut pair = Pair::new(9);
    let (bad, good) = (pair.connect(), pair.connect());
    pair.write(CLIENT, bad, b"x");
    let token: Token = pair.slot(SERVER, bad).token();
    let lie = Cdc {
        sequence: 2,
        token,
        producer: Cursor { wrap: 2, count: 0 },
        consumer: Cursor::ZERO,
        producer_flags: ProducerFlags::empty(),
        conn_flags: ConnFlags::empty(),
    };
    pair.run();
    pair.send(CLIENT, 0, lie.emit().to_vec());
    pair.run();
    let violation = Violation::Producer(CursorError::BeyondLimit);
    assert_eq!(pair.slot(SERVER, bad).violation, Some(violation));
    assert_eq!(pair.slot(SERVER, bad).conn.take_error(), Some(ConnError::Reset));
    assert_eq!(pair.slot(CLIENT, bad).conn.take_error(), Some(ConnError::Reset), "it is told");
    transfer(&mut pair, &mut [Stream::new(CLIENT, good, 40_000), Stream::new(SERVER, good, 40_000)], usize::MAX);
}
