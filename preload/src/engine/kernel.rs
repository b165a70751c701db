//! The kernel's socket beside the ring: its doorbells and its end, and what waiters that we never see
//! find in it.
//!
//! Called by readers, by waits before they sleep and when the kernel woke them.

use super::bell::{self, Kind};
use super::follow::{self, pending};
use super::{end, resets};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::log;
use crate::sys::{Errno, clock, fd, net, tcp_state};
use crate::transport::region::{Dir, fin};
use crate::transport::waiters::Waiter;
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// Takes doorbells off and finds FIN or RST, without taking the kernel's error. Called with the
/// receiving lock held.
pub fn look_at_kernel(s: &Sock, sock: i32, dir: &Dir) {
    if has_doorbells(s) {
        tidy(s, dir, sock);
        look_for_end(s, sock, dir);
    }
}

/// Whether what lies in the kernel's socket is doorbells: over a link its end comes by the link; on TCP it is payload.
fn has_doorbells(s: &Sock) -> bool {
    !s.is_linked() && s.rx_in_memory()
}

/// The kernel has called the one who waits, which is awake and looks from here on. Where nobody else needs it, it takes its doorbell off: none
/// is left for a death to be told by (hazard 8). Called with the receiving lock held.
pub fn was_called(s: &Sock, dir: &Dir, sock: i32, kind: Kind) {
    if !has_doorbells(s) {
        return;
    }
    if bell::is_sole(s, kind) && s.rx.waiter.load(Relaxed) != bell::EACH {
        bell::drain(s, dir, sock);
    } else {
        tidy(s, dir, sock);
    }
}

/// As [`look_at_kernel`], when doorbells are not to be seen to.
pub fn look_for_end(s: &Sock, sock: i32, dir: &Dir) {
    if !has_doorbells(s) || s.rx.end.load(Relaxed) >= end::RST {
        return;
    }
    let bits = poll_now(s, sock, libc::POLLIN | libc::POLLRDHUP);
    if bits & (libc::POLLIN | libc::POLLRDHUP) == libc::POLLIN {
        take_stale(s, dir, sock);
    }
    if shows_reset(s, bits) {
        end::found_reset(s, sock);
    } else if bits & (libc::POLLRDHUP | libc::POLLHUP) != 0 && has_peer_ended(s, sock) {
        end::found(s, end::FIN);
    }
}

/// Whether the connection was reset. ERR alone is the error queue (zero-copy completions); without it the error was told already, and
/// only a reset closes both ways where we have not closed ours.
fn shows_reset(s: &Sock, bits: i16) -> bool {
    bits & libc::POLLHUP != 0 && (bits & libc::POLLERR != 0 || !s.has(flag::SHUT_WR))
}

/// Whether the end that the kernel shows is the peer's: our own SHUT_RD shows as its FIN does (RDHUP, and a read of nothing), and both of
/// ours as the end of both (HUP).
pub fn has_peer_ended(s: &Sock, sock: i32) -> bool {
    !s.has(flag::SHUT_RD) || !tcp_state::has_open_peer(sock)
}

/// Takes bytes off the TCP connection that are doorbells although they were not counted: the peer was
/// stopped, or killed, between sending one and counting it. Bytes that are no doorbells were put there
/// behind the library's back; they can't be placed in the stream, and dropping them would be worse than
/// a reset (hazard 16). Called with the receiving lock held.
fn take_stale(s: &Sock, dir: &Dir, sock: i32) {
    if !has_doorbells(s) {
        return;
    }
    let mut buf = [0u8; 64];
    let n = match net::recv_slice(sock, &mut buf, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(0) if has_peer_ended(s, sock) => return end::found(s, end::FIN),
        Ok(n) => n,
        Err(e) => return end::took(s, e),
    };
    // What was seen above is no payload if no switch is marked now: a mark is stored before the first
    // byte that follows it is sent. And it rang for nothing that is still to be read.
    if n == 0 || follow::is_marked(s, dir) || dir.head.load(Acquire) != s.rx.cursor.load(Relaxed) {
        return;
    }
    if buf[..n].iter().any(|b| *b != bell::BYTE[0]) {
        log::warn!(target: "smcr::peer", fd = sock, "bytes came that no doorbell and no switch explains; resetting");
        s.note(Reason::CountMismatch);
        return resets::reset(s, sock);
    }
    if let Ok(n) = net::recv_slice(sock, &mut buf[..n], libc::MSG_DONTWAIT) {
        bell::note_taken(s, n);
    }
}

/// Whether it is time to look at the kernel's socket, where a peer that dies shows: after 50 us, and
/// after 10 ms for a member of hooked epoll sets, which hear of it from the kernel's set.
#[inline]
pub fn is_look_due(s: &Sock) -> bool {
    is_look_due_at(s, clock::ticks())
}

/// As [`is_look_due`] for a tick that was just read.
#[inline]
pub fn is_look_due_at(s: &Sock, now: u64) -> bool {
    now >= s.rx.looked.load(Relaxed)
}

/// The kernel's socket has just been looked at: says when the next look is due.
pub fn looked_now(s: &Sock) {
    let us = if s.sets.load(Relaxed) == 0 { 50 } else { 10_000 };
    s.rx.looked.store(clock::ticks() + clock::ticks_of_us(us), Relaxed);
}

/// Whether the last look, or what it rests after that, is no longer ago than that: who uses the connection looks.
pub fn was_looked_at_since(s: &Sock, us: u64) -> bool {
    s.rx.looked.load(Relaxed) + clock::ticks_of_us(us) > clock::ticks()
}

/// Looks, and says when the next look is due.
fn poll_now(s: &Sock, sock: i32, events: i16) -> i16 {
    let before = clock::ticks();
    let bits = fd::poll_now(sock, events);
    let now = clock::ticks();
    s.rx.looked.fetch_max(now + rest_after(now.saturating_sub(before)), Relaxed);
    bits
}

/// How long after a look that took so long there is none: where it takes long (a tracer, a sandbox) looks cost a twentieth of
/// the time at most. Both in ticks.
pub fn rest_after(took: u64) -> u64 {
    const SHARE: u64 = 20;
    took.min(clock::ticks_of_us(500)) * SHARE
}

/// As [`is_look_due`], and notes the look.
#[inline]
pub fn is_time_to_look(s: &Sock) -> bool {
    let due = is_look_due(s);
    if due {
        looked_now(s);
    }
    due
}

/// Whether to look for the end of the connection: the peer has marked one, of which the kernel knows how it was, or it is time.
#[inline]
pub fn may_have_ended(s: &Sock, dir: &Dir) -> bool {
    s.rx.end.load(Relaxed) == 0 && (dir.fin.load(Acquire) & fin::ENDS != 0 || is_time_to_look(s))
}

/// What poll is asked of the kernel's socket by [`look_at_kernel_for_sender`]; without an answer there is nothing to find.
pub const END: i16 = libc::POLLRDHUP;

/// Whether the end of the connection shows in the kernel's socket, and has not been found.
#[inline]
pub fn shows_its_end(s: &Sock) -> bool {
    s.rx_in_memory() && s.rx.end.load(Relaxed) == 0 && !s.is_linked()
}

/// As [`look_at_kernel`] for a sender, which leaves doorbells to the reader.
pub fn look_at_kernel_for_sender(s: &Sock, sock: i32) {
    if s.is_linked() {
        return;
    }
    let bits = poll_now(s, sock, END);
    if shows_reset(s, bits) {
        end::found_reset(s, sock);
    } else if bits & (libc::POLLRDHUP | libc::POLLHUP) != 0 && has_peer_ended(s, sock) {
        end::found(s, end::FIN);
    }
}

/// What a send gets behind our own end: EPIPE, unless an error waits to be told, which the kernel looks for first.
#[cold]
pub fn behind_own_end(s: &Sock, sock: i32, back: &Dir) -> Errno {
    if s.is_linked() {
        return Errno(libc::EPIPE);
    }
    match s.error.swap(0, Relaxed) {
        0 => {}
        e => return end::took_left(s, e),
    }
    if s.rx.end.load(Relaxed) <= end::FIN {
        look_at_kernel_for_sender(s, sock);
    }
    let told = match end::verdict(s, sock, back) {
        end::Verdict::Died if end::take_death(s) => Some(Errno(libc::ECONNRESET)),
        end::Verdict::Reset if !end::is_death_told(s) => {
            let e = net::get_opt::<i32>(sock, libc::SOL_SOCKET, libc::SO_ERROR).ok().filter(|e| *e != 0);
            e.map(|e| end::as_of_tcp(s, sock, Errno(e)))
        }
        _ => None,
    };
    if told.is_some_and(end::ends) {
        end::take_death(s);
    }
    told.unwrap_or(Errno(libc::EPIPE))
}

/// Before a send through TCP behind a ring that the peer has not read: its death shows there as an end, and only what it left
/// in the ring makes a reset of it (`end::answer_send`), of which the kernel knows nothing.
#[inline]
pub fn look_behind_ring(s: &Sock, sock: i32) {
    let is_behind = s.rx.end.load(Relaxed) == 0 && is_behind_ring(s);
    // Where receiving is on TCP, what has come before the end is read first.
    if is_behind && (s.rx_in_memory() || fd::unread(sock) == Ok(0)) {
        look_at_kernel_for_sender(s, sock);
    }
}

/// Whether the peer has not come to where sending is now.
#[inline]
pub fn is_behind_ring(s: &Sock) -> bool {
    let made = s.tx.switches.load(Relaxed);
    made != 0 && s.tx.dir().is_some_and(|d| d.passed.load(Relaxed) != made)
}

/// Whether nobody has asked yet for the doorbells of a waiter that may be none of ours. A read has to, before it is short, also where none is
/// counted as unread: the one that called it may be counted later, and the word that it leaves behind (RUNG) rings nobody.
#[inline]
pub fn is_unasked(s: &Sock) -> bool {
    s.rx.waiter.load(Relaxed) != bell::EACH && !s.has(flag::SEEN | flag::BLOCKS | flag::LINKED)
}

/// Takes doorbells off, as far as nobody but the caller needs them. Called with the receiving lock held.
pub fn tidy(s: &Sock, dir: &Dir, sock: i32) {
    match s.rx.waiter.load(Relaxed) {
        bell::EACH => settle(s, dir, sock),
        // Who sleeps on the byte is another one: a thread in the kernel's poll, a set that has not looked at it for long.
        bell::ARMED if s.readers.load(Relaxed) != 0 || s.sets.load(Relaxed) != 0 || !s.has(flag::SEEN | flag::BLOCKS) => {
            keep_armed(s, dir, sock, bell::arm);
        }
        word if is_called_by_byte(s, dir, word) => keep_armed(s, dir, sock, bell::arm),
        _ => bell::drain(s, dir, sock),
    }
}

/// Whether a set to which what arrives is posted was called by a byte all the same, and has not heard it.
fn is_called_by_byte(s: &Sock, dir: &Dir, word: u32) -> bool {
    Waiter::of_posted_word(word).is_some() && dir.bell.load(Relaxed) == bell::RUNG && bell::unread(s, dir) > 0
}

/// Before payload goes into TCP while receiving is in memory: doorbells that nobody takes would make a reset of
/// our death, which destroys that payload (hazard 8). Those of a waiter with a name are taken at its looks. They
/// may stand behind a switch that nobody has followed, for nobody receives.
#[inline]
pub fn before_payload(s: &Sock, sock: i32) {
    let Some(dir) = s.rx.dir() else { return };
    if !s.rx_in_memory() && follow::is_at_switch(s, dir) {
        follow::progress(s, sock);
    }
    if s.rx_in_memory() && bell::unread(s, dir) > 0 && Waiter::of_word(s.rx.waiter.load(Relaxed)).is_none() {
        take_before_payload(s, dir, sock);
    }
}

#[cold]
fn take_before_payload(s: &Sock, dir: &Dir, sock: i32) {
    let marker = Marker::new();
    if let Some(_held) = s.rx.lock.try_take(&marker) {
        settle(s, dir, sock);
    }
}

/// After a read, and where sending leaves memory, while payload of ours may be on its way through TCP: as [`before_payload`]. A
/// reader that waits in blocking calls arms before it sleeps, so nobody needs a doorbell until then.
#[cold]
pub fn leave_no_bell(s: &Sock, sock: i32) {
    let (Some(dir), Some(out)) = (s.rx.dir(), s.tx.dir()) else { return };
    if s.is_linked() {
        return; // the stream of TCP carries nothing
    }
    // Pairs with the Release in `follow::follow_to_memory` at the other end.
    if s.tx_in_memory() && out.passed.load(Acquire) == s.tx.switches.load(Relaxed) {
        return s.clear(flag::BEHIND);
    }
    let marker = Marker::new();
    let Some(_held) = s.rx.lock.try_take(&marker) else { return };
    // One that we never see, or have not seen wait yet, has to find what it leaves here.
    if s.is_public() || !s.has(flag::SEEN | flag::BLOCKS) || s.rx.waiter.load(Relaxed) == bell::EACH {
        return settle(s, dir, sock);
    }
    // Who may sleep on it is counted with the lock held (`wait`).
    if s.readers.load(Relaxed) == 0 && s.sets.load(Relaxed) == 0 {
        bell::disarm(dir);
        return bell::drain(s, dir, sock);
    }
    if bell::unread(s, dir) == 0 {
        return;
    }
    match s.rx.waiter.load(Relaxed) {
        bell::ARMED => keep_armed(s, dir, sock, bell::arm),
        word if is_called_by_byte(s, dir, word) => keep_armed(s, dir, sock, bell::arm),
        _ => bell::drain(s, dir, sock), // whoever sleeps is woken by its name
    }
}

/// Before a sleep, with the receiving lock held: makes sure that this waiter is woken by what comes. By
/// its name (true), if nobody else can wait here; else by the doorbell byte, on which the caller must
/// sleep as well. It looks at the ring once more before it sleeps.
pub fn arm_for(s: &Sock, dir: &Dir, sock: i32, me: Option<Waiter>, kind: Kind) -> bool {
    if !bell::is_sole(s, kind) || is_unknown(s) || !s.rx_in_memory() {
        settle(s, dir, sock);
        return false;
    }
    bell::drain(s, dir, sock);
    if me.is_some_and(|w| bell::name_waiter(s, dir, w)) {
        return true;
    }
    if s.is_public() {
        settle(s, dir, sock);
    } else {
        bell::arm(s, dir);
    }
    false
}

/// From now on the kernel must show whoever waits that there is something.
pub fn expose(s: &Sock, sock: i32) {
    let marker = Marker::new();
    if let Some(dir) = s.rx.dir()
        && let Ok(_held) = s.rx.lock.take(&marker)
    {
        settle(s, dir, sock);
    }
    super::linked::unread(s);
}

/// Keeps the invariant of the unseen waiter (`bell`): armed, and an unread doorbell in the kernel
/// exactly while there is something to read.
pub fn settle(s: &Sock, dir: &Dir, sock: i32) {
    keep_armed(s, dir, sock, bell::arm_each);
}

/// Takes doorbells off of which nobody has need any more, while somebody may sleep on the next.
fn keep_armed(s: &Sock, dir: &Dir, sock: i32, arm: fn(&Sock, &Dir)) {
    bell::await_ringing(dir); // taking it now spares its waiter a look at nothing
    // Doorbells sent before the word is armed may be taken off if the ring is empty after that, or has less than the low-water mark, below
    // which nobody is to be called: what comes later rings again. Who is unseen would not hear of a mark that is lowered.
    let known = dir.bells.load(Acquire);
    arm(s, dir);
    let unread = dir.head.load(Acquire).wrapping_sub(s.rx.cursor.load(Relaxed));
    let enough = if s.is_public() { 1 } else { s.low_water.load(Relaxed).max(1) };
    if s.rx_in_memory() && unread < u64::from(enough) {
        bell::drain_to(s, dir, sock, known);
    }
}

/// After a read that moved bytes, with the receiving lock held: for waiters that find the connection
/// readable by its doorbell.
pub fn after_read(s: &Sock, dir: &Dir, sock: i32) {
    let before = s.bells_rx.load(Relaxed);
    settle(s, dir, sock);
    // One that is unseen would be called for nothing by a doorbell that is not counted yet.
    let is_told = s.is_public() || is_unknown(s);
    if is_told && s.bells_rx.load(Relaxed) == before && dir.head.load(Acquire) == s.rx.cursor.load(Relaxed) {
        take_stale(s, dir, sock);
    }
}

/// The waiter may be one that we never see: the doorbell byte is armed before EAGAIN is returned.
/// True: data, or the end, came meanwhile: that made its edge before the caller says that there is nothing.
pub fn arm_unseen(s: &Sock, sock: i32) -> bool {
    let marker = Marker::new();
    let Some(dir) = s.rx.dir() else { return false };
    let Ok(_held) = s.rx.lock.take(&marker) else { return false };
    s.set(flag::RAW);
    if s.has(flag::BLOCKS) {
        s.clear(flag::BLOCKS);
    }
    s.regard_sets();
    settle(s, dir, sock);
    if pending(s, dir) {
        return true;
    }
    take_stale(s, dir, sock);
    s.rx.end.load(Relaxed) != 0
}

/// Whether a reader in blocking mode has not waited where we see it, so that it may be one that reads when a waiter of its own
/// tells it to.
#[inline]
pub fn is_unknown(s: &Sock) -> bool {
    !s.has(flag::SEEN | flag::BLOCKS | flag::NONBLOCK | flag::RAW | flag::LINKED)
}

/// From here on the reader is one that waits in blocking calls: an unread doorbell may lie in the
/// kernel all the time, and arrivals ring no more until it sleeps. A waiter that we do not see would
/// find too much rather than too little. Called with the receiving lock held.
#[cold]
pub fn reads_blocking(s: &Sock, dir: &Dir) {
    s.set(flag::BLOCKS);
    if s.rx.waiter.load(Relaxed) == bell::EACH && bell::is_sole(s, Kind::Thread) {
        bell::arm(s, dir);
    }
}
