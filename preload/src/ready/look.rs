//! What an epoll set reports of its members in memory, and what the kernel's events of them mean.
//!
//! Called by `wait` with the set locked.

use super::{ahead, level, wait};
use crate::engine::bell::{self, Kind};
use crate::engine::{debt, ear, follow, idle, kernel, linked, room, wait as engine_wait};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::fault::{self, Step as Fault};
use crate::sys::{clock, fd as desc};
use crate::table;
use crate::table::members::{Inner, Member, OF_DATA, OF_ROOM};
use crate::table::set::Set;
use crate::transport::changes;
use libc::epoll_event;
use std::sync::atomic::Ordering::*;

/// Data word of the set's own eventfd.
pub const BELL: u64 = 0x7f53_4d43_5242_454c;
/// Data word of the channel of links.
pub const CHANNEL: u64 = 0x7f53_4d43_5243_484e;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// Unproductive looks after which a member turns cold, if 2 ms have passed as well.
const PATIENCE: u32 = 500;

/// A member that had nothing is looked at by its cursors alone but for each time of so many: what else may
/// happen to it is rare, and the kernel's set tells it too.
const WHOLE: u32 = 8;

/// What the kernel tells beside data.
const ENDS: u32 = level::RDHUP | level::HUP | level::ERR | level::PRI;

/// How much of each hot member to look at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Mostly whether data came.
    Quick,
    /// Everything, as before a sleep.
    Whole,
}

/// Looks at the hot members and writes their events.
pub fn look(set: &'static Set, inner: &mut Inner, out: &mut [epoll_event], depth: Depth) -> usize {
    let mut n = 0;
    let len = inner.hot_len;
    let mut i = if inner.turn < len { inner.turn } else { 0 };
    let mut left = len;
    let mut now = 0;
    let mut idle = [0u32; 16];
    let mut idle_len = 0;
    ahead::begin(inner, i);
    while left > 0 && n < out.len() {
        if i >= inner.hot_len {
            i = 0;
        }
        let m = inner.hot(i);
        ahead::go_on(inner, i, left);
        left -= 1;
        i += 1;
        let mb = inner.member_mut(m);
        let is_quick = depth == Depth::Quick && mb.idle % WHOLE != WHOLE - 1;
        if let Some(e) = event_of(mb, is_quick) {
            out[n] = e;
            n += 1;
            if mb.lingers {
                inner.kernel_look = 0;
            }
            continue;
        }
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
    }
    inner.turn = i;
    if n > 0 && set.untidy.load(Relaxed) == 0 {
        set.untidy.store(1, Relaxed);
    }
    // After the walk: taking a member out moves another into its place.
    for m in &idle[..idle_len] {
        turn_cold(set, inner, *m);
    }
    n
}

/// What the program gets of a member now.
#[inline]
fn event_of(mb: &mut Member, is_quick: bool) -> Option<epoll_event> {
    if mb.ghost || mb.spent || !mb.ours {
        return None;
    }
    let s = table::sock(mb.fd)?;
    if !mb.fresh {
        if mb.events & ET != 0 {
            if is_unchanged(s, mb.seen_in, mb.seen_full, mb.seen_bits, is_quick) {
                return None;
            }
        } else if is_quick && !mb.asks_for_room() && has_no_data(s) {
            return None;
        }
    }
    let out = mb.asks_for_room();
    let head_of = || s.rx.dir().map_or(0, |d| d.head.load(Acquire));
    let before = head_of();
    let bits = level::usual(s, out).unwrap_or_else(|| level::level(s, mb.fd, false));
    let bits = level::with_norms(bits);
    fault::pass(Fault::Looked);
    let wanted = bits & (mb.events | level::ERR | level::HUP) & !(ET | ONESHOT);
    let report = if mb.events & ET != 0 {
        // What comes just after a look that finds nothing is told by the next one.
        let head = if bits & level::IN != 0 { head_of() } else { before };
        let full = s.tx.looked.load(Relaxed);
        // As the kernel's wake-ups, of which each calls those alone that ask for what it is about.
        let (asks_in, new) = (mb.asks_for_data(), bits & !mb.seen_bits);
        let edge = mb.fresh
            || asks_in && (head != mb.seen_in && bits & level::IN != 0 || new & OF_DATA != 0)
            || out && (full != mb.seen_full && bits & level::OUT != 0 || new & OF_ROOM != 0)
            || new & !(OF_DATA | OF_ROOM) != 0;
        mb.seen_in = head;
        if bits & level::OUT != 0 {
            mb.seen_full = full;
        }
        mb.seen_bits = bits;
        edge
    } else {
        // Told of the same bytes again: the program is after something else, which the kernel may have.
        // Only what was told counts: a look that found nothing stands at the same place.
        mb.lingers = false;
        if wanted & level::IN != 0 {
            let at = s.rx.cursor.load(Relaxed);
            mb.lingers = at == mb.seen_in;
            mb.seen_in = at;
        }
        true
    };
    if wanted == 0 || !report {
        return None;
    }
    if wanted & level::IN != 0 {
        ahead::data(s);
    }
    mb.fresh = false;
    // What the cursors don't show, an end as a rule, is there for the next look as well.
    mb.idle = if mb.events & ET == 0 && has_no_data(s) { WHOLE - 1 } else { 0 };
    if mb.events & ONESHOT != 0 {
        mb.spent = true;
    }
    Some(epoll_event { events: wanted, u64: mb.data })
}

/// Level-triggered, waits for data alone: the ring is empty.
#[inline]
fn has_no_data(s: &Sock) -> bool {
    s.rx_in_memory() && s.rx.dir().is_some_and(|d| d.head.load(Acquire) == s.rx.cursor.load(Relaxed))
}

/// Edge-triggered: nothing new since the last report, told from cursors alone.
#[inline]
fn is_unchanged(s: &Sock, seen_in: u64, seen_full: u64, seen_bits: u32, is_quick: bool) -> bool {
    let (Some(dir), true, true) = (s.rx.dir(), s.rx_in_memory(), s.tx_in_memory()) else { return false };
    if dir.head.load(Acquire) != seen_in
        || seen_bits & level::OUT == 0
        || s.tx.looked.load(Relaxed) != seen_full
    {
        return false;
    }
    is_quick
        || s.rx.end.load(Relaxed) == 0
        && dir.fin.load(Relaxed) & 1 == 0
        && dir.switch.load(Relaxed) == s.rx.switches.load(Relaxed)
        && !follow::is_asked(s)
        && !s.has(flag::SHUT_RD | flag::SHUT_WR)
}

/// Arms the doorbell byte of a member that had nothing for long; false if something came meanwhile.
pub fn turn_cold(_set: &'static Set, inner: &mut Inner, m: u32) -> bool {
    let mb = *inner.member(m);
    let s = table::sock(mb.fd);
    if let Some(s) = s
        && let Some(dir) = s.rx.dir()
        && mb.ours
    {
        if waits_for_room(s, &mb) {
            inner.member_mut(m).idle = 0;
            return false;
        }
        let marker = Marker::new();
        let Some(_held) = s.rx.lock.try_take(&marker) else { return false };
        kernel::arm_for(s, dir, mb.fd, None, Kind::Set);
        if follow::pending(s, dir) && s.rx.end.load(Relaxed) == 0 && !wait_is_over(s) {
            inner.member_mut(m).idle = 0;
            return false;
        }
        idle::release(s);
    }
    inner.cool(m);
    true
}

/// A member that waits for room in a full ring stays hot: the byte is for arriving data only. So does one whose ring has had room
/// since the last look at it, which the program has not heard of.
fn waits_for_room(s: &Sock, mb: &Member) -> bool {
    if !mb.asks_for_room() || mb.spent || mb.ghost || !s.tx_in_memory() {
        return false;
    }
    let is_told = mb.events & ET != 0 && !mb.fresh && mb.seen_bits & level::OUT != 0 && s.tx.looked.load(Relaxed) == mb.seen_full;
    !is_told || s.tx.dir().is_some_and(|d| !room::has_room(s, d))
}

fn wait_is_over(s: &Sock) -> bool {
    engine_wait::is_over(s)
}

/// Kernel events in `out[at..at + k]`: those of members in memory make them hot and go, the others
/// stay. `buried`: registrations of ours that had ended before the kernel was asked. Returns the new number of events.
pub fn keep(epfd: i32, set: &'static Set, inner: &mut Inner, out: &mut [epoll_event], at: usize, k: usize, buried: u64) -> usize {
    let mut n = at;
    for i in at..at + k {
        let e = out[i];
        if inner.buried.holds(e.u64, buried) && is_let_go(epfd, inner, e.u64) {
            continue;
        }
        if let Some(m) = plain_member(inner, e.u64) {
            told_by_kernel(inner, m);
            out[n] = e;
            n += 1;
            continue;
        }
        if e.u64 == BELL || ear::is_heard(e.u64, set.waiter()) {
            // Taken by this thread; those that sleep need a ring of their own for what comes next.
            if set.sleepers.load(Relaxed) > 0
                && let Some(w) = set.waiter()
            {
                w.sleep_on();
            }
            if set.alone.load(Relaxed) > 0
                && let Some(w) = set.waiter()
            {
                w.ring(); // `sleep::call_who_is_alone`
            }
            continue;
        }
        if e.u64 == CHANNEL {
            linked::heard();
            continue;
        }
        let mut ours = false;
        let mut plain = None;
        let mut several = false;
        let members = members_of(inner, e.u64);
        for m in members.into_iter().flatten() {
            if !inner.member(m).ours
                && let Some(s) = table::sock(inner.member(m).fd).filter(|s| level::is_ours(s))
            {
                // A relative has moved it to memory, which nobody has noted in this process: other sets have it too.
                changes::note(s);
                wait::refresh(epfd, set, inner, m);
            }
            let mb = *inner.member(m);
            if mb.ours || mb.ghost {
                ours = true;
                if mb.ours && !mb.ghost {
                    kernel_event(mb.fd, e.events);
                    inner.heat(m);
                    if e.events & ENDS != 0 {
                        inner.member_mut(m).idle = WHOLE - 1; // cursors don't show it
                    }
                    if e.events & level::IN != 0 && has_payload(mb.fd) {
                        // An edge of its own, also where nobody looked between two of them; the cursors don't show it.
                        let mb = inner.member_mut(m);
                        mb.seen_bits &= !(level::IN | level::NORMS.0);
                        mb.idle = WHOLE - 1;
                    }
                }
            } else {
                several |= plain.is_some();
                plain = Some(mb);
            }
        }
        let mut e = e;
        if let Some(mb) = plain.filter(|_| !ours && !several)
            && let Some(s) = table::sock(mb.fd).filter(|s| s.has(flag::UNASKED))
        {
            table::life::first_use(s, mb.fd);
            if s.is_linked() {
                // Bytes that made it readable were the handshake's.
                e.events &= level::OUT | level::NORMS.1;
                if e.events == 0 {
                    continue;
                }
            }
        }
        if let Some(mb) = plain.filter(|mb| !ours && !several && mb.events & ET != 0) {
            await_next_edge(mb.fd);
        }
        if !ours
            && let Some(mb) = plain.filter(|_| !several)
            && is_only_proof(set, mb.fd, e.events)
        {
            e.events &= !(level::IN | level::NORMS.0);
            if e.events & !(ET | ONESHOT) == 0 {
                if mb.events & ONESHOT != 0 {
                    // Not told, so not to be put to rest.
                    let again = epoll_event { events: mb.kernel, u64: mb.data };
                    let _ = desc::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, mb.fd, Some(again));
                }
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
        for m in members.into_iter().flatten().filter(|_| !several) {
            told_by_kernel(inner, m);
        }
        out[n] = e;
        n += 1;
    }
    n
}

/// The first members with this data.
fn members_of(inner: &Inner, data: u64) -> [Option<u32>; 8] {
    let mut found = [None; 8];
    for (slot, m) in found.iter_mut().zip(inner.by_data.all(data)) {
        *slot = Some(m);
    }
    found
}

/// An event that may be of a registration of ours, which has ended, or of a member that has the same data now: that one is asked
/// for again. False: it can't be asked for.
#[cold]
fn is_let_go(epfd: i32, inner: &mut Inner, data: u64) -> bool {
    let members = members_of(inner, data);
    if members.iter().flatten().any(|m| inner.member(*m).orphan) {
        return false;
    }
    for m in members.into_iter().flatten() {
        let mb = *inner.member(m);
        if mb.ours {
            inner.heat(m);
        } else if !mb.ghost && !mb.spent {
            let again = epoll_event { events: mb.kernel, u64: mb.data };
            let _ = desc::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, mb.fd, Some(again));
        }
    }
    true
}

/// The member that events with this data are of, if that is one, which is on TCP, and nothing else has to be known of it.
fn plain_member(inner: &Inner, data: u64) -> Option<u32> {
    let mut members = inner.by_data.all(data);
    let (Some(m), None) = (members.next(), members.next()) else { return None };
    let mb = inner.member(m);
    let is_plain = !mb.ours && !mb.ghost && table::sock(mb.fd).is_none_or(|s| !s.has(flag::UNASKED | flag::CAREFUL));
    is_plain.then_some(m)
}

/// The program has an event of a member on TCP. Of one that tells once, nothing is told until it is armed again, also if it
/// moves to memory meanwhile: the kernel has put it to rest, and we would not know.
fn told_by_kernel(inner: &mut Inner, m: u32) {
    let mb = inner.member(m);
    if mb.events & ONESHOT != 0 && !mb.ours {
        inner.member_mut(m).spent = true;
    }
}

/// Edge-triggered, on TCP and about to be told of what lies there: its peer may be in memory already, and what that sends before
/// all of it is read must be an edge of its own in the kernel's set.
fn await_next_edge(fd: i32) {
    if let Some(s) = table::sock(fd).filter(|s| s.has(flag::CAREFUL) && !s.rx_in_memory())
        && s.rx.dir().is_some_and(|d| d.switch.load(Acquire) != s.rx.switches.load(Relaxed))
    {
        kernel::expose(s, fd);
    }
}

/// The kernel calls a socket readable for the proof in its stream: not for the program. What lies in memory behind it is told by the
/// next look, as the member is the library's from here on; the kernel's event would be a second one of the same bytes. In a set that
/// relatives or other sets wait in the kernel alone tells.
fn is_only_proof(set: &Set, fd: i32, events: u32) -> bool {
    if events & level::IN == 0 || events & (level::RDHUP | level::HUP | level::ERR) != 0 {
        return false;
    }
    let Some(s) = table::sock(fd).filter(|s| s.has(flag::CAREFUL)) else { return false };
    follow::progress(s, fd);
    s.rx_in_memory() && set.nested.load(Relaxed) == 0 || level::level(s, fd, false) & level::IN == 0
}

/// Whether what comes through the kernel is for the program: not only doorbells.
fn has_payload(fd: i32) -> bool {
    table::sock(fd).is_some_and(|s| {
        let switch = s.rx.dir().map_or(0, |d| d.switch.load(Acquire));
        !s.rx_in_memory() || switch != s.rx.switches.load(Relaxed)
    })
}

/// The kernel's socket of a member in memory has something: a doorbell, or the end.
fn kernel_event(fd: i32, bits: u32) {
    let Some(s) = table::sock(fd) else { return };
    let Some(dir) = s.rx.dir() else { return };
    debt::pay(s, fd);
    let marker = Marker::new();
    let Some(_held) = s.rx.lock.try_take(&marker) else { return };
    if !s.rx_in_memory() {
        return;
    }
    let due = bell::unread(s, dir) != 0;
    kernel::was_called(s, dir, fd, Kind::Set);
    if bits & (level::RDHUP | level::HUP | level::ERR) != 0 || !due {
        kernel::look_for_end(s, fd, dir);
    }
}
