//! Steps of the rendezvous in calls that wait: called by the hooks of epoll_wait, poll and select before
//! they look at anything.

use super::{Entry, get};
use crate::family::sock::Sock;
use crate::rendezvous::{self, pending};
use crate::sys::{proc, thread};
use std::sync::atomic::{Ordering::*, fence};

/// Brings on what is on its way. One load when nothing is.
#[inline(always)]
pub fn tick() {
    if pending::any() {
        bring_on_all();
    }
}

/// A function of its own: its registers would be saved in each call that waits.
#[cold]
#[inline(never)]
fn bring_on_all() {
    let _ = crate::sys::caught(|| pending::each(bring_on));
}

fn bring_on(s: &'static Sock) {
    let fd = s.fd.load(Relaxed);
    let is_there = || matches!(get(fd), Some(Entry::Sock(t)) if std::ptr::eq(s, t));
    if is_there() {
        rendezvous::step_in_wait(s, fd, is_there);
    }
}

/// The descriptor has left the table and is about to be closed: nobody may be in the middle of a step
/// with its number.
pub fn let_finish(s: &Sock) {
    if thread::is_only() {
        return; // a step of this very thread, below a handler: not to be waited for
    }
    // Pairs with the fence of `rendezvous::step_in_wait`: either the step sees the empty slot, or we
    // see the step. Bounded: a handler may have interrupted the step of this very thread.
    fence(SeqCst);
    let mut rounds = 0;
    while s.stepping.load(Acquire) != 0 && rounds < 1 << 12 {
        rounds += 1;
        proc::yield_now();
    }
}
