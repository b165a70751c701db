//! The epoll sets that a socket is a member of, and whether a waiter may exist that no hook sees (docs/readiness.md, "Seen and unseen").
//!
//! Written by `table` and `ready`, as members come and go and sets are waited for, and by the engine, which learns how the socket is read.

use super::sock::{Sock, flag};
use std::sync::atomic::Ordering::*;

/// Bit of [`Sock::unseen`]: one of its sets was waited for itself.
const NESTED: u32 = 1 << 31;

impl Sock {
    /// Whether a waiter may exist that we never see.
    #[inline]
    pub fn is_public(&self) -> bool {
        let f = self.flags.load(Relaxed);
        f & (flag::SHARED | flag::UNSEEN) != 0 || f & (flag::RAW | flag::SEEN) == flag::RAW
    }

    /// One more set in which its waiter may be one that we never see.
    pub fn hide(&self) {
        self.unseen.fetch_add(1, AcqRel);
        self.rx.full.store(0, Relaxed); // what was learned beside the others
        self.set(flag::UNSEEN);
    }

    /// One such set less.
    pub fn unhide(&self) {
        if self.unseen.fetch_sub(1, AcqRel) & !NESTED == 1 {
            self.clear(flag::UNSEEN);
            self.regard_sets(); // another set came in between
        }
    }

    /// One of them is waited for itself, and may be as long as the socket is there.
    pub fn nest(&self) {
        self.unseen.fetch_or(NESTED, AcqRel);
        self.set(flag::UNSEEN);
    }

    /// Whether it is a member of sets, and in none of them, nor around one, was anybody seen to wait.
    #[inline]
    pub fn are_sets_idle(&self) -> bool {
        let unseen = self.unseen.load(Acquire);
        unseen != 0 && unseen == self.sets.load(Acquire)
    }

    /// Its reader waits past them: they count for nothing until something else is seen of them. False: they are not idle.
    pub fn disregard_sets(&self) -> bool {
        self.clear(flag::UNSEEN);
        let are_idle = self.are_sets_idle();
        if !are_idle {
            self.regard_sets(); // who changes them counts first, and sets the flag then
        }
        are_idle
    }

    /// They count again.
    pub fn regard_sets(&self) {
        if self.unseen.load(Acquire) & !NESTED != 0 {
            self.set(flag::UNSEEN);
        }
    }
}
