//! Copying into and out of a ring, by position; and what a claimed cursor may be.
//!
//! Positions are bytes ever moved (u64, never wrap); the offset in the ring is the position less the
//! base, modulo the size. Every offset is masked, so no claim of a peer leads outside the ring.

use crate::fault::{self, Step as Fault};
use crate::sys::mem;
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
        let copy = if self.streams && n >= BY_LINES { copy_past_caches } else { copy };
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

/// 16 bytes in one register.
#[cfg(target_arch = "x86_64")]
type Wide = core::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Wide = u128;

/// From so many bytes on libc copies by `rep movsb`, and lines that were stored so come to another processor a third more
/// slowly (docs/decisions/12-copies.md).
const BY_LINES: usize = if cfg!(target_arch = "x86_64") { 4096 } else { usize::MAX };

/// Copies `n` bytes: up to 64 in place, in halves that may overlap; much of it line by line; the rest by libc.
///
/// # Safety
/// Both valid for `n` bytes, not overlapping.
#[inline(always)]
unsafe fn copy(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: each case moves bytes below `n` only.
    unsafe {
        match n {
            33..=64 => {
                let (from, to) = (src.cast::<Wide>(), dst.cast::<Wide>());
                let (from_end, to_end) = (src.add(n).cast::<Wide>(), dst.add(n).cast::<Wide>());
                let (a, b) = (from.read_unaligned(), from.add(1).read_unaligned());
                let (y, z) = (from_end.sub(2).read_unaligned(), from_end.sub(1).read_unaligned());
                to.write_unaligned(a);
                to.add(1).write_unaligned(b);
                to_end.sub(2).write_unaligned(y);
                to_end.sub(1).write_unaligned(z);
            }
            16..=32 => ends::<Wide>(src, dst, n),
            8..=15 => ends::<u64>(src, dst, n),
            4..=7 => ends::<u32>(src, dst, n),
            2..=3 => ends::<u16>(src, dst, n),
            1 => *dst = *src,
            BY_LINES.. => copy_lines(src, dst, n),
            _ => std::ptr::copy_nonoverlapping(src, dst, n),
        }
    }
}

/// Copies `n` bytes line by line, with those asked for that come next but seven.
///
/// # Safety
/// As for [`copy`].
#[inline(never)]
unsafe fn copy_lines(src: *const u8, dst: *mut u8, n: usize) {
    const LINE: usize = 64;
    let whole = n - n % LINE;
    for at in (0..whole).step_by(LINE) {
        // SAFETY: a line below `n`; what is asked for ahead is not read.
        unsafe {
            let (from, to) = (src.add(at).cast::<Wide>(), dst.add(at).cast::<Wide>());
            mem::fetch(src.wrapping_add(at + 8 * LINE));
            let line = [0, 1, 2, 3].map(|i| from.add(i).read_unaligned());
            for (i, part) in line.into_iter().enumerate() {
                to.add(i).write_unaligned(part);
            }
        }
    }
    // SAFETY: what is left.
    unsafe { std::ptr::copy_nonoverlapping(src.add(whole), dst.add(whole), n - whole) };
}

/// Copies `n` bytes with stores that go to memory and leave the lines in no cache. All of them are visible before any store that follows.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn copy_past_caches(src: *const u8, dst: *mut u8, n: usize) {
    use core::arch::x86_64::{_mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    let head = dst.align_offset(LINE).min(n);
    let lines = (n - head) / LINE * LINE;
    // SAFETY: three parts below `n`, one behind the other; the stores of the second are aligned.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, head);
        for at in (head..head + lines).step_by(LINE) {
            let (from, to) = (src.add(at).cast::<Wide>(), dst.add(at).cast::<Wide>());
            let line = [0, 1, 2, 3].map(|i| from.add(i).read_unaligned());
            for (i, part) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), part);
            }
        }
        _mm_sfence(); // these stores are ordered by nothing else, not by the Release of the cursor either
        let rest = head + lines;
        std::ptr::copy_nonoverlapping(src.add(rest), dst.add(rest), n - rest);
    }
}

#[cfg(not(target_arch = "x86_64"))]
use copy as copy_past_caches;

/// Copies the first and the last bytes of `n`, a `T` each.
///
/// # Safety
/// As for [`copy`]; `n` lies between the size of `T` and twice that.
#[inline(always)]
unsafe fn ends<T: Copy>(src: *const u8, dst: *mut u8, n: usize) {
    let last = n - size_of::<T>();
    // SAFETY: by the contract.
    unsafe {
        let (a, z) = (src.cast::<T>().read_unaligned(), src.add(last).cast::<T>().read_unaligned());
        dst.cast::<T>().write_unaligned(a);
        dst.add(last).cast::<T>().write_unaligned(z);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_exactly_what_is_asked() {
        const MOST: usize = 9000;
        let from: Vec<u8> = (0..MOST + 2).map(|i| (i * 7 + i / 251) as u8).collect();
        for copy in [copy, copy_past_caches] {
            for n in (0..150).chain(4090..4230).chain([8191, 8192, MOST]) {
                let mut to = vec![0xff_u8; MOST + 2];
                // SAFETY: both are longer than `n + 1`.
                unsafe { copy(from.as_ptr().add(1), to.as_mut_ptr().add(1), n) };
                assert_eq!(to[1..=n], from[1..=n], "{n}");
                assert!(to[0] == 0xff && to[n + 1..].iter().all(|b| *b == 0xff), "{n}");
            }
        }
    }
}
