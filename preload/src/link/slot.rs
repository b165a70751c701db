//! One connection of a link: its rings, its SMC-R machine, and how both move.
//!
//! The program's side of the rings is the engine's (`family::sock::Sock` and [`Dir`]); this is the
//! other side, which a shared-memory connection has in another process. Here is what a connection is, and what it sends; what it
//! hears is in [`super::heard`]. [`super::arrive`] and [`super::state`] call both. Everything happens under the
//! lock of all links ([`super::state`]). Positions are bytes from the start of the stream, on both sides.

use super::ending::Late;
use super::leave::Leaving;
use super::nudge::{Nudge, RESERVE};
use super::one::Link;
use super::pieces::take_bytes;
use super::pool::Element;
use super::wake;
use crate::family::sock::Sock;
use crate::layout::{Dir, RegionHeader, fin};
use crate::transport::region::RING_MIN;
use crate::verbs::qp::{WRITES, Write};
use smcr_proto::smc::conn::Conn;
use smcr_proto::smc::id::{Rkey, Token};
use std::sync::atomic::Ordering::*;

/// What the program has done with its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Closing {
    /// Nothing.
    Open,
    /// shutdown for writing.
    Shut,
    /// close.
    Close,
    /// An end that the peer sees as a reset.
    Abort,
}

/// Names a connection: its number, and what tells it from others that had the number before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id {
    pub index: u32,
    pub serial: u32,
}

/// A connection.
pub struct Slot {
    /// Its number.
    pub index: u32,
    /// See [`Id`].
    pub serial: u32,
    /// The program's record, and its generation: it may be another's by now.
    record: (&'static Sock, u32),
    /// The page with both directions.
    pub header: *mut RegionHeader,
    /// The sending ring, and its size.
    pub tx: (Element, u32),
    /// Key of the sending ring, once a device is known.
    pub tx_key: u32,
    /// The ring that the peer writes into, once the group is known.
    pub rx: Option<Element>,
    /// The group, and which of its links.
    pub group: Option<usize>,
    pub link: usize,
    /// The machine, from when the peer can learn of the ring.
    pub conn: Option<Conn>,
    /// Counted in the group's machine.
    pub joined: bool,
    /// The handshake is on its way: whatever becomes of its group, the program's bytes are still to go through TCP perhaps.
    pub in_handshake: bool,
    /// It has ended with a link: data may be sent.
    pub active: bool,
    /// The handshake is to end on TCP: the process has forked before there was a ring to receive in.
    pub for_tcp: bool,
    /// It has ended on TCP: the page is kept for a program that may still look at it, and nothing else.
    pub on_tcp: bool,
    /// What the program has done.
    pub closing: Closing,
    /// Bytes handed to the network card, from the start of the stream.
    pub pumped: u64,
    /// Bytes that the machine knows to be read.
    pub(super) taken: u64,
    /// Messages on their way.
    pub in_flight: u32,
    /// The peer has answered since the last one: it has that one, whether or not the network card has said so.
    pub(super) answered: bool,
    /// Waits for a send slot or for a completion.
    pub stalled: bool,
    /// Bytes of it wait for room at the peer.
    pub waits_for_room: bool,
    /// When the peer is given something to read, while they do.
    pub(super) nudge: Nudge,
    /// Positions behind urgent bytes that are still to be sent.
    pub urgent: Option<u64>,
    /// The TCP connection below has ended.
    pub tcp_ended: bool,
    /// By a reset.
    pub tcp_reset: bool,
    /// By this end, since the connection is over.
    pub tcp_told: bool,
    /// The other end is libsmcr.
    pub ours: bool,
    /// Cookie of the TCP connection.
    pub cookie: u64,
    /// A descriptor of the TCP connection, since the program has closed its own.
    pub tcp: Option<i32>,
    /// The peer's end, where the program has not been shown it.
    pub(super) late: Late,
    /// The way back to TCP.
    pub leaving: Leaving,
    /// Its link is down and it can't go on over the other one: there is TCP, or nothing.
    pub(super) stranded: bool,
    /// The peer broke a rule: it may write on into the ring, which is not given to others.
    pub tainted: bool,
    /// That rule is broken because a link was lost with what it had acknowledged.
    pub has_lost: bool,
}

impl Slot {
    /// A connection whose sending ring is ready.
    pub fn new(index: u32, serial: u32, sock: &'static Sock, header: *mut RegionHeader, tx: (Element, u32)) -> Slot {
        Slot {
            index,
            serial,
            record: (sock, sock.generation.load(Relaxed)),
            header,
            tx,
            tx_key: 0,
            rx: None,
            group: None,
            link: 0,
            conn: None,
            joined: false,
            in_handshake: true,
            active: false,
            for_tcp: false,
            on_tcp: false,
            closing: Closing::Open,
            pumped: 0,
            taken: 0,
            in_flight: 0,
            answered: false,
            stalled: false,
            waits_for_room: false,
            nudge: Nudge::NEW,
            urgent: None,
            tcp_ended: false,
            tcp_reset: false,
            tcp_told: false,
            ours: false,
            cookie: 0,
            tcp: None,
            late: Late::No,
            leaving: Leaving::No,
            stranded: false,
            tainted: false,
            has_lost: false,
        }
    }

    pub fn id(&self) -> Id {
        Id { index: self.index, serial: self.serial }
    }

    /// The program's record, while the program has it.
    pub fn sock(&self) -> Option<&'static Sock> {
        let (s, generation) = self.record;
        // Acquire: who has left has said before how (`linked::leave`).
        let same = s.generation.load(Relaxed) == generation && s.link.load(Acquire) == self.index + 1;
        same.then_some(s)
    }

    /// Whether it was made for this record.
    pub fn is_of(&self, s: &Sock) -> bool {
        std::ptr::eq(self.record.0, s)
    }

    /// What the program has done, as its direction is marked.
    fn closing(&self) -> Closing {
        let marks = self.tx_dir().fin.load(Acquire);
        if marks & fin::CLOSED != 0 {
            if marks & fin::RESET != 0 { Closing::Abort } else { Closing::Close }
        } else if marks & fin::WRITE != 0 {
            Closing::Shut
        } else {
            Closing::Open
        }
    }

    /// The last process that had the connection has died without a word: it is closed as the kernel closes it.
    pub(super) fn note_orphan(&self) {
        if !self.active || self.is_leaving() || self.sock().is_some() {
            return;
        }
        let back = self.rx_dir();
        let unread = back.head.load(Acquire) != back.tail.load(Acquire);
        let out = self.tx_dir();
        let said = out.fin.load(Acquire);
        let of_unread = fin::of_unread(unread, said & back.fin.load(Acquire) & fin::WRITE != 0);
        if said & fin::CLOSED == 0 {
            out.fin.fetch_or(fin::WRITE | fin::CLOSED | fin::LEFT | of_unread, Release);
        }
    }

    /// What this end sends.
    pub fn tx_dir(&self) -> &'static Dir {
        // SAFETY: a header page is never unmapped; all its fields are atomics.
        unsafe { &(&*self.header).dirs[0] }
    }

    /// What the peer sends.
    pub fn rx_dir(&self) -> &'static Dir {
        // SAFETY: as above.
        unsafe { &(&*self.header).dirs[1] }
    }

    /// How much the engine keeps in the sending ring until the peer has read it (`engine::tx`).
    fn window(&self) -> u32 {
        let limit = self.sock().map_or(0, |s| s.buffer_limit.load(Relaxed));
        if limit == 0 { self.tx.1 } else { self.tx.1.min(limit.max(RING_MIN as u32)) }
    }

    /// Sends what can be sent by its link; `announces`: a write may announce itself. False: the queue pair is broken.
    pub fn pump(&mut self, link: &mut Link, announces: bool) -> bool {
        self.stalled = false;
        self.free_written();
        let fine = self.send(link, announces);
        self.free_written();
        // Behind a link that is down nothing is waited for.
        self.stalled &= !self.conn.as_ref().is_some_and(Conn::is_cut);
        self.look_for_calm();
        fine
    }

    /// Towards a peer that would say too late what it has read, bytes leave the ring when they have been written
    /// (`proto::smc::conn::window`): when nothing is on its way, which the completion tells.
    fn free_written(&mut self) {
        let Some(conn) = self.conn.as_mut().filter(|c| self.active && c.forgets_written()) else { return };
        // SAFETY: as in `tx_dir`.
        let out = unsafe { &(&*self.header).dirs[0] };
        if out.tail.load(Relaxed) >= self.pumped {
            return;
        }
        if self.in_flight > 0 {
            self.stalled = true;
            return;
        }
        // Release: as in `handle`.
        out.tail.store(conn.forget_written(), Release);
        wake::writer(out);
    }

    fn send(&mut self, link: &mut Link, announces: bool) -> bool {
        self.note_orphan();
        self.closing = self.closing.max(self.closing());
        if self.is_leaving() {
            return true;
        }
        let window = self.window();
        let Some(conn) = &mut self.conn else { return true };
        conn.set_window(window);
        conn.set_reserve(if self.ours { 0 } else { RESERVE });
        self.note_read();
        let Some(conn) = self.conn.as_mut().filter(|_| self.active) else { return true };
        // SAFETY: as in `rx_dir`.
        let out = unsafe { &(&*self.header).dirs[0] };
        let mut is_free = self.in_flight == 0 || self.answered;
        loop {
            // Acquire: the program has copied the bytes in (`engine::tx`).
            let head = out.head.load(Acquire);
            let left = head.wrapping_sub(self.pumped);
            self.urgent = Some(out.urgent.load(Relaxed)).filter(|at| *at > self.pumped);
            if !link.admits(self.index) {
                self.stalled = true;
                return true;
            }
            let hold_back = self.closing == Closing::Open && !is_free && left < u64::from(self.tx.1 / 2) && self.urgent.is_none();
            // Nothing presses: small pieces wait for what is on its way, and for room that is worth a message.
            let presses = self.closing != Closing::Open || self.urgent.is_some();
            let waits = !presses && !conn.is_worth_it(left.min(u64::from(u32::MAX)) as u32);
            is_free = false;
            let mut writes = [Write::default(); WRITES];
            let mut n = 0;
            // First the peer hears that the link is another one.
            let moved = conn.is_moving();
            if left > 0 && hold_back {
                self.stalled = true;
            } else if left > 0 && !waits && !moved && self.closing != Closing::Abort {
                n = take_bytes(conn, self.pumped, left, self.urgent, (self.tx.0, self.tx.1, self.tx_key), &mut writes);
            }
            let bytes: u64 = writes[..n].iter().map(|w| u64::from(w.len)).sum();
            self.pumped += bytes;
            if self.pumped == head || self.closing == Closing::Abort || conn.write(0, false).is_err() {
                match self.closing {
                    Closing::Open => {}
                    Closing::Shut => conn.shutdown(),
                    Closing::Close => {
                        conn.shutdown();
                        if out.fin.load(Relaxed) & fin::OVER != 0 { conn.close_ended() } else { conn.close() }
                    }
                    Closing::Abort => conn.abort(),
                }
            }
            // Where a ring ends in the middle there are more, and one message for all, so that what was sent in one call comes in one.
            let alone = if n == 1 && announces { conn.poll_immediate(writes[0].len) } else { None };
            let posted = match alone {
                Some(immediate) => link.post_write(&writes[0], immediate, self.index),
                None => match conn.poll_cdc() {
                    Some(message) => link.post(&writes[..n], &message, self.index),
                    None => return true,
                },
            };
            if !posted {
                return false;
            }
            self.in_flight += 1;
            self.answered = false;
            let is_all = alone.is_some() && self.closing == Closing::Open && self.urgent.is_none() && out.head.load(Relaxed) == self.pumped;
            // What announces itself leaves nothing to be said.
            if bytes == 0 && !moved || is_all {
                return true;
            }
        }
    }

    /// Whether bytes are left that nothing but the peer's room keeps here. As it was before the last call of [`Slot::pump`], and now.
    pub fn look_at_room(&mut self) -> (bool, bool) {
        let left = self.tx_dir().head.load(Relaxed) != self.pumped;
        // Nor where nobody takes them any more.
        let sendable = |conn: &mut Conn| conn.write(0, false).is_ok();
        let waits = left && self.active && !self.stalled && !self.is_leaving() && self.conn.as_mut().is_some_and(sendable);
        (std::mem::replace(&mut self.waits_for_room, waits), waits)
    }

    /// Its link is another one from now on: nothing that is on its way by the old one counts. How many messages that were.
    pub fn move_to(&mut self, link: usize) -> u32 {
        self.link = link;
        self.ask_again();
        std::mem::take(&mut self.in_flight)
    }

    /// Goes on where the peer's ring has this name. One that leaves for TCP says nothing there, unless it comes back.
    pub fn go_on(&mut self, rkey: Rkey, address: u64, uncompleted: u32) {
        if let Some(conn) = &mut self.conn {
            conn.move_to_link(rkey, address, uncompleted);
            self.pumped = conn.sent_bytes().0;
        }
    }

    /// Whether nothing is left to be done for it: ring and number may be given up.
    pub fn is_finished(&self, group_over: bool) -> bool {
        if self.in_handshake || self.is_on_way_back() {
            return false;
        }
        let said = self.conn.as_ref().is_none_or(|c| c.is_finished() && self.in_flight == 0);
        let left = self.tx_dir().fin.load(Acquire) & fin::LEFT != 0;
        left && (said || group_over)
    }
}

/// The token by which the peer names a connection.
pub fn token(index: u32, generation: u16) -> Option<Token> {
    Token::new(u32::from(generation) << 16 | (index + 1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::rig;
    use crate::link::state::State;
    use smcr_proto::smc::cdc::{Cdc, ConnFlags, ProducerFlags};
    use smcr_proto::smc::cursor::Cursor;
    use smcr_proto::smc::handshake::Role;

    #[test]
    fn tokens_are_never_zero_and_name_the_slot() {
        for (index, generation) in [(0, 0), (4095, 0xffff), (17, 3)] {
            let t = token(index, generation).unwrap().value();
            assert_eq!((t & 0xffff) - 1, index);
        }
    }

    #[test]
    fn one_that_is_dead_waits_for_nothing() {
        let (mut all, place, id) = rig::one(Role::Client, 1);
        let State { slots, groups, .. } = &mut all;
        let (slot, link) = (slots[id.index as usize].as_mut().unwrap(), &mut groups[place].as_mut().unwrap().links[0]);
        slot.tx_dir().head.store(10, Relaxed);
        link.is_down = true;
        slot.link_down();
        assert!(slot.pump(link, false));
        assert_eq!((slot.stalled, slot.look_at_room()), (false, (false, false)));

        let (mut all, _, id) = rig::one(Role::Client, 1);
        let slot = rig::slot(&mut all, id);
        slot.tx_dir().head.store(10, Relaxed);
        assert_eq!(slot.look_at_room(), (false, true));
        let (token, zero) = (token(id.index, 0).unwrap(), Cursor::ZERO);
        let flags = (ProducerFlags::empty(), ConnFlags::CLOSED);
        let cdc = Cdc { sequence: 1, token, producer: zero, consumer: zero, producer_flags: flags.0, conn_flags: flags.1 };
        slot.handle_cdc(&cdc).unwrap();
        assert_eq!(slot.look_at_room(), (true, false), "its peer reads no more");
    }
}
