//! Handshakes and forks keep apart: a connection that a child inherits is either untouched, or has its memory.
//!
//! A connection's record is in memory that a process shares with its forked children; what the record names, pages and rings of a
//! link, a child has only if it was mapped before the fork. So no handshake begins while a fork is under way, and a fork
//! waits for those that have begun. One that has no receiving ring even then gets none: it ends on TCP, where all who have the
//! connection can go on, also when the process that began it has ended ([`super::heir`]). Used by [`super::first_use`], the service thread, and `table::forks`.

use super::service;
use crate::engine::linked;
use crate::family::process;
use crate::family::sock::Sock;
use crate::link::lock::now;
use crate::log;
use crate::sys::fd;
use smcr_proto::smc::Time;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Threads that begin a handshake, and from [`FORK`] on those that fork.
static GATE: AtomicU32 = AtomicU32::new(0);
const FORK: u32 = 1 << 16;

/// How long a fork waits for handshakes to end.
const PATIENCE_MS: u32 = 1000;

/// In here no fork happens.
pub(super) struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        GATE.fetch_sub(1, AcqRel);
    }
}

/// To begin a handshake; None while a fork is under way.
pub(super) fn try_enter() -> Option<Entered> {
    let entered = GATE.fetch_update(AcqRel, Acquire, |g| (g < FORK).then_some(g + 1));
    entered.is_ok().then(|| Entered) // not `then_some`, which would make one in any case
}

/// The same when the fork is over. Not in the service thread, which a fork waits for.
pub(super) fn enter() -> Entered {
    loop {
        if let Some(entered) = try_enter() {
            return entered;
        }
        let _ = fd::poll(&mut [], 1);
    }
}

/// The same for what is short, and would do without where the fork is this thread's own.
pub(super) fn enter_soon() -> Option<Entered> {
    const SOON_MS: u32 = 20;
    wait(SOON_MS, || GATE.load(Relaxed) >= FORK);
    try_enter()
}

/// Before fork: the connections that the child will have get their memory first.
pub fn before_fork<I: Iterator<Item = &'static Sock>>(held: impl Fn() -> I) {
    GATE.fetch_add(FORK, AcqRel);
    wait(PATIENCE_MS, || !GATE.load(Acquire).is_multiple_of(FORK));
    if !service::is_running() || wait(PATIENCE_MS, || held().any(linked::is_pending)) {
        return;
    }
    for s in held().filter(|s| linked::is_bare(s)) {
        if linked::keep_on_tcp(s) {
            log::info!(target: "smcr::link", fd = s.fd.load(Relaxed), "a connection stays on TCP: the process forks in its handshake");
        }
    }
}

/// The thread that begins a handshake; 0 none.
static BEGINS: AtomicU32 = AtomicU32::new(0);

/// Runs `f` when nobody else begins a handshake. Who uses the connection meanwhile comes here too, and waits: in a call of the
/// kernel it would be in the way. Not in a signal handler that has interrupted it.
pub(super) fn alone(f: impl FnOnce()) {
    loop {
        match Alone::enter() {
            Ok(_alone) => return f(),
            Err(holder) if holder == process::tid() => return,
            Err(_) => drop(fd::poll(&mut [], 1)),
        }
    }
}

/// The same if nobody else does now, in the service thread, which others may wait for. False: it has not run.
pub(super) fn alone_now(f: impl FnOnce()) -> bool {
    let alone = Alone::enter();
    if alone.is_ok() {
        f();
    }
    alone.is_ok()
}

/// This thread begins a handshake.
struct Alone;

impl Alone {
    /// Err: who does.
    fn enter() -> Result<Alone, u32> {
        BEGINS.compare_exchange(0, process::tid(), Acquire, Relaxed).map(|_| Alone)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        BEGINS.store(0, Release); // pairs with the Acquire in `enter`
    }
}

/// In the parent, or fork has failed.
pub fn after_fork() {
    let _ = GATE.fetch_update(AcqRel, Acquire, |g| g.checked_sub(FORK));
}

/// A forked child has one thread.
pub(super) fn forget_in_child() {
    GATE.store(0, Relaxed);
    BEGINS.store(0, Relaxed);
}

/// Waits so long while this is so; false if it still is.
pub(super) fn wait(ms: u32, is_so: impl Fn() -> bool) -> bool {
    let end = now() + Time::from_millis(ms.into());
    while is_so() {
        if now() >= end {
            return false;
        }
        let _ = fd::poll(&mut [], 1);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_begins_while_a_fork_is_under_way_and_a_fork_waits_for_who_has_begun() {
        let entered = try_enter();
        assert!(entered.is_some());
        let forks = std::thread::spawn(|| before_fork(std::iter::empty));
        assert!(wait(10_000, || GATE.load(Acquire) < FORK), "the fork has closed the gate");
        assert!(try_enter().is_none());
        drop(entered);
        forks.join().unwrap();
        assert!(try_enter().is_none(), "until it is over");
        after_fork();
        drop(enter());
        assert_eq!(GATE.load(Acquire), 0);
    }
}
