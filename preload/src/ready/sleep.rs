//! The sleep of an epoll set: one word for all of its members, one eventfd for all of its threads, and an ear for each
//! peer of another user.
//!
//! Called by `wait` when a pass found nothing; `expose` by whoever puts a set where only the kernel
//! looks.

use super::ctl::{leave_full, register, register_anew};
use super::keep::keep;
use super::look::{Depth, is_any_due, is_untold, look, turn_cold};
use super::prepare::{NOTHING, Prepared, is_registered, prepare};
use super::wait::{Call, MOST_US, pass, rest_of_kernel, take_in_changes};
use super::{posted, stand_in};
use crate::engine::handlers::Since;
use crate::engine::{bell, budget, counted, kept, kernel, linked};
use crate::family::lock::Marker;
use crate::family::process::count;
use crate::real;
use crate::sys::thread::{self, full_fence};
use crate::sys::{Errno, clock, fd as desc};
use crate::table::members::Inner;
use crate::table::set::{BY_LEVEL, Set};
use crate::table::{self, forks};
use crate::transport::waiters::Waiter;
use crate::transport::{changes, idle};
use libc::epoll_event;
use smcr_proto::page::Counter;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Sleep without events after which a set is put in order.
const TIDY_MS: i32 = 1000;

/// How a sleep ended.
pub enum Slept {
    Events(i32),
    Again,
    Over,
    Failed,
}

/// Sleeps in the kernel until something comes for the set, or the time is over, unless a handler has run since the call began.
///
/// # Safety
/// What `call` names must be valid for the kernel's own epoll_pwait.
pub unsafe fn sleep(epfd: i32, set: &'static Set, call: &Call, out: &mut [epoll_event], deadline: Option<u64>, since_call: Since) -> Slept {
    kept::give();
    crate::control::look();
    idle::look();
    let ours = set.ours.load(Relaxed) > 0;
    let changes = changes::count();
    let sleeps = ours && call.timeout != Some(0);
    let Prepared { waiter, full, heats, lenient } = if sleeps { prepare(epfd, set) } else { NOTHING };
    let mut listens = false;
    let at = std::ptr::from_ref(&deadline) as usize;
    // Nobody else is there to bring a member while it sleeps, or this is only a look.
    let is_counted = waiter.is_some() || call.timeout != Some(0) && !thread::is_only();
    let mut closed = 0;
    let mut is_prepared = true;
    if is_counted {
        (closed, is_prepared) = lie_down(set, waiter, at, sleeps, lenient);
    }
    if let Some(w) = waiter {
        listens = linked::listens(w, set.channel.load(Relaxed));
    }
    let mut n = 0;
    if sleeps {
        // Also where there is no waiter: what came before the byte was armed sends none.
        n = pass(epfd, set, out, Depth::Last);
        // A member that changed since it was prepared for this sleep is not: room in its ring would wake nobody (`table::full`). Nor is one
        // that another thread, or this look by its doorbell, has made hot since: what comes would.
        is_prepared = changes::count() == changes && n == 0 && heats_of(set) == heats;
    }
    if n > 0 || !is_prepared {
        if is_counted {
            get_up(set, waiter, at, closed);
        }
        if listens {
            linked::listen_no_more(false);
        }
        return if n > 0 { Slept::Events(n as i32) } else { Slept::Again };
    }
    let left = deadline.map(|d| if d == 0 { 0 } else { d.saturating_sub(clock::now_ns()) });
    let ms = left.map_or(-1, |ns| ns.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
    // Connections over a link of the parent process: nobody can wake us for them.
    let foreign = (ours && linked::is_foreign()).then_some(2);
    let full = full.map(|ns| ns.div_ceil(1_000_000) as i32);
    let bound = lenient.then_some(kept::BOUND_MS);
    let soonest = [foreign, full, bound].into_iter().flatten().min().filter(|n| ms < 0 || ms > *n);
    let (short, ms) = (soonest.is_some(), soonest.unwrap_or(ms));
    if ours {
        count(Counter::Sleeps, 1);
    }
    // One second without events: what is hot turns cold and gives back what it can, once.
    let tidies = waiter.is_some() && set.untidy.load(Relaxed) != 0 && !(0..=TIDY_MS).contains(&ms);
    let ms = if tidies { TIDY_MS } else { ms };
    let exact = left.filter(|_| call.is_exact && !short && !tidies && ms > 0);
    let (since, rung) = (clock::ticks(), set.rung.load(Relaxed));
    let buried = set.buried.load(Acquire); // pairs with the Release in `Set::bury`
    let (k, e) = if ms != 0 && since_call.has_one_run() {
        (-1, Errno(libc::EINTR)) // while it polled
    } else {
        // SAFETY: the program's array and mask.
        unsafe { kernels_wait(epfd, call, ms, exact) }
    };
    let is_same = !is_counted || get_up(set, waiter, at, closed);
    if waiter.is_some() {
        if listens {
            linked::listen_no_more(false); // what the channel says is among the events
        }
        if !is_same {
            // What stands there now is another one's.
            crate::sys::set_errno(Errno(libc::EBADF));
            return if k == 0 && deadline.is_some() { Slept::Over } else { Slept::Failed };
        }
        time_wake(set, since);
    }
    let is_rung_by_us = set.rung.load(Relaxed) != rung;
    if waiter.is_some() && !is_rung_by_us {
        budget::slept(&set.spin, since);
    }
    if k < 0 {
        crate::sys::set_errno(e);
        return Slept::Failed;
    }
    if foreign.is_some() {
        forks::look_at_owners();
    }
    if k == 0 && lenient {
        let n = pass(epfd, set, out, Depth::Whole); // as if rung: a ring that was kept may never come
        set.lenient.passed(n > 0);
        if n > 0 {
            return Slept::Events(n as i32);
        }
    }
    if k == 0 && tidies {
        tidy(set);
        return Slept::Again;
    }
    if k == 0 {
        return if deadline.is_some() && !short { Slept::Over } else { Slept::Again };
    }
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return Slept::Events(k) };
    if l.inner.changes != changes::count() {
        take_in_changes(epfd, set, l.inner);
    }
    let hot = l.inner.hot_len;
    let n = keep(epfd, set, l.inner, out, 0, k as usize, buried);
    let rest = rest_of_kernel(l.inner, n > 0 || l.inner.hot_len > hot, clock::ticks_of_us(MOST_US));
    l.inner.kernel_look = clock::ticks() + rest;
    // Members in memory share the array with what the kernel reported.
    let n = n + look(set, l.inner, &mut out[n..], Depth::Whole);
    set.lenient.woke(n, l.inner.hot_len);
    stand_in::look_behind(epfd, set, l.inner);
    l.inner.heard = false;
    if waiter.is_some() && is_rung_by_us {
        // By a ring of this process that was for nothing: no peer came, as if it had slept for long.
        budget::slept(&set.spin, if n == 0 { 0 } else { since });
    }
    match n {
        0 if deadline.is_some_and(|d| d == 0 || clock::now_ns() >= d) => Slept::Over,
        0 => Slept::Again,
        n => Slept::Events(n as i32),
    }
}

/// The kernel's wait, for `exact` ns where it knows them (Linux 5.11), else for `ms`: what it returns, and errno.
///
/// # Safety
/// As for [`sleep`].
unsafe fn kernels_wait(epfd: i32, call: &Call, ms: i32, exact: Option<u64>) -> (i32, Errno) {
    if let Some(ns) = exact {
        let t = clock::timespec(ns);
        // SAFETY: by the contract; the time lives through the call.
        let k = unsafe { real::epoll_pwait2(epfd, call.events, call.max, &raw const t, call.mask) };
        let e = crate::sys::errno();
        if k >= 0 || e.0 != libc::ENOSYS {
            return (k, e);
        }
    }
    // SAFETY: by the contract.
    (unsafe { real::epoll_pwait(epfd, call.events, call.max, ms, call.mask) }, crate::sys::errno())
}

/// Nothing has come for long: every hot member turns cold.
fn tidy(set: &'static Set) {
    set.untidy.store(0, Relaxed);
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return };
    for i in (0..l.inner.hot_len).rev() {
        // Turning cold moves the last one into the place, which was looked at before.
        if i < l.inner.hot_len {
            let m = l.inner.hot(i);
            turn_cold(set, l.inner, m, false);
        }
    }
    posted::rest_all(l.inner);
}

fn heats_of(set: &'static Set) -> u64 {
    let marker = Marker::new();
    set.lock(&marker).map_or(0, |l| l.inner.heats)
}

/// Notes how long the wake took, if it came from one of the first hot members.
fn time_wake(set: &Set, since: u64) {
    const MOST: u32 = 8;
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return };
    posted::take(l.inner);
    for i in 0..l.inner.hot_len.min(MOST) {
        let fd = l.inner.member(l.inner.hot(i)).fd;
        if let Some(dir) = table::sock(fd).and_then(|s| s.rx.dir())
            && bell::time_wake(dir, since)
        {
            return;
        }
    }
}

/// One more thread of this set sleeps, in the call at `at` of its stack; without a waiter the kernel alone wakes it. Returns how often
/// the set was closed before, and, where nothing was `prepared`, whether nothing was to be.
fn lie_down(set: &'static Set, waiter: Option<Waiter>, at: usize, prepared: bool, lenient: bool) -> (u32, bool) {
    let marker = Marker::new();
    // Count and word change together: else one thread's waking could hide another's falling asleep.
    let held = set.lock(&marker);
    let closed = counted::enter(count_of(set, waiter), &set.closed, at);
    match waiter {
        // Others have no bound.
        Some(w) if lenient && set.sleepers.load(Relaxed) == 1 => w.fall_asleep_lenient(),
        Some(w) => w.fall_asleep(),
        None => full_fence(), // as in `Waiter::fall_asleep`, for `table::full`
    }
    let is_new = held.is_ok_and(|l| !prepared && (l.inner.ours > 0 || l.inner.changes != changes::count()));
    (closed, !is_new)
}

/// A thread is awake again; while others sleep the word says so, with a new number, so that the next
/// arrival wakes one of them. False: the set was closed meanwhile; it may be another one by now, and so may the waiter.
fn get_up(set: &'static Set, waiter: Option<Waiter>, at: usize, closed: u32) -> bool {
    let marker = Marker::new();
    let _held = set.lock(&marker);
    let slept = counted::leave(count_of(set, waiter), &set.closed, at, closed);
    if set.closed.load(Relaxed) != closed {
        return false;
    }
    match waiter {
        // Those that sleep without the waiter are called by its eventfd all the same: it is in the kernel's set.
        Some(w) if slept > 1 || set.alone.load(Relaxed) > 0 => w.sleep_on(),
        Some(w) => w.wake_up(),
        None => {}
    }
    true
}

fn count_of(set: &'static Set, waiter: Option<Waiter>) -> &'static AtomicU32 {
    if waiter.is_some() { &set.sleepers } else { &set.alone }
}

/// A member has come to memory: one of the threads that sleep in the kernel alone, since before, is to lie down with the waiter. The
/// others sleep on, and the waiter's word says so. Called with the set locked.
pub fn call_who_is_alone(epfd: i32, set: &'static Set, inner: &mut Inner) {
    if set.alone.load(Relaxed) > 0
        && let Some(w) = set.waiter_or_take().filter(|w| is_registered(epfd, inner, *w))
    {
        w.sleep_on();
        set.ring();
    }
}

/// The calling thread has events of the set, and goes. Those that sleep in it look for themselves where there is more for them, or where
/// events are level-triggered, which are told to every thread that waits, as in the kernel, where such an event stays in the ready
/// list; or where a member became hot since they lay down, so that what comes for it would not wake them.
#[inline]
pub fn wake_next(set: &'static Set) {
    if set.is_slept_in() {
        wake_if_due(set);
    }
}

#[cold]
fn wake_if_due(set: &'static Set) {
    let marker = Marker::new();
    let is_due = |inner: &mut Inner| {
        let (left, cut) = (std::mem::take(&mut inner.left), std::mem::take(&mut inner.cut));
        left || inner.heats != inner.prepared || cut && is_any_due(inner)
    };
    if set.lock(&marker).map_or(true, |l| is_due(l.inner)) {
        set.ring();
    }
}

/// For epoll sets inside others, and poll on a set: the kernel must see every doorbell.
/// `how`: as `Set::nested`.
pub fn expose(epfd: i32, set: &'static Set, how: u32) {
    let before = set.nested.load(Acquire);
    if before == BY_LEVEL || before == how {
        return;
    }
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return };
    set.nested.store(how, Release);
    if before != 0 {
        return stand_in::look(epfd, set, l.inner);
    }
    for m in 0..l.inner.used() {
        let mb = *l.inner.member(m);
        if mb.fd < 0 {
            continue;
        }
        if mb.ghost {
            // What the kernel still has of it would be told to whoever waits there.
            let word = l.inner.own_word(m);
            let _ = desc::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, mb.fd, None);
            l.inner.drop_member(m);
            set.bury(l.inner, word);
            continue;
        }
        if mb.ours {
            leave_full(&mb);
            // What was told is no edge any more.
            if is_untold(&mb) {
                register_anew(epfd, l.inner, m, true);
            } else {
                register(epfd, l.inner, m, true);
            }
        }
        l.inner.hide(m);
        if let Some(s) = table::sock(mb.fd) {
            s.nest();
            kernel::expose(s, mb.fd);
        }
    }
    stand_in::look(epfd, set, l.inner);
}
