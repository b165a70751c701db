//! Connections that a program is started with, under the number that they have here: by fork and exec of a child that
//! has never used them, by posix_spawn, or from a vfork child. Nobody knows whether it uses them.
//!
//! So they are set aside: both directions go back to TCP before the program begins, and stay there while it may hold them.
//! A program that uses one finds an ordinary connection. Where none has, which the kernel's byte counts tell, and all of
//! them have ended, it moves to memory again. From a link there is no way but for good.
//!
//! Who started the program goes on with them, and natively it would have noticed nothing. So a peer that does not come in time, or has said its
//! last word, costs it no byte: what lies here it reads here (`engine::here`).
//!
//! Called by `table` before a program is started, and by the steps of the rendezvous.

use super::handover::{Back, PATIENCE_MS, ask_back, has_ended, is_stranded, told_late, wait_for};
use super::{SHARED_US, is_due, way_out};
use crate::engine::{bell, count, follow, heirs, here, inside, kernel, shadow, switch, take_up};
use crate::family::holders;
use crate::family::lock::Marker;
use crate::family::process;
use crate::family::sock::{Sock, aside, flag};
use crate::sys::{clock, fd, proc, processor, thread};
use crate::transport::region::ctl;
use smcr_proto::page::{Counter, State};
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Looks that find other counts than the kernel's, until it is certain that somebody has used it.
const LOOKS: u32 = 16;

/// A thread that uses one may just not run: while processors are scarce, those that were used lately are watched for so many ms.
const MOST_MS: u32 = 12;
const RECENT_US: u64 = 20_000;

/// Connections that are looked at together.
const GROUP: usize = 64;

/// Sets connections aside; `who` is a bit of [`aside`], `all` are those that this process has. All peers are asked before the
/// first is waited for. False: there is none. Runs where a handler calls exec: it allocates nothing.
pub fn set(mut connections: impl Iterator<Item = (i32, &'static Sock)>, all: impl Iterator<Item = (i32, &'static Sock)>, who: u8) -> bool {
    let until = clock::now_ns() + PATIENCE_MS * 1_000_000;
    let mut any = false;
    loop {
        let group: [Option<(i32, &Sock, u64)>; GROUP] = std::array::from_fn(|_| connections.next().map(|(fd, s)| (fd, s, stand(s))));
        let found = || group.iter().flatten();
        // What another thread uses at this very moment is not for the next program: it stays where it is.
        let moves = !thread::is_only() && found().any(|(_, s, _)| s.region().is_some());
        if moves {
            await_users(|| found().any(|(_, s, before)| is_unused(s, *before) && kernel::was_looked_at_since(s, RECENT_US)));
        }
        for (fd, s, before) in found() {
            if !moves || s.region().is_none() || is_unused(s, *before) {
                any = true;
                if who == aside::STARTED {
                    note_starter(s);
                }
                s.aside.fetch_or(who, SeqCst);
                ask(s, *fd, until, Reason::Exec);
            }
        }
        if group[GROUP - 1].is_none() {
            break;
        }
    }
    for (fd, s) in all.filter(|(_, s)| any && s.region().is_some() && s.aside.load(Relaxed) & who != 0) {
        let marker = Marker::new();
        let Some(_alone) = way_out::claim(s, &marker, until) else { continue }; // another thread gives it away for good, perhaps
        if !is_late(s) && await_peer(s, fd, until, Reason::Exec) == Back::NotYet {
            is_too_late(s, fd);
        }
        if let Some(dir) = s.rx.dir().filter(|_| !s.is_linked()) {
            here::allow(s, dir);
        }
    }
    any
}

/// Before a fork: a connection that this process has with itself goes to TCP, and may come back. The child may become a program that has
/// one of the ends alone, while the thread that has the other one waits for it, and makes no call by which that could send again.
pub fn unpair(s: &'static Sock, sock: i32, until: u64) {
    let marker = Marker::new();
    let Some(_alone) = way_out::claim(s, &marker, until) else { return };
    ask_again(s, sock, until, Reason::SharedByFork);
    let _ = await_peer(s, sock, until, Reason::SharedByFork);
    if let Some(dir) = s.rx.dir() {
        here::allow(s, dir);
    }
}

/// After [`ask_again`], by who gives it away.
fn await_peer(s: &'static Sock, sock: i32, until: u64, why: Reason) -> Back {
    let mut back = wait_for(s, sock, until);
    while back == Back::Left && !has_ended(s) && clock::now_ns() < until {
        ask_again(s, sock, until, why); // it was on its way to TCP by itself
        back = wait_for(s, sock, until);
    }
    back
}

/// Whether its peer was waited for in vain: once is enough.
fn is_late(s: &Sock) -> bool {
    s.aside.load(Relaxed) & aside::LATE != 0
}

fn is_too_late(s: &Sock, sock: i32) {
    s.aside.fetch_or(aside::LATE, Relaxed);
    told_late(s, sock, true);
}

/// Gives the other threads time to go on with what they use. `is_any`: one of those that were used lately has not moved yet.
fn await_users(is_any: impl Fn() -> bool) {
    for _ in 0..MOST_MS {
        let _ = fd::poll(&mut [], 1);
        if !is_any() || !processor::are_scarce() {
            break;
        }
    }
}

/// Whether no other thread has gone on with it since it stood there, nor is in a call.
fn is_unused(s: &Sock, before: u64) -> bool {
    s.region().is_some() && stand(s) == before && inside::count(s) == 0
}

/// How far this end has come with it.
fn stand(s: &Sock) -> u64 {
    [&s.tx, &s.rx].iter().fold(0, |sum, h| sum + h.cursor.load(Relaxed) + h.kernel.load(Relaxed))
}

/// Asks for what the peer has to do, unless another thread gives it away until then.
fn ask(s: &'static Sock, sock: i32, until: u64, why: Reason) {
    let marker = Marker::new();
    if let Some(_alone) = way_out::claim(s, &marker, until) {
        ask_again(s, sock, until, why);
    }
}

/// As [`ask`], by who gives it away.
fn ask_again(s: &'static Sock, sock: i32, until: u64, why: Reason) {
    if s.is_linked() {
        ask_back(s, sock, why);
        return;
    }
    let Some(dir) = s.region().and(s.rx.dir()) else { return };
    if !take_up::take_up(s, sock, why, if is_late(s) { 0 } else { until }) {
        // Behind a stretch of TCP it can't be asked for.
        is_too_late(s, sock);
        // The next program gets it, or the first of this family that reads (`here::allow`).
        if !is_stranded(s) {
            here::begin(s);
        }
    }
    if s.rx_in_memory() || s.tx_in_memory() {
        process::count(Counter::Handovers, 1);
    }
    s.tries.store(0, Relaxed);
    follow::freeze(s, dir, ctl::RETURN);
    bell::call_peer(s, sock); // while doorbells may still be sent
    // Also where sending seems to be on TCP: who is about to switch has the lock.
    switch::spill(s, sock, switch::Spill::Aside);
    if !s.has(flag::PINNED) {
        s.note(why);
        s.set_state(State::Tcp);
    }
    // Nothing comes again, so there is nothing to wait for.
    if has_ended(s) {
        here::allow(s, dir);
    }
}

/// Whether a connection that was set aside is this family's alone again. Of one that a program has used nobody here knows
/// where it stands: it stays on TCP.
pub fn is_back(s: &Sock, sock: i32) -> bool {
    if !s.is_aside() {
        return true;
    }
    if !is_due(s, SHARED_US) || holders::is_shared(s) {
        return false;
    }
    if s.aside.load(Relaxed) & aside::STARTED != 0 {
        if s.rx.nagle.load(Relaxed) != starter() {
            // A relative that has it no more; whether the program lives nobody here knows.
            switch::pin(s, sock, Reason::Exec);
            return false;
        }
        if has_started() {
            return false;
        }
    }
    if count::sent_matches(s, sock) == Ok(true) && count::received_matches(s, sock) == Ok(true) {
        s.tries.store(0, Relaxed);
        s.next_tick.store(0, Relaxed);
        shadow::learn_again(s, sock);
        heirs::settle(s, sock);
        s.rx.nagle.store(0, Relaxed);
        s.aside.store(0, SeqCst);
        return true;
    }
    if s.tries.fetch_add(1, Relaxed) > LOOKS {
        switch::pin(s, sock, Reason::Exec);
    }
    false
}

/// Several processes have started one.
const MANY_STARTERS: u32 = u32::MAX;

fn starter() -> u32 {
    process::index() + 1
}

/// This process knows when the program has ended, and no relative does.
fn note_starter(s: &Sock) {
    let own = |now| if now == 0 || now == starter() { starter() } else { MANY_STARTERS };
    // Before the bit in `aside`, which says that it holds.
    let _ = s.rx.nagle.fetch_update(Relaxed, Relaxed, |now| Some(own(now)));
}

/// Programs that were started with connections of this process.
static STARTED: [AtomicU32; 512] = [const { AtomicU32::new(0) }; 512];
/// There were more at once: none of their connections comes back.
static MANY: AtomicU32 = AtomicU32::new(0);
/// Not known yet.
const BEGINS: u32 = u32::MAX;

/// A place for a program that is about to be started.
pub struct Place(usize);

/// Takes one. `pid`: its number, where that is known.
pub fn expect(pid: Option<u32>) -> Place {
    let free = |slot: &AtomicU32| {
        let old = slot.load(Relaxed);
        (old == 0 || old != BEGINS && proc::is_gone(old)) && slot.compare_exchange(old, pid.unwrap_or(BEGINS), AcqRel, Relaxed).is_ok()
    };
    let place = STARTED.iter().position(free);
    if place.is_none() {
        MANY.store(1, Relaxed);
    }
    Place(place.unwrap_or(usize::MAX))
}

impl Place {
    /// It has this number; 0: it was not started.
    pub fn started(self, pid: u32) {
        if let Some(slot) = STARTED.get(self.0) {
            slot.store(pid, Release);
        }
    }
}

/// Whether one of them lives. That it does is believed for a while, by every connection.
fn has_started() -> bool {
    static UNTIL: AtomicU64 = AtomicU64::new(0);
    let before = clock::ticks();
    if MANY.load(Relaxed) != 0 || before < UNTIL.load(Relaxed) {
        return true;
    }
    let lives = STARTED.iter().any(|slot| {
        let pid = slot.load(Acquire);
        pid == BEGINS || pid != 0 && !proc::is_gone(pid)
    });
    if lives {
        let now = clock::ticks();
        UNTIL.store(now + kernel::rest_after(now.saturating_sub(before)).max(clock::ticks_of_us(SHARED_US)), Relaxed);
    }
    lives
}
