//! The lock of one direction of a connection: owner by thread id, taken over from the dead.
//!
//! It lies in the family page, never in the peer's mapping, and is never held over a wait. A thread
//! that meets itself is either a signal handler that interrupted the holder (the holder's marker on
//! the stack is intact: the handler is refused) or a thread that left the holder by siglongjmp (the
//! marker is gone, or lies below the present call: taken over). What a holder has not published by its last store never happened, so
//! taking over needs no repair.

use super::process;
use crate::sys::{proc, thread};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*, compiler_fence};

/// The lock; all zero is free.
#[repr(C)]
pub struct Lock {
    owner: AtomicU32,
    _pad: AtomicU32,
    marker_at: AtomicUsize,
    marker: AtomicU64,
}

/// Why a lock could not be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reentered;

/// Stack cell that marks a live holder; make one before [`Lock::take`].
pub struct Marker(AtomicU64);

impl Marker {
    /// A fresh cell.
    #[allow(clippy::new_without_default, reason = "Default is not const")]
    pub const fn new() -> Marker {
        Marker(AtomicU64::new(0))
    }
}

/// Held lock; released on drop. The marker stays where it is as long as this lives.
pub struct Held<'a> {
    lock: &'a Lock,
    _marker: PhantomData<&'a Marker>,
}

impl Lock {
    /// Takes the lock, waiting for other threads.
    #[inline]
    pub fn take<'a>(&'a self, marker: &'a Marker) -> Result<Held<'a>, Reentered> {
        // Acquire pairs with the Release in `drop`: the last holder's cursors are seen.
        self.take_by(marker, false)
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
        let me = process::tid();
        self.claim(me, alone).then(|| self.mark(me, marker))
    }

    /// As [`Lock::take`], with `alone` as for [`Lock::try_take_by`].
    #[inline(always)]
    pub fn take_by<'a>(&'a self, marker: &'a Marker, alone: bool) -> Result<Held<'a>, Reentered> {
        let me = process::tid();
        if !self.claim(me, alone) {
            self.contend(me, marker)?;
        }
        Ok(self.mark(me, marker))
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

    #[inline]
    fn mark<'a>(&'a self, me: u32, marker: &'a Marker) -> Held<'a> {
        let secret = (std::ptr::from_ref(marker) as u64).rotate_left(32) ^ u64::from(me);
        self.marker.store(secret, Relaxed);
        self.marker_at.store(std::ptr::from_ref(marker) as usize, Relaxed);
        marker.0.store(secret, Relaxed);
        compiler_fence(SeqCst); // a handler of this thread sees the marker before the cursors move
        Held { lock: self, _marker: PhantomData }
    }

    #[cold]
    fn contend(&self, me: u32, marker: &Marker) -> Result<(), Reentered> {
        let mut rounds = 0u32;
        loop {
            let owner = self.owner.load(Relaxed);
            if owner == me {
                return if self.is_interrupted_by(marker) { Err(Reentered) } else { Ok(()) };
            }
            if owner == 0 {
                if self.owner.compare_exchange(0, me, Acquire, Relaxed).is_ok() {
                    return Ok(());
                }
                continue;
            }
            rounds += 1;
            if rounds.is_multiple_of(64) {
                proc::yield_now();
            } else {
                std::hint::spin_loop();
            }
            if rounds.is_multiple_of(4096)
                && proc::is_gone(owner)
                && self.owner.compare_exchange(owner, me, Acquire, Relaxed).is_ok()
            {
                return Ok(());
            }
        }
    }

    /// Whether the holder, which is this thread, will go on: the call with `marker` is in a handler on top of it. What a
    /// jump has left lies below that call, or was written over since.
    fn is_interrupted_by(&self, marker: &Marker) -> bool {
        let at = self.marker_at.load(Relaxed) as *const u64;
        // The two stacks may lie in any order.
        if at.is_null() || at <= marker.0.as_ptr().cast_const() && !thread::is_on_alternate_stack() {
            return false;
        }
        // SAFETY: the address is of this thread's own stack (the owner is this thread), which is
        // mapped; what lies there now may be anything and is only compared.
        unsafe { at.read_volatile() == self.marker.load(Relaxed) }
    }

    /// Whether somebody holds it now.
    pub fn is_taken(&self) -> bool {
        self.owner.load(Relaxed) != 0
    }

    /// Takes it without a marker: the caller has blocked all signals. What the caller holds already, below a handler, stays
    /// as it is.
    pub(super) fn seize(&self, me: u32) {
        if self.owner.load(Relaxed) != me && (self.claim(me, false) || self.contend(me, &Marker::new()).is_ok()) {
            self.marker_at.store(0, Relaxed);
        }
    }

    /// After [`Lock::seize`], also in a copy of the record.
    pub(super) fn let_go(&self, me: u32) {
        if self.owner.load(Relaxed) == me && self.marker_at.load(Relaxed) == 0 {
            self.owner.store(0, Release); // pairs with the Acquire in `take`
        }
    }

    /// Makes it free whoever holds it (a record that is taken into use).
    pub fn reset(&self) {
        self.marker_at.store(0, Relaxed);
        self.owner.store(0, Relaxed);
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.marker_at.store(0, Relaxed);
        self.lock.owner.store(0, Release); // pairs with the Acquire in `take`
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

    /// A child is killed with the lock in its hands, and nobody asks for its status.
    #[test]
    fn a_dead_holder_that_nobody_waited_for_is_followed() {
        let page = mem::memfd_for_readers(c"lock", 4096).expect("a shared page").1;
        // SAFETY: a fresh page, shared with the child; all zero is a free lock.
        let lock = unsafe { &*page.cast::<Lock>() };
        // SAFETY: the child makes system calls and stores only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            lock.owner.store(proc::tid(), Release);
            // SAFETY: no pointers.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        while lock.owner.load(Acquire) == 0 {
            std::thread::yield_now();
        }
        let marker = Marker::new();
        assert!(lock.take(&marker).is_ok());
        assert!(!lock.is_taken());
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    }
}
