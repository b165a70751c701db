//! Posted members of an epoll set: cold ones whose arrivals the producer writes into a log (`engine::post`), which each pass reads.
//!
//! So a member of a large set that speaks seldom costs neither a look at each pass nor a doorbell for each word. [`post`] is called for a member that turns
//! cold, [`take`] before each look at the hot ones, [`rest`] now and then.

use super::prepare::is_registered;
use crate::engine::{idle, post as engine_post};
use crate::family::holders;
use crate::family::lock::Marker;
use crate::family::sock::Sock;
use crate::sys::{clock, proc};
use crate::table;
use crate::table::member::{EXCLUSIVE, Member};
use crate::table::members::Inner;
use crate::table::set::Set;
use crate::transport::posts::Entry;
use crate::transport::region::Dir;
use crate::transport::waiters::Waiter;
use std::sync::atomic::Ordering::*;

/// A token is a member's number in so many bits, and above them what says whose it is: a log is read by others as well.
const NUMBER_BITS: u32 = 20;
/// A member that is posted for so long gives back what it does not need.
const SILENCE_US: u64 = 20_000;

/// Arms a member like that, with the receiving lock of its connection held; the caller looks at the ring once more, and cools it or takes
/// this back ([`Inner::unpost`]). False: it is to be armed otherwise.
pub fn post(set: &'static Set, inner: &mut Inner, m: u32, s: &Sock, dir: &Dir) -> bool {
    let mb = *inner.member(m);
    if set.nested.load(Relaxed) != 0 || !mb.ours || mb.ghost || mb.orphan || mb.events & EXCLUSIVE != 0 || mb.fd >> NUMBER_BITS != 0 {
        return false;
    }
    if holders::is_shared(s) {
        return false; // a relative may name another waiter
    }
    let Some(w) = waiter_of(set, inner) else { return false };
    let Some(log) = engine_post::writer_of(s).and_then(|slot| inner.logs.join(slot)) else { return false };
    if inner.logs.salt == 0 {
        inner.logs.salt = salt_of(w);
    }
    let token = inner.logs.salt << NUMBER_BITS | mb.fd as u32;
    if !engine_post::arm(s, dir, mb.fd, w, token) {
        inner.logs.leave(log);
        return false;
    }
    let now = clock::ticks();
    let mb = inner.member_mut(m);
    (mb.log, mb.posted_at) = (log as u8 + 1, now);
    true
}

fn waiter_of(set: &'static Set, inner: &mut Inner) -> Option<Waiter> {
    let w = set.waiter_or_take()?;
    let is_heard = inner.bell_registered || is_registered(set.number()?, inner, w);
    is_heard.then_some(w)
}

/// Members that were posted since the last pass become hot.
#[inline(always)]
pub fn take(inner: &mut Inner) {
    if inner.logs.used() != 0 {
        take_all(inner);
    }
}

#[inline(never)]
fn take_all(inner: &mut Inner) {
    for i in 0..inner.logs.used() {
        if let Some(count) = inner.logs.count(i) {
            read(inner, i, count);
        }
    }
}

/// No more than were counted: a peer can write faster than they are read.
fn read(inner: &mut Inner, i: usize, count: u64) {
    while let Some(entry) = inner.logs.next(i, count) {
        match entry {
            Entry::Token(t) if t >> NUMBER_BITS == inner.logs.salt => {
                let fd = t & ((1 << NUMBER_BITS) - 1);
                if let Some(m) = inner.by_fd.one(u64::from(fd)).filter(|m| inner.member(*m).log != 0) {
                    came(inner, m);
                }
            }
            Entry::Token(_) => {} // another process's, or another set's
            Entry::Lost => (0..inner.used()).for_each(|m| {
                if inner.member(m).log as usize == i + 1 {
                    came(inner, m);
                }
            }),
        }
    }
}

/// It is looked at whole: it may have been called for what the cursors don't show.
fn came(inner: &mut Inner, m: u32) {
    inner.heat(m);
    inner.member_mut(m).is_looked_at_whole();
}

/// Posted members that have been silent for long give back what they don't need meanwhile: some of all are looked at, each time others.
pub fn rest(inner: &mut Inner, some: u32) {
    if inner.logs.used() == 0 {
        return;
    }
    let long = clock::ticks_of_us(SILENCE_US);
    let now = clock::ticks();
    for _ in 0..some.min(inner.used()) {
        let m = if inner.rested < inner.used() { inner.rested } else { 0 };
        inner.rested = m + 1;
        let mb = inner.member_mut(m);
        if now.wrapping_sub(mb.posted_at) > long {
            give_back(mb);
        }
    }
}

/// As [`rest`], of all that are posted, at once.
pub fn rest_all(inner: &mut Inner) {
    for m in 0..inner.used() {
        give_back(inner.member_mut(m));
    }
}

/// Once, while it is posted.
fn give_back(mb: &mut Member) {
    if mb.log == 0 || std::mem::take(&mut mb.posted_at) == 0 {
        return;
    }
    let marker = Marker::new();
    if let Some(s) = table::sock(mb.fd)
        && let Some(_held) = s.rx.lock.try_take(&marker)
    {
        idle::release(s);
    }
}

fn salt_of(w: Waiter) -> u32 {
    let mixed = (proc::pid() ^ w.word().rotate_left(16)).wrapping_mul(0x9e37_79b1) >> NUMBER_BITS;
    mixed.max(1)
}
