//! What a thread notes of the locks that it is about to take ([`super::lock`]): which, and where on its stack the call is.
//!
//! Who leaves calls by a jump or by unwinding lets go of what lies below ([`leave`]); of jumps that nobody saw the next call that
//! finds the note in use does so.

use super::lock::Lock;
use super::process;
use crate::sys::thread::{self, Note, Thread};
use std::sync::atomic::{AtomicUsize, Ordering::*, compiler_fence};

/// Stack cell that marks a live holder, by its own address; make one before [`Lock::take`].
pub struct Marker(AtomicUsize);

impl Marker {
    /// A fresh cell.
    #[allow(clippy::new_without_default, reason = "Default is not const")]
    pub const fn new() -> Marker {
        Marker(AtomicUsize::new(0))
    }

    #[inline(always)]
    pub(super) fn at(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

/// What is noted of a lock that is about to be taken; gone with this.
pub(super) struct Noted<'a> {
    pub(super) lock: &'a Lock,
    pub(super) note: &'static Note,
    pub(super) marker: &'a Marker,
}

impl<'a> Noted<'a> {
    /// The lock is noted before its place: a handler in between finds neither a free note nor a wrong place.
    #[inline(always)]
    pub(super) fn new(lock: &'a Lock, thread: &'static Thread, marker: &'a Marker) -> Noted<'a> {
        let first = &thread.locks[0];
        let note = if first.lock.load(Relaxed) == 0 { first } else { another(marker) };
        note.lock.store(lock.address(), Relaxed);
        compiler_fence(SeqCst);
        note.at.store(marker.at(), Relaxed);
        marker.0.store(marker.at(), Relaxed);
        compiler_fence(SeqCst); // a handler finds the note before the lock has an owner
        Noted { lock, note, marker }
    }
}

impl Drop for Noted<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        clear(self.note);
    }
}

#[inline(always)]
pub(super) fn clear(note: &Note) {
    note.at.store(0, Relaxed);
    compiler_fence(SeqCst);
    note.lock.store(0, Relaxed);
}

/// The first note is in use: by a call of the same thread that goes on, or by one that it has left.
#[cold]
#[inline(never)]
fn another(marker: &Marker) -> &'static Note {
    let here = 0u8;
    let here = std::ptr::from_ref(&here) as usize;
    let notes = &thread::here().locks;
    let is_over = |n: &&Note| {
        let at = n.at.load(Relaxed);
        // Two that go on have not the same place. All frames of those lie above this one's.
        n.lock.load(Relaxed) != 0 && at != 0 && (at == marker.at() || at < here)
    };
    if notes.iter().any(|n| is_over(&n)) && !thread::is_on_alternate_stack() {
        let me = process::tid();
        notes.iter().filter(is_over).for_each(|n| give_up(n, me));
    }
    let (last, others) = notes.split_last().unwrap_or_else(|| unreachable!());
    // Deeper in handlers than there are notes: those of the deepest ones overwrite each other.
    others.iter().find(|n| n.lock.load(Relaxed) == 0).unwrap_or(last)
}

/// The call of a note is over: its lock is free, unless another call of the thread has it as well.
fn give_up(note: &Note, me: u32) {
    let address = note.lock.load(Relaxed);
    clear(note);
    if address != 0 && thread::here().locks.iter().all(|n| n.lock.load(Relaxed) != address) {
        // SAFETY: locks lie in mappings that are never given back: the family page, and those of sets.
        let lock = unsafe { &*(address as *const Lock) };
        if lock.owner.load(Relaxed) == me {
            lock.owner.store(0, Release); // pairs with the Acquire in `take`
        }
    }
}

/// The calling thread leaves all its calls whose place on the stack lies below `target`, which is where it goes on. `left` is told
/// of each lock that is held there, before it is free.
pub fn leave(target: usize, left: impl Fn(&Lock)) {
    let notes = &thread::here().locks;
    if notes.iter().all(|n| n.lock.load(Relaxed) == 0) {
        return;
    }
    let me = process::tid();
    let is_left = is_left(target);
    for note in notes.iter().filter(|n| n.lock.load(Relaxed) != 0) {
        let at = note.at.load(Relaxed);
        // A place that is not known yet is that of the call which a handler has just interrupted, and with it the deepest.
        if at == 0 || is_left(at) {
            // SAFETY: as in `give_up`.
            let lock = unsafe { &*(note.lock.load(Relaxed) as *const Lock) };
            if lock.owner.load(Relaxed) == me {
                left(lock);
            }
            give_up(note, me);
        }
    }
}

/// Tells which places on its stacks the calling thread leaves when it goes on at `target`.
pub fn is_left(target: usize) -> impl Fn(usize) -> bool {
    let here = 0u8;
    let here = std::ptr::from_ref(&here) as usize;
    let alternate = thread::alternate_stack();
    move |at| match &alternate {
        // One stack, and the target above it: else that is another stack, and the call may go on one day.
        None => here < at && at < target,
        Some(stack) => match (stack.contains(&at), stack.contains(&target)) {
            (true, false) => true,
            (false, true) => false,
            _ => at < target,
        },
    }
}
