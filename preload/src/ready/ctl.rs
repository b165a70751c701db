//! epoll_ctl: the kernel's registration and ours.
//!
//! The kernel keeps a registration for every member with the program's data. For a member that the
//! library serves it asks only for doorbells and the end of the connection, edge-triggered, and stays
//! over DEL, ADD and MOD (redis-benchmark makes two of them per request); that is done only in sets on
//! which a hooked wait was seen.

use super::{level, sleep, stand_in, strays};
use crate::config;
use crate::engine::{bell, debt, kernel, room};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag, role};
use crate::sys::thread::full_fence;
use crate::sys::{Errno, fd as desc};
use crate::table::member::{ET, EXCLUSIVE, Member, ONESHOT};
use crate::table::members::Inner;
use crate::table::set::{self, BY_LEVEL, EDGES_ALONE, Set, make_for};
use crate::table::{self, Entry, homes};
use crate::transport::waiters::Waiter;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use std::sync::atomic::Ordering::*;

/// No registration is like this one.
const STALE: u32 = EXCLUSIVE | ET | ONESHOT;
/// What the kernel reports of a member that the library serves. Of one with edges of both the doorbell may be gone before the wait, so it
/// reports room as well, which is always there: then the registration is the program's own, if that asks for the end by its name.
const BELLS: u32 = level::IN | level::RDHUP | level::PRI | ET;

/// epoll_ctl(2); `real` makes the program's own call.
pub fn ctl(epfd: i32, op: i32, fd: i32, event: Option<epoll_event>, real: impl Fn() -> i32) -> i32 {
    let set = match table::epoll_set(epfd) {
        Some(s) => s,
        None if op == EPOLL_CTL_ADD && config::enabled() && fd != epfd => match begin(epfd, &real) {
            Ok((s, 0)) => {
                let marker = Marker::new();
                if let (Ok(l), Some(e)) = (s.lock(&marker), event) {
                    added(s, l.inner, epfd, fd, e);
                }
                return 0;
            }
            Ok((_, r)) => return r,
            Err(r) => return r,
        },
        None => return real(),
    };
    set.named.store(epfd, Relaxed);
    let marker = Marker::new();
    let Ok(locked) = set.lock(&marker) else { return real() };
    let inner = &mut *locked.inner;
    if let Some(m) = inner.adopt(fd)
        && inner.member(m).ours
    {
        register(epfd, inner, m, set.nested.load(Relaxed) != 0);
    }
    let r = match (op, event) {
        (EPOLL_CTL_ADD, Some(e)) => add(set, inner, epfd, fd, e, &real),
        (EPOLL_CTL_MOD, Some(e)) => modify(set, inner, epfd, fd, e, &real),
        (EPOLL_CTL_DEL, _) => delete(set, inner, fd, &real),
        _ => real(),
    };
    set.ours.store(inner.ours, Release);
    if r == 0 && op != EPOLL_CTL_DEL && set.sleepers.load(Relaxed) > 0 && needs_look(set, inner, fd) {
        // A thread that sleeps in this set must look at what changed.
        set.ring();
    }
    r
}

/// Whether who sleeps in the set would not hear of a member with new interest: it is the library's, and has something now, or what comes
/// for it wakes nobody there.
fn needs_look(set: &Set, inner: &Inner, fd: i32) -> bool {
    let Some(mb) = inner.by_fd.one(fd as u64).map(|m| inner.member(m)).filter(|mb| mb.ours) else { return false };
    let Some(s) = table::sock(fd) else { return true };
    if mb.asks_for_room() || !is_armed(set, s) {
        return true;
    }
    full_fence(); // as in `Waiter::fall_asleep`: what comes from here on rings
    level::usual(s, false) != Some(0)
}

/// Whether what arrives for it wakes the set: by the waiter's name, or by the byte.
fn is_armed(set: &Set, s: &Sock) -> bool {
    let word = s.rx.dir().map_or(0, |d| d.bell.load(Relaxed));
    matches!(word, bell::ARMED | bell::EACH) || set.waiter().is_some_and(|w| Waiter::of_word(word) == Some(w))
}

/// The first member of an epoll descriptor: asks the kernel first (it may be no epoll descriptor).
fn begin(epfd: i32, real: &impl Fn() -> i32) -> Result<(&'static Set, i32), i32> {
    let r = real();
    if r != 0 {
        return Err(r);
    }
    make_for(epfd).map(|s| (s, r)).ok_or(r)
}

fn add(set: &'static Set, inner: &mut Inner, epfd: i32, fd: i32, e: epoll_event, real: &impl Fn() -> i32) -> i32 {
    if let Some(m) = inner.by_fd.one(fd as u64) {
        let mb = *inner.member(m);
        // A listener is noted without (`added`); whether it is this one the kernel says.
        let is_it = |s: &Sock| s.generation.load(Relaxed) == mb.generation || mb.generation == 0 && s.role.load(Relaxed) == role::LISTENER;
        let now = table::sock(fd);
        let same = now.filter(|s| is_it(s));
        // A forked child that has waited in the set and closed the socket has taken it out of the kernel's set, which is its parent's as well (`set::forget_fd`).
        if mb.ghost && same.is_some_and(|s| !s.has(flag::FORKED)) && e.events & EXCLUSIVE == 0 {
            revive(set, inner, epfd, m, e);
            return 0;
        }
        if mb.ghost || (now.is_some() && same.is_none()) {
            let word = inner.own_word(m);
            let _ = desc::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, None);
            inner.drop_member(m);
            set.bury(inner, word);
        }
    }
    let r = real();
    if r == 0 {
        added(set, inner, epfd, fd, e);
    }
    r
}

/// The kernel has taken a new member.
fn added(set: &'static Set, inner: &mut Inner, epfd: i32, fd: i32, e: epoll_event) {
    expose_inner(fd, e.events);
    let sock = table::sock(fd).filter(|s| s.role.load(Relaxed) != role::LISTENER);
    if let Some(s) = sock {
        table::life::first_use(s, fd);
    }
    let generation = sock.map_or(0, |s| s.generation.load(Relaxed));
    // The kernel has taken it, so what was a member by that number is none any more: its close was not seen, or is none that hooks see.
    while let Some(old) = inner.by_fd.one(fd as u64) {
        let word = inner.own_word(old);
        inner.drop_member(old);
        set.bury(inner, word);
    }
    match table::get(fd) {
        Some(Entry::Sock(s)) => homes::add(s, set),
        Some(Entry::Set(_) | Entry::Ring(_)) => {}
        None => homes::note_stray(fd),
    }
    let Some(m) = inner.add(fd, e.events, e.u64, generation) else { return };
    strays::forget_closed(epfd, inner, m);
    if let Some(s) = sock {
        let waited = set.waited.load(Relaxed) != 0;
        let nested = set.nested.load(Relaxed) != 0;
        let first = inner.ours == 0;
        inner.count_in(m);
        if waited {
            s.set(flag::SEEN);
        }
        if !waited || nested {
            inner.hide(m);
        }
        if nested {
            s.nest();
        }
        // A waiter of another set is named, or a thread of this one sleeps in the kernel alone: the byte.
        if !waited || nested || first || set.alone.load(Relaxed) > 0 || s.sets.load(Relaxed) > 1 {
            kernel::expose(s, fd);
        }
        if waited && (level::is_ours(s) || level::is_dead(s, fd)) {
            take_over(epfd, set, inner, m);
            if nested {
                leave_full(inner.member(m));
                register_anew(epfd, inner, m, nested); // an edge that TCP's room had before counts for nothing
            } else {
                register(epfd, inner, m, nested);
            }
        }
        stand_in::look_at(epfd, set, inner, m);
    }
    set.ours.store(inner.ours, Release);
}

/// What is a member with these events is waited for by another set, if it is a set.
fn expose_inner(fd: i32, events: u32) {
    let inner = match table::get(fd) {
        Some(Entry::Set(s)) => Some(s),
        None => set::begin(fd),
        Some(Entry::Sock(_) | Entry::Ring(_)) => None,
    };
    if let Some(s) = inner {
        sleep::expose(fd, s, if events & ET != 0 { EDGES_ALONE } else { BY_LEVEL });
    }
}

/// A removed member comes back: the kernel's registration is still there.
fn revive(set: &'static Set, inner: &mut Inner, epfd: i32, m: u32, e: epoll_event) {
    renew(set, inner, epfd, m, e);
    inner.member_mut(m).ghost = false;
    inner.count_in(m);
    inner.heat(m);
    if set.alone.load(Relaxed) > 0
        && let Some(s) = table::sock(inner.member(m).fd)
    {
        kernel::expose(s, inner.member(m).fd); // as in `added`
        sleep::call_who_is_alone(epfd, set, inner);
    }
}

/// New interest for a member that the library serves.
fn renew(set: &'static Set, inner: &mut Inner, epfd: i32, m: u32, e: epoll_event) {
    let word = inner.own_word(m);
    let is_other = inner.member(m).data != e.u64;
    inner.set_data(m, e.u64);
    let mb = inner.member_mut(m);
    mb.events = e.events;
    mb.spent = false;
    mb.fresh = true;
    let nested = set.nested.load(Relaxed) != 0;
    let mb = *mb;
    if nested {
        leave_full(&mb);
    }
    // Where the kernel alone wakes who waits, each change is the kernel's as well: it arms edges and one-shots anew.
    if is_other || is_kernels(nested, &mb) {
        inner.member_mut(m).kernel = STALE;
    }
    register(epfd, inner, m, nested);
    stand_in::look_at(epfd, set, inner, m);
    if is_other {
        set.bury(inner, word);
    }
}

/// Who waits in the kernel alone hears of room in TCP only: a ring that is full is left (as `table::full` does for a send).
pub fn leave_full(mb: &Member) {
    if mb.asks_for_room()
        && let Some(s) = table::sock(mb.fd).filter(|s| !s.is_linked())
    {
        let _ = room::prepare_writer(s, mb.fd, None, false);
    }
}

/// Whether the kernel's registration of a member in memory is the program's own.
fn is_kernels(nested: bool, mb: &Member) -> bool {
    nested || is_relatives(mb.fd)
}

/// Whether a relative that waits in the set may have registered it anew (`wait::inherited`).
pub fn is_relatives(fd: i32) -> bool {
    table::sock(fd).is_some_and(|s| s.has(flag::SHARED))
}

fn modify(set: &'static Set, inner: &mut Inner, epfd: i32, fd: i32, e: epoll_event, real: &impl Fn() -> i32) -> i32 {
    let Some(m) = inner.by_fd.one(fd as u64) else { return real() };
    let mb = *inner.member(m);
    if mb.ghost {
        crate::sys::set_errno(Errno(libc::ENOENT));
        return -1;
    }
    if mb.ours && table::sock(fd).is_some() && mb.events & EXCLUSIVE == 0 {
        if e.events & EXCLUSIVE != 0 {
            crate::sys::set_errno(Errno(libc::EINVAL));
            return -1;
        }
        renew(set, inner, epfd, m, e);
        // What it was posted for would use its word up, and call one of those that sleep in the set alone.
        if inner.member(m).log != 0 || needs_look(set, inner, fd) {
            inner.heat(m);
        } else {
            inner.heat_armed(m);
        }
        set.ours.store(inner.ours, Relaxed);
        return 0;
    }
    let r = real();
    if r == 0 {
        inner.set_data(m, e.u64);
        let mb = inner.member_mut(m);
        mb.events = e.events;
        mb.kernel = e.events;
        mb.spent = false;
        mb.fresh = true;
        strays::forget_closed(epfd, inner, m);
        expose_inner(fd, e.events);
        stand_in::look_at(epfd, set, inner, m);
    }
    r
}

fn delete(set: &'static Set, inner: &mut Inner, fd: i32, real: &impl Fn() -> i32) -> i32 {
    let Some(m) = inner.by_fd.one(fd as u64) else { return real() };
    let mb = *inner.member(m);
    if mb.ghost {
        crate::sys::set_errno(Errno(libc::ENOENT));
        return -1;
    }
    let stays = mb.ours && set.waited.load(Relaxed) != 0 && mb.events & EXCLUSIVE == 0;
    if stays && !is_kernels(set.nested.load(Relaxed) != 0, &mb) {
        inner.member_mut(m).ghost = true;
        inner.count_out(m);
        return 0;
    }
    let r = real();
    if r == 0 || crate::sys::errno().0 == libc::ENOENT || crate::sys::errno().0 == libc::EBADF {
        let word = inner.own_word(m);
        inner.drop_member(m);
        set.bury(inner, word);
        if let Some(s) = table::sock(fd).filter(|_| !inner.has_orphans()) {
            homes::leave(s, set);
        }
    }
    r
}

/// A member's socket has a direction in memory: the library serves it from now on.
pub fn take_over(epfd: i32, set: &'static Set, inner: &mut Inner, m: u32) {
    let mb = inner.member_mut(m);
    // What TCP has brought before that, and is read by now, has its edge with the next event of the kernel's (`keep`).
    if mb.has_edges_of_both()
        && let Some(s) = table::sock(mb.fd)
    {
        let switches = s.rx.switches.load(Relaxed);
        mb.moved |= mb.ours && mb.switches != switches;
        mb.switches = switches;
    }
    if !mb.ours {
        mb.ours = true;
        mb.fresh = true;
        inner.ours += 1;
        set.ours.store(inner.ours, Release);
    }
    inner.heat(m);
    sleep::call_who_is_alone(epfd, set, inner);
}

/// As [`register`], where an edge that the kernel has told before counts for nothing.
pub fn register_anew(epfd: i32, inner: &mut Inner, m: u32, nested: bool) {
    if !inner.member(m).orphan {
        inner.member_mut(m).kernel = STALE;
        register(epfd, inner, m, nested);
    }
}

/// Behind a look of a set for which others wait, that is told by the kernel's registrations alone: of a member that was told once nothing is to be
/// shown, also where the kernel had nothing of it; one that the kernel has told of, and nothing came of it, is armed again.
pub fn put_in_line(epfd: i32, inner: &mut Inner) {
    for i in 0..inner.hot_len {
        let m = inner.hot(i);
        let mb = inner.member(m);
        if mb.ours && !mb.ghost && mb.events & ONESHOT != 0 && (mb.kernel == ONESHOT) != mb.spent {
            register(epfd, inner, m, true);
        }
    }
}

/// Whether edges of the kernel's registration are those of the wanted one: an end is also one of IN, and none of IN comes behind it. To ask for the
/// same anew would make an edge of what was told.
fn is_edge_enough(mb: &Member, want: u32) -> bool {
    let (has, in_or_end) = (mb.kernel, want & level::IN | mb.seen_bits & level::RDHUP);
    has & want == want && want & ET != 0 && in_or_end != 0 && has & !want & !(level::IN | level::RDHUP | level::PRI) == 0
}

/// Sets the kernel's registration for what the library serves, or back to the program's own. What is owed to TCP is paid first, as far
/// as the kernel takes it: of the rest it has to tell when there is room.
pub fn register(epfd: i32, inner: &mut Inner, m: u32, nested: bool) {
    let mb = inner.member_mut(m);
    if mb.orphan {
        return; // nobody can name it, and the kernel's registration is the program's own
    }
    let sock = table::sock(mb.fd).filter(|_| mb.ours);
    // Of one that relatives wait for in the same set (`wait::inherited`) the kernel tells them all.
    let is_shared = sock.is_some_and(|s| s.has(flag::SHARED));
    let served = mb.ours && !nested && !is_shared && mb.events & EXCLUSIVE == 0;
    // Of a direction that still is on TCP the kernel alone knows when there is room.
    let out = sock.is_some_and(|s| !debt::pay(s, mb.fd) || mb.asks_for_room() && !mb.spent && !s.tx_in_memory());
    let own = match (served, mb.has_edges_of_both()) {
        (false, _) if mb.spent => ONESHOT,
        (false, _) => mb.events,
        (true, false) => BELLS,
        (true, true) => mb.events & !ONESHOT | level::IN | level::OUT | level::RDHUP,
    };
    let want = own | if out { level::OUT } else { 0 };
    if mb.kernel == want || !served && is_edge_enough(mb, want) {
        return;
    }
    let e = epoll_event { events: want, u64: mb.data };
    if desc::epoll_ctl(epfd, EPOLL_CTL_MOD, mb.fd, Some(e)).is_ok() {
        mb.kernel = want;
    }
}
