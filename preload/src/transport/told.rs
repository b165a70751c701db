//! What a peer and this process tell each other of their waiters, over the channel: sleep pages, and what each is woken by.
//!
//! Here a waiter of a peer is looked at and rung, one of our own is told of, and its ear is heard. Called by `engine` (the
//! doorbell words) and by [`super::channel`], which takes what comes.

use super::peers::{DEAF, KIN, OF_OLD, Peer, STRANGER};
use super::waiters::{self, Waiter};
use super::{budget, wakes};
use crate::control;
use crate::sys::{self, clock, mem};
use smcr_proto::rendezvous::{Bell, Message};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// A thread tells it now.
const TELLING: u32 = u32::MAX;

impl Peer {
    /// Takes the sleep page that came with a message.
    pub fn take_page(&self, fd: i32) {
        if !control::is_restricted()
            && self.page.load(Acquire).is_null()
            && mem::is_safe_memfd(fd, waiters::LEN)
            && let Ok(p) = mem::map_shared(fd, waiters::LEN, false)
        {
            self.page.store(p, Release);
        }
        sys::fd::close(fd);
    }

    /// Takes what one of the peer's waiters is to be rung by.
    pub fn take_bell(&self, bell: Bell, fd: i32) {
        match Waiter::named(bell.slot, bell.generation) {
            Some(w) if !control::is_restricted() || self.is_kin() => self.wakes.take_bell(w, fd, self.is_kin()),
            _ => wakes::close_bell(fd, self.is_kin()),
        }
    }

    /// The sleep word of a waiter of the peer.
    #[inline]
    pub fn sleep_word(&self, w: Waiter) -> Option<u32> {
        let p = self.page.load(Acquire);
        if p.is_null() {
            return None;
        }
        // SAFETY: the slot is below SLOTS, so the word lies inside the mapping of LEN bytes, which is
        // unmapped only with the last reference.
        Some(unsafe { &*p.add(w.slot() * waiters::STRIDE).cast::<AtomicU32>() }.load(Relaxed))
    }

    /// Whether this sleep of a waiter of the peer was rung already.
    #[inline]
    pub fn is_rung(&self, w: Waiter, sleep: u32) -> bool {
        self.rung[w.slot()].load(Relaxed) == name_of_sleep(w, sleep)
    }

    /// Notes that this sleep was rung.
    pub fn note_rung(&self, w: Waiter, sleep: u32) {
        self.rung[w.slot()].store(name_of_sleep(w, sleep), Relaxed);
    }

    /// Whether the peer has the page of this process with the log of posts in it, as far as we know.
    pub fn reads_our_log(&self) -> bool {
        !matches!(self.introduced.load(Relaxed), 0 | OF_OLD)
    }

    /// Rings a waiter of the peer; false if that can't be done.
    pub fn ring(&self, w: Waiter) -> bool {
        self.wakes.ring(w, self.is_kin())
    }

    /// Lets the peer know what to ring a waiter of ours by; false if that can't be done now.
    pub fn tell(&self, w: Waiter) -> bool {
        let told = &self.told[w.slot()];
        let before = told.load(Relaxed);
        if before == w.generation() + 1 {
            return true;
        }
        if before == TELLING
            || !w.is_ours()
            || w.is_stale()
            || !self.is_readable()
            || self.introduced.load(Relaxed) == OF_OLD
            || told.compare_exchange(before, TELLING, AcqRel, Relaxed).is_err()
        {
            return false;
        }
        let sent = match self.kinship.load(Relaxed) {
            KIN => w.with_eventfd(|held| self.send_bell(w, held.fd())) == Some(true),
            STRANGER => self.send_ear(w),
            _ => false,
        };
        if sent {
            self.told_at[w.slot()].store(clock::ticks(), Relaxed);
        }
        told.store(if sent { w.generation() + 1 } else { 0 }, Release);
        sent
    }

    fn send_bell(&self, w: Waiter, fd: i32) -> bool {
        let bell = Bell { slot: w.slot() as u32, generation: w.generation() };
        self.send(&Message::Bell(bell), Some(fd)).is_ok()
    }

    fn send_ear(&self, w: Waiter) -> bool {
        if control::is_restricted() || !budget::admits(false) {
            return false;
        }
        let Ok(rings) = self.wakes.open_ear(w) else { return false };
        let sent = self.send_bell(w, rings);
        sys::fd::close(rings);
        if !sent {
            self.wakes.close_ear(w);
        }
        sent
    }

    /// What a waiter of ours has to listen to for this peer, beside its eventfd; -1: nothing.
    pub fn ear(&self, w: Waiter) -> i32 {
        if self.is_kin() { -1 } else { self.wakes.ear(w) }
    }

    /// Takes what it has rung. One that has closed its end rings by doorbell bytes from now on.
    pub fn hear(&self, w: Waiter) {
        if !self.wakes.hear(w) {
            self.kinship.store(DEAF, Relaxed);
            self.close_ear(w);
        }
    }

    /// Closes the ear of a waiter: the peer finds that nobody listens, and rings by doorbell bytes.
    pub fn close_ear(&self, w: Waiter) {
        self.wakes.close_ear(w);
    }

    /// Whether the peer has surely taken what it was told of a waiter: its channel is empty. A
    /// message for which there is no room in its table of descriptors stays there.
    pub fn has_taken(&self, w: Waiter) -> bool {
        let taken = &self.taken[w.slot()];
        if taken.load(Relaxed) != w.generation() + 1 && sys::fd::unacked(self.channel()) == Ok(0) {
            taken.store(w.generation() + 1, Relaxed);
        }
        taken.load(Relaxed) == w.generation() + 1
    }

    /// Whether a waiter that was told had been told before that tick.
    pub fn was_told_before(&self, w: Waiter, tick: u64) -> bool {
        self.told_at[w.slot()].load(Relaxed) < tick
    }
}

fn name_of_sleep(w: Waiter, sleep: u32) -> u64 {
    u64::from(w.generation()) << 32 | u64::from(sleep)
}
