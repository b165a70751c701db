//! The links between the two ends: what was posted arrives in order, or is lost where one is cut.

use smcr_proto::smc::cdc::{self, Cdc, ProducerFlags};

use super::{CLIENT, Pair, SERVER, Slot, Work};

impl Pair {
    pub(super) fn deliver(&mut self, from: usize, link: usize) {
        let is_alive = self.ends[from].group.is_some();
        let to = &mut self.ends[1 - from];
        match self.wire[from][link].pop_front().unwrap() {
            _ if to.group.is_none() => {}
            Work::Write(address, bytes) => {
                let inside = |slot: &&mut Slot| {
                    let start = slot.own.ring_address().unwrap() + base(link);
                    start <= address && address + bytes.len() as u64 <= start + slot.ring.len() as u64
                };
                let slot = to.slots.iter_mut().find(inside).expect("a write into a ring");
                // Of a dead link something may still come; the ring is then nobody else's.
                assert!(!is_alive || !slot.has_given_its_ring_up(), "a write into a ring that was given up");
                let at = (address - slot.own.ring_address().unwrap() - base(link)) as usize;
                slot.ring[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Work::Send(bytes) => match cdc::peek_token(&bytes) {
                Ok(token) => {
                    let place = to.slots.iter().position(|slot| slot.conn.token() == token).expect("a token");
                    to.slots[place].arrived[link].push_back(bytes);
                    let sender = &mut self.ends[from].slots[place];
                    // After a failover it counts no more; a test may have sent by itself.
                    if sender.link == link {
                        sender.uncompleted = sender.uncompleted.saturating_sub(1);
                    }
                }
                Err(_) => to.llc.push_back((link, bytes)),
            },
        }
    }

    pub(super) fn take_cdc(&mut self, end: usize, place: usize, link: usize) {
        let now = self.now;
        if let Some((_, group)) = &mut self.ends[end].group {
            group.handle_arrival(now, link);
        }
        self.pump_group(end);
        let slot = &mut self.ends[end].slots[place];
        let message = Cdc::parse(&slot.arrived[link].pop_front().unwrap()).unwrap();
        let moved = message.producer_flags.contains(ProducerFlags::FAILOVER);
        let old = slot.link;
        if moved && old != link {
            self.notice(end, old);
        }
        let slot = &mut self.ends[end].slots[place];
        if slot.back.has_stated() {
            return; // it comes again
        }
        match slot.conn.handle_cdc(&message) {
            Ok(update) => {
                if let Some(at) = update.urgent {
                    slot.urgent = Some(slot.ring[at as usize]);
                }
            }
            Err(violation) => slot.violation = Some(violation),
        }
        slot.dirty = true;
    }

    /// Posts a message to a link.
    pub fn send(&mut self, end: usize, link: usize, message: Vec<u8>) {
        if self.link_up[link] {
            self.wire[end][link].push_back(Work::Send(message));
        }
    }

    /// A link is cut: of what was on its way a part still arrives.
    pub fn cut(&mut self, link: usize) {
        self.link_up[link] = false;
        for end in [CLIENT, SERVER] {
            let left = self.random(self.wire[end][link].len() + 1);
            self.wire[end][link].truncate(left);
        }
    }

    /// A path that was cut carries again; what was on its way has gone.
    pub fn mend(&mut self, link: usize) {
        self.link_up[link] = true;
        for end in [CLIENT, SERVER] {
            self.wire[end][link].clear();
        }
    }

    /// An end has a new queue pair in the place of a link: nothing of the old one arrives any more.
    pub(super) fn renew(&mut self, end: usize, link: usize) {
        self.wire[1 - end][link].clear();
        self.ends[end].rts[link] = false;
        for slot in &mut self.ends[end].slots {
            assert_ne!(slot.link, link, "nobody uses it any more");
            slot.arrived[link].clear();
        }
    }
}

/// What the memories of both ends lie at more on a link than on the first.
pub const fn base(link: usize) -> u64 {
    (link as u64) << 60
}
