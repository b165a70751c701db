//! Memory through which a file goes on its way into a ring that is written past the caches: the kernel can't be told to store so.
//!
//! Eight pieces of 64 KiB, which stay in the borrower's own cache, and of which nothing is touched that nobody borrows. Nobody waits
//! for one: who finds its processor's taken (by another thread, by the call that a handler interrupted, for good by one that was left by a
//! jump, or whose thread the parent had when this process was forked) reads straight into the ring. [`super::file`] calls it.

use super::spin;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// As much as goes through at once.
pub const SIZE: usize = 64 << 10;
const PIECES: usize = 8;

struct Piece {
    taken: AtomicBool,
    bytes: UnsafeCell<[u8; SIZE]>,
}

// SAFETY: the bytes are touched by whoever has changed `taken` from false to true alone.
unsafe impl Sync for Piece {}

static PIECE: [Piece; PIECES] = [const { Piece::new() }; PIECES];

/// A piece, until it is dropped.
pub struct Borrowed(&'static Piece);

/// The piece of this processor, if it is free.
pub fn borrow() -> Option<Borrowed> {
    PIECE[spin::cpu() as usize % PIECES].borrow()
}

impl Piece {
    const fn new() -> Self {
        Piece { taken: AtomicBool::new(false), bytes: UnsafeCell::new([0; SIZE]) }
    }

    fn borrow(&'static self) -> Option<Borrowed> {
        // Acquire pairs with the Release of the one before. `then`: one that is made in vain gives back, when it goes, what another has.
        (!self.taken.swap(true, Acquire)).then(|| Borrowed(self))
    }
}

impl Borrowed {
    pub fn bytes(&mut self) -> *mut u8 {
        self.0.bytes.get().cast()
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.0.taken.store(false, Release); // pairs with the Acquire in `borrow`
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_borrower_at_a_time() {
        static ONE: Piece = Piece::new();
        let first = ONE.borrow();
        assert!(first.is_some());
        // Nor does who asks in vain give it back for the next one.
        assert!((0..3).all(|_| ONE.borrow().is_none()));
        drop(first);
        assert!(ONE.borrow().is_some());
    }
}
