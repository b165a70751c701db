//! epoll_wait: members in memory are looked at in user space, all others by the kernel.
//!
//! One pass: take in what changed its medium, look at the hot members, look at the kernel when 50 us
//! have passed or the program leaves unread what it was told of. Nothing ready: poll for a bounded time (`engine::spin`), then say "asleep" in the one
//! sleep word of the set, look once more, and sleep in the kernel. Kernel events of members in memory
//! only make them hot; what the program gets of them comes from [`look`] alone, so nothing is reported
//! twice.

use super::ctl::{register, register_anew, take_over};
use super::keep::keep;
use super::look::{Depth, look};
use super::prepare::name_hot;
use super::sleep::{Slept, expose, sleep, wake_next};
use super::{level, posted, stand_in};
use crate::engine::handlers::Since;
use crate::engine::rounds::Rounds;
use crate::engine::{kept, kernel, linked, signals, spin};
use crate::family::holders::Census;
use crate::family::lock::Marker;
use crate::family::process;
use crate::family::sock::{Sock, flag};
use crate::real;
use crate::sys::{Errno, caught, clock, errno, fd as desc, set_errno};
use crate::table;
use crate::table::members::Inner;
use crate::table::set::{BY_LEVEL, Set};
use crate::table::torn;
use crate::table::waited::{self, Without};
use crate::transport::changes;
use libc::{epoll_event, sigset_t};
use std::sync::atomic::Ordering::*;

/// Between two looks at the kernel, while hot members are polled.
const LEAST_US: u64 = 2;
pub const MOST_US: u64 = 50;
/// Posted members that are looked at for what they can give back, each time that the kernel is.
const AT_ONCE: u32 = 4;
/// So many times a small array is taken from the kernel in a row.
const MOST_SIPS: u32 = 16;

/// A wait: where the events go and how long.
pub struct Call {
    /// The program's array.
    pub events: *mut epoll_event,
    /// Its length.
    pub max: i32,
    /// Nanoseconds; None waits for ever.
    pub timeout: Option<u64>,
    /// The time was given in ns, and is kept as exactly as epoll_pwait2 keeps it.
    pub is_exact: bool,
    /// Signal mask while sleeping, or null.
    pub mask: *const sigset_t,
}

/// epoll_wait(2) on a set with tracked members.
///
/// # Safety
/// The array of `call` must be valid for writes of `max` events, the mask null or valid.
pub unsafe fn wait(epfd: i32, set: &'static Set, call: &Call) -> i32 {
    let since = Since::now();
    table::steps::tick();
    stand_in::refresh();
    // Before anything is registered: the kernel's set is a relative's too.
    if set.user.load(Relaxed) != process::index() {
        inherited(epfd, set);
    }
    if set.waited.load(Relaxed) == 0 {
        first_wait(epfd, set);
    }
    // SAFETY: by the contract.
    let out = unsafe { std::slice::from_raw_parts_mut(call.events, call.max.max(1) as usize) };
    let n = pass(epfd, set, out, Depth::Quick);
    if n > 0 {
        wake_next(set);
        return n as i32;
    }
    poll_and_sleep(epfd, set, call, out, since)
}

/// Nothing was ready at the first look. A function of its own, so that the look is short.
#[inline(never)]
fn poll_and_sleep(epfd: i32, set: &'static Set, call: &Call, out: &mut [epoll_event], since: Since) -> i32 {
    let deadline = call.timeout.map(|t| if t == 0 { 0 } else { clock::now_ns().saturating_add(t) });
    let (given, mut visit) = (epfd, None);
    let mut rounds = Rounds::default();
    loop {
        // Closed meanwhile, the wait goes on as in the kernel.
        let epfd = waited::number(set, given);
        if set.ours.load(Relaxed) > 0 && call.timeout != Some(0) && set.nested.load(Relaxed) == 0 {
            // SAFETY: as `wait` was promised.
            if unsafe { signals::let_in_now_and_then(call.mask) } {
                set_errno(Errno(libc::EINTR));
                return -1;
            }
            let mut n = 0;
            let peer = before_polling(epfd, set);
            if spin::spin(&set.spin, peer, || {
                n = pass(epfd, set, out, Depth::Quick);
                n > 0
            }) {
                wake_next(set);
                return n as i32;
            }
        }
        if visit.is_none() && call.timeout != Some(0) {
            visit = match waited::visit(given, set, &deadline) {
                Err(Without::Closed) => {
                    let ms = call.timeout.map_or(-1, |ns| ns.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
                    // SAFETY: the program's array and mask.
                    return unsafe { real::epoll_pwait(given, call.events, call.max, ms, call.mask) };
                }
                visit => visit.ok(),
            };
        }
        // SAFETY: array and mask are as `wait` was promised.
        match unsafe { sleep(epfd, set, call, out, deadline, since) } {
            Slept::Events(n) => {
                wake_next(set);
                return n;
            }
            Slept::Again => rounds.another(),
            Slept::Over => {
                wake_next(set); // it may have made a member hot, and taken what called for it
                return 0;
            }
            Slept::Failed if visit.is_some() && waited::number(set, given) != epfd && is_closed(errno()) => rounds.another(),
            Slept::Failed => return -1,
        }
        let n = pass(epfd, set, out, Depth::Quick);
        if n > 0 {
            wake_next(set);
            return n as i32;
        }
    }
}

/// Whether the kernel knows the number no more, or as another file's.
fn is_closed(e: Errno) -> bool {
    matches!(e.0, libc::EBADF | libc::EINVAL)
}

#[cold]
fn first_wait(epfd: i32, set: &'static Set) {
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return };
    for m in 0..l.inner.used() {
        let fd = l.inner.member(m).fd;
        if fd >= 0
            && let Some(s) = table::sock(fd)
        {
            s.set(flag::SEEN);
            if set.nested.load(Relaxed) == 0 {
                l.inner.unhide(m);
            }
        }
    }
    l.inner.changes = changes::count();
    refresh_all(epfd, set, l.inner);
    // A thread that left before comes again.
    set.waited.store(1, Relaxed);
}

/// The first wait in a set that this process has through fork. Relatives may wait in it too, for connections that they hold as
/// well: the kernel alone knows all of them, so its registration is the program's, and doorbells stay until all is read.
#[cold]
fn inherited(epfd: i32, set: &'static Set) {
    set.user.store(process::index(), Relaxed);
    let mut shared = false;
    {
        let marker = Marker::new();
        let Ok(l) = set.lock(&marker) else { return };
        let mut census = Census::default();
        for m in 0..l.inner.used() {
            let fd = l.inner.member(m).fd;
            if let Some(s) = table::sock(fd).filter(|s| fd >= 0 && s.is_connection() && census.is_shared(s)) {
                s.set(flag::SHARED);
                shared = true;
            }
        }
    }
    if shared {
        expose(epfd, set, BY_LEVEL);
    }
}

/// One look at everything that needs no sleep. Returns the number of events written.
pub fn pass(epfd: i32, set: &'static Set, out: &mut [epoll_event], depth: Depth) -> usize {
    caught(|| one_pass(epfd, set, out, depth)).unwrap_or(0)
}

fn one_pass(epfd: i32, set: &'static Set, out: &mut [epoll_event], depth: Depth) -> usize {
    linked::poll();
    let marker = Marker::new();
    let Ok(locked) = set.lock(&marker) else { return 0 };
    let inner = &mut *locked.inner;
    if inner.changes != changes::count() {
        take_in_changes(epfd, set, inner);
    }
    if inner.ours == 0 {
        return 0; // the kernel alone knows
    }
    let asks = depth != Depth::Last;
    // What is told here the kernel has no more for those that wait for the set.
    let is_due = asks && (set.nested.load(Relaxed) != 0 || clock::ticks() > inner.kernel_look);
    // In turn, as in the kernel's ready list: members on TCP that stay ready would fill the program's array each time.
    let kernel_first = is_due && !std::mem::take(&mut inner.kernel_filled);
    let mut n = if kernel_first { look_at_kernel(epfd, set, inner, out, 0) } else { 0 };
    // Who was rung looks at all: a quick look skips what cursors don't show.
    let depth = if std::mem::take(&mut inner.heard) { Depth::Whole } else { depth };
    n += look(set, inner, &mut out[n..], depth);
    if !kernel_first && (is_due || inner.kernel_look == 0 && (asks || n > 0)) && n < out.len() {
        let (found, heats) = (n, inner.heats);
        n = look_at_kernel(epfd, set, inner, out, n);
        let heard = std::mem::take(&mut inner.heard);
        // What its doorbell has made hot, or its ring was for, is told now: the call is gone.
        if found == 0 && (heard || inner.heats != heats) {
            n += look(set, inner, &mut out[n..], Depth::Whole);
        }
        // Or by who sleeps.
        inner.left |= heard && (found > 0 || n == out.len());
    }
    stand_in::look_behind(epfd, set, inner);
    n
}

/// The kernel's events, behind the `n` that are there; the new number of events.
fn look_at_kernel(epfd: i32, set: &'static Set, inner: &mut Inner, out: &mut [epoll_event], n: usize) -> usize {
    kept::give();
    posted::rest(inner, AT_ONCE);
    let (hot, had) = (inner.hot_len, n);
    let before = clock::ticks();
    let (mut now, mut n, mut is_all) = take_kernels(epfd, set, inner, out, n);
    let took = now.saturating_sub(before);
    // Two in a row: one alone may have been preempted, and members on TCP would wait for it.
    let most = kernel::rest_after(took.min(inner.kernel_took)).max(clock::ticks_of_us(MOST_US));
    // Those of the library's own fill a small array, and what the next look tells would be shown to those that wait for the set still.
    let mut more = if set.nested.load(Relaxed) != 0 { MOST_SIPS } else { 0 };
    while !is_all && n < out.len() && more > 0 {
        (now, n, is_all) = take_kernels(epfd, set, inner, out, n);
        more -= 1;
    }
    let rest = rest_of_kernel(inner, n > had || inner.hot_len > hot, most);
    (inner.kernel_look, inner.kernel_took) = (now + rest, took);
    inner.kernel_filled = n == out.len();
    n
}

/// Asks the kernel once: the tick at which it had answered, the new number of events, and whether that was all.
fn take_kernels(epfd: i32, set: &'static Set, inner: &mut Inner, out: &mut [epoll_event], n: usize) -> (u64, usize, bool) {
    let room = &mut out[n..];
    // SAFETY: the program's array.
    let found = unsafe { desc::epoll_wait(epfd, room.as_mut_ptr(), room.len() as i32, 0) };
    let (now, size) = (clock::ticks(), room.len());
    match found {
        Ok(k) if k > 0 => (now, keep(epfd, set, inner, out, n, k, u64::MAX), k < size),
        _ => (now, n, true),
    }
}

/// Ticks until the kernel is asked again: few where it has just had something for the program, or a doorbell of a cold member, of which there
/// may be many that speak in turn; twice as many each time it has not.
pub fn rest_of_kernel(inner: &mut Inner, has_paid: bool, most: u64) -> u64 {
    let least = clock::ticks_of_us(LEAST_US);
    inner.kernel_rest = if has_paid { least } else { inner.kernel_rest.saturating_mul(2).clamp(least, most) };
    inner.kernel_rest
}

/// Sockets that changed their medium become ours, or the kernel's again.
pub fn take_in_changes(epfd: i32, set: &'static Set, inner: &mut Inner) {
    let end = changes::count();
    let mut at = inner.changes;
    inner.changes = end;
    if at == torn::UNKNOWN {
        return refresh_all(epfd, set, inner);
    }
    while at < end {
        match changes::at(at) {
            Some(s) => {
                let fd = s.fd.load(Relaxed);
                let found = table::sock(fd).is_some_and(|t| std::ptr::eq(t, s));
                match inner.by_fd.one(fd as u64).filter(|_| found) {
                    // Duplicates may be members as well.
                    _ if found && table::life::has_twins(s) => refresh_each(epfd, set, inner, s),
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

/// All members that are numbers of one socket.
#[cold]
fn refresh_each(epfd: i32, set: &'static Set, inner: &mut Inner, s: &Sock) {
    for m in 0..inner.used() {
        let fd = inner.member(m).fd;
        if fd >= 0 && table::sock(fd).is_some_and(|t| std::ptr::eq(t, s)) {
            refresh(epfd, set, inner, m);
        }
    }
}

/// Brings every registration in line with the media of its socket.
pub fn refresh_all(epfd: i32, set: &'static Set, inner: &mut Inner) {
    for m in 0..inner.used() {
        if inner.member(m).fd >= 0 {
            refresh(epfd, set, inner, m);
        }
    }
}

/// Brings the registration of one member in line with the media of its socket.
pub fn refresh(epfd: i32, set: &'static Set, inner: &mut Inner, m: u32) {
    let mb = *inner.member(m);
    let Some(s) = table::sock(mb.fd) else { return };
    let nested = set.nested.load(Relaxed) != 0;
    if level::is_ours(s) || level::is_dead(s, mb.fd) {
        take_over(epfd, set, inner, m);
        register(epfd, inner, m, nested);
        // An end that TCP had told already, no cursor shows.
        inner.member_mut(m).is_looked_at_whole();
    } else if mb.ours {
        let word = inner.own_word(m);
        inner.unpost(m);
        inner.cool(m);
        inner.ours -= 1;
        inner.member_mut(m).ours = false;
        set.ours.store(inner.ours, Release);
        if mb.ghost {
            let _ = desc::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, mb.fd, None);
            inner.drop_member(m);
        } else {
            register_anew(epfd, inner, m, nested);
        }
        set.bury(inner, word);
    }
}

/// Names the waiter where that is due; says where the peer ran that was last looked at.
fn before_polling(epfd: i32, set: &'static Set) -> u32 {
    let marker = Marker::new();
    let Ok(l) = set.lock(&marker) else { return u32::MAX };
    if l.inner.unnamed {
        caught(|| name_hot(epfd, set, l.inner));
    }
    if l.inner.hot_len == 0 {
        return u32::MAX;
    }
    let turn = l.inner.turn.saturating_sub(1).min(l.inner.hot_len - 1);
    let fd = l.inner.member(l.inner.hot(turn)).fd;
    table::sock(fd).and_then(|s| s.rx.dir()).map_or(u32::MAX, |d| d.producer_cpu.load(Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked_soon_after_it_had_something_and_ever_less_while_it_has_nothing() {
        // SAFETY: all zero is an empty set.
        let mut inner: Inner = unsafe { std::mem::zeroed() };
        let (least, most) = (clock::ticks_of_us(LEAST_US), clock::ticks_of_us(MOST_US));
        assert_eq!(rest_of_kernel(&mut inner, true, most), least);
        let mut rest = least;
        while rest < most {
            let next = rest_of_kernel(&mut inner, false, most);
            assert_eq!(next, (rest * 2).min(most));
            rest = next;
        }
        assert_eq!(rest_of_kernel(&mut inner, false, most), most);
        assert_eq!(rest_of_kernel(&mut inner, true, most), least);
    }
}
