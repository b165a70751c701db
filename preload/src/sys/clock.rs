//! Time for the spin policy: a cheap tick counter and its length, and the monotonic clock.

use super::{Sysno, call};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Nanoseconds of CLOCK_MONOTONIC (through the vDSO; this libc function is not hooked).
pub fn now_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// The processor's tick counter; goes up at a constant rate, about the same on all processors.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction exists on every x86-64 processor.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(target_arch = "aarch64")]
    {
        let v: u64;
        // SAFETY: reads the virtual counter, allowed at EL0 on Linux.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) v, options(nomem, nostack)) };
        return v;
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return now_ns();
}

/// Ticks per microsecond times 1024, once known.
static RATE: AtomicU64 = AtomicU64::new(0);
static START_TICKS: AtomicU64 = AtomicU64::new(0);
static START_NS: AtomicU64 = AtomicU64::new(0);

/// Ticks in `us` microseconds.
#[inline]
pub fn ticks_of_us(us: u64) -> u64 {
    let rate = match RATE.load(Relaxed) {
        0 => measure(),
        r => r,
    };
    us * rate / 1024
}

/// Microseconds that `ticks` ticks take, at the nearest.
pub fn us_of_ticks(ticks: u64) -> u64 {
    let rate = ticks_of_us(1024);
    (u128::from(ticks) * 1024 + u128::from(rate / 2)).checked_div(u128::from(rate)).unwrap_or(0) as u64
}

/// Derives the rate from two readings at least 100 us apart; waits for that at the first use only.
#[cold]
fn measure() -> u64 {
    if START_NS.load(Relaxed) == 0 {
        begin(now_ns);
    }
    let (t0, n0) = (START_TICKS.load(Relaxed), START_NS.load(Relaxed));
    loop {
        let (t, n) = both(now_ns);
        if n.saturating_sub(n0) >= 100_000 {
            let rate = (t.wrapping_sub(t0) as u128 * 1024 * 1000 / u128::from(n - n0)) as u64;
            let rate = rate.max(1);
            RATE.store(rate, Relaxed);
            return rate;
        }
        std::hint::spin_loop();
    }
}

/// Takes the first reading, so that the rate is known without a wait later. A program may have a clock_gettime of its own that is not
/// ready before its own constructors (ThreadSanitizer's), so the kernel is asked.
pub fn start() {
    begin(|| {
        let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let to = std::ptr::from_mut(&mut ts) as usize;
        // SAFETY: the struct is valid.
        let asked = unsafe { call(Sysno::clock_gettime, [libc::CLOCK_MONOTONIC as usize, to, 0, 0, 0, 0]) };
        asked.map_or(0, |_| ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64) // 0: `measure` begins
    });
}

fn begin(now: impl Fn() -> u64) {
    let (ticks, ns) = both(now);
    START_TICKS.store(ticks, Relaxed);
    START_NS.store(ns, Relaxed);
}

/// Both clocks at one moment. A thread that loses its processor between the two would have every time limit of the process wrong by as
/// much as that is longer than what lies between the readings: of some, the one that took least.
fn both(now: impl Fn() -> u64) -> (u64, u64) {
    const TRIES: u32 = 3;
    let reading = |_| {
        let (before, ns) = (ticks(), now());
        (ticks().wrapping_sub(before), before, ns)
    };
    let (_, ticks, ns) = (0..TRIES).map(reading).min().unwrap_or_default();
    (ticks, ns)
}

/// Cheap pseudo-random numbers (xorshift) for back-off and tests; not for secrets.
pub fn mix(state: &AtomicU64) -> u64 {
    let mut x = state.load(Relaxed) | 1;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    state.store(x, Relaxed);
    x
}

/// Something dear that is tried no more than once in a second after it was in vain.
pub struct Seldom(AtomicU64);

impl Seldom {
    /// It was not yet.
    pub const fn untried() -> Seldom {
        Seldom(AtomicU64::new(0))
    }

    /// Tries, if it is time; false: in vain, or not tried.
    pub fn unless_in_vain(&self, attempt: impl FnOnce() -> bool) -> bool {
        const REST_NS: u64 = 1_000_000_000;
        let now = now_ns();
        let done = now >= self.0.load(Relaxed) && attempt();
        if !done {
            let _ = self.0.fetch_update(Relaxed, Relaxed, |until| (until <= now).then_some(now + REST_NS));
        }
        done
    }
}

/// A time of the kernel's.
pub fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A thread that is away between the two clocks, twice.
    #[test]
    fn who_loses_its_processor_reads_both_clocks_again() {
        let n = Cell::new(0);
        let late = || {
            n.set(n.get() + 1);
            if n.get() < 3 {
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
            now_ns()
        };
        let (t, ns) = both(late);
        let (t1, n1) = both(now_ns);
        let (by_ticks, by_ns) = (us_of_ticks(t1 - t), (n1 - ns) / 1000);
        assert!(by_ticks.abs_diff(by_ns) < 100_000, "{by_ticks} us, {by_ns} us");
    }
}
