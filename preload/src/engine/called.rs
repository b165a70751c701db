//! A sender that has gone to TCP by itself, and is called to memory: its peer has read ahead for a hand-over and wants all of it
//! back ([`super::take_up`]). It comes, and stays until the peer has asked.
//!
//! A peer that has said its last word calls as well, and for its sake alone the direction would go back to TCP at once
//! (`Spill::HalfClosed`), before the peer could ask. So that spill is held off while the call stands. The peer clears it with its
//! request; one that dies before does not, and what holds the sender back then is time. Called by [`super::switch`] and [`super::wait`].

use super::switch;
use crate::family::sock::Sock;
use crate::sys::clock;
use crate::transport::region::ctl;
use std::sync::atomic::Ordering::*;

/// How long the peer may take to ask, in units of 2^20 ns: as long as it tries (`rendezvous::handover`).
const PATIENCE: u32 = 2000;

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

fn now() -> u32 {
    (clock::now_ns() >> 20) as u32
}
