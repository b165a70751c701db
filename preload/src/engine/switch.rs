//! The sender's side of the late switch to memory and of the way back (`follow` is the receiver's).
//!
//! The sender decides. It stores the place (byte of the TCP stream, byte of the ring) and then counts
//! the switch; the receiver takes the old medium up to exactly there. An odd count means memory. A
//! sender switches again only after the receiver has followed the last one. In the first switch of
//! the connecting side 16 bytes of proof stand in the TCP stream behind the payload: the accepting
//! side's nonce, which only the process at the other end of this very connection can put there.

use super::stuck::{self, Look};
use super::{behind, bell, called, count, debt, end, follow, kernel, linked, proof, resets, shadow, signals, take_up};
use crate::family::lock::Marker;
use crate::family::process;
use crate::family::sock::{Sock, flag, medium, role, step};
use crate::fault::{self, Step as Fault};
use crate::sys::{clock, net, proc};
use crate::transport::changes;
use crate::transport::region::{Dir, ctl, fin, setup};
use crate::{config, log};
use smcr_proto::page::{Counter, State};
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// Attempts after a spill until memory is tried again; doubles with each spill.
const FIRST_HOLD: u32 = 32;
/// How long those that are inside a kernel send are waited for.
const LEAVE_US: u64 = 500;
/// How long a doorbell that was begun may take: its thread may be one that does not run while others want the processor.
const BELL_NS: u64 = 1_000_000_000;

/// Why a sender leaves the ring by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spill {
    /// The ring is full and nobody that we see waits for room.
    UnseenWriter,
    /// The peer has ended, or has shut down its sending side and reads nothing ([`behind`]).
    HalfClosed,
    /// A wait has nothing by which it could be woken when room comes.
    NoWaiter,
    /// The ring stays full and unread.
    Unread,
    /// As `Unread`, and the peer waits for room as well.
    Mutual,
    /// Test mode.
    Flip,
    /// Pinned by the program's use of the socket.
    Pinned,
    /// It is set aside at this end or the other: a program without our state may use it next.
    Aside,
}

/// Moves sending to memory if all is right for it now. Cheap when it is not.
pub fn try_to_memory(s: &Sock, sock: i32) -> bool {
    s.rx.dir().is_some_and(|back| back.fin.load(Relaxed) & fin::ENDS == 0 || behind::is_half(s, back)) && try_to(s, sock)
}

/// As [`try_to_memory`], also where the peer has ended.
pub fn try_to(s: &Sock, sock: i32) -> bool {
    let Some(dir) = s.tx.dir() else { return false };
    let may_go = || !s.tx_in_memory() && !s.is_aside() && !s.has(flag::SHUT_WR) && !stays_on_tcp(s, dir);
    if !may_go() || s.has(flag::OWES) || !may_send(s) {
        return false;
    }
    let hold = s.tx.hold.load(Relaxed);
    if hold > 0 {
        s.tx.hold.store(hold - 1, Relaxed);
        return false;
    }
    let wishes = dir.ctl.load(Acquire);
    if !is_welcome(wishes) {
        return false;
    }
    let made = s.tx.switches.load(Relaxed);
    if dir.passed.load(Acquire) != made {
        return false;
    }
    let marker = Marker::new();
    let Some(_held) = s.tx.lock.try_take(&marker) else { return false };
    // Whoever sets it aside, pins it or ends it takes the lock behind that.
    if !may_go() || s.tx.switches.load(Relaxed) != made {
        return false;
    }
    // No handler may leave it half done.
    signals::quietly(|| {
        // From here on senders come to the lock; those that are inside the kernel must have left.
        s.tx_medium.store(medium::SHM, SeqCst);
        let done = have_left(s) && is_clean(s, sock) && to_memory(s, sock, dir, made);
        if !done {
            s.tx_medium.store(medium::TCP, SeqCst);
        }
        done
    })
}

/// For good. One that was drained comes all the same where its peer calls for what it has to give to another program, until that has asked.
fn stays_on_tcp(s: &Sock, dir: &Dir) -> bool {
    s.has(flag::PINNED) && !(dir.ctl.load(Relaxed) & ctl::COME != 0 && s.reason.load(Relaxed) == Reason::Drained.code())
}

/// Whether the consumer, whose wishes these are, is for memory. One that stays on TCP calls for what it has to ask for there.
fn is_welcome(wishes: u32) -> bool {
    let against = if wishes & ctl::COME != 0 { ctl::RETURN } else { ctl::RETURN | ctl::PINNED };
    wishes & (ctl::READY | against) == ctl::READY
}

/// Whether nobody is inside a kernel send. Of many threads that send in turn some always are, so those that
/// are about to come out are waited for; those that come meanwhile stay outside, at the lock.
fn have_left(s: &Sock) -> bool {
    let is_empty = || s.tx.in_kernel.load(SeqCst) == 0;
    if is_empty() {
        return true;
    }
    let end = clock::ticks() + clock::ticks_of_us(LEAVE_US);
    while clock::ticks() < end {
        for _ in 0..64 {
            if is_empty() {
                return true;
            }
            std::hint::spin_loop();
        }
        proc::yield_now();
    }
    let tries = s.tries.fetch_add(1, Relaxed);
    s.tx.hold.store(FIRST_HOLD << tries.min(6), Relaxed);
    false
}

/// Whether this side may begin: the connecting side after the nonce was seen on the peer's socket,
/// the accepting side after the proof in the stream.
fn may_send(s: &Sock) -> bool {
    let Some(region) = s.region() else { return false };
    match s.role.load(Relaxed) {
        role::CLIENT => s.tx.switches.load(Relaxed) > 0 || s.step.load(Acquire) == step::PROVED,
        _ => region.server.load(Relaxed) == setup::PROVED && s.step.load(Acquire) == step::PROVED,
    }
}

fn is_clean(s: &Sock, sock: i32) -> bool {
    match count::sent_matches(s, sock) {
        Ok(true) => true,
        Ok(false) => {
            // Also the case while acknowledgements are on their way; persistent only with raw I/O.
            if s.tries.fetch_add(1, Relaxed) > 1000 {
                s.note(Reason::CountMismatch);
                s.set(flag::PINNED);
            }
            false
        }
        Err(_) => false,
    }
}

fn to_memory(s: &Sock, sock: i32, dir: &Dir, made: u32) -> bool {
    shadow::accelerate(s, sock);
    // The peer may have said meanwhile that it leaves. If it says so from here on, it waits for the mark.
    let may = |c: u32| is_welcome(c).then_some(c | ctl::MARKING);
    if dir.ctl.fetch_update(AcqRel, Acquire, may).is_err() {
        return false;
    }
    let marked = mark(s, sock, dir, made);
    dir.ctl.fetch_and(!ctl::MARKING, AcqRel); // pairs with the Acquire in `offer::close_door`
    marked
}

fn mark(s: &Sock, sock: i32, dir: &Dir, made: u32) -> bool {
    let at = s.tx.kernel.load(Relaxed);
    let proof = s.role.load(Relaxed) == role::CLIENT && made == 0;
    // A full send queue would cut the proof: come again when it has room.
    if proof && !net::has_room(sock) {
        return false;
    }
    // From here on the accepting side can't give up: it waits for the proof.
    if proof && s.region().is_none_or(|r| r.server.compare_exchange(setup::NONCE, setup::COMMITTED, AcqRel, Relaxed).is_err()) {
        return false;
    }
    dir.at_kernel(made + 1).store(at, Relaxed);
    dir.at_ring(made + 1).store(s.tx.cursor.load(Relaxed), Relaxed);
    // Before the proof: a receiver that sees a byte of it sees the switch. Pairs with the Acquire in
    // `from_tcp::read`.
    dir.switch.store(made + 1, Release);
    fault::pass(Fault::SwitchMarked);
    if proof && let Err(e) = proof::send(s, sock) {
        log::debug!(target: "smcr::switch", errno = e.0, "proof not sent");
        dir.switch.store(made, Release);
        if let Some(r) = s.region() {
            // Unless the accepting side has given up meanwhile.
            let _ = r.server.compare_exchange(setup::COMMITTED, setup::NONCE, AcqRel, Relaxed);
        }
        return false;
    }
    fault::pass(Fault::ProofSent);
    s.set(flag::BEHIND);
    s.tx.switches.store(made + 1, Relaxed);
    s.tx_switches.store(made + 1, Relaxed);
    s.tx.gate.fetch_and(!bell::CLOSED, AcqRel);
    changes::note(s);
    if !s.has(flag::PINNED) {
        if s.state.swap(State::Accelerated as u32, Relaxed) != State::Accelerated as u32 {
            process::count(Counter::Accelerated, 1);
        }
        s.note(Reason::None);
    }
    s.tries.store(0, Relaxed);
    process::count(Counter::SwitchTxMem, 1);
    config::arm_flip(&s.tx.flip);
    log::debug!(target: "smcr::switch", fd = sock, at, "sending moves to memory");
    // What this end has sent may still be in TCP, and the peer may have called for this by a doorbell (hazard 8).
    if s.rx_in_memory() && s.rx.dir().is_some_and(|back| bell::unread(s, back) > 0) {
        kernel::leave_no_bell(s, sock);
    }
    // A reader that sleeps on TCP must learn that the stream goes on elsewhere when data comes; its
    // doorbell is armed since the region was made.
    true
}

/// Moves sending to TCP if nobody reads the full ring. Some: its consumer may just be slow, and this is the time in
/// ns after which to look again. `reads` as for [`stuck::look`].
pub fn leave_unread(s: &Sock, sock: i32, dir: &Dir, reads: bool) -> Option<u64> {
    if called::keeps_full(s) {
        return Some(called::AGAIN_NS);
    }
    if !s.is_linked() && s.rx.dir().is_some_and(|back| is_ended(s, back)) {
        return behind_end(s, sock);
    }
    match stuck::look(s, dir, reads) {
        Look::Wait(ns) => return Some(ns),
        Look::Unread => spill(s, sock, Spill::Unread),
        Look::Mutual => spill(s, sock, Spill::Mutual),
    }
    None
}

/// Behind the peer's end: sending stays in memory (Some: ns after which to look again), or moves to TCP.
pub fn behind_end(s: &Sock, sock: i32) -> Option<u64> {
    let again = behind::stays(s, sock);
    if again.is_none() {
        spill(s, sock, Spill::HalfClosed);
    }
    again
}

/// Moves sending back to TCP behind what is in the ring. The sender alone can do that.
pub fn spill(s: &Sock, sock: i32, why: Spill) {
    if s.is_linked() {
        // The peer has to be asked; a kernel has no way back.
        return if why == Spill::UnseenWriter {
            linked::no_room(s)
        };
    }
    // First: who calls no more has asked by then (`follow::freeze`).
    let is_kept = matches!(why, Spill::HalfClosed | Spill::Flip) && called::is_kept(s);
    // A peer that has frozen its end gets what is left in the ring through TCP, whoever comes first.
    // Not behind our own FIN, where TCP takes nothing more: then the peer finds its request crossed.
    let asks = |d: &&Dir| d.ctl.load(Acquire) & ctl::RETURN != 0 && !s.has(flag::SHUT_WR);
    if let Some(dir) = s.tx.dir().filter(asks)
        && give_back(s, sock, dir)
    {
        return;
    }
    // A peer that has taken its wish back asks anew (`here::ask_anew`): it reads on where it is.
    let is_unasked = why == Spill::Aside && !s.is_aside() && s.rx.end.load(Relaxed) == 0;
    if is_kept || is_unasked {
        return;
    }
    let marker = Marker::new();
    let Ok(_held) = s.tx.lock.take(&marker) else { return };
    if s.tx_in_memory() {
        let to = s.tx.cursor.load(Relaxed);
        signals::quietly(|| back_to_tcp(s, sock, why, to)); // as above
    }
}

fn back_to_tcp(s: &Sock, sock: i32, why: Spill, at_ring: u64) {
    let Some(dir) = s.tx.dir() else { return };
    // No doorbell may fall into the payload: close the gate, wait for those on their way.
    s.tx.gate.fetch_or(bell::CLOSED, AcqRel);
    let (mut pause, mut until) = (proc::Pause::default(), None);
    while s.tx.gate.load(Acquire) & !bell::CLOSED != 0 {
        if pause.turn() && clock::now_ns() > *until.get_or_insert_with(|| clock::now_ns() + BELL_NS) {
            // A thread was killed between counting and sending: nobody knows whether its byte went.
            log::warn!(target: "smcr::switch", fd = sock, "a doorbell never ended; resetting");
            return resets::hostile(s, sock);
        }
    }
    fault::pass(Fault::GateClosed);
    let made = s.tx.switches.load(Relaxed) + 1;
    dir.at_ring(made).store(at_ring, Relaxed);
    dir.at_kernel(made).store(s.tx.kernel.load(Relaxed), Relaxed);
    dir.switch.store(made, Release); // pairs with the Acquire in `follow::follow`
    fault::pass(Fault::BackMarked);
    s.tx.switches.store(made, Relaxed);
    s.tx_switches.store(made, Relaxed);
    let hold = match why {
        Spill::Flip => 0,
        Spill::HalfClosed if s.rx.dir().is_some_and(|back| behind::is_half(s, back)) => FIRST_HOLD,
        Spill::HalfClosed | Spill::Pinned => u32::MAX,
        // It has waited for its reader longer than any switch takes: no reason to stay away for long.
        Spill::Unread | Spill::Aside => FIRST_HOLD,
        _ => FIRST_HOLD.saturating_mul(made.min(64)),
    };
    s.tx.hold.store(hold, Relaxed);
    process::count(Counter::SwitchTxTcp, 1);
    match why {
        _ if s.has(flag::PINNED) => {} // why it stays, others ask for (`stays_on_tcp`, `table::drain`)
        Spill::UnseenWriter => s.note(Reason::UnseenWriter),
        Spill::HalfClosed => s.note(Reason::HalfClosed),
        Spill::Unread | Spill::Mutual => s.note(Reason::NotRead),
        _ => {}
    }
    if why != Spill::Flip {
        process::count(Counter::Spills, 1);
    }
    log::debug!(target: "smcr::switch", fd = sock, at_ring, ?why, "sending moves to TCP");
    s.tx_medium.store(medium::TCP, SeqCst);
    changes::note(s);
    shadow::leave_memory(s, sock);
    // While our own payload may lie in the kernel's queue, an unread doorbell at our end would turn
    // an exit into a reset that destroys it (hazard 8).
    if s.rx_in_memory() {
        kernel::leave_no_bell(s, sock);
    }
}

/// Whether the peer wants something of the sender: its FIN is marked, or it asks for TCP.
#[inline]
pub fn is_called(s: &Sock, back: &Dir) -> bool {
    back.fin.load(Relaxed) & (fin::WRITE | fin::CLOSED) != 0 || follow::is_asked(s)
}

/// Whether the peer's end is known.
pub fn is_ended(s: &Sock, back: &Dir) -> bool {
    back.fin.load(Relaxed) & fin::ENDS != 0 || s.rx.end.load(Relaxed) != 0
}

/// Does what the peer wants of the sender; true: sending is on TCP now. (False: the peer has just taken
/// its wish back, or this is a signal handler above a sender of the same socket.)
#[cold]
pub fn attend(s: &Sock, sock: i32) -> bool {
    if s.is_linked() {
        return false;
    }
    let Some(back) = s.rx.dir() else { return !s.tx_in_memory() };
    if !s.tx_in_memory() {
        called::come(s, sock);
    }
    if follow::is_asked(s) {
        if !s.has(flag::PINNED) {
            s.note(Reason::PeerPinned);
        }
        let stays = s.tx.dir().is_none_or(|dir| dir.ctl.load(Acquire) & ctl::PINNED != 0);
        spill(s, sock, if stays { Spill::Pinned } else { Spill::Aside }); // gives back if that is what is asked for
    } else if is_called(s, back) {
        behind_end(s, sock);
    }
    !s.tx_in_memory()
}

/// The peer froze its side of the ring and can't read it any more: what it has not taken is sent
/// again through TCP, as far as the kernel takes it now (`debt` has the rest). False: the peer has taken
/// its request back, or died: what is unread stays in the ring, which tells (`end::verdict`).
fn give_back(s: &Sock, sock: i32, dir: &Dir) -> bool {
    let marker = Marker::new();
    let Ok(_held) = s.tx.lock.take(&marker) else { return true };
    if !s.tx_in_memory() {
        return true;
    }
    kernel::look_at_kernel_for_sender(s, sock);
    if end::has_died(s, sock) {
        return false;
    }
    let claim = |c| (c & ctl::RETURN != 0).then_some(c & !ctl::RETURN | ctl::TAKEN);
    // No handler may leave it half done.
    signals::quietly(|| {
        let claimed = dir.ctl.fetch_update(AcqRel, Acquire, claim).is_ok(); // else the consumer reads on from the ring
        if claimed {
            pay_back(s, sock, dir);
        }
        claimed
    })
}

/// The request is taken: the way to TCP, and what the peer has frozen goes there as far as that takes it now.
fn pay_back(s: &Sock, sock: i32, dir: &Dir) {
    fault::pass(Fault::RequestTaken);
    let (from, to) = (dir.frozen.load(Relaxed), s.tx.cursor.load(Relaxed));
    let size = s.tx.size.load(Relaxed) as usize;
    let annex = take_up::claimed(dir);
    let (Some(_), Some(annex)) = (smcr_proto::cursor::readable(to, from, size), annex) else {
        return resets::hostile(s, sock);
    };
    debt::owe(s, annex, from);
    let stays = dir.ctl.load(Relaxed) & ctl::PINNED != 0;
    back_to_tcp(s, sock, if stays { Spill::Pinned } else { Spill::Aside }, from);
    debt::pay_locked(s, sock);
}

/// Answers the peer's switch with our own, in the call that received: a side that only receives
/// still wants its doorbells.
#[inline]
pub fn answer_tx(s: &Sock, sock: i32) {
    if !s.tx_in_memory() {
        try_to_memory(s, sock);
    }
}

/// Test mode: moves to the other medium after a random number of bytes.
#[inline]
pub fn flip_tx(s: &Sock, sock: i32, n: usize) {
    if config::flips() && s.tx.flip.fetch_sub(n as i64, Relaxed) <= n as i64 {
        config::arm_flip(&s.tx.flip);
        spill(s, sock, Spill::Flip);
    }
}

/// Keeps a connection on TCP from now on, for a reason; directions in memory come back.
pub fn pin(s: &Sock, sock: i32, why: Reason) {
    s.set(flag::PINNED);
    if s.is_linked() {
        // A handshake that is on its way will be declined.
        return if s.can_return() {
            s.note(why)
        };
    }
    s.note(why);
    if let Some(dir) = s.rx.dir() {
        dir.ctl.fetch_or(ctl::PINNED, AcqRel);
    }
    // Also where sending seems to be on TCP: another thread that is about to switch has the lock.
    if s.region().is_some() {
        spill(s, sock, Spill::Pinned);
    }
    s.set_state(State::Pinned);
}
