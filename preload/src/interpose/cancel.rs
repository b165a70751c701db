//! pthread_cancel: a thread ends at its next cancellation point, also where the library serves the call without a sleep.
//!
//! A sleep is libc's own (docs/decisions/07) and ends by itself. A call that finds what it is for in memory, or may not wait, comes to
//! no function of libc's, so hooks of cancellation points look here first, where there is nothing in their hands yet. Until the program
//! cancels something that is one load.

use super::hooks;
use crate::real;
use libc::{c_int, pthread_t};
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
