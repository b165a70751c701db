//! What exec, posix_spawn and the end of a process do to the sockets that it holds; fork: [`super::child`].
//!
//! Called by the process hooks; `family::holders` counts who holds what.

use super::life::{REFS, held};
use super::{Entry, child, connections, left, life, passing, range, returning, spawned};
use crate::engine::close::{self, Unseen};
use crate::engine::{linked, orphan, rouse};
use crate::family::holders::{self, Census};
use crate::family::sock::{Sock, aside, flag, role};
use crate::family::{self, SOCK_CAP, process};
use crate::rendezvous::aside::Place;
use crate::rendezvous::rest::{self, NAMES};
use crate::rendezvous::{self, legacy, mark};
use crate::sys::proc;
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Generation of a record that this process left before an exec, and bit 31; 0 for the others.
static LEFT: [AtomicU32; SOCK_CAP] = [const { AtomicU32::new(0) }; SOCK_CAP];

/// The process ends: connections over links are closed while they can be, for the kernel does it for
/// TCP only. By exit(3), behind which other libraries' handlers may follow.
pub fn at_exit() {
    leave_all(Unseen::Exit);
}

/// The same by _exit(2).
pub fn at_end() {
    leave_all(Unseen::End);
}

fn leave_all(how: Unseen) {
    if process::is_vfork_child() {
        return; // what it has in memory is its parent's
    }
    if linked::is_foreign() {
        // The parent has the link; it must hear that the last one of us is gone. Where it is not, nothing changes yet: that this process holds it
        // no more is counted when it is gone (`family::reap`).
        for s in held().filter(|s| s.is_linked() && !linked::is_owner(s) && s.holders.load(Acquire) <= 1) {
            linked::before_close(s, -1);
            linked::leave(s);
        }
    }
    rendezvous::smc::at_exit();
    rendezvous::bequest::at_exit();
    if family::base().is_some() {
        let mut census = Census::default();
        for (fd, e) in range(0, u32::MAX) {
            if let Entry::Sock(s) = e {
                closes_unseen(s, fd, how, &mut census);
                if s.heir.load(Relaxed) != 0 && s.let_go_in(process::index()) {
                    s.holders.fetch_sub(1, AcqRel);
                    legacy::left(s, fd);
                }
            }
        }
    }
}

/// The kernel will close it with the process, or at an exec.
fn closes_unseen(s: &'static Sock, fd: i32, how: Unseen, census: &mut Census) {
    if s.region().is_none() && !s.has(flag::UNASKED) || census.is_shared(s) {
        return;
    }
    if s.has(flag::UNASKED) {
        rendezvous::smc::close_unused(s, fd);
    }
    if s.region().is_some() {
        close::before_unseen_close(s, fd, how);
    }
}

/// Before exec: what this process leaves behind. Connections that survive it (no close-on-exec) must be on TCP for the next
/// program, which takes over those that have always been there if it has the library. For good where this process has used
/// them, or meant them for another program; of others nobody knows whether that will.
pub fn before_exec(has_library: impl Fn() -> bool) {
    unmark_listeners();
    if process::is_vfork_child() {
        // The memory is the parent's, which goes on.
        let _ = passing::before_start(Some(proc::pid()));
        return leave_rests(has_library, true);
    }
    left::for_exec();
    returning::give_way();
    // The links end with the exec.
    rendezvous::smc::leave_to_relatives();
    let is_own = |s: &Sock| s.process.load(Relaxed) == process::index() || s.has(flag::INHERITABLE);
    passing::before_exec(is_own);
    let mut census = Census::default();
    for (fd, e) in range(0, u32::MAX) {
        let Entry::Sock(s) = e else { continue };
        let index = family::index_of(s) as usize;
        if passing::survives_exec(fd) {
            rendezvous::smc::give_away(s, fd, Reason::Exec);
            // Whether it is one is asked before the environment of the next program is looked at.
            if s.is_connection() && has_library() && legacy::leave(s, fd) {
                continue;
            }
            if is_own(s) {
                rendezvous::hand_over(s, fd, Reason::Exec);
            }
        } else if life::has_twins(s) && survives_by_another(s) {
            // Whoever has it then has all of it.
        } else if LEFT[index].load(Relaxed) != 0 {
            // Another of its numbers was first.
        } else if !s.is_linked() && census.is_shared(s) {
            // The kernel closes it: those that have it too need not share it any longer.
            LEFT[index].store(s.generation.load(Relaxed) | 1 << 31, Relaxed);
            holders::leave(s);
            legacy::left(s, fd);
        } else {
            if REFS[index].load(Relaxed) == 1 {
                legacy::give_up(s, fd);
            }
            closes_unseen(s, fd, Unseen::Exec, &mut census);
        }
    }
    leave_rests(has_library, false);
}

fn survives_by_another(s: &Sock) -> bool {
    range(0, u32::MAX).any(|(fd, e)| matches!(e, Entry::Sock(t) if std::ptr::eq(s, t)) && passing::survives_exec(fd))
}

/// What can't be sent again is left to the next program in memory, or lost. This one may be another process, and `goes_on` itself.
fn leave_rests(has_library: impl Fn() -> bool, goes_on: bool) {
    for (fd, s) in connections().filter(|(fd, s)| rest::is_there(s) && passing::survives_exec(*fd)) {
        let names = || connections().filter(|(_, t)| std::ptr::eq(s, *t)).map(|(fd, _)| fd).filter(|fd| passing::survives_exec(*fd));
        // Who goes on with it beside the next program reads it here (`aside`).
        let goes_on = s.is_aside() && (goes_on || holders::is_shared(s));
        if names().next() == Some(fd) {
            leave_rest(s, fd, names(), &has_library, goes_on);
        }
    }
}

/// Of one, to the program that finds it under these numbers. False: nothing was left.
fn leave_rest(s: &Sock, fd: i32, mut names: impl Iterator<Item = i32>, has_library: &impl Fn() -> bool, goes_on: bool) -> bool {
    let names: [u16; NAMES] = std::array::from_fn(|_| names.next().and_then(|fd| u16::try_from(fd).ok()).unwrap_or(u16::MAX));
    let is_left = has_library() && rest::leave(s, fd, names, goes_on);
    if !is_left && !goes_on {
        rest::lose(s, fd);
    }
    is_left
}

/// exec failed: this process goes on with what it had.
pub fn exec_failed() {
    rest::take_back();
    if process::is_vfork_child() {
        return;
    }
    returning::exec_failed();
    for (fd, e) in range(0, u32::MAX) {
        let Entry::Sock(s) = e else { continue };
        let left = LEFT[family::index_of(s) as usize].swap(0, Relaxed);
        if left != 0 && (left != s.generation.load(Relaxed) | 1 << 31 || !holders::rejoin(s)) {
            // The others have closed it meanwhile, and the record is somebody else's.
            child::forget(s);
            continue;
        }
        legacy::take_back(s, fd);
        rest::is_kept(s);
        if s.holders.load(Relaxed) <= 1 && close::hear_again(s) {
            rendezvous::hand_over(s, fd, Reason::Exec);
        }
    }
    rouse::all(); // who slept through it looks, and says anew whom to wake
}

/// A thread has slept for connections over links of a process that may be gone by now.
pub fn look_at_owners() {
    if orphan::is_due() {
        held().for_each(orphan::look);
    }
}

/// Before a program is started by posix_spawn, with these file actions.
pub fn before_spawn(actions: usize, has_library: impl Fn() -> bool) -> Option<Place> {
    unmark_listeners();
    let place = passing::before_start(None);
    leave_rests(&has_library, true);
    for (s, fd, _) in spawned::given(actions).filter(|(s, fd, _)| rest::is_there(s) && !passing::survives_exec(*fd)) {
        let same = || spawned::given(actions).filter(|(t, ..)| std::ptr::eq(s, *t));
        if same().next().is_some_and(|(_, first, _)| first == fd) && leave_rest(s, fd, same().map(|(_, _, new)| new), &has_library, false) {
            s.aside.fetch_or(aside::GIVEN, Relaxed); // its close here is no reset
        }
    }
    place
}

/// It was, or was not.
pub fn after_spawn(actions: usize, was_started: bool) {
    rest::take_back();
    if !was_started {
        for (s, ..) in spawned::given(actions) {
            s.aside.fetch_and(!aside::GIVEN, Relaxed);
        }
    }
}

/// Listeners that a program inherits show the SMC option no more. Does nothing but system calls in a vfork
/// child.
fn unmark_listeners() {
    for (fd, e) in range(0, u32::MAX) {
        if let Entry::Sock(s) = e
            && s.role.load(Relaxed) == role::LISTENER
            && passing::survives_exec(fd)
        {
            mark::leave(s, fd);
        }
    }
}
