//! The processes at the other ends: the table of them, their life, and sending to their channels. What is said there of
//! waiters is in [`super::told`], what they are woken by in [`super::wakes`].
//!
//! A peer is one process that proved a connection, or is about to. Its channel is a Unix socket that
//! carries offers and what to ring by; it is closed when the last connection with the peer has gone. What a
//! peer sends is checked here and in `proto::rendezvous`; a peer that talks nonsense loses its
//! channel, which costs its connections the cheap wakes and nothing else.

use super::waiters::{self, Waiter};
use super::wakes::Wakes;
use super::{budget, idle};
use crate::family::process::is_vfork_child;
use crate::fault::{self, Step as Fault};
use crate::sys::held::{self, Held};
use crate::sys::{self, Res, clock, left, mem, porter, rights};
use smcr_proto::rendezvous::{MAX_MESSAGE, Message};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*, fence};

/// Most peers of one process.
pub const PEERS: usize = 512;
/// So many of them of other users, who may come for nothing: there is room for those of our own.
const STRANGERS: usize = PEERS / 2;

/// One peer. Private memory of this process; a forked child has its own copy.
pub struct Peer {
    /// Connections and offers that use it; 0 = free.
    refs: AtomicU32,
    pub(super) channel: AtomicI32,
    /// Name number (connecting side), 0 where the peer connected to us.
    name: AtomicU64,
    pid: AtomicU32,
    uid: AtomicU32,
    /// [`KIN`], [`STRANGER`], [`DEAF`] or [`FORMER`].
    pub(super) kinship: AtomicU32,
    pub(super) page: AtomicPtr<u8>,
    pub(super) wakes: Wakes,
    /// Waiters of ours that the peer knows (generation + 1), or that a thread tells it now.
    pub(super) told: [AtomicU32; waiters::SLOTS],
    /// The tick by which it was told.
    pub(super) told_at: [AtomicU64; waiters::SLOTS],
    /// The sleep of each of the peer's waiters that this process rang last, with the waiter's generation:
    /// a slot that has changed hands goes on with the numbers. 0 = none (a sleep is odd).
    pub(super) rung: [AtomicU64; waiters::SLOTS],
    /// Waiters of ours that it has taken (generation + 1).
    pub(super) taken: [AtomicU32; waiters::SLOTS],
    /// The channel may be read by this process (not by a forked child).
    readable: AtomicU32,
    /// The peer knows our sleep page: 0, 1, or [`OF_OLD`].
    pub(super) introduced: AtomicU32,
    reading: AtomicU32,
    /// Offers of it for connections of other users (`rendezvous::owner`).
    doubts: AtomicU32,
    /// The tick at which the channel was made, or last served a connection.
    since: AtomicU64,
    /// 1 while the slot itself holds a reference (the peer connected to us).
    base: AtomicU32,
}

/// The peer knows the sleep page of the family that this process has left, and can't be given another one.
pub(super) const OF_OLD: u32 = 2;

/// A process of our own user.
pub(super) const KIN: u32 = 0;
/// One of another user, as far as anybody can tell.
pub(super) const STRANGER: u32 = 1;
/// One of another user that has closed what it was to ring by: it has doorbell bytes.
pub(super) const DEAF: u32 = 2;

/// One of the user that this process was before (`kin`): it has doorbell bytes, and gives us the same.
pub(super) const FORMER: u32 = 3;

/// In [`Peer::refs`]: the slot is emptied, and nobody's.
const EMPTYING: u32 = 1 << 31;

/// What a uid that means nothing in this user namespace looks like: several users, or none.
pub const OVERFLOW_UID: u32 = 65534;

#[allow(clippy::declare_interior_mutable_const, reason = "it fills the table and is nothing else")]
const FREE: Peer = Peer {
    refs: AtomicU32::new(0),
    channel: AtomicI32::new(-1),
    name: AtomicU64::new(0),
    pid: AtomicU32::new(0),
    uid: AtomicU32::new(0),
    kinship: AtomicU32::new(STRANGER),
    page: AtomicPtr::new(std::ptr::null_mut()),
    wakes: Wakes::none(),
    told: [const { AtomicU32::new(0) }; waiters::SLOTS],
    told_at: [const { AtomicU64::new(0) }; waiters::SLOTS],
    rung: [const { AtomicU64::new(0) }; waiters::SLOTS],
    taken: [const { AtomicU32::new(0) }; waiters::SLOTS],
    readable: AtomicU32::new(0),
    introduced: AtomicU32::new(0),
    reading: AtomicU32::new(0),
    doubts: AtomicU32::new(0),
    since: AtomicU64::new(0),
    base: AtomicU32::new(0),
};

static TABLE: [Peer; PEERS] = [const { FREE }; PEERS];
/// No slot at or above this was ever used.
static HIGH: AtomicU32 = AtomicU32::new(0);

/// The peer in a slot (slot + 1 as stored in `Sock::peer`).
#[inline]
pub fn get(slot_plus_1: u32) -> Option<&'static Peer> {
    TABLE.get((slot_plus_1 as usize).checked_sub(1)?)
}

/// The slot + 1 of a peer.
pub fn slot_of(peer: &Peer) -> Option<u32> {
    TABLE.iter().position(|p| std::ptr::eq(p, peer)).map(|i| i as u32 + 1)
}

/// All peers in use, with their slot + 1.
pub fn all() -> impl Iterator<Item = (u32, &'static Peer)> {
    let high = HIGH.load(Acquire) as usize;
    TABLE[..high.min(PEERS)].iter().enumerate().filter(|(_, p)| !matches!(p.refs.load(Acquire), 0 | EMPTYING)).map(|(i, p)| (i as u32 + 1, p))
}

/// A channel whose other end is closed.
fn shows_end(channel: i32) -> bool {
    sys::fd::poll_now(channel, libc::POLLIN) & libc::POLLHUP != 0
}

/// Finds a connected peer by its name number and takes a reference.
pub fn find(name: u64) -> Option<u32> {
    let is_it = |p: &Peer| p.name.load(Relaxed) == name && p.is_readable();
    let (i, p) = all().find(|(_, p)| name != 0 && is_it(p) && p.hold())?;
    if is_it(p) {
        return Some(i);
    }
    p.release(); // another one's since
    None
}

/// Whether a process is of our own user; `own_uid` as for [`add`].
pub fn is_own(uid: u32, own_uid: u32) -> bool {
    uid == own_uid && own_uid != OVERFLOW_UID && !fault::has_strangers_only()
}

/// Whether a process of this user may have a channel to this one: there are descriptors for it.
pub fn admits(uid: u32, own_uid: u32) -> bool {
    budget::admits(is_own(uid, own_uid))
}

/// Takes a slot for a new channel, with one reference. `own_uid`: ours, as the peer sees it on the channel, so that both
/// come to the same about each other.
pub fn add(channel: i32, name: u64, who: libc::ucred, own_uid: u32) -> Option<u32> {
    let kinship = if is_own(who.uid, own_uid) { KIN } else { STRANGER };
    if kinship == STRANGER && all().filter(|(_, p)| !p.is_kin()).count() >= STRANGERS {
        return None;
    }
    for (i, p) in TABLE.iter().enumerate() {
        if p.refs.load(Relaxed) != 0 || p.refs.compare_exchange(0, 1, AcqRel, Relaxed).is_err() {
            continue;
        }
        p.name.store(name, Relaxed);
        p.pid.store(who.pid as u32, Relaxed);
        p.uid.store(who.uid, Relaxed);
        p.since.store(clock::ticks(), Relaxed);
        p.kinship.store(kinship, Relaxed);
        for t in p.told.iter().chain(&p.taken) {
            t.store(0, Relaxed);
        }
        for t in &p.rung {
            t.store(0, Relaxed);
        }
        p.introduced.store(0, Relaxed);
        p.reading.store(0, Relaxed);
        p.doubts.store(0, Relaxed);
        p.base.store(u32::from(name == 0), Relaxed);
        p.readable.store(1, Relaxed);
        p.channel.store(channel, Release);
        HIGH.fetch_max(i as u32 + 1, AcqRel);
        return Some(i as u32 + 1);
    }
    None
}

/// A forked child shares its parent's channels and must not read from them; it has none of its waiters.
pub fn forget_in_child() {
    porter::forget_in_child();
    held::forget_in_child();
    TABLE.iter().filter(|p| p.refs.load(Relaxed) == EMPTYING).for_each(Peer::empty); // who was at it is not here
    for (_, p) in all() {
        p.readable.store(0, Relaxed);
        p.wakes.close_ears();
        // What waits for the peer's next offer is the parent's: here a channel goes with the last connection.
        if p.base.swap(0, Relaxed) == 1 {
            p.release();
        }
    }
}

/// The ears of a waiter of ours: the slot + 1 of the peer of each, and the descriptor.
pub fn ears_of(w: Waiter) -> impl Iterator<Item = (u32, Held)> {
    all().filter_map(move |(i, p)| Some((i, p.wakes.hold_ear(w)?)))
}

/// A waiter of ours that has ears ends.
pub fn waiter_ends(w: Waiter) {
    all().for_each(|(_, p)| p.wakes.close_ear(w));
}

/// This process is about to have another page of sleep words, which no peer reads: nothing is posted to them any more.
pub fn know_old_page() {
    for (_, p) in all() {
        p.introduced.store(OF_OLD, Relaxed);
    }
    fence(SeqCst); // pairs with the fence in `engine::post`: a post before this is in the old one
}

/// This process leaves its family and has another page of sleep words (`waiters::leave_family`). Channels of the
/// parent's are closed, unless `is_needed`; own ones go on for what they serve, and name no waiter of ours any more.
pub fn leave_family(is_needed: impl Fn(u32) -> bool) {
    for (i, p) in all() {
        p.name.store(0, Relaxed);
        for told in &p.told {
            told.store(0, Relaxed);
        }
        if !p.is_readable() && !is_needed(i) {
            p.refs.store(1, Relaxed);
            p.release();
        }
    }
}

/// Whether `fd` is one of our descriptors here.
pub fn owns(fd: i32) -> bool {
    all().any(|(_, p)| p.channel.load(Relaxed) == fd || p.wakes.owns(fd)) || left::owns(fd) || held::owns(fd)
}

/// Names our descriptors here.
pub fn descriptors(add: &mut impl FnMut(i32)) {
    for (_, p) in all() {
        add(p.channel.load(Relaxed));
        p.wakes.descriptors(add);
    }
    left::descriptors(add);
    held::descriptors(add);
}

/// A descriptor of ours has another number now; false if it is none of these.
pub fn moved(old: i32, new: i32) -> bool {
    all().any(|(_, p)| p.channel.compare_exchange(old, new, AcqRel, Relaxed).is_ok() || p.wakes.moved(old, new))
        || left::moved(old, new)
        || held::moved(old, new)
}

impl Peer {
    /// Takes a reference unless the slot is free or about to be.
    pub fn hold(&self) -> bool {
        let mut n = self.refs.load(Relaxed);
        while !matches!(n, 0 | EMPTYING) {
            match self.refs.compare_exchange_weak(n, n + 1, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(v) => n = v,
            }
        }
        false
    }

    /// Drops a reference; the last one closes the channel.
    pub fn release(&self) {
        // Never through 0 before it is empty: `add` takes it then.
        let less = |n| match n {
            0 | EMPTYING => None,
            1 => Some(EMPTYING),
            n => Some(n - 1),
        };
        match self.refs.fetch_update(AcqRel, Relaxed, less) {
            Ok(1) => self.empty(),
            Ok(2) => {
                self.since.store(clock::ticks(), Relaxed); // idle from here on, if that was the last connection
                self.bury();
            }
            _ => {}
        }
    }

    fn empty(&self) {
        self.name.store(0, Relaxed);
        self.readable.store(0, Relaxed);
        self.wakes.close_bells(self.channel.swap(-1, AcqRel), self.is_kin());
        self.wakes.close_ears();
        let page = self.page.swap(std::ptr::null_mut(), AcqRel);
        if !page.is_null() {
            mem::unmap(page, waiters::LEN);
        }
        self.refs.store(0, Release);
        budget::has_room_again();
    }

    /// Nothing uses it but what keeps a peer that connected to us: if that has ended, what it gave us goes now. Otherwise
    /// it would stay until somebody listens for the next one. A peer that dies closes its channel after its connections:
    /// then [`idle`] sees to it.
    fn bury(&self) {
        if self.base.load(Relaxed) != 1 || !self.is_readable() {
            return;
        }
        let has_ended = || shows_end(self.channel());
        // Once more where nobody else can give the slot to the next peer.
        if has_ended() && self.start_reading() {
            if has_ended() {
                return self.lost(); // stays marked as being read: nobody reads a channel that has ended
            }
            self.stop_reading();
        }
        idle::add();
    }

    /// Whether nothing uses it but what keeps a peer that connected to us.
    pub fn is_idle(&self) -> bool {
        self.refs.load(Relaxed) == 1 && self.base.load(Relaxed) == 1
    }

    /// When its channel was made, or last served a connection.
    pub(super) fn since(&self) -> u64 {
        self.since.load(Relaxed)
    }

    /// Descriptors of ours that it has taken: the channel, and what it rings and is rung by. The first one of these, which comes behind the
    /// channel and is not refused, counts from the beginning: many peers may come at once.
    pub(super) fn descriptors_taken(&self) -> u32 {
        let channel = u32::from(self.channel.load(Relaxed) >= 0);
        channel + self.wakes.count().max(channel)
    }

    /// Closes the channel of a peer that nothing uses. False: somebody does by now.
    pub(super) fn dismiss(&self) -> bool {
        let may = self.is_idle() && self.start_reading();
        let waits = || sys::fd::poll_now(self.channel(), libc::POLLIN) & (libc::POLLIN | libc::POLLHUP) == libc::POLLIN;
        if may && waits() {
            self.stop_reading(); // an offer that nobody has looked at yet
            return false;
        }
        if may {
            self.lost(); // stays marked as being read, as in `bury`
        }
        may
    }

    /// The channel has ended: the peer is not found any more, and the slot goes with the last user.
    pub fn lost(&self) {
        self.name.store(0, Relaxed);
        self.readable.store(0, Relaxed);
        if self.base.swap(0, AcqRel) == 1 {
            self.release();
        }
    }

    /// The channel.
    pub fn channel(&self) -> i32 {
        self.channel.load(Acquire)
    }

    /// The channel, for a message: it may be closed meanwhile, or move.
    pub(super) fn hold_channel(&self) -> Option<Held> {
        let fd = self.channel();
        held::hold(fd, || self.channel() == fd)
    }

    /// Whether the process at the other end has closed it, or ended; also where there is none.
    pub fn has_ended(&self) -> bool {
        self.hold_channel().is_none_or(|held| shows_end(held.fd()))
    }

    /// Pid and uid as the kernel vouched for them when the channel was made.
    pub fn who(&self) -> (u32, u32) {
        (self.pid.load(Relaxed), self.uid.load(Relaxed))
    }

    /// The name by which it was found; 0 where it connected to us, or has ended.
    pub fn name(&self) -> u64 {
        self.name.load(Relaxed)
    }

    /// Whether it has ever said anything: its sleep page comes with the first message.
    pub fn has_spoken(&self) -> bool {
        !self.page.load(Relaxed).is_null()
    }

    /// Whether the channel may be read by this process.
    pub fn is_readable(&self) -> bool {
        self.readable.load(Relaxed) == 1
    }

    /// Claims the reading side of the channel for the calling thread. Not in a vfork child: what it received would be noted in its parent's
    /// memory, and be open in the child alone.
    pub fn start_reading(&self) -> bool {
        self.is_readable() && !is_vfork_child() && self.reading.swap(1, Acquire) == 0
    }

    /// Whether a thread reads the channel now.
    pub fn is_being_read(&self) -> bool {
        self.is_readable() && self.reading.load(Acquire) != 0
    }

    /// Gives the reading side back.
    pub fn stop_reading(&self) {
        self.reading.store(0, Release);
    }

    /// Sends a message; the first one to this peer introduces our sleep page.
    pub fn send(&self, message: &Message, extra: Option<i32>) -> Res {
        let mut fds = [-1; 2];
        let mut n = 0;
        if let Some(fd) = extra {
            fds[n] = fd;
            n += 1;
        }
        let introduce = self.introduced.load(Relaxed) == 0;
        let mut page = false;
        if introduce && let Ok(fd) = waiters::page_fd() {
            fds[n] = fd;
            n += 1;
            page = true;
        }
        let mut buf = [0u8; MAX_MESSAGE];
        let len = message.emit(&mut buf, page);
        if fault::fails(Fault::Message) {
            return Err(sys::Errno(libc::EAGAIN));
        }
        let channel = self.hold_channel().ok_or(sys::Errno(libc::EPIPE))?;
        let sent = rights::send_with_fds(channel.fd(), &buf[..len], &fds[..n])?;
        if page {
            self.introduced.store(1, Relaxed);
        }
        Ok(sent)
    }

    /// Whether it has named connections of other users so often that nobody is asked any more.
    pub fn is_doubted(&self) -> bool {
        const MOST_DOUBTS: u32 = 16;
        self.doubts.load(Relaxed) >= MOST_DOUBTS
    }

    /// It has named one.
    pub fn doubt(&self) {
        self.doubts.fetch_add(1, Relaxed);
    }

    /// Whether it is of our own user: it could trace us.
    pub fn is_kin(&self) -> bool {
        self.kinship.load(Relaxed) == KIN
    }
}
