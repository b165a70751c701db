//! A sender that has gone to TCP by itself, and is called to memory: its peer has read ahead for a hand-over and wants all of it
//! back ([`super::take_up`]). It comes, and stays until the peer has asked.
//!
//! A peer that has said its last word calls as well, and for its sake alone the direction would go back to TCP at once
//! (`Spill::HalfClosed`), before the peer could ask. The same goes for a ring that is full, which nobody reads meanwhile, and
//! for the test mode's change of medium. So these spills are held off while the call stands. The peer clears it with its
//! request; one that dies before does not, and what holds the sender back then is time. Called by [`super::switch`], by
//! [`super::wait`], and where a ring is found full.

use super::patience::{self, Patience};
use super::{follow, switch};
use crate::family::sock::Sock;
use crate::sys::{clock, fd};
use crate::transport::region::ctl;
use std::sync::atomic::Ordering::*;

/// How long the peer may take to ask, in units of 2^20 ns: as long as it tries (`rendezvous::handover`).
const PATIENCE: u32 = 2000;
/// How long a call that may not wait does so all the same, where nothing else could tell its program that it may go on.
const MOMENT_NS: u64 = 200_000_000;
/// After how many ns a full ring that is kept is looked at again.
pub const AGAIN_NS: u64 = 1_000_000;

/// Goes to memory if the peer calls. It calls again if that could not be done now: who waits must not be called for ever.
pub fn come(s: &Sock, sock: i32) {
    let Some(dir) = s.tx.dir().filter(|_| !s.is_linked()) else { return };
    if dir.ctl.load(Acquire) & ctl::COME == 0 {
        return;
    }
    s.tx.hold.store(0, Relaxed);
    s.tx.end.store(now(), Relaxed);
    if !switch::try_to(s, sock) {
        dir.ctl.fetch_and(!ctl::COME, AcqRel);
    }
}

/// Whether the peer is still to ask for what it has called us for.
#[cold]
pub fn is_kept(s: &Sock) -> bool {
    let Some(dir) = s.tx.dir().filter(|d| d.ctl.load(Acquire) & ctl::COME != 0) else { return false };
    let is_kept = s.tx_in_memory() && now().wrapping_sub(s.tx.end.load(Relaxed)) < PATIENCE;
    if !is_kept {
        dir.ctl.fetch_and(!ctl::COME, AcqRel);
    }
    is_kept
}

/// As [`is_kept`], for a ring that is full.
#[inline]
pub fn keeps_full(s: &Sock) -> bool {
    let is_called = |s: &Sock| s.tx.dir().is_some_and(|d| d.ctl.load(Relaxed) & ctl::COME != 0);
    !s.is_linked() && s.tx_in_memory() && is_called(s) && is_kept(s)
}

/// The ring is full, and who waits for room hears of room in TCP alone: the peer asks in a moment for all to go there. True: it has.
pub fn await_request(s: &Sock) -> bool {
    // Another user's could call so in each new connection.
    if !keeps_full(s) || !patience::is_own_user(s) {
        return false;
    }
    let patience = Patience::with(s, MOMENT_NS);
    while !follow::is_asked(s) && is_kept(s) && !patience.is_over() {
        let _ = fd::poll(&mut [], 1);
    }
    let is_asked = follow::is_asked(s);
    if !is_asked {
        patience.was_in_vain(); // also where it has taken its call back
    }
    is_asked
}

fn now() -> u32 {
    (clock::now_ns() >> 20) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::sock::medium;
    use crate::sys::proc;
    use crate::transport::region::Dir;

    #[test]
    fn a_process_that_calls_for_nothing_is_not_waited_for_again() {
        // SAFETY: all zero is a fresh record, and so is a direction of a page.
        let (s, dir): (Sock, Dir) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        s.tx.dir.store(std::ptr::from_ref(&dir).cast_mut(), Relaxed);
        s.tx_medium.store(medium::SHM, Relaxed);
        s.peer_uid.store(proc::euid(), Relaxed);
        s.peer_pid.store(1 << 23, Relaxed); // nobody's
        s.tx.end.store(now(), Relaxed);
        dir.ctl.store(ctl::COME, Relaxed);
        assert!(!Patience::with(&s, 60_000_000_000).is_over());
        assert!(!await_request(&s));
        assert!(Patience::with(&s, 60_000_000_000).is_over());
        dir.ctl.store(ctl::COME | ctl::RETURN, Relaxed);
        assert!(await_request(&s), "it has asked");
    }
}
