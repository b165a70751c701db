//! A process that changes what it may do (users, groups, capabilities, seccomp) leaves its family.
//!
//! It shares a page, sleep words and channels with the processes it was forked from and those it has forked, which may
//! be able to do more than it from now on: whoever takes it over must not reach them through that. So it goes on alone
//! (`family::apart`), before the program's next instruction. Connections that it holds alone go on as they are. One that
//! others hold too goes back to TCP if it is in memory; one that is on TCP begins where one process is left alone with it
//! (`rendezvous::legacy`, as through exec). Called by the hooks of those calls.

use super::life::{REFS, held};
use super::{child, connections, returning};
use crate::engine::{kernel, known, linked, switch};
use crate::family::sock::{Sock, flag};
use crate::family::{self, apart, holders, index_of, process, sock};
use crate::rendezvous::{self, legacy};
use crate::sys::{clock, proc};
use crate::transport::{channel, kin, peers, region, waiters, wide};
use smcr_proto::page::{Counter, State};
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// Whether there is a family to leave. Not for a vfork child, whose memory is its parent's.
#[inline]
pub fn is_due() -> bool {
    (apart::is_related() || rendezvous::is_known()) && !process::is_vfork_child()
}

/// This process can be no other user than these from now on: what peers gave it, and have of it, because they were of its user
/// ends here. It keeps nothing that wakes them, and they go on by doorbell bytes, as it does; connections stay in memory.
#[cold]
pub fn part_from_kin(users: [u32; 3]) {
    let former: Vec<_> = kin::beside(users).collect();
    if rendezvous::part(users) {
        connections().for_each(|(fd, s)| rendezvous::stop_announcing(s, fd, Reason::Privileges));
    }
    if former.is_empty() {
        return;
    }
    let theirs = |s: &Sock| !s.is_linked() && s.region().is_some() && former.iter().any(|(i, _)| s.peer.load(Relaxed) == *i);
    connections().filter(|(_, s)| theirs(s)).for_each(|(_, s)| known::no_names(s));
    for (_, peer) in &former {
        channel::drain(peer); // what it has told before it could see that
        kin::part(peer);
    }
    waiters::retire();
    super::set::retire();
    // Peers name our waiters still: by the doorbell byte from now on.
    connections().filter(|(_, s)| theirs(s)).for_each(|(fd, s)| kernel::expose(s, fd));
}

/// Leaves the family.
#[cold]
pub fn leave() {
    if !is_due() || !process::has_relatives() {
        return;
    }
    // Of what nobody has used yet each record would say so still: who uses it first would begin once more.
    connections().filter(|(_, s)| holders::is_shared(s)).for_each(|(fd, s)| rendezvous::smc::give_away(s, fd, Reason::Privileges));
    bring_back(|s| !is_own(s), Reason::Privileges);
    let mut shared: Vec<Held> = Vec::new();
    for (fd, s) in connections().filter(|(_, s)| !is_own(s)) {
        // Once for each connection, whatever descriptors it has.
        if shared.iter().all(|h| h.index != index_of(s)) {
            shared.push(prepare(s, fd));
        }
    }
    let done = proc::with_signals_blocked(|| {
        let numbers: Vec<u32> = held().map(index_of).collect();
        apart::leave(&numbers)?;
        peers::know_old_page();
        waiters::leave_family();
        linked::leave_to_parent();
        Ok::<(), crate::sys::Errno>(())
    });
    if done.is_err() {
        crate::log::warn!(target: "smcr::family", "no memory to leave the family with: it is shared on");
        return;
    }
    shared.iter().for_each(go_on);
    peers::leave_family(|i| held().any(|s| s.peer.load(Relaxed) == i));
    for (fd, s) in connections().filter(|(_, s)| s.region().is_some()) {
        // The names of our waiters lead to the page that was left: by the doorbell byte from now on.
        kernel::expose(s, fd);
    }
}

/// What a record says of its memory, which it has no more.
const OF_MEMORY: u32 = flag::LINKED | flag::RETURNS | flag::FROZEN | flag::OWES | flag::BEHIND;

/// A connection that is not this process's alone.
struct Held {
    index: u32,
    fd: i32,
    /// Its memory in this process.
    region: *mut region::RegionHeader,
    /// It is left to whoever is alone with it in the end.
    is_left: bool,
}

/// Nobody else has it, and what serves it is this process's own.
fn is_own(s: &Sock) -> bool {
    let peer = peers::get(s.peer.load(Relaxed));
    let serves = if s.is_linked() { linked::is_owner(s) } else { peer.is_none_or(|p| p.is_readable()) };
    serves && !holders::is_shared(s)
}

/// Before this process forks a child into another PID namespace, where none of the two can tell whether the other one lives: all connections are
/// on TCP for both, and stay there.
pub fn give_up_all(why: Reason) {
    connections().for_each(|(fd, s)| rendezvous::smc::give_away(s, fd, why));
    bring_back(|_| true, why);
    for (fd, s) in connections().filter(|(_, s)| s.region().is_none() && !s.is_linked()) {
        rendezvous::stop_announcing(s, fd, why);
        legacy::passed_on(s, fd);
        switch::pin(s, fd, why);
    }
}

/// That child: it goes on alone.
pub fn begin_elsewhere() {
    process::unregister();
    let numbers = (0..family::high()).filter(|i| REFS[*i as usize].load(Relaxed) > 0);
    if apart::begin_anew(numbers).is_err() {
        return held().for_each(child::forget);
    }
    peers::know_old_page();
    waiters::leave_family();
    linked::leave_to_parent();
    peers::leave_family(|_| false);
    process::show_memory_in_child();
    process::count(Counter::Tracked, held().count() as i64);
    for s in held().filter(|s| s.is_connection()) {
        wide::unmap(index_of(s));
        s.clear(OF_MEMORY);
        s.set(flag::PINNED);
        s.note(Reason::SharedByFork);
        s.set_state(State::Pinned);
    }
}

/// All that is in memory and meant goes back to TCP, as for a drain.
fn bring_back(is_meant: impl Fn(&Sock) -> bool, why: Reason) {
    let mut any = false;
    let end = clock::now_ns() + rendezvous::PATIENCE_MS * 1_000_000;
    returning::each(
        |s| s.region().is_some() && is_meant(s),
        |fd, s| {
            if s.is_linked() && !rendezvous::smc::may_return(s) {
                // From a kernel there is no way back: it stays with who has it too, or ends.
                let shared = holders::is_shared(s);
                let _ = shared || rendezvous::hand_over(s, fd, Reason::Exec);
            } else {
                any |= rendezvous::take_up_and_ask(s, fd, why, end);
            }
        },
    );
    let is_leaving = |s: &Sock| s.reason.load(Relaxed) == why.code() && s.region().is_some();
    returning::await_all(is_leaving, if any { end } else { 0 }, Some(why));
}

/// Before the page is left.
fn prepare(s: &'static Sock, fd: i32) -> Held {
    let region = if s.is_linked() { std::ptr::null_mut() } else { s.region.load(Acquire) };
    let is_left = !s.has(flag::PINNED) && region.is_null() && legacy::part(s, fd);
    if !is_left && !s.has(flag::PINNED) && !s.is_linked() {
        switch::pin(s, fd, Reason::Privileges);
    }
    Held { index: index_of(s), fd, region, is_left }
}

/// Behind it: the record is this process's own.
fn go_on(h: &Held) {
    let Some(s) = crate::family::base().map(|base| sock(base, h.index)) else { return };
    if !h.region.is_null() && s.region().is_none() {
        wide::unmap(h.index);
        region::drop_mapping(h.region);
    }
    s.clear(OF_MEMORY);
    if h.is_left {
        legacy::inherit(s, h.fd);
        return;
    }
    if s.flags.fetch_or(flag::PINNED, AcqRel) & flag::PINNED == 0 {
        s.note(Reason::Privileges);
    }
    s.set_state(State::Pinned);
}
