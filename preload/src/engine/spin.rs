//! How long to poll before sleeping: the spin policy. docs/decisions/10 (two ends that poll) and 11 (more
//! threads than processors) have the measurements and what else was tried; used by every wait of the engine.
//!
//! A wake across processors costs 17-25 us, an exchange between two that poll 0.2 us, so a wait polls
//! first. What bounds it:
//! - the budget of the direction, between 0 and the limit (50 us unless set): [`super::budget`];
//! - the limit itself exceeds the round trip of a wake, or two sleepers never find back to polling;
//! - on the processor of the peer polling is useless: yield instead, and when a yield comes back only
//!   after 100 us (somebody else computes) or several did not let the peer run, sleep instead;
//! - on another processor pause, and yield after 4 us: who else wants this processor gets it instead of
//!   waiting for a poll that may be in vain. While others do, yield at each look, which is cheaper than to
//!   sleep and be woken. A yield that comes straight back says that nobody does: the next one is twice as
//!   long off, up to 10 ms, until a preemption says otherwise. And where a yield takes long (a tracer makes
//!   10 us of it) the first one waits longer than that, or each end's yields would be the other's cause;
//!   but where others worked for 20 to 100 us in it, the next wait begins with a yield: what they do may be what
//!   this thread waits for (the servers of one client), and to poll first would take that time from them;
//! - a yield that comes back after more than 100 us is not repeated for 20 times as long, or just as long where it
//!   came back with what was waited for: then it has cost no more than a sleep would have;
//! - two looks at the clock more than 250 us apart (five limits, where the limit is larger) mean that this
//!   thread was preempted: processors are scarce, so sleep instead;
//! - "instead" lasts 20 times as long as what was lost, so an attempt that fails costs at most 5 %; but no
//!   more than 128 ms without polling and 1 s without yielding, or one long absence would turn a thread to
//!   sleeping for good. Beyond the caps (6.4 ms and 50 ms lost) others had the processor, not this thread.
//!
//! A limit of processor time (a cgroup's cpu.max, a quota of the host) is not read anywhere: it may be set
//! at any level above the process, and change. It is noticed by what it does: a thread that polls while the
//! quota ends is absent for the rest of the period, most often tens of ms of 100, and does not poll in the
//! 128 ms that follow, which is longer than a period (docs/performance.md, "in a cgroup with 20 %").
//!
//! So an idle connection costs one budget and then nothing, and a wasted budget at most 1/20 of a
//! TCP wake's cost each time until it reaches 0.

use super::budget::{budget_of, paid, set_budget};
use super::kept;
use crate::config;
use crate::family::process::count;
use crate::sys::thread::{self, Thread};
use crate::sys::{clock, proc, processor};
use smcr_proto::page::Counter;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

/// Yields per wait: where the peer is the only other thread of the processor one is enough; more only
/// burn time when the scheduler prefers a busy neighbour or gives the processor straight back.
const YIELDS: u32 = 3;

/// Where the peer is on another processor: time of polling after which others that may want this one get
/// it, and the time from one such question to the next while there are none, the least and the most.
const ALONE_US: u64 = 4;
const ASK_US: (u64, u64) = (10, 10_000);
/// A yield this long was somebody's work: the next wait begins with one, instead of ending with it.
const WORK_US: u64 = 20;
/// Two looks at the clock this far apart: somebody else had the processor.
const ABSENT_US: u64 = 50;
/// "Instead" in multiples of what was lost, and the most of it without polling and without yielding.
const REST: u64 = 20;
const REST_POLL_US: u64 = 128_000;
const REST_YIELD_US: u64 = 1_000_000;

/// Waits ended by polling are counted in the thread's block and handed over in such lots.
const LOT: u32 = 256;

/// Polls `ready` within the budget; true if it became true. `peer_cpu` is where the other end last
/// ran.
#[inline(always)]
pub fn spin(word: &AtomicU32, peer_cpu: u32, mut ready: impl FnMut() -> bool) -> bool {
    crate::control::poll();
    let limit = clock::ticks_of_us(u64::from(config::spin_us()));
    let budget = budget_of(word, limit);
    if budget == 0 || limit == 0 {
        return false;
    }
    let (start, t) = (clock::ticks(), thread::here());
    if start < t.no_spin_until.get() {
        return false;
    }
    renew_cpu(t);
    // Counted before it has come, when there is time for it.
    if t.hits.get() >= LOT {
        hand_over(t);
    }
    t.hits.set(t.hits.get() + 1);
    let same_cpu = cpu() == peer_cpu || is_single_cpu();
    kept::before_polling(t, same_cpu);
    let hit = if same_cpu { yielding(t, start, budget, &mut ready) } else { pausing(t, start, budget, limit, &mut ready) };
    if !hit {
        missed(t, start);
        return false;
    }
    if budget < limit {
        set_budget(word, paid(budget, limit));
    }
    true
}

#[cold]
fn missed(t: &Thread, start: u64) {
    t.missed.set(start);
    t.hits.set(t.hits.get().saturating_sub(1));
    hand_over(t);
    count(Counter::SpinMisses, 1);
}

/// The thread ends: what it has not handed over yet.
pub fn tell() {
    thread::with(hand_over);
}

/// Adds the thread's hits and polling time to the process's counters.
#[cold]
fn hand_over(t: &Thread) {
    match t.hits.replace(0) {
        0 => {}
        n => count(Counter::SpinHits, i64::from(n)),
    }
    match clock::us_of_ticks(t.spent.replace(0)) {
        0 => {}
        n => count(Counter::SpinTime, n as i64),
    }
}

#[inline(always)]
fn pausing(t: &Thread, start: u64, budget: u64, limit: u64, ready: &mut impl FnMut() -> bool) -> bool {
    let mut start = start;
    let mut last = start;
    let took = t.yield_took.get();
    let mut next_yield = (start + alone(t.ask_gap.get() == 0, took)).max(t.ask_at.get());
    let mut looks = 16;
    loop {
        for _ in 0..looks {
            if ready() {
                if last != start {
                    note(t, start, last);
                }
                return true;
            }
            std::hint::spin_loop();
        }
        let now = clock::ticks();
        kept::while_polling(t, now);
        if now >= next_yield && now >= t.no_yield_until.get() {
            proc::yield_now();
            let back = clock::ticks();
            let took = back.wrapping_sub(now);
            if took > clock::ticks_of_us(100) {
                note(t, start, now);
                let is_there = ready();
                back_off(&t.no_yield_until, back, if is_there { took / REST } else { took }, REST_YIELD_US);
                return is_there;
            }
            // The time of others is no polling, what the change to them and back costs is.
            let shared = took > clock::ticks_of_us(1);
            start += took.saturating_sub(clock::ticks_of_us(1));
            last = back;
            looks = if shared { 1 } else { 16 };
            t.yield_took.set(took);
            next_yield = asked(t, back, shared);
            continue;
        }
        if now.wrapping_sub(last) > clock::ticks_of_us(ABSENT_US) {
            next_yield = asked(t, now, true);
        }
        if now.wrapping_sub(last) > limit.max(clock::ticks_of_us(50)) * 5 {
            note(t, start, last);
            back_off(&t.no_spin_until, now, now.wrapping_sub(last), REST_POLL_US);
            return ready();
        }
        if now.wrapping_sub(start) > budget {
            note(t, start, now);
            return false;
        }
        last = now;
    }
}

/// How long to poll before the first yield, by what the last one took and whether it let others run.
#[inline]
fn alone(others_ran: bool, took: u64) -> u64 {
    if others_ran && took > clock::ticks_of_us(WORK_US) { 0 } else { clock::ticks_of_us(ALONE_US).max(took + took / 2) }
}

/// Whether others want this processor is known now: says when to yield next.
#[cold]
fn asked(t: &Thread, now: u64, they_do: bool) -> u64 {
    let (least, most) = (clock::ticks_of_us(ASK_US.0), clock::ticks_of_us(ASK_US.1));
    let gap = next_gap(t.ask_gap.get(), they_do, least, most);
    t.ask_gap.set(gap);
    t.ask_at.set(now + gap);
    now + gap
}

/// From one question whether others want the processor to the next: each no doubles it, a yes ends it.
fn next_gap(gap: u64, they_do: bool, least: u64, most: u64) -> u64 {
    if they_do { 0 } else { (gap * 2).clamp(least, most) }
}

/// Time spent polling, as far as the clock was read for other reasons.
#[inline]
fn note(t: &Thread, start: u64, now: u64) {
    t.spent.set(t.spent.get() + now.wrapping_sub(start));
}

#[inline(never)]
fn yielding(t: &Thread, start: u64, budget: u64, ready: &mut impl FnMut() -> bool) -> bool {
    if start < t.no_yield_until.get() {
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
        if now.wrapping_sub(last) > long {
            back_off(&t.no_yield_until, now, now.wrapping_sub(last), REST_YIELD_US);
            return ready();
        }
        if ready() {
            return true;
        }
        if now.wrapping_sub(start) > budget {
            return false;
        }
        last = now;
    }
    // The scheduler gave the processor to somebody else, or straight back.
    back_off(&t.no_yield_until, last, last.wrapping_sub(start), REST_YIELD_US);
    false
}

/// No polling (or yielding) for a time that outweighs what was lost.
#[cold]
fn back_off(until: &Cell<u64>, now: u64, lost: u64, most_us: u64) {
    until.set(now + rest(lost, clock::ticks_of_us(most_us)));
}

fn rest(lost: u64, most: u64) -> u64 {
    lost.saturating_mul(REST).min(most)
}

/// Number of the processor this thread runs on: from rseq where glibc registered it, else as it was when
/// the thread last waited.
#[inline(always)]
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
    thread::with(|t| match t.cpu.get() {
        0 => ask_cpu(t),
        n => n - 1,
    })
}

/// Before a wait and after a sleep: where rseq does not tell, the thread may be on another processor.
#[inline]
pub fn renew_cpu(t: &Thread) {
    if RSEQ.load(Relaxed) <= 1 {
        ask_cpu(t);
    }
}

#[cold]
fn ask_cpu(t: &Thread) -> u32 {
    // SAFETY: no arguments.
    let n = unsafe { libc::sched_getcpu() } as u32;
    t.cpu.set(n.wrapping_add(1));
    n
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

/// Whether the machine has one processor; asked of the system once.
pub fn is_single_cpu() -> bool {
    match CPUS.load(Relaxed) {
        0 => {
            // Online processors, not this process's affinity: two ends pinned to one each have two.
            let n = processor::online();
            CPUS.store(n, Relaxed);
            n == 1
        }
        n => n == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks; 50 us at 2 GHz.
    const LIMIT: u64 = 100_000;

    #[test]
    fn rests_twenty_times_what_was_lost_within_the_caps() {
        assert_eq!(rest(1, LIMIT), 20);
        assert_eq!(rest(LIMIT / 20, LIMIT), LIMIT);
        assert_eq!(rest(LIMIT, LIMIT), LIMIT);
        assert_eq!(rest(u64::MAX, LIMIT), LIMIT);
        // A clock that jumped (a virtual machine that was moved) stops it for no longer than that.
        let until = Cell::new(0);
        back_off(&until, 1000, u64::MAX / 2, REST_POLL_US);
        assert_eq!(until.get(), 1000 + clock::ticks_of_us(128_000));
        back_off(&until, 1000, u64::MAX / 2, REST_YIELD_US);
        assert_eq!(until.get(), 1000 + clock::ticks_of_us(1_000_000));
    }

    #[test]
    fn who_others_work_for_yields_before_it_polls() {
        let us = clock::ticks_of_us;
        assert_eq!(alone(true, us(WORK_US) + 1), 0);
        // Nobody ran in it: it is the yield itself that takes so long.
        assert_eq!(alone(false, us(WORK_US) + 2), us(WORK_US) + 2 + us(WORK_US) / 2 + 1);
        assert_eq!(alone(true, us(1)), us(ALONE_US));
        assert_eq!(alone(true, us(WORK_US)), us(WORK_US) + us(WORK_US) / 2);
    }

    #[test]
    fn a_no_doubles_the_time_to_the_next_question_and_a_yes_ends_it() {
        let (least, most) = (ASK_US.0 * 2000, ASK_US.1 * 2000);
        let (mut gap, mut times) = (next_gap(0, false, least, most), 1);
        assert_eq!(gap, least);
        while gap < most {
            let next = next_gap(gap, false, least, most);
            assert_eq!(next, (gap * 2).min(most));
            (gap, times) = (next, times + 1);
        }
        assert_eq!((gap, times), (most, 11));
        assert_eq!(next_gap(most, false, least, most), most);
        assert_eq!(next_gap(most, true, least, most), 0);
    }

    #[test]
    fn polling_that_finds_nothing_ends_and_leaves_the_budget_to_the_sleep() {
        let word = AtomicU32::new(0);
        let elsewhere = cpu().wrapping_add(1);
        assert!(!spin(&word, elsewhere, || false));
        assert_eq!(word.load(Relaxed), 0);
        // None left: not even looked at.
        set_budget(&word, 0);
        let mut looks = 0;
        assert!(!spin(&word, elsewhere, || {
            looks += 1;
            true
        }));
        assert_eq!(looks, 0);
    }
}
