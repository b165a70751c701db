//! Forked children: what a child will hold is counted before the fork, and in the child compared with what it has got.
//!
//! The kernel copies memory and descriptors some time after the count, and other threads accept, close and map meanwhile. A child
//! forgets what it has got uncounted (nobody meant that for it), gives back what was counted and is not there, and forgets
//! what has its memory in a mapping that the child lacks. `family::holders` has the counts.
//!
//! A child in another PID namespace knows none of its relatives by number, nor they it: connections are on TCP for both for good, and the child
//! has a page of its own. Called by the hooks of fork and of what does the same, and in the child by libc (pthread_atfork), before the
//! handlers of the program.

use super::life::{REFS, finish, held};
use super::{Entry, apart, late, range, set, take, waited};
use crate::control;
use crate::engine::{close, counted, inside, known, linked};
use crate::family::sock::{Sock, flag};
use crate::family::{self, SOCK_CAP, process};
use crate::rendezvous::{self, legacy};
use crate::sys::{fd, proc};
use crate::transport::region::RegionHeader;
use crate::transport::{peers, waiters};
use smcr_proto::page::Counter;
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// The thread that forks, 0 none; in a child the one that forked it.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Number of the last fork.
static SERIAL: AtomicU32 = AtomicU32::new(0);
/// The fork that has counted a record last, and where its memory was then.
static COUNTED: [AtomicU32; SOCK_CAP] = [const { AtomicU32::new(0) }; SOCK_CAP];
static MEMORY: [AtomicPtr<RegionHeader>; SOCK_CAP] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SOCK_CAP];

/// How long a fork waits for another thread's.
const PATIENCE_MS: u32 = 1000;

/// A fork that is under way in this process.
pub struct Fork {
    /// Who forked: this thread, where a handler forks in the middle of a fork.
    before: u32,
    elsewhere: bool,
}

/// Before a fork. `elsewhere`: the child will be in another PID namespace.
pub fn before_fork(elsewhere: bool) -> Fork {
    let before = begin();
    let elsewhere = family::base().is_some() && (elsewhere || !control::is_restricted() && proc::children_are_elsewhere());
    if elsewhere {
        apart::give_up_all(Reason::SharedByFork);
    }
    // The child can use a link of ours only if its memory is there when the fork happens.
    rendezvous::smc::before_fork(held);
    for (fd, e) in range(0, u32::MAX) {
        if let Entry::Sock(s) = e {
            legacy::before_fork(s, fd);
        }
    }
    let fork = Fork { before, elsewhere };
    if elsewhere {
        return fork;
    }
    family::apart::relate();
    let serial = SERIAL.load(Relaxed);
    let mut connected = false;
    for s in held() {
        let index = family::index_of(s) as usize;
        // SeqCst, as what is loaded below: either who maps memory for it finds it shared, or its memory is found here (`server::attach`).
        let was_shared = s.holders.fetch_add(1, SeqCst) > 1;
        COUNTED[index].store(serial, Relaxed);
        MEMORY[index].store(s.region.load(SeqCst), Relaxed);
        s.set(flag::FORKED);
        known::before_fork(s, was_shared);
        connected |= s.rx.dir().is_some();
    }
    if connected {
        known::learn_before_fork();
    }
    fork
}

/// One thread forks at a time, as libc has it anyhow: the counts are those of one fork. A handler that forks in the middle of one
/// counts with it.
fn begin() -> u32 {
    let me = proc::tid();
    for _ in 0..PATIENCE_MS {
        match FORKS.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => break,
            Err(who) if who == me => return me,
            Err(_) => drop(fd::poll(&mut [], 1)),
        }
    }
    FORKS.store(me, Relaxed);
    SERIAL.fetch_add(1, Relaxed);
    0
}

/// In the parent; `child` is None where there is none.
pub fn in_parent(fork: &Fork, child: Option<u32>) {
    rendezvous::smc::after_fork();
    match child {
        Some(pid) if !fork.elsewhere => process::note_child(pid),
        None if !fork.elsewhere => each_counted(give_back),
        _ => {}
    }
    FORKS.store(fork.before, Release); // pairs with the Acquire in `begin`
}

fn each_counted(act: impl Fn(&'static Sock)) {
    let Some(base) = family::base() else { return };
    let serial = SERIAL.load(Relaxed);
    for i in 0..family::high() {
        if COUNTED[i as usize].load(Relaxed) == serial {
            act(family::sock(base, i));
        }
    }
}

/// It was counted for a child that does not have it.
fn give_back(s: &'static Sock) {
    if s.holders.fetch_sub(1, AcqRel) == 1 {
        close::unmap(s, true); // those that had it have closed it since
        finish(s, true);
    }
}

/// In the child: introduces itself; the parent's channels and waiters are not its own. Allocates nothing: who allocates may not
/// have its locks back yet.
pub fn in_child() {
    let is_seen = FORKS.swap(0, Relaxed) != 0;
    process::forget_tid();
    process::forget_children();
    family::apart::relate();
    family::forget_in_child();
    control::forget_in_child();
    waiters::forget_in_child();
    peers::forget_in_child();
    rendezvous::forget_in_child();
    set::forget_in_child();
    waited::forget_in_child();
    inside::forget_in_child();
    counted::forget_in_child();
    late::forget_in_child();
    let Some(base) = family::base() else { return };
    if proc::is_first_here() {
        return apart::begin_elsewhere();
    }
    process::register(base);
    if process::index() == u32::MAX {
        // Nobody could tell when it is gone.
        if is_seen {
            each_counted(give_back);
        }
        return held().for_each(forget);
    }
    process::show_memory_in_child();
    let serial = SERIAL.load(Relaxed);
    for i in 0..family::high() {
        let s = family::sock(base, i);
        let is_counted = is_seen && COUNTED[i as usize].load(Relaxed) == serial;
        match (is_counted, REFS[i as usize].load(Relaxed) > 0) {
            (true, true) if lacks_memory(s, i) => {
                forget(s);
                give_back(s);
            }
            (true, false) => give_back(s),
            (false, true) if is_seen => forget(s),
            (false, true) => {
                s.holders.fetch_add(1, AcqRel); // by a fork that no hook has seen
                hold(s);
            }
            (true, true) => hold(s),
            (false, false) => {}
        }
    }
}

fn hold(s: &Sock) {
    s.held_in(process::index());
    process::count(Counter::Tracked, 1); // its close counts one less
}

/// Whether its memory was mapped since it was counted. Who does that finds that it is shared, and takes it back.
fn lacks_memory(s: &Sock, index: u32) -> bool {
    let was = MEMORY[index as usize].load(Relaxed);
    let is_other = || !s.is_linked() && !s.region.load(SeqCst).is_null() && s.region.load(Relaxed) != was;
    (0..PATIENCE_MS).all(|n| {
        if n > 0 {
            let _ = fd::poll(&mut [], 1);
        }
        is_other()
    })
}

/// The child does not know it: it is the kernel's alone here, whatever numbers it has.
pub fn forget(s: &Sock) {
    for (fd, e) in range(0, u32::MAX) {
        if matches!(e, Entry::Sock(t) if std::ptr::eq(s, t)) {
            set::forget_fd(fd, None, true);
            take(fd);
        }
    }
    REFS[family::index_of(s) as usize].store(0, Relaxed);
}

/// In the child, where its parent's handlers of fork have run: whose link it is watches over this process from now on.
pub fn introduce() {
    if linked::is_foreign() {
        linked::introduce();
    }
}

/// In the child of fork(3), behind [`introduce`]: after _Fork(3) no thread can be made.
pub fn inherit() {
    if linked::is_foreign() {
        rendezvous::smc::inherit(held());
    }
}
