//! Who listens to the completion channel: the service thread, or one waiting thread of the program.
//!
//! A thread that waits for a connection over a link and is woken by the network card itself saves the way
//! through the service thread. At most one does so at a time; the others are woken by it. While such
//! threads come and go the service thread leaves the channel to them and looks every 2 ms whether they
//! still do (as a network driver polls instead of taking interrupts); when one of them just stays, it
//! sleeps until that one leaves. So an idle link wakes nobody.

use super::lock;
use crate::family::process;
use crate::sys::fd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*, fence};

/// The thread that listens; 0 none.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The channel, where the process has exactly one.
static CHANNEL: AtomicI32 = AtomicI32::new(-1);
/// Goes up when threads of the program come or find something.
static ACTIVITY: AtomicU32 = AtomicU32::new(0);
/// The service thread sleeps until it is told.
static DEEP: AtomicU32 = AtomicU32::new(0);

/// How long the service thread leaves the channel alone at a time.
const TICK_MS: u64 = 2;

/// What the service thread does about the channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Listens to it.
    Listen,
    /// Looks again after this many milliseconds.
    Tick(u64),
    /// Sleeps until it is told.
    Deep,
}

/// The channel of the only device; -1: none, or several.
pub fn set_channel(channel: i32) {
    CHANNEL.store(channel, Release);
}

/// The channel, for an epoll set that wants to hear of it.
pub fn channel() -> Option<i32> {
    Some(CHANNEL.load(Acquire)).filter(|c| *c >= 0)
}

/// Begins to listen: the queue is armed and looked at. None: somebody does already. The caller looks at
/// its connection once more, sleeps with the channel among its descriptors, and calls [`leave`].
pub fn enter() -> Option<i32> {
    let channel = channel()?;
    OWNER.compare_exchange(0, process::tid(), AcqRel, Relaxed).ok()?;
    note_activity();
    let armed = lock::try_with(|all| {
        lock::arm(all);
        all.poll();
    });
    if armed {
        return Some(channel);
    }
    leave(false);
    None
}

/// Ends it; `heard`: the channel was readable.
pub fn leave(heard: bool) {
    if heard {
        take();
    }
    OWNER.store(0, Release);
    fence(SeqCst); // pairs with the one in `plan`
    if DEEP.load(Relaxed) != 0 {
        let _ = fd::event_set(lock::service());
    }
}

/// Takes the events off the channel, and what has arrived.
pub fn take() {
    note_activity();
    lock::try_with(|all| {
        for d in &mut all.devices {
            d.take_events();
        }
        all.poll();
    });
}

/// The calling thread ends, perhaps while it listened.
pub fn thread_ends() {
    if OWNER.load(Relaxed) == process::tid() {
        leave(false);
    }
}

/// A thread of the program has found something without sleeping.
#[inline]
pub fn note_activity() {
    ACTIVITY.fetch_add(1, Relaxed);
}

/// What the service thread does until it looks again; `seen` is the activity that it knows of.
pub fn plan(seen: &mut u32) -> Plan {
    DEEP.store(0, Relaxed);
    if channel().is_none() {
        return Plan::Listen;
    }
    let now = ACTIVITY.load(Relaxed);
    if now != *seen {
        *seen = now;
        return Plan::Tick(TICK_MS);
    }
    if OWNER.load(Acquire) == 0 {
        return Plan::Listen;
    }
    DEEP.store(1, Relaxed);
    fence(SeqCst); // pairs with the one in `leave`: it sees DEEP, or we see that it has left
    if OWNER.load(Relaxed) == 0 { Plan::Listen } else { Plan::Deep }
}

/// A forked child has neither links nor listeners.
pub fn forget_in_child() {
    OWNER.store(0, Relaxed);
    CHANNEL.store(-1, Relaxed);
    DEEP.store(0, Relaxed);
}
