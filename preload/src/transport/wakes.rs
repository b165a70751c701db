//! What a peer and this process wake each other by: a table for each peer, made when it is first needed.
//!
//! `bells` are of the peer's waiters, and rung. `ears` are of our own, for this peer alone, and heard.
//!
//! A peer of our own user, who could trace us as well, is given a waiter's eventfd itself, and gives us its own: that costs least.
//! What a peer of another user has in its hands must not be what others ring: it could read their wakes away, or end it.
//! So it gets an end of a pair of sockets (`sys::pair`) for each of our waiters, and what it gives us has to be such an
//! end: anything else could hold who rings it, or raise a signal. Such an end is closed by a porter (`sys::porter`): the other
//! user may have put something into its queue.
//!
//! Several threads ring and hear while another one replaces or closes what they do it by: it is held meanwhile (`sys::held`).

use super::waiters::{SLOTS, Waiter};
use crate::family::process::is_vfork_child;
use crate::fault::{self, Step as Fault};
use crate::sys::held::{self, Held};
use crate::sys::{Errno, Res, fd, mem, pair, porter};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// The table of a peer.
pub struct Wakes(AtomicPtr<Table>);

struct Table {
    /// Descriptors in it.
    count: AtomicU32,
    bells: [Slot; SLOTS],
    ears: [Slot; SLOTS],
}

/// What a waiter is rung by or hears by: [`name`]; 0: nothing. One word: a descriptor is never taken for another waiter's.
struct Slot(AtomicU64);

fn name(w: Waiter, fd: i32) -> u64 {
    u64::from(w.generation()) << 32 | (fd + 1) as u64
}

fn fd_of(name: u64) -> i32 {
    name as u32 as i32 - 1
}

impl Slot {
    fn of(&self, w: Waiter) -> Option<i32> {
        let named = self.0.load(Acquire); // pairs with the exchange in `put`
        (fd_of(named) >= 0 && (named >> 32) as u32 == w.generation()).then(|| fd_of(named))
    }

    /// What it has for this waiter, for a system call: others may give it up meanwhile.
    fn hold(&self, w: Waiter) -> Option<Held> {
        let fd = self.of(w)?;
        held::hold(fd, || self.of(w) == Some(fd))
    }

    /// As [`Self::hold`], whichever waiter it is for.
    fn hold_any(&self) -> Option<Held> {
        let named = self.0.load(Acquire); // as in `of`
        held::hold(fd_of(named), || self.0.load(Acquire) == named)
    }

    fn fd(&self) -> i32 {
        fd_of(self.0.load(Relaxed))
    }

    /// What was there before and nobody uses, to be closed; -1: nothing.
    fn put(&self, w: Waiter, fd: i32, count: &AtomicU32, by_porter: bool) -> i32 {
        count.fetch_add(1, Relaxed);
        free(self.0.swap(name(w, fd), AcqRel), count, by_porter)
    }

    /// What was there and nobody uses, to be closed; -1: nothing.
    fn empty(&self, count: &AtomicU32, by_porter: bool) -> i32 {
        free(self.0.swap(0, AcqRel), count, by_porter)
    }

    /// As [`Self::empty`], if it is for this waiter.
    fn empty_of(&self, w: Waiter, count: &AtomicU32, by_porter: bool) -> i32 {
        let is_its = |named: u64| (fd_of(named) >= 0 && (named >> 32) as u32 == w.generation()).then_some(0);
        self.0.fetch_update(AcqRel, Acquire, is_its).map_or(-1, |named| free(named, count, by_porter))
    }

    /// It has another number now; false if it is not this one.
    fn moved(&self, old: i32, new: i32) -> bool {
        let is_it = |named: u64| (fd_of(named) == old).then_some(named >> 32 << 32 | (new + 1) as u64);
        self.0.fetch_update(AcqRel, Acquire, is_it).is_ok()
    }
}

/// The descriptor of a name that was taken out, unless its last user closes it.
fn free(named: u64, count: &AtomicU32, by_porter: bool) -> i32 {
    if fd_of(named) >= 0 {
        count.fetch_sub(1, Relaxed);
    }
    match fd_of(named) {
        fd if fd >= 0 && held::give_up(fd, by_porter) => fd,
        _ => -1,
    }
}

/// Closes what a peer gave us to ring.
pub fn close_bell(fd: i32, is_kin: bool) {
    match fd {
        ..0 => {}
        _ if is_kin => fd::close_own(fd),
        _ => porter::let_go(&[fd]),
    }
}

fn close_ear(fd: i32) {
    close_bell(fd, !pair::may_carry());
}

impl Wakes {
    /// Without a table.
    pub const fn none() -> Wakes {
        Wakes(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Takes what one of the peer's waiters is to be rung by. `is_kin`: the peer is of our own user.
    pub fn take_bell(&self, w: Waiter, fd: i32, is_kin: bool) {
        match self.table_or_make() {
            Some(t) if is_kin || pair::is_end(fd) => close_bell(t.bells[w.slot()].put(w, fd::park(fd), &t.count, !is_kin), is_kin),
            _ => close_bell(fd, is_kin),
        }
    }

    /// Rings a waiter of the peer; false if that can't be done.
    pub fn ring(&self, w: Waiter, is_kin: bool) -> bool {
        let Some(bell) = self.table().map(|t| &t.bells[w.slot()]) else { return false };
        loop {
            let Some(held) = bell.hold(w) else { return false };
            if fault::fails(Fault::Bell) {
                return false;
            }
            let rang = match is_kin {
                // EAGAIN means that the counter is at its end: it rings already.
                true => !matches!(fd::event_set(held.fd()), Err(e) if e.0 != libc::EAGAIN),
                false => pair::ring(held.fd()).is_ok(),
            };
            if rang || !held.is_taken() {
                return rang;
            }
        }
    }

    /// Rings all waiters of a peer of our own user, asleep or not.
    pub fn ring_all(&self) {
        for bell in self.table().into_iter().flat_map(|t| &t.bells) {
            while let Some(held) = bell.hold_any() {
                let _ = fd::event_set(held.fd());
                if !held.is_taken() {
                    break;
                }
            }
        }
    }

    /// Opens an ear of a waiter of ours; the end for the peer to ring, which is closed when it was sent. Not in a vfork child, as in
    /// [`super::waiters::take`].
    pub fn open_ear(&self, w: Waiter) -> Res<i32> {
        if is_vfork_child() || fault::fails(Fault::Memory) {
            return Err(Errno(libc::EMFILE));
        }
        let t = self.table_or_make().ok_or(Errno(libc::ENOMEM))?;
        let [hears, rings] = pair::make()?;
        close_ear(t.ears[w.slot()].put(w, fd::park(hears), &t.count, pair::may_carry()));
        w.has_new_ear();
        Ok(rings)
    }

    /// The ear of a waiter of ours; -1 without one.
    pub fn ear(&self, w: Waiter) -> i32 {
        self.table().and_then(|t| t.ears[w.slot()].of(w)).unwrap_or(-1)
    }

    /// Takes what an ear has heard; false if the peer has closed its end.
    pub fn hear(&self, w: Waiter) -> bool {
        self.hold_ear(w).is_none_or(|held| pair::hear(held.fd()) || held.is_taken())
    }

    /// The ear of a waiter of ours, for a system call.
    pub fn hold_ear(&self, w: Waiter) -> Option<Held> {
        self.table().and_then(|t| t.ears[w.slot()].hold(w))
    }

    /// Closes an ear.
    pub fn close_ear(&self, w: Waiter) {
        if let Some(t) = self.table() {
            close_ear(t.ears[w.slot()].empty_of(w, &t.count, pair::may_carry()));
        }
    }

    /// Closes all ears.
    pub fn close_ears(&self) {
        self.table().into_iter().for_each(|t| t.ears.iter().for_each(|s| close_ear(s.empty(&t.count, pair::may_carry()))));
    }

    /// Closes what the peer gave us to ring, and `channel` with it.
    pub fn close_bells(&self, channel: i32, is_kin: bool) {
        let bells = self.table().into_iter().flat_map(|t| t.bells.iter().map(|s| s.empty(&t.count, !is_kin)));
        let mut all = [-1; SLOTS + 1];
        let channel = if channel >= 0 && held::give_up(channel, !is_kin) { channel } else { -1 };
        let given = bells.chain([channel]).filter(|fd| *fd >= 0);
        let n = all.iter_mut().zip(given).map(|(to, fd)| *to = fd).count();
        match is_kin {
            true => all[..n].iter().for_each(|fd| fd::close_own(*fd)),
            false if n > 0 => porter::let_go(&all[..n]),
            false => {}
        }
    }

    /// Descriptors here.
    pub fn count(&self) -> u32 {
        self.table().map_or(0, |t| t.count.load(Relaxed))
    }

    /// Names the descriptors here.
    pub fn descriptors(&self, add: &mut impl FnMut(i32)) {
        self.slots().for_each(|s| add(s.fd()));
    }

    /// Whether `fd` is one of them.
    pub fn owns(&self, fd: i32) -> bool {
        fd >= 0 && self.slots().any(|s| s.fd() == fd)
    }

    /// One of them has another number now; false if it is none.
    pub fn moved(&self, old: i32, new: i32) -> bool {
        self.slots().any(|s| s.moved(old, new))
    }

    fn slots(&self) -> impl Iterator<Item = &'static Slot> {
        self.table().into_iter().flat_map(|t| t.bells.iter().chain(&t.ears))
    }

    fn table(&self) -> Option<&'static Table> {
        let p = self.0.load(Acquire); // pairs with the Release in `table_or_make`
        // SAFETY: a private mapping that is never unmapped once it stands here.
        (!p.is_null()).then(|| unsafe { &*p })
    }

    fn table_or_make(&self) -> Option<&'static Table> {
        if self.table().is_none() {
            // Zero bytes are a table in which nothing is.
            let p = mem::map_private(size_of::<Table>()).ok()?.cast::<Table>();
            if self.0.compare_exchange(std::ptr::null_mut(), p, AcqRel, Relaxed).is_err() {
                mem::unmap(p.cast(), size_of::<Table>()); // another thread was faster
            }
        }
        self.table()
    }
}
