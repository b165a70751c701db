//! Leaving the family: a process that may do other things than its relatives from now on gets a page of its own.
//!
//! The page is written by all of its processes, which trust each other as far as they can do the same things anyhow. Who gives
//! privileges up (setuid, capabilities, seccomp) and is taken over afterwards must not reach those who have them. So the
//! leaving process moves a fresh page over the mapping, with copies of the records that it holds, under the same numbers and at
//! the same addresses; what it held alone is free for the others, what they hold as well stays theirs, and its
//! process record stays there until it ends, so that they know how long the connection is not theirs alone.
//!
//! `table::apart` decides when, and what becomes of connections that others hold.

use super::sock::{Sock, flag, medium, role, step};
use super::{FD, FREE_LIST, LEN, LINK_OFF, PROC_CAP, PROC_OFF, SOCK_SIZE, at, give_back_in, holders, process, sock};
use crate::sys::{self, Res, mem, thread};
use smcr_proto::page::{self, State, header};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Whether other processes have, or had, the page as well.
static RELATED: AtomicU32 = AtomicU32::new(0);

/// This process forks, or was forked.
pub fn relate() {
    if super::base().is_some() {
        RELATED.store(1, Relaxed);
    }
}

/// Whether there may be relatives with the same page.
pub fn is_related() -> bool {
    RELATED.load(Relaxed) != 0
}

/// The words of a record.
const WORDS: usize = SOCK_SIZE / 4;
type Words = [AtomicU32; WORDS];

/// A record as it was when it was copied.
struct Taken {
    index: u32,
    shared: bool,
    /// Another thread's lock words and counts as copied; there are none where this is the only thread.
    was: Option<Box<[u32; WORDS]>>,
}

/// Moves this process into a page of its own. `held`: the numbers of the records that it holds. Signals are blocked
/// and no other thread forks meanwhile. An error: nothing has changed.
pub fn leave(held: &[u32]) -> Res<()> {
    let base = super::open()?;
    let others = mem::map_again(base, LEN)?;
    let (fd, fresh) = match page() {
        Ok(made) => made,
        Err(e) => {
            mem::unmap(others, LEN);
            return Err(e);
        }
    };
    let quiet = held.iter().map(|i| sock(base, *i)).filter(|s| s.is_connection());
    quiet.clone().for_each(seize);
    let me = process::index();
    let mut taken = Vec::with_capacity(held.len());
    copy_header(base, fresh, me.wrapping_add(1), held.iter().copied());
    if (me as usize) < PROC_CAP {
        copy::<{ page::process::LEN / 4 }>(at(base, record_at(me)), at(fresh, record_at(me)));
        copy::<{ page::link::EACH * page::link::LEN / 4 }>(at(base, links_at(me)), at(fresh, links_at(me)));
    }
    for index in held {
        let shared = holders::is_shared(sock(base, *index));
        let was = copy::<WORDS>(words(base, *index), words(fresh, *index));
        let was = (!thread::is_only()).then(|| Box::new(was));
        taken.push(Taken { index: *index, shared, was });
    }
    if let Err(e) = mem::move_over(base, fresh, LEN) {
        quiet.for_each(|s| release(s, s));
        mem::unmap(others, LEN);
        mem::unmap(fresh, LEN);
        sys::fd::close(fd);
        return Err(e);
    }
    RELATED.store(0, Relaxed);
    for t in &taken {
        bring_up(t, words(others, t.index), words(base, t.index));
    }
    for i in held {
        let (own, left) = (sock(base, *i), sock(others, *i));
        [own, left].into_iter().filter(|s| s.is_connection()).for_each(|s| release(s, own));
    }
    for t in &taken {
        make_own(sock(base, t.index), me, t.shared);
        leave_behind(others, t, me);
    }
    process::go_away(others);
    mem::unmap(others, LEN);
    keep(fd);
    Ok(())
}

/// The same for a process that has just been forked, is no relative of anybody by number, and has no record in the page: nothing there is
/// touched, and what it holds is plain. Allocates nothing.
pub fn begin_anew(held: impl Iterator<Item = u32> + Clone) -> Res<()> {
    let base = super::open()?;
    let (fd, fresh) = page()?;
    copy_header(base, fresh, 0, held.clone());
    for i in held.clone() {
        copy::<WORDS>(words(base, i), words(fresh, i));
    }
    if let Err(e) = mem::move_over(base, fresh, LEN) {
        mem::unmap(fresh, LEN);
        sys::fd::close(fd);
        return Err(e);
    }
    RELATED.store(0, Relaxed);
    process::register(base);
    for s in held.map(|i| sock(base, i)) {
        make_own(s, process::index(), true);
        s.legacy.store(0, Relaxed);
    }
    keep(fd);
    Ok(())
}

/// The descriptor of the page is this one (-1 none) from now on.
fn keep(fd: i32) {
    let old = FD.swap(if fd < 0 { fd } else { sys::fd::park(fd) }, Relaxed);
    if old >= 0 {
        sys::fd::close(old);
    }
}

/// A fresh page; without a descriptor, so that smcrctl does not see it, where the system gives none.
fn page() -> Res<(i32, *mut u8)> {
    let made = mem::memfd(c"smcr-family", LEN).and_then(|fd| match mem::map_shared(fd, LEN, true) {
        Ok(p) => Ok((fd, p)),
        Err(e) => {
            sys::fd::close(fd);
            Err(e)
        }
    });
    made.or_else(|_| mem::map_anonymous(LEN).map(|p| (-1, p)))
}

/// No thread moves bytes while the record is copied.
fn seize(s: &Sock) {
    if !thread::is_only() {
        s.tx.lock.seize(process::tid());
        s.rx.lock.seize(process::tid());
    }
}

/// `seized`: the record, or the one of which this is a copy.
fn release(s: &Sock, seized: &Sock) {
    if !thread::is_only() {
        s.tx.lock.let_go(process::tid(), &seized.tx.lock);
        s.rx.lock.let_go(process::tid(), &seized.rx.lock);
    }
}

fn words(base: *mut u8, index: u32) -> &'static Words {
    at(base, super::SOCK_OFF + index as usize * SOCK_SIZE)
}

fn record_at(process: u32) -> usize {
    PROC_OFF + process as usize * page::process::LEN
}

fn links_at(process: u32) -> usize {
    LINK_OFF + process as usize * page::link::EACH * page::link::LEN
}

/// Copies, and tells what.
fn copy<const N: usize>(from: &[AtomicU32; N], to: &[AtomicU32; N]) -> [u32; N] {
    std::array::from_fn(|i| {
        let word = from[i].load(Relaxed);
        to[i].store(word, Relaxed);
        word
    })
}

/// `processes`: records of processes that may be in use.
fn copy_header(from: *mut u8, to: *mut u8, processes: u32, held: impl Iterator<Item = u32>) {
    copy::<{ FREE_LIST / 4 }>(at(from, 0), at(to, 0));
    at::<AtomicU32>(to, header::PROC_HIGH).store(processes, Relaxed);
    let high = held.max().map_or(0, |i| i + 1);
    at::<AtomicU32>(to, header::SOCK_HIGH).store(high, Relaxed);
}

/// What other threads of this process have counted between the copy and the move. What the locks protect has not changed.
fn bring_up(t: &Taken, old: &Words, new: &Words) {
    let Some(was) = t.was.as_ref().filter(|_| !t.shared) else { return };
    for ((was, old), new) in was.iter().zip(old).zip(new) {
        let change = old.load(Relaxed).wrapping_sub(*was);
        if change != 0 {
            new.fetch_add(change, Relaxed);
        }
    }
}

/// The copy belongs to this process alone.
fn make_own(s: &Sock, me: u32, shared: bool) {
    s.holders.store(1, Relaxed);
    for w in &s.held_by {
        w.store(0, Relaxed);
    }
    s.held_in(me);
    s.process.store(me, Relaxed);
    s.next_free.store(0, Relaxed);
    if shared && s.role.load(Relaxed) != role::LISTENER {
        if s.is_connection() {
            start_plain(s);
        }
        // Others have it of whom this family does not know: it begins if they say that they do not (`rendezvous::legacy`).
        s.legacy.store(process::pid(), Relaxed);
    }
}

/// A connection that others hold as well: in TCP, as if this process had just got it. Their threads are no longer counted.
fn start_plain(s: &Sock) {
    for half in [&s.tx, &s.rx] {
        half.dir.store(std::ptr::null_mut(), Relaxed);
        half.ring.store(std::ptr::null_mut(), Relaxed);
        half.gate.store(0, Relaxed);
        half.switches.store(0, Relaxed);
        half.lock.reset();
        half.leaving.reset();
        for n in [&half.cursor, &half.seen, &half.tcp, &half.base, &half.mark] {
            n.store(0, Relaxed);
        }
        if thread::is_only() {
            half.in_kernel.store(0, Relaxed);
        }
    }
    s.region.store(std::ptr::null_mut(), Relaxed);
    for w in [&s.peer, &s.link, &s.heir, &s.apart, &s.stepping, &s.tx_ring, &s.rx_ring, &s.tx_switches, &s.rx_switches, &s.ops, &s.tries] {
        w.store(0, Relaxed);
    }
    for n in s.sizes.as_flattened().iter().chain([&s.rate_nonce, &s.next_tick, &s.next_bytes]) {
        n.store(0, Relaxed); // what was counted is the others'
    }
    s.step.store(step::IDLE, Relaxed);
    // Its reads are the kernel's again: a process that restricts its calls next may be permitted nothing else.
    s.clear(flag::CAREFUL);
    s.tx_medium.store(medium::TCP, Relaxed);
    s.rx_medium.store(medium::TCP, Release);
}

/// In the others' page: what nobody else holds is free, what they hold is theirs.
fn leave_behind(others: *mut u8, t: &Taken, me: u32) {
    let s = sock(others, t.index);
    if t.shared {
        if s.process.load(Relaxed) == me {
            s.process.store(holders::another(s, me), Relaxed);
        }
    } else if s.let_go_in(me) && s.holders.fetch_sub(1, AcqRel) == 1 {
        s.set_state(State::Free);
        give_back_in(others, s, t.index);
    }
}
