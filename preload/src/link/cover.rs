//! Who listens to the completion channel: the service thread always, and beside it one waiting thread of the program.
//!
//! A thread that waits for a connection over a link and is woken by the network card itself saves the way
//! through the service thread. At most one does so at a time; the others are woken by whoever has polled. Who takes
//! an event off the channel polls, arms the queue again and polls once more, so the queue is armed whenever nobody is at it, and
//! the service thread hears of what comes while the other one does something else. If both are woken, the second
//! finds the channel empty and sleeps on in the kernel.

use super::lock;
use super::state::State;
use crate::family::process;
use crate::sys::{Errno, fd};
use crate::verbs::device::Device;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

/// The thread that listens; 0 none.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The channel; where there are several devices, an epoll set of their channels.
static CHANNEL: AtomicI32 = AtomicI32::new(-1);
/// That set, once there is one.
static SEVERAL: AtomicI32 = AtomicI32::new(-1);

/// The devices have changed.
pub fn note_devices(state: &State) {
    let open: Vec<&Device> = state.devices.iter().filter(|d| d.is_open()).collect();
    let channel = match &open[..] {
        [] => -1,
        // Who sleeps on the set may go on.
        [only] if SEVERAL.load(Relaxed) < 0 => only.event_fd(),
        several => set_of(several),
    };
    CHANNEL.store(channel, Release);
}

/// The set of the channels of all devices; -1 if it can't be made: the service thread hears them all.
fn set_of(devices: &[&Device]) -> i32 {
    if SEVERAL.load(Relaxed) < 0
        && let Ok(set) = fd::epoll_create()
    {
        SEVERAL.store(fd::park(set), Relaxed);
    }
    let set = SEVERAL.load(Relaxed);
    for d in devices {
        let e = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        match fd::epoll_ctl(set, libc::EPOLL_CTL_ADD, d.event_fd(), Some(e)) {
            Ok(_) | Err(Errno(libc::EEXIST)) => {}
            Err(_) => return -1,
        }
    }
    set
}

/// The set, if there is one: a descriptor of the library's.
pub fn descriptor() -> Option<i32> {
    Some(SEVERAL.load(Relaxed)).filter(|set| *set >= 0)
}

/// The channel has another number now; true if it is the set of channels.
pub fn moved(old: i32, new: i32) -> bool {
    let _ = CHANNEL.compare_exchange(old, new, AcqRel, Relaxed);
    SEVERAL.compare_exchange(old, new, Relaxed, Relaxed).is_ok()
}

/// The channel, for an epoll set that wants to hear of it.
pub fn channel() -> Option<i32> {
    Some(CHANNEL.load(Acquire)).filter(|c| *c >= 0)
}

/// Begins to listen. None: somebody does already. The caller looks at its connection once more, sleeps with the
/// channel among its descriptors, and calls [`leave`].
pub fn enter() -> Option<i32> {
    let channel = channel()?;
    OWNER.compare_exchange(0, process::tid(), AcqRel, Relaxed).ok().map(|_| channel)
}

/// Ends it; `heard`: the channel was readable.
pub fn leave(heard: bool) {
    OWNER.store(0, Release);
    if heard {
        take();
    }
}

/// Takes an event off the channel, and what has arrived.
pub fn take() {
    lock::try_with(|all| {
        let mut any = false;
        for d in &mut all.devices {
            any |= d.take_event();
        }
        all.poll();
        if any {
            lock::arm(all);
            all.poll();
        }
    });
}

/// The calling thread ends, perhaps while it listened.
pub fn thread_ends() {
    let _ = OWNER.compare_exchange(process::tid(), 0, AcqRel, Relaxed);
}

/// A forked child has neither links nor listeners.
pub fn forget_in_child() {
    OWNER.store(0, Relaxed);
    CHANNEL.store(-1, Relaxed);
    let set = SEVERAL.swap(-1, Relaxed);
    if set >= 0 {
        fd::close(set);
    }
}
