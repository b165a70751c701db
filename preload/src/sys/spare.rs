//! One descriptor kept for a process that may have no more: what has to be duplicated then takes its number.
//!
//! Made and made again by the service thread of the links ([`refill`]), used by it and by a close for the way back to TCP.

use super::{Errno, Res, fd};
use std::sync::atomic::{AtomicI32, Ordering::*};

static SPARE: AtomicI32 = AtomicI32::new(-1);

/// Keeps one, if there is none and a number is to be had.
pub fn refill() {
    if SPARE.load(Relaxed) < 0
        && let Ok(own) = fd::eventfd().map(fd::park)
        && SPARE.compare_exchange(-1, own, AcqRel, Relaxed).is_err()
    {
        fd::close(own);
    }
}

/// Duplicates a descriptor of the program, in the place of the spare one if there is no other. EMFILE: nor is there that; it may be later.
pub fn duplicate(number: i32) -> Res<i32> {
    let refused = match fd::dup_from(number, 3) {
        Ok(own) => return Ok(fd::park(own)),
        Err(e) => e,
    };
    // Whoever takes it has it alone.
    let spare = if refused == Errno(libc::EMFILE) { SPARE.swap(-1, AcqRel) } else { -1 };
    if spare < 0 {
        return Err(refused);
    }
    fd::dup3(number, spare, libc::O_CLOEXEC).map(|_| spare).inspect_err(|_| fd::close(spare))
}

/// Names it, if there is one.
pub fn descriptor() -> Option<i32> {
    Some(SPARE.load(Relaxed)).filter(|own| *own >= 0)
}

/// It has another number now; false if it is another one.
pub fn moved(old: i32, new: i32) -> bool {
    SPARE.compare_exchange(old, new, AcqRel, Relaxed).is_ok()
}

/// A forked child makes its own where it needs one.
pub fn forget_in_child() {
    let own = SPARE.swap(-1, Relaxed);
    if own >= 0 {
        fd::close(own);
    }
}
