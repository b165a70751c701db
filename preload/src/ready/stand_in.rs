//! What lies in memory for members of a set that others wait for (poll on it, another set, relatives), without a doorbell in the kernel:
//! it came before anybody waited so, or was called by a name. Only the peer can send a doorbell, so the library's pipe stands in for it, as a
//! member of the kernel's set to which there is room to write until an event of it was taken; where edges alone are told, as long as
//! something lies.
//!
//! Put up where a set or its members change ([`look`], [`look_at`]) or a call on it leaves something ([`look_behind`]), and looked after
//! before each wait of the process as long as one stands ([`refresh`]): taken away when nothing lies there any more, put up again when a
//! call on the set has taken its event and left the rest.

use super::look::is_untold;
use super::{ctl, level};
use crate::control::{self, wake};
use crate::engine::{bell, follow};
use crate::family::lock::Marker;
use crate::family::process;
use crate::sys::{Errno, fd as desc};
use crate::table;
use crate::table::member::ONESHOT;
use crate::table::members::Inner;
use crate::table::set::{self, BY_LEVEL, EDGES_ALONE, NO_STAND_IN as NONE, STAND_IN_TAKEN as TAKEN, STAND_IN_UP as UP, STAND_INS, Set};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use std::sync::atomic::Ordering::*;

/// Data word of the stand-in.
pub const WORD: u64 = 0x7f53_4d43_5253_544e;

/// The set, which is locked, is waited for by others from now on.
pub fn look(epfd: i32, set: &Set, inner: &Inner) {
    if any_lies(inner) {
        put_up(epfd, set);
    }
}

/// As [`look`], for a member that is new or was changed, if others wait for the set.
pub fn look_at(epfd: i32, set: &Set, inner: &Inner, m: u32) {
    if set.nested.load(Relaxed) != 0 && lies(inner, m) {
        put_up(epfd, set);
    }
}

/// A call on the set has looked: whoever waits for it finds what that has left, and nothing of what it has told.
#[inline]
pub fn look_behind(epfd: i32, set: &Set, inner: &mut Inner) {
    let nested = set.nested.load(Relaxed);
    if nested != 0 {
        look_behind_nested(epfd, set, inner, nested == BY_LEVEL);
    }
}

#[cold]
fn look_behind_nested(epfd: i32, set: &Set, inner: &mut Inner, by_level: bool) {
    ctl::put_in_line(epfd, inner);
    let is_up = set.stand_in.load(Relaxed) == UP;
    if !is_up && by_level && (0..inner.hot_len).any(|i| lies(inner, inner.hot(i))) {
        put_up(epfd, set);
    }
}

/// Whether poll on a set that the program never waited in has to find something in memory.
pub fn has_untold(set: &'static Set) -> bool {
    let marker = Marker::new();
    set.waited.load(Relaxed) == 0 && set.lock(&marker).is_ok_and(|l| any_lies(l.inner))
}

/// Before a wait of whatever kind; no set is locked.
#[inline]
pub fn refresh() {
    if STAND_INS.load(Relaxed) != 0 {
        refresh_all();
    }
}

#[cold]
fn refresh_all() {
    // Before the sets are looked at: pairs with the stores in `put_up`.
    STAND_INS.swap(0, SeqCst);
    let mut stays = false;
    for set in set::all().filter(|s| s.stand_in.load(SeqCst) != NONE) {
        let marker = Marker::new();
        let (Ok(l), Some(epfd)) = (set.lock(&marker), set.number()) else {
            stays = true;
            continue;
        };
        if !any_lies(l.inner) {
            take_down(epfd, set);
            continue;
        }
        stays = true;
        // A relative that looks at the kernel's set has taken its event there, and this process does not know.
        let is_taken = set.stand_in.load(Relaxed) == TAKEN;
        if is_taken || set.nested.load(Relaxed) == BY_LEVEL && process::has_had_relatives() {
            put_up(epfd, set);
        }
    }
    if stays {
        STAND_INS.store(1, SeqCst);
    }
}

fn take_down(epfd: i32, set: &Set) {
    let _ = wake::with_writable(|pipe| desc::epoll_ctl(epfd, EPOLL_CTL_DEL, pipe, None));
    set.stand_in.store(NONE, Relaxed);
}

/// The kernel's set is to be the program's own, until the process waits again if it does (`leave`).
pub fn leave(epfd: i32, set: &Set) {
    if set.stand_in.load(Relaxed) != NONE {
        take_down(epfd, set);
        set.stand_in.store(TAKEN, Relaxed);
        STAND_INS.store(1, SeqCst);
    }
}

/// A call on the set has the event of it, which is not the program's: the members that it stands for tell of themselves.
#[cold]
pub fn taken(epfd: i32, set: &Set, inner: &mut Inner) {
    let mut any = false;
    for m in 0..inner.used() {
        if lies(inner, m) {
            inner.heat(m);
            any = true;
        }
    }
    if set.nested.load(Relaxed) != EDGES_ALONE {
        set.stand_in.store(TAKEN, Relaxed);
    } else if !any {
        take_down(epfd, set);
    } // else it stands there still, as what is left in a set does, and makes no edge by that
}

fn put_up(epfd: i32, set: &Set) {
    if control::is_restricted() {
        return; // nobody has asked the process' filter for that
    }
    let once = if set.nested.load(Relaxed) == EDGES_ALONE { 0 } else { ONESHOT };
    let e = epoll_event { events: level::OUT | once, u64: WORD };
    let up = wake::with_writable(|pipe| match desc::epoll_ctl(epfd, EPOLL_CTL_ADD, pipe, Some(e)) {
        Err(Errno(libc::EEXIST)) => desc::epoll_ctl(epfd, EPOLL_CTL_MOD, pipe, Some(e)),
        r => r,
    });
    if up.is_some_and(|r| r.is_ok()) {
        set.stand_in.store(UP, SeqCst);
        STAND_INS.store(1, SeqCst);
    }
}

fn any_lies(inner: &Inner) -> bool {
    (0..inner.used()).any(|m| lies(inner, m))
}

/// Whether a call on the set would tell of this member, and the kernel would not.
fn lies(inner: &Inner, m: u32) -> bool {
    let mb = inner.member(m);
    if mb.fd < 0 || mb.ghost || mb.spent {
        return false;
    }
    let Some(s) = table::sock(mb.fd).filter(|s| !s.is_linked()) else { return false };
    if mb.ours && mb.tells_once() {
        return is_untold(mb);
    }
    let asks_for_data = mb.events & (level::IN | level::NORMS.0) != 0;
    let Some(dir) = s.rx.dir().filter(|_| asks_for_data && s.rx_in_memory()) else { return false };
    (mb.tells_once() || bell::unread(s, dir) == 0) && follow::in_ring(s, dir) >= u64::from(s.low_water.load(Relaxed).max(1))
}
