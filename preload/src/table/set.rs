//! Hooked epoll sets: their lock, descriptors and waiter. Private to the process; recycled, never unmapped.
//!
//! Found by descriptor through the socket table; [`super::members`] has what a set knows of its members.

use super::members::Inner;
use super::{CAP, Entry, get, range, torn, waited};
use crate::control;
use crate::engine::lenient::Lenient;
use crate::family::lock::{Held, Lock, Marker, Reentered};
use crate::family::process;
use crate::sys::{self, free_list, mem, thread};
use crate::transport::waiters::{self, Waiter};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::*};

/// A set.
#[repr(align(64))]
pub struct Set {
    lock: Lock,
    refs: AtomicU32,
    /// A hooked wait was seen.
    pub waited: AtomicU32,
    /// Not 0: somebody waits for the set itself (nested epoll, poll on it), and the kernel must see everything. [`BY_LEVEL`] or [`EDGES_ALONE`].
    pub nested: AtomicU32,
    /// Whether something stands in the kernel's set for what lies in memory (`ready::stand_in`).
    pub stand_in: AtomicU32,
    /// Copy of `Inner::ours`, readable without the lock.
    pub ours: AtomicU32,
    /// The process that waits in it: another than this one, if it was inherited through fork and not waited in since.
    pub user: AtomicU32,
    /// Waiter word + 1; 0 = none yet.
    waiter: AtomicU32,
    /// Threads in a hooked wait that sleep.
    pub sleepers: AtomicU32,
    /// And those that sleep without its waiter, as it had nothing in memory: the kernel alone wakes them.
    pub alone: AtomicU32,
    /// How often it was closed; changed with the lock held. A thread that slept in it before is no sleeper of it any more.
    pub closed: AtomicU32,
    /// The number of the channel of links that is among what the kernel reports of it (`link::cover::channel`); 0: none.
    pub channel: AtomicU32,
    /// Learned spin budget.
    pub spin: AtomicU32,
    /// Whether peers may ring it late.
    pub lenient: Lenient,
    /// Threads of this process that wait in it (`waited`).
    pub inside: AtomicU32,
    /// Closed while they did: the number under which it lives on + 1; 0 none.
    pub kept: AtomicI32,
    /// 1: events came since the members were last put in order before a long sleep.
    pub untidy: AtomicU32,
    /// Registrations of the library's own that have ended (`buried`).
    pub buried: AtomicU64,
    /// A number under which it was last named, or was once.
    pub named: AtomicI32,
    /// How often threads of this process have rung it.
    pub rung: AtomicU32,
    next: AtomicPtr<Set>,
    /// While it is nobody's: the page of the next one that is.
    next_free: AtomicU64,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is used only with `lock` held.
unsafe impl Sync for Set {}

static ALL: AtomicPtr<Set> = AtomicPtr::new(std::ptr::null_mut());

/// [`Set::nested`]: who waits wants to know as long as there is something, or is a set with EPOLLET.
pub const BY_LEVEL: u32 = 1;
pub const EDGES_ALONE: u32 = 2;

/// A locked set.
pub struct Locked<'a> {
    /// The part under the lock.
    pub inner: &'a mut Inner,
    _held: Held<'a>,
}

impl Drop for Locked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.inner.held = false; // and then the lock is given back
    }
}

/// All sets ever made in this process.
pub fn all() -> impl Iterator<Item = &'static Set> {
    let mut at = ALL.load(Acquire);
    std::iter::from_fn(move || {
        // SAFETY: sets are never unmapped.
        let s: &'static Set = unsafe { at.as_ref()? };
        at = s.next.load(Acquire);
        Some(s)
    })
}

/// A set for a new epoll descriptor; None without memory.
pub(super) fn make() -> Option<&'static Set> {
    if let Some(s) = take_free() {
        s.refs.store(1, Relaxed);
        s.user.store(process::index(), Relaxed);
        return Some(s);
    }
    let p = mem::map_private(size_of::<Set>().next_multiple_of(4096)).ok()?.cast::<Set>();
    // SAFETY: a fresh mapping, zeroed; zero bytes are valid for every field but are written anyway
    // where they are pointers into nothing.
    let s: &'static Set = unsafe { &*p };
    s.refs.store(1, Relaxed);
    s.user.store(process::index(), Relaxed);
    let mut head = ALL.load(Acquire);
    loop {
        s.next.store(head, Relaxed);
        match ALL.compare_exchange_weak(head, p, AcqRel, Acquire) {
            Ok(_) => return Some(s),
            Err(v) => head = v,
        }
    }
}

/// Sets that are nobody's, each named by the page with which it begins.
static FREE: AtomicU64 = AtomicU64::new(0);
const PAGE_BITS: u32 = 36;
const PAGE: usize = 4096;

fn take_free() -> Option<&'static Set> {
    // SAFETY: a set that was given back; sets are never unmapped.
    let named = |page: u64| unsafe { &*std::ptr::with_exposed_provenance::<Set>(page as usize * PAGE) };
    free_list::take(&FREE, PAGE_BITS, |page| named(page).next_free.load(Relaxed)).map(named)
}

fn put_free(s: &'static Set) {
    let page = (std::ptr::from_ref(s).expose_provenance() / PAGE) as u64;
    free_list::give(&FREE, PAGE_BITS, page, |next| s.next_free.store(next, Relaxed));
}

/// Numbers that an epoll_create gave, a bit each: of what they are now nothing is known.
static MADE: [AtomicU8; CAP / 8] = [const { AtomicU8::new(0) }; CAP / 8];

/// epoll_create(2) returned it. It has no set before its first member.
pub fn note_epoll(fd: i32) {
    if let Some(bits) = MADE.get(fd as usize / 8) {
        bits.fetch_or(1 << (fd % 8), Relaxed);
    }
}

/// Whether it is an epoll descriptor that has no set.
fn is_new_epoll(fd: i32) -> bool {
    let noted = |bits: &AtomicU8| bits.load(Relaxed) >> (fd % 8) & 1 != 0;
    MADE.get(fd as usize / 8).is_some_and(noted) && sys::fd::is_epoll(fd)
}

/// The set of an epoll descriptor that has none: before its first member as well, for who waits in it then is to be seen. None: no epoll
/// descriptor, no memory, beyond the table, or nothing may be asked of the kernel.
#[cold]
pub fn begin(fd: i32) -> Option<&'static Set> {
    if !control::is_restricted() && is_new_epoll(fd) { make_for(fd) } else { None }
}

/// The same for one that surely is an epoll descriptor, whoever has made it.
pub fn make_for(fd: i32) -> Option<&'static Set> {
    super::has_room(fd).then(make)?.map(|s| super::put_set(fd, s))
}

/// Another descriptor for the set.
pub fn hold(s: &Set) {
    s.refs.fetch_add(1, AcqRel);
}

/// A descriptor of the set is gone; the last one empties it.
pub fn release(s: &'static Set) {
    if s.refs.load(Acquire) != 1 {
        s.refs.fetch_sub(1, AcqRel);
        return;
    }
    let marker = Marker::new();
    let waiter = s.waiter();
    {
        let locked = s.lock(&marker);
        s.closed.fetch_add(1, Relaxed);
        for w in [&s.waited, &s.nested, &s.stand_in, &s.ours, &s.waiter, &s.sleepers, &s.alone, &s.spin, &s.untidy] {
            w.store(0, Relaxed);
        }
        if let Ok(locked) = locked {
            locked.inner.empty();
        }
    }
    if let Some(w) = waiter {
        w.release();
    }
    s.refs.store(0, Release);
    put_free(s);
}

/// A descriptor is about to be closed: it leaves every set, as it leaves the kernel's.
/// A socket that lives on under another number (`twin_of`, asked where it is a member) stays a member that nobody can name.
/// `sets`: those that may have it. `elsewhere`: it lives on, by such a number or in another process, and so does what the kernel has registered.
pub fn forget_fd(fd: i32, sets: impl Iterator<Item = &'static Set>, twin_of: impl Fn() -> Option<i32>, elsewhere: bool) {
    for s in sets.filter(|s| s.refs.load(Relaxed) > 0) {
        let marker = Marker::new();
        let Ok(locked) = s.lock(&marker) else { continue };
        let i = &mut *locked.inner;
        if let Some(m) = i.by_fd.one(fd as u64) {
            let word = i.own_word(m);
            match (!i.member(m).ghost).then(&twin_of).flatten() {
                Some(twin) => {
                    give_back(s, i, m);
                    i.orphan(m, twin);
                }
                None => {
                    // Ghosts would stay; and between here and the close another thread could get an event.
                    let is_early = word.is_some() && !elsewhere && !thread::is_only();
                    if s.is_own()
                        && (is_early || i.member(m).ghost && elsewhere)
                        && let Some(at) = s.number()
                    {
                        let _ = sys::fd::epoll_ctl(at, libc::EPOLL_CTL_DEL, fd, None);
                    }
                    i.drop_member(m);
                }
            }
            s.bury(i, word);
        }
        while let Some(m) = i.orphan_of(fd) {
            match twin_of() {
                Some(twin) => i.member_mut(m).fd = twin,
                None => i.drop_member(m),
            }
        }
        s.ours.store(i.ours, Relaxed);
    }
}

/// What the kernel has registered of a member can't be changed any more once its number is gone: it is the program's own again.
fn give_back(s: &'static Set, i: &mut Inner, m: u32) {
    let mb = *i.member(m);
    let own = if mb.spent { libc::EPOLLONESHOT as u32 } else { mb.events };
    if mb.kernel == own || !s.is_own() {
        return;
    }
    let e = libc::epoll_event { events: own, u64: mb.data };
    if let Some(at) = s.number()
        && sys::fd::epoll_ctl(at, libc::EPOLL_CTL_MOD, mb.fd, Some(e)).is_ok()
    {
        i.member_mut(m).kernel = own;
    }
}

/// Former peers have the eventfds of the waiters (`waiters::retire`): sets in which nobody sleeps take others.
pub fn retire() {
    for s in all().filter(|s| s.refs.load(Relaxed) > 0) {
        let marker = Marker::new();
        let Ok(locked) = s.lock(&marker) else { continue };
        if s.sleepers.load(Acquire) == 0
            && let Some(w) = s.waiter()
        {
            s.waiter.store(0, Relaxed);
            locked.inner.forget_waiter();
            w.release();
        }
    }
}

/// Before a fork: a relative may wait for any member from now on, by a name of its own, and a set does not look at what is posted.
pub fn unpost_all() {
    for s in all().filter(|s| s.refs.load(Relaxed) > 0) {
        let marker = Marker::new();
        if let Ok(locked) = s.lock(&marker) {
            locked.inner.unpost_all();
        }
    }
}

/// 1: there may be sets in which something stands in for what lies in memory (`ready::stand_in`).
pub static STAND_INS: AtomicU32 = AtomicU32::new(0);

/// [`Set::stand_in`]: nothing stands, it has to be put up again, it stands.
pub const NO_STAND_IN: u32 = 0;
pub const STAND_IN_TAKEN: u32 = 1;
pub const STAND_IN_UP: u32 = 2;

/// What stands in has this number, which is about to be another file's: the kernel would know its registrations by nothing else.
pub fn take_stand_ins(number: i32) {
    for s in all().filter(|s| s.stand_in.load(Relaxed) != NO_STAND_IN) {
        if let Some(at) = s.number() {
            let _ = sys::fd::epoll_ctl(at, libc::EPOLL_CTL_DEL, number, None);
        }
        s.stand_in.store(STAND_IN_TAKEN, Relaxed);
        STAND_INS.store(1, SeqCst);
    }
}

/// In a forked child the sets are shared with the parent through the kernel: their waiters are the
/// parent's, and what stands in them.
pub fn forget_in_child() {
    for s in all() {
        let _ = s.stand_in.compare_exchange(STAND_IN_UP, STAND_IN_TAKEN, Relaxed, Relaxed);
        s.waiter.store(0, Relaxed);
        s.sleepers.store(0, Relaxed);
        s.alone.store(0, Relaxed);
        s.lock.reset();
        let marker = Marker::new();
        if let Ok(locked) = s.lock(&marker) {
            locked.inner.forget_waiter();
            locked.inner.channel = -1;
            s.channel.store(0, Relaxed);
            // The counts in the sockets' records are the parent's.
            for m in 0..locked.inner.used() {
                let mb = locked.inner.member_mut(m);
                (mb.counted, mb.hidden) = (false, false);
            }
        }
    }
}

impl Set {
    /// One of its numbers.
    pub fn number(&'static self) -> Option<i32> {
        let is_it = |e: Entry| matches!(e, Entry::Set(s) if std::ptr::eq(s, self));
        let kept = Some(waited::own_number(self)).filter(|fd| *fd >= 0);
        let named = || Some(self.named.load(Relaxed)).filter(|fd| get(*fd).is_some_and(is_it));
        kept.or_else(named).or_else(|| range(0, u32::MAX).find(|(_, e)| is_it(*e)).map(|(fd, _)| fd))
    }

    /// The registration of this word was the library's own until now ([`Inner::own_word`]).
    pub fn bury(&self, inner: &mut Inner, word: Option<u64>) {
        if let Some(word) = word {
            self.buried.store(inner.buried.add(word), Release); // pairs with the Acquire before a thread asks the kernel
        }
    }

    /// Whether this process has made it (before its first socket perhaps, when it has no record) or waited in it. What the kernel has of
    /// another one is a relative's, which may have changed it since the fork.
    fn is_own(&self) -> bool {
        [process::index(), u32::MAX].contains(&self.user.load(Relaxed))
    }

    /// How many numbers it has.
    pub fn refs(&self) -> u32 {
        self.refs.load(Acquire)
    }

    /// Takes the lock.
    #[inline(always)]
    pub fn lock<'a>(&'a self, marker: &'a Marker) -> Result<Locked<'a>, Reentered> {
        let held = self.lock.take_by(marker, thread::is_only())?;
        // SAFETY: the lock is held for as long as the reference lives.
        let inner = unsafe { &mut *self.inner.get() };
        if inner.held {
            torn::mend(inner);
            self.ours.store(inner.ours, Release);
        }
        inner.held = true;
        Ok(Locked { inner, _held: held })
    }

    /// The waiter, if it has one.
    pub fn waiter(&self) -> Option<Waiter> {
        Waiter::of_word(self.waiter.load(Relaxed)).filter(|w| w.is_ours())
    }

    /// Whether a thread sleeps in it, with its waiter or without.
    #[inline]
    pub fn is_slept_in(&self) -> bool {
        self.sleepers.load(Relaxed) > 0 || self.alone.load(Relaxed) > 0
    }

    /// Rings who sleeps in it, by the waiter if it has one.
    pub fn ring(&self) {
        if let Some(w) = self.waiter() {
            self.rung.fetch_add(1, Relaxed); // before it wakes
            w.ring();
        }
    }

    /// The waiter, taken at the first call.
    pub fn waiter_or_take(&self) -> Option<Waiter> {
        if self.nested.load(Relaxed) != 0 {
            return None;
        }
        let before = self.waiter.load(Relaxed);
        self.waiter().or_else(|| {
            let w = waiters::take().ok()?;
            // Of two threads that come to sleep at once one has the set's eventfd: the kernel's set reports one alone.
            if self.waiter.compare_exchange(before, w.word(), Relaxed, Relaxed).is_err() {
                w.release();
                return self.waiter();
            }
            Some(w)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// What one of them says is what peers ring, and the other one's eventfd is what the kernel's set reports.
    #[test]
    fn threads_that_come_to_sleep_at_once_have_one_waiter() {
        const ROUNDS: usize = 300;
        waiters::take().expect("the page").release();
        for _ in 0..ROUNDS {
            let (set, together) = (make().expect("a set"), Barrier::new(2));
            let take = || {
                together.wait();
                set.waiter_or_take()
            };
            let taken = std::thread::scope(|threads| {
                let other = threads.spawn(take);
                [take(), other.join().expect("a thread")]
            });
            assert!(taken[0].is_some() && taken == [set.waiter(); 2], "{taken:?}");
            release(set);
        }
    }
}
