//! Forked children that use connections over this process's links: when one is killed, what it held alone is closed.
//!
//! The kernel closes a dead process's TCP connections, and nothing else; the link is the parent's, who hears of the death by a
//! pidfd. Used by the service thread: [`watch`] after a child has introduced itself (its event is the sign), [`ended`] when a
//! pidfd is readable. The links then find the connections whose record nobody has any more (`link::slot`).

use crate::family::{self, process};
use crate::link::lock;
use crate::log;
use crate::sys::{fd, proc};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

/// Children that are watched at most; what others held is found when one of these ends.
const MOST: usize = 64;

/// A child, and its pidfd; -1 free. The service thread alone takes and frees places.
struct Watched {
    pid: AtomicU32,
    fd: AtomicI32,
}

static WATCHED: [Watched; MOST] = [const { Watched { pid: AtomicU32::new(0), fd: AtomicI32::new(-1) } }; MOST];

fn watched() -> impl Iterator<Item = &'static Watched> {
    WATCHED.iter().filter(|w| w.fd.load(Acquire) >= 0)
}

/// Watches those that are not watched yet; `hear` takes the descriptor and its place.
pub(super) fn watch(hear: impl Fn(i32, usize)) {
    if !lock::is_used() {
        return;
    }
    for pid in process::relatives().filter(|pid| watched().all(|w| w.pid.load(Relaxed) != *pid)) {
        let Some(place) = WATCHED.iter().position(|w| w.fd.load(Relaxed) < 0) else { return };
        let Ok(own) = proc::pidfd(pid) else {
            family::reap_dead(); // it ended before this thread came
            continue;
        };
        let own = fd::park(own);
        WATCHED[place].pid.store(pid, Relaxed);
        WATCHED[place].fd.store(own, Release); // pairs with the Acquire in `watched`
        hear(own, place);
    }
}

/// The one at this place has ended.
pub(super) fn ended(place: usize) {
    let Some(w) = WATCHED.get(place) else { return };
    let own = w.fd.swap(-1, AcqRel);
    if own < 0 {
        return;
    }
    fd::close(own);
    log::debug!(target: "smcr::link", pid = w.pid.load(Relaxed), "a child has ended");
    family::reap_dead();
    lock::with(|all| all.mark_all());
}

/// Descriptors that are kept here.
pub(super) fn descriptors(add: &mut impl FnMut(i32)) {
    watched().for_each(|w| add(w.fd.load(Relaxed)));
}

/// A descriptor of ours has another number now; false if it is none of these.
pub(super) fn moved(old: i32, new: i32) -> bool {
    watched().any(|w| w.fd.compare_exchange(old, new, AcqRel, Relaxed).is_ok())
}

/// A forked child watches nobody.
pub(super) fn forget_in_child() {
    for w in &WATCHED {
        let own = w.fd.swap(-1, Relaxed);
        if own >= 0 {
            fd::close(own);
        }
    }
}
