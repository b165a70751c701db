//! The calling thread's waiter, by which peers wake it in blocking calls, poll and select.
//!
//! Taken at its first wait, given back at its end. Called by [`super::wait`], [`super::rouse`] and `ready`.

use super::{counted, inside, spin};
use crate::link::cover;
use crate::sys::scratch;
use crate::transport::waiters::{self, Waiter};
use std::cell::Cell;

thread_local! {
    static WAITER: Cell<Option<Waiter>> = const { Cell::new(None) };
    static WITHOUT: Cell<u32> = const { Cell::new(0) };
    static UNHEARD: Cell<bool> = const { Cell::new(false) };
}

/// This thread's waiter, if it has one already.
pub fn own_waiter() -> Option<Waiter> {
    WAITER.get().filter(|w| w.is_ours())
}

/// It was rung, and is awake: the ring is taken before the next sleep, if there is one, and not while somebody waits for what it was for.
pub fn hear_later() {
    UNHEARD.set(true);
}

/// This thread's waiter, for a sleep that begins now; None where none can be had (the doorbell byte serves then).
pub fn thread_waiter() -> Option<Waiter> {
    if let Some(w) = WAITER.get()
        && w.is_ours()
    {
        if !w.is_stale() {
            // Before the word says that it sleeps: no ring for the new sleep is among those.
            if UNHEARD.replace(false) {
                w.hear();
            }
            return Some(w);
        }
        if w.is_asleep() {
            return None; // below a handler
        }
        w.release();
    }
    // After a refusal ask again only now and then.
    let skip = WITHOUT.get();
    if skip > 0 {
        WITHOUT.set(skip - 1);
        return None;
    }
    match waiters::take() {
        Ok(w) => {
            WAITER.set(Some(w));
            super::threads::at_exit();
            Some(w)
        }
        Err(_) => {
            WITHOUT.set(100);
            None
        }
    }
}

/// The thread ends, or the library withdraws: its waiter is free again.
pub fn thread_ends() {
    if crate::control::is_withdrawn() {
        return; // a call to close it may be forbidden
    }
    inside::thread_ends();
    scratch::thread_ends();
    counted::thread_ends();
    cover::thread_ends();
    spin::tell();
    if let Some(w) = WAITER.take()
        && w.is_ours()
    {
        w.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fd;

    #[test]
    fn what_was_rung_is_taken_before_the_next_sleep() {
        let w = thread_waiter().expect("a waiter");
        let is_rung = || fd::poll_now(w.eventfd(), libc::POLLIN) != 0;
        w.ring();
        assert!(thread_waiter() == Some(w) && is_rung());
        hear_later();
        assert!(is_rung());
        assert!(thread_waiter() == Some(w) && !is_rung());
        thread_ends();
    }
}
