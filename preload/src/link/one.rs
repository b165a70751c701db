//! One link of a group: its queue pair, the messages that are on their way, room for them.
//!
//! Made by [`super::state`], owned by [`super::group`], written to by the connections that use it
//! ([`super::slot`]). A link that is down keeps its queue pair, in error, to the end of the group: what had arrived by it
//! is still told from what belongs to nobody.

use super::ending::Questions;
use super::line::Line;
use super::lock::{self, now};
use super::patience::Patience;
use super::pool::Pool;
use crate::sys::{Errno, Res};
use crate::verbs::device::Device;
use crate::verbs::domain::Domain;
use crate::verbs::port::Port;
use crate::verbs::qp::{QueuePair, Remote, Room, Write};
use smcr_proto::smc::Time;
use smcr_proto::smc::id::{Gid, Mac, Psn, Qpn};
use smcr_proto::smc::llc::{Family, Frame, Message, TestLink};
use std::collections::VecDeque;

/// Messages that may be on their way: a kernel peer has 48 receives.
const SLOTS: u32 = 16;
/// The same with LLC, which may not wait behind data.
const SLOTS_LLC: u32 = 20;

/// Place of what needs none in the room for messages.
const NO_ROOM: u32 = 32;
/// The same of a forged request.
#[cfg(feature = "faults")]
pub(super) const FORGED: u64 = 33;

/// LLC messages that may wait for a slot: who asks more while it takes nothing is no peer.
const BACKLOG: usize = 64;

/// The peer's end of a link.
#[derive(Clone, Copy)]
pub struct PeerEnd {
    /// Its GID.
    pub gid: Gid,
    /// Its MAC.
    pub mac: Mac,
    /// Its queue pair.
    pub qpn: Qpn,
}

/// A link.
pub struct Link {
    /// Number of the device.
    pub device: usize,
    /// What it reaches there; None once it is over for good.
    domain: Option<Domain>,
    /// Port and GID.
    pub port: Port,
    /// First sequence number of the send queue.
    pub psn: Psn,
    /// The queue pair; None once the group is over.
    pub qp: Option<QueuePair>,
    /// The other end, once it is known.
    pub peer: Option<PeerEnd>,
    /// The link was confirmed.
    pub is_ready: bool,
    /// It carries nothing any more.
    pub is_down: bool,
    /// Connections that use it.
    pub users: usize,
    /// Path MTU in bytes: for show, as what follows.
    pub mtu: u32,
    /// Payload bytes sent and received.
    pub bytes: [u64; 2],
    /// Messages sent and received.
    pub messages: [u64; 2],
    backlog: VecDeque<Frame>,
    /// Connections that wait for a slot.
    line: Line,
    /// Completions that are awaited.
    patience: Patience,
    /// Place of the message that was posted last.
    last: Option<u32>,
    /// Free places of the room for messages that are not inline, one bit each.
    rooms: u32,
    /// That room.
    room: Room,
    /// A client's answer to Confirm Link, by its place: the link is ready when it has arrived.
    confirming: Option<u32>,
    /// Test Links for what lies behind ends.
    pub questions: Questions,
}

impl Link {
    /// A link without a peer yet: a queue pair in INIT, which is the first of its domain.
    pub fn new(number: usize, domain: Domain, port: &Port, (psn, qp): (Psn, QueuePair)) -> Link {
        let link = Link::without_card(number, port, psn, domain.room());
        Link { qp: Some(qp), domain: Some(domain), ..link }
    }

    /// One that reaches nothing.
    pub(super) fn without_card(number: usize, port: &Port, psn: Psn, room: Room) -> Link {
        Link {
            device: number,
            port: port.clone(),
            psn,
            qp: None,
            peer: None,
            is_ready: false,
            is_down: false,
            users: 0,
            mtu: 0,
            bytes: [0; 2],
            messages: [0; 2],
            backlog: VecDeque::new(),
            line: Line::new(),
            patience: Patience::NEW,
            last: None,
            rooms: u32::MAX,
            room,
            confirming: None,
            questions: Questions::default(),
            domain: None,
        }
    }

    /// The peer's end is known: its messages may arrive from now on (RTR).
    pub fn receive_from(&mut self, device: &Device, remote: &Remote) -> Res<()> {
        self.mtu = remote.mtu.bytes();
        self.qp.as_ref().ok_or(Errno(libc::ENOTCONN))?.receive(device, remote)
    }

    /// It can send from now on (RTS).
    pub fn raise(&mut self, device: &Device) -> Res<()> {
        self.qp.as_ref().ok_or(Errno(libc::ENOTCONN))?.send_from(device, self.psn)
    }

    /// Whether connections may use it.
    pub fn is_usable(&self) -> bool {
        self.is_ready && !self.is_down
    }

    /// Whether this is its queue pair.
    pub fn is(&self, device: usize, qpn: u32) -> bool {
        self.device == device && self.qp.as_ref().is_some_and(|q| q.number().value() == qpn)
    }

    /// A message was sent; true: the link is ready by that.
    pub fn completed(&mut self, room: u32) -> bool {
        self.patience.completed(now());
        if room < 32 {
            self.rooms |= 1 << room;
        }
        // What a link has had on its way that is down has not arrived.
        self.confirming == Some(room) && !self.is_down
    }

    /// A message has arrived.
    pub fn heard(&mut self, now: Time) {
        self.messages[1] += 1;
        self.patience.lives(now);
    }

    /// It was confirmed.
    pub fn ready(&mut self) {
        self.confirming = None;
        self.is_ready = true;
    }

    /// Waits until the message that was posted last, if there is one, has arrived.
    pub fn confirm_by_last(&mut self) {
        self.confirming = self.last;
    }

    /// A test: the answer is on its way.
    #[cfg(test)]
    pub(crate) fn answers(&mut self) {
        (self.is_ready, self.last) = (false, Some(0));
        self.confirm_by_last();
    }

    /// Whether a completion is waited for that nobody else may be waiting for.
    pub fn is_confirming(&self) -> bool {
        self.confirming.is_some() && !self.is_down
    }

    /// Nothing more arrives or goes from here on: what has come is in the queue.
    pub fn put_down(&mut self, device: &Device) {
        if let Some(qp) = self.qp.as_ref().filter(|_| !self.is_down) {
            qp.fail(device);
        }
        self.is_down = true;
        self.backlog.clear();
        self.line.clear();
    }

    /// When what is on its way has been so for too long; `process`: the peer is libsmcr.
    pub fn stuck_at(&self, process: bool) -> Option<Time> {
        self.patience.ends_at(process, self.patience.outstanding() >= SLOTS).filter(|_| !self.is_down)
    }

    /// Whether a completion is awaited.
    pub fn awaits(&self) -> bool {
        self.patience.outstanding() > 0 && !self.is_down
    }

    /// Whether a message was posted or completed a moment ago.
    pub fn is_busy(&self, now: Time) -> bool {
        !self.is_down && self.patience.is_busy(now)
    }

    /// Puts an LLC message behind those that wait for a slot.
    pub fn say(&mut self, frame: Frame) {
        if self.backlog.len() < BACKLOG {
            self.backlog.push_back(frame);
        } else {
            self.give_up();
        }
    }

    /// The service thread puts it down.
    fn give_up(&mut self) {
        self.backlog.clear();
        self.patience.give_up();
        lock::call_service();
    }

    /// A sign of life is asked for: who does not answer is dead sooner, if it is a process. False: it is on its way already.
    pub fn note_probe(&mut self, process: bool) -> bool {
        self.patience.probe(process, now())
    }

    /// Asks the peer for an answer, which repeats the data.
    pub fn test(&mut self, family: Family, user_data: [u8; 16]) {
        self.say(Message::TestLink(TestLink { response: false, user_data }).emit(family));
        self.flush();
    }

    /// Sends LLC messages that waited for a slot. One that the card does not take would be awaited by the peer, for as long as it bears.
    pub fn flush(&mut self) {
        while self.patience.outstanding() < SLOTS_LLC
            && let Some(frame) = self.backlog.pop_front()
        {
            if !self.post(&[], &frame, u32::MAX) {
                self.give_up();
            }
        }
    }

    /// Slots for connections that are free.
    fn free(&self) -> u32 {
        if self.is_usable() { SLOTS.saturating_sub(self.patience.outstanding()) } else { 0 }
    }

    /// Whether a connection may send a message now. Else it is in line for a slot.
    pub fn admits(&mut self, index: u32) -> bool {
        let free = self.free();
        self.line.admits(index, free)
    }

    /// The connection that a free slot belongs to: it may send one message.
    pub fn next_in_line(&mut self) -> Option<u32> {
        let free = self.free();
        self.line.next(free)
    }

    /// A connection does not use it any more.
    pub fn leave_line(&mut self, index: u32) {
        self.line.leave(index);
    }

    /// Posts writes and a message; `slot` is the number of the connection, for the completion. False:
    /// the queue pair is broken.
    pub fn post(&mut self, writes: &[Write], message: &[u8], slot: u32) -> bool {
        let Some(qp) = &self.qp else { return false };
        let place = self.rooms.trailing_zeros();
        if place >= 32 {
            return false;
        }
        // SAFETY: the room has 32 places.
        let at = unsafe { self.room.at.add(place as usize * Room::LEN) };
        let id = u64::from(place) << 32 | u64::from(slot);
        if qp.post(writes, message, Room { at, lkey: self.room.lkey }, id).is_err() {
            return false;
        }
        self.rooms &= !(1 << place);
        self.last = Some(place);
        self.posted(writes);
        true
    }

    /// Posts a write that announces itself.
    pub fn post_write(&mut self, write: &Write, immediate: u32, slot: u32) -> bool {
        let Some(qp) = &self.qp else { return false };
        let fine = qp.post_write(write, immediate, u64::from(NO_ROOM) << 32 | u64::from(slot)).is_ok();
        if fine {
            self.posted(std::slice::from_ref(write));
        }
        fine
    }

    /// Posts what a hostile peer would; false: there is no room.
    #[cfg(feature = "faults")]
    pub(super) fn forge(&mut self, f: &super::forge::Forged) -> bool {
        const ROOM: usize = crate::verbs::domain::ROOMS * Room::LEN;
        let (id, lkey) = (FORGED << 32 | u64::from(u32::MAX), self.room.lkey);
        let mut rest = f.len;
        if f.bytes.is_empty() {
            // SAFETY: the room has so many bytes; the messages here are inline.
            unsafe { std::ptr::write_bytes(self.room.at, 0xee, ROOM) };
        } else {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(f.bytes.as_ptr(), self.room.at, f.bytes.len().min(ROOM)) };
            rest = f.bytes.len().min(ROOM) as u32;
        }
        let inline = !f.bytes.is_empty();
        loop {
            let len = rest.min(ROOM as u32);
            let w = Write { from: self.room.at as u64, len, lkey, to: f.to + u64::from(f.len.saturating_sub(rest)), rkey: f.rkey };
            let imm = if f.opcode == 1 { super::forge::numbered(f.imm) } else { 0 };
            if self.qp.as_ref().is_none_or(|qp| qp.post_forged(&w, (f.opcode, imm, inline), id).is_err()) {
                return false;
            }
            self.posted(&[]);
            rest -= len;
            if rest == 0 {
                return true;
            }
        }
    }

    fn posted(&mut self, writes: &[Write]) {
        self.messages[0] += 1;
        self.bytes[0] += writes.iter().map(|w| u64::from(w.len)).sum::<u64>();
        // Nobody else may look when it does not arrive.
        if let Some(by) = self.patience.posted(now) {
            lock::call_by(by);
        }
    }

    /// Whether LLC messages or completions are still on their way.
    pub fn is_quiet(&self) -> bool {
        self.backlog.is_empty() && self.patience.outstanding() == 0
    }

    /// Destroys the queue pair: nothing of the peer's arrives any more.
    pub fn silence(&mut self, device: &Device) {
        self.is_down = true;
        if let Some(qp) = self.qp.take() {
            qp.fail(device);
            qp.destroy(device);
        }
    }

    /// What it reaches on its device.
    pub fn domain(&self) -> Res<&Domain> {
        self.domain.as_ref().ok_or(Errno(libc::ENODEV))
    }

    /// Gives everything back, and withdraws what these pools have registered for it.
    pub fn close<'a>(&mut self, pools: impl Iterator<Item = &'a mut Pool>, devices: &mut [Device]) {
        let device = &mut devices[self.device];
        self.silence(device);
        if let Some(domain) = self.domain.take() {
            pools.for_each(|p| p.forget(&domain));
            domain.close(device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::rig;

    #[test]
    fn an_answer_that_was_lost_with_its_link_confirms_nothing() {
        for is_down in [false, true] {
            let mut link = Link::without_card(0, &rig::port(1), Psn::truncate(0), Room { at: std::ptr::null_mut(), lkey: 0 });
            (link.last, link.rooms) = (Some(3), !(1 << 3));
            link.confirm_by_last();
            assert!(link.is_confirming());
            link.is_down = is_down;
            assert!(!link.completed(2));
            assert_eq!(link.completed(3), !is_down);
        }
    }
}
