//! How tracked sockets begin and end in this process: socket, accept, dup, close, fork, exec.
//!
//! A record has one reference per descriptor (private count of this process) and one holder per
//! process of the family. Descriptors may be closed where no hook sees it (stdio, a raw system call):
//! a number that comes back from the kernel while its slot is filled is such a case, and the old
//! entry is dropped.

use super::leaver::{Leaver, others_go_on, soon};
use super::{Entry, get, homes, late, passing, put, range, rings, take};
use crate::engine::{close, inside, shadow, switch, unmap};
use crate::family::sock::{Sock, flag, role};
use crate::family::{self, SOCK_CAP, holders, process};
use crate::fault::{self, Step as Fault};
use crate::rendezvous::{self, mark, worth};
use crate::sys;
use crate::sys::net::Addr;
use crate::table::{set, steps, waited};
use crate::transport::idle;
use smcr_proto::page::{Counter, State};
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Descriptors of this process per record.
pub static REFS: [AtomicU32; SOCK_CAP] = [const { AtomicU32::new(0) }; SOCK_CAP];

/// A new stream socket of an Internet family.
#[cold]
pub fn on_socket(fd: i32, nonblock: bool) -> Option<&'static Sock> {
    begin_anew(fd);
    if !super::has_room(fd) || crate::control::is_restricted() && family::base().is_none() {
        return None;
    }
    let s = family::take_sock().ok()?;
    crate::control::look();
    idle::look();
    s.reset();
    if nonblock {
        s.flags.store(flag::NONBLOCK, Relaxed);
    }
    s.fd.store(fd, Relaxed);
    s.process.store(process::index(), Relaxed);
    homes::begin(s);
    enter(s, fd);
    Some(s)
}

/// A connection that the process has from the program that it was before exec, or by a message; `fill` says whether it can
/// be tracked, which is returned.
#[cold]
pub fn on_inherited(fd: i32, fill: impl FnOnce(&'static Sock) -> bool) -> bool {
    let Ok(s) = family::take_sock() else { return false };
    s.reset();
    s.fd.store(fd, Relaxed);
    homes::begin_unknown(s);
    let is_tracked = fill(s);
    if is_tracked {
        enter(s, fd);
    } else {
        s.set_state(State::Free);
        family::give_back(s);
    }
    is_tracked
}

fn enter(s: &'static Sock, fd: i32) {
    process::count(Counter::Sockets, 1);
    process::count(Counter::Tracked, 1);
    s.held_in(process::index());
    inside::begin(s);
    REFS[family::index_of(s) as usize].store(1, Relaxed);
    put(fd, Entry::Sock(s));
}

/// Whether it is stdin, stdout or stderr in this process: stdio passes the hooks by, and every child has it.
pub fn is_stdio(s: &Sock) -> bool {
    (0..=2).any(|fd| super::sock(fd).is_some_and(|t| std::ptr::eq(s, t)))
}

/// connect(2) is about to be called, with this address if it is one of the Internet's.
#[inline]
pub fn before_connect(s: &Sock, fd: i32, peer: Option<Addr>) {
    if let Some(peer) = &peer {
        worth::will_connect(s, peer);
    }
    mark::before_connect(s, fd, peer);
}

/// listen(2) is about to be called.
#[inline]
pub fn before_listen(s: &Sock, fd: i32) {
    // What it accepts is told of only if it is asked for again.
    if s.has(flag::PINNED) && s.reason.load(Relaxed) == Reason::Async.code() && !s.is_connection() {
        s.clear(flag::PINNED);
    }
    mark::before_listen(s, fd);
}

/// listen(2) succeeded.
pub fn on_listen(s: &'static Sock, fd: i32) {
    let first = s.role.swap(role::LISTENER, Relaxed) != role::LISTENER;
    s.set_state(State::Listening);
    if first {
        worth::listens(s, fd);
    }
    if first && s.has(flag::MARKED) {
        rendezvous::deferred::keep(s, fd);
        rendezvous::smc::watch_listener(s, fd);
    }
}

/// Whether a connect(2) that failed with this has begun all the same: the program waits until the socket is writable, and asks
/// SO_ERROR.
pub fn is_under_way(e: sys::Errno) -> bool {
    matches!(e.0, libc::EINPROGRESS | libc::EINTR | libc::EALREADY)
}

/// connect(2) succeeded or is under way.
pub fn on_connect(s: &Sock) {
    if s.role.load(Relaxed) == 0 {
        rendezvous::connects(s);
    }
}

/// A marked connection is used, or was just established.
#[inline]
pub fn first_use(s: &'static Sock, fd: i32) {
    if s.has(flag::UNASKED) {
        rendezvous::smc::first_use(s, fd);
    }
}

/// accept(2) returned `fd`; the listener is known unless it was inherited or passed.
pub fn on_accept(fd: i32, nonblock: bool, listener: Option<&Sock>) {
    if let Some(s) = on_socket(fd, nonblock) {
        s.role.store(role::SERVER, Relaxed);
        s.note(Reason::NotWorthIt);
        match listener {
            Some(l) => {
                l.tries.fetch_add(1, Relaxed); // of a listener: connections accepted
                worth::comes_from(s, l);
                shadow::inherit(s, l);
                worth::begin_counting(s);
                mark::accepted(l, s);
            }
            None => mark::accepted_from_elsewhere(s, fd),
        }
        if s.has(flag::MARKED) {
            // The process that uses it makes the link: an accepted socket may go to a child.
            s.set(flag::UNASKED);
            rendezvous::smc::accepted(s, fd);
        }
    }
}

/// A descriptor number came back from the kernel: whatever the table says of it is over.
#[inline]
pub fn forget_stale(fd: i32) {
    if let Some(entry) = get(fd) {
        forget(fd, entry);
    }
}

#[cold]
fn forget(fd: i32, entry: Entry) {
    if !process::is_vfork_child() {
        leave_sets(fd, entry);
        match take(fd) {
            Some(Entry::Sock(s)) => {
                if has_twins(s) {
                    leave_to_twin(fd, s);
                }
                release(s, None, false);
            }
            Some(Entry::Set(s)) => set::release(s),
            Some(Entry::Ring(r)) => rings::release(r),
            None => {}
        }
    }
}

/// As [`forget_stale`], of a number that is ours from now on: sets that had another file by it have none.
pub fn begin_anew(fd: i32) {
    forget_stale(fd);
    if homes::is_stray(fd) && !process::is_vfork_child() && homes::take_stray(fd) {
        set::forget_fd(fd, set::all(), || None, true);
    }
}

/// What is behind a number leaves the sets that have it by that, as it leaves the kernel's.
fn leave_sets(fd: i32, entry: Entry) -> bool {
    match entry {
        Entry::Sock(s) => {
            let has_twins = has_twins(s);
            if homes::has_none(s) {
                return has_twins;
            }
            let twin = || if has_twins { twin_of(fd, s) } else { None };
            set::forget_fd(fd, homes::of(s), twin, has_twins || s.holders.load(Relaxed) > 1);
            has_twins
        }
        // In no other set.
        Entry::Set(s) if s.nested.load(Relaxed) == 0 => false,
        Entry::Set(_) | Entry::Ring(_) => {
            set::forget_fd(fd, set::all(), || None, false);
            false
        }
    }
}

/// A new epoll descriptor.
pub fn on_epoll(fd: i32) {
    begin_anew(fd);
    set::note_epoll(fd);
}

/// `new` is a duplicate of `old`.
pub fn on_dup(old: i32, new: i32) {
    if old == new {
        return;
    }
    if process::is_vfork_child() {
        return passing::on_vfork_dup(old, new);
    }
    begin_anew(new);
    match get(old) {
        Some(Entry::Sock(s)) if super::has_room(new) => {
            REFS[family::index_of(s) as usize].fetch_add(1, Relaxed);
            put(new, Entry::Sock(s));
            passing::on_dup(s, old, new);
            // Whoever arranges descriptors is the one that uses them (a child before exec).
            s.process.store(process::index(), Relaxed);
            // stdin, stdout and stderr pass the hooks by. On TCP they just do not begin.
            if new <= 2 && (s.region().is_some() || s.link.load(Relaxed) != 0 || s.has(flag::MARKED)) {
                hand_over(s, new, Reason::Stdio);
            }
        }
        // What is done by a number beyond the table no hook sees.
        Some(Entry::Sock(s)) => _ = hand_over(s, old, Reason::FdTooHigh),
        Some(Entry::Set(s)) if super::has_room(new) => {
            set::hold(s);
            put(new, Entry::Set(s));
        }
        None if super::has_room(new) => {
            // Both numbers are of one set, whichever gets the first member.
            if let Some(s) = set::begin(old) {
                set::hold(s);
                put(new, Entry::Set(s));
            }
        }
        _ => {}
    }
}

/// Before the kernel closes `fd` (close, dup2 onto it, close_range). Does nothing in a vfork child,
/// whose memory is its parent's.
pub fn before_close(fd: i32) {
    let Some(entry) = get(fd) else { return };
    if process::is_vfork_child() {
        return;
    }
    let has_twins = leave_sets(fd, entry);
    let ours = match entry {
        Entry::Sock(s) if has_twins => {
            leave_to_twin(fd, s);
            None
        }
        Entry::Sock(s) => late::withdraw(s, fd),
        Entry::Set(s) if waited::lives_on(s, fd) => return, // threads wait in it
        Entry::Set(_) | Entry::Ring(_) => None,
    };
    match take(fd) {
        Some(Entry::Sock(s)) => {
            steps::let_finish(s);
            let lives_on = release(s, Some(ours.unwrap_or(fd)), ours.is_some());
            if let Some(n) = ours.filter(|_| !lives_on) {
                sys::fd::close(n);
            }
        }
        Some(Entry::Set(s)) => set::release(s),
        Some(Entry::Ring(r)) => rings::release(r),
        None => ours.into_iter().for_each(sys::fd::close),
    }
}

/// Whether it has several descriptors in this process.
pub fn has_twins(s: &Sock) -> bool {
    REFS[family::index_of(s) as usize].load(Relaxed) > 1
}

/// Another descriptor of the same socket: epoll keeps a registration until the last one goes.
fn twin_of(fd: i32, s: &Sock) -> Option<i32> {
    range(0, u32::MAX).find_map(|(other, e)| match e {
        Entry::Sock(t) if other != fd && std::ptr::eq(s, t) => Some(other),
        _ => None,
    })
}

/// The socket keeps another number: what goes by the one that it loses goes by that.
fn leave_to_twin(fd: i32, s: &'static Sock) {
    let usual = s.fd.load(Relaxed);
    let Some(twin) = Some(usual).filter(|n| *n != fd && steps::is_there(s, *n)).or_else(|| twin_of(fd, s)) else { return };
    if usual == fd && s.process.load(Relaxed) == process::index() {
        s.fd.store(twin, Relaxed);
    }
    late::leave_to(s, twin);
}

/// One descriptor of a record is gone; `fd` is given while the kernel still has it open. Whether the socket lives on, under
/// that number if it `is_ours`.
fn release(s: &'static Sock, fd: Option<i32>, is_ours: bool) -> bool {
    let index = family::index_of(s) as usize;
    if REFS[index].fetch_sub(1, AcqRel) != 1 {
        return false;
    }
    // Relatives can't see that a thread of this process is in it.
    if let Some(fd) = fd
        && !is_ours
        && holders::is_shared(s)
        && late::stays(s, fd)
    {
        return false;
    }
    part(s, fd, is_ours)
}

/// As [`release`], behind the last descriptor of this process.
pub fn part(s: &'static Sock, fd: Option<i32>, is_ours: bool) -> bool {
    process::count(Counter::Tracked, -1);
    let is_shared = holders::is_shared(s);
    let leaver = Leaver::new(s, fd, is_shared);
    if is_shared {
        late::end(s);
    }
    let last = holders::leave(s);
    if !last {
        fault::pass(Fault::Left);
    }
    if let Some(fd) = fd {
        rendezvous::legacy::left(s, fd);
        rendezvous::legacy::give_up(s, fd);
    }
    let has_left = leaver.end(last);
    if is_shared && !last {
        late::settle();
        return false;
    }
    if last
        && s.has(flag::UNASKED)
        && let Some(fd) = fd
    {
        rendezvous::smc::close_unused(s, fd);
    }
    let is_linked = s.link.load(Acquire) != 0;
    if !last {
        others_go_on(s, fd);
    }
    rendezvous::forget(s);
    if has_left {
        late::end(s);
        late::settle();
        return false; // another thread forks, and its child is to have it
    }
    // From here on no memory comes to it. A thread may wait for it all the same, outside the kernel (`engine::beside`).
    if s.region.load(Acquire).is_null() && !is_linked && (!last || inside::count(s) == 0) {
        late::end(s);
        finish(s, last);
        return false;
    }
    if last && let Some(fd) = fd {
        if late::lives_on(s, fd, is_ours) {
            return true; // a thread is in a call on it, which goes on as in the kernel
        }
        close::before_close(s, fd);
    }
    late::end(s);
    if soon(s, || unmap::unmap(s, last)) {
        finish(s, last);
    } else if last {
        late::give_up(s);
    }
    late::settle();
    false
}

/// The record is free again, for this process or for all.
pub fn finish(s: &'static Sock, last: bool) {
    if last {
        worth::learn(s);
        family::ended::count(s);
        s.set_state(State::Free);
        family::give_back(s);
    }
}

/// Records that this process holds.
pub fn held() -> impl Iterator<Item = &'static Sock> {
    let base = family::base();
    let high = family::high();
    (0..high).filter_map(move |i| (REFS[i as usize].load(Relaxed) > 0).then(|| base.map(|b| family::sock(b, i))).flatten())
}

/// The descriptor goes to another process or program: TCP from now on. False: what is unread is not there yet.
pub fn hand_over(s: &'static Sock, fd: i32, why: Reason) -> bool {
    before_leave(s, fd, why);
    if s.region().is_some() {
        return rendezvous::hand_over(s, fd, why);
    }
    switch::pin(s, fd, why);
    true
}

fn before_leave(s: &'static Sock, fd: i32, why: Reason) {
    mark::leave(s, fd);
    rendezvous::legacy::passed_on(s, fd);
    rendezvous::smc::give_away(s, fd, why);
}

/// As [`hand_over`] for an fd that stays the program's own: of a peer that makes no call, and so sends nothing again, what is unread is
/// read from where it lies, and the rest comes through TCP when it makes one.
pub fn go_home(s: &'static Sock, fd: i32, why: Reason) {
    before_leave(s, fd, why);
    if s.region().is_some() {
        rendezvous::go_home(s, fd, why);
    } else {
        switch::pin(s, fd, why);
    }
}

static IO_URING: AtomicU32 = AtomicU32::new(0);

/// The process sets up an io_uring: operations on it pass every hook by, so what it has now stays on TCP. What it makes later may move: many
/// have the ring for files alone, and the counts of bytes tell the others (`engine::count`).
pub fn on_io_uring() {
    if IO_URING.swap(1, Relaxed) != 0 {
        return;
    }
    for (fd, e) in range(0, u32::MAX) {
        match e {
            Entry::Sock(s) if s.is_connection() => _ = hand_over(s, fd, Reason::IoUring),
            // What it accepts by calls is later. By the ring nobody answers the option.
            Entry::Sock(s) => mark::leave(s, fd),
            _ => {}
        }
    }
}
