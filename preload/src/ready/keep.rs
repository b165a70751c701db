//! What the kernel's events of an epoll set mean: those of members in memory make them hot, the others are the program's.
//!
//! Called by `wait` and `sleep` with the set locked.

use super::{ctl, level, stand_in, wait};
use crate::engine::bell::{self, Kind};
use crate::engine::{debt, ear, follow, kernel, linked};
use crate::family::lock::Marker;
use crate::family::sock::flag;
use crate::sys::fd as desc;
use crate::table;
use crate::table::index::Walk;
use crate::table::member::{ET, Member, ONESHOT};
use crate::table::members::Inner;
use crate::table::set::Set;
use crate::transport::changes;
use libc::{epoll_event, pollfd};
use std::sync::atomic::Ordering::*;

/// Data word of the set's own eventfd.
pub const BELL: u64 = 0x7f53_4d43_5242_454c;
/// Data word of the channel of links.
pub const CHANNEL: u64 = 0x7f53_4d43_5243_484e;

/// What the kernel tells beside data.
const ENDS: u32 = level::RDHUP | level::HUP | level::ERR | level::PRI;

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
            if is_at_rest(inner.member(m), e.events) {
                continue;
            }
            told_by_kernel(inner, m);
            out[n] = e;
            n += 1;
            continue;
        }
        if e.u64 == BELL || ear::is_heard(e.u64, set.waiter()) {
            // Taken by this thread; those that sleep need a ring of their own for what comes next.
            inner.heard = true;
            if set.is_slept_in()
                && let Some(w) = set.waiter()
            {
                w.sleep_on();
            }
            continue;
        }
        if e.u64 == stand_in::WORD {
            stand_in::taken(epfd, set, inner);
            continue;
        }
        if e.u64 == CHANNEL {
            linked::heard();
            continue;
        }
        let mut ours = false;
        let mut plain = None;
        let mut several = false;
        let mut rests = false;
        let mut walk = Walk::default();
        while let Some(m) = inner.by_data.next(e.u64, &mut walk) {
            if !inner.member(m).ours
                && let Some(s) = table::sock(inner.member(m).fd)
                && (level::is_ours(s) || e.events & level::RDHUP != 0 && level::is_dead(s, inner.member(m).fd))
            {
                // A relative has moved it to memory, which nobody has noted in this process, or it has ended: other sets have it too.
                changes::note(s);
                wait::refresh(epfd, set, inner, m);
            }
            let mb = *inner.member(m);
            if mb.ours || mb.ghost {
                ours = true;
                if mb.ours && !mb.ghost {
                    kernel_event(mb.fd, e.events);
                    inner.heat(m);
                    if mb.kernel & ONESHOT != 0 {
                        inner.member_mut(m).kernel = ONESHOT;
                    }
                    // Cursors don't show it; where the registration is the program's own, or a relative's, an end may be IN alone.
                    if e.events & ENDS != 0 || mb.kernel & level::RDHUP == 0 || ctl::is_relatives(mb.fd) {
                        inner.member_mut(m).is_looked_at_whole();
                    }
                    if mb.has_edges_of_both() && (mb.moved && e.events & level::IN == 0 || has_payload(mb.fd)) {
                        // As below, and all of it may have been read, and where the next comes known by that.
                        let mb = inner.member_mut(m);
                        mb.fresh = true;
                        mb.is_looked_at_whole();
                    } else if e.events & level::IN != 0 && has_payload(mb.fd) {
                        // An edge of its own, also where nobody looked between two of them; the cursors don't show it.
                        let mb = inner.member_mut(m);
                        mb.seen_bits &= !(level::IN | level::NORMS.0);
                        mb.is_looked_at_whole();
                    }
                }
            } else if !is_at_rest(&mb, e.events) {
                several |= plain.is_some();
                plain = Some(mb);
            } else {
                rests = true;
            }
        }
        if rests && plain.is_none() {
            continue;
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
            // The same data for members of both kinds: ask whether it can have been one of the others.
            let bits = if plain.is_some() { level_of_others(inner, e.u64) } else { 0 };
            if bits == 0 {
                continue;
            }
            e.events = bits;
        }
        let mut walk = Walk::default();
        while !several && let Some(m) = inner.by_data.next(e.u64, &mut walk) {
            told_by_kernel(inner, m);
        }
        out[n] = e;
        n += 1;
    }
    n
}

/// What the kernel would tell now of the members with this data that are not the library's.
fn level_of_others(inner: &Inner, data: u64) -> u32 {
    const AT_ONCE: usize = 16;
    let mut others = inner.by_data.all(data).map(|m| inner.member(m)).filter(|mb| !mb.ours && !mb.ghost && !mb.spent);
    let mut bits = 0;
    loop {
        let mut fds = [pollfd { fd: -1, events: 0, revents: 0 }; AT_ONCE];
        let mut n = 0;
        for (p, mb) in fds.iter_mut().zip(&mut others) {
            *p = pollfd { fd: mb.fd, events: mb.events as i16, revents: 0 };
            n += 1;
        }
        if n == 0 || desc::poll(&mut fds[..n], 0).is_err() {
            return bits;
        }
        // A pipe that was closed stays known by its data.
        let open = fds[..n].iter().filter(|p| p.revents & libc::POLLNVAL == 0);
        bits |= open.fold(0, |all, p| all | p.revents as u16 as u32);
    }
}

/// An event that may be of a registration of ours, which has ended, or of a member that has the same data now: that one is asked
/// for again. False: it can't be asked for.
#[cold]
fn is_let_go(epfd: i32, inner: &mut Inner, data: u64) -> bool {
    if inner.by_data.all(data).any(|m| inner.member(m).orphan) {
        return false;
    }
    let mut walk = Walk::default();
    while let Some(m) = inner.by_data.next(data, &mut walk) {
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

/// Told once, and gone back to TCP since: what is registered of it asks for nothing (`wait::refresh`), and the kernel tells of an end all
/// the same. The program has it in hand, and hears of that when it arms it again.
fn is_at_rest(mb: &Member, events: u32) -> bool {
    mb.spent && !mb.ours && mb.kernel == ONESHOT && events & !(level::ERR | level::HUP) == 0
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
        && s.rx.dir().is_some_and(|d| follow::is_marked(s, d))
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
