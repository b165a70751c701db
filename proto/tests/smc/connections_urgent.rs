//! Urgent data of a connection by itself, at the sender and at the receiver.

use smcr_proto::smc::cdc::{Cdc, ProducerFlags};
use smcr_proto::smc::cursor::Segment;

use crate::connections::{SIZE, conn, message, polled};

#[test]
fn an_urgent_byte_is_marked_and_holds_back_what_follows() {
    let mut conn = conn();
    conn.write(SIZE - 3, false).unwrap();
    polled(&mut conn);
    assert_eq!(conn.write(5, true).unwrap()[0].len, 3, "the urgent byte itself does not fit");
    let told = polled(&mut conn).unwrap();
    assert_eq!(told.producer_flags, ProducerFlags::URGENT_PENDING | ProducerFlags::WRITE_BLOCKED);
    conn.handle_cdc(&message(1, 0, 10)).unwrap();
    assert_eq!(conn.write(2, true).unwrap()[0].len, 2);
    assert_eq!(conn.writable(), 0);
    let told = polled(&mut conn).unwrap().producer_flags;
    assert_eq!(told, ProducerFlags::URGENT_PENDING | ProducerFlags::URGENT_PRESENT);
    assert!(conn.write(1, false).unwrap().is_empty());
    conn.handle_cdc(&message(2, 0, SIZE as u64 + 1)).unwrap();
    assert_eq!(conn.writable(), 0, "one byte is unread");
    conn.handle_cdc(&message(3, 0, SIZE as u64 + 2)).unwrap();
    assert_eq!(conn.writable(), SIZE);
    conn.shutdown();
    assert!(polled(&mut conn).unwrap().producer_flags.is_empty());
}

fn urgent(sequence: u16, produced: u64) -> Cdc {
    let flags = ProducerFlags::URGENT_PENDING | ProducerFlags::URGENT_PRESENT;
    Cdc { producer_flags: flags, ..message(sequence, produced, 0) }
}

#[test]
fn an_urgent_byte_is_read_apart() {
    let mut conn = conn();
    let coming = Cdc { producer_flags: ProducerFlags::URGENT_PENDING, ..message(1, 0, 0) };
    conn.handle_cdc(&coming).unwrap();
    assert!(conn.urgent_coming() && !conn.urgent_unread());
    let update = conn.handle_cdc(&urgent(2, 5)).unwrap();
    assert_eq!((update.urgent, conn.readable()), (Some(4), 4));
    assert!(conn.urgent_unread() && !conn.at_mark());
    assert_eq!(*conn.segments(100), [Segment { offset: 0, len: 4 }]);
    conn.consume(4);
    assert!(conn.at_mark() && conn.readable() == 0);
    assert_eq!(polled(&mut conn).unwrap().consumer.count, 5, "skipped, or the peer would wait");
    assert!(conn.take_urgent(true) && conn.take_urgent(false) && !conn.take_urgent(false));
    conn.handle_cdc(&message(3, 9, 0)).unwrap();
    assert_eq!(*conn.segments(100), [Segment { offset: 5, len: 4 }]);
    conn.consume(1);
    assert!(!conn.at_mark());
}

#[test]
fn an_urgent_byte_at_the_end_of_the_ring() {
    let mut conn = conn();
    conn.handle_cdc(&urgent(1, SIZE as u64)).unwrap();
    assert_eq!(conn.readable(), SIZE - 1);
    let mut conn = self::conn();
    let update = conn.handle_cdc(&urgent(1, SIZE as u64)).unwrap();
    assert_eq!(update.urgent, Some(SIZE - 1));
}

#[test]
fn an_urgent_byte_that_was_passed_is_told_even_if_no_flag_asks_for_it() {
    for inline in [false, true] {
        let mut conn = conn();
        conn.set_oob_inline(inline);
        conn.handle_cdc(&urgent(1, 5)).unwrap();
        conn.handle_cdc(&message(2, 5, 0)).unwrap();
        conn.consume(3);
        assert_eq!(polled(&mut conn), None);
        conn.consume(2);
        assert_eq!(polled(&mut conn).unwrap().consumer.count, 5, "inline: {inline}");
    }
}

#[test]
fn an_urgent_byte_inline_is_an_ordinary_one() {
    let mut conn = conn();
    conn.set_oob_inline(true);
    conn.handle_cdc(&urgent(1, 5)).unwrap();
    assert_eq!(conn.readable(), 5);
    conn.consume(4);
    polled(&mut conn);
    assert!(conn.at_mark() && !conn.take_urgent(false));
    conn.consume(1);
    assert!(!conn.at_mark());
    assert_eq!(polled(&mut conn).unwrap().consumer.count, 5, "the peer waits for it");
}
