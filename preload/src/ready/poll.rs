//! poll and ppoll over sockets in memory and everything else; select is built on it.

use super::early::{self, by_kernel};
use super::readers::{self, Reader};
use super::sleep::expose;
use super::{level, polled, stand_in};
use crate::control::wake;
use crate::engine::bell::{self, Kind};
use crate::engine::handlers::Since;
use crate::engine::rounds::Rounds;
use crate::engine::{budget, ear, here, kept, kernel, linked, room, signals, spin, threads, waiter};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::real;
use crate::sys::{Errno, clock, fd as desc, scratch, thread};
use crate::table::set::{self, BY_LEVEL};
use crate::table::{self, Entry};
use crate::transport::idle;
use crate::transport::waiters::Waiter;
use libc::{pollfd, sigset_t, timespec};
use std::sync::atomic::{AtomicU32, Ordering::*, fence};

/// Descriptors that fit on the stack; more come into a mapping of the thread's.
const SMALL: usize = 64;

/// A sleep where poll takes no descriptors.
const NAP_NS: u64 = 1_000_000;

/// For `members`, before the kernel's poll.
const SOON: u64 = 0;

/// Looks at the kernel without result in a row after which it is asked less often.
const IN_VAIN: u32 = 16;

/// Budget of polling for poll and select, learned by the process.
static SPIN: AtomicU32 = AtomicU32::new(0);

/// Whether poll must be served here: a socket with a direction in memory is among the descriptors, or may be while this thread waits.
/// `sleeps`: it has time.
pub fn concerns(fds: &[pollfd], sleeps: bool) -> bool {
    table::steps::tick();
    stand_in::refresh();
    let mut any = false;
    for p in fds {
        any |= is_concern(p.fd, sleeps);
    }
    any
}

/// The same for one descriptor.
#[inline]
pub(super) fn is_concern(fd: i32, sleeps: bool) -> bool {
    match table::get(fd) {
        Some(Entry::Sock(s)) => {
            table::life::first_use(s, fd);
            if !s.has(flag::SEEN) {
                s.set(flag::SEEN);
            }
            return level::is_served(s) || level::may_be_served(s);
        }
        // Somebody waits for a set: the kernel must see its members' doorbells.
        Some(Entry::Set(set)) if sleeps || set.ours.load(Relaxed) > 0 || stand_in::has_untold(set) => expose(fd, set, BY_LEVEL),
        // One without members: another thread may add the first while this one sleeps.
        None if sleeps => {
            if let Some(set) = set::begin(fd) {
                expose(fd, set, BY_LEVEL);
            }
        }
        _ => {}
    }
    false
}

/// ppoll(2). `timeout` in ns, None for ever.
///
/// # Safety
/// `mask` must be null or valid.
pub unsafe fn poll(fds: &mut [pollfd], timeout: Option<u64>, mask: *const sigset_t) -> i32 {
    let since = Since::now();
    // SAFETY: the array is valid; mask by the contract.
    let wait = |fds: &mut [pollfd], t: *const timespec| unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as u64, t, mask) };
    match by_kernel(fds, timeout, since, wait) {
        Ok(r) => r,
        // SAFETY: by the contract.
        Err(left) => unsafe { poll_in_turns(fds, left, mask, since, &mut false) },
    }
}

/// What [`poll`] does for connections in memory; notes when all descriptors were open and none was ready: what is missing later was
/// closed meanwhile.
///
/// # Safety
/// As there.
pub unsafe fn poll_in_turns(fds: &mut [pollfd], timeout: Option<u64>, mask: *const sigset_t, since: Since, looked: &mut bool) -> i32 {
    let mut deadline = None;
    let mut rounds = Rounds::default();
    loop {
        let (n, all) = scan(fds, timeout != Some(0));
        if n > 0 {
            return n;
        }
        // SAFETY: by the contract.
        let is_interrupted = unsafe {
            match timeout {
                Some(0) => !mask.is_null() && signals::let_in(mask),
                _ => signals::let_in_now_and_then(mask),
            }
        };
        if is_interrupted {
            crate::sys::set_errno(Errno(libc::EINTR));
            return -1;
        }
        if timeout == Some(0) {
            return 0;
        }
        *looked |= all;
        if deadline.is_none() {
            deadline = timeout.map(|t| clock::now_ns().saturating_add(t));
        }
        let peer = first(fds).and_then(|s| s.rx.dir()).map_or(u32::MAX, |d| d.producer_cpu.load(Relaxed));
        if spin::spin(&SPIN, peer, || members(fds, clock::ticks()).0 > 0) {
            continue; // once more with the kernel's part
        }
        // SAFETY: by the contract.
        match unsafe { sleep(fds, deadline, mask, since) } {
            Some(r) => return r,
            None => rounds.another(),
        }
    }
}

fn first(fds: &[pollfd]) -> Option<&'static Sock> {
    fds.iter().find_map(|p| table::sock(p.fd).filter(|s| level::is_served(s)))
}

/// Fills revents; returns how many are ready, and whether all were looked at. `may_skip`: once the kernel had nothing for this thread
/// many times in a row, it is asked only every 50 us, as in an epoll set, and before each sleep.
fn scan(fds: &mut [pollfd], may_skip: bool) -> (i32, bool) {
    let (n, others) = members(fds, clock::ticks());
    if !others {
        return (n, true);
    }
    thread::with(|t| {
        let now = clock::ticks();
        let recent = now.wrapping_sub(t.polled.get()) < clock::ticks_of_us(50);
        if may_skip && recent && t.in_vain.get() >= IN_VAIN {
            return (n, false);
        }
        let k = kernel_part(fds);
        t.polled.set(now);
        t.in_vain.set(if k > 0 { 0 } else { t.in_vain.get().saturating_add(1) });
        (n + k, true)
    })
}

/// The part of the members in memory: how many are ready, and whether there are others. The kernel is asked for an end where that is due at
/// `now` ([`SOON`]: it is asked in a moment).
fn members(fds: &mut [pollfd], now: u64) -> (i32, bool) {
    linked::poll();
    let mut n = 0;
    let mut others = false;
    let mut together = fds.len() == 1;
    for i in 0..fds.len() {
        let p = fds[i];
        let mut revents = 0;
        match table::sock(p.fd).filter(|s| level::is_served(s)) {
            Some(s) => {
                let asked = (p.events as u16 as u32) | level::ERR | level::HUP;
                let mut is_due = kernel::is_look_due_at(s, now);
                if is_due && !together && kernel::shows_its_end(s) {
                    together = true;
                    look_together(fds);
                    is_due = kernel::is_look_due_at(s, now);
                }
                let usual = match is_due {
                    true => None,
                    false => level::usual(s, asked & (level::OUT | level::NORMS.1) != 0),
                };
                let bits = usual.unwrap_or_else(|| level::level(s, p.fd, true));
                revents = (level::with_norms(bits) & asked) as i16;
                n += i32::from(revents != 0);
            }
            None => others |= p.fd >= 0,
        }
        fds[i].revents = revents;
    }
    (n, others)
}

/// One look at the kernel's sockets of all members in memory, instead of one for each: those that have nothing
/// to tell need none for a time.
#[cold]
fn look_together(fds: &[pollfd]) {
    with_copy(fds.len(), |copy| {
        for (c, p) in copy.iter_mut().zip(fds) {
            if table::sock(p.fd).is_some_and(|s| level::is_served(s) && kernel::shows_its_end(s)) {
                *c = pollfd { fd: p.fd, events: kernel::END, revents: 0 };
            }
        }
        if desc::poll(copy, 0).is_err() {
            return;
        }
        for c in copy.iter().filter(|c| c.fd >= 0 && c.revents == 0) {
            if let Some(s) = table::sock(c.fd) {
                kernel::looked_now(s);
            }
        }
    });
}

/// The kernel has just been asked for the end of these: where it shows none it need not be asked again for a time.
fn note_no_end(asked: &[pollfd]) {
    for c in asked.iter().filter(|c| c.revents == 0 && c.events & kernel::END != 0) {
        if let Some(s) = table::sock(c.fd).filter(|s| level::is_served(s) && kernel::shows_its_end(s)) {
            kernel::looked_now(s);
        }
    }
}

fn kernel_part(fds: &mut [pollfd]) -> i32 {
    let mut n = 0;
    with_copy(fds.len(), |copy| {
        for (c, p) in copy.iter_mut().zip(fds.iter()) {
            let ours = table::sock(p.fd).is_some_and(level::is_served);
            *c = pollfd { fd: if ours { -1 } else { p.fd }, events: p.events, revents: 0 };
        }
        if desc::poll(copy, 0).is_ok() {
            for (c, p) in copy.iter().zip(fds.iter_mut()) {
                if c.fd >= 0 {
                    p.revents = c.revents;
                    n += i32::from(c.revents != 0);
                }
            }
        }
    });
    n
}

/// Runs `f` with an array of `n` entries without a descriptor; not without memory.
fn with_copy(n: usize, f: impl FnOnce(&mut [pollfd])) {
    const NONE: pollfd = pollfd { fd: -1, events: 0, revents: 0 };
    if n <= SMALL {
        return f(&mut [NONE; SMALL][..n]);
    }
    threads::at_exit();
    let _ = scratch::with(n, NONE, f);
}

/// How a sleep ended: what ppoll returned and left in errno, the time that it was given, and the one the program has left.
struct Slept {
    result: i32,
    error: Errno,
    given: Option<u64>,
    limit: Option<u64>,
    since: u64,
}

/// Arms, looks once more, sleeps. Some: the call ends with this.
unsafe fn sleep(fds: &mut [pollfd], deadline: Option<u64>, mask: *const sigset_t, since: Since) -> Option<i32> {
    kept::give();
    crate::control::look();
    idle::look();
    let me = waiter::thread_waiter();
    // SAFETY: by the contract.
    let slept = match readers::counted(fds, |fds, readers| unsafe { arm_and_sleep(fds, readers, me, deadline, mask, since) }) {
        Ok(slept) => slept?,
        Err(e) => {
            crate::sys::set_errno(e);
            return Some(-1);
        }
    };
    time_wake(fds, slept.since);
    budget::slept(&SPIN, slept.since);
    match slept.result {
        -1 => {
            crate::sys::set_errno(slept.error);
            Some(-1)
        }
        0 if slept.given != slept.limit => None,
        0 => Some(scan(fds, false).0), // the time is over
        _ if slept.given == Some(0) => Some(scan(fds, false).0),
        _ => None,
    }
}

/// Notes how long the wake took, if it came from one of the first descriptors.
fn time_wake(fds: &[pollfd], since: u64) {
    const MOST: usize = 8;
    let mut dirs = fds.iter().take(MOST).filter_map(|p| table::sock(p.fd).filter(|s| level::is_served(s))?.rx.dir());
    dirs.any(|dir| bell::time_wake(dir, since));
}

/// None: it was not slept, something has come.
unsafe fn arm_and_sleep(
    fds: &mut [pollfd],
    readers: &[Reader],
    me: Option<Waiter>,
    deadline: Option<u64>,
    mask: *const sigset_t,
    began: Since,
) -> Option<Slept> {
    let mut full = None;
    // Pairs with `offer::become_careful`, as in `by_kernel`.
    fence(SeqCst);
    // Before any entry names this thread: several may be of one socket.
    if let Some(me) = me {
        fds.iter().filter_map(|p| table::sock(p.fd).filter(|s| level::is_served(s))).for_each(|s| room::forget(s, me));
    }
    for (p, reader) in fds.iter().zip(readers) {
        if let Some(s) = table::sock(p.fd).filter(|s| level::is_served(s)) {
            if !reader.is_of(s) {
                return None; // since a moment ago: who waits for it already is not to lose its name to one that is not counted
            }
            full = [full, prepare(s, p, me)].into_iter().flatten().min();
        }
    }
    if let Some(w) = me {
        w.fall_asleep();
    }
    let linked = fds.iter().find_map(|p| table::sock(p.fd).filter(|s| s.is_linked()));
    let channel = linked.and_then(|_| linked::listen(me));
    if members(fds, SOON).0 > 0 {
        if let Some(w) = me {
            w.wake_up();
        }
        if channel.is_some() {
            linked::listen_no_more(false);
        }
        return None;
    }
    let limit = deadline.map(|d| d.saturating_sub(clock::now_ns()));
    let short = linked.and_then(|s| linked::longest_sleep(s, me));
    let mut left = [limit, short, full, early::look_again(fds)].into_iter().flatten().min();
    let ts = left.map(clock::timespec);
    let tsp = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let since = clock::ticks();
    let mut r = 0;
    let (mut rung, mut error) = (false, Errno(0));
    let mut heard = false;
    // Peers of other users wake this thread by what is for them alone.
    let ears = if me.is_some_and(|w| w.ears() != 0) { fds.len() } else { 0 };
    with_copy(fds.len() + 3 + ears, |copy| {
        for (c, p) in copy.iter_mut().zip(fds.iter()) {
            let ours = table::sock(p.fd).filter(|s| level::is_served(s));
            let mut events = ours.map_or(p.events, |s| polled::events(s, p));
            let mut fd = p.fd;
            if let Some(s) = ours.filter(|s| s.is_linked()) {
                // What TCP shows of a connection over a link is not the program's, but for room where its handshake has ended on
                // TCP, and nothing has come yet that says so to the receiving side.
                events = if s.tx_in_memory() { 0 } else { events & (libc::POLLOUT | libc::POLLWRNORM) };
                fd = if events == 0 { -1 } else { fd };
            }
            *c = pollfd { fd, events, revents: 0 };
        }
        let last = fds.len();
        copy[last] = pollfd { fd: me.map_or(-1, Waiter::eventfd), events: libc::POLLIN, revents: 0 };
        copy[last + 1] = pollfd { fd: wake::descriptor(), events: libc::POLLIN, revents: 0 };
        copy[last + 2] = pollfd { fd: channel.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
        for (i, p) in fds.iter().enumerate().take(ears) {
            let ear = ear_of(p.fd, me);
            // Of one peer once, as far as that is quickly seen.
            let is_there = copy[last + 3..][..i].iter().rev().take(SMALL).any(|c| c.fd == ear);
            copy[last + 3 + i] = pollfd { fd: if is_there { -1 } else { ear }, events: libc::POLLIN, revents: 0 };
        }
        if began.has_one_run() {
            (r, error) = (-1, Errno(libc::EINTR)); // while it polled
            return;
        }
        // SAFETY: the array is valid; mask by the contract.
        r = unsafe { real::ppoll(copy.as_mut_ptr(), copy.len() as u64, tsp, mask) };
        error = crate::sys::errno();
        if r >= 0 {
            note_no_end(&copy[..last]);
        }
        if r < 0 && error.0 == libc::EINVAL {
            // It takes no so many descriptors (`sys::unpolled`): who waits looks again each millisecond.
            let ns = left.map_or(NAP_NS, |ns| ns.min(NAP_NS));
            left = Some(ns);
            let nap = clock::timespec(ns);
            // SAFETY: no descriptors; mask by the contract.
            r = unsafe { real::ppoll(std::ptr::null_mut(), 0, std::ptr::from_ref(&nap), mask) };
            error = crate::sys::errno();
        }
        rung = copy[last].revents != 0;
        heard = copy[last + 2].revents != 0;
        if copy[last + 1].revents != 0 {
            wake::take();
        }
        for (c, p) in copy[last + 3..].iter().zip(fds.iter()).filter(|(c, _)| c.revents != 0) {
            if let (Some(s), Some(w)) = (table::sock(p.fd), me)
                && ear::of(s, w) == c.fd
            {
                ear::hear(s, w);
            }
        }
        if r > 0 {
            for c in copy[..last].iter().filter(|c| c.revents != 0) {
                if let Some(s) = table::sock(c.fd).filter(|s| level::is_served(s)) {
                    polled::happened(s, c.fd);
                }
            }
        }
    });
    if let Some(w) = me {
        w.wake_up();
        if rung {
            waiter::hear_later();
        }
    }
    if channel.is_some() {
        linked::listen_no_more(heard);
    }
    Some(Slept { result: r, error, given: left, limit, since })
}

/// The ear of this thread for the peer of a socket in memory.
fn ear_of(fd: i32, me: Option<Waiter>) -> i32 {
    match (table::sock(fd).filter(|s| level::is_served(s)), me) {
        (Some(s), Some(w)) => ear::of(s, w),
        _ => -1,
    }
}

/// Makes sure that this thread is woken for the entry; returns the ns after which to look again at a ring
/// without room.
fn prepare(s: &Sock, p: &pollfd, me: Option<Waiter>) -> Option<u64> {
    if let Some(dir) = s.rx.dir() {
        let marker = Marker::new();
        if let Ok(_held) = s.rx.lock.take(&marker) {
            kernel::arm_for(s, dir, p.fd, me, Kind::Thread);
        }
    }
    if let Some(me) = me {
        room::be_callable(s, me);
    }
    let again = [here::looks_again(s), polled::looks_again(s, p)].into_iter().flatten().min();
    if p.events & (libc::POLLOUT | libc::POLLWRNORM) == 0 {
        return again;
    }
    [again, room::prepare_writer(s, p.fd, me, p.events & libc::POLLIN != 0)].into_iter().flatten().min()
}
