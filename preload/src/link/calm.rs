//! A calm connection: both ends are open, the peer is libsmcr, and it has to hear of what the program reads when that is half of the ring.
//!
//! Most connections are, most of the time. The link need not be called for each read then ([`Dir::quiet`](crate::layout::Dir::quiet)), nor
//! does an arrival make it send anything. Called by [`super::slot`] behind all that it sends, and by [`super::arrive`].

use super::ending::Late;
use super::lock::mark;
use super::slot::{Closing, Slot};
use crate::layout::fin;
use crate::sys::thread::full_fence;
use smcr_proto::smc::conn::Conn;
use std::sync::atomic::Ordering::*;

impl Slot {
    /// Tells the machine what the program has read.
    pub(super) fn note_read(&mut self) {
        // Acquire: the program has copied the bytes out (`engine::rx`).
        let read = self.rx_dir().tail.load(Acquire);
        if let Some(conn) = self.conn.as_mut().filter(|_| read != self.taken) {
            conn.consume(read.wrapping_sub(self.taken) as u32);
            self.taken = read;
        }
    }

    /// Until when reads are of no interest from now on.
    pub(super) fn look_for_calm(&mut self) {
        let until = match self.unheeded() {
            0 => 0,
            n => self.taken + u64::from(n),
        };
        if self.has_read_beyond(until) {
            mark(self.index);
        }
    }

    fn unheeded(&self) -> u32 {
        self.conn.as_ref().filter(|_| self.is_plain()).map_or(0, Conn::unheeded)
    }

    /// Reads count from there on. Whether there was one meanwhile that counts now and did not.
    fn has_read_beyond(&self, until: u64) -> bool {
        let back = self.rx_dir();
        if back.quiet.swap(until, Relaxed) <= until {
            return false;
        }
        // Pairs with the fence in `engine::bell::ring_space`: either this sees what was read, or that one sees that it counts.
        full_fence();
        back.tail.load(Acquire) != self.taken
    }

    /// Whether nothing is to be sent, or looked at, because of what has just arrived: for one that was calm before.
    pub(super) fn stays_calm(&mut self) -> bool {
        if self.rx_dir().quiet.load(Relaxed) == 0 || self.stalled || self.waits_for_room {
            return false;
        }
        self.note_read();
        let has_more = self.tx_dir().head.load(Acquire) != self.pumped;
        !has_more && !self.is_asked() && self.unheeded() > 0 && self.conn.as_ref().is_some_and(|c| !c.is_message_due())
    }

    /// Whether data is all that either end has to say, and the program has the connection.
    pub(super) fn is_plain(&self) -> bool {
        let marks = self.tx_dir().fin.load(Relaxed) & !fin::LINGER0 | self.rx_dir().fin.load(Relaxed);
        let is_open = self.closing == Closing::Open && marks == 0;
        let is_settled = self.active && !self.in_handshake && !self.is_leaving() && !self.stranded && !self.tcp_ended && self.late == Late::No;
        self.ours && is_open && is_settled && self.tcp.is_none() && self.sock().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::rig;
    use crate::link::state::State;
    use smcr_proto::smc::cdc::{Cdc, ConnFlags, ProducerFlags};
    use smcr_proto::smc::cursor::Cursor;
    use smcr_proto::smc::handshake::Role;

    fn pump(all: &mut State, place: usize, index: u32) {
        let State { slots, groups, .. } = all;
        slots[index as usize].as_mut().unwrap().pump(&mut groups[place].as_mut().unwrap().links[0], true);
    }

    fn message(slot: &Slot, count: u32, producer_flags: ProducerFlags) -> Cdc {
        let (token, producer) = (slot.conn.as_ref().unwrap().token(), Cursor { wrap: 0, count });
        Cdc { sequence: 1, token, producer, consumer: Cursor::ZERO, producer_flags, conn_flags: ConnFlags::empty() }
    }

    #[test]
    fn reads_count_from_half_of_the_ring_on() {
        let (mut all, place, id) = rig::one(Role::Client, 1);
        let half = u64::from(rig::SIZE.bytes() / 2);
        pump(&mut all, place, id.index);
        let slot = rig::slot(&mut all, id);
        assert_eq!(slot.rx_dir().quiet.load(Relaxed), half);
        slot.handle_cdc(&message(slot, 100, ProducerFlags::empty())).unwrap();
        slot.rx_dir().tail.store(60, Relaxed);
        assert!(slot.stays_calm());
        assert_eq!((slot.taken, slot.rx_dir().quiet.load(Relaxed)), (60, half), "what was read is known");
        slot.tx_dir().head.store(5, Relaxed);
        assert!(!slot.stays_calm(), "there is something to send");
    }

    #[test]
    fn each_read_counts_where_the_peer_asks_or_either_side_ends() {
        let asks = |slot: &mut Slot| slot.handle_cdc(&message(slot, 100, ProducerFlags::UPDATE_REQUESTED)).map(drop).unwrap();
        let ends = |slot: &mut Slot| slot.tx_dir().fin.store(fin::WRITE, Relaxed);
        let is_a_kernel = |slot: &mut Slot| slot.ours = false;
        let doubts = |slot: &mut Slot| slot.doubts_end();
        let nobody = |slot: &mut Slot| slot.sock().unwrap().link.store(0, Relaxed);
        let cases: [fn(&mut Slot); 5] = [asks, ends, is_a_kernel, doubts, nobody];
        for (n, case) in cases.into_iter().enumerate() {
            let (mut all, place, id) = rig::one(Role::Client, 1);
            pump(&mut all, place, id.index);
            let slot = rig::slot(&mut all, id);
            case(slot);
            assert!(!slot.stays_calm(), "case {n}");
            slot.rx_dir().tail.store(slot.taken + 1, Relaxed); // read while the link was thought to be calm
            assert_eq!(slot.unheeded(), 0, "case {n}");
            assert!(slot.has_read_beyond(0), "case {n}: it is looked at once more");
            assert!(!slot.has_read_beyond(0), "case {n}: once");
        }
    }
}
