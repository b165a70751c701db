//! A connection by itself: what it takes from a peer, what it tells it, and when.

use smcr_proto::smc::cdc::{Cdc, ConnFlags, ProducerFlags};
use smcr_proto::smc::conn::{Conn, ConnError, State, Update, Violation, WriteError};
use smcr_proto::smc::cursor::{Cursor, CursorError, Segment};
use smcr_proto::smc::id::{RmbeIndex, RmbeSize, Token};

use crate::parts;

pub const SIZE: u32 = 16 << 10;

pub fn conn() -> Conn {
    let mut conn = Conn::new(Token::new(1).unwrap(), RmbeSize::MIN);
    conn.activate(&parts::endpoint(2, 9, RmbeSize::MIN)).unwrap();
    conn
}

pub fn message(sequence: u16, produced: u64, consumed: u64) -> Cdc {
    Cdc {
        sequence,
        token: Token::new(1).unwrap(),
        producer: Cursor::at(produced, SIZE),
        consumer: Cursor::at(consumed, SIZE),
        producer_flags: ProducerFlags::empty(),
        conn_flags: ConnFlags::empty(),
    }
}

pub fn polled(conn: &mut Conn) -> Option<Cdc> {
    conn.poll_cdc().map(|bytes| Cdc::parse(&bytes).unwrap())
}

#[test]
fn writes_go_behind_each_other_and_are_told_once() {
    let mut conn = conn();
    assert_eq!(polled(&mut conn), None);
    let first = conn.write(100, false).unwrap()[0];
    let second = conn.write(50, false).unwrap()[0];
    assert_eq!((first, second), (Segment { offset: 0, len: 100 }, Segment { offset: 100, len: 50 }));
    let told = polled(&mut conn).unwrap();
    assert_eq!((told.sequence, told.token.value(), told.producer.count), (1, 9, 150));
    assert_eq!(polled(&mut conn), None);
}

#[test]
fn a_ring_lies_behind_those_of_lower_index() {
    let mut peer = parts::endpoint(2, 9, RmbeSize::MIN);
    peer.index = RmbeIndex::new(3).unwrap();
    let mut conn = Conn::new(Token::new(1).unwrap(), RmbeSize::MIN);
    conn.activate(&peer).unwrap();
    let segment = Segment { offset: 5, len: 1 };
    let (address, rkey) = conn.remote(segment).unwrap();
    assert_eq!((address, rkey), (peer.rmb_address + 2 * SIZE as u64 + 5, peer.rkey));
}

#[test]
fn write_blocked_is_said_when_the_ring_fills_and_nothing_when_it_is_full() {
    let mut conn = conn();
    conn.write(SIZE - 1, false).unwrap();
    assert!(polled(&mut conn).unwrap().producer_flags.is_empty());
    assert_eq!(conn.write(1, false).unwrap().len(), 1);
    let told = polled(&mut conn).unwrap();
    assert_eq!(told.producer_flags, ProducerFlags::WRITE_BLOCKED, "it fills exactly");
    assert!(conn.write(10, false).unwrap().is_empty());
    assert_eq!((polled(&mut conn), conn.writable()), (None, 0));
    assert_eq!(conn.handle_cdc(&message(1, 0, 7)).unwrap().freed, 7);
    assert_eq!(conn.writable(), 7);
    conn.write(2, false).unwrap();
    assert!(polled(&mut conn).unwrap().producer_flags.is_empty(), "state, not event");
}

#[test]
fn the_peer_is_told_of_reads_by_the_rule_of_linux() {
    // A tenth of the ring is less than 2304 here, so 2304 is the limit.
    let half = SIZE as u64 / 2;
    let mut conn = conn();
    conn.handle_cdc(&message(1, half - 1, 0)).unwrap();
    conn.consume(2305);
    assert_eq!(polled(&mut conn), None, "the peer sees more than half of the ring free");
    conn.handle_cdc(&message(2, half, 0)).unwrap();
    assert_eq!(polled(&mut conn).unwrap().consumer.count, 2305);
    conn.handle_cdc(&message(3, half + 2305, 0)).unwrap();
    conn.consume(2304);
    assert_eq!(polled(&mut conn), None, "not above the limit");
    conn.consume(1);
    assert_eq!(polled(&mut conn).unwrap().consumer.count, 4610);
}

#[test]
fn a_peer_that_waits_is_told_at_once() {
    let flags = [ProducerFlags::UPDATE_REQUESTED, ProducerFlags::URGENT_PENDING];
    for flag in flags {
        let mut conn = conn();
        conn.handle_cdc(&message(1, 10, 0)).unwrap();
        conn.consume(4);
        assert_eq!(polled(&mut conn), None);
        conn.handle_cdc(&Cdc { producer_flags: flag, ..message(2, 10, 0) }).unwrap();
        assert_eq!(polled(&mut conn).unwrap().consumer.count, 4, "{flag:?} on arrival");
        conn.consume(1);
        assert_eq!(polled(&mut conn).unwrap().consumer.count, 5, "{flag:?} on a read");
        conn.handle_cdc(&Cdc { producer_flags: flag, ..message(3, 10, 0) }).unwrap();
        assert_eq!(polled(&mut conn), None, "nothing new to tell");
    }
}

#[test]
fn a_peer_that_is_blocked_is_told_of_a_tenth_however_much_is_free() {
    let blocked = |sequence, produced| Cdc { producer_flags: ProducerFlags::WRITE_BLOCKED, ..message(sequence, produced, 0) };
    let mut conn = conn();
    conn.handle_cdc(&blocked(1, 5000)).unwrap();
    conn.consume(2304);
    assert_eq!(polled(&mut conn), None, "not above the limit");
    conn.consume(1);
    assert_eq!(polled(&mut conn).unwrap().consumer.count, 2305);
}

#[test]
fn a_piece_is_worth_a_message_if_it_is_all_or_a_quarter_of_the_ring() {
    let mut conn = conn();
    assert!(conn.is_worth_it(10 * SIZE));
    conn.write(SIZE - 100, false).unwrap();
    assert!(conn.is_worth_it(100) && !conn.is_worth_it(101));
    polled(&mut conn);
    let quarter = u64::from(SIZE / 4);
    conn.handle_cdc(&message(1, 0, quarter - 101)).unwrap();
    assert!(!conn.is_worth_it(SIZE));
    conn.handle_cdc(&message(2, 0, quarter - 100)).unwrap();
    assert!(conn.is_worth_it(SIZE));
}

#[test]
fn old_messages_and_old_cursors_are_ignored() {
    let mut conn = conn();
    conn.handle_cdc(&message(5, 10, 0)).unwrap();
    assert_eq!(conn.handle_cdc(&message(4, 20, 0)), Ok(Update::default()), "older sequence");
    assert_eq!(conn.handle_cdc(&message(5, 12, 0)).unwrap().received, 2, "equal is taken");
    assert_eq!(conn.handle_cdc(&message(6, 3, 0)), Ok(Update::default()), "older cursor");
    assert_eq!(conn.readable(), 12);
    let stranger = Cdc { token: Token::new(2).unwrap(), ..message(7, 13, 0) };
    assert_eq!(conn.handle_cdc(&stranger), Ok(Update::default()));
    conn.handle_cdc(&message(u16::MAX / 2 + 5, 13, 0)).unwrap();
    conn.handle_cdc(&message(2, 14, 0)).unwrap();
    assert_eq!(conn.readable(), 14, "the numbers begin again after 65535");
}

#[test]
fn a_cursor_beyond_the_buffer_aborts_and_moves_nothing() {
    let producer = |error| Violation::Producer(error);
    let consumer = |error| Violation::Consumer(error);
    let beyond = CursorError::BeyondLimit;
    let outside = Cdc { producer: Cursor { wrap: 0, count: SIZE }, ..message(1, 0, 0) };
    for (bad, violation) in
        [(message(1, SIZE as u64 + 1, 0), producer(beyond)), (message(1, 5, 101), consumer(beyond)), (outside, producer(CursorError::OutsideRing))]
    {
        let mut conn = conn();
        conn.write(100, false).unwrap();
        polled(&mut conn);
        // Written, but not told: no honest peer can have read it.
        conn.write(50, false).unwrap();
        assert_eq!(conn.handle_cdc(&bad), Err(violation));
        assert_eq!((conn.state(), conn.readable()), (State::ProcessAbort, 0));
        assert_eq!(conn.take_error(), Some(ConnError::Reset));
        assert_eq!(conn.write(1, false), Err(WriteError::Reset));
        assert_eq!(polled(&mut conn).unwrap().conn_flags, ConnFlags::ABORTED);
        assert_eq!(conn.handle_cdc(&message(2, 10, 100)), Ok(Update::default()));
        assert_eq!(conn.readable(), 0, "nothing is taken after that");
        conn.close();
        assert!(conn.is_finished() && polled(&mut conn).is_none(), "an abort is said once");
    }
}

#[test]
fn what_the_peer_does_not_know_to_be_free_it_may_not_fill() {
    let mut conn = conn();
    conn.handle_cdc(&message(1, SIZE as u64, 0)).unwrap();
    conn.consume(2000);
    assert_eq!(polled(&mut conn), None);
    assert!(conn.handle_cdc(&message(2, SIZE as u64 + 1, 0)).is_err());
}

#[test]
fn a_message_may_come_before_the_peers_ring_is_known() {
    let mut conn = Conn::new(Token::new(1).unwrap(), RmbeSize::MIN);
    assert_eq!(conn.write(1, false), Err(WriteError::NotConnected));
    let last = Cdc { conn_flags: ConnFlags::DONE_WRITING, ..message(1, 10, 0) };
    assert_eq!(conn.handle_cdc(&last).unwrap().received, 10);
    assert_eq!((conn.readable(), conn.is_eof()), (10, true));
    conn.activate(&parts::endpoint(2, 9, RmbeSize::MIN)).unwrap();
    assert_eq!(conn.state(), State::AppCloseWait1);
    assert_eq!(conn.write(5, false).unwrap().len(), 1, "the other direction is open");

    let mut conn = Conn::new(Token::new(1).unwrap(), RmbeSize::MIN);
    assert!(conn.handle_cdc(&message(1, 0, 1)).is_err(), "nothing was sent that could be read");
}

#[test]
fn an_abort_follows_the_data_that_came_before_it() {
    let mut conn = conn();
    let abort = Cdc { conn_flags: ConnFlags::ABORTED, ..message(1, 10, 0) };
    let update = conn.handle_cdc(&abort).unwrap();
    assert!(update.closing && conn.is_eof());
    assert_eq!((conn.readable(), conn.take_error()), (10, Some(ConnError::Reset)));
    assert_eq!(conn.write(1, false), Err(WriteError::Reset));
    conn.close();
    assert!(polled(&mut conn).is_some() && conn.is_finished());
}

#[test]
fn a_libsmcr_that_closed_stays_closed_and_is_told_of_no_reads() {
    let mut conn = conn();
    conn.set_libsmcr(true);
    let bye = Cdc { conn_flags: ConnFlags::CLOSED, ..message(1, SIZE as u64, 0) };
    conn.handle_cdc(&bye).unwrap();
    let update = conn.handle_cdc(&message(2, SIZE as u64, 0)).unwrap();
    assert!(!update.closing && conn.is_eof());
    conn.consume(SIZE);
    assert_eq!(polled(&mut conn), None);
    assert_eq!(conn.write(1, false), Err(WriteError::Reset));
}

#[test]
fn after_shutdown_nothing_is_written() {
    let mut conn = conn();
    conn.write(10, false).unwrap();
    conn.shutdown();
    assert_eq!(conn.write(1, false), Err(WriteError::Pipe));
    let told = polled(&mut conn).unwrap();
    assert_eq!((told.producer.count, told.conn_flags), (10, ConnFlags::DONE_WRITING));
}

#[test]
fn a_connection_is_through_when_both_ends_have_said_so_and_read_all() {
    let end = |sequence, produced, consumed, conn_flags| Cdc { conn_flags, ..message(sequence, produced, consumed) };
    let mut conn = conn();
    conn.write(10, false).unwrap();
    conn.shutdown();
    polled(&mut conn).unwrap();
    assert!(!conn.has_ended(), "the peer may still write");
    conn.handle_cdc(&end(1, 5, 0, ConnFlags::DONE_WRITING)).unwrap();
    assert!(conn.has_ended() && !conn.is_through());
    conn.handle_cdc(&end(2, 5, 10, ConnFlags::DONE_WRITING)).unwrap();
    assert!(!conn.is_through(), "5 bytes are unread here");
    conn.consume(5);
    assert!(conn.is_through());

    // The peer closes before it has told what it has read.
    let mut conn = self::conn();
    conn.write(10, false).unwrap();
    polled(&mut conn).unwrap();
    conn.handle_cdc(&end(1, 0, 0, ConnFlags::CLOSED)).unwrap();
    assert!(!conn.has_ended());
    conn.shutdown();
    assert!(!conn.has_ended(), "it has not been told");
    polled(&mut conn).unwrap();
    assert!(conn.is_through());
}

#[test]
fn a_dead_link_ends_everything() {
    let mut conn = conn();
    conn.handle_cdc(&message(1, 10, 0)).unwrap();
    conn.write(5, false).unwrap();
    conn.handle_link_down();
    assert_eq!(polled(&mut conn), None);
    assert_eq!(conn.take_error(), Some(ConnError::Aborted));
    assert_eq!(conn.write(1, false), Err(WriteError::Aborted));
    assert_eq!((conn.readable(), conn.is_eof()), (10, true), "what was told is there");
    assert_eq!(conn.sent_bytes(), (5, 0), "and what was not read can be sent again");
    conn.close();
    assert!(conn.is_finished());
}

#[test]
fn a_failover_that_lost_messages_aborts() {
    let mut conn = conn();
    conn.handle_cdc(&message(3, 10, 0)).unwrap();
    let check = |sequence| Cdc { producer_flags: ProducerFlags::FAILOVER, ..message(sequence, 99, 0) };
    assert_eq!(conn.handle_cdc(&check(3)), Ok(Update::default()));
    assert_eq!(conn.readable(), 10, "the rest of the message means nothing");
    assert_eq!(conn.handle_cdc(&check(4)), Err(Violation::Lost));
}

#[test]
fn a_ring_that_the_peer_withdraws_is_not_written_again() {
    let keys = [parts::endpoint(2, 9, RmbeSize::MIN).rkey];
    let mut conn = conn();
    conn.handle_rkeys_deleted(&[smcr_proto::smc::id::Rkey(0)]);
    assert_eq!(conn.write(1, false).map(|s| s.len()), Ok(1), "another ring");
    conn.handle_rkeys_deleted(&keys);
    assert_eq!(conn.write(1, false), Err(WriteError::Reset));
    assert_eq!(polled(&mut conn).unwrap().conn_flags, ConnFlags::ABORTED);

    let mut conn = self::conn();
    conn.close();
    polled(&mut conn);
    conn.handle_rkeys_deleted(&keys);
    assert_eq!((conn.state(), conn.take_error()), (State::PeerCloseWait1, None));
}

#[test]
fn a_program_may_abort_without_unread_data() {
    let mut conn = conn();
    conn.abort();
    assert_eq!(polled(&mut conn).unwrap().conn_flags, ConnFlags::ABORTED);
    assert_eq!(conn.write(1, false), Err(WriteError::Pipe));
}
