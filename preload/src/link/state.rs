//! All links of the process: devices, groups, connections. Reached under the lock of [`super::lock`].

use super::arrive::Turn;
use super::awake::Awake;
use super::cover;
use super::failover::Arrival;
use super::group::Group;
use super::leave::Unseen;
use super::lock::{SLOTS, STALLED, USED, now};
use super::one::Link;
use super::pool::{Element, Headers, Pool};
use super::slot::{Id, Slot, token};
use crate::family::sock::Sock;
use crate::layout::RegionHeader;
use crate::log;
use crate::sys::{Errno, Res, proc};
use crate::verbs::device::Device;
use crate::verbs::domain::Domain;
use crate::verbs::port::Port;
use crate::verbs::{qp::QueuePair, uevent};
use smcr_proto::smc::clc::accept::Endpoint;
use smcr_proto::smc::conn::Conn;
use smcr_proto::smc::handshake::Role;
use smcr_proto::smc::id::{PeerId, Psn, RmbeSize};
use std::sync::atomic::Ordering::*;

/// Rings of a group that its peer may write into against the rules: so many where it has broken one, [`OF_LOST`] times as many where a link was
/// lost with bytes in it.
const MOST_SPOILT: u32 = 8 * OF_LOST;
const OF_LOST: u32 = 8;

/// Everything.
pub struct State {
    /// Open devices.
    pub devices: Vec<Device>,
    /// Link groups; a place is free again when the group and its last connection have gone.
    pub groups: Vec<Option<Group>>,
    pub(super) slots: Vec<Option<Box<Slot>>>,
    generation: u16,
    serial: u32,
    headers: Headers,
    /// By size.
    pub(super) send_rings: Vec<Pool>,
    peer_id: Option<PeerId>,
    /// Connections that the service thread is to bring back to TCP.
    pub leavers: Vec<u32>,
    pub(super) unseen: Vec<Unseen>,
    /// What waits for all devices to be looked at, in order.
    pub(super) held: Vec<Arrival>,
    /// Records of links that are shown.
    pub(super) shown: usize,
    /// Whether deadlines count.
    pub(super) awake: Awake,
    /// How much is taken before the lock is let go, and from where.
    pub(super) turn: Turn,
    /// Send slots have come free.
    pub(super) has_room: bool,
}

impl State {
    pub(super) const EMPTY: State = State {
        devices: Vec::new(),
        groups: Vec::new(),
        slots: Vec::new(),
        generation: 0,
        serial: 0,
        headers: Headers::new(),
        send_rings: Vec::new(),
        peer_id: None,
        leavers: Vec::new(),
        unseen: Vec::new(),
        held: Vec::new(),
        shown: 0,
        awake: Awake::NEW,
        turn: Turn::NEW,
        has_room: false,
    };

    /// This process's name among SMC peers: random, one for each process and start.
    pub fn peer_id(&mut self) -> Res<PeerId> {
        if let Some(id) = self.peer_id {
            return Ok(id);
        }
        let id = PeerId(proc::random::<8>()?);
        self.peer_id = Some(id);
        Ok(id)
    }

    /// A new connection for a record, with a sending ring of `size` bytes.
    pub fn reserve(&mut self, sock: &'static Sock, size: u32) -> Res<&mut Slot> {
        let index = self.free_place()?;
        let header = self.headers.take()?;
        if self.send_rings.iter().all(|p| p.element() != size as usize) {
            self.send_rings.push(Pool::new(size as usize, false));
        }
        let ring = match pool_of(&mut self.send_rings, size).and_then(Pool::take) {
            Ok(ring) => ring,
            Err(e) => {
                self.headers.give_back(header);
                return Err(e);
            }
        };
        USED.fetch_add(1, Relaxed);
        self.serial = self.serial.wrapping_add(1) & (u32::MAX >> 1);
        let slot = Slot::new(index as u32, self.serial, sock, header, (ring, size));
        Ok(self.slots[index].insert(Box::new(slot)))
    }

    /// A connection of a parent that has ended, in the middle of its handshake, gets a number of this process. It will be on TCP:
    /// of its memory what there is serves until then. None: there is no number.
    pub fn adopt(&mut self, sock: &'static Sock) -> Option<Id> {
        let header: *const RegionHeader = sock.region()?;
        let ring = (Element::inherited(sock.tx.ring.load(Relaxed)), sock.tx.size.load(Relaxed));
        let index = self.free_place().ok()?;
        USED.fetch_add(1, Relaxed);
        self.serial = self.serial.wrapping_add(1) & (u32::MAX >> 1);
        let mut slot = Slot::new(index as u32, self.serial, sock, header.cast_mut(), ring);
        (slot.cookie, slot.for_tcp) = (sock.cookie.load(Relaxed), true);
        let id = slot.id();
        self.slots[index] = Some(Box::new(slot));
        sock.link.store(index as u32 + 1, Release);
        Some(id)
    }

    fn free_place(&mut self) -> Res<usize> {
        match self.slots.iter().position(Option::is_none) {
            Some(free) => Ok(free),
            None if self.slots.len() < SLOTS => {
                self.slots.push(None);
                Ok(self.slots.len() - 1)
            }
            None => Err(Errno(libc::ENOBUFS)),
        }
    }

    /// The connection with this number.
    pub fn slot(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index as usize)?.as_deref_mut()
    }

    /// The same, unless the number is another's by now.
    pub fn slot_of(&mut self, id: Id) -> Option<&mut Slot> {
        self.slot(id.index).filter(|slot| slot.serial == id.serial)
    }

    /// The open device of a port, opened if it is not.
    pub fn device(&mut self, port: &Port) -> Res<usize> {
        let known = |d: &Device| d.is_open() && d.name == port.device && d.port == port.port;
        if let Some(at) = self.devices.iter().position(known) {
            return Ok(at);
        }
        uevent::open();
        let device = Device::open(port)?;
        let at = match self.devices.iter().position(|d| !d.is_open()) {
            Some(at) if !self.groups.iter().flatten().any(|g| g.links.iter().any(|l| l.device == at)) => at,
            _ => self.devices.len(),
        };
        if at == self.devices.len() {
            self.devices.push(device);
        } else {
            self.devices[at] = device;
        }
        cover::note_devices(self);
        Ok(at)
    }

    /// Makes a link without a peer.
    pub(super) fn new_link(&mut self, port: &Port) -> Res<Link> {
        let number = self.device(port)?;
        let device = &mut self.devices[number];
        let psn = Psn::truncate(u32::from_ne_bytes(proc::random()?));
        let domain = Domain::open(device)?;
        cover::disarmed(); // there may be another queue
        match QueuePair::make(device, &domain, port.index) {
            Ok(qp) => Ok(Link::new(number, domain, port, (psn, qp))),
            Err(e) => {
                domain.close(device);
                Err(e)
            }
        }
    }

    /// A link is over, and has no connection any more.
    pub(super) fn close_link(&mut self, link: &mut Link, rings: Option<&mut Pool>) {
        let pools = self.send_rings.iter_mut().chain(rings);
        link.close(pools, &mut self.devices);
    }

    /// Makes a group without a peer.
    pub fn new_group(&mut self, role: Role, port: &Port, size: RmbeSize) -> Res<usize> {
        let group = Group::new(role, self.new_link(port)?, size);
        let place = match self.groups.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.groups.push(None);
                self.groups.len() - 1
            }
        };
        self.groups[place] = Some(group);
        Ok(place)
    }

    /// Gives a connection a ring in a group, and a link of it: from now on the peer may learn of it. The end that the
    /// handshake sends.
    pub fn give_ring(&mut self, id: Id, place: usize, link: usize) -> Res<Endpoint> {
        let peer_id = self.peer_id()?;
        self.generation = self.generation.wrapping_add(1);
        let (generation, send_rings) = (self.generation, &mut self.send_rings);
        let slot = self.slots.get_mut(id.index as usize).and_then(Option::as_deref_mut).filter(|s| s.serial == id.serial);
        let group = self.groups.get_mut(place).and_then(Option::as_mut);
        let (Some(slot), Some(group)) = (slot, group) else { return Err(Errno(libc::EINVAL)) };
        let used = group.links.get_mut(link).ok_or(Errno(libc::EINVAL))?;
        slot.tx_key = pool_of(send_rings, slot.tx.1)?.keys(slot.tx.0, used.domain()?)?.lkey;
        let ring = group.rings.take()?;
        let keys = match used.domain().and_then(|d| group.rings.keys(ring, d)) {
            Ok(keys) => keys,
            Err(e) => {
                group.rings.give_back(ring);
                return Err(e);
            }
        };
        let (Some(token), Some(qp)) = (token(id.index, generation), &used.qp) else {
            group.rings.give_back(ring);
            return Err(Errno(libc::ENOTCONN));
        };
        let mut conn = Conn::new(token, group.size);
        // Urgent bytes stand in the stream: the ring has no way round them.
        conn.set_oob_inline(true);
        slot.conn = Some(conn);
        slot.rx = Some(ring);
        (slot.group, slot.link) = (Some(place), link);
        group.users += 1;
        used.users += 1;
        if let Some(s) = slot.sock() {
            s.rx.ring.store(ring.start, Release);
        }
        let end = Endpoint {
            peer_id,
            gid: used.port.gid,
            mac: used.port.mac,
            qpn: qp.number(),
            psn: used.psn,
            mtu: self.devices[used.device].mtu()?,
            rkey: keys.rkey,
            rmb_address: keys.base,
            index: keys.index,
            token,
            size: group.size,
        };
        group.announce_new(now());
        group.run(&self.devices, now());
        Ok(end)
    }

    /// After [`State::give_ring`], for a connection that was counted in that group's machine before. Where it got no ring it has no
    /// group that it could leave later.
    pub fn note_joined(&mut self, id: Id, place: usize) {
        match self.slot_of(id).filter(|slot| slot.group == Some(place)) {
            Some(slot) => slot.joined = true,
            None => {
                if let Some(Some(group)) = self.groups.get_mut(place) {
                    group.leave(now());
                }
            }
        }
    }

    /// Forgets a connection that came to nothing or is over.
    pub fn release(&mut self, index: u32) {
        let Some(mut slot) = self.slots.get_mut(index as usize).and_then(Option::take) else { return };
        if slot.stalled {
            STALLED.fetch_sub(1, Relaxed);
        }
        if slot.waits_for_room {
            cover::rest::room_is_not_waited_for();
        }
        slot.let_tcp_go();
        let unread = self.unread_by_card(&slot);
        self.part(&mut slot);
        if !slot.tx.0.is_inherited() {
            match unread.and_then(|place| self.groups[place].as_mut()) {
                Some(group) => group.retired.push(slot.tx),
                None => self.give_back(&[slot.tx]),
            }
            self.headers.give_back(slot.header);
        }
        USED.fetch_sub(1, Relaxed);
    }

    /// The group whose network card may read from the sending ring of a connection still: it repeats what has not been acknowledged, as the
    /// bytes are by then. So the ring is nobody else's before the queue pair has gone.
    fn unread_by_card(&self, slot: &Slot) -> Option<usize> {
        let place = slot.group.filter(|_| slot.in_flight > 0)?;
        let link = self.groups.get(place)?.as_ref()?.links.get(slot.link)?;
        (!link.is_down).then_some(place)
    }

    /// Nothing reads from these sending rings any more.
    pub(super) fn give_back(&mut self, rings: &[(Element, u32)]) {
        for (ring, size) in rings {
            if let Ok(pool) = pool_of(&mut self.send_rings, *size) {
                pool.give_back(*ring);
            }
        }
    }

    /// The connection has no group any more: its ring is given back unless the peer may still write.
    pub fn leave_group(&mut self, id: Id) {
        let place = self.slots.get_mut(id.index as usize);
        let Some(mut slot) = place.and_then(|p| p.take_if(|slot| slot.serial == id.serial)) else { return };
        self.part(&mut slot);
        self.slots[id.index as usize] = Some(slot);
    }

    /// Its handshake is over, whatever it has come to; the program may have closed it meanwhile.
    pub fn end_handshake(&mut self, id: Id) {
        let State { slots, groups, .. } = self;
        let slot = slots.get_mut(id.index as usize).and_then(Option::as_deref_mut);
        let Some(slot) = slot.filter(|slot| slot.serial == id.serial) else { return };
        slot.in_handshake = false;
        // A page that ended on TCP is kept for a program that may look at it.
        if !slot.on_tcp && slot.is_finished(is_over(groups, slot.group)) {
            self.release(id.index);
        }
    }

    fn part(&mut self, slot: &mut Slot) {
        slot.conn = None;
        slot.active = false;
        let Some(place) = slot.group.take() else { return };
        let Some(Some(group)) = self.groups.get_mut(place) else { return };
        group.users -= 1;
        let used = &mut group.links[slot.link];
        used.users = used.users.saturating_sub(1);
        used.leave_line(slot.index);
        slot.link = 0;
        if slot.joined {
            slot.joined = false;
            group.leave(now());
        }
        match slot.rx.take() {
            Some(ring) if !slot.tainted => group.rings.give_back(ring),
            Some(_) => group.spoilt += if slot.has_lost { 1 } else { OF_LOST },
            None => {}
        }
        // Whose rings are not given back gets no more of them: they are free when the group has gone.
        if group.spoilt >= MOST_SPOILT && group.over.is_none() {
            log::warn!(target: "smcr::link", place, "a peer breaks the rules again and again: its link group is ended");
            self.end_group(place);
        }
    }

    /// Ends a group: the ends disagree about it, or its first connection came to nothing.
    pub fn end_group(&mut self, place: usize) {
        if let Some(Some(group)) = self.groups.get_mut(place) {
            group.end(&self.devices, false, now());
            self.look_at_group(place);
        }
    }

    /// The TCP connection below a connection has ended: a peer that has not said so by the link may be
    /// dead, and then it does not answer.
    pub fn probe(&mut self, index: u32) {
        let Some(slot) = self.slot(index) else { return };
        slot.tcp_ended = true;
        if slot.conn.as_ref().is_some_and(|c| !c.is_eof()) {
            slot.doubts_end();
            self.ask_its_link(index);
        }
    }

    /// Asks the peer for a sign of life by the link of a connection.
    pub(super) fn ask_its_link(&mut self, index: u32) {
        let Some((Some(place), link)) = self.slot(index).map(|s| (s.group, s.link)) else { return };
        if let Some(Some(group)) = self.groups.get_mut(place) {
            group.probe(link);
        }
    }

    /// Wakes who waits for a connection, whatever for.
    pub fn wake_slot(&mut self, index: u32) {
        if let Some(slot) = self.slot(index) {
            slot.wake();
        }
    }
}

/// Whether a connection with this group, if any, has no link that carries on.
pub(super) fn is_over(groups: &[Option<Group>], place: Option<usize>) -> bool {
    place.and_then(|place| groups.get(place)?.as_ref()).is_none_or(|group| group.over.is_some())
}

/// The sending rings of this size.
pub(super) fn pool_of(pools: &mut [Pool], size: u32) -> Res<&mut Pool> {
    pools.iter_mut().find(|p| p.element() == size as usize).ok_or(Errno(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::rig;

    #[test]
    fn who_gets_no_ring_is_not_counted_in_its_group() {
        let mut all = State::EMPTY;
        let place = rig::group(&mut all, Role::Client, 1);
        let id = all.reserve(rig::record(), rig::SIZE.bytes()).unwrap().id();
        assert!(all.groups[place].as_mut().unwrap().join());
        assert_eq!(all.give_ring(id, place, 0).err(), Some(Errno(libc::ENODEV)));
        all.note_joined(id, place);
        assert!(!rig::slot(&mut all, id).joined);
        assert!(all.groups[place].as_ref().unwrap().timeout().is_some(), "without connections it ends some day");
    }
    #[test]
    fn a_ring_from_which_the_card_may_still_read_is_nobody_elses_until_the_queue_pair_has_gone() {
        for (on_its_way, is_down) in [(0, false), (1, false), (1, true)] {
            let mut all = State::EMPTY;
            let place = rig::group(&mut all, Role::Client, 1);
            let id = rig::connection(&mut all, place);
            let slot = rig::slot(&mut all, id);
            slot.in_flight = on_its_way;
            let ring = slot.tx.0;
            let group = all.groups[place].as_mut().unwrap();
            group.over = Some(now());
            group.links[0].is_down = is_down;
            all.release(id.index);
            let mut next = || all.reserve(rig::record(), rig::SIZE.bytes()).unwrap().tx.0;
            assert_eq!(next() == ring, on_its_way == 0 || is_down);
            let retired = std::mem::take(&mut all.groups[place].as_mut().unwrap().retired);
            all.give_back(&retired);
            let mut next = || all.reserve(rig::record(), rig::SIZE.bytes()).unwrap().tx.0;
            assert!(retired.iter().all(|(old, _)| next() == *old));
        }
    }

    #[test]
    fn a_peer_that_breaks_the_rules_again_and_again_loses_its_group() {
        let mut all = State::EMPTY;
        let place = rig::group(&mut all, Role::Client, 1);
        let mut end = |has_lost| {
            let id = rig::connection(&mut all, place);
            let slot = rig::slot(&mut all, id);
            (slot.tainted, slot.has_lost) = (true, has_lost);
            all.release(id.index);
            all.groups[place].as_ref().unwrap().over.is_some()
        };
        assert!((0..8).all(|_| !end(true)), "what was lost with a link is no breach");
        assert!((0..6).all(|_| !end(false)) && end(false));
    }
}
