//! What the copies of large amounts into a ring cost, and what follows from it. Values only: [`super::bulk`] measures and acts.
//!
//! Three kinds of neighbours: processors that share a cache closely (copies are fast in any ring), those of one third cache (slow
//! in a small ring, fast in a wide one), and those of two (a crawl in any ring; there it is better to write past the caches).
//! Programs and virtual processors move, so what was learned is learned again after a GiB (docs/decisions/12-copies.md).

/// How fast a part was copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speed {
    /// As fast as from its own cache.
    Fast,
    /// Below 16 GB/s.
    Slow,
    /// Below 4 GB/s.
    Crawl,
}

impl Speed {
    /// Of `bytes` in `ticks`, of which a millisecond has `per_ms`.
    #[inline]
    pub fn of(bytes: usize, ticks: u64, per_ms: u64) -> Speed {
        const SLOW: u64 = 16_000_000; // bytes per ms
        const CRAWL: u64 = 4_000_000;
        let done = bytes as u64 * per_ms;
        match ticks {
            t if t * SLOW <= done => Speed::Fast,
            t if t * CRAWL <= done => Speed::Slow,
            _ => Speed::Crawl,
        }
    }
}

/// Where the bytes of a part come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The program's memory: what it took is the ring's doing.
    Memory,
    /// A file: what it took is the kernel's doing, as long as it isn't a crawl.
    File,
    /// A file that crawls by itself: it may come from a disk.
    SlowFile,
    /// A pipe: it tells nothing.
    Pipe,
}

/// What has been learned, in one word; 0 at first.
///
/// Bits 30 and 31 are the [`Mode`]. Below them, while it learns: parts of 16 KiB to pass before it does, slow ones in a row, crawls in
/// a row, a byte each; else the parts that are left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pace(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// The ring; learns.
    Ring,
    /// The wide ring; learns.
    Wide,
    /// The ring, written past the caches.
    Stream,
    /// The ring, for the wide one is no better.
    Stay,
}

/// So many parts in a row are alike before anything follows.
const ALIKE: u32 = 16;
/// The first sweep over a wide ring finds no pages: two sweeps of it, nearly, in parts of 16 KiB.
const SWEEPS: u32 = 255;
const SMALLEST: usize = 16 << 10;
/// Bytes after which it learns anew.
const LASTS: usize = 1 << 30;
/// Bytes of what is counted down.
const UNIT: usize = 64 << 10;

impl Pace {
    /// After a part of `bytes` of some kind.
    #[inline]
    pub fn after_part(self, kind: Kind, speed: Speed, bytes: usize, is_wide: bool) -> Pace {
        match (kind, speed) {
            (Kind::Pipe, _) => self,
            // It was no better past the caches.
            (Kind::SlowFile, _) if self.is_stream() => Pace(0),
            // A system call may well be that slow where the ring is not.
            (Kind::File | Kind::SlowFile, Speed::Slow) => self.after(Speed::Fast, bytes, is_wide),
            _ => self.after(speed, bytes, is_wide),
        }
    }

    /// After a part of `bytes`. `is_wide`: it went into the wide ring.
    #[inline]
    pub fn after(self, speed: Speed, bytes: usize, is_wide: bool) -> Pace {
        match self.mode() {
            Mode::Ring if speed == Speed::Fast => Pace(0),
            Mode::Wide if speed == Speed::Fast && self.0 & 0xffff == 0 => self.passed(bytes, is_wide),
            Mode::Ring | Mode::Wide => self.learn(speed, bytes, is_wide),
            Mode::Stream | Mode::Stay => {
                let left = (self.0 & COUNT).saturating_sub(bytes.div_ceil(UNIT) as u32);
                if left == 0 { Pace(0) } else { Pace::new(self.mode(), left) }
            }
        }
    }

    /// Whether the wide ring is the better one.
    #[inline]
    pub fn is_for_wide(self) -> bool {
        self.mode() == Mode::Wide
    }

    /// Whether the next part is to be written past the caches.
    #[inline]
    pub fn is_stream(self) -> bool {
        self.mode() == Mode::Stream
    }

    fn learn(self, speed: Speed, bytes: usize, is_wide: bool) -> Pace {
        let passed = self.passed(bytes, is_wide);
        let (grace, slow, crawl) = (passed.0 >> 16 & 0xff, passed.0 >> 8 & 0xff, passed.0 & 0xff);
        let crawl = if speed == Speed::Crawl { crawl + 1 } else { 0 };
        // What the ring still costs while the wide one is waited for says nothing about that.
        let counts = speed != Speed::Fast && (self.mode() == Mode::Ring || is_wide && grace == 0);
        let slow = if counts { slow + 1 } else { 0 };
        if crawl >= ALIKE && (grace == 0 || !is_wide) {
            return Pace::new(Mode::Stream, (LASTS / UNIT) as u32);
        }
        match self.mode() {
            Mode::Ring if slow >= ALIKE && crawl == 0 => Pace::new(Mode::Wide, SWEEPS << 16),
            Mode::Wide if slow >= ALIKE && crawl == 0 => Pace::new(Mode::Stay, (LASTS / UNIT) as u32),
            mode => Pace::new(mode, grace << 16 | slow.min(0xff) << 8 | crawl.min(0xff)),
        }
    }

    fn passed(self, bytes: usize, is_wide: bool) -> Pace {
        let parts = if is_wide { bytes.div_ceil(SMALLEST) as u32 } else { 0 };
        Pace(self.0 - ((self.0 >> 16 & 0xff).min(parts) << 16))
    }

    fn new(mode: Mode, rest: u32) -> Pace {
        Pace((mode as u32) << 30 | rest)
    }

    fn mode(self) -> Mode {
        match self.0 >> 30 {
            0 => Mode::Ring,
            1 => Mode::Wide,
            2 => Mode::Stream,
            _ => Mode::Stay,
        }
    }
}

const COUNT: u32 = (1 << 30) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mut pace: Pace, speed: Speed, parts: u32, is_wide: bool) -> Pace {
        for _ in 0..parts {
            pace = pace.after(speed, UNIT, is_wide);
        }
        pace
    }

    #[test]
    fn speeds_are_told_apart() {
        assert_eq!(Speed::of(64 << 10, 2_000, 2_600_000), Speed::Fast);
        assert_eq!(Speed::of(64 << 10, 20_000, 2_600_000), Speed::Slow);
        assert_eq!(Speed::of(64 << 10, 80_000, 2_600_000), Speed::Crawl);
    }

    #[test]
    fn a_ring_that_is_slow_all_the_time_becomes_wide() {
        let almost = run(Pace(0), Speed::Slow, ALIKE - 1, false);
        assert!(!almost.is_for_wide());
        assert_eq!(almost.after(Speed::Fast, UNIT, false), Pace(0));
        let wide = run(Pace(0), Speed::Slow, ALIKE, false);
        assert!(wide.is_for_wide() && !wide.is_stream());
        // While the other end is asked, and while pages are made, slow parts do not count.
        let asked = run(wide, Speed::Slow, 1000, false);
        assert!(asked.is_for_wide());
        let made = run(asked, Speed::Slow, SWEEPS * SMALLEST as u32 / UNIT as u32, true);
        assert!(run(made, Speed::Fast, 100_000, true).is_for_wide());
        // One that is no better is left for a GiB.
        let left = run(made, Speed::Slow, ALIKE, true);
        assert!(!left.is_for_wide() && !left.is_stream() && left != Pace(0));
        assert_eq!(run(left, Speed::Slow, (LASTS / UNIT) as u32, false), Pace(0));
    }

    #[test]
    fn a_crawl_is_written_past_the_caches() {
        let crawl = run(Pace(0), Speed::Crawl, ALIKE, false);
        assert!(crawl.is_stream());
        assert!(run(crawl, Speed::Fast, (LASTS / UNIT) as u32 - 1, false).is_stream());
        assert_eq!(run(crawl, Speed::Fast, (LASTS / UNIT) as u32, false), Pace(0));
        // One of many is somebody else on the processor.
        let mut now = Pace(0);
        for _ in 0..100 {
            now = run(now, Speed::Crawl, ALIKE - 1, false).after(Speed::Fast, UNIT, false);
        }
        assert_eq!(now, Pace(0));
        let wide = run(run(Pace(0), Speed::Slow, ALIKE, false), Speed::Fast, SWEEPS, true);
        assert!(run(wide, Speed::Crawl, ALIKE, true).is_stream());
    }

    #[test]
    fn a_file_says_less_than_memory_does() {
        let parts = |mut pace: Pace, kind, speed, n| {
            for _ in 0..n {
                pace = pace.after_part(kind, speed, UNIT, false);
            }
            pace
        };
        assert_eq!(parts(Pace(0), Kind::Pipe, Speed::Crawl, 100), Pace(0));
        assert_eq!(parts(Pace(0), Kind::File, Speed::Slow, 100), Pace(0));
        let crawl = parts(Pace(0), Kind::File, Speed::Crawl, ALIKE);
        assert!(crawl.is_stream());
        // One that comes from a disk is not held up by the ring: it goes straight there again.
        assert!(parts(crawl, Kind::File, Speed::Crawl, 100).is_stream());
        assert_eq!(parts(crawl, Kind::SlowFile, Speed::Crawl, 1), Pace(0));
    }
}
