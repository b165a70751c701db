//! The lock of one direction of a connection: owner by thread id, taken over from the dead.
//!
//! It lies in the family page, never in the peer's mapping, and is never held over a wait (but for `Half::leaving`, which only those
//! take that wait as well). What a holder has not published by its
//! last store never happened, so taking over needs no repair.
//!
//! A thread that meets itself is a signal handler that interrupted the holder, which is refused, or one that has left the holder
//! otherwise than by returning. So each thread notes which locks it holds and where on its stack ([`super::noted`]), before it takes
//! them. Who leaves calls by a jump or by unwinding lets go of what lies below ([`leave`]). Of jumps that nobody saw (built-in
//! ones, a program's own) the next call of the thread that meets the note decides: what lies below that call, or where another marker
//! stands by now, is over.
//!
//! Taken by all of `engine`, and by `table` for epoll sets.

use super::noted::{Noted, clear};
use super::process;
use crate::sys::{fd, proc, thread};
use std::sync::atomic::{AtomicU32, Ordering::*};

pub use super::noted::{Marker, is_left, leave};

/// The lock; all zero is free.
#[repr(C)]
pub struct Lock {
    pub(super) owner: AtomicU32,
}

/// Why a lock could not be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reentered;

/// How many ms of [`Lock::take_within`] are enough for whoever is in the middle of a call, if it is let run.
pub const CALL_MS: u32 = 100;

/// Held lock; released on drop.
pub struct Held<'a>(Noted<'a>);

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.lock.owner.store(0, Release); // pairs with the Acquire in `take`
    }
}

impl Held<'_> {
    /// Others wait for it until this thread has ended; it itself takes it again.
    pub fn keep(self) {
        clear(std::mem::ManuallyDrop::new(self).0.note);
    }
}

impl Lock {
    /// A free one.
    pub const fn free() -> Lock {
        Lock { owner: AtomicU32::new(0) }
    }

    /// Takes the lock, waiting for other threads.
    #[inline]
    pub fn take<'a>(&'a self, marker: &'a Marker) -> Result<Held<'a>, Reentered> {
        // Acquire pairs with the Release in `drop`: the last holder's cursors are seen.
        self.take_by(marker, false)
    }

    /// Takes the lock, if its holder is through in a moment and `ms`. Not in a handler above it, whose bytes come behind what is done
    /// now.
    pub fn take_within<'a>(&'a self, marker: &'a Marker, ms: u32) -> Option<Held<'a>> {
        const YIELDS: u32 = 1 << 8;
        for n in 0..YIELDS + ms {
            let held = self.try_take(marker);
            if held.is_some() || self.is_own() {
                return held;
            }
            if n < YIELDS {
                proc::yield_now();
            } else {
                self.bury();
                let _ = fd::poll(&mut [], 1);
            }
        }
        None
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_take<'a>(&'a self, marker: &'a Marker) -> Option<Held<'a>> {
        self.try_take_by(marker, false)
    }

    /// As [`Lock::try_take`]. `alone`: nobody but the calling thread can use the lock now, so that being
    /// whole for its own signal handlers is enough.
    #[inline(always)]
    pub fn try_take_by<'a>(&'a self, marker: &'a Marker, alone: bool) -> Option<Held<'a>> {
        let thread = thread::here();
        let me = process::tid_of(thread);
        let noted = Noted::new(self, thread, marker);
        self.claim(me, alone).then(|| Held(noted))
    }

    /// As [`Lock::take`], with `alone` as for [`Lock::try_take_by`].
    #[inline(always)]
    pub fn take_by<'a>(&'a self, marker: &'a Marker, alone: bool) -> Result<Held<'a>, Reentered> {
        let thread = thread::here();
        let me = process::tid_of(thread);
        let noted = Noted::new(self, thread, marker);
        if !self.claim(me, alone) {
            self.contend(me, Some(&noted))?;
        }
        Ok(Held(noted))
    }

    #[inline(always)]
    fn claim(&self, me: u32, alone: bool) -> bool {
        #[cfg(target_arch = "x86_64")]
        if alone {
            let found: u32;
            // SAFETY: one instruction that changes this word alone. Without the lock prefix it is whole
            // for this processor, at a third of the price; loads and stores around it stay in order.
            unsafe {
                core::arch::asm!("cmpxchg dword ptr [{word}], {me:e}", word = in(reg) self.owner.as_ptr(),
                    me = in(reg) me, inout("eax") 0u32 => found, options(nostack));
            }
            return found == 0;
        }
        let _ = alone;
        // Acquire as in `take`.
        self.owner.compare_exchange(0, me, Acquire, Relaxed).is_ok()
    }

    pub(super) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    #[cold]
    fn contend(&self, me: u32, noted: Option<&Noted>) -> Result<(), Reentered> {
        let mut pause = proc::Pause::default();
        loop {
            let owner = self.owner.load(Relaxed);
            if owner == me {
                return if self.is_interrupted_by(noted) { Err(Reentered) } else { Ok(()) };
            }
            if owner == 0 {
                if self.owner.compare_exchange(0, me, Acquire, Relaxed).is_ok() {
                    return Ok(());
                }
                continue;
            }
            if pause.turn() && proc::is_gone(owner) && self.owner.compare_exchange(owner, me, Acquire, Relaxed).is_ok() {
                return Ok(());
            }
        }
    }

    /// Whether the holder, which is this thread, will go on: the call that has noted it as well is in a handler on top of it.
    fn is_interrupted_by(&self, noted: Option<&Noted>) -> bool {
        let notes = thread::here().locks.iter();
        let others = notes.filter(|n| noted.is_none_or(|own| !std::ptr::eq(*n, own.note)));
        let marker = noted.map_or(0, |own| own.marker.at());
        others.filter(|n| n.lock.load(Relaxed) == self.address()).any(|n| {
            let at = n.at.load(Relaxed);
            // The two stacks may lie in any order. What a jump has left lies below the present call, or was written over since.
            let goes_on = at == 0
                || (at > marker || thread::is_on_alternate_stack())
                    // SAFETY: the address is of this thread's own stack, which is mapped; what lies there now may be anything
                    // and is only compared.
                    && unsafe { (at as *const usize).read_volatile() } == at;
            if !goes_on {
                clear(n);
            }
            goes_on
        })
    }

    /// Whether the calling thread holds it, below a handler perhaps.
    pub fn is_own(&self) -> bool {
        self.owner.load(Relaxed) == process::tid()
    }

    /// Whether somebody holds it now.
    pub fn is_taken(&self) -> bool {
        self.owner.load(Relaxed) != 0
    }

    /// Takes it without a marker: the caller has blocked all signals. What the caller holds already, below a handler, stays
    /// as it is.
    pub(super) fn seize(&self, me: u32) {
        if self.owner.load(Relaxed) != me && !self.claim(me, false) {
            let _ = self.contend(me, None);
        }
    }

    /// After [`Lock::seize`] of `seized`, which this is or is a copy of.
    pub(super) fn let_go(&self, me: u32, seized: &Lock) {
        if self.owner.load(Relaxed) == me && !seized.is_interrupted_by(None) {
            self.owner.store(0, Release); // pairs with the Acquire in `take`
        }
    }

    /// Makes it free where its holder has died: those who only try to take it would find it taken for ever.
    pub fn bury(&self) {
        let owner = self.owner.load(Relaxed);
        if owner != 0 && proc::is_gone(owner) {
            // AcqRel: what the dead one has stored is seen by who takes it next, as in `take`.
            let _ = self.owner.compare_exchange(owner, 0, AcqRel, Relaxed);
        }
    }

    /// Makes it free whoever holds it (a record that is taken into use).
    pub fn reset(&self) {
        self.owner.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mem;

    /// Takes it and is left as by siglongjmp: without release, the marker untouched below the caller's frame.
    #[inline(never)]
    fn take_and_leave(lock: &Lock) {
        let marker = Marker::new();
        std::mem::forget(lock.take(std::hint::black_box(&marker)));
    }

    #[inline(never)]
    fn is_refused(lock: &Lock) -> bool {
        let marker = Marker::new();
        lock.take(std::hint::black_box(&marker)).is_err()
    }

    #[test]
    fn a_call_that_was_left_is_followed_and_one_that_is_interrupted_is_not() {
        // SAFETY: all zero is a free lock.
        let lock: Lock = unsafe { std::mem::zeroed() };
        let above = Marker::new();
        take_and_leave(&lock);
        assert!(lock.take(std::hint::black_box(&above)).is_ok(), "what was left lies below");
        let held = lock.take(std::hint::black_box(&above));
        assert!(held.is_ok() && is_refused(&lock), "a handler lies on top");
        drop(held);
        assert!(!is_refused(&lock));
    }

    /// Below all that was left.
    #[inline(never)]
    fn deeper(f: impl FnOnce()) {
        let much = std::hint::black_box([0u8; 4096]);
        f();
        std::hint::black_box(&much);
    }

    fn notes() -> usize {
        thread::here().locks.iter().filter(|n| n.lock.load(Relaxed) != 0).count()
    }

    #[test]
    fn a_call_that_is_left_lets_go_of_what_lies_below_the_target_alone() {
        // SAFETY: all zero is a free lock.
        let locks: [Lock; 2] = unsafe { std::mem::zeroed() };
        let above = Marker::new();
        let held = locks[0].take(std::hint::black_box(&above));
        take_and_leave(&locks[1]);
        let told = std::cell::Cell::new(0);
        deeper(|| {
            leave(above.at(), |lock| {
                told.set(told.get() + 1);
                assert!(std::ptr::eq(lock, &locks[1]) && lock.is_taken());
            });
        });
        assert_eq!((told.get(), notes()), (1, 1));
        assert!(locks[0].is_taken() && !locks[1].is_taken());
        drop(held);
        assert_eq!(notes(), 0);
    }

    #[test]
    fn what_is_kept_stays_taken_beside_others_that_are() {
        // SAFETY: all zero is a free lock.
        let locks: [Lock; 20] = unsafe { std::mem::zeroed() };
        for lock in &locks {
            let marker = Marker::new();
            lock.take(std::hint::black_box(&marker)).ok().into_iter().for_each(Held::keep);
        }
        assert_eq!(notes(), 0);
        let is_had_by_another = |lock: &Lock| std::thread::scope(|s| s.spawn(|| lock.try_take(&Marker::new()).is_some()).join().unwrap_or(true));
        assert!(!locks.iter().any(is_had_by_another));
        assert!(!is_refused(&locks[0]), "nothing of this thread goes on below");
    }

    /// A handler that is refused the lock leaves it to the call below.
    #[test]
    fn who_was_refused_does_not_let_go() {
        // SAFETY: all zero is a free lock.
        let lock: Lock = unsafe { std::mem::zeroed() };
        let above = Marker::new();
        let held = lock.take(std::hint::black_box(&above));
        assert!(is_refused(&lock));
        leave(above.at(), |_| unreachable!());
        assert!(lock.is_taken() && notes() == 1);
        drop(held);
        assert!(!lock.is_taken());
    }

    /// A jump that nobody saw: the next call, for another lock, gives back what the one that was left has.
    #[test]
    fn another_lock_of_a_call_that_was_left_is_given_back() {
        // SAFETY: all zero is a free lock.
        let locks: [Lock; 2] = unsafe { std::mem::zeroed() };
        for _ in 0..20 {
            take_and_leave(&locks[0]);
            assert!(locks[0].is_taken());
            let above = Marker::new();
            drop(locks[1].take(std::hint::black_box(&above)));
            take_and_leave(&locks[1]);
            take_and_leave(&locks[0]);
        }
        deeper(|| leave(usize::MAX, |_| {}));
        assert!(notes() == 0 && !locks[0].is_taken() && !locks[1].is_taken());
    }

    /// A child is killed with the lock in its hands, and nobody asks for its status.
    fn left_by_a_dead_child(lock: &Lock) -> i32 {
        // SAFETY: the child makes system calls and stores only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            lock.owner.store(proc::tid(), Release);
            // SAFETY: no pointers.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        while lock.owner.load(Acquire) == 0 || !proc::is_gone(child as u32) {
            std::thread::yield_now();
        }
        child
    }

    /// The holder may be one that does not run while we want the processor.
    #[test]
    fn who_waits_for_long_sleeps() {
        // SAFETY: all zero is a free lock.
        let lock: Lock = unsafe { std::mem::zeroed() };
        let sleeps = || {
            // SAFETY: all zero is valid, and the kernel writes it.
            let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
            // SAFETY: as above.
            unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
            usage.ru_nvcsw
        };
        let (marker, begun) = (Marker::new(), AtomicU32::new(0));
        let held = lock.take(&marker);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let (marker, before) = (Marker::new(), sleeps());
                begun.store(1, Release); // pairs with the Acquire below
                drop(lock.take(&marker));
                sleeps() - before
            });
            while begun.load(Acquire) == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(300));
            drop(held);
            assert!(waits.join().expect("it has taken it") > 5);
        });
    }

    #[test]
    fn a_dead_holder_that_nobody_waited_for_is_followed() {
        let page = mem::memfd_for_readers(c"lock", 4096).expect("a shared page").1;
        // SAFETY: a fresh page, shared with the child; all zero is a free lock.
        let lock = unsafe { &*page.cast::<Lock>() };
        let child = left_by_a_dead_child(lock);
        let marker = Marker::new();
        assert!(lock.take(&marker).is_ok());
        assert!(!lock.is_taken());
        lock.owner.store(child as u32, Relaxed);
        assert!(lock.try_take(&marker).is_none(), "who tries does not ask");
        lock.bury();
        let held = lock.try_take(&marker);
        assert!(held.is_some());
        lock.bury();
        assert!(lock.is_taken(), "this one lives");
        drop(held);
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    }
}
