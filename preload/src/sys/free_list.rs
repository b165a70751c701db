//! A list of what is free, the last first, changed by exchange alone: {tag, name of the first}, where a name has so many bits and 0 is nobody's.
//! The tag goes up with each change, against a head that has come back (the model is `free` in tests/model). Each has the name of the next one
//! itself, in memory that is never unmapped. `family` has its records in one, and `table::set` its sets.

use std::sync::atomic::{AtomicU64, Ordering::*};

/// Takes the first: its name. `next`: whose name one has.
#[inline]
pub fn take(list: &AtomicU64, bits: u32, next: impl Fn(u64) -> u64) -> Option<u64> {
    let mut old = list.load(Acquire); // pairs with the Release in `give`
    loop {
        let first = old & ((1 << bits) - 1);
        if first == 0 {
            return None;
        }
        match list.compare_exchange_weak(old, ((old >> bits) + 1) << bits | next(first), AcqRel, Acquire) {
            Ok(_) => return Some(first),
            Err(v) => old = v,
        }
    }
}

/// One is free. `follow`: has it the name of the next one.
#[inline]
pub fn give(list: &AtomicU64, bits: u32, one: u64, follow: impl Fn(u64)) {
    let mut old = list.load(Relaxed);
    loop {
        follow(old & ((1 << bits) - 1));
        // Release: whoever takes it sees it as it was left (pairs with the Acquire in `take`).
        match list.compare_exchange_weak(old, ((old >> bits) + 1) << bits | one, Release, Relaxed) {
            Ok(_) => return,
            Err(v) => old = v,
        }
    }
}
