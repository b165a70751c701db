//! Forked children: what a child will hold is counted before the fork, and in the child compared with what it has got.
//!
//! The kernel copies memory and descriptors some time after the count, and other threads accept, close and map meanwhile. A child
//! forgets what it has got uncounted (nobody meant that for it), and gives back what was counted and is not there. No memory comes to a
//! connection once it is counted (`server::attach`): the child would lack the mapping. `family::holders` has the counts.
//!
//! A child in another PID namespace knows none of its relatives by number, nor they it: connections are on TCP for both for good, and the child
//! has a page of its own. Called by the hooks of fork and of what does the same, and in the child by libc (pthread_atfork), before the
//! handlers of the program.

use super::life::{REFS, finish, held};
use super::{Entry, apart, homes, late, range, returning, rings, set, take, waited};
use crate::control;
use crate::engine::{counted, inside, known, linked, own_end, unmap, within};
use crate::family::sock::{Sock, flag};
use crate::family::{self, SOCK_CAP, holders, process};
use crate::rendezvous::{self, legacy};
use crate::sys::{clock, fd, few, proc, thread};
use crate::transport::{peers, waiters};
use smcr_proto::page::Counter;
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// The thread that counts and forks, 0 none.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Number of the last fork that has counted.
static SERIAL: AtomicU32 = AtomicU32::new(0);
/// The one that has counted a record last.
static COUNTED: [AtomicU32; SOCK_CAP] = [const { AtomicU32::new(0) }; SOCK_CAP];

/// How long a fork waits for another thread's, and for those who bring memory to a connection.
const PATIENCE_MS: u32 = 1000;

/// How long one waits for ends of its own process, of which the library does what is asked itself.
const UNPAIR_NS: u64 = 200_000_000;

/// A fork that is under way.
pub struct Fork {
    /// It has counted for its child, which `thread::Thread::counts` tells that.
    counts: bool,
    /// Whether the one that this is inside of has (a handler that forks).
    outer: bool,
    elsewhere: bool,
}

/// Before a fork. `elsewhere`: the child will be in another PID namespace.
pub fn before_fork(elsewhere: bool) -> Fork {
    let elsewhere = family::base().is_some() && (elsewhere || !control::is_restricted() && proc::children_are_elsewhere());
    if elsewhere {
        apart::give_up_all(Reason::SharedByFork);
    }
    unpair();
    // The child can use a link of ours only if its memory is there when the fork happens.
    rendezvous::smc::before_fork(held);
    for (fd, e) in range(0, u32::MAX) {
        if let Entry::Sock(s) = e {
            legacy::before_fork(s, fd);
        }
    }
    let outer = thread::here().counts.replace(false);
    let counts = !elsewhere && begin();
    if counts {
        count();
        thread::here().counts.set(true);
    }
    Fork { counts, outer, elsewhere }
}

/// Before a fork of any kind: whoever waits for a child that execs may have the other end of what that is given, and can make no call there.
pub fn unpair() {
    let mut until = None;
    returning::each(
        |s| s.rx_in_memory() && own_end::is_here(s),
        |fd, s| rendezvous::aside::unpair(s, fd, *until.get_or_insert_with(|| clock::now_ns() + UNPAIR_NS)),
    );
}

/// One thread forks at a time, as libc has it anyhow: the counts are those of one fork. False: somebody takes long, or this is a handler in the
/// middle of a fork; then the child counts itself, when it is there.
fn begin() -> bool {
    let me = proc::tid();
    for _ in 0..PATIENCE_MS {
        match FORKS.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => return true,
            Err(who) if who == me => return false,
            Err(_) => drop(fd::poll(&mut [], 1)),
        }
    }
    false
}

fn count() {
    family::apart::relate();
    let serial = SERIAL.fetch_add(1, Relaxed) + 1;
    let mut connected = false;
    for s in held() {
        let Some(before) = holders::one_more(s) else { continue };
        let was_shared = before > 1;
        COUNTED[family::index_of(s) as usize].store(serial, Relaxed);
        s.set(flag::FORKED);
        known::before_fork(s, was_shared);
        connected |= s.rx.dir().is_some();
    }
    rendezvous::await_attached(PATIENCE_MS);
    set::unpost_all(); // none is posted again while it is counted for a child
    if connected {
        known::learn_before_fork();
    }
}

/// In the parent; `child` is None where there is none.
pub fn in_parent(fork: &Fork, child: Option<u32>) {
    rendezvous::smc::after_fork();
    match child {
        Some(pid) if !fork.elsewhere => process::note_child(pid),
        None if fork.counts => each_counted(give_back),
        _ => {}
    }
    thread::here().counts.set(fork.outer);
    if fork.counts {
        FORKS.store(0, Release); // pairs with the Acquire in `begin`
    }
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

/// It was counted for a child that does not have it. If those that had it have closed it since, they have given back what they had mapped.
fn give_back(s: &'static Sock) {
    if s.holders.fetch_sub(1, AcqRel) == 1 {
        unmap::forget(s);
        finish(s, true);
    }
}

/// In the child: introduces itself; the parent's channels and waiters are not its own. Allocates nothing: who allocates may not
/// have its locks back yet.
pub fn in_child() {
    let is_counted = thread::here().counts.replace(false);
    FORKS.store(0, Relaxed);
    process::forget_tid();
    process::forget_children();
    family::apart::relate();
    few::forget_in_child();
    family::forget_in_child();
    control::forget_in_child();
    waiters::forget_in_child();
    peers::forget_in_child();
    rendezvous::forget_in_child();
    set::forget_in_child();
    rings::forget_in_child();
    waited::forget_in_child();
    inside::forget_in_child();
    counted::forget_in_child();
    within::forget_in_child();
    late::forget_in_child();
    returning::forget_in_child();
    let Some(base) = family::base() else { return };
    let is_elsewhere = !control::is_restricted() && proc::is_first_here();
    if !is_elsewhere {
        process::register(base);
    }
    if is_elsewhere || process::index() == u32::MAX {
        // Nobody could tell when it is gone.
        if is_counted {
            each_counted(give_back);
        }
        return if is_elsewhere { apart::begin_elsewhere() } else { held().for_each(forget) };
    }
    process::show_memory_in_child();
    let serial = SERIAL.load(Relaxed);
    for i in 0..family::high() {
        let s = family::sock(base, i);
        let counts = is_counted && COUNTED[i as usize].load(Relaxed) == serial;
        match (counts, REFS[i as usize].load(Relaxed) > 0) {
            (true, false) => give_back(s),
            (false, true) if is_counted => forget(s),
            (false, true) => match holders::one_more(s) {
                Some(_) => hold(s), // by a fork that no hook has seen
                None => forget(s),
            },
            (true, true) => hold(s),
            (false, false) => {}
        }
    }
}

fn hold(s: &Sock) {
    s.held_in(process::index());
    process::count(Counter::Tracked, 1); // its close counts one less
}

/// The child does not know it: it is the kernel's alone here, whatever numbers it has.
pub fn forget(s: &Sock) {
    for (fd, e) in range(0, u32::MAX) {
        if matches!(e, Entry::Sock(t) if std::ptr::eq(s, t)) {
            set::forget_fd(fd, homes::of(s), || None, true);
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
