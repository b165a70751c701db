//! How long to poll before sleeping: the spin policy (docs/performance.md has the measurements).
//!
//! A wake across processors costs 17-25 us, an exchange between two that poll 0.2 us, so a wait polls
//! first. What bounds it:
//! - the budget of the direction, between 0 and the limit (50 us unless set): it doubles when polling
//!   paid, or when the sleep that followed was over within 1.5 limits; else it halves, down to 0;
//! - the limit itself exceeds the round trip of a wake, or two sleepers never find back to polling;
//! - on the processor of the peer polling is useless: yield instead, and when a yield comes back only
//!   after 100 us (somebody else computes), stop yielding for 2 ms, doubling up to 1 s;
//! - two looks at the clock more than 250 us apart mean that this thread was preempted: processors
//!   are scarce (busy neighbours, a CPU quota), so no polling for 2 ms, doubling up to 128 ms.
//!
//! So an idle connection costs one budget and then nothing, and a wasted budget at most 1/20 of a
//! TCP wake's cost each time until it reaches 0.

use crate::config;
use crate::family::process::count;
use crate::sys::{clock, proc};
use smcr_proto::page::Counter;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

/// Yields per wait: where the peer is the only other thread of the processor one is enough; more only
/// burn time when the scheduler prefers a busy neighbour or gives the processor straight back.
const YIELDS: u32 = 3;

thread_local! {
    static NO_SPIN_UNTIL: Cell<u64> = const { Cell::new(0) };
    static NO_SPIN_FOR: Cell<u32> = const { Cell::new(0) };
    static NO_YIELD_UNTIL: Cell<u64> = const { Cell::new(0) };
    static NO_YIELD_FOR: Cell<u32> = const { Cell::new(0) };
}

/// Stored budgets are offset by one, so that a fresh record (0) starts with the whole limit.
fn budget_of(word: &AtomicU32, limit: u64) -> u64 {
    match word.load(Relaxed) {
        0 => limit,
        n => u64::from(n - 1).min(limit),
    }
}

fn set_budget(word: &AtomicU32, ticks: u64) {
    word.store(ticks.min(u64::from(u32::MAX - 1)) as u32 + 1, Relaxed);
}

/// Polls `ready` within the budget; true if it became true. `peer_cpu` is where the other end last
/// ran.
pub fn spin(word: &AtomicU32, peer_cpu: u32, mut ready: impl FnMut() -> bool) -> bool {
    crate::control::poll();
    let limit = clock::ticks_of_us(u64::from(config::spin_us()));
    let budget = budget_of(word, limit);
    if budget == 0 || limit == 0 {
        return false;
    }
    let start = clock::ticks();
    if start < NO_SPIN_UNTIL.get() {
        return false;
    }
    let same_cpu = cpu() == peer_cpu || is_single_cpu();
    let hit = if same_cpu {
        yielding(start, budget, &mut ready)
    } else {
        pausing(start, budget, limit, &mut ready)
    };
    if hit {
        set_budget(word, (budget * 2).min(limit));
        count(Counter::SpinHits, 1);
    } else {
        count(Counter::SpinMisses, 1);
    }
    hit
}

fn pausing(start: u64, budget: u64, limit: u64, ready: &mut impl FnMut() -> bool) -> bool {
    let mut last = start;
    loop {
        for _ in 0..16 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        let now = clock::ticks();
        if now.wrapping_sub(last) > limit.max(clock::ticks_of_us(50)) * 5 {
            back_off(&NO_SPIN_UNTIL, &NO_SPIN_FOR, now, 128_000);
            return ready();
        }
        if now.wrapping_sub(start) > budget {
            calm(&NO_SPIN_FOR);
            return false;
        }
        last = now;
    }
}

fn yielding(start: u64, budget: u64, ready: &mut impl FnMut() -> bool) -> bool {
    if start < NO_YIELD_UNTIL.get() {
        return ready();
    }
    let long = clock::ticks_of_us(100);
    let mut last = start;
    for _ in 0..YIELDS {
        if ready() {
            return true;
        }
        proc::yield_now();
        let now = clock::ticks();
        if ready() {
            calm(&NO_YIELD_FOR);
            return true;
        }
        if now.wrapping_sub(last) > long {
            back_off(&NO_YIELD_UNTIL, &NO_YIELD_FOR, now, 1_000_000);
            return false;
        }
        if now.wrapping_sub(start) > budget {
            return false;
        }
        last = now;
    }
    // The scheduler gave the processor to somebody else, or straight back.
    back_off(&NO_YIELD_UNTIL, &NO_YIELD_FOR, last, 64_000);
    false
}

fn back_off(
    until: &'static std::thread::LocalKey<Cell<u64>>,
    length: &'static std::thread::LocalKey<Cell<u32>>,
    now: u64,
    most_us: u32,
) {
    let us = (length.get().max(1000) * 2).min(most_us);
    length.set(us);
    until.set(now + clock::ticks_of_us(u64::from(us)));
}

fn calm(length: &'static std::thread::LocalKey<Cell<u32>>) {
    length.set(length.get() / 2);
}

/// After a sleep that began when polling had failed: a short one says that a little more polling
/// would have paid.
pub fn slept(word: &AtomicU32, since: u64) {
    let limit = clock::ticks_of_us(u64::from(config::spin_us()));
    let took = clock::ticks().wrapping_sub(since);
    let budget = budget_of(word, limit);
    if took < limit + limit / 2 {
        set_budget(word, (budget * 2).clamp(limit / 16, limit));
    } else if budget < limit / 32 {
        set_budget(word, 0);
    } else {
        set_budget(word, budget / 2);
    }
}

/// Number of the processor this thread runs on (rseq where glibc registered it, else the vDSO).
#[inline]
pub fn cpu() -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let off = RSEQ.load(Relaxed);
        if off > 1 {
            let id: u32;
            // SAFETY: glibc's __rseq_offset names the registered struct rseq of this thread,
            // relative to the thread pointer; cpu_id_start lies at its beginning.
            unsafe {
                core::arch::asm!("mov {0:e}, dword ptr fs:[{1}]", out(reg) id, in(reg) off - 2,
                    options(nostack, readonly, preserves_flags));
            }
            return id;
        }
    }
    // SAFETY: no arguments.
    unsafe { libc::sched_getcpu() as u32 }
}

/// 0 unknown, 1 none, else offset + 2.
static RSEQ: AtomicUsize = AtomicUsize::new(0);
static CPUS: AtomicU32 = AtomicU32::new(0);

/// Looks up what `cpu` needs; called by the constructor.
pub fn start() {
    // SAFETY: dlsym with a NUL-terminated name; the symbols are constants of glibc (2.35 and later).
    unsafe {
        let off = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
        let there = !off.is_null() && !size.is_null() && *size >= 20;
        RSEQ.store(if there { (*off as usize).wrapping_add(2) } else { 1 }, Relaxed);
    }
}

fn is_single_cpu() -> bool {
    match CPUS.load(Relaxed) {
        0 => {
            // Online processors, not this process's affinity: two ends pinned to one each have two.
            // SAFETY: a constant argument.
            let n = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u32;
            CPUS.store(n, Relaxed);
            n == 1
        }
        n => n == 1,
    }
}
