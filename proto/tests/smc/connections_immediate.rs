//! Data that the write itself announces: what it may stand for, and what is believed of it.

use smcr_proto::smc::cdc::ConnFlags;
use smcr_proto::smc::conn::{Conn, State, Update, Violation};
use smcr_proto::smc::cursor::CursorError;
use smcr_proto::smc::id::{RmbeSize, Token};
use smcr_proto::smc::immediate::Immediate;

use crate::connections::{SIZE, conn, message, polled};
use crate::parts;

/// Two ends of one connection, with tokens 1 and 9.
fn pair() -> [Conn; 2] {
    let mut other = Conn::new(Token::new(9).unwrap(), RmbeSize::MIN);
    other.activate(&parts::endpoint(1, 1, RmbeSize::MIN)).unwrap();
    [conn(), other]
}

/// Sends `len` bytes: by the write alone where it can be. True: it could.
fn passed(from: &mut Conn, to: &mut Conn, len: u32) -> bool {
    let pieces = from.write(len, false).unwrap();
    assert_eq!(pieces.iter().map(|p| p.len).sum::<u32>(), len);
    let immediate = if pieces.len() == 1 { from.poll_immediate(len) } else { None };
    let update = match immediate {
        Some(value) => to.handle_immediate(len, Immediate::parse(value)),
        None => to.handle_cdc(&polled(from).unwrap()),
    };
    assert_eq!(polled(from), None, "said once");
    assert_eq!(update.unwrap().received, len);
    immediate.is_some()
}

#[test]
fn requests_and_answers_of_all_sizes_go_by_writes_alone_and_keep_the_cursors() {
    let mut ends = pair();
    let mut alone = 0;
    let mut total = [0u64; 2];
    for round in 0..20_000u32 {
        let way = round as usize % 2;
        let len = round * 37 % 3000 + 1;
        let [a, b] = &mut ends;
        let (from, to) = if way == 0 { (a, b) } else { (b, a) };
        alone += u32::from(passed(from, to, len));
        to.consume(len);
        total[way] += u64::from(len);
        // The next message the other way tells of it, whatever kind it is.
        assert!(polled(to).is_none(), "an answer follows that tells how far was read");
        assert_eq!(from.sent_bytes().0, total[way]);
        assert_eq!(to.received_bytes(), (total[way], total[way]));
        let answered = total[way] - u64::from(len);
        assert_eq!(from.sent_bytes().1, answered, "known to be read");
    }
    assert!(alone > 15_000, "only where the ring ends a message is needed: {alone}");
}

#[test]
fn flags_and_ends_need_a_message() {
    let [_, mut b] = pair();
    let [mut a, _] = pair();
    a.write(3, true).unwrap();
    assert_eq!(a.poll_immediate(3), None, "urgent");
    let [mut a, _] = pair();
    a.write(3, false).unwrap();
    a.shutdown();
    assert_eq!(a.poll_immediate(3), None, "the end");
    assert_eq!(polled(&mut a).unwrap().conn_flags, ConnFlags::DONE_WRITING);
    let [mut a, _] = pair();
    a.write(3, false).unwrap();
    a.write(3, false).unwrap();
    assert_eq!(a.poll_immediate(3), None, "two writes");
    // A half-closed end still answers by writes: its flag has been told.
    b.shutdown();
    assert!(polled(&mut b).is_some());
    assert_eq!(b.poll_immediate(0), None);
}

#[test]
fn what_cannot_be_aborts_the_connection() {
    let lengths = [SIZE + 1, u32::MAX];
    for len in lengths {
        let [mut a, mut b] = pair();
        a.write(5, false).unwrap();
        let immediate = Immediate::parse(a.poll_immediate(5).unwrap());
        let refused = Err(Violation::Producer(CursorError::BeyondLimit));
        assert_eq!(b.handle_immediate(len, immediate), refused, "{len}");
        assert_eq!(b.state(), State::ProcessAbort);
        assert_eq!(polled(&mut b).unwrap().conn_flags, ConnFlags::ABORTED);
    }
    let [mut a, mut b] = pair();
    a.write(5, false).unwrap();
    let immediate = Immediate::parse(a.poll_immediate(5).unwrap());
    let ahead = Immediate { consumed: 1, ..immediate };
    let refused = Err(Violation::Consumer(CursorError::BeyondLimit));
    assert_eq!(b.handle_immediate(5, ahead), refused, "nothing was sent that could have been read");
    assert_eq!(b.handle_immediate(5, immediate), Ok(Update::default()), "over");
}

#[test]
fn no_bytes_say_nothing() {
    let [mut a, mut b] = pair();
    a.write(5, false).unwrap();
    let first = Immediate::parse(a.poll_immediate(5).unwrap());
    assert_eq!(b.handle_immediate(5, first).unwrap().received, 5);
    b.consume(5);
    assert!(passed(&mut b, &mut a, 7));
    // As soft RoCE repeats a write that has arrived: what it says of the other direction is old, or never was.
    for again in [first, Immediate { consumed: 10_000, ..first }] {
        assert_eq!(b.handle_immediate(0, again), Ok(Update::default()));
    }
    assert_eq!((b.state(), b.received_bytes().0), (State::Active, 5));
    assert!(passed(&mut a, &mut b, 6), "it goes on");
    assert_eq!(b.received_bytes().0, 11);
}

/// The immediate of a write of `len` bytes.
fn announced(conn: &mut Conn, len: u32) -> Immediate {
    conn.write(len, false).unwrap();
    Immediate::parse(conn.poll_immediate(len).unwrap())
}

#[test]
fn a_write_that_comes_again_counts_once() {
    let [mut a, mut b] = pair();
    let mut last = Vec::new();
    for round in 0..40u64 {
        if round % 5 == 4 {
            a.write(3, false).unwrap();
            b.handle_cdc(&polled(&mut a).unwrap()).unwrap();
        } else {
            let immediate = announced(&mut a, 3);
            assert_eq!(b.handle_immediate(3, immediate).unwrap().received, 3);
            last.push(immediate);
        }
        b.consume(3);
        assert!(passed(&mut b, &mut a, 1));
        a.consume(1);
        // Soft RoCE: the last ones once more, behind whatever came after them. What they say of the other direction is old.
        for again in last.iter().rev().take(3) {
            assert_eq!(b.handle_immediate(3, *again), Ok(Update::default()));
        }
        assert_eq!((b.state(), b.received_bytes().0), (State::Active, 3 * (round + 1)));
    }
}

#[test]
fn a_number_that_is_missing_shows() {
    let [mut a, mut b] = pair();
    announced(&mut a, 3);
    let second = announced(&mut a, 4);
    assert_eq!(b.handle_immediate(4, second), Err(Violation::Lost));
    assert_eq!((b.state(), b.received_bytes().0), (State::Active, 0), "there is a way back");
}

#[test]
fn one_that_is_meant_for_an_earlier_connection_of_the_number_is_dropped() {
    let [mut a, _] = pair();
    let mut later = Conn::new(Token::new(9 | 1 << 16).unwrap(), RmbeSize::MIN);
    later.activate(&parts::endpoint(1, 1, RmbeSize::MIN)).unwrap();
    a.write(5, false).unwrap();
    let immediate = Immediate::parse(a.poll_immediate(5).unwrap());
    assert_eq!(later.handle_immediate(5, immediate), Ok(Update::default()));
    assert_eq!(later.readable(), 0);
}

#[test]
fn messages_and_writes_may_alternate() {
    let [mut a, mut b] = pair();
    assert!(passed(&mut a, &mut b, 7));
    b.handle_cdc(&message_to(&mut a, 0)).unwrap();
    a.write(6, false).unwrap();
    let told = polled(&mut a).unwrap();
    assert_eq!(told.producer.count, 13);
    assert_eq!(b.handle_cdc(&told).unwrap().received, 6);
    assert!(passed(&mut a, &mut b, 5));
    assert_eq!(b.readable(), 18);
    assert_eq!(b.handle_cdc(&told), Ok(Update::default()), "from the past");
}

/// The message that says what `a` has said already.
fn message_to(a: &mut Conn, consumed: u64) -> smcr_proto::smc::cdc::Cdc {
    let mut cdc = message(1, a.sent_bytes().0, consumed);
    cdc.token = Token::new(9).unwrap();
    cdc
}
