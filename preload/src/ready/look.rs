//! What an epoll set reports of its members in memory ([`super::keep`]: what the kernel's events of them mean).
//!
//! Called by `wait` with the set locked.

use super::{ahead, level, posted};
use crate::engine::bell::Kind;
use crate::engine::{follow, here, idle, kernel, room, wait as engine_wait};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::fault::{self, Step as Fault};
use crate::sys::clock;
use crate::table;
use crate::table::member::{ET, LITTLE, Member, OF_DATA, OF_ROOM, ONESHOT, PATIENCE, WHOLE};
use crate::table::members::Inner;
use crate::table::set::Set;
use crate::transport::region::{Dir, fin};
use libc::epoll_event;
use std::sync::atomic::Ordering::*;

/// Members that a walk takes out of the hot list.
const AT_ONCE: usize = 16;
/// So many hot members cost little to look at: there each has all the patience.
const FEW: u32 = 32;

// It has been looked at whole before it turns cold: an end that the program was told of with data is there when that is read.
const _: () = assert!(WHOLE < LITTLE);

/// How much of each hot member to look at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Mostly whether data came.
    Quick,
    /// Everything.
    Whole,
    /// The same before a sleep, which asks the kernel itself.
    Last,
}

/// Looks at the hot members and writes their events.
pub fn look(set: &'static Set, inner: &mut Inner, out: &mut [epoll_event], depth: Depth) -> usize {
    posted::take(inner);
    let mut n = 0;
    let len = inner.hot_len;
    let mut i = if inner.turn < len { inner.turn } else { 0 };
    let mut left = len;
    let mut now = 0;
    let mut idle = [0u32; AT_ONCE];
    let mut idle_len = 0;
    let least = if len > FEW { 0 } else { PATIENCE };
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
            let (lingers, is_level) = (mb.lingers, !mb.tells_once());
            if lingers {
                inner.kernel_look = 0;
            }
            inner.left |= is_level;
            continue;
        }
        mb.idle += 1;
        if mb.idle <= mb.patience.max(least) {
            mb.last = 0;
        } else if mb.idle <= PATIENCE {
            if idle_len < idle.len() {
                idle[idle_len] = m;
                idle_len += 1;
            }
        } else {
            if now == 0 {
                now = clock::ticks();
            }
            if mb.last == 0 {
                mb.last = now;
            } else if now.wrapping_sub(mb.last) > clock::ticks_of_us(2000) && idle_len < idle.len() {
                idle[idle_len] = m;
                idle_len += 1;
            }
        }
    }
    inner.turn = i;
    inner.cut |= left > 0;
    if n > 0 && set.untidy.load(Relaxed) == 0 {
        set.untidy.store(1, Relaxed);
    }
    // After the walk: taking a member out moves another into its place.
    for m in &idle[..idle_len] {
        let may_wait = inner.member(*m).idle <= PATIENCE;
        turn_cold(set, inner, *m, may_wait);
    }
    if idle_len == AT_ONCE {
        post_all(set, inner);
    }
    n
}

/// There are more: else a walk that finds many words would leave as many members hot each time, and find the more the longer it gets.
#[cold]
fn post_all(set: &'static Set, inner: &mut Inner) {
    for i in (0..inner.hot_len).rev() {
        let m = inner.hot(i);
        let mb = inner.member(m);
        if inner.hot_len > FEW && mb.idle > mb.patience && mb.idle <= PATIENCE {
            turn_cold(set, inner, m, true);
        }
    }
}

/// Whether a hot member has something for another thread, as far as cursors show it.
pub fn is_any_due(inner: &Inner) -> bool {
    (0..inner.hot_len).map(|i| inner.member(inner.hot(i))).any(|mb| {
        let Some(s) = table::sock(mb.fd).filter(|_| mb.ours && !mb.ghost && !mb.spent) else { return false };
        match mb.events & ET != 0 && !mb.fresh {
            true => {
                let has_come = s.rx.dir().is_some_and(|d| d.head.load(Acquire) != mb.seen_in);
                has_come || mb.asks_for_room() && s.tx.looked.load(Relaxed) != mb.seen_full
            }
            false => mb.asks_for_room() || !has_no_data(s),
        }
    })
}

/// Whether the next look at a member would tell something.
pub fn is_untold(mb: &Member) -> bool {
    event_of(&mut { *mb }, false).is_some()
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
        } else if is_quick && !mb.asks_for_room() && has_no_data(s) && (goes_on(s) || !mb.asks_for_data()) {
            return None;
        }
    }
    let out = mb.asks_for_room();
    let head_of = || s.rx.dir().map_or(0, |d| d.head.load(Acquire));
    let is_edge = mb.events & ET != 0;
    let before = if is_edge { head_of() } else { 0 };
    let bits = level::usual(s, out).unwrap_or_else(|| level::level(s, mb.fd, false));
    let bits = level::with_norms(bits);
    fault::pass(Fault::Looked);
    let wanted = bits & (mb.events | level::ERR | level::HUP) & !(ET | ONESHOT);
    let report = if is_edge {
        // What comes just after a look that finds nothing is told by the next one.
        let head = if bits & level::IN != 0 { head_of() } else { before };
        let full = s.tx.looked.load(Relaxed);
        // As the kernel's wake-ups, of which each calls those alone that ask for what it is about.
        let (asks_in, new) = (mb.asks_for_data(), bits & !mb.seen_bits);
        let edge = mb.fresh
            || asks_in && (head != mb.seen_in && (bits & level::IN != 0 || out && was_read(s, head, mb.seen_in)) || new & OF_DATA != 0)
            || out && (full != mb.seen_full && bits & level::OUT != 0 || new & OF_ROOM != 0)
            || new & !(OF_DATA | OF_ROOM) != 0;
        mb.seen_in = head;
        if bits & level::OUT != 0 {
            mb.seen_full = full;
        }
        mb.seen_bits = bits;
        if out && edge && wanted != 0 {
            mb.moved = false;
        }
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
    mb.idle = 0;
    if !is_edge && has_no_data(s) {
        mb.is_looked_at_whole();
    }
    if mb.events & ONESHOT != 0 {
        mb.spent = true;
    }
    Some(epoll_event { events: wanted, u64: mb.data })
}

/// Whether what has come since then would have woken a waiter, and has been read: the kernel, which looks what there is when it is asked, tells who
/// waits for room as well of that. Also where the next comes by TCP.
#[cold]
fn was_read(s: &Sock, head: u64, seen: u64) -> bool {
    head == s.rx.cursor.load(Relaxed) && head.wrapping_sub(seen) >= u64::from(s.low_water.load(Relaxed).max(1))
}

/// The ring is empty.
#[inline]
fn has_no_data(s: &Sock) -> bool {
    s.rx_in_memory() && s.rx.dir().is_some_and(|d| d.head.load(Acquire) == s.rx.cursor.load(Relaxed))
}

/// Nothing says that the stream has ended, or goes on elsewhere. Where that was told together with data, nobody tells it again when they are read.
#[inline]
fn goes_on(s: &Sock) -> bool {
    let is_marked = |d: &Dir| d.switch.load(Relaxed) ^ s.rx.switches.load(Relaxed) | d.fin.load(Relaxed) & fin::ENDS != 0;
    let own = s.rx.end.load(Relaxed) | s.rx.gate.load(Relaxed) | s.error.load(Relaxed) | s.flags.load(Relaxed) & (flag::SHUT_RD | flag::URGENT);
    own == 0 && !s.rx.dir().is_some_and(is_marked)
}

/// Edge-triggered: nothing new since the last report, told from cursors alone.
#[inline]
fn is_unchanged(s: &Sock, seen_in: u64, seen_full: u64, seen_bits: u32, is_quick: bool) -> bool {
    let (Some(dir), true, true) = (s.rx.dir(), s.rx_in_memory(), s.tx_in_memory()) else { return false };
    if dir.head.load(Acquire) != seen_in || seen_bits & level::OUT == 0 || s.tx.looked.load(Relaxed) != seen_full {
        return false;
    }
    is_quick
        || s.rx.end.load(Relaxed) == 0
            && dir.fin.load(Relaxed) & 1 == 0
            && dir.switch.load(Relaxed) == s.rx.switches.load(Relaxed)
            && !follow::is_asked(s)
            && !s.has(flag::SHUT_RD | flag::SHUT_WR)
}

/// Arms a member that had nothing for long: it is posted, or has its doorbell byte, unless it `may_wait` for that. False: it stays
/// hot, as something came meanwhile, or for a while.
pub fn turn_cold(set: &'static Set, inner: &mut Inner, m: u32, may_wait: bool) -> bool {
    let mb = *inner.member(m);
    let s = table::sock(mb.fd);
    if let Some(s) = s
        && let Some(dir) = s.rx.dir()
        && mb.ours
    {
        if waits_for_room(s, &mb) || here::looks_again(s).is_some() {
            inner.member_mut(m).idle = 0;
            return false;
        }
        let marker = Marker::new();
        let Some(_held) = s.rx.lock.try_take(&marker) else { return false };
        let is_posted = posted::post(set, inner, m, s, dir);
        if !is_posted && may_wait {
            inner.member_mut(m).patience = PATIENCE;
            return false;
        }
        if !is_posted {
            kernel::arm_for(s, dir, mb.fd, None, Kind::Set);
        }
        let is_untold = mb.has_edges_of_both() && !mb.spent && !mb.ghost && s.rx_in_memory() && dir.head.load(Acquire) != mb.seen_in;
        if is_untold || follow::pending(s, dir) && s.rx.end.load(Relaxed) == 0 && !wait_is_over(s) {
            if is_posted {
                inner.heat(m); // its word is none of a hot one
            } else {
                inner.member_mut(m).idle = 0;
            }
            return false;
        }
        if !is_posted {
            idle::release(s);
        }
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
