//! When a peer is told of what was read, and that no sender waits for what nobody will tell it.

use smcr_proto::smc::cdc::{Cdc, ConnFlags, ProducerFlags};
use smcr_proto::smc::conn::Conn;
use smcr_proto::smc::cursor::Cursor;
use smcr_proto::smc::id::{Rkey, RmbeSize, Token};
use smcr_proto::smc::immediate::Immediate;

use crate::connections::{SIZE, conn, message, polled};
use crate::parts;

/// A sender, and a receiver with a ring of this size.
fn pair(size: RmbeSize, libsmcr: bool) -> [Conn; 2] {
    let mut from = Conn::new(Token::new(1).unwrap(), RmbeSize::MIN);
    from.activate(&parts::endpoint(2, 9, size)).unwrap();
    let mut to = Conn::new(Token::new(9).unwrap(), size);
    to.activate(&parts::endpoint(1, 1, RmbeSize::MIN)).unwrap();
    for end in [&mut from, &mut to] {
        end.set_libsmcr(libsmcr);
    }
    [from, to]
}

/// Sends what the window leaves in writes of `piece` bytes, then everything is read. How many bytes that were, and messages by
/// which the sender heard of it. `libsmcr`: writes announce themselves where they may.
fn round(ends: &mut [Conn; 2], window: u32, piece: u32, libsmcr: bool) -> (u32, u32) {
    let [from, to] = ends;
    let (mut moved, mut told) = (0, 0);
    from.set_window(window);
    loop {
        let (sent, read) = from.sent_bytes();
        let free = window.saturating_sub((sent - read) as u32);
        let pieces = from.write(piece.min(free), false).unwrap();
        let len: u32 = pieces.iter().map(|p| p.len).sum();
        if len == 0 {
            break;
        }
        moved += len;
        let immediate = if libsmcr && pieces.len() == 1 { from.poll_immediate(len) } else { None };
        match immediate {
            Some(value) => to.handle_immediate(len, Immediate::parse(value)).unwrap(),
            None => to.handle_cdc(&polled(from).unwrap()).unwrap(),
        };
    }
    to.consume(to.readable());
    while let Some(cdc) = polled(to) {
        told += 1;
        from.handle_cdc(&cdc).unwrap();
    }
    (moved, told)
}

#[test]
fn a_sender_hears_of_what_was_read_however_little_it_keeps_unread() {
    for (libsmcr, code) in [(false, 0), (true, 0), (false, 3), (true, 3), (false, 5), (true, 5)] {
        let size = RmbeSize::from_code(code).unwrap();
        for window in [4096, 16 << 10, 64 << 10, size.bytes() / 2, size.bytes() * 2 / 3, size.bytes()] {
            let window = window.min(size.bytes());
            let mut ends = pair(size, libsmcr);
            ends[0].set_window(window);
            if ends[0].forgets_written() {
                assert!(!libsmcr && window * 3 < size.bytes() * 2);
                continue; // hears of it when the ring is full, as Linux does
            }
            for piece in [700, 5000, window] {
                let mut ends = pair(size, libsmcr);
                for n in 0..20 {
                    let (moved, told) = round(&mut ends, window, piece, libsmcr);
                    // Who waits, waits for a quarter of the window.
                    assert!(moved >= window / 4, "{n}: {moved} bytes, window {window}, {piece} at a time, {size:?}");
                    assert!(told > 0, "{n}: window {window}, {piece} at a time, {size:?}");
                }
            }
        }
    }
}

#[test]
fn a_window_that_shrinks_below_what_is_unread_is_told() {
    let [mut from, mut to] = pair(RmbeSize::from_code(3).unwrap(), true);
    from.write(20_000, false).unwrap();
    let value = from.poll_immediate(20_000).unwrap();
    to.handle_immediate(20_000, Immediate::parse(value)).unwrap();
    from.set_window(16 << 10);
    let asked = polled(&mut from).unwrap();
    assert_eq!(asked.producer_flags, ProducerFlags::UPDATE_REQUESTED);
    from.set_window(16 << 10);
    assert_eq!(polled(&mut from), None, "asked once");
    to.handle_cdc(&asked).unwrap();
    to.consume(1);
    from.handle_cdc(&polled(&mut to).unwrap()).unwrap();
    assert_eq!(from.sent_bytes(), (20_000, 1));
}

#[test]
fn towards_linux_a_narrow_window_is_about_what_is_kept() {
    let size = RmbeSize::from_code(5).unwrap();
    let [mut from, mut to] = pair(size, false);
    let window = 16 << 10;
    from.set_window(window);
    let all = u64::from(size.bytes());
    for end in (u64::from(window)..=all).step_by(window as usize) {
        let pieces = from.write(window, false).unwrap();
        assert_eq!(pieces.iter().map(|p| p.len).sum::<u32>(), window, "before {end}");
        let cdc = polled(&mut from).unwrap();
        assert!(!cdc.producer_flags.contains(ProducerFlags::UPDATE_REQUESTED), "Linux forgets that with its next message");
        to.handle_cdc(&cdc).unwrap();
        assert!(from.forgets_written());
        assert_eq!((from.forget_written(), from.sent_bytes()), (end, (end, 0)));
    }
    assert!(from.write(1, false).unwrap().is_empty(), "the peer's ring is full");
    assert_eq!(polled(&mut from), None, "and knows it");
    to.consume(to.readable());
    from.handle_cdc(&polled(&mut to).unwrap()).unwrap();
    assert_eq!(from.sent_bytes(), (all, all));
    from.write(1000, false).unwrap();
    assert_eq!(from.forget_written(), all + 1000);
    from.write(10, false).unwrap();
    from.move_to_link(Rkey(1), 0, 1);
    assert_eq!(from.sent_bytes().0, all + 1000, "what was forgotten is not written again");
}

#[test]
fn who_has_as_large_a_window_as_the_ring_asks_for_nothing() {
    let mut conn = conn();
    conn.set_window(SIZE);
    conn.write(SIZE - 1, false).unwrap();
    assert_eq!(polled(&mut conn).unwrap().producer_flags, ProducerFlags::empty());
}

#[test]
fn a_kernel_that_has_closed_is_told_of_room() {
    for (libsmcr, flags) in [(false, ConnFlags::CLOSED), (false, ConnFlags::DONE_WRITING), (true, ConnFlags::CLOSED), (false, ConnFlags::ABORTED)] {
        let mut conn = conn();
        conn.set_libsmcr(libsmcr);
        let full = Cdc { producer_flags: ProducerFlags::WRITE_BLOCKED, conn_flags: flags, ..message(1, u64::from(SIZE), 0) };
        conn.handle_cdc(&full).unwrap();
        assert!(conn.peer_is_blocked());
        polled(&mut conn);
        conn.consume(SIZE);
        let told = polled(&mut conn).is_some_and(|cdc| cdc.consumer == Cursor::at(u64::from(SIZE), SIZE));
        assert_eq!(told, !libsmcr && flags != ConnFlags::ABORTED, "{flags:?}, libsmcr {libsmcr}");
        let rest = Cdc { conn_flags: flags, ..message(2, u64::from(SIZE) + 100, 0) };
        if told {
            assert_eq!(conn.handle_cdc(&rest).unwrap().received, 100, "what it says behind its end");
            assert!(!conn.peer_is_blocked());
        }
    }
}

#[test]
fn between_two_libsmcr_the_peer_is_told_by_halves_of_the_ring() {
    let half = SIZE / 2;
    let mut conn = conn();
    conn.set_libsmcr(true);
    conn.handle_cdc(&message(1, u64::from(SIZE), 0)).unwrap();
    conn.consume(half - 1);
    assert_eq!(polled(&mut conn), None, "one byte less than half");
    conn.consume(1);
    assert_eq!(polled(&mut conn).unwrap().consumer.count, half);
    conn.consume(half - 1);
    assert_eq!(polled(&mut conn), None, "counted from what was told");
    conn.consume(1);
    assert!(polled(&mut conn).is_some());
}

/// The receiving end of Linux 6.12, as far as it tells of reads (`smc_cdc_msg_recv_action`, `smc_tx_consumer_update`).
struct Linux {
    size: u32,
    /// Bytes received, read, and those whose reading was told.
    produced: u64,
    read: u64,
    told: u64,
    blocked: bool,
    sequence: u16,
}

impl Linux {
    fn new(size: u32) -> Linux {
        Linux { size, produced: 0, read: 0, told: 0, blocked: false, sequence: 0 }
    }

    /// A message has come; nothing that it says is answered.
    fn receive(&mut self, cdc: &Cdc) {
        let at = |bytes| Cursor::at(bytes, self.size);
        let free = self.size - (self.produced - self.told) as u32;
        self.produced += (0..=u64::from(free)).find(|n| at(self.produced + n) == cdc.producer).expect("no more than is free");
        self.blocked = cdc.producer_flags.contains(ProducerFlags::WRITE_BLOCKED);
    }

    /// The program reads; `slot`: there is one for the message.
    fn read(&mut self, bytes: u32, slot: bool) -> Option<Cdc> {
        let bytes = u64::from(bytes).min(self.produced - self.read);
        if bytes == 0 {
            return None; // recv waits
        }
        self.read += bytes;
        let free = self.size - (self.produced - self.told) as u32;
        let due = (self.read - self.told) as u32 > self.size / 10 && (free <= self.size / 2 || self.blocked);
        if due && !slot {
            return None; // what is tried after 1 s sends nothing: there is no payload
        }
        if self.blocked && self.read == self.produced {
            self.blocked = false;
        }
        due.then(|| {
            self.told = self.read;
            self.sequence += 1;
            let (producer, consumer) = (Cursor::ZERO, Cursor::at(self.read, self.size));
            let (producer_flags, conn_flags) = (ProducerFlags::empty(), ConnFlags::empty());
            Cdc { sequence: self.sequence, token: Token::new(1).unwrap(), producer, consumer, producer_flags, conn_flags }
        })
    }
}

/// Sends of `len` bytes what there is room for, and worth it. How many.
fn send(from: &mut Conn, to: &mut Linux, len: u32) -> u32 {
    let mut sent = 0;
    while sent < len && from.is_worth_it(len - sent) {
        let taken: u32 = from.write(len - sent, false).unwrap().iter().map(|p| p.len).sum();
        if taken == 0 {
            break;
        }
        to.receive(&polled(from).unwrap());
        sent += taken;
    }
    sent
}

#[test]
fn what_linux_loses_of_a_read_comes_with_the_next_one() {
    const RESERVE: u32 = 16;
    let quarter = SIZE / 4;
    // What is known to be free, when what was read behind it is lost.
    for known in [0, SIZE / 6, quarter - 1] {
        let (mut from, mut to) = (conn(), Linux::new(SIZE));
        from.set_reserve(RESERVE);
        assert_eq!(send(&mut from, &mut to, 10 * SIZE), SIZE - RESERVE);
        if known > 0 {
            let told = to.read(known, true).unwrap();
            from.handle_cdc(&told).unwrap();
            assert_eq!(send(&mut from, &mut to, SIZE), 0, "less than a quarter");
        }
        assert_eq!(to.read(SIZE, false), None, "lost");
        assert_eq!(to.read(SIZE, true), None, "and no read follows");
        assert!(send(&mut from, &mut to, 10 * SIZE) == 0 && polled(&mut from).is_none(), "both wait");

        from.nudge();
        assert_eq!(send(&mut from, &mut to, 10 * SIZE), known.max(1), "{known}");
        let told = to.read(SIZE, true).expect("it tells of all");
        from.handle_cdc(&told).unwrap();
        assert_eq!(from.writable(), SIZE - RESERVE);
        assert_eq!(send(&mut from, &mut to, 10 * SIZE), SIZE - RESERVE, "on as before");
    }
}

#[test]
fn nudges_end_with_the_reserve_and_never_write_to_what_is_unread() {
    let (mut from, mut to) = (conn(), Linux::new(SIZE));
    from.set_reserve(16);
    assert_eq!(send(&mut from, &mut to, SIZE), SIZE - 16);
    for n in 0..20 {
        from.nudge();
        assert_eq!(send(&mut from, &mut to, 100), u32::from(n < 16), "{n}");
    }
    // Each is there once more when the reader has told of something.
    from.handle_cdc(&to.read(3000, true).unwrap()).unwrap();
    assert_eq!((from.writable(), send(&mut from, &mut to, SIZE)), (3000 - 16, 0), "a nudge that was due is not any more");
}

#[test]
fn who_keeps_no_reserve_fills_the_ring() {
    let (mut from, mut to) = (conn(), Linux::new(SIZE));
    assert_eq!(send(&mut from, &mut to, SIZE), SIZE);
    from.nudge();
    assert_eq!(send(&mut from, &mut to, 1), 0);
}
