//! All links of the process: devices, groups, connections, under one lock.
//!
//! The lock is held for short pieces of work that never wait. A thread that finds it taken leaves a mark
//! at its connection and goes on: who holds the lock looks for marks before and after it lets go.

use super::group::Group;
use super::pool::{Headers, Pool};
use super::slot::{Closing, Slot, token};
use super::wake;
use crate::family::process;
use crate::family::sock::Sock;
use crate::sys::{Errno, Res, clock, fd, proc};
use crate::verbs::device::{Completion, Device, MESSAGE, SENT};
use crate::verbs::port::Port;
use crate::verbs::qp::Room;
use smcr_proto::smc::Time;
use smcr_proto::smc::cdc::{self, Cdc};
use smcr_proto::smc::clc::accept::Endpoint;
use smcr_proto::smc::conn::{self, Conn};
use smcr_proto::smc::handshake::Role;
use smcr_proto::smc::id::{PeerId, Psn, RmbeSize};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*, fence};

/// Connections over links at a time.
pub const SLOTS: usize = 4096;
/// How long a group that is over keeps its queue pair, for its last message.
const LAST_WORDS: Time = Time::from_millis(200);
/// Bytes of the room for messages of a group that are not inline.
const ROOM: usize = 32 * Room::LEN;

/// Everything.
pub struct State {
    /// Open devices.
    pub devices: Vec<Device>,
    /// Link groups; a place is free again when the group and its last connection have gone.
    pub groups: Vec<Option<Group>>,
    slots: Vec<Option<Box<Slot>>>,
    generation: u16,
    headers: Headers,
    send_rings: Pool,
    rooms: Pool,
    peer_id: Option<PeerId>,
}

struct Links {
    owner: AtomicU32,
    state: UnsafeCell<State>,
}

// SAFETY: the state is touched only by the holder of `owner`.
unsafe impl Sync for Links {}

static LINKS: Links = Links {
    owner: AtomicU32::new(0),
    state: UnsafeCell::new(State::EMPTY),
};

/// Connections with a mark, one bit each.
static MARKS: [AtomicU64; SLOTS / 64] = [const { AtomicU64::new(0) }; SLOTS / 64];
/// Marks were left since somebody looked.
static MARKED: AtomicU32 = AtomicU32::new(0);
/// Connections in use: 0 keeps every wait of the engine out of here.
static USED: AtomicU32 = AtomicU32::new(0);
/// eventfd of the service thread.
static SERVICE: AtomicI32 = AtomicI32::new(-1);
/// The same of the parent's, in a forked child.
static PARENT: AtomicI32 = AtomicI32::new(-1);
/// This is a forked child of a process with links.
static INHERITED: AtomicU32 = AtomicU32::new(0);
/// Connections that wait for a completion: events of every kind are asked for.
static STALLED: AtomicU32 = AtomicU32::new(0);

/// Whether this process has connections over links.
#[inline]
pub fn is_used() -> bool {
    USED.load(Relaxed) != 0
}

/// A forked child: the memory of the links is its parent's as well, their queue pairs are not its own.
/// It has no links yet, and none of the locks.
pub fn forget_in_child() {
    if !is_used() && LINKS.owner.load(Relaxed) == 0 {
        return;
    }
    LINKS.owner.store(0, Relaxed);
    // SAFETY: a forked child has one thread. What was there is left as it is: its memory and its queue
    // pairs are in use by the parent.
    unsafe { std::ptr::write(LINKS.state.get(), State::EMPTY) };
    for marks in &MARKS {
        marks.store(0, Relaxed);
    }
    MARKED.store(0, Relaxed);
    STALLED.store(0, Relaxed);
    PARENT.store(SERVICE.swap(-1, Relaxed), Relaxed);
    if USED.swap(0, Relaxed) != 0 {
        INHERITED.store(1, Relaxed);
    }
}

/// Whether connections over the parent's links were inherited.
pub fn is_inherited() -> bool {
    INHERITED.load(Relaxed) != 0
}

/// Tells the parent, whose link it is, to look.
pub fn kick_parent() {
    let _ = fd::event_set(PARENT.load(Relaxed));
}

/// Runs `f` with everything; None if this thread is in here already (a signal handler).
pub fn with<T>(f: impl FnOnce(&mut State) -> T) -> Option<T> {
    let me = process::tid();
    let mut rounds = 0u32;
    while LINKS.owner.compare_exchange_weak(0, me, Acquire, Relaxed).is_err() {
        if LINKS.owner.load(Relaxed) == me {
            return None;
        }
        rounds += 1;
        if rounds > 100 {
            proc::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
    let result = run(|state| {
        let r = f(state);
        state.flush_marked();
        r
    });
    after();
    result
}

/// As [`with`], but only if nobody else is in here.
pub fn try_with(f: impl FnOnce(&mut State)) -> bool {
    if LINKS.owner.compare_exchange(0, process::tid(), Acquire, Relaxed).is_err() {
        return false;
    }
    run(|state| {
        f(state);
        state.flush_marked();
    });
    after();
    true
}

/// Runs `f` with the lock held and lets it go; None if it panicked. libibverbs makes system calls that are cancellation
/// points, where no thread may be unwound.
fn run<T>(f: impl FnOnce(&mut State) -> T) -> Option<T> {
    let mut old = 0;
    // SAFETY: glibc's call; PTHREAD_CANCEL_DISABLE is 1.
    unsafe { pthread_setcancelstate(1, &mut old) };
    // SAFETY: the lock is held by this thread.
    let state = unsafe { &mut *LINKS.state.get() };
    let result = crate::sys::caught(|| f(state));
    LINKS.owner.store(0, Release);
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(old, &mut old) };
    result
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}

/// Marks that were left while the lock was held.
fn after() {
    loop {
        // Pairs with the fence in `kick`: either we see the mark, or the other one finds the lock free.
        fence(SeqCst);
        if MARKED.load(Relaxed) == 0 || !try_flush() {
            return;
        }
    }
}

fn try_flush() -> bool {
    if LINKS.owner.compare_exchange(0, process::tid(), Acquire, Relaxed).is_err() {
        return false;
    }
    run(State::flush_marked);
    true
}

/// A connection has something to send or to tell: now, or by who is at it.
pub fn kick(index: u32) {
    let i = index as usize % SLOTS;
    MARKS[i / 64].fetch_or(1 << (i % 64), AcqRel);
    MARKED.store(1, Relaxed);
    fence(SeqCst); // pairs with the one in `after`
    while MARKED.load(Relaxed) != 0 && try_flush() {
        fence(SeqCst);
    }
}

/// Says where the service thread listens.
pub fn set_service(eventfd: i32) {
    SERVICE.store(eventfd, Release);
}

/// Where the service thread listens, -1 without one.
pub fn service() -> i32 {
    SERVICE.load(Acquire)
}

/// The time for the machines.
pub fn now() -> Time {
    Time::from_nanos(clock::now_ns())
}

impl State {
    const EMPTY: State = State {
        devices: Vec::new(),
        groups: Vec::new(),
        slots: Vec::new(),
        generation: 0,
        headers: Headers::new(),
        send_rings: Pool::new(0, false),
        rooms: Pool::new(ROOM, false),
        peer_id: None,
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
        if self.send_rings.element() == 0 {
            self.send_rings = Pool::new(size as usize, false);
        }
        let size = self.send_rings.element() as u32;
        let index = match self.slots.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.slots.len() < SLOTS => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return Err(Errno(libc::ENOBUFS)),
        };
        let header = self.headers.take()?;
        let ring = match self.send_rings.take() {
            Ok(ring) => ring,
            Err(e) => {
                self.headers.give_back(header);
                return Err(e);
            }
        };
        USED.fetch_add(1, Relaxed);
        let slot = Slot::new(index as u32, sock, header, (ring, size));
        Ok(self.slots[index].insert(Box::new(slot)))
    }

    /// The connection with this number.
    pub fn slot(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index as usize)?.as_deref_mut()
    }

    /// The open device of a port, opened if it is not.
    pub fn device(&mut self, port: &Port) -> Res<usize> {
        let known = |d: &Device| d.name == port.device && d.port == port.port;
        if let Some(at) = self.devices.iter().position(known) {
            return Ok(at);
        }
        self.devices.push(Device::open(port)?);
        Ok(self.devices.len() - 1)
    }

    /// Makes a group without a peer.
    pub fn new_group(&mut self, role: Role, port: &Port, size: RmbeSize) -> Res<usize> {
        let number = self.device(port)?;
        let device = &self.devices[number];
        let psn = Psn::truncate(u32::from_ne_bytes(proc::random()?));
        let room = self.rooms.take()?;
        let keys = self.rooms.keys(room, number, device)?;
        let mut group = Group::new(role, number, device, port, psn, size)?;
        group.set_room(Room { at: room.start, lkey: keys.lkey });
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

    /// Gives a connection a ring in a group: from now on the peer may learn of it. The end that the
    /// handshake sends.
    pub fn give_ring(&mut self, index: u32, place: usize) -> Res<Endpoint> {
        let peer_id = self.peer_id()?;
        self.generation = self.generation.wrapping_add(1);
        let (generation, send_rings) = (self.generation, &mut self.send_rings);
        let slot = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut);
        let group = self.groups.get_mut(place).and_then(Option::as_mut);
        let (Some(slot), Some(group)) = (slot, group) else { return Err(Errno(libc::EINVAL)) };
        let device = &self.devices[group.device];
        slot.tx_key = send_rings.keys(slot.tx.0, group.device, device)?.lkey;
        let ring = group.rings.take()?;
        let keys = match group.rings.keys(ring, group.device, device) {
            Ok(keys) => keys,
            Err(e) => {
                group.rings.give_back(ring);
                return Err(e);
            }
        };
        let (Some(token), Some(qp)) = (token(index, generation), &group.qp) else {
            group.rings.give_back(ring);
            return Err(Errno(libc::ENOTCONN));
        };
        let mut conn = Conn::new(token, group.size);
        // Urgent bytes stand in the stream: the ring has no way round them.
        conn.set_oob_inline(true);
        slot.conn = Some(conn);
        slot.rx = Some(ring);
        slot.group = Some(place);
        group.users += 1;
        if let Some(s) = slot.sock() {
            s.rx.ring.store(ring.start, Release);
        }
        Ok(Endpoint {
            peer_id,
            gid: group.port.gid,
            mac: group.port.mac,
            qpn: qp.number(),
            psn: group.psn,
            mtu: device.mtu()?,
            rkey: keys.rkey,
            rmb_address: keys.base,
            index: keys.index,
            token,
            size: group.size,
        })
    }

    /// Forgets a connection that came to nothing or is over.
    pub fn release(&mut self, index: u32) {
        let Some(mut slot) = self.slots.get_mut(index as usize).and_then(Option::take) else { return };
        if slot.stalled {
            STALLED.fetch_sub(1, Relaxed);
        }
        self.part(&mut slot);
        self.send_rings.give_back(slot.tx.0);
        self.headers.give_back(slot.header);
        USED.fetch_sub(1, Relaxed);
    }

    /// The connection has no group any more: its ring is given back unless the peer may still write.
    pub fn leave_group(&mut self, index: u32) {
        let Some(mut slot) = self.slots.get_mut(index as usize).and_then(Option::take) else { return };
        self.part(&mut slot);
        self.slots[index as usize] = Some(slot);
    }

    fn part(&mut self, slot: &mut Slot) {
        slot.conn = None;
        slot.active = false;
        let Some(group) = slot.group.take().and_then(|g| self.groups.get_mut(g)?.as_mut()) else { return };
        group.users -= 1;
        if slot.joined {
            slot.joined = false;
            group.leave(now());
        }
        if let Some(ring) = slot.rx.take().filter(|_| !slot.tainted) {
            group.rings.give_back(ring);
        }
    }

    /// Somebody has left something to do, and no mark (a forked child): looks at all connections.
    pub fn mark_all(&mut self) {
        for slot in self.slots.iter().flatten() {
            mark(slot.index);
        }
    }

    /// Sends for all connections with a mark.
    fn flush_marked(&mut self) {
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
        let slot = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut);
        let Some(slot) = slot else { return };
        let Some(group) = slot.group.and_then(|g| self.groups.get_mut(g)?.as_mut()) else { return };
        let was = slot.stalled;
        let fine = slot.pump(group);
        let (is, group_at) = (slot.stalled, slot.group);
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
            let mut done = [Completion { id: 0, status: 0, arrived: false, len: 0, qpn: 0 }; 16];
            loop {
                let n = self.devices[number].poll(&mut done);
                any |= n > 0;
                for c in &done[..n] {
                    if c.arrived { self.arrived(number, c) } else { self.sent(number, c) }
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

    fn arrived(&mut self, number: usize, c: &Completion) {
        let mut message = [0; MESSAGE];
        let Some(n) = self.devices[number].take_message(c.id, c.len, &mut message) else { return };
        let Some(place) = self.group_of(number, c.qpn) else { return };
        if c.status != 0 {
            return self.fail_group(place);
        }
        let now = now();
        let message = &message[..n];
        if let Ok(cdc) = Cdc::parse(message) {
            if let Some(group) = &mut self.groups[place] {
                group.handle_arrival(now);
            }
            let index = (cdc.token.value() & 0xffff).wrapping_sub(1);
            let slot = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut);
            // The token is looked up in the whole process, so the group is checked as well.
            if let Some(slot) = slot.filter(|s| s.group == Some(place)) {
                slot.handle_cdc(&cdc);
                mark(index);
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
        let mut next: Option<Time> = None;
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
                    if let Some(group) = self.groups[place].take() {
                        group.rings.destroy(&self.devices[group.device]);
                    }
                    continue;
                }
            }
            next = [next, at].into_iter().flatten().min();
        }
        next
    }

    /// The group's machine has run: what it means for the connections.
    fn look_at_group(&mut self, place: usize) {
        let Some(group) = &mut self.groups[place] else { return };
        let withdrawn = std::mem::take(&mut group.withdrawn);
        let over = group.over.is_some();
        if withdrawn.is_empty() && !over {
            return;
        }
        let mut finished = Vec::new();
        for slot in self.slots.iter_mut().flatten().filter(|s| s.group == Some(place)) {
            if !withdrawn.is_empty() {
                slot.withdrawn(&withdrawn);
                mark(slot.index);
            }
            if over {
                slot.link_down();
                if slot.is_finished(true) {
                    finished.push(slot.index);
                }
            }
        }
        for index in finished {
            self.release(index);
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

    /// Ends a group: the ends disagree about it, or its first connection came to nothing.
    pub fn end_group(&mut self, place: usize) {
        if let Some(Some(group)) = self.groups.get_mut(place) {
            group.end(&self.devices[group.device], false, now());
            self.look_at_group(place);
        }
    }

    /// The TCP connection below a connection has ended: a peer that has not said so by the link may be
    /// dead, and then it does not answer.
    pub fn probe(&mut self, index: u32) {
        let Some(slot) = self.slot(index) else { return };
        let open = slot.conn.as_ref().is_some_and(|c| !c.is_eof());
        if let Some(place) = slot.group.filter(|_| open)
            && let Some(Some(group)) = self.groups.get_mut(place)
        {
            group.probe();
        }
    }

    /// Wakes who waits for a connection, whatever for.
    pub fn wake_slot(&mut self, index: u32) {
        if let Some(slot) = self.slot(index) {
            wake::reader(slot.rx_dir(), slot.sock());
            wake::writer(slot.tx_dir());
        }
    }

    /// Ends all groups, because the process ends.
    pub fn end_all(&mut self) {
        for group in self.groups.iter_mut().flatten() {
            group.end(&self.devices[group.device], true, now());
        }
    }

    /// Closes the connections that the program has left open; whether all have said so.
    pub fn close_all(&mut self, first: bool) -> bool {
        let mut quiet = true;
        for slot in self.slots.iter_mut().flatten().filter(|s| s.active) {
            if first {
                slot.closing = slot.closing.max(Closing::Close);
                mark(slot.index);
            }
            let head = slot.tx_dir().head.load(Relaxed);
            let unsendable = slot.conn.as_mut().is_none_or(|c| c.write(0, false).is_err());
            let said = slot.conn.as_ref().is_none_or(|c| {
                !matches!(c.state(), conn::State::Init | conn::State::Active | conn::State::AppCloseWait1)
            });
            quiet &= said && slot.in_flight == 0 && (slot.pumped == head || unsendable);
        }
        quiet
    }

}

fn mark(index: u32) {
    let i = index as usize % SLOTS;
    MARKS[i / 64].fetch_or(1 << (i % 64), AcqRel);
    MARKED.store(1, Relaxed);
}

/// Arms all devices before a sleep: for messages, or for everything while something waits for a
/// completion. The caller polls once more.
pub fn arm(state: &State) {
    let all = STALLED.load(Relaxed) > 0;
    for d in &state.devices {
        d.arm(all);
    }
}
