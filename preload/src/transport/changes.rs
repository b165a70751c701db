//! Which sockets changed their medium lately, for the epoll sets that have them as members.
//!
//! A ring of record numbers; each set remembers how far it has read and looks at all of its members
//! when it has fallen behind.

use crate::family::{self, sock::Sock};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

const LEN: usize = 256;
static RING: [AtomicU32; LEN] = [const { AtomicU32::new(0) }; LEN];
static COUNT: AtomicU64 = AtomicU64::new(0);

/// A direction of `s` has moved.
pub fn note(s: &Sock) {
    let n = COUNT.fetch_add(1, AcqRel);
    RING[n as usize % LEN].store(family::index_of(s) + 1, Release);
}

/// Number of changes so far.
#[inline]
pub fn count() -> u64 {
    COUNT.load(Acquire)
}

/// The record of change number `n`; None if it is overwritten or not written yet.
pub fn at(n: u64) -> Option<&'static Sock> {
    if COUNT.load(Acquire).saturating_sub(n) > LEN as u64 / 2 {
        return None;
    }
    let index = RING[n as usize % LEN].load(Acquire).checked_sub(1)?;
    Some(family::sock(family::base()?, index))
}
