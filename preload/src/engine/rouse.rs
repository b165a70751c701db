//! Waking threads of this process that sleep, by their waiters: all of them, whatever they wait for. Each looks again, and
//! sleeps on if there is nothing for it.
//!
//! A thread sleeps in ppoll on numbers of descriptors, and when one of them calls the kernel looks at the *numbers* again: what
//! has taken one meanwhile answers for it, and the call is lost. So before a number that may be slept on becomes another file,
//! whoever sleeps is woken and takes the new one ([`super::inside::descriptor`], `Waiter::eventfd`).

use super::waiter;
use crate::sys::{clock, fd, proc};
use crate::transport::waiters::{self, Waiter};
use std::sync::atomic::{Ordering::SeqCst, fence};

/// Several threads wait for room in one ring: the one that was woken wakes the others.
pub fn all_but(me: Waiter) {
    sleepers(Some(me)).for_each(Waiter::ring);
}

/// A socket is about to lose the number under which threads sleep on it, and they know where it goes on. What they are called by
/// stays, so nobody has to wait for them.
pub fn all() {
    sleepers(None).for_each(Waiter::ring);
}

/// A number of ours that threads are called by has been exchanged for another, and is the program's in a moment: returns when
/// nobody sleeps on the old one, or after a time that is long for waking up.
pub fn off_old_number() {
    const PATIENCE_NS: u64 = 100_000_000;
    const YIELDS: u32 = 64;
    let me = waiter::own_waiter();
    let since: [Option<u32>; waiters::SLOTS] = {
        let mut words = [None; waiters::SLOTS];
        sleepers(me).for_each(|w| words[w.slot()] = w.sleep());
        words
    };
    sleepers(me).for_each(Waiter::ring);
    let sleeps_on = |w: &Waiter| since[w.slot()].is_some() && w.sleep() == since[w.slot()];
    let until = clock::now_ns() + PATIENCE_NS;
    let mut rounds = 0;
    while waiters::own_slots().any(|w| sleeps_on(&w)) && clock::now_ns() < until {
        rounds += 1;
        match rounds {
            ..YIELDS => proc::yield_now(),
            _ => drop(fd::poll(&mut [], 1)),
        }
    }
}

/// Waiters of this process that say they sleep.
fn sleepers(but: Option<Waiter>) -> impl Iterator<Item = Waiter> {
    fence(SeqCst); // pairs with the fence in `Waiter::fall_asleep`
    waiters::own_slots().filter(move |w| Some(*w) != but && w.is_asleep())
}
