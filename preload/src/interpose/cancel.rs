//! pthread_cancel: a thread ends at its next cancellation point, also where the library serves the call without a sleep.
//!
//! A sleep is libc's own (docs/decisions/07) and ends by itself. A call that finds what it is for in memory, or may not wait, comes to
//! no function of libc's, so hooks of cancellation points look here first, where there is nothing in their hands yet. Until the program
//! cancels something that is one load.
//!
//! syscall(2) is no cancellation point, whatever it does: what serves its numbers runs [`aside`].

use super::hooks;
use crate::family::lock;
use crate::real;
use crate::sys::thread;
use libc::{c_int, pthread_t};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The program has cancelled a thread. Relaxed: that one sees it in one of its next calls.
static USED: AtomicBool = AtomicBool::new(false);

hooks! {
    fn pthread_cancel(thread: pthread_t) -> c_int {
        USED.store(true, Relaxed);
        // SAFETY: the program's argument.
        unsafe { real::pthread_cancel(thread) }
    }
}

/// Some thread may be cancelled at any instruction, also in a system call. Relaxed: a thread says it of itself.
static ANYWHERE: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Where on the stack the call is in which the thread can't be cancelled; 0: none.
    static ASIDE: Cell<usize> = const { Cell::new(0) };
}

/// pthread_setcanceltype is about to say so.
pub fn may_cancel_anywhere() {
    ANYWHERE.store(true, Relaxed);
}

/// Runs what is no cancellation point and may sleep in one.
pub fn aside<T>(f: impl FnOnce() -> T) -> T {
    let frame = 0u8;
    // Alone it could only have cancelled itself.
    let is_out = !thread::is_only() && !ANYWHERE.load(Relaxed) && ASIDE.get() == 0 && enable(false);
    if !is_out {
        return f();
    }
    ASIDE.set(std::ptr::from_ref(&frame) as usize);
    let result = f();
    ASIDE.set(0);
    enable(true);
    result
}

/// The calling thread goes on at `target` of its stack.
pub fn leave_below(target: usize) {
    let at = ASIDE.get();
    if at != 0 && lock::is_left(target)(at) {
        ASIDE.set(0);
        enable(true);
    }
}

/// Whether the calling thread could be cancelled before.
fn enable(on: bool) -> bool {
    const ENABLE: c_int = 0;
    const DISABLE: c_int = 1;
    let mut before = DISABLE;
    // SAFETY: one of the two states, and an int.
    unsafe { real::pthread_setcancelstate(if on { ENABLE } else { DISABLE }, &raw mut before) };
    before == ENABLE
}

/// A cancellation point: the calling thread may end here.
#[inline(always)]
pub fn point() {
    if USED.load(Relaxed) {
        act();
    }
}

#[cold]
#[inline(never)]
fn act() {
    // SAFETY: no arguments; what it unwinds holds nothing yet.
    unsafe { real::pthread_testcancel() }
}
