//! What arrives and what becomes due: completions, time, marks. The busy half of [`State`].

use super::lock::{MARKED, MARKS, STALLED, mark, now};
use super::slot::Closing;
use super::state::State;
use crate::family::links;
use crate::verbs::device::{Completion, MESSAGE, SENT};
use smcr_proto::smc::Time;
use smcr_proto::smc::cdc::{self, Cdc};
use smcr_proto::smc::immediate::Immediate;
use std::sync::atomic::Ordering::*;

/// How long a group that is over keeps its queue pair, for its last message.
const LAST_WORDS: Time = Time::from_millis(200);

impl State {
    /// Somebody has left something to do, and no mark (a forked child): looks at all connections.
    pub fn mark_all(&mut self) {
        for slot in self.slots.iter().flatten() {
            mark(slot.index);
        }
    }

    /// Sends for all connections with a mark.
    pub(super) fn flush_marked(&mut self) {
        while MARKED.swap(0, AcqRel) != 0 {
            for (word, marks) in MARKS.iter().enumerate() {
                if marks.load(Relaxed) == 0 {
                    continue;
                }
                let mut bits = marks.swap(0, AcqRel);
                while bits != 0 {
                    self.pump((word * 64) as u32 + bits.trailing_zeros());
                    bits &= bits - 1;
                }
            }
        }
    }

    /// Sends for one connection.
    pub fn pump(&mut self, index: u32) {
        // Whether an earlier message has completed decides whether to hold back.
        if self.slot(index).is_some_and(|s| s.in_flight > 0) {
            self.poll();
        }
        if self.slot(index).is_some_and(|s| s.is_asked()) {
            self.want_back(index);
        }
        let slot = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut);
        let Some(slot) = slot else { return };
        let Some(group) = slot.group.and_then(|g| self.groups.get_mut(g)?.as_mut()) else { return };
        let was = slot.stalled;
        let fine = slot.pump(group);
        let (is, group_at) = (slot.stalled, slot.group);
        if slot.tcp.is_some() && slot.has_said_all() {
            slot.let_tcp_go();
        }
        let finished = slot.is_finished(group.over.is_some());
        if is && !was && STALLED.fetch_add(1, Relaxed) == 0 {
            // Completions of messages end sleeps from now on as well; one may have come meanwhile.
            self.devices[group.device].arm(true);
            self.poll();
        } else if was && !is {
            STALLED.fetch_sub(1, Relaxed);
        }
        if !fine && let Some(place) = group_at {
            self.fail_group(place);
        } else if finished {
            self.release(index);
        }
    }

    /// Takes what has arrived or completed on all devices; true if there was something.
    pub fn poll(&mut self) -> bool {
        let mut any = false;
        for number in 0..self.devices.len() {
            let mut done = [Completion { id: 0, status: 0, arrived: false, len: 0, immediate: None, qpn: 0 }; 16];
            loop {
                let n = self.devices[number].poll(&mut done);
                any |= n > 0;
                for c in &done[..n] {
                    match c.immediate {
                        Some(value) if c.arrived => self.written(number, c, value),
                        _ if c.arrived => self.arrived(number, c),
                        _ => self.sent(number, c),
                    }
                }
                if n < done.len() {
                    break;
                }
            }
        }
        any
    }

    fn group_of(&self, number: usize, qpn: u32) -> Option<usize> {
        self.groups.iter().position(|g| {
            let Some(g) = g else { return false };
            g.device == number && g.qp.as_ref().is_some_and(|q| q.number().value() == qpn)
        })
    }

    fn sent(&mut self, number: usize, c: &Completion) {
        let index = (c.id & u64::from(u32::MAX)) as u32;
        let place = self.group_of(number, c.qpn);
        if c.status != 0 {
            if let Some(place) = place {
                self.fail_group(place);
            }
            return;
        }
        if let Some(group) = place.and_then(|p| self.groups[p].as_mut()) {
            group.completed(((c.id & !SENT) >> 32) as u32);
            group.flush();
        }
        if let Some(slot) = self.slot(index) {
            slot.in_flight = slot.in_flight.saturating_sub(1);
            let left = slot.tx_dir().head.load(Relaxed) != slot.pumped;
            if slot.stalled || left || slot.closing >= Closing::Close {
                mark(index);
            }
        }
        // Others may have waited for the slot.
        if STALLED.load(Relaxed) > 0 {
            for slot in self.slots.iter().flatten().filter(|s| s.stalled && s.group == place) {
                mark(slot.index);
            }
        }
    }

    /// A write of `len` bytes announces itself.
    fn written(&mut self, number: usize, c: &Completion, value: u32) {
        self.devices[number].give_back(c.id);
        let Some(place) = self.group_of(number, c.qpn) else { return };
        if c.status != 0 {
            return self.fail_group(place);
        }
        let Some(group) = self.groups[place].as_mut().filter(|g| g.immediate) else { return };
        group.messages[1] += 1;
        group.handle_arrival(now());
        let immediate = Immediate::parse(value);
        let index = u32::from(immediate.number()).wrapping_sub(1) & 0xfff;
        let slot = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut);
        // As in `arrived`.
        let Some(slot) = slot.filter(|s| s.group == Some(place)) else { return };
        let bytes = slot.handle_immediate(c.len, immediate);
        self.took(place, index, bytes);
    }

    /// A message for a connection has been taken.
    fn took(&mut self, place: usize, index: u32, bytes: u32) {
        mark(index);
        if bytes > 0 {
            self.note_unseen(index, false);
        }
        if let Some(group) = &mut self.groups[place] {
            group.bytes[1] += u64::from(bytes);
        }
    }

    fn arrived(&mut self, number: usize, c: &Completion) {
        let mut message = [0; MESSAGE];
        let Some(n) = self.devices[number].take_message(c.id, c.len, &mut message) else { return };
        let Some(place) = self.group_of(number, c.qpn) else { return };
        if c.status != 0 {
            return self.fail_group(place);
        }
        let now = now();
        let message = &message[..n];
        if let Some(group) = &mut self.groups[place] {
            group.messages[1] += 1;
        }
        if let Ok(cdc) = Cdc::parse(message) {
            if let Some(group) = &mut self.groups[place] {
                group.handle_arrival(now);
            }
            let index = (cdc.token.value() & 0xffff).wrapping_sub(1);
            let slot = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut);
            // The token is looked up in the whole process, so the group is checked as well.
            if let Some(slot) = slot.filter(|s| s.group == Some(place)) {
                let bytes = slot.handle_cdc(&cdc);
                self.took(place, index, bytes);
            }
        } else if cdc::peek_token(message).is_err()
            && let Some(group) = &mut self.groups[place]
        {
            let device = &self.devices[number];
            group.handle_llc(device, now, message);
            self.look_at_group(place);
        }
    }

    /// Does what has become due; gives when to come again.
    pub fn tick(&mut self) -> Option<Time> {
        let now = now();
        let mut next = self.look_at_unseen();
        for place in 0..self.groups.len() {
            let Some(group) = &mut self.groups[place] else { continue };
            group.tick(&self.devices[group.device], now);
            self.look_at_group(place);
            let Some(group) = &mut self.groups[place] else { continue };
            let mut at = group.timeout();
            if let Some(since) = group.over {
                if group.is_quiet() || since + LAST_WORDS <= now {
                    group.silence(&self.devices[group.device]);
                } else {
                    at = Some(since + LAST_WORDS);
                }
                if group.qp.is_none() && group.users == 0 {
                    links::show(place, None);
                    if let Some(group) = self.groups[place].take() {
                        group.rings.destroy(&self.devices[group.device]);
                    }
                    continue;
                }
            }
            group.show(place, &self.devices[group.device]);
            next = [next, at].into_iter().flatten().min();
        }
        next
    }

    /// The group's machine has run: what it means for the connections.
    pub fn look_at_group(&mut self, place: usize) {
        let Some(group) = &mut self.groups[place] else { return };
        let withdrawn = std::mem::take(&mut group.withdrawn);
        let over = group.over.is_some();
        if withdrawn.is_empty() && !over {
            return;
        }
        let its: Vec<u32> =
            self.slots.iter().flatten().filter(|s| s.group == Some(place)).map(|s| s.index).collect();
        for index in its {
            if !withdrawn.is_empty() && let Some(slot) = self.slot(index) {
                slot.withdrawn(&withdrawn);
                mark(index);
            }
            if over && !self.want_back(index) && let Some(slot) = self.slot(index) {
                slot.link_down();
                if slot.is_finished(true) {
                    self.release(index);
                }
            }
        }
    }

    /// The link of a group is broken.
    pub fn fail_group(&mut self, place: usize) {
        if let Some(group) = &mut self.groups[place] {
            group.fail(&self.devices[group.device], now());
            group.over.get_or_insert(now());
        }
        self.look_at_group(place);
    }
}
