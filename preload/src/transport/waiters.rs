//! This family's waiters: who sleeps, and how a peer wakes it.
//!
//! A waiter is an epoll set or a thread in a blocking call. Its sleep word lies in a page that peers
//! map read-only: even = awake, odd = asleep (with a mark of leniency, `engine::lenient`). A peer that has published data and finds the word odd
//! rings the waiter, once per sleep: by its eventfd, or by what it has for itself (`wakes`). So going to sleep costs one
//! store however many connections the waiter has, and no peer can disturb another's waiter.

mod asleep;
mod word;

pub use asleep::is_lenient;

use super::posts;
use crate::control;
use crate::family::process::is_vfork_child;
use crate::fault::{self, Step as Fault};
use crate::sys::clock::Seldom;
use crate::sys::held::{self, Held};
use crate::sys::{self, Errno, Res, mem, proc};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

/// Sleep words in the page.
pub const SLOTS: usize = 128;
/// Bytes from word to word.
pub const STRIDE: usize = 64;
/// Bytes of the page: words, who has them, and the log of posts.
pub const LEN: usize = POSTS_AT + posts::LEN;
/// Where the log of posts lies.
pub(super) const POSTS_AT: usize = SLOTS * STRIDE + 4096;
const TAKEN: usize = SLOTS * STRIDE;
/// Which process has each slot.
const OWNERS: usize = TAKEN + SLOTS * 4;

static PAGE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static PAGE_FD: AtomicI32 = AtomicI32::new(-1);
static MAKING: AtomicU32 = AtomicU32::new(0);

struct Local {
    eventfd: AtomicI32,
    generation: AtomicU32,
    /// Peers that are not to be trusted any more have the eventfd.
    stale: AtomicU32,
    /// What [`EARS`] was when its last ear was opened; 0: it has none.
    ears: AtomicU32,
    /// It hears the network card in its sleep (`link::cover`).
    hears: AtomicU32,
}

/// Ears that this process has opened (`wakes`).
static EARS: AtomicU32 = AtomicU32::new(0);

/// No slot from this one on was ever taken by this process.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Per process: the eventfds of the waiters that this process owns.
static LOCAL: [Local; SLOTS] = [const {
    Local { eventfd: AtomicI32::new(-1), generation: AtomicU32::new(0), stale: AtomicU32::new(0), ears: AtomicU32::new(0), hears: AtomicU32::new(0) }
}; SLOTS];

/// A waiter: slot number and generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter(u32);

impl Waiter {
    /// A peer of another user has an end to ring of its own, and we one to listen to.
    pub fn has_new_ear(self) {
        LOCAL[self.slot()].ears.store(EARS.fetch_add(1, Relaxed) + 1, Relaxed);
    }

    /// A number that changes with each new ear; 0: none.
    #[inline]
    pub fn ears(self) -> u32 {
        LOCAL[self.slot()].ears.load(Relaxed)
    }

    /// The eventfd to wait on; for what reads, writes or passes it there is [`Self::with_eventfd`].
    pub fn eventfd(self) -> i32 {
        LOCAL[self.slot()].eventfd.load(Relaxed)
    }

    /// Does something with the eventfd, whose number another thread may give up, or the program take, meanwhile.
    pub fn with_eventfd<T>(self, act: impl Fn(&Held) -> T) -> Option<T> {
        held::with(&LOCAL[self.slot()].eventfd, act)
    }

    /// Rings it, as a peer would.
    pub fn ring(self) {
        self.with_eventfd(|held| {
            fault::pass(Fault::Bell);
            sys::fd::event_set(held.fd())
        });
    }

    /// Takes what it was rung.
    pub fn hear(self) {
        held::clear(&LOCAL[self.slot()].eventfd);
    }

    /// Its sleep is ended by the network card as well.
    pub fn hears(self) {
        LOCAL[self.slot()].hears.store(1, Relaxed);
    }

    /// Whether that is so, of one that sleeps.
    pub fn is_hearing(self) -> bool {
        LOCAL[self.slot()].hears.load(Relaxed) != 0
    }

    /// Whether it is this process that owns it and it is still the same waiter.
    pub fn is_ours(self) -> bool {
        let l = &LOCAL[self.slot()];
        l.eventfd.load(Relaxed) >= 0 && l.generation.load(Relaxed) == self.generation()
    }

    /// Whether nobody else is to be told of it, and its owner takes another one (`retire`).
    pub fn is_stale(self) -> bool {
        LOCAL[self.slot()].stale.load(Relaxed) != 0
    }

    /// Gives the slot back.
    pub fn release(self) {
        self.wake_up();
        if LOCAL[self.slot()].ears.swap(0, Relaxed) != 0 {
            super::peers::waiter_ends(self);
        }
        held::close(&LOCAL[self.slot()].eventfd);
        if let (Some(t), Some(o)) = (taken(self.slot()), owner(self.slot())) {
            o.store(0, Relaxed); // nobody's while it is free (`reap`)
            t.store(t.load(Relaxed) & !1, Release);
        }
    }
}

/// Takes a slot and makes its eventfd; an error means: use the doorbell byte instead. So does a vfork child, whose descriptors are not
/// its parent's, and the memory is.
pub fn take() -> Res<Waiter> {
    if control::is_restricted() || is_vfork_child() || fault::fails(Fault::Memory) {
        return Err(Errno(libc::EPERM));
    }
    page()?;
    match take_free() {
        Err(Errno(libc::EAGAIN)) if REAPED.unless_in_vain(reap) => take_free(),
        taken => taken,
    }
}

/// Who finds no slot asks at each of its sleeps.
static REAPED: Seldom = Seldom::untried();

/// Slots of processes of the family that are gone are free again. True: there are some.
#[cold]
fn reap() -> bool {
    let mut any = false;
    for slot in 0..SLOTS {
        let (Some(t), Some(o), Some(w)) = (taken(slot), owner(slot), word_of(slot)) else { break };
        let of = o.load(Acquire);
        // Ours while it is emptied: nobody else does that then, unless we are gone as well.
        let is_dead = t.load(Acquire) & 1 != 0 && of != 0 && of != proc::pid() && proc::is_gone(of);
        if is_dead && o.compare_exchange(of, proc::pid(), AcqRel, Relaxed).is_ok() {
            w.store(asleep::awake(w.load(Relaxed)), Relaxed);
            o.store(0, Relaxed);
            t.fetch_and(!1, Release);
            any = true;
        }
    }
    any
}

fn take_free() -> Res<Waiter> {
    for (slot, local) in LOCAL.iter().enumerate() {
        let Some(t) = taken(slot) else { break };
        let old = t.load(Relaxed);
        // Bit 0: taken; above: generation.
        if old & 1 != 0 || t.compare_exchange(old, old.wrapping_add(2) | 1, AcqRel, Relaxed).is_err() {
            continue;
        }
        let generation = generation_after(old);
        let fd = match sys::fd::eventfd().map(sys::fd::park) {
            Ok(fd) if held::can_hold(fd) => fd,
            made => {
                made.iter().for_each(|fd| sys::fd::close(*fd));
                t.store(old, Release);
                return Err(made.err().unwrap_or(Errno(libc::EMFILE)));
            }
        };
        if let Some(o) = owner(slot) {
            o.store(proc::pid(), Release);
        }
        local.generation.store(generation, Relaxed);
        local.stale.store(0, Relaxed);
        // SeqCst, and before it can sleep: who looks behind the fence of a sleeper finds it (`own_slots`).
        USED.fetch_max(slot + 1, SeqCst);
        local.eventfd.store(fd, Release);
        let w = Waiter(generation << 8 | slot as u32);
        w.wake_up();
        return Ok(w);
    }
    Err(Errno(libc::EAGAIN))
}

/// The generation behind that of a word which says who has a slot.
fn generation_after(old: u32) -> u32 {
    (old.wrapping_add(2) >> 1) % word::GENERATIONS
}

/// Peers that have eventfds of ours are of another user now: what they have is told to nobody else.
pub fn retire() {
    own_slots().for_each(|w| LOCAL[w.slot()].stale.store(1, Relaxed));
}

/// The page's descriptor, to be passed to peers (who can map it for reading only).
pub fn page_fd() -> Res<i32> {
    page()?;
    match PAGE_FD.load(Acquire) {
        -1 => Err(Errno(libc::EBADF)),
        fd => Ok(fd),
    }
}

/// A forked child owns none of its parent's waiters.
pub fn forget_in_child() {
    if PAGE.load(Relaxed).is_null() {
        MAKING.store(0, Relaxed); // who was making it is not here
    }
    for l in &LOCAL {
        l.ears.store(0, Relaxed);
        let fd = l.eventfd.swap(-1, Relaxed);
        if fd >= 0 {
            sys::fd::close(fd);
        }
    }
}

/// This process leaves its family: its waiters go on in a page of its own, which peers that know the old one do not
/// see (`peers::leave_family`). Signals are blocked.
pub fn leave_family() {
    let old = PAGE.load(Acquire);
    if old.is_null() {
        return;
    }
    let made = mem::memfd_for_readers(c"smcr-wake", LEN);
    let made = made.or_else(|_| mem::map_anonymous(LEN).map(|p| (-1, p)));
    let (Ok((fd, fresh)), Ok(others)) = (made, mem::map_again(old, LEN)) else {
        // Without a page nobody is woken by name. What others have in it must be out of reach all the same.
        let _ = mem::empty(old, LEN);
        return;
    };
    let words = |base: *mut u8, slot: usize| [slot * STRIDE, TAKEN + slot * 4, OWNERS + slot * 4].map(|off| word_in(base, off));
    let was: [[u32; 3]; SLOTS] = std::array::from_fn(|slot| words(old, slot).map(|w| w.load(Relaxed)));
    let is_own = |slot: usize| LOCAL[slot].eventfd.load(Relaxed) >= 0;
    for (slot, [word, taken, owner]) in was.iter().enumerate() {
        let [to_word, to_taken, to_owner] = words(fresh, slot);
        to_word.store(if is_own(slot) { *word } else { 0 }, Relaxed);
        to_taken.store(if is_own(slot) { *taken } else { taken & !1 }, Relaxed);
        to_owner.store(if is_own(slot) { *owner } else { 0 }, Relaxed);
    }
    if mem::move_over(old, fresh, LEN).is_err() {
        let _ = mem::empty(old, LEN);
    }
    // A thread that fell asleep meanwhile said so in the old one.
    for slot in (0..SLOTS).filter(|slot| is_own(*slot)) {
        let now = word_in(others, slot * STRIDE).load(Relaxed);
        let _ = word_in(old, slot * STRIDE).compare_exchange(was[slot][0], now, AcqRel, Relaxed);
    }
    mem::unmap(others, LEN);
    let fd = PAGE_FD.swap(if fd < 0 { fd } else { sys::fd::park(fd) }, AcqRel);
    if fd >= 0 {
        sys::fd::close(fd);
    }
}

/// Whether `fd` is one of our descriptors here.
pub fn owns(fd: i32) -> bool {
    PAGE_FD.load(Relaxed) == fd || LOCAL.iter().any(|l| l.eventfd.load(Relaxed) == fd)
}

/// Names our descriptors here.
pub fn descriptors(add: &mut impl FnMut(i32)) {
    add(PAGE_FD.load(Relaxed));
    for l in &LOCAL {
        add(l.eventfd.load(Relaxed));
    }
}

/// A descriptor of ours has another number now; false if it is none of these.
pub fn moved(old: i32, new: i32) -> bool {
    if PAGE_FD.compare_exchange(old, new, AcqRel, Relaxed).is_ok() {
        return true;
    }
    LOCAL.iter().any(|l| l.eventfd.compare_exchange(old, new, AcqRel, Relaxed).is_ok())
}

/// The waiters that this process has taken.
pub fn own_slots() -> impl Iterator<Item = Waiter> {
    LOCAL[..USED.load(Relaxed)]
        .iter()
        .enumerate()
        .filter(|(_, l)| l.eventfd.load(Relaxed) >= 0)
        .map(|(slot, l)| Waiter(l.generation.load(Relaxed) << 8 | slot as u32))
}

fn word_of(slot: usize) -> Option<&'static AtomicU32> {
    field(slot * STRIDE)
}

fn taken(slot: usize) -> Option<&'static AtomicU32> {
    field(TAKEN + slot * 4)
}

fn owner(slot: usize) -> Option<&'static AtomicU32> {
    field(OWNERS + slot * 4)
}

fn field(off: usize) -> Option<&'static AtomicU32> {
    base().map(|p| word_in(p, off))
}

/// This family's page, if there is one.
pub(super) fn base() -> Option<*mut u8> {
    let p = PAGE.load(Acquire);
    (!p.is_null()).then_some(p)
}

fn word_in(page: *mut u8, off: usize) -> &'static AtomicU32 {
    // SAFETY: inside a page of LEN bytes, which is never unmapped but by `leave_family`, its only user.
    unsafe { &*page.add(off).cast::<AtomicU32>() }
}

fn page() -> Res<()> {
    if !PAGE.load(Acquire).is_null() {
        return Ok(());
    }
    if MAKING.swap(1, AcqRel) != 0 {
        return Err(Errno(libc::EAGAIN));
    }
    match mem::memfd_for_readers(c"smcr-wake", LEN) {
        Ok((fd, p)) => {
            PAGE_FD.store(sys::fd::park(fd), Relaxed);
            PAGE.store(p, Release);
            Ok(())
        }
        Err(e) => {
            MAKING.store(0, Release);
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_comes_long_after_another_is_another() {
        const SLOT: u32 = 5;
        let [first, later] = [0, 2 << 16].map(|word| Waiter::named(SLOT, generation_after(word)).expect("a name"));
        assert_ne!(first.word(), later.word());
        assert_eq!((Waiter::of_word(later.posted_word()), later.slot() as u32), (Some(later), SLOT));
        assert!(Waiter::named(SLOT, generation_after(u32::MAX - 1)).is_some(), "it begins again");
    }

    /// A thread that still has one which was given back, and a child that has its parent's, change no sleep of who has the slot now.
    #[test]
    fn one_that_is_not_ours_says_nothing() {
        // Another test may take the slot in between.
        let same = |_| {
            let before = take().ok()?;
            before.fall_asleep();
            before.release();
            let now = take().ok()?;
            if now.slot() == before.slot() {
                Some([before, now])
            } else {
                now.release();
                None
            }
        };
        let [before, now] = (0..100).find_map(same).expect("the same slot twice");
        now.fall_asleep();
        let sleep = now.sleep();
        before.wake_up();
        assert!(sleep.is_some() && now.sleep() == sleep);
        before.sleep_on();
        assert_eq!(now.sleep(), sleep);
        now.wake_up();
        before.fall_asleep();
        assert_eq!(now.sleep(), None);
        now.release();
    }
}
