//! Whether the peer may bring its stream into memory: what the receiving end offers, and takes back.
//!
//! Called by the rendezvous, and by whoever needs the kernel's stream as it is for a while. [`super::follow`] goes where the peer went.

use super::patience::Patience;
use super::{count, follow};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag, step};
use crate::sys::{clock, proc};
use crate::transport::region::{Dir, ctl};
use smcr_proto::page::State;
use smcr_proto::reason::Reason;
use std::sync::atomic::{Ordering::*, fence};

/// From now on reads are careful; once nobody is inside the kernel and the counts agree, the peer
/// may switch.
pub fn become_careful(s: &Sock) {
    s.flags.fetch_or(flag::CAREFUL, SeqCst);
    fence(SeqCst); // `ready::poll`: a thread that has not seen it is counted as a reader
}

/// Tells the peer that it may switch, when it may.
pub fn offer_reading(s: &Sock, sock: i32) {
    let Some(dir) = s.rx.dir() else { return };
    if dir.ctl.load(Relaxed) & ctl::READY != 0 || s.is_aside() || s.has(flag::PINNED) {
        return;
    }
    if s.rx.in_kernel.load(SeqCst) != 0 {
        s.note(Reason::BusyReader);
        return;
    }
    // The peer's proof, and its first doorbell, would lie below the mark that the kernel keeps for the program until then.
    if s.low_water.load(Relaxed) > 1 {
        s.note(Reason::TcpSpecial);
        return;
    }
    let marker = Marker::new();
    let Some(_held) = s.rx.lock.try_take(&marker) else { return };
    // Whoever sets it aside takes the lock behind that.
    if !s.is_aside() && count::received_matches(s, sock) == Ok(true) {
        count::took(s, 0);
        dir.ctl.fetch_or(ctl::READY, AcqRel);
    }
}

/// Before the kernel's socket gets a low-water mark: true if the peer has not switched to memory, and does not from here on.
pub fn withdraw_offer(s: &Sock) -> bool {
    const PATIENCE_NS: u64 = 2_000_000_000;
    s.rx.dir().is_none_or(|dir| {
        let patience = Patience::with_others(s, PATIENCE_NS, 0);
        let is_closed = close_door(dir, patience.until());
        if !is_closed {
            patience.was_in_vain();
        }
        is_closed && !follow::is_marked(s, dir)
    })
}

/// From here on the peer may switch to memory no more; false: it is about to mark a switch that it has begun before, and
/// has not until `until`.
pub fn close_door(dir: &Dir, until: u64) -> bool {
    dir.ctl.fetch_and(!ctl::READY, AcqRel);
    while dir.ctl.load(Acquire) & ctl::MARKING != 0 {
        if clock::now_ns() > until {
            return false;
        }
        proc::yield_now();
    }
    true
}

/// Gives up before anything was switched: the region is not used, the connection is plain TCP. It
/// stays mapped until the end, so that a thread that looks at it now finds memory.
pub fn abandon(s: &Sock, why: Reason) {
    leave_unused(s, why, step::FAILED);
}

/// The same, where the peer could not take the region now: it is asked again.
pub fn postpone(s: &Sock, why: Reason) {
    leave_unused(s, why, step::IDLE);
}

fn leave_unused(s: &Sock, why: Reason, step: u32) {
    s.tx.dir.store(std::ptr::null_mut(), Release);
    s.rx.dir.store(std::ptr::null_mut(), Release);
    s.note(why);
    s.set_state(State::Tcp);
    s.clear(flag::CAREFUL);
    // Last: whoever finds it idle may begin. Pairs with the Acquire in `rendezvous::one_step`.
    s.step.store(step, Release);
}
