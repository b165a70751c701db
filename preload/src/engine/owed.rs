//! Rings that a thread keeps until it waits itself, and the light sleep that lets it.

use super::spin;
use crate::sys::{clock, thread};
use crate::transport::peers::{self, Peer};
use crate::transport::waiters::{LIGHT, Waiter};
use std::sync::atomic::{AtomicU32, Ordering::*};

pub static MODE: AtomicU32 = AtomicU32::new(0);
pub static BOUND_US: AtomicU32 = AtomicU32::new(100);

pub fn start() {
    let get = |n: &std::ffi::CStr| {
        // SAFETY: prototype
        let p = unsafe { libc::getenv(n.as_ptr()) };
        if p.is_null() { None } else { Some(unsafe { libc::atoi(p) } as u32) }
    };
    if let Some(m) = get(c"SMCR_X") { MODE.store(m, Relaxed); }
    if let Some(m) = get(c"SMCR_XB") { BOUND_US.store(m, Relaxed); }
}

/// ns of a light sleep, if this one is to be one.
pub fn bound(peer_cpu: u32) -> Option<u64> {
    let mode = MODE.load(Relaxed);
    if mode & 1 == 0 || (mode & 4 == 0 && peer_cpu != spin::cpu()) || peer_cpu == u32::MAX { return None; }
    let t = thread::here();
    (clock::ticks() >= t.no_light_until.get()).then(|| u64::from(BOUND_US.load(Relaxed)) * 1000)
}

/// It ended by its bound.
pub fn in_vain() {
    let t = thread::here();
    let b = clock::ticks_of_us(u64::from(BOUND_US.load(Relaxed)));
    t.no_light_until.set(clock::ticks() + b * 20);
}

#[inline]
pub fn keep(peer: &Peer, w: Waiter, sleep: u32) -> bool {
    let t = thread::here();
    let n = t.owed.get() as usize;
    let word = w.word();
    for r in &t.rings[..n] {
        let [_, a, b] = r.get();
        if a == word && b == sleep { return true; }
    }
    let Some(slot) = peers::slot_of(peer) else { return false };
    if n == t.rings.len() { return false; }
    t.rings[n].set([slot, word, sleep]);
    t.owed.set(n as u32 + 1);
    true
}

#[inline]
pub fn pay() {
    if thread::here().owed.get() != 0 { pay_all(); }
}

#[inline]
pub fn pay_early() {
    if MODE.load(Relaxed) & 2 != 0 { pay(); }
}

#[cold]
fn pay_all() {
    let t = thread::here();
    let n = t.owed.replace(0) as usize;
    for r in &t.rings[..n] {
        let [slot, word, sleep] = r.get();
        let (Some(peer), Some(w)) = (peers::get(slot), Waiter::of_word(word)) else { continue };
        if peer.sleep_word(w) == Some(sleep) && sleep & LIGHT != 0 && !peer.is_rung(w, sleep) && peer.ring(w) {
            peer.note_rung(w, sleep);
        }
    }
}
