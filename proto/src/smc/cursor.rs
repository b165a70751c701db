//! Ring cursors as CDC messages carry them, and the check of what a peer claims.
//!
//! A cursor names a byte of the stream: `count` is the offset in the ring (0..size), `wrap` counts
//! how often the ring was passed, modulo 65536 (RFC 7609 appendix A.4, Linux `net/smc/smc_cdc.h`). The
//! connection keeps plain 64-bit positions and turns them into cursors here.

use super::list::List;

/// A cursor on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// How often the ring was passed, modulo 65536.
    pub wrap: u16,
    /// Offset in the ring, in bytes.
    pub count: u32,
}

/// What a peer's cursor means against the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It moved forward by this many bytes, perhaps 0.
    Forward(u32),
    /// It is older than the one before; to be ignored, as Linux does.
    Stale,
}

/// A cursor that no honest peer can send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CursorError {
    /// `count` is not inside the ring.
    OutsideRing,
    /// It passes what was free (a producer) or what was produced (a consumer).
    BeyondLimit,
}

/// A run of bytes inside a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// Offset from the start of the ring, in bytes.
    pub offset: u32,
    /// Length in bytes, not 0.
    pub len: u32,
}

/// At most two segments: a run of the stream is cut where the ring ends.
pub type Segments = List<Segment, 2>;

impl Cursor {
    /// The start of the stream.
    pub const ZERO: Cursor = Cursor { wrap: 0, count: 0 };

    /// The cursor of the byte at `position` (bytes from the start of the stream) in a ring of
    /// `size` bytes.
    pub const fn at(position: u64, size: u32) -> Cursor {
        let size = size as u64;
        Cursor { wrap: (position / size) as u16, count: (position % size) as u32 }
    }

    /// The cursor `bytes` further on.
    #[must_use]
    pub const fn add(self, bytes: u32, size: u32) -> Cursor {
        let count = self.count as u64 + bytes as u64;
        let wraps = (count / size as u64) as u16;
        Cursor { wrap: self.wrap.wrapping_add(wraps), count: (count % size as u64) as u32 }
    }

    /// Bytes from `self` forward to `later`, modulo 65536 rings. Both counts lie inside the ring.
    pub const fn distance(self, later: Cursor, size: u32) -> u64 {
        let size = size as u64;
        let period = size << 16;
        let from = self.wrap as u64 * size + self.count as u64;
        let to = later.wrap as u64 * size + later.count as u64;
        (to + period - from) % period
    }

    /// Bytes the writer may still write with `self` as producer and `consumer` as consumer cursor.
    pub const fn space(self, consumer: Cursor, size: u32) -> u32 {
        (size as u64).saturating_sub(consumer.distance(self, size)) as u32
    }

    /// Judges the cursor `claimed` by a peer, which was at `self` before and may have moved by
    /// `limit` bytes at most (`limit` <= `size`).
    pub const fn step(self, claimed: Cursor, limit: u32, size: u32) -> Result<Step, CursorError> {
        if claimed.count >= size {
            return Err(CursorError::OutsideRing);
        }
        let forward = self.distance(claimed, size);
        if forward <= limit as u64 {
            return Ok(Step::Forward(forward as u32));
        }
        // Older values lie less than the whole numbering behind; half of it tells old from new.
        if claimed.distance(self, size) < (size as u64) << 15 {
            return Ok(Step::Stale);
        }
        Err(CursorError::BeyondLimit)
    }
}

/// Where `len` bytes from stream position `position` on lie in a ring of `size` bytes; `len` is not
/// more than `size`.
pub fn segments(position: u64, len: u32, size: u32) -> Segments {
    let mut out = Segments::new();
    let offset = Cursor::at(position, size).count;
    let first = len.min(size - offset);
    for segment in [Segment { offset, len: first }, Segment { offset: 0, len: len - first }] {
        if segment.len > 0 {
            out.push(segment);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 16 << 10;

    #[test]
    fn a_full_ring_is_equal_counts_and_different_wraps() {
        let producer = Cursor::ZERO.add(SIZE, SIZE);
        assert_eq!(producer, Cursor { wrap: 1, count: 0 });
        assert_eq!(producer.space(Cursor::ZERO, SIZE), 0);
        assert_eq!(Cursor::ZERO.space(Cursor::ZERO, SIZE), SIZE);
    }

    #[test]
    fn wraps_pass_65536() {
        let old = Cursor { wrap: u16::MAX, count: SIZE - 1 };
        let new = old.add(2, SIZE);
        assert_eq!(new, Cursor { wrap: 0, count: 1 });
        assert_eq!(old.step(new, 2, SIZE), Ok(Step::Forward(2)));
        assert_eq!(new.step(old, SIZE, SIZE), Ok(Step::Stale));
    }

    #[test]
    fn what_lies_beyond_is_refused() {
        let at = Cursor { wrap: 3, count: 100 };
        assert_eq!(at.step(Cursor { wrap: 3, count: SIZE }, 50, SIZE), Err(CursorError::OutsideRing));
        assert_eq!(at.step(Cursor { wrap: 3, count: 151 }, 50, SIZE), Err(CursorError::BeyondLimit));
        assert_eq!(at.step(Cursor { wrap: 3, count: 150 }, 50, SIZE), Ok(Step::Forward(50)));
        assert_eq!(at.step(Cursor { wrap: 4, count: 101 }, SIZE, SIZE), Err(CursorError::BeyondLimit));
        assert_eq!(at.step(Cursor { wrap: 3, count: 99 }, SIZE, SIZE), Ok(Step::Stale));
        let rings = |wrap| at.step(Cursor { wrap, count: 5 }, SIZE, SIZE);
        assert_eq!((rings(1), rings(6)), (Ok(Step::Stale), Err(CursorError::BeyondLimit)));
        assert_eq!(at.step(at, 0, SIZE), Ok(Step::Forward(0)));
    }

    #[test]
    fn a_run_over_the_end_is_two_segments() {
        let cut = segments(2 * SIZE as u64 - 10, 30, SIZE);
        assert_eq!(*cut, [Segment { offset: SIZE - 10, len: 10 }, Segment { offset: 0, len: 20 }]);
        assert_eq!(*segments(5, 0, SIZE), []);
        assert_eq!(*segments(SIZE as u64, SIZE, SIZE), [Segment { offset: 0, len: SIZE }]);
    }
}
