//! What lies in memory for members of a set that others wait for (poll on it, another set, relatives), without a doorbell in the kernel:
//! it came before anybody waited so, or was called by a name. Only the peer can send a doorbell, so the library's pipe stands in for it, as a
//! member of the kernel's set to which there is room to write until an event of it was taken.
//!
//! Put up where a set or its members change ([`look`], [`look_at`]), and looked after before each wait of the process as long as one stands
//! ([`refresh`]): taken away when nothing lies there any more, put up again when a call on the set has taken its event and left the rest.

use super::level;
use crate::control::wake;
use crate::engine::{bell, follow};
use crate::family::lock::Marker;
use crate::sys::{Errno, fd as desc};
use crate::table;
use crate::table::members::Inner;
use crate::table::set::{self, Set};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Data word of the stand-in.
pub const WORD: u64 = 0x7f53_4d43_5253_544e;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// `Set::stand_in`: nothing stands, its event was taken, it stands.
const NONE: u32 = 0;
const TAKEN: u32 = 1;
const UP: u32 = 2;

/// 1: there may be sets with one.
static ANY: AtomicU32 = AtomicU32::new(0);

/// The set, which is locked, is waited for by others from now on.
pub fn look(epfd: i32, set: &Set, inner: &Inner) {
    if any_lies(inner) {
        put_up(epfd, set);
    }
}

/// As [`look`], for a member that is new or was changed.
pub fn look_at(epfd: i32, set: &Set, inner: &Inner, m: u32) {
    if lies(inner, m) {
        put_up(epfd, set);
    }
}

/// Whether poll on a set that the program never waited in has to find something in memory.
pub fn is_untold(set: &'static Set) -> bool {
    let marker = Marker::new();
    set.waited.load(Relaxed) == 0 && set.lock(&marker).is_ok_and(|l| any_lies(l.inner))
}

/// Before a wait of whatever kind; no set is locked.
#[inline]
pub fn refresh() {
    if ANY.load(Relaxed) != 0 {
        refresh_all();
    }
}

#[cold]
fn refresh_all() {
    ANY.store(0, Relaxed);
    for set in set::all().filter(|s| s.stand_in.load(Relaxed) != NONE) {
        let marker = Marker::new();
        let (Ok(l), Some(epfd)) = (set.lock(&marker), set.number()) else {
            ANY.store(1, Relaxed);
            continue;
        };
        if !any_lies(l.inner) {
            let _ = wake::with_writable(|pipe| desc::epoll_ctl(epfd, EPOLL_CTL_DEL, pipe, None));
            set.stand_in.store(NONE, Relaxed);
        } else if set.stand_in.load(Relaxed) == TAKEN {
            put_up(epfd, set);
        } else {
            ANY.store(1, Relaxed);
        }
    }
}

/// A call on the set has the event of it, which is not the program's: the members that it stands for tell of themselves.
#[cold]
pub fn taken(set: &Set, inner: &mut Inner) {
    set.stand_in.store(TAKEN, Relaxed);
    for m in 0..inner.used() {
        if lies(inner, m) {
            inner.heat(m);
        }
    }
}

fn put_up(epfd: i32, set: &Set) {
    let e = epoll_event { events: level::OUT | ONESHOT, u64: WORD };
    let up = wake::with_writable(|pipe| match desc::epoll_ctl(epfd, EPOLL_CTL_ADD, pipe, Some(e)) {
        Err(Errno(libc::EEXIST)) => desc::epoll_ctl(epfd, EPOLL_CTL_MOD, pipe, Some(e)),
        r => r,
    });
    if up.is_some_and(|r| r.is_ok()) {
        set.stand_in.store(UP, Relaxed);
        ANY.store(1, Relaxed);
    }
}

fn any_lies(inner: &Inner) -> bool {
    (0..inner.used()).any(|m| lies(inner, m))
}

/// Whether a call on the set would tell of what lies in memory for this member, and the kernel would not.
fn lies(inner: &Inner, m: u32) -> bool {
    let mb = inner.member(m);
    if mb.fd < 0 || mb.ghost || mb.spent || !mb.asks_for_data() {
        return false;
    }
    let Some(s) = table::sock(mb.fd).filter(|s| s.rx_in_memory() && !s.is_linked()) else { return false };
    let Some(dir) = s.rx.dir().filter(|dir| bell::unread(s, dir) == 0) else { return false };
    let is_told = mb.ours && mb.events & ET != 0 && !mb.fresh && dir.head.load(Acquire) == mb.seen_in;
    !is_told && follow::in_ring(s, dir) >= u64::from(s.low_water.load(Relaxed).max(1))
}
