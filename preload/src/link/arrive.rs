//! What arrives and what becomes due: completions, time, marks. The busy half of [`State`].

use super::awake::STEP;
use super::cover;
use super::failover::{Arrival, What};
use super::group::Group;
use super::lock::{self, MARKED, MARKS, STALLED, mark, now};
use super::slot::{Closing, Slot};
use super::state::State;
use crate::family::links;
use crate::log;
use crate::verbs::device::{Batch, Completion, MESSAGE, MOST, SENT};
use smcr_proto::smc::Time;
use smcr_proto::smc::cdc::{self, Cdc};
use smcr_proto::smc::id::Rkey;
use smcr_proto::smc::immediate::Immediate;
use smcr_proto::smc::link::LINKS;
use smcr_proto::smc::llc::{Message, TestLink};
use std::sync::atomic::Ordering::*;

/// Rounds of completions that are taken from the devices before the lock is let go: who floods a link must not keep all others from theirs.
const ROUNDS: u32 = 256;

/// How much is taken while the lock is held, and from which device first.
pub(super) struct Turn {
    rounds: u32,
    first: usize,
}

impl Turn {
    pub const NEW: Turn = Turn { rounds: ROUNDS, first: 0 };

    /// The lock is taken. Another device comes first, of so many.
    pub fn begin(&mut self, devices: usize) {
        self.rounds = ROUNDS;
        self.first = if self.first + 1 < devices { self.first + 1 } else { 0 };
    }
}

impl State {
    /// Somebody has left something to do, and no mark (a forked child): looks at all connections.
    pub fn mark_all(&mut self) {
        for slot in self.slots.iter().flatten() {
            mark(slot.index);
        }
    }

    /// Sends for all connections with a mark.
    pub(super) fn flush_marked(&mut self) {
        while MARKED.load(Relaxed) != 0 || self.has_room {
            // Acquire pairs with the Release in `mark`.
            for word in ones(MARKED.swap(0, Acquire)) {
                for bit in ones(MARKS[word as usize].swap(0, AcqRel)) {
                    self.pump(word * 64 + bit);
                }
            }
            self.serve_lines();
        }
    }

    /// Gives the slots that have come free to who waits for them.
    fn serve_lines(&mut self) {
        if !std::mem::take(&mut self.has_room) {
            return;
        }
        for (place, link) in (0..self.groups.len()).flat_map(|place| (0..LINKS).map(move |link| (place, link))) {
            let next = |all: &mut State| all.groups[place].as_mut()?.links.get_mut(link)?.next_in_line();
            while let Some(index) = next(self) {
                self.pump(index);
            }
        }
    }

    /// Sends for one connection.
    pub fn pump(&mut self, index: u32) {
        #[cfg(feature = "faults")]
        super::forge::look(self, index);
        let Some(slot) = self.slot(index) else { return };
        let mut is_asked = slot.is_asked();
        // Whether an earlier message has completed decides whether to hold back, unless the peer has answered.
        if slot.in_flight > 0 && !(slot.answered && slot.is_plain()) {
            self.poll();
            is_asked = self.slot(index).is_some_and(|s| s.is_asked());
        }
        if is_asked {
            self.want_back(index);
        }
        let slot = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut);
        let Some(slot) = slot else { return };
        if slot.on_tcp && slot.sock().is_none() {
            return self.release(index); // a forked child had it last
        }
        let Some(group) = slot.group.and_then(|g| self.groups.get_mut(g)?.as_mut()) else { return };
        let was = slot.stalled;
        let (immediate, over) = (group.immediate, group.over.is_some());
        let link = &mut group.links[slot.link];
        let fine = slot.pump(link, immediate);
        let (is, at) = (slot.stalled, (slot.group, slot.link));
        let waits = slot.look_at_room();
        match waits {
            (false, true) => cover::rest::room_is_waited_for(),
            (true, false) => cover::rest::room_is_not_waited_for(),
            _ => {}
        }
        if slot.tcp.is_some() && slot.has_said_all() {
            slot.let_tcp_go();
        }
        slot.end_tcp();
        let finished = slot.is_finished(over);
        if is && !was && STALLED.fetch_add(1, Relaxed) == 0 {
            // Completions of messages end sleeps from now on as well; one may have come meanwhile.
            cover::wants_all(self);
            cover::call_up();
            self.poll();
        } else if was && !is {
            STALLED.fetch_sub(1, Relaxed);
        }
        if !fine && let (Some(place), link) = at {
            log::warn!(target: "smcr::link", link, "the network card takes no more: the link is given up");
            self.fail_link(place, link);
        } else if finished {
            self.release(index);
        } else {
            if waits.1 {
                self.note_wait(index);
            }
            self.ask_behind_end(index);
        }
    }

    /// Takes what has arrived or completed on all devices; true if there was something. Where there is much the service thread is
    /// called for the rest.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.look(false)
    }

    /// The same, and all that is there now is taken.
    pub fn poll_all(&mut self) -> bool {
        self.look(true)
    }

    fn look(&mut self, whole: bool) -> bool {
        let mut any = self.poll_devices(whole);
        if !self.held.is_empty() {
            // What is held came by one link; this brings what had come by the other.
            self.poll_devices(true);
            self.release_held();
            any = true;
        }
        any
    }

    fn poll_devices(&mut self, whole: bool) -> bool {
        if self.turn.rounds == 0 && !whole {
            return false; // the service thread is called
        }
        let (mut any, mut is_cut, mut number) = (false, false, self.turn.first);
        let mut batch = Batch::EMPTY;
        for _ in 0..self.devices.len() {
            number = if number < self.devices.len() { number } else { 0 };
            let most = if whole { self.devices[number].rounds() } else { self.turn.rounds };
            let mut round = 0;
            loop {
                if round == most {
                    is_cut = true;
                    break;
                }
                let done = self.devices[number].poll(&mut batch, round as usize);
                let n = done.len();
                any |= n > 0;
                for c in done {
                    match c.immediate {
                        Some(value) if c.arrived => self.written(number, &c, value),
                        _ if c.arrived => self.arrived(number, &c),
                        _ => self.sent(number, &c),
                    }
                }
                if n < MOST {
                    break;
                }
                round += 1;
            }
            if !whole {
                self.turn.rounds -= round;
            }
            number += 1;
        }
        if is_cut {
            lock::call_service();
        }
        any
    }

    /// The group and the link of a queue pair.
    fn link_of(&self, number: usize, qpn: u32) -> Option<(usize, usize)> {
        let of = |(place, g): (usize, &Option<Group>)| {
            let link = g.as_ref()?.links.iter().position(|l| l.is(number, qpn))?;
            Some((place, link))
        };
        self.groups.iter().enumerate().find_map(of)
    }

    /// The card says that a link is broken.
    fn refused(&mut self, place: usize, link: usize, c: &Completion) {
        if self.groups[place].as_ref().is_some_and(|g| !g.links[link].is_down) {
            log::warn!(target: "smcr::link", link, status = c.status, receive = c.arrived, "the network card reports an error: the link is given up");
        }
        self.fail_link(place, link);
    }

    fn sent(&mut self, number: usize, c: &Completion) {
        let index = (c.id & u64::from(u32::MAX)) as u32;
        let found = self.link_of(number, c.qpn);
        let Some((place, link)) = found else { return };
        #[cfg(feature = "faults")]
        if (c.id & !SENT) >> 32 == super::one::FORGED {
            super::forge::completed(c.status);
        }
        let Some(group) = &mut self.groups[place] else { return };
        let was_down = group.links[link].is_down;
        if c.status != 0 && !was_down {
            return self.refused(place, link, c);
        }
        group.completed(&self.devices, link, ((c.id & !SENT) >> 32) as u32);
        if was_down {
            return;
        }
        group.flush();
        if let Some(slot) = self.slot(index).filter(|s| s.group == Some(place) && s.link == link) {
            slot.in_flight = slot.in_flight.saturating_sub(1);
            let left = slot.tx_dir().head.load(Relaxed) != slot.pumped;
            if slot.stalled || left || slot.closing > Closing::Open {
                mark(index);
            }
        }
        self.has_room = true;
    }

    /// A write of `len` bytes announces itself.
    fn written(&mut self, number: usize, c: &Completion, value: u32) {
        let Some((place, link)) = self.link_of(number, c.qpn) else { return };
        let is_starved = if let Some(Ok(domain)) = self.groups[place].as_ref().map(|g| g.links[link].domain()) {
            domain.give_back(c.id);
            domain.is_starved()
        } else {
            false
        };
        if c.status != 0 || is_starved {
            return self.refused(place, link, c);
        }
        let Some(group) = self.groups[place].as_mut().filter(|g| g.immediate) else { return };
        let now = now();
        group.links[link].heard(now);
        group.handle_arrival(link, now);
        let immediate = Immediate::parse(value);
        let index = u32::from(immediate.number()).wrapping_sub(1) & 0xfff;
        self.take_or_hold(Arrival { place, link, index, what: What::Write(c.len, immediate) });
    }

    /// A message for a connection has been taken.
    pub(super) fn took(&mut self, place: usize, link: usize, index: u32, bytes: u32) {
        if !self.slot(index).is_some_and(Slot::stays_calm) {
            mark(index);
        }
        if bytes > 0 {
            self.note_unseen(index, false);
        }
        if let Some(group) = &mut self.groups[place] {
            group.links[link].bytes[1] += u64::from(bytes);
        }
    }

    fn arrived(&mut self, number: usize, c: &Completion) {
        let mut message = [0; MESSAGE];
        let Some((place, link)) = self.link_of(number, c.qpn) else { return };
        let Some(Ok(domain)) = self.groups[place].as_ref().map(|g| g.links[link].domain()) else { return };
        let Some(n) = domain.take_message(c.id, c.len, &mut message) else { return };
        if c.status != 0 || domain.is_starved() {
            return self.refused(place, link, c);
        }
        let now = now();
        let message = &message[..n];
        let Some(group) = &mut self.groups[place] else { return };
        group.links[link].heard(now);
        if let Ok(cdc) = Cdc::parse(message) {
            group.handle_arrival(link, now);
            let index = (cdc.token.value() & 0xffff).wrapping_sub(1);
            self.take_or_hold(Arrival { place, link, index, what: What::Message(cdc) });
        } else if cdc::peek_token(message).is_err() {
            let llc = Message::parse_first(message, c.len as usize).ok();
            group.handle_llc(&self.devices, link, now, llc);
            self.has_room = true; // a link may have become ready
            self.look_at_group(place);
            if let Some((_, Message::TestLink(TestLink { response: true, user_data }))) = llc {
                self.answered(place, link, u128::from_be_bytes(user_data));
            }
        }
    }

    /// Does what has become due; gives when to come again.
    pub fn tick(&mut self) -> Option<Time> {
        self.second_links();
        let now = now();
        let mut next = [self.look_at_unseen(), self.nudge(now)].into_iter().flatten().min();
        let count_from = self.awake.look(now);
        for place in 0..self.groups.len() {
            if count_from <= now
                && let Some(group) = &mut self.groups[place]
            {
                group.tick(&self.devices, now);
                self.look_at_group(place);
                self.give_up_answers(place, now);
            }
            let Some(group) = &mut self.groups[place] else { continue };
            let mut at = group.timeout().map(|at| at.max(count_from));
            if group.awaits() || group.is_busy(now) {
                at = Some(at.map_or(now + STEP, |at| at.min(now + STEP)));
            }
            if group.over.is_some() {
                match group.lasts_until() {
                    Some(until) if until > now => at = Some(until),
                    _ => group.silence(&self.devices),
                }
                if group.links.iter().all(|l| l.qp.is_none()) && group.users == 0 {
                    if let Some(mut group) = self.groups[place].take() {
                        for link in &mut group.links {
                            self.close_link(link, Some(&mut group.rings));
                        }
                        self.give_back(&group.retired);
                        group.rings.destroy();
                    }
                    continue;
                }
            }
            next = [next, at].into_iter().flatten().min();
        }
        self.show();
        lock::comes_at(next);
        self.awake.comes_at(next);
        next
    }

    /// Shows all links in the family page.
    fn show(&mut self) {
        let mut shown = 0;
        for (place, group) in self.groups.iter().enumerate() {
            let Some(group) = group else { continue };
            for record in (0..group.links.len()).filter_map(|link| group.record(place, link, &self.devices)) {
                links::show(shown, Some(&record));
                shown += 1;
            }
        }
        for empty in shown..self.shown {
            links::show(empty, None);
        }
        self.shown = shown;
    }

    /// The group's machine has run: what it means for the connections.
    pub fn look_at_group(&mut self, place: usize) {
        let Some(group) = &mut self.groups[place] else { return };
        let withdrawn = std::mem::take(&mut group.withdrawn);
        let over = group.over.is_some();
        if group.links.iter().any(|l| l.is_down) && !over {
            self.move_connections(place);
        }
        if withdrawn.is_empty() && !over {
            return;
        }
        let its: Vec<u32> = self.slots.iter().flatten().filter(|s| s.group == Some(place)).map(|s| s.index).collect();
        for index in its {
            if !withdrawn.is_empty()
                && let Some(slot) = self.slot(index)
            {
                let keys: Vec<Rkey> = withdrawn.iter().filter(|(link, _)| *link == slot.link).map(|(_, key)| *key).collect();
                slot.withdrawn(&keys);
                mark(index);
            }
            if over
                && !self.want_back(index)
                && let Some(slot) = self.slot(index)
            {
                slot.link_down();
                mark(index);
                if slot.is_finished(true) {
                    self.release(index);
                }
            }
        }
    }
}

/// Places of the bits that are set.
fn ones(mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let at = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (at < u64::BITS).then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_comes_first_in_its_turn() {
        let mut turn = Turn::NEW;
        for devices in [0, 1] {
            turn.begin(devices);
            assert_eq!((turn.rounds, turn.first), (ROUNDS, 0));
        }
        let firsts: Vec<usize> = (0..5).map(|_| (turn.begin(2), turn.first).1).collect();
        assert_eq!(firsts, [1, 0, 1, 0, 1]);
        turn.rounds = 3;
        turn.begin(1); // one has been closed
        assert_eq!((turn.rounds, turn.first), (ROUNDS, 0));
    }

    #[test]
    fn each_bit_is_named_once() {
        for (bits, places) in [(0, vec![]), (1, vec![0]), (1 << 63 | 0b110, vec![1, 2, 63]), (!0, (0..64).collect())] {
            assert_eq!(ones(bits).collect::<Vec<u32>>(), places);
        }
    }
}
