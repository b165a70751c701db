//! Cursor arithmetic of the shared-memory rings, and the check of what the other end claims.
//!
//! A cursor counts the bytes ever moved (u64; at 100 GB/s it lasts six years). Both functions that
//! take a claim return `None` when no honest peer can have made it: the connection is then reset.

/// Offset in a ring of `size` bytes (a power of two) of position `pos`, when `base` is at offset 0.
#[inline]
pub const fn offset(pos: u64, base: u64, size: usize) -> usize {
    (pos.wrapping_sub(base) as usize) & (size - 1)
}

/// Bytes to read when the producer claims `head`: never more than the ring holds, never backwards.
#[inline]
pub const fn readable(head: u64, tail: u64, size: usize) -> Option<usize> {
    let n = head.wrapping_sub(tail);
    if n <= size as u64 { Some(n as usize) } else { None }
}

/// Free bytes when the consumer claims `tail`: it can't be ahead of what was put in nor further back
/// than the ring is long.
#[inline]
pub const fn writable(head: u64, tail: u64, size: usize) -> Option<usize> {
    match readable(head, tail, size) {
        Some(n) => Some(size - n),
        None => None,
    }
}

/// Space at which a waiting producer is woken: a quarter of the ring.
#[inline]
pub const fn wake_space(size: usize) -> usize {
    size / 4
}

/// Distance of the positions at which a consumer makes sure that it sees a waiting producer. One lies in
/// whatever is unread while the producer waits: more than three quarters of the ring, or 4 KiB of a larger
/// ring where the program has limited its buffer.
#[inline]
pub const fn wake_step(size: usize) -> u64 {
    const LEAST: usize = 4096;
    let part = size / 16;
    (if part < LEAST { part } else { LEAST }) as u64
}

/// Whether a multiple of `step` (a power of two) lies behind `before` and not behind `now`.
#[inline]
pub const fn has_passed(before: u64, now: u64, step: u64) -> bool {
    (before ^ now) & !(step - 1) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_beyond_the_ring_is_refused() {
        assert_eq!(readable(10, 0, 8), None);
        assert_eq!(readable(0, 1, 8), None);
        assert_eq!(readable(8, 0, 8), Some(8));
        assert_eq!(writable(8, 0, 8), Some(0));
        assert_eq!(writable(8, 9, 8), None);
    }

    #[test]
    fn a_position_to_look_at_lies_in_what_is_unread() {
        for shift in 12..=18 {
            let size = 1usize << shift;
            let step = wake_step(size);
            for tail in [0, 1, step - 1, step, 3 * step + 5] {
                assert!(has_passed(tail, tail + (size - wake_space(size)) as u64, step), "{size} {tail}");
                assert!(has_passed(tail, tail + 4096, step), "{size} {tail}");
            }
            assert!(!has_passed(step, 2 * step - 1, step));
        }
    }

    #[test]
    fn offsets_stay_inside() {
        for pos in [0u64, 1, 7, 8, 9, u64::MAX] {
            for base in [0u64, 3, u64::MAX] {
                assert!(offset(pos, base, 8) < 8);
            }
        }
        assert_eq!(offset(11, 3, 8), 0);
    }
}
