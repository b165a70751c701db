//! Copying into and out of a ring, by position; and what a claimed cursor may be.
//!
//! Positions are bytes ever moved (u64, never wrap); the offset in the ring is the position less the
//! base, modulo the size. Every offset is masked, so no claim of a peer leads outside the ring.

use super::copy::{MUCH, copy, copy_past_caches};
use crate::fault::{self, Step as Fault};
use smcr_proto::cursor;

/// Ring memory in effect: start, size and the position of offset 0.
#[derive(Clone, Copy)]
pub struct Ring {
    start: *mut u8,
    size: usize,
    base: u64,
    streams: bool,
}

impl Ring {
    /// A ring of `size` bytes (a power of two) at `start`.
    ///
    /// # Safety
    /// There must be so many bytes of a live region (up to RING_MAX, or a wide ring), for as long as the
    /// value is used.
    #[inline]
    pub unsafe fn new(start: *mut u8, size: usize, base: u64) -> Ring {
        Ring { start, size, base, streams: false }
    }

    /// The same, for writing large amounts past the caches.
    pub fn streamed(self, streams: bool) -> Ring {
        Ring { streams, ..self }
    }

    /// Whether large amounts are to be written past the caches.
    pub fn is_streamed(&self) -> bool {
        self.streams
    }

    /// The piece from `pos` on that is contiguous, at most `want` bytes.
    #[inline(always)]
    pub fn piece(&self, pos: u64, want: usize) -> (*mut u8, usize) {
        let off = cursor::offset(pos, self.base, self.size);
        // SAFETY: `off` is below `size`.
        (unsafe { self.start.add(off) }, want.min(self.size - off))
    }

    /// Copies `n` bytes from `src` into the ring at `pos`; `n` is at most the size.
    ///
    /// # Safety
    /// `src` must be valid for reads of `n` bytes.
    #[inline(always)]
    pub unsafe fn put(&self, pos: u64, src: *const u8, n: usize) {
        debug_assert!(n <= self.size);
        let (p, first) = self.piece(pos, n);
        let copy = if self.streams && n >= MUCH { copy_past_caches } else { copy };
        // SAFETY: the pieces lie inside the ring; the source is the caller's; they cannot overlap
        // unless the program passes our own mapping, which it does not know.
        unsafe {
            copy(src, p, first);
            fault::pass(Fault::HalfCopied);
            if first < n {
                copy(src.add(first), self.start, n - first);
            }
        }
    }

    /// Copies `n` bytes at `pos` from the ring to `dst`; `n` is at most the size.
    ///
    /// # Safety
    /// `dst` must be valid for writes of `n` bytes.
    #[inline(always)]
    pub unsafe fn get(&self, pos: u64, dst: *mut u8, n: usize) {
        debug_assert!(n <= self.size);
        let (p, first) = self.piece(pos, n);
        // SAFETY: as in `put`.
        unsafe {
            copy(p, dst, first);
            if first < n {
                copy(self.start, dst.add(first), n - first);
            }
        }
    }
}
