//! A link group of one link: queue pair, LLC machine, the rings that its peer writes into.
//!
//! Driven by [`super::state`] under the lock of all links. The rules are those of `proto::smc::link`;
//! here are its queue pair, its send slots and what its events mean for them.

use super::lock::now;
use super::pool::Pool;
use crate::family::{links, process};
use crate::log;
use crate::sys::Res;
use crate::verbs::device::Device;
use crate::verbs::port::Port;
use crate::verbs::qp::{QueuePair, Remote, Room, Write};
use smcr_proto::page::link::{self as page, Record};
use smcr_proto::smc::Time;
use smcr_proto::smc::handshake::{Agreed, Params, Role};
use smcr_proto::smc::id::{Psn, Rkey, RmbeSize};
use smcr_proto::smc::immediate;
use smcr_proto::smc::link::key::GroupKey;
use smcr_proto::smc::link::{self as machine, Config, Event};
use smcr_proto::smc::llc::{Family, Frame, Message, TestLink};
use std::collections::VecDeque;

/// Messages that may be on their way: a kernel peer has 48 receives.
const SLOTS: u32 = 16;
/// The same with LLC, which may not wait behind data.
const SLOTS_LLC: u32 = 20;

/// Place of what needs none in the room for messages.
const NO_ROOM: u32 = 32;

/// How long a message may be on its way before the link counts as dead; the second once the TCP connection
/// below has ended. (The card's own retries may have no end.)
const PATIENCE: Time = Time::from_secs(5);
const PATIENCE_PROBED: Time = Time::from_secs(2);

/// A link group.
pub struct Group {
    /// Who the peer is, once it is known.
    pub key: Option<GroupKey>,
    /// This end's role.
    pub role: Role,
    /// Number of the device.
    pub device: usize,
    /// Port and GID.
    pub port: Port,
    /// First sequence number of the send queue.
    pub psn: Psn,
    /// The queue pair; None once the group is over.
    pub qp: Option<QueuePair>,
    /// Rings of the connections.
    pub rings: Pool,
    /// Their size.
    pub size: RmbeSize,
    /// LLC, from first contact on.
    machine: Option<machine::Group>,
    backlog: VecDeque<Frame>,
    /// Messages posted and not completed.
    outstanding: u32,
    /// When one was completed last, or the first of them was posted.
    progress: Time,
    /// A sign of life was asked for because TCP has ended.
    probed: bool,
    /// Place of the message that was posted last.
    last: Option<u32>,
    /// Free places of the room for messages that are not inline, one bit each.
    rooms: u32,
    room: Option<Room>,
    /// Records that use the group.
    pub users: usize,
    /// The link was confirmed.
    pub is_ready: bool,
    /// Writes announce themselves, both ends have agreed.
    pub immediate: bool,
    /// A client's answer to Confirm Link, by its place: the link is ready when it has arrived.
    confirming: Option<u32>,
    /// The group is over, since this time.
    pub over: Option<Time>,
    /// Agreed user EID and MTU, payload and messages sent and received: for show.
    eid: [u8; 32],
    mtu: u32,
    /// Payload bytes sent and received.
    pub bytes: [u64; 2],
    /// Messages sent and received.
    pub messages: [u64; 2],
    /// Memories that the peer has withdrawn and whose connections are to be told.
    pub withdrawn: Vec<Rkey>,
}

impl Group {
    /// A group without a peer yet: a queue pair in INIT.
    pub fn new(role: Role, number: usize, device: &Device, port: &Port, psn: Psn, size: RmbeSize) -> Res<Group> {
        let qp = QueuePair::make(device, port.index)?;
        Ok(Group {
            key: None,
            role,
            device: number,
            port: port.clone(),
            psn,
            qp: Some(qp),
            rings: Pool::new(size.bytes() as usize, true),
            size,
            machine: None,
            backlog: VecDeque::new(),
            outstanding: 0,
            progress: Time::ZERO,
            probed: false,
            last: None,
            rooms: u32::MAX,
            room: None,
            users: 0,
            is_ready: false,
            immediate: false,
            confirming: None,
            over: None,
            eid: [0; 32],
            mtu: 0,
            bytes: [0; 2],
            messages: [0; 2],
            withdrawn: Vec::new(),
        })
    }

    /// Gives the group a place for messages that are not sent inline, [`Room::LEN`] times 32 bytes.
    pub fn set_room(&mut self, room: Room) {
        self.room = Some(room);
    }

    /// The peer's end is known: its messages may arrive from now on (RTR).
    pub fn receive_from(&mut self, device: &Device, remote: &Remote) -> Res<()> {
        match &self.qp {
            Some(qp) => qp.receive(device, remote),
            None => Err(crate::sys::Errno(libc::ENOTCONN)),
        }
    }

    /// First contact is agreed: LLC begins. A server's queue pair goes to RTS, a client's when the
    /// server confirms the link.
    pub fn begin(&mut self, device: &Device, params: &Params, number: u32, now: Time) -> Res<()> {
        if self.role == Role::Server {
            self.raise(device)?;
        }
        let limits = params.version.limits();
        let mut m = machine::Group::new(Config {
            role: self.role,
            family: params.version.family(),
            mac: self.port.mac,
            gid: self.port.gid,
            qpn: params.local.qpn,
            direct: true,
            peer_gid: params.peer.gid,
            link: 1,
            link_uid: number + 1,
            max_links: limits.map_or(2, |l| l.max_links),
            max_conns: limits.map_or(machine::MAX_CONNECTIONS, |l| l.max_conns),
            test_link: Some(machine::TEST_LINK),
        });
        m.start(now);
        self.mtu = params.mtu.bytes();
        self.immediate = limits.is_some_and(|l| l.features & immediate::FEATURE != 0);
        if let Agreed::V2 { eid, .. } = params.version {
            self.eid = eid.0;
        }
        self.key = Some(GroupKey::of(params));
        self.machine = Some(m);
        Ok(())
    }

    fn raise(&mut self, device: &Device) -> Res<()> {
        match &self.qp {
            Some(qp) => qp.send_from(device, self.psn),
            None => Err(crate::sys::Errno(libc::ENOTCONN)),
        }
    }

    /// Whether new connections may join.
    pub fn is_open(&self) -> bool {
        let active = self.machine.as_ref().is_some_and(|m| m.state() == machine::State::Active);
        active && self.over.is_none() && self.qp.is_some()
    }

    /// A connection joins; false if there is no room for it.
    pub fn join(&mut self) -> bool {
        self.machine.as_mut().is_some_and(|m| m.connection_opened().is_ok())
    }

    /// A connection that had joined leaves.
    pub fn leave(&mut self, now: Time) {
        if let Some(m) = &mut self.machine {
            m.connection_closed(now);
        }
    }

    /// An LLC message came.
    pub fn handle_llc(&mut self, device: &Device, now: Time, bytes: &[u8]) {
        if let Some(m) = &mut self.machine {
            let _ = m.handle_llc(now, bytes);
        }
        self.run(device, now);
    }

    /// A CDC message came: the link is alive.
    pub fn handle_arrival(&mut self, now: Time) {
        if let Some(m) = &mut self.machine {
            m.handle_arrival(now);
        }
    }

    /// A message was sent.
    pub fn completed(&mut self, room: u32) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.progress = now();
        self.probed = false;
        if room < 32 {
            self.rooms |= 1 << room;
        }
        if self.confirming == Some(room) {
            self.ready();
        }
    }

    fn ready(&mut self) {
        self.confirming = None;
        self.is_ready = true;
        log::info!(target: "smcr::link", "link group ready");
    }

    /// Whether a completion is waited for that nobody else may be waiting for.
    pub fn is_confirming(&self) -> bool {
        self.confirming.is_some() && self.over.is_none()
    }

    /// The queue pair failed.
    pub fn fail(&mut self, device: &Device, now: Time) {
        if self.over.is_some() {
            return;
        }
        // Nothing more arrives or goes from here on: what has come is in the queue.
        if let Some(qp) = &self.qp {
            qp.fail(device);
        }
        match &mut self.machine {
            Some(m) => m.handle_link_down(),
            None => self.over = Some(now),
        }
        self.run(device, now);
    }

    /// Ends the group: in order, or at once.
    pub fn end(&mut self, device: &Device, orderly: bool, now: Time) {
        match &mut self.machine {
            Some(m) if orderly => m.shutdown(),
            Some(m) => m.terminate(smcr_proto::smc::llc::LinkReason::PROTOCOL_VIOLATION),
            None => self.over = Some(now),
        }
        self.run(device, now);
    }

    /// Lets time pass.
    pub fn tick(&mut self, device: &Device, now: Time) {
        if let Some(m) = &mut self.machine
            && m.poll_timeout().is_some_and(|at| at <= now)
        {
            m.handle_timeout(now);
            self.run(device, now);
        }
        if self.over.is_none() && self.stuck_at().is_some_and(|at| at <= now) {
            log::warn!(target: "smcr::link", "the peer takes nothing: the link is given up");
            self.fail(device, now);
        }
    }

    /// When what is on its way has been so for too long.
    fn stuck_at(&self) -> Option<Time> {
        let patience = if self.probed { PATIENCE_PROBED } else { PATIENCE };
        (self.outstanding > 0).then(|| self.progress + patience)
    }

    /// When to call [`Group::tick`].
    pub fn timeout(&self) -> Option<Time> {
        let stuck = self.stuck_at().filter(|_| self.over.is_none());
        let timer = self.machine.as_ref().and_then(machine::Group::poll_timeout);
        [timer, stuck].into_iter().flatten().min()
    }

    /// Does what the machine asks for, and sends what it has to say.
    pub fn run(&mut self, device: &Device, now: Time) {
        loop {
            while let Some(event) = self.machine.as_mut().and_then(machine::Group::poll_event) {
                self.on_event(device, event, now);
            }
            match self.machine.as_mut().and_then(machine::Group::poll_transmit) {
                Some(frame) => self.backlog.push_back(frame),
                None => break,
            }
            self.flush();
        }
        while let Some(event) = self.machine.as_mut().and_then(machine::Group::poll_event) {
            self.on_event(device, event, now);
        }
        self.flush();
    }

    fn on_event(&mut self, device: &Device, event: Event, now: Time) {
        match event {
            Event::RaiseToRts => {
                if self.raise(device).is_err() {
                    self.over = Some(now);
                }
            }
            // Where RoCE passes one way only the server hears nothing, and declines.
            Event::Ready if self.role == Role::Client && self.last.is_some() => self.confirming = self.last,
            Event::Ready => self.ready(),
            Event::ConfirmFailed => self.over = Some(now),
            Event::RkeysDeleted(keys) => self.withdrawn.extend_from_slice(&keys),
            Event::FlowDone { .. } => {}
            Event::Terminated { by_peer, reason } => {
                log::info!(target: "smcr::link", by_peer, reason = reason.0, "link group over");
                self.over.get_or_insert(now);
            }
        }
    }

    /// Asks for a sign of life; the queue pair fails if there is nobody to take it.
    pub fn probe(&mut self) {
        if let Some(key) = self.key.filter(|_| self.is_ready && self.over.is_none()) {
            self.probed = true;
            let test = TestLink { response: false, user_data: [0; 16] };
            self.backlog.push_back(Message::TestLink(test).emit(key.family));
            self.flush();
        }
    }

    /// Sends LLC messages that waited for a slot.
    pub fn flush(&mut self) {
        while self.outstanding < SLOTS_LLC
            && let Some(frame) = self.backlog.pop_front()
        {
            if !self.post(&[], &frame, u32::MAX) {
                self.backlog.clear();
            }
        }
    }

    /// Whether a connection may send a message now.
    pub fn has_slot(&self) -> bool {
        self.outstanding < SLOTS && self.is_ready && self.over.is_none()
    }

    /// Posts writes and a message; `slot` is the number of the connection, for the completion. False:
    /// the queue pair is broken.
    pub fn post(&mut self, writes: &[Write], message: &[u8], slot: u32) -> bool {
        let (Some(qp), Some(room)) = (&self.qp, self.room) else { return false };
        let place = self.rooms.trailing_zeros();
        if place >= 32 {
            return false;
        }
        // SAFETY: 32 places were given in `set_room`.
        let at = unsafe { room.at.add(place as usize * Room::LEN) };
        let id = u64::from(place) << 32 | u64::from(slot);
        if qp.post(writes, message, Room { at, lkey: room.lkey }, id).is_err() {
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

    fn posted(&mut self, writes: &[Write]) {
        if self.outstanding == 0 {
            self.progress = now();
        }
        self.messages[0] += 1;
        self.bytes[0] += writes.iter().map(|w| u64::from(w.len)).sum::<u64>();
        self.outstanding += 1;
    }

    /// What `smcrctl linkgroup` shows.
    fn record(&self, place: usize, device: &Device) -> Option<Record> {
        let key = self.key.filter(|_| self.over.is_none())?;
        let mut name = [0; 32];
        for (to, from) in name.iter_mut().zip(device.name.bytes()) {
            *to = from;
        }
        Some(Record {
            id: place as u32 + 1,
            pid: process::pid(),
            role: if self.role == Role::Server { page::Role::Server } else { page::Role::Client },
            version: if key.family == Family::V2 { 2 } else { 1 },
            port: self.port.port,
            link: self.machine.as_ref().map_or(0, machine::Group::link),
            is_active: self.is_ready,
            connections: self.users as u32,
            qpn: self.qp.as_ref().map_or(0, |q| q.number().value()),
            peer_qpn: key.qpn.value(),
            mtu: self.mtu,
            rmb: self.size.bytes(),
            gid: self.port.gid.0,
            peer_gid: key.gid.0,
            peer_id: key.peer_id.0,
            device: name,
            eid: self.eid,
            bytes: self.bytes,
            messages: self.messages,
        })
    }

    /// Shows the group in the family page.
    pub fn show(&self, place: usize, device: &Device) {
        links::show(place, self.record(place, device).as_ref());
    }

    /// Whether LLC messages or completions are still on their way.
    pub fn is_quiet(&self) -> bool {
        self.backlog.is_empty() && self.outstanding == 0
    }

    /// Destroys the queue pair: nothing of the peer's arrives any more.
    pub fn silence(&mut self, device: &Device) {
        if let Some(qp) = self.qp.take() {
            qp.fail(device);
            qp.destroy(device);
        }
    }
}
