//! Connections that are on their way to memory, so that steps are taken in waits as well as in
//! operations: a server that has filled its socket sits in epoll_wait while an offer lies unread.
//!
//! Entered when a socket is announced or memory is offered; `table::steps` goes through them when the
//! program is about to wait. Private to the process. An entry lasts a second at most: what takes longer
//! goes on in the connection's own operations.

use crate::family;
use crate::family::sock::{Sock, flag, step};
use crate::sys::clock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

const SLOTS: usize = 64;
const LIFE_US: u64 = 1_000_000;
/// A round is repeated after this time, or twenty times what it took.
const GAP_US: u64 = 50;

struct Slot {
    /// Record number + 1, and its generation above; 0 free.
    who: AtomicU64,
    since: AtomicU64,
}

static LIST: [Slot; SLOTS] = [const { Slot { who: AtomicU64::new(0), since: AtomicU64::new(0) } }; SLOTS];
static COUNT: AtomicU32 = AtomicU32::new(0);
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A connection has begun.
pub fn enter(s: &Sock) {
    let who = u64::from(s.generation.load(Relaxed)) << 32 | u64::from(family::index_of(s) + 1);
    if let Some(slot) = LIST.iter().find(|slot| slot.who.load(Relaxed) == who) {
        return slot.since.store(clock::ticks(), Relaxed);
    }
    for slot in &LIST {
        if slot.who.load(Relaxed) == 0 && slot.who.compare_exchange(0, who, AcqRel, Relaxed).is_ok() {
            slot.since.store(clock::ticks(), Relaxed);
            COUNT.fetch_add(1, AcqRel);
            return;
        }
    }
}

/// Whether anything is on its way.
#[inline]
pub fn any() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Calls `f` for each connection that is still on its way, when it is time for it.
pub fn each(f: impl Fn(&'static Sock)) {
    let begin = clock::ticks();
    if begin < NEXT.load(Relaxed) {
        return;
    }
    NEXT.store(begin + clock::ticks_of_us(GAP_US), Relaxed);
    super::listener::look();
    let Some(base) = family::base() else { return };
    for slot in &LIST {
        let who = slot.who.load(Acquire);
        if who == 0 {
            continue;
        }
        let s = family::sock(base, (who as u32).wrapping_sub(1));
        let old = begin.saturating_sub(slot.since.load(Relaxed)) > clock::ticks_of_us(LIFE_US);
        if old || s.generation.load(Relaxed) != (who >> 32) as u32 || !is_on_its_way(s) {
            if slot.who.compare_exchange(who, 0, AcqRel, Relaxed).is_ok() {
                COUNT.fetch_sub(1, AcqRel);
            }
            continue;
        }
        f(s);
    }
    let took = clock::ticks().wrapping_sub(begin);
    NEXT.store(begin + clock::ticks_of_us(GAP_US).max(took * 20), Relaxed);
}

fn is_on_its_way(s: &Sock) -> bool {
    !s.has(flag::PINNED)
        && match s.step.load(Relaxed) {
            step::ANNOUNCED | step::TAKING | step::ATTACHING | step::OFFERED | step::NONCE => true,
            step::PROVED => !(s.tx_in_memory() && s.rx_in_memory()),
            _ => false,
        }
}

/// A forked child has begun nothing.
pub fn forget_in_child() {
    for slot in &LIST {
        slot.who.store(0, Relaxed);
    }
    COUNT.store(0, Relaxed);
}
