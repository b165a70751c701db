//! Waking this process's own waiters: what a shared-memory peer would do to them, done by the link.
//!
//! The doorbell words are those of `engine::bell`. There is no TCP byte here that could wake a waiter
//! which the library does not see; where a connection asks for one, every sleeping waiter of the process
//! is told, and epoll sets are told to look at the connection.

use super::cover;
use crate::family::sock::Sock;
use crate::layout::{Dir, word};
use crate::sys::thread::full_fence;
use crate::transport::changes;
use crate::transport::waiters::{Waiter, own_slots};
use std::sync::atomic::Ordering::*;

/// Data has arrived, or the end: wakes who waits for it.
pub fn reader(dir: &Dir, sock: Option<&Sock>) {
    // Pairs with the fence of a consumer that arms or falls asleep and then looks at the cursor.
    full_fence();
    let now = dir.bell.load(Relaxed);
    match Waiter::of_word(now) {
        Some(w) => ring(w),
        None if now == word::ARMED || now == word::EACH => {
            if now == word::ARMED {
                let _ = dir.bell.compare_exchange(word::ARMED, word::RUNG, AcqRel, Relaxed);
            }
            if let Some(s) = sock {
                changes::note(s);
            }
            everybody();
        }
        None => {}
    }
}

/// Room has come in the sending ring: wakes who waits for it.
pub fn writer(dir: &Dir) {
    // Pairs with the fence of a producer that says that it waits and then looks at the cursor.
    full_fence();
    let now = dir.space.load(Relaxed);
    match Waiter::of_word(now) {
        Some(w) => ring(w),
        None if now == word::EACH => everybody(),
        None => {}
    }
}

/// Every waiter of this process that sleeps.
pub fn everybody() {
    for w in own_slots() {
        ring(w);
    }
}

fn ring(w: Waiter) {
    if w.is_asleep() && !cover::is_about_to(w) {
        w.ring();
    }
}
