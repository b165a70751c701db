//! When the connecting side begins, once both ends are proved: its first switch puts its proof into the TCP stream.
//!
//! An accepting end that is killed while the proof lies unread there is a reset to its kernel, which destroys what that end had still
//! to send, where TCP would have shown an end. So the proof goes with payload: who dies with the one unread has the other unread too,
//! and TCP would have reset as well. A side that only receives has none: there the accepting end says when it is about to take the
//! proof, and waits for it. Called by the socket table before it sends through the kernel, and by the steps of the rendezvous.

use super::{follow, switch};
use crate::family::process;
use crate::family::sock::{Sock, role, step};
use crate::sys::{clock, fd, proc};
use crate::transport::region::{Dir, ctl};
use std::sync::atomic::Ordering::*;

/// Receives, and KiB, after which the proof goes alone in any case: an older library never says that it awaits it, and whoever reads
/// slowly may never come by while it is awaited. A stream of that length is worth more than what is left of the risk.
const ALONE: (u64, u32) = (1 << 14, 1024);
/// Sends after which the accepting end awaits it first; each time that it waits in vain doubles them.
const FIRST: u64 = 8;
/// How long the accepting end waits for the proof: a peer that reads at all comes by within that.
const WAIT_US: u64 = 100;
/// How long the bytes of a proof that is marked may take, in ms.
const COMES_MS: i32 = 2;

/// The connecting side has payload to send: sending goes to memory now, if it may. A peer that sends nothing more stays on TCP
/// (`switch::try_to`).
pub fn with_payload(s: &Sock, sock: i32) -> bool {
    is_due(s) && fd::poll_now(sock, libc::POLLRDHUP) == 0 && switch::try_to_memory(s, sock)
}

/// The peer is proved to the connecting side: what it receives from here on is counted. (With what it sends, it begins.)
pub fn count_receives(s: &Sock) {
    s.deadline.store(u64::from(s.ops.load(Relaxed)), Relaxed);
    s.count_kib();
    if let Some(back) = s.rx.dir() {
        back.ctl.fetch_or(ctl::KEEPS, AcqRel); // pairs with the Acquire in `take_alone`
    }
}

/// Whether the connecting side keeps its proof for payload to go with.
pub fn awaits_payload(s: &Sock) -> bool {
    // Pairs with the AcqRel in `take_alone`.
    let is_awaited = || s.tx.dir().is_some_and(|d| d.ctl.load(Acquire) & ctl::AWAITS != 0);
    is_due(s) && !is_awaited() && !is_enough(s) && !is_own_peer(s)
}

/// Whether the accepting end is this process's as well: it does not die alone, and waits for nobody while it sends.
fn is_own_peer(s: &Sock) -> bool {
    let pid = process::pid();
    pid != 0 && s.peer_pid.load(Relaxed) == pid
}

fn is_enough(s: &Sock) -> bool {
    let received = u64::from(s.ops.load(Relaxed)).saturating_sub(s.deadline.load(Relaxed));
    received >= ALONE.0 || s.kib_since_look() >= ALONE.1
}

/// Whether the connecting side may begin, and has not.
#[inline]
pub fn is_due(s: &Sock) -> bool {
    s.role.load(Relaxed) == role::CLIENT && s.step.load(Acquire) == step::PROVED && s.tx.switches.load(Relaxed) == 0
}

/// The accepting end has set the nonce: what it sends from here on, without a receive in between, is counted.
pub fn count_sends(s: &Sock) {
    next_turn(s, FIRST);
}

/// The accepting end has made `n` operations since. If the last ones were sends and the peer has a proof that it keeps, this end says
/// now and then that it awaits it, and takes what comes.
pub fn take_alone(s: &Sock, sock: i32, dir: &Dir, n: u64) {
    let turn = s.peer_cookie.load(Relaxed);
    let is_kept = || s.tx.dir().is_some_and(|back| back.ctl.load(Acquire) & ctl::KEEPS != 0);
    if n < turn >> 32 || !is_kept() || dir.ctl.load(Relaxed) & ctl::READY == 0 {
        return;
    }
    if turn as u32 != s.rx.tcp.load(Relaxed) as u32 {
        return next_turn(s, n + FIRST); // something came since
    }
    next_turn(s, 2 * n);
    dir.ctl.fetch_or(ctl::AWAITS, AcqRel); // pairs with the Acquire in `awaits_payload`
    if is_marked_soon(dir) && fd::poll(&mut [libc::pollfd { fd: sock, events: libc::POLLIN, revents: 0 }], COMES_MS) == Ok(1) {
        follow::progress(s, sock);
    }
    dir.ctl.fetch_and(!ctl::AWAITS, AcqRel);
}

/// The operation, in the upper half, and what TCP has brought until now.
fn next_turn(s: &Sock, n: u64) {
    s.peer_cookie.store(n << 32 | u64::from(s.rx.tcp.load(Relaxed) as u32), Relaxed);
}

/// Whether the peer marks its switch while it is waited for.
fn is_marked_soon(dir: &Dir) -> bool {
    let end = clock::ticks() + clock::ticks_of_us(WAIT_US);
    // Pairs with the Release in `switch::mark`.
    while dir.switch.load(Acquire) == 0 {
        if clock::ticks() > end {
            return false;
        }
        proc::yield_now();
    }
    true
}
