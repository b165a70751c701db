//! Which processes at the other end know a waiter of ours, so that it may sleep by its name.
//!
//! Called by [`super::bell`] and [`super::room`] before a name is stored, and by `table` around fork.

use crate::family::sock::Sock;
use crate::sys::clock;
use crate::transport::peers;
use crate::transport::region::Dir;
use crate::transport::waiters::Waiter;
use std::sync::atomic::{Ordering::*, fence};

/// Lets the other end know a waiter; false if that can't be done. A link knows all of its process.
pub fn tell(s: &Sock, w: Waiter) -> bool {
    s.is_linked() || peers::get(s.peer.load(Relaxed)).is_some_and(|p| p.tell(w))
}

/// How many ns a waiter that the other end was told may sleep by its name for room.
pub fn trust(s: &Sock, w: Waiter) -> u64 {
    /// The message may lie in the channel because there is no descriptor left to take it with.
    const IN_DOUBT: u64 = 2_000_000;
    let sure = peers::get(s.peer.load(Relaxed)).is_none_or(|p| p.has_taken(w));
    if sure { u64::MAX } else { IN_DOUBT }
}

/// Before this process forks: its child can't read the channel, so a producer must not sleep by the name
/// of a waiter that we learn of later. For data there is the doorbell byte, for space nothing.
pub fn before_fork(s: &Sock, was_shared: bool) {
    if let Some(dir) = s.rx.dir().filter(|_| !s.is_linked())
        && (!was_shared || dir.forked_at.load(Relaxed) == 0)
        && dir.forked_at.load(Relaxed) != ANY_TIME
    {
        dir.forked_at.store(clock::ticks(), Relaxed);
    }
}

/// Of [`Dir::forked_at`]: before every tick at which anybody was told.
const ANY_TIME: u64 = 1;

/// From now on this process knows no waiter of the peer's: a producer must not sleep by a name. Who does already is rung
/// after this (`kin::part`).
pub fn no_names(s: &Sock) {
    if let Some(dir) = s.rx.dir() {
        dir.forked_at.store(ANY_TIME, Relaxed);
    }
    fence(SeqCst); // as in `learn_before_fork`
}

/// After [`before_fork`] for all connections: takes what the channels hold, for the child as well.
pub fn learn_before_fork() {
    // Pairs with the fence in `room::name_writer`: either the producer sees the mark, or its message is
    // in the channel now.
    fence(SeqCst);
    for (_, peer) in peers::all() {
        crate::transport::channel::drain(peer);
    }
}

/// The consumer is in one process again.
pub fn is_unshared(dir: &Dir) {
    if dir.forked_at.load(Relaxed) > ANY_TIME {
        dir.forked_at.store(0, Relaxed);
    }
}

/// Whether every process at the other end can wake this waiter, which it was told.
pub fn is_known_to_all(s: &Sock, dir: &Dir, w: Waiter) -> bool {
    match dir.forked_at.load(Relaxed) {
        0 => true,
        tick => peers::get(s.peer.load(Relaxed)).is_some_and(|p| p.was_told_before(w, tick)),
    }
}
