//! One descriptor kept for a process that may have no more: what has to be duplicated then takes its number.
//!
//! Made with the service thread of the links, when there are numbers, and never again: a later one could be the program's last. What was
//! duplicated gives the number back ([`give_back`]). Used by the way back to TCP, and by a close for it.

use super::few::{self, Brief};
use super::{Errno, Res, fd};
use std::sync::atomic::{AtomicI32, Ordering::*};

static SPARE: AtomicI32 = AtomicI32::new(-1);

/// Keeps one.
pub fn make() {
    if SPARE.load(Relaxed) < 0
        && let Ok(own) = fd::eventfd().map(fd::park)
    {
        SPARE.store(own, Release);
    }
}

/// Duplicates a descriptor of the program, in the place of the spare one if there is no other. EMFILE: nor is there that; it may be later.
pub fn duplicate(number: i32) -> Res<i32> {
    let refused = match Brief::open(|| fd::dup_from(number, 3)) {
        // The last one is the program's, while there is the spare one.
        Ok(own) if SPARE.load(Relaxed) < 0 || few::are_left(own.fd(), 1) => return Ok(fd::park(own.keep())),
        Ok(_) => Errno(libc::EMFILE),
        Err(e) => e,
    };
    // Whoever takes it has it alone.
    let spare = if refused == Errno(libc::EMFILE) { SPARE.swap(-1, AcqRel) } else { -1 };
    if spare < 0 {
        return Err(refused);
    }
    fd::dup3(number, spare, libc::O_CLOEXEC).map(|_| spare).inspect_err(|_| keep(spare))
}

/// What [`duplicate`] has made is not needed any more: its number is the spare one if there is none, with the same file behind it as `like`, another
/// descriptor of our own.
pub fn give_back(own: i32, like: i32) {
    if SPARE.load(Relaxed) < 0 && fd::dup3(like, own, libc::O_CLOEXEC).is_ok() {
        keep(own);
    } else {
        fd::close(own);
    }
}

fn keep(own: i32) {
    if SPARE.compare_exchange(-1, own, AcqRel, Relaxed).is_err() {
        fd::close(own);
    }
}

/// Names it, if there is one.
pub fn descriptor() -> Option<i32> {
    Some(SPARE.load(Relaxed)).filter(|own| *own >= 0)
}

/// It has another number now; false if it is another one.
pub fn moved(old: i32, new: i32) -> bool {
    SPARE.compare_exchange(old, new, AcqRel, Relaxed).is_ok()
}

/// A forked child makes its own with its own thread.
pub fn forget_in_child() {
    let own = SPARE.swap(-1, Relaxed);
    if own >= 0 {
        fd::close(own);
    }
}
