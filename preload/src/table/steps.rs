//! Steps of the rendezvous in calls that wait: called by the hooks of epoll_wait, poll and select before
//! they look at anything.

use super::sock;
use crate::family::process;
use crate::family::sock::Sock;
use crate::rendezvous::{self, pending};
use crate::sys::{clock, proc, thread};
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
    if is_there(s, fd) {
        rendezvous::step_in_wait(s, fd, || is_there(s, fd));
    }
}

/// Whether the socket has this number.
pub fn is_there(s: &Sock, fd: i32) -> bool {
    sock(fd).is_some_and(|t| std::ptr::eq(s, t))
}

/// The descriptor has left the table and is about to be closed: nobody may be in the middle of a step
/// with its number.
pub fn let_finish(s: &Sock) {
    if thread::is_only() {
        return; // a step of this very thread, below a handler: not to be waited for
    }
    // Pairs with the fences of `rendezvous::work` and `step_in_wait`: either the step sees the empty slot, or we
    // see the step.
    fence(SeqCst);
    if s.stepping.load(Acquire) != 0 {
        await_end(s);
    }
}

/// Its thread may have lost its processor in the middle. A handler can't wait for the step that it has interrupted, and a relative, which may be
/// stopped, does nothing to a number of ours.
#[cold]
fn await_end(s: &Sock) {
    const PATIENCE_NS: u64 = 10_000_000_000;
    const PATIENCE_WITH_RELATIVES_NS: u64 = 20_000_000;
    let patience = if s.holders.load(Relaxed) > 1 { PATIENCE_WITH_RELATIVES_NS } else { PATIENCE_NS };
    let (mut pause, until) = (proc::Pause::default(), clock::now_ns() + patience);
    loop {
        match s.stepping.load(Acquire) {
            0 => return,
            who if who == process::tid() => return,
            who if pause.turn() && (proc::is_gone(who) || clock::now_ns() > until) => return,
            _ => {}
        }
    }
}
