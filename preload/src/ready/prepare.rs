//! Before an epoll set sleeps, or polls: every hot member would wake it, by its waiter's word or by the doorbell byte, and what is the library's
//! own (the waiter's eventfd, smcrctl's, the channel of links) is in the kernel's set. Called by [`super::sleep`], [`super::wait`] and `ctl`.

use super::keep::{BELL, CHANNEL};
use super::level;
use crate::control::wake;
use crate::engine::bell::{self, Kind};
use crate::engine::{ear, here, kept, kernel, linked, room};
use crate::family::lock::Marker;
use crate::family::sock::Sock;
use crate::sys::{Errno, fd as desc};
use crate::table;
use crate::table::member::{ET, Member};
use crate::table::members::Inner;
use crate::table::set::Set;
use crate::transport::waiters::Waiter;
use libc::{EPOLL_CTL_ADD, epoll_event};
use std::sync::atomic::Ordering::*;

/// What a sleep was prepared with: the waiter, without which bytes alone wake; the ns after which to look again at rings without room;
/// `Inner::heats` then; and whether peers may ring late.
pub struct Prepared {
    /// The waiter.
    pub waiter: Option<Waiter>,
    /// Nanoseconds.
    pub full: Option<u64>,
    /// The number.
    pub heats: u64,
    /// With a bound.
    pub lenient: bool,
}

/// Not at all: it has no member in memory.
pub const NOTHING: Prepared = Prepared { waiter: None, full: None, heats: 0, lenient: false };

/// Makes sure that every hot member would wake this set: by the waiter's word, else by the doorbell
/// byte.
pub fn prepare(epfd: i32, set: &'static Set) -> Prepared {
    let mut full = u64::MAX;
    let waiter = set.waiter_or_take();
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return NOTHING };
    let inner = &mut *l.inner;
    inner.unnamed = false;
    let heats = inner.heats;
    inner.prepared = heats;
    let waiter = waiter.filter(|w| is_registered(epfd, inner, *w));
    let (may_be_lenient, mut beside) = (waiter.is_some() && set.lenient.is(), false);
    let mut i = 0;
    while i < inner.hot_len {
        let m = inner.hot(i);
        i += 1;
        let mb = *inner.member(m);
        let Some(s) = table::sock(mb.fd) else { continue };
        if s.is_linked() {
            register_channel(epfd, set, inner);
        }
        arm(s, &mb, waiter);
        beside |= may_be_lenient && is_beside(s, waiter);
        let wants_out = mb.asks_for_room() && !mb.spent && !mb.ghost;
        if let Some(w) = waiter {
            room::be_callable(s, w);
            // Another descriptor of it may be a member that waits for room.
            if !wants_out && !table::life::has_twins(s) {
                room::forget(s, w);
            }
        }
        full = full.min(here::looks_again(s).unwrap_or(u64::MAX));
        if wants_out && let Some(ns) = room::prepare_writer(s, mb.fd, waiter, mb.events & level::IN != 0) {
            full = full.min(ns);
        }
    }
    if let Some(w) = waiter {
        ear::join(epfd, w, &mut inner.ears);
    }
    Prepared { waiter, full: (full != u64::MAX).then_some(full), heats, lenient: beside }
}

/// Before it polls: members that have become hot get the waiter's name, or each arrival would ring the
/// doorbell until the first sleep, which may never come.
pub fn name_hot(epfd: i32, set: &'static Set, inner: &mut Inner) {
    inner.unnamed = false;
    let Some(w) = set.waiter_or_take().filter(|w| is_registered(epfd, inner, *w)) else { return };
    for i in 0..inner.hot_len {
        let mb = *inner.member(inner.hot(i));
        if let Some(s) = table::sock(mb.fd).filter(|s| bell::is_sole(s, Kind::Set)) {
            arm(s, &mb, Some(w));
        }
    }
    // Another thread may sleep on the set already.
    ear::join(epfd, w, &mut inner.ears);
}

/// Makes sure that what comes wakes this waiter; without one, or beside others, by the doorbell byte.
fn arm(s: &Sock, mb: &Member, waiter: Option<Waiter>) {
    let Some(dir) = s.rx.dir() else { return };
    let word = waiter.map_or(0, Waiter::word);
    let named = word != 0 && dir.bell.load(Relaxed) == word && s.rx.waiter.load(Relaxed) == word;
    let marker = Marker::new();
    if !named
        && !mb.ghost
        && let Ok(_held) = s.rx.lock.take(&marker)
    {
        kernel::arm_for(s, dir, mb.fd, waiter, Kind::Set);
    }
}

/// Whether what comes rings this waiter, from the processor that it then takes.
fn is_beside(s: &Sock, waiter: Option<Waiter>) -> bool {
    let Some(dir) = s.rx.dir() else { return false };
    kept::is_beside(&dir.producer_cpu) && waiter.is_some() && Waiter::of_word(dir.bell.load(Relaxed)) == waiter
}

/// Whether the kernel's set reports the waiter's eventfd.
pub(super) fn is_registered(epfd: i32, inner: &mut Inner, w: Waiter) -> bool {
    if !inner.bell_registered {
        let e = epoll_event { events: level::IN | ET, u64: BELL };
        inner.bell_registered = w.with_eventfd(|held| desc::epoll_ctl(epfd, EPOLL_CTL_ADD, held.fd(), Some(e)).is_ok()) == Some(true);
        // smcrctl's own bell: an event of it makes the thread look at the control page.
        let _ = desc::epoll_ctl(epfd, EPOLL_CTL_ADD, wake::descriptor(), Some(e));
    }
    inner.bell_registered
}

/// What is the library's own is in the kernel's set again, if it was.
pub fn rejoin(epfd: i32, set: &'static Set, inner: &mut Inner) {
    let (was_registered, had_channel) = (inner.bell_registered, inner.channel >= 0);
    inner.forget_waiter();
    if let Some(w) = set.waiter().filter(|w| was_registered && is_registered(epfd, inner, *w)) {
        ear::join(epfd, w, &mut inner.ears);
    }
    if had_channel {
        set.channel.store(0, Relaxed);
        register_channel(epfd, set, inner);
    }
}

/// The kernel's set reports the channel of links.
fn register_channel(epfd: i32, set: &Set, inner: &mut Inner) {
    let Some((channel, serial)) = linked::channel().filter(|(_, serial)| *serial != set.channel.load(Relaxed)) else { return };
    if inner.channel != channel && linked::is_channel(inner.channel) {
        let _ = desc::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, inner.channel, None);
    }
    let e = epoll_event { events: level::IN | ET, u64: CHANNEL };
    let added = match desc::epoll_ctl(epfd, EPOLL_CTL_ADD, channel, Some(e)) {
        Ok(_) | Err(Errno(libc::EEXIST)) => true,
        Err(_) => false,
    };
    inner.channel = if added { channel } else { -1 };
    set.channel.store(if added { serial } else { 0 }, Relaxed);
}
