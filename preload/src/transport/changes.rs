//! Which sockets changed their medium lately, for the epoll sets that have them as members.
//!
//! A ring of record numbers; each set remembers how far it has read and looks at all of its members
//! when it has fallen behind, or where a change is counted and not written yet. Modelled in tests/model/tests/models/lists.rs.

use crate::family::{self, sock::Sock};
use std::sync::atomic::{AtomicU64, Ordering::*};

const LEN: usize = 256;
/// {number of the change: 32, index of the record + 1: 32}
static RING: [AtomicU64; LEN] = [const { AtomicU64::new(0) }; LEN];
static COUNT: AtomicU64 = AtomicU64::new(0);

/// A direction of `s` has moved.
pub fn note(s: &Sock) {
    // Release: who sees that there was a change sees the medium (pairs with the Acquire in `count`).
    write(COUNT.fetch_add(1, AcqRel), family::index_of(s));
}

fn write(n: u64, index: u32) {
    RING[n as usize % LEN].store(n << 32 | u64::from(index + 1), Relaxed);
}

/// Number of changes so far.
#[inline]
pub fn count() -> u64 {
    COUNT.load(Acquire) // pairs with the Release in `note`
}

/// The record of change number `n`; None if it is overwritten or not written yet.
pub fn at(n: u64) -> Option<&'static Sock> {
    Some(family::sock(family::base()?, index_at(n)?))
}

fn index_at(n: u64) -> Option<u32> {
    let entry = RING[n as usize % LEN].load(Relaxed);
    (entry as u32).checked_sub(1).filter(|_| entry >> 32 == n & u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that is stopped between its count and its entry: what stands there is the change a ring before.
    #[test]
    fn a_change_that_is_counted_and_not_written_is_not_another_one() {
        (0..LEN as u64 + 3).for_each(|n| write(n, n as u32 % 7));
        let next = LEN as u64 + 3;
        assert_eq!(index_at(next - 1), Some((next as u32 - 1) % 7));
        assert_eq!(index_at(next), None);
        write(next, 9);
        assert_eq!(index_at(next), Some(9));
        assert_eq!(index_at(0), None, "overwritten");
    }
}
