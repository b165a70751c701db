//! Rings that their sender keeps until it waits itself.
//!
//! Where sender and sleeper share a processor, a ring takes it from the sender at once, for the one message that is there, and back when that
//! is answered: two changes of thread for each message (docs/decisions/11). A sleeper that suffers from that says that it is *lenient*
//! (`engine::lenient`): it looks again by itself after [`BOUND_MS`]. Its ring is kept then, so that there is more for it when it runs, and given
//! - when this thread waits and nothing is there for it: at once where it waits for that processor, else after [`IDLE_US`] of polling, and
//!   before every sleep in the kernel;
//! - when it looks at the kernel's part of an epoll set, which a busy one does every 50 us at most.
//!
//! A thread that does not come back to the library in time keeps none for a while. What is lost (a thread that ends, a handler that interrupts
//! this and jumps out) costs the sleeper its bound and nothing else. Called by [`super::bell`], [`super::spin`] and what sleeps.

use super::{bell, lenient, spin};
use crate::family::process::count;
use crate::fault::{self, Step as Fault};
use crate::sys::clock;
use crate::sys::thread::{self, Thread};
use crate::transport::peers;
use crate::transport::waiters::Waiter;
use smcr_proto::page::Counter;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A lenient sleeper looks again after so long.
pub const BOUND_MS: i32 = 1;
/// Polling for what others may bring before the rings are given.
const IDLE_US: u64 = 5;

/// Keeps a ring for this sleep of a waiter of the peer; false: ring it now. Once for each sleep.
#[cold]
pub fn keep(peer: u32, w: Waiter, sleep: u32) -> bool {
    let (t, now) = (thread::here(), clock::ticks());
    if now < t.keeps_from.get() && !fault::is_lenient() {
        return false;
    }
    let n = t.kept.get() as usize;
    let ring = (peer, w.word(), sleep);
    if t.rings[..n].iter().any(|r| r.get() == ring) {
        return true;
    }
    let Some(place) = t.rings.get(n) else { return false };
    place.set(ring);
    if n == 0 {
        t.kept_at.set(now);
    }
    t.kept.set(n as u32 + 1);
    count(Counter::RingsKept, 1);
    fault::pass(Fault::Kept);
    true
}

/// The thread sleeps in the kernel, or looks there.
#[inline]
pub fn give() {
    let t = thread::here();
    if t.kept.get() != 0 {
        give_all(t);
    }
}

/// Nothing was there at the first look; `is_beside`: what the thread waits for needs this processor.
#[inline(always)]
pub fn before_polling(t: &Thread, is_beside: bool) {
    if t.kept.get() != 0 && is_beside {
        give_all(t);
    }
}

/// While it polls, now and then.
#[inline(always)]
pub fn while_polling(t: &Thread, now: u64) {
    if t.kept.get() != 0 && now.wrapping_sub(t.kept_at.get()) > clock::ticks_of_us(IDLE_US) {
        give_all(t);
    }
}

#[cold]
fn give_all(t: &Thread) {
    let n = t.kept.replace(0) as usize;
    let away = clock::ticks().wrapping_sub(t.kept_at.get());
    let (rest, is_late) = next_rest(t.keep_rest.get(), away);
    t.keep_rest.set(rest);
    if is_late {
        t.keeps_from.set(clock::ticks() + rest);
    }
    for ring in &t.rings[..n] {
        let (slot, word, sleep) = ring.get();
        // The reference keeps the page of the sleep words.
        let (Some(w), Some(peer)) = (Waiter::of_word(word), peers::get(slot).filter(|p| p.hold())) else { continue };
        // Another number: it has woken since, and looked at all of its connections.
        if peer.sleep_word(w) == Some(sleep) {
            let _ = bell::ring_sleep(peer, w, sleep, None); // it has its bound
        }
        peer.release();
    }
}

/// The rest from now on, for a thread that was away for so many ticks with a ring kept, and whether it begins: it is shorter for one that comes
/// back within the bound.
fn next_rest(rest: u64, away: u64) -> (u64, bool) {
    match away > clock::ticks_of_us(1000 * BOUND_MS as u64) {
        true => (lenient::longer(rest), true),
        false => (rest - rest / 16, false),
    }
}

/// Whether the calling thread runs on this processor, where the other end last ran.
#[inline]
pub fn is_beside(cpu: &AtomicU32) -> bool {
    cpu.load(Relaxed) == spin::cpu() || fault::is_lenient()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No peer has this slot: what is given rings nobody.
    const NOBODY: u32 = peers::PEERS as u32;

    #[test]
    fn a_sleep_is_kept_once_and_as_many_as_there_is_room_for() {
        let t = thread::here();
        let [w, other] = [1, 2].map(|slot| Waiter::named(slot, 1).expect("a slot"));
        assert!(keep(NOBODY, w, 3) && keep(NOBODY, w, 3));
        assert_eq!(t.kept.get(), 1);
        assert!(keep(NOBODY, other, 3) && keep(NOBODY, w, 7));
        assert_eq!(t.kept.get(), 3);
        let more = (0..).take_while(|i| keep(NOBODY, w, 11 + 4 * i)).count();
        assert_eq!((3 + more, t.kept.get() as usize), (t.rings.len(), t.rings.len()));
        give();
        assert_eq!(t.kept.get(), 0);
    }

    #[test]
    fn who_comes_back_late_keeps_none_for_a_while_each_time_a_longer_one() {
        let w = Waiter::named(3, 1).expect("a slot");
        let t = thread::here();
        assert!(keep(NOBODY, w, 3));
        t.kept_at.set(clock::ticks() - clock::ticks_of_us(2000 * BOUND_MS as u64));
        give();
        assert!(!keep(NOBODY, w, 7));
        t.keeps_from.set(0);
        assert!(keep(NOBODY, w, 7));
        give();
        assert!(keep(NOBODY, w, 11));
        give();

        let late = clock::ticks_of_us(1000 * BOUND_MS as u64) + 1;
        let (least, most) = (clock::ticks_of_us(lenient::REST_US.0), clock::ticks_of_us(lenient::REST_US.1));
        assert_eq!(next_rest(0, late), (least, true));
        assert_eq!(next_rest(least, late), (2 * least, true));
        assert_eq!(next_rest(most, late), (most, true));
        assert_eq!(next_rest(least, late - 1), (least - least / 16, false));
        assert_eq!(next_rest(0, 0), (0, false));
    }

    #[test]
    fn polling_gives_them_at_once_beside_who_is_waited_for_and_else_soon() {
        let w = Waiter::named(4, 1).expect("a slot");
        let t = thread::here();
        assert!(keep(NOBODY, w, 3));
        before_polling(t, false);
        while_polling(t, t.kept_at.get());
        assert_eq!(t.kept.get(), 1);
        while_polling(t, t.kept_at.get() + clock::ticks_of_us(IDLE_US) + 1);
        assert_eq!(t.kept.get(), 0);
        assert!(keep(NOBODY, w, 3));
        before_polling(t, true);
        assert_eq!(t.kept.get(), 0);
    }
}
