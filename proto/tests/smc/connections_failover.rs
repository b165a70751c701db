//! A connection that changes its link: what it sends again, and what it believes of its peer.

use smcr_proto::smc::cdc::{Cdc, ConnFlags, ProducerFlags};
use smcr_proto::smc::conn::{Conn, Update, Violation};
use smcr_proto::smc::cursor::Cursor;
use smcr_proto::smc::id::Rkey;

use crate::connections::{self, SIZE, message, polled};

fn conn() -> Conn {
    let mut conn = connections::conn();
    conn.set_libsmcr(true);
    conn
}

fn validation(sequence: u16, produced: u64, consumed: u64) -> Cdc {
    Cdc { producer_flags: ProducerFlags::FAILOVER, ..message(sequence, produced, consumed) }
}

#[test]
fn it_says_so_first_and_repeats_what_the_peer_may_not_have() {
    let mut conn = conn();
    conn.write(100, false).unwrap();
    assert_eq!(polled(&mut conn).unwrap().sequence, 1);
    conn.write(200, false).unwrap();
    polled(&mut conn);
    conn.handle_cdc(&message(1, 30, 40)).unwrap();
    conn.consume(30);
    conn.move_to_link(Rkey(77), 0x1000, 1);
    assert_eq!(conn.sent_bytes(), (40, 40));
    let first = polled(&mut conn).unwrap();
    assert_eq!(first, Cdc { token: first.token, ..validation(1, 40, 30) }, "the last that has completed");
    // The key and the address of the new link, at the same place.
    let segments = conn.write(260, false).unwrap();
    assert_eq!(conn.remote(segments[0]), Some((0x1000 + 40, Rkey(77))));
    let again = polled(&mut conn).unwrap();
    assert_eq!((again.sequence, again.producer), (3, Cursor::at(300, SIZE)), "numbers go on");
    assert_eq!(polled(&mut conn), None);
}

#[test]
fn what_the_peer_turns_out_to_have_read_is_not_repeated() {
    let mut conn = conn();
    conn.write(500, false).unwrap();
    polled(&mut conn);
    conn.move_to_link(Rkey(77), 0, 0);
    let update = conn.handle_cdc(&validation(0, 0, 300)).unwrap();
    assert_eq!((update.freed, conn.sent_bytes()), (300, (300, 300)));
    assert_eq!(conn.handle_cdc(&validation(0, 0, 501)), Err(Violation::Lost), "more than was ever sent");
}

#[test]
fn a_write_announces_itself_only_when_everything_has_been_repeated() {
    let mut conn = conn();
    conn.write(500, false).unwrap();
    assert!(conn.poll_immediate(500).is_some());
    conn.move_to_link(Rkey(77), 0, 0);
    conn.write(300, false).unwrap();
    assert_eq!(conn.poll_immediate(300), None, "the failover message is due");
    polled(&mut conn);
    assert_eq!(conn.poll_immediate(300), None, "the peer may have these");
    polled(&mut conn);
    conn.write(250, false).unwrap();
    assert_eq!(conn.poll_immediate(250), None, "and these in part");
    polled(&mut conn);
    conn.write(10, false).unwrap();
    assert!(conn.poll_immediate(10).is_some());
}

#[test]
fn a_write_announces_itself_again_when_the_peer_knows_the_number() {
    let mut conn = conn();
    conn.write(500, false).unwrap();
    assert!(conn.poll_immediate(500).is_some());
    conn.handle_cdc(&message(1, 0, 500)).unwrap();
    conn.move_to_link(Rkey(77), 0, 3);
    polled(&mut conn);
    // Nothing is to be repeated, but messages may have been lost.
    conn.write(10, false).unwrap();
    assert_eq!(conn.poll_immediate(10), None);
    assert_eq!(polled(&mut conn).unwrap().sequence, 2, "of all messages");
    conn.write(10, false).unwrap();
    assert!(conn.poll_immediate(10).is_some());
}

#[test]
fn repeated_bytes_count_once_at_the_receiver() {
    let mut conn = conn();
    conn.handle_cdc(&message(4, 1000, 0)).unwrap();
    conn.consume(600);
    assert_eq!(conn.handle_cdc(&validation(2, 200, 0)), Ok(Update::default()), "it has more than that");
    assert_eq!(conn.handle_cdc(&message(5, 700, 0)).unwrap().received, 0);
    assert_eq!(conn.handle_cdc(&message(6, 1300, 0)).unwrap().received, 300);
    assert_eq!(conn.received_bytes(), (1300, 600));
}

#[test]
fn a_failover_that_lost_bytes_is_seen_and_breaks_nothing_by_itself() {
    let mut conn = conn();
    conn.handle_cdc(&message(1, 100, 0)).unwrap();
    assert_eq!(conn.handle_cdc(&validation(1, 101, 0)), Err(Violation::Lost));
    assert_eq!(conn.take_error(), None, "the driver brings it back to TCP");
    assert_eq!(conn.readable(), 100);
}

#[test]
fn the_end_comes_behind_the_bytes_that_are_sent_again() {
    let mut conn = conn();
    conn.write(100, false).unwrap();
    conn.shutdown();
    conn.close();
    assert!(polled(&mut conn).unwrap().conn_flags.contains(ConnFlags::CLOSED));
    conn.move_to_link(Rkey(77), 0, 0);
    polled(&mut conn);
    assert_eq!(polled(&mut conn).unwrap().conn_flags, ConnFlags::empty(), "the bytes come first");
    assert_eq!(conn.write(60, false).unwrap().len(), 1, "done with writing, but not with these");
    assert_eq!(polled(&mut conn).unwrap().conn_flags, ConnFlags::empty());
    conn.write(40, false).unwrap();
    let last = polled(&mut conn).unwrap();
    assert_eq!((last.producer, last.conn_flags.contains(ConnFlags::CLOSED)), (Cursor::at(100, SIZE), true));
    assert!(conn.write(1, false).is_err());

    // The peer has read them meanwhile, or has closed.
    for (consumed, flags) in [(100, ConnFlags::empty()), (0, ConnFlags::CLOSED)] {
        conn.move_to_link(Rkey(78), 0, 0);
        polled(&mut conn);
        polled(&mut conn);
        conn.handle_cdc(&Cdc { conn_flags: flags, ..message(5, 0, consumed) }).unwrap();
        if consumed == 0 {
            assert!(conn.write(1, false).is_err(), "nobody reads it");
        }
        assert!(polled(&mut conn).unwrap().conn_flags.contains(ConnFlags::CLOSED));
        conn = self::conn();
        conn.write(100, false).unwrap();
        polled(&mut conn);
        conn.close();
        polled(&mut conn);
    }
}

#[test]
fn an_urgent_byte_is_urgent_again() {
    let mut conn = conn();
    conn.write(10, true).unwrap();
    assert!(polled(&mut conn).unwrap().producer_flags.contains(ProducerFlags::URGENT_PRESENT));
    assert_eq!(conn.write(1, false).unwrap().len(), 0, "nothing may follow");
    conn.move_to_link(Rkey(77), 0, 0);
    polled(&mut conn);
    assert_eq!(conn.write(10, true).unwrap().len(), 1);
    assert!(polled(&mut conn).unwrap().producer_flags.contains(ProducerFlags::URGENT_PRESENT));
}

#[test]
fn a_connection_that_is_over_has_nothing_to_say() {
    let mut conn = conn();
    conn.close();
    polled(&mut conn);
    conn.handle_cdc(&Cdc { conn_flags: ConnFlags::CLOSED, ..message(1, 0, 0) }).unwrap();
    assert!(conn.is_finished());
    conn.move_to_link(Rkey(77), 0, 0);
    assert_eq!((polled(&mut conn), conn.is_finished()), (None, true));
}

#[test]
fn a_connection_that_is_over_says_so_again_where_that_is_not_known_to_have_arrived() {
    let mut conn = conn();
    conn.handle_cdc(&Cdc { conn_flags: ConnFlags::CLOSED, ..message(1, 0, 0) }).unwrap();
    conn.close();
    assert!(polled(&mut conn).unwrap().conn_flags.contains(ConnFlags::CLOSED));
    assert!(conn.is_finished());
    conn.move_to_link(Rkey(77), 0, 1);
    assert!(!conn.is_finished());
    assert_eq!(polled(&mut conn).unwrap().producer_flags, ProducerFlags::FAILOVER);
    assert!(polled(&mut conn).unwrap().conn_flags.contains(ConnFlags::CLOSED));
    assert_eq!((polled(&mut conn), conn.is_finished()), (None, true));
}

#[test]
fn what_the_failover_message_says_was_read_may_be_filled_before_the_next_message() {
    let mut conn = conn();
    let size = u64::from(SIZE);
    conn.handle_cdc(&message(1, size, 0)).unwrap();
    conn.consume(100);
    assert_eq!(polled(&mut conn), None, "too little to be told");
    conn.move_to_link(Rkey(77), 0, 0);
    assert_eq!(polled(&mut conn).unwrap().consumer, Cursor::at(100, SIZE));
    // All slots are taken: the message proper waits.
    assert_eq!(conn.handle_cdc(&message(2, size + 100, 0)).map(|u| u.received), Ok(100));
    assert_eq!(polled(&mut conn).unwrap().consumer, Cursor::at(100, SIZE));

    // Linux does not look at the cursors of a failover message.
    let mut conn = connections::conn();
    conn.handle_cdc(&message(1, size, 0)).unwrap();
    conn.consume(100);
    conn.move_to_link(Rkey(77), 0, 0);
    polled(&mut conn);
    assert!(conn.handle_cdc(&message(2, size + 100, 0)).is_err());
}
