//! epoll_wait: members in memory are looked at in user space, all others by the kernel.
//!
//! One pass: take in what changed its medium, look at the hot members, look at the kernel when 50 us
//! have passed. Nothing ready: poll for a bounded time (`engine::spin`), then say "asleep" in the one
//! sleep word of the set, look once more, and sleep in the kernel. Kernel events of members in memory
//! only make them hot; what the program gets of them comes from [`look`] alone, so nothing is reported
//! twice.

use super::ctl::{register, take_over};
use crate::table::set::{Inner, Set};
use super::level;
use crate::engine::{bell, changes, rx, spin, switch, wait as engine_wait};
use crate::family::lock::Marker;
use crate::family::process::count;
use crate::family::sock::{Sock, flag};
use crate::real;
use crate::sys::{caught, clock, fd as desc};
use crate::table;
use crate::transport::waiters::Waiter;
use libc::{EPOLL_CTL_ADD, epoll_event, sigset_t};
use smcr_proto::page::Counter;
use std::sync::atomic::Ordering::*;

/// Data word of the set's own eventfd.
const BELL: u64 = 0x7f53_4d43_5242_454c;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// Unproductive looks after which a member turns cold, if 2 ms have passed as well.
const PATIENCE: u32 = 500;

/// A wait: where the events go and how long.
pub struct Call {
    /// The program's array.
    pub events: *mut epoll_event,
    /// Its length.
    pub max: i32,
    /// Nanoseconds; None waits for ever.
    pub timeout: Option<u64>,
    /// Signal mask while sleeping, or null.
    pub mask: *const sigset_t,
}

/// epoll_wait(2) on a set with tracked members.
///
/// # Safety
/// The array of `call` must be valid for writes of `max` events, the mask null or valid.
pub unsafe fn wait(epfd: i32, set: &'static Set, call: &Call) -> i32 {
    if set.waited.load(Relaxed) == 0 {
        first_wait(epfd, set);
    }
    let deadline = call.timeout.map(|t| if t == 0 { 0 } else { clock::now_ns().saturating_add(t) });
    loop {
        // SAFETY: by the contract.
        let out = unsafe { std::slice::from_raw_parts_mut(call.events, call.max.max(1) as usize) };
        let n = pass(epfd, set, out);
        if n > 0 {
            wake_next(set);
            return n as i32;
        }
        if set.ours.load(Relaxed) > 0 && call.timeout != Some(0) && set.nested.load(Relaxed) == 0 {
            let mut n = 0;
            let peer = peer_cpu(set);
            if spin::spin(&set.spin, peer, || {
                n = pass(epfd, set, out);
                n > 0
            }) {
                wake_next(set);
                return n as i32;
            }
        }
        // SAFETY: by the contract.
        match unsafe { sleep(epfd, set, call, out, deadline) } {
            Slept::Events(n) => {
                wake_next(set);
                return n;
            }
            Slept::Again => {}
            Slept::Over => return 0,
            Slept::Failed => return -1,
        }
    }
}

/// Level-triggered events are told to every thread that waits: the next one looks for itself, as in
/// the kernel, where the event stays in the ready list.
#[inline]
fn wake_next(set: &Set) {
    if set.sleepers.load(Relaxed) > 0
        && let Some(w) = set.waiter()
    {
        let _ = desc::event_set(w.eventfd());
    }
}

fn first_wait(epfd: i32, set: &'static Set) {
    set.waited.store(1, Relaxed);
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return };
    for m in 0..l.inner.used() {
        let fd = l.inner.member(m).fd;
        if fd >= 0 && let Some(s) = table::sock(fd) {
            if set.nested.load(Relaxed) == 0 {
                s.set(flag::SEEN);
            }
        }
    }
    l.inner.changes = changes::count();
    refresh_all(epfd, set, l.inner);
}

/// One look at everything that needs no sleep. Returns the number of events written.
fn pass(epfd: i32, set: &'static Set, out: &mut [epoll_event]) -> usize {
    caught(|| one_pass(epfd, set, out)).unwrap_or(0)
}

fn one_pass(epfd: i32, set: &'static Set, out: &mut [epoll_event]) -> usize {
    let marker = Marker::new();
    let Ok(locked) = set.lock(&marker) else { return 0 };
    let inner = locked.inner;
    if inner.changes != changes::count() {
        take_in_changes(epfd, set, inner);
    }
    if inner.ours == 0 {
        return 0; // the kernel alone knows
    }
    let mut n = 0;
    let now = clock::ticks();
    if now.wrapping_sub(inner.kernel_look) > clock::ticks_of_us(50) {
        inner.kernel_look = now;
        // SAFETY: the program's array.
        let k = unsafe { desc::epoll_wait(epfd, out.as_mut_ptr(), out.len() as i32, 0) };
        if let Ok(k) = k
            && k > 0
        {
            n = keep(set, inner, out, 0, k);
        }
    }
    n + look(set, inner, &mut out[n..])
}

/// Sockets that changed their medium become ours, or the kernel's again.
fn take_in_changes(epfd: i32, set: &'static Set, inner: &mut Inner) {
    let end = changes::count();
    let mut at = inner.changes;
    inner.changes = end;
    while at < end {
        match changes::at(at) {
            Some(s) => {
                let fd = s.fd.load(Relaxed);
                let found = table::sock(fd).is_some_and(|t| std::ptr::eq(t, s));
                match inner.by_fd.one(fd as u64).filter(|_| found) {
                    Some(m) => refresh(epfd, set, inner, m),
                    None if found => {}
                    None => return refresh_all(epfd, set, inner),
                }
            }
            None => return refresh_all(epfd, set, inner),
        }
        at += 1;
    }
}

fn refresh_all(epfd: i32, set: &'static Set, inner: &mut Inner) {
    for m in 0..inner.used() {
        if inner.member(m).fd >= 0 {
            refresh(epfd, set, inner, m);
        }
    }
}

fn refresh(epfd: i32, set: &'static Set, inner: &mut Inner, m: u32) {
    let mb = *inner.member(m);
    let Some(s) = table::sock(mb.fd) else { return };
    let nested = set.nested.load(Relaxed) != 0;
    if level::is_ours(s) {
        take_over(set, inner, m, s);
        let _ = register(epfd, inner, m, nested);
    } else if mb.ours {
        inner.cool(m);
        inner.ours -= 1;
        inner.member_mut(m).ours = false;
        set.ours.store(inner.ours, Release);
        if mb.ghost {
            let _ = desc::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, mb.fd, None);
            inner.drop_member(m);
        } else if mb.spent {
            let e = epoll_event { events: ONESHOT, u64: mb.data };
            let _ = desc::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, mb.fd, Some(e));
            inner.member_mut(m).kernel = ONESHOT;
        } else {
            let _ = register(epfd, inner, m, nested);
        }
    }
}

/// Looks at the hot members and writes their events.
fn look(set: &'static Set, inner: &mut Inner, out: &mut [epoll_event]) -> usize {
    let mut n = 0;
    let len = inner.hot_len;
    let mut i = if inner.turn < len { inner.turn } else { 0 };
    let mut left = len;
    let mut now = 0;
    let mut idle = [0u32; 16];
    let mut idle_len = 0;
    while left > 0 && n < out.len() {
        if i >= inner.hot_len {
            i = 0;
        }
        let m = inner.hot(i);
        left -= 1;
        if let Some(e) = event_of(inner, m) {
            out[n] = e;
            n += 1;
            let mb = inner.member_mut(m);
            mb.idle = 0;
            i += 1;
            continue;
        }
        let mb = inner.member_mut(m);
        mb.idle += 1;
        if mb.idle > PATIENCE {
            if now == 0 {
                now = clock::ticks();
            }
            if mb.last == 0 {
                mb.last = now;
            } else if now.wrapping_sub(mb.last) > clock::ticks_of_us(2000) && idle_len < idle.len() {
                idle[idle_len] = m;
                idle_len += 1;
            }
        } else {
            mb.last = 0;
        }
        i += 1;
    }
    inner.turn = i;
    // After the walk: taking a member out moves another into its place.
    for m in &idle[..idle_len] {
        turn_cold(set, inner, *m);
    }
    n
}

/// What the program gets of a member now.
#[inline]
fn event_of(inner: &mut Inner, m: u32) -> Option<epoll_event> {
    let mb = inner.member_mut(m);
    if mb.ghost || mb.spent || !mb.ours {
        return None;
    }
    let s = table::sock(mb.fd)?;
    if mb.events & ET != 0 && !mb.fresh && is_unchanged(s, mb.seen_in, mb.seen_full, mb.seen_bits) {
        return None;
    }
    let bits = level::with_norms(level::level(s, mb.fd, false));
    let wanted = bits & (mb.events | level::ERR | level::HUP) & !(ET | ONESHOT);
    let report = if mb.events & ET != 0 {
        let head = s.rx.dir().map_or(0, |d| d.head.load(Acquire));
        let full = s.tx.looked.load(Relaxed);
        let edge = mb.fresh
            || (head != mb.seen_in && bits & level::IN != 0)
            || (full != mb.seen_full && bits & level::OUT != 0)
            || bits & !mb.seen_bits != 0;
        mb.seen_in = head;
        if bits & level::OUT != 0 {
            mb.seen_full = full;
        }
        mb.seen_bits = bits;
        edge
    } else {
        true
    };
    if wanted == 0 || !report {
        return None;
    }
    mb.fresh = false;
    if mb.events & ONESHOT != 0 {
        mb.spent = true;
    }
    Some(epoll_event { events: wanted, u64: mb.data })
}

/// Edge-triggered: nothing new since the last report, told from cursors alone.
#[inline]
fn is_unchanged(s: &Sock, seen_in: u64, seen_full: u64, seen_bits: u32) -> bool {
    let (Some(dir), true, true) = (s.rx.dir(), s.rx_in_memory(), s.tx_in_memory()) else { return false };
    dir.head.load(Acquire) == seen_in
        && (seen_bits & level::OUT != 0 && s.tx.looked.load(Relaxed) == seen_full)
        && s.rx.end.load(Relaxed) == 0
        && dir.fin.load(Relaxed) & 1 == 0
        && dir.switch.load(Relaxed) == s.rx.switches.load(Relaxed)
        && !rx::is_asked(s)
        && !s.has(flag::SHUT_RD | flag::SHUT_WR)
}

/// Arms the doorbell byte of a member that had nothing for long; false if something came meanwhile.
fn turn_cold(_set: &'static Set, inner: &mut Inner, m: u32) -> bool {
    let mb = *inner.member(m);
    let s = table::sock(mb.fd);
    if let Some(s) = s
        && let Some(dir) = s.rx.dir()
        && mb.ours
    {
        // A member that wants to write to a full ring stays hot: the byte is for arriving data only.
        if mb.events & level::OUT != 0 && !mb.spent && s.tx.dir().is_some_and(|d| !engine_wait::has_room(s, d)) {
            inner.member_mut(m).idle = 0;
            return false;
        }
        let marker = Marker::new();
        let Some(_held) = s.rx.lock.try_take(&marker) else { return false };
        if s.rx_in_memory() {
            bell::drain(s, dir, mb.fd);
        }
        bell::arm(s, dir);
        if rx::pending(s, dir) && s.rx.end.load(Relaxed) == 0 && !wait_is_over(s) {
            inner.member_mut(m).idle = 0;
            return false;
        }
    }
    inner.cool(m);
    true
}

fn wait_is_over(s: &Sock) -> bool {
    engine_wait::is_over(s)
}

/// Kernel events in `out[at..at + k]`: those of members in memory make them hot and go, the others
/// stay. Returns the new number of events.
fn keep(set: &Set, inner: &mut Inner, out: &mut [epoll_event], at: usize, k: usize) -> usize {
    let mut n = at;
    for i in at..at + k {
        let e = out[i];
        if e.u64 == BELL {
            // Taken by this thread; those that sleep need a ring of their own for what comes next.
            if set.sleepers.load(Relaxed) > 0
                && let Some(w) = set.waiter()
            {
                w.sleep_on();
            }
            continue;
        }
        let mut ours = false;
        let mut plain = None;
        let mut several = false;
        let members: [Option<u32>; 8] = {
            let mut found = [None; 8];
            for (slot, m) in found.iter_mut().zip(inner.by_data.all(e.u64)) {
                *slot = Some(m);
            }
            found
        };
        for m in members.into_iter().flatten() {
            let mb = *inner.member(m);
            if mb.ours || mb.ghost {
                ours = true;
                if mb.ours && !mb.ghost {
                    kernel_event(mb.fd, e.events);
                    inner.heat(m);
                }
            } else {
                several |= plain.is_some();
                plain = Some(mb);
            }
        }
        let mut e = e;
        if !ours
            && let Some(mb) = plain.filter(|_| !several)
            && is_only_proof(mb.fd, e.events)
        {
            e.events &= !(level::IN | level::NORMS.0);
            if e.events & !(ET | ONESHOT) == 0 {
                continue;
            }
        }
        if ours {
            // The same data for members of both kinds: ask whether it can have been the other.
            let Some(mb) = plain.filter(|_| !several) else { continue };
            let bits = desc::poll_now(mb.fd, mb.events as i16) as u16 as u32;
            if bits == 0 {
                continue;
            }
            e.events = bits;
        }
        out[n] = e;
        n += 1;
    }
    n
}

/// The kernel calls a socket readable for the proof in its stream: not for the program.
fn is_only_proof(fd: i32, events: u32) -> bool {
    if events & level::IN == 0 || events & (level::RDHUP | level::HUP | level::ERR) != 0 {
        return false;
    }
    let Some(s) = table::sock(fd).filter(|s| s.has(flag::CAREFUL)) else { return false };
    rx::progress(s, fd);
    level::level(s, fd, false) & level::IN == 0
}

/// The kernel's socket of a member in memory has something: a doorbell, or the end.
fn kernel_event(fd: i32, bits: u32) {
    let Some(s) = table::sock(fd) else { return };
    let Some(dir) = s.rx.dir() else { return };
    let marker = Marker::new();
    let Some(_held) = s.rx.lock.try_take(&marker) else { return };
    if !s.rx_in_memory() {
        return;
    }
    if !s.has(flag::SEEN) {
        // A waiter that we do not see may need the doorbell.
        rx::look_at_kernel_for_sender(s, fd, dir);
        return rx::settle(s, dir, fd);
    }
    let due = dir.bells.load(Acquire) != s.bells_rx.load(Relaxed);
    if bits & (level::RDHUP | level::HUP | level::ERR) != 0 || !due {
        rx::look_at_kernel(s, fd, dir);
    } else {
        bell::drain(s, dir, fd);
    }
}

fn peer_cpu(set: &Set) -> u32 {
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return u32::MAX };
    if l.inner.hot_len == 0 {
        return u32::MAX;
    }
    let turn = l.inner.turn.saturating_sub(1).min(l.inner.hot_len - 1);
    let fd = l.inner.member(l.inner.hot(turn)).fd;
    table::sock(fd)
        .and_then(|s| s.rx.dir())
        .map_or(u32::MAX, |d| d.producer_cpu.load(Relaxed))
}

enum Slept {
    Events(i32),
    Again,
    Over,
    Failed,
}

unsafe fn sleep(
    epfd: i32,
    set: &'static Set,
    call: &Call,
    out: &mut [epoll_event],
    deadline: Option<u64>,
) -> Slept {
    crate::control::look();
    let ours = set.ours.load(Relaxed) > 0;
    let waiter = if ours && call.timeout != Some(0) { prepare(epfd, set) } else { None };
    if let Some(w) = waiter {
        lie_down(set, w);
        check_names(set, w);
        let n = pass(epfd, set, out);
        if n > 0 {
            get_up(set, w);
            return Slept::Events(n as i32);
        }
    }
    let ms = match deadline {
        None => -1,
        Some(0) => 0,
        Some(d) => d.saturating_sub(clock::now_ns()).div_ceil(1_000_000).min(i32::MAX as u64) as i32,
    };
    if ours {
        count(Counter::Sleeps, 1);
    }
    let since = clock::ticks();
    // SAFETY: the program's array and mask.
    let k = unsafe { real::epoll_pwait(epfd, call.events, call.max, ms, call.mask) };
    if let Some(w) = waiter {
        get_up(set, w);
        spin::slept(&set.spin, since);
    }
    if k < 0 {
        return Slept::Failed;
    }
    if k == 0 {
        return if deadline.is_some() { Slept::Over } else { Slept::Again };
    }
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return Slept::Events(k) };
    if l.inner.changes != changes::count() {
        take_in_changes(epfd, set, l.inner);
    }
    l.inner.kernel_look = clock::ticks();
    let n = keep(set, l.inner, out, 0, k as usize);
    // Members in memory share the array with what the kernel reported.
    let n = n + look(set, l.inner, &mut out[n..]);
    match n {
        0 if deadline.is_some_and(|d| d == 0 || clock::now_ns() >= d) => Slept::Over,
        0 => Slept::Again,
        n => Slept::Events(n as i32),
    }
}

/// Makes sure that every hot member would wake this set: by the waiter's word, else by the doorbell
/// byte. None: bytes only.
fn prepare(epfd: i32, set: &'static Set) -> Option<Waiter> {
    let waiter = set.waiter_or_take();
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return None };
    let inner = l.inner;
    let waiter = waiter.filter(|w| {
        if !inner.bell_registered {
            let e = epoll_event { events: level::IN | ET, u64: BELL };
            inner.bell_registered = desc::epoll_ctl(epfd, EPOLL_CTL_ADD, w.eventfd(), Some(e)).is_ok();
        }
        inner.bell_registered
    });
    let mut i = 0;
    while i < inner.hot_len {
        let m = inner.hot(i);
        i += 1;
        let mb = *inner.member(m);
        let Some(s) = table::sock(mb.fd) else { continue };
        if let Some(dir) = s.rx.dir() {
            let word = waiter.map_or(0, Waiter::word);
            let named = word != 0 && dir.bell.load(Relaxed) == word && s.rx.waiter.load(Relaxed) == word;
            if !named && !mb.ghost {
                let marker = Marker::new();
                if let Some(_held) = s.rx.lock.try_take(&marker) {
                    match waiter {
                        Some(w) if s.rx_in_memory() => {
                            bell::drain(s, dir, mb.fd);
                            bell::name_waiter(s, dir, w);
                        }
                        _ => rx::settle(s, dir, mb.fd),
                    }
                }
            }
        }
        let wants_out = mb.events & level::OUT != 0 && !mb.spent && !mb.ghost;
        if wants_out
            && s.tx_in_memory()
            && let Some(dir) = s.tx.dir()
            && !engine_wait::has_room(s, dir)
            && !waiter.is_some_and(|w| engine_wait::name_writer(s, dir, w))
        {
            switch::spill(s, mb.fd, switch::Spill::NoWaiter);
        }
    }
    waiter
}

/// Another waiter may have taken a member's word meanwhile: the byte then wakes both.
fn check_names(set: &'static Set, w: Waiter) {
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return };
    for i in 0..l.inner.hot_len {
        let mb = *l.inner.member(l.inner.hot(i));
        if mb.ghost {
            continue;
        }
        if let Some(s) = table::sock(mb.fd)
            && let Some(dir) = s.rx.dir()
            && !bell::is_named(dir, w)
        {
            bell::arm(s, dir);
        }
    }
}

/// One more thread of this set sleeps.
fn lie_down(set: &Set, w: Waiter) {
    let marker = Marker::new();
    // Count and word change together: else one thread's waking could hide another's falling asleep.
    let _held = set.lock(&marker);
    set.sleepers.fetch_add(1, AcqRel);
    w.fall_asleep();
}

/// A thread is awake again; while others sleep the word says so, with a new number, so that the next
/// arrival wakes one of them.
fn get_up(set: &Set, w: Waiter) {
    let marker = Marker::new();
    let _held = set.lock(&marker);
    if set.sleepers.fetch_sub(1, AcqRel) > 1 {
        w.sleep_on();
    } else {
        w.wake_up();
    }
}

/// For epoll sets inside others, and poll on a set: the kernel must see every doorbell.
pub fn expose(epfd: i32, set: &'static Set) {
    if set.nested.swap(1, AcqRel) != 0 {
        return;
    }
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return };
    for m in 0..l.inner.used() {
        let mb = *l.inner.member(m);
        if mb.fd < 0 {
            continue;
        }
        if mb.ours {
            let _ = register(epfd, l.inner, m, true);
        }
        if let Some(s) = table::sock(mb.fd) {
            s.clear(flag::SEEN);
            rx::expose(s, mb.fd);
        }
    }
}
