//! The processes at the other ends: channel, sleep words (read-only) and eventfds.
//!
//! A peer is one process that proved a connection, or is about to. Its channel is a Unix socket that
//! carries offers and eventfds; it is closed when the last connection with the peer has gone. What a
//! peer sends is checked here and in `proto::rendezvous`; a peer that talks nonsense loses its
//! channel, which costs its connections the cheap wakes and nothing else.

use super::waiters::{self, Waiter};
use crate::control;
use crate::fault::{self, Step as Fault};
use crate::sys::{self, Res, clock, mem, net};
use smcr_proto::rendezvous::{Bell, MAX_MESSAGE, Message};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Most peers of one process.
pub const PEERS: usize = 512;

/// One peer. Private memory of this process; a forked child has its own copy.
pub struct Peer {
    /// Connections and offers that use it; 0 = free.
    refs: AtomicU32,
    channel: AtomicI32,
    /// Name number (connecting side), 0 where the peer connected to us.
    name: AtomicU64,
    pid: AtomicU32,
    uid: AtomicU32,
    page: AtomicPtr<u8>,
    /// eventfds of the peer's waiters, allocated at the first one.
    bells: AtomicPtr<BellSlot>,
    /// Waiters of ours that the peer knows (generation + 1).
    told: [AtomicU32; waiters::SLOTS],
    /// The tick by which it was told.
    told_at: [AtomicU64; waiters::SLOTS],
    /// The sleep of each of the peer's waiters that this process rang last, with the waiter's generation:
    /// a slot that has changed hands goes on with the numbers. 0 = none (a sleep is odd).
    rung: [AtomicU64; waiters::SLOTS],
    /// Waiters of ours that it has taken (generation + 1).
    taken: [AtomicU32; waiters::SLOTS],
    /// The channel may be read by this process (not by a forked child).
    readable: AtomicU32,
    /// The peer knows our sleep page: 0, 1, or [`OF_OLD`].
    introduced: AtomicU32,
    reading: AtomicU32,
    /// 1 while the slot itself holds a reference (the peer connected to us).
    base: AtomicU32,
}

/// The peer knows the sleep page of the family that this process has left, and can't be given another one.
const OF_OLD: u32 = 2;

struct BellSlot {
    eventfd: AtomicI32,
    generation: AtomicU32,
}

#[allow(clippy::declare_interior_mutable_const, reason = "it fills the table and is nothing else")]
const FREE: Peer = Peer {
    refs: AtomicU32::new(0),
    channel: AtomicI32::new(-1),
    name: AtomicU64::new(0),
    pid: AtomicU32::new(0),
    uid: AtomicU32::new(0),
    page: AtomicPtr::new(std::ptr::null_mut()),
    bells: AtomicPtr::new(std::ptr::null_mut()),
    told: [const { AtomicU32::new(0) }; waiters::SLOTS],
    told_at: [const { AtomicU64::new(0) }; waiters::SLOTS],
    rung: [const { AtomicU64::new(0) }; waiters::SLOTS],
    taken: [const { AtomicU32::new(0) }; waiters::SLOTS],
    readable: AtomicU32::new(0),
    introduced: AtomicU32::new(0),
    reading: AtomicU32::new(0),
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
    TABLE[..high.min(PEERS)]
        .iter()
        .enumerate()
        .filter(|(_, p)| p.refs.load(Acquire) != 0)
        .map(|(i, p)| (i as u32 + 1, p))
}

/// Finds a connected peer by its name number and takes a reference.
pub fn find(name: u64) -> Option<u32> {
    all().find(|(_, p)| name != 0 && p.name.load(Relaxed) == name && p.is_readable() && p.hold())
        .map(|(i, _)| i)
}

/// Takes a slot for a new channel, with one reference.
pub fn add(channel: i32, name: u64, pid: u32, uid: u32) -> Option<u32> {
    for (i, p) in TABLE.iter().enumerate() {
        if p.refs.load(Relaxed) != 0 || p.refs.compare_exchange(0, 1, AcqRel, Relaxed).is_err() {
            continue;
        }
        p.name.store(name, Relaxed);
        p.pid.store(pid, Relaxed);
        p.uid.store(uid, Relaxed);
        for t in p.told.iter().chain(&p.taken) {
            t.store(0, Relaxed);
        }
        for t in &p.rung {
            t.store(0, Relaxed);
        }
        p.introduced.store(0, Relaxed);
        p.reading.store(0, Relaxed);
        p.base.store(u32::from(name == 0), Relaxed);
        p.readable.store(1, Relaxed);
        p.channel.store(channel, Release);
        HIGH.fetch_max(i as u32 + 1, AcqRel);
        return Some(i as u32 + 1);
    }
    None
}

/// A forked child shares its parent's channels and must not read from them.
pub fn forget_in_child() {
    for (_, p) in all() {
        p.readable.store(0, Relaxed);
    }
}

/// This process leaves its family and has another page of sleep words (`waiters::leave_family`). Channels of the
/// parent's are closed, unless `is_needed`; own ones go on for what they serve, and name no waiter of ours any more.
pub fn leave_family(is_needed: impl Fn(u32) -> bool) {
    for (i, p) in all() {
        p.name.store(0, Relaxed);
        p.introduced.store(OF_OLD, Relaxed);
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
    all().any(|(_, p)| {
        p.channel.load(Relaxed) == fd
            || p.bell_slots().is_some_and(|b| b.iter().any(|s| s.eventfd.load(Relaxed) == fd))
    })
}

/// Names our descriptors here.
pub fn descriptors(add: &mut impl FnMut(i32)) {
    for (_, p) in all() {
        add(p.channel.load(Relaxed));
        for s in p.bell_slots().unwrap_or(&[]) {
            add(s.eventfd.load(Relaxed));
        }
    }
}

/// A descriptor of ours has another number now; false if it is none of these.
pub fn moved(old: i32, new: i32) -> bool {
    all().any(|(_, p)| {
        p.channel.compare_exchange(old, new, AcqRel, Relaxed).is_ok()
            || p.bell_slots().unwrap_or(&[]).iter().any(|s| {
                s.eventfd.compare_exchange(old, new, AcqRel, Relaxed).is_ok()
            })
    })
}

impl Peer {
    /// Takes a reference unless the slot is being freed.
    pub fn hold(&self) -> bool {
        let mut n = self.refs.load(Relaxed);
        while n != 0 {
            match self.refs.compare_exchange_weak(n, n + 1, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(v) => n = v,
            }
        }
        false
    }

    /// Drops a reference; the last one closes the channel.
    pub fn release(&self) {
        if self.refs.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        // Nobody else finds the slot any more, but `add` may take it as soon as refs is 0: hold it
        // at 1 while it is emptied.
        self.refs.store(1, Relaxed);
        self.name.store(0, Relaxed);
        let fd = self.channel.swap(-1, AcqRel);
        if fd >= 0 {
            sys::fd::close(fd);
        }
        if let Some(slots) = self.bell_slots() {
            for s in slots {
                let fd = s.eventfd.swap(-1, AcqRel);
                if fd >= 0 {
                    sys::fd::close(fd);
                }
            }
        }
        let page = self.page.swap(std::ptr::null_mut(), AcqRel);
        if !page.is_null() {
            mem::unmap(page, waiters::LEN);
        }
        self.refs.store(0, Release);
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

    /// Pid and uid as the kernel vouched for them when the channel was made.
    pub fn who(&self) -> (u32, u32) {
        (self.pid.load(Relaxed), self.uid.load(Relaxed))
    }

    /// Whether the channel may be read by this process.
    pub fn is_readable(&self) -> bool {
        self.readable.load(Relaxed) == 1
    }

    /// Claims the reading side of the channel for the calling thread.
    pub fn start_reading(&self) -> bool {
        self.is_readable() && self.reading.swap(1, Acquire) == 0
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
        let sent = net::send_with_fds(self.channel(), &buf[..len], &fds[..n])?;
        if page {
            self.introduced.store(1, Relaxed);
        }
        Ok(sent)
    }

    /// Takes the sleep page that came with a message.
    pub fn take_page(&self, fd: i32) {
        if !control::is_restricted()
            && self.page.load(Acquire).is_null()
            && mem::is_safe_memfd(fd, waiters::LEN)
            && let Ok(p) = mem::map_shared(fd, waiters::LEN, false)
        {
            self.page.store(p, Release);
        }
        sys::fd::close(fd);
    }

    /// Takes an eventfd of one of the peer's waiters.
    pub fn take_bell(&self, bell: Bell, fd: i32) {
        let Some(slots) = self.bell_slots_or_make() else { return sys::fd::close(fd) };
        let Some(s) = slots.get(bell.slot as usize) else { return sys::fd::close(fd) };
        let fd = sys::fd::park(fd);
        s.generation.store(bell.generation, Relaxed);
        let old = s.eventfd.swap(fd, AcqRel);
        if old >= 0 {
            sys::fd::close(old);
        }
    }

    /// The sleep word of a waiter of the peer.
    #[inline]
    pub fn sleep_word(&self, w: Waiter) -> Option<u32> {
        let p = self.page.load(Acquire);
        if p.is_null() {
            return None;
        }
        // SAFETY: the slot is below SLOTS, so the word lies inside the mapping of LEN bytes, which is
        // unmapped only with the last reference.
        Some(unsafe { &*p.add(w.slot() * waiters::STRIDE).cast::<AtomicU32>() }.load(Relaxed))
    }

    /// Whether this sleep of a waiter of the peer was rung already.
    #[inline]
    pub fn is_rung(&self, w: Waiter, sleep: u32) -> bool {
        self.rung[w.slot()].load(Relaxed) == name_of_sleep(w, sleep)
    }

    /// Notes that this sleep was rung.
    pub fn note_rung(&self, w: Waiter, sleep: u32) {
        self.rung[w.slot()].store(name_of_sleep(w, sleep), Relaxed);
    }

    /// Rings the eventfd of a waiter of the peer; false if it is not known.
    pub fn ring(&self, w: Waiter) -> bool {
        let Some(s) = self.bell_slots().and_then(|b| b.get(w.slot())) else { return false };
        let fd = s.eventfd.load(Acquire);
        if fd < 0 || s.generation.load(Relaxed) != w.generation() || fault::fails(Fault::Bell) {
            return false;
        }
        // EAGAIN means that the counter is at its end: it rings already.
        !matches!(sys::fd::event_set(fd), Err(e) if e.0 != libc::EAGAIN)
    }

    /// Lets the peer know the eventfd of a waiter of ours; false if that can't be done now.
    pub fn tell(&self, w: Waiter) -> bool {
        let told = &self.told[w.slot()];
        if told.load(Relaxed) == w.generation() + 1 {
            return true;
        }
        if !w.is_ours() || !self.is_readable() || self.introduced.load(Relaxed) == OF_OLD {
            return false;
        }
        let bell = Bell { slot: w.slot() as u32, generation: w.generation() };
        let sent = self.send(&Message::Bell(bell), Some(w.eventfd())).is_ok();
        if sent {
            self.told_at[w.slot()].store(clock::ticks(), Relaxed);
            told.store(w.generation() + 1, Relaxed);
        }
        sent
    }

    /// Whether the peer has surely taken the eventfd of a waiter that it was told: its channel is empty. A
    /// message for which there is no room in its table of descriptors stays there.
    pub fn has_taken(&self, w: Waiter) -> bool {
        let taken = &self.taken[w.slot()];
        if taken.load(Relaxed) != w.generation() + 1 && sys::fd::unacked(self.channel()) == Ok(0) {
            taken.store(w.generation() + 1, Relaxed);
        }
        taken.load(Relaxed) == w.generation() + 1
    }

    /// Whether a waiter that was told had been told before that tick.
    pub fn was_told_before(&self, w: Waiter, tick: u64) -> bool {
        self.told_at[w.slot()].load(Relaxed) < tick
    }

    fn bell_slots(&self) -> Option<&'static [BellSlot]> {
        let p = self.bells.load(Acquire);
        // SAFETY: the array is a private mapping that is never unmapped.
        (!p.is_null()).then(|| unsafe { std::slice::from_raw_parts(p, waiters::SLOTS) })
    }

    fn bell_slots_or_make(&self) -> Option<&'static [BellSlot]> {
        if self.bell_slots().is_none() {
            let p = mem::map_private(size_of::<BellSlot>() * waiters::SLOTS).ok()?.cast();
            // SAFETY: a fresh private mapping; zero bytes are valid for atomics.
            let fresh: &[BellSlot] = unsafe { std::slice::from_raw_parts(p, waiters::SLOTS) };
            for s in fresh {
                s.eventfd.store(-1, Relaxed);
            }
            self.bells.store(p, Release);
        }
        self.bell_slots()
    }
}

fn name_of_sleep(w: Waiter, sleep: u32) -> u64 {
    u64::from(w.generation()) << 32 | u64::from(sleep)
}
