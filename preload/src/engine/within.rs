//! Threads inside a kernel call that sends or consumes, for a direction on TCP: while there is one it does not move to memory.
//!
//! A thread may leave such a call without returning: cancelled, or by a jump out of a handler. So each notes where on its stack it
//! is. Who sees it leave ([`leave_below`]), or finds a note of what lies below the present call, takes it out of the count, and says
//! that the kernel may have moved bytes for it that nobody has counted (`count` makes up for them before the next switch).
//!
//! Nothing keeps the record for a thread that is inside: closed by another thread, the connection ends when the call does, as
//! in the kernel, and the record may be another's by then, in which nothing of this call is counted.

use crate::family::half::Half;
use crate::family::sock::Sock;
use crate::family::{self, lock};
use crate::sys::thread::{self, Note};
use std::sync::atomic::{Ordering::*, compiler_fence};

/// The calling thread is inside; gone with this.
pub struct Within<'a> {
    s: &'a Sock,
    half: &'a Half,
    /// The record's generation when it began.
    since: u32,
    /// None in a handler on top of such a call, if that is left as well it stays counted: the connection stays on TCP.
    note: Option<&'static Note>,
}

impl<'a> Within<'a> {
    /// `half` is one of `s`. `frame`: something on the caller's stack that lives as long as this.
    #[inline]
    pub fn enter<T>(s: &'a Sock, half: &'a Half, frame: &T) -> Within<'a> {
        let at = std::ptr::from_ref(frame) as usize;
        let here = thread::here();
        let note = &here.within;
        let note = if note.lock.load(Relaxed) == 0 { Some(note) } else { again(note, at) };
        let since = s.generation.load(Relaxed);
        if let Some(note) = note {
            here.within_since.store(since, Relaxed);
            note.lock.store(std::ptr::from_ref(half) as usize, Relaxed);
        }
        compiler_fence(SeqCst);
        // SeqCst here and at the look at the medium that follows: either that finds the new medium, or who moves the direction
        // finds us inside (`switch::have_left`, `offer::offer_reading`).
        half.in_kernel.fetch_add(1, SeqCst);
        compiler_fence(SeqCst); // a note that has its place is counted
        if let Some(note) = note {
            note.at.store(at, Relaxed);
        }
        Within { s, half, since, note }
    }

    /// Whether the record is the connection's still for which the call was made.
    #[inline]
    pub fn is_of_record(&self) -> bool {
        self.s.generation.load(Relaxed) == self.since
    }
}

impl Drop for Within<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(note) = self.note {
            note.at.store(0, Relaxed);
        }
        compiler_fence(SeqCst);
        if self.is_of_record() {
            self.half.in_kernel.fetch_sub(1, Release); // pairs with the loads named above: the bytes are counted
        }
        compiler_fence(SeqCst);
        if let Some(note) = self.note {
            note.lock.store(0, Relaxed);
        }
    }
}

/// The note is in use, and a call at `present` needs one: by a call that was left, or by one that goes on, which a handler has
/// interrupted and whose frames lie above all of that.
#[cold]
fn again(note: &'static Note, present: usize) -> Option<&'static Note> {
    let at = note.at.load(Relaxed);
    let is_over = at != 0 && at <= present && !thread::is_on_alternate_stack();
    is_over.then(|| {
        forget(note);
        note
    })
}

/// The calling thread goes on at `target` of its stack.
pub fn leave_below(target: usize) {
    let note = &thread::here().within;
    if note.lock.load(Relaxed) == 0 {
        return;
    }
    let at = note.at.load(Relaxed);
    // As in `lock::leave`.
    if at == 0 || lock::is_left(target)(at) {
        forget(note);
    }
}

/// A child that was forked in a handler above such a call comes out of it as its parent does.
pub fn forget_in_child() {
    let note = &thread::here().within;
    if note.at.load(Relaxed) != 0
        && let Some(half) = half_of(note.lock.load(Relaxed))
    {
        half.in_kernel.fetch_add(1, SeqCst);
    }
}

/// What this thread's note names, if that is the connection's still for which the call was made.
fn half_of(address: usize) -> Option<&'static Half> {
    // SAFETY: only `enter` stores an address, and a record lies in the family page, which is never given back.
    let half = unsafe { (address as *const Half).as_ref() }?;
    let since = thread::here().within_since.load(Relaxed);
    let is_anothers = family::sock_of(address).is_some_and(|s| s.generation.load(Relaxed) != since);
    (!is_anothers).then_some(half)
}

/// The call of the note is over. Whether one without a place was counted is not known: then it stays as it is.
fn forget(note: &Note) {
    let (address, at) = (note.lock.load(Relaxed), note.at.load(Relaxed));
    note.at.store(0, Relaxed);
    compiler_fence(SeqCst);
    note.lock.store(0, Relaxed);
    let Some(half) = half_of(address) else { return };
    half.lost.store(1, Relaxed);
    if at != 0 {
        // Release as in `drop`: who finds nobody inside finds the mark.
        let _ = half.in_kernel.fetch_update(Release, Relaxed, |n| n.checked_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn enter_and_leave(s: &Sock) {
        let frame = 0u8;
        std::mem::forget(Within::enter(s, &s.rx, std::hint::black_box(&frame)));
    }

    #[test]
    fn a_call_that_was_left_counts_no_more() {
        // SAFETY: all zero is a fresh record.
        let s: Sock = unsafe { std::mem::zeroed() };
        let half = &s.rx;
        let frame = 0u8;
        let inside = || half.in_kernel.load(Relaxed);
        drop(Within::enter(&s, half, &frame));
        assert_eq!((inside(), half.lost.load(Relaxed)), (0, 0));
        enter_and_leave(&s);
        assert_eq!(inside(), 1);
        let next = Within::enter(&s, half, &frame);
        assert_eq!((inside(), half.lost.swap(0, Relaxed)), (1, 1), "what was left lies below");
        enter_and_leave(&s);
        assert_eq!((inside(), half.lost.load(Relaxed)), (2, 0), "a handler, which has no note");
        drop(next);
        enter_and_leave(&s);
        leave_below(usize::MAX);
        assert_eq!((inside(), half.lost.load(Relaxed)), (1, 1));
    }

    /// The connection was closed meanwhile, and a thread is inside for the next one that has its record.
    #[test]
    fn nothing_is_counted_in_a_record_that_is_anothers() {
        let s = family::take_sock().expect("a record");
        let frame = 0u8;
        let inside = || s.rx.in_kernel.load(Relaxed);
        let reuse = || {
            s.reset();
            s.rx.in_kernel.store(1, Relaxed);
        };
        s.reset();
        let within = Within::enter(s, &s.rx, &frame);
        reuse();
        assert!(!within.is_of_record());
        drop(within);
        assert_eq!(inside(), 1, "it returned");
        enter_and_leave(s);
        reuse();
        drop(Within::enter(s, &s.rx, &frame));
        assert_eq!((inside(), s.rx.lost.load(Relaxed)), (1, 0), "it was left");
        family::give_back(s);
    }
}
