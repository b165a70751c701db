//! What was taken up to be sent again ([`super::take_up`]) for a program that goes on with the library, and was not: its sender makes
//! no call. The program reads it from the annex, before all else.
//!
//! `Half::gate` of the receiving direction says how far that is, with [`HERE`]. A connection that is set aside for a program that may use
//! it (`rendezvous::aside`) has two readers, and that program finds only what its peer sends again. So it is read here when this one reads,
//! and not before ([`MAY`]), and what comes behind that is asked for anew ([`ask_anew`]).

use super::bufs::Bufs;
use super::rx::{self, Step};
use super::{bell, bulk, follow, heirs, peek, refill, rouse, signals};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use crate::sys::Errno;
use crate::transport::annex::{self, Annex};
use crate::transport::changes;
use crate::transport::region::{Dir, ctl, fin};
use crate::transport::ring::Ring;
use smcr_proto::register::Shared;
use std::ops::Range;
use std::sync::atomic::Ordering::*;

/// Bit of `Half::gate`; the others are the place in the annex.
const HERE: u32 = 1 << 31;
/// Another bit: the first who reads takes back what stands of a request, and reads here.
const MAY: u32 = 1 << 30;

/// From now on it is read here. No request for its return stands, and the sender can't take one any more.
pub fn begin(s: &Sock) {
    let marker = Marker::new();
    let Ok(held) = s.rx.lock.take(&marker) else { return };
    if s.rx.gate.load(Relaxed) == 1 {
        s.rx.gate.store(HERE, Relaxed);
        changes::note(s);
        drop(held);
        rouse::all(); // it is readable, and who waits for it saw nothing
    }
}

/// It may be read here from now on, and so may what is frozen of the ring. The request for its return stands until somebody reads.
pub fn allow(s: &Sock, dir: &Dir) {
    let marker = Marker::new();
    let Ok(held) = s.rx.lock.take(&marker) else { return };
    let gate = s.rx.gate.load(Relaxed);
    if gate == 1 || gate == 0 && s.has(flag::FROZEN) && dir.head.load(Acquire) != s.rx.cursor.load(Relaxed) {
        s.rx.gate.store(gate | MAY, Relaxed);
        changes::note(s);
        drop(held);
        rouse::all(); // as in `begin`
    }
}

/// Somebody has read on: the program that it is set aside for finds what comes from now on, and what is left here, if its peer sends that again.
#[cold]
pub fn ask_anew(s: &Sock, sock: i32) {
    const ELSEWHERE: u32 = flag::LINKED | flag::FROZEN | flag::PINNED; // asked for already, or by others
    const SHORT: usize = 1 << 16;
    let Some(dir) = s.rx.dir() else { return };
    let has_ended = || s.rx.end.load(Relaxed) != 0 || dir.fin.load(Acquire) & fin::WRITE != 0;
    let marker = Marker::new();
    let Ok(held) = s.rx.lock.take(&marker) else { return };
    s.rx.leaving.bury();
    if !s.rx_in_memory() || s.has(ELSEWHERE) || s.rx.leaving.is_taken() || follow::is_marked(s, dir) || has_ended() {
        return;
    }
    // Much of it is moved to its beginning as often as it halves, or each read would move all that is left.
    let is_worth = is_begun(s).then(|| left(s, dir)).is_none_or(|left| left <= SHORT || left <= place(s));
    if !is_worth || compact(s, dir, MAY).is_none() {
        return;
    }
    follow::freeze_locked(s, dir, ctl::RETURN);
    changes::note(s);
    drop(held);
    bell::call_peer(s, sock); // one that sleeps on TCP alone hears it with its next call
}

/// Somebody reads, with the receiving lock held.
fn claim(s: &Sock, dir: &Dir) {
    let gate = s.rx.gate.load(Relaxed) & !MAY;
    let comes = !follow::take_back_request(s, dir); // it has just been taken: all of it comes again
    s.rx.gate.store(if comes || gate == 0 { gate } else { HERE }, Relaxed);
}

/// Whether a ring that is frozen may be read all the same.
pub fn may_be_read(s: &Sock) -> bool {
    s.rx.gate.load(Relaxed) & MAY != 0
}

/// Whether something of it is left.
#[inline]
pub fn is_here(s: &Sock) -> bool {
    match s.rx.gate.load(Relaxed) {
        0 | 1 => false,
        MAY => s.rx_in_memory() && s.rx.dir().is_some_and(|dir| dir.head.load(Acquire) != s.rx.cursor.load(Relaxed)),
        _ => true,
    }
}

/// As [`is_here`], or it may be soon: a relative, which can't tell this process, has taken it up. The kernel knows nothing of it.
#[inline]
pub fn may_be_here(s: &Sock) -> bool {
    match s.rx.gate.load(Relaxed) {
        0 => false,
        1 => s.holders.load(Relaxed) > 1,
        _ => is_here(s),
    }
}

/// Whether it is read here, whoever else was to have it.
pub fn is_begun(s: &Sock) -> bool {
    s.rx.gate.load(Relaxed) & HERE != 0
}

/// In how many ns to look again for who waits while it is given away: that it may be read here from then on, a relative can't tell this process.
#[inline]
pub fn looks_again(s: &Sock) -> Option<u64> {
    const AGAIN_NS: u64 = 10_000_000;
    let is_asked_for = || s.has(flag::FROZEN) || is_taken(s);
    (s.rx.gate.load(Relaxed) <= 1 && is_asked_for() && s.holders.load(Relaxed) > 1).then_some(AGAIN_NS)
}

/// Whether something was taken up and has not come again, nor been read.
pub fn is_taken(s: &Sock) -> bool {
    s.rx.gate.load(Relaxed) & !MAY != 0
}

/// How much can be read here.
pub fn left(s: &Sock, dir: &Dir) -> usize {
    if is_here(s) { unread(s, dir).len() } else { 0 }
}

/// Where in the annex what was taken up lies.
pub fn unread(s: &Sock, dir: &Dir) -> Range<usize> {
    let (from, to) = (place(s), taken(dir));
    if is_taken(s) { from.min(to)..to } else { 0..0 }
}

fn place(s: &Sock) -> usize {
    match s.rx.gate.load(Relaxed) {
        gate if gate & HERE != 0 => (gate & !HERE) as usize,
        _ => 0,
    }
}

/// How much was taken up, and lies in the annex from its beginning on.
pub fn taken(dir: &Dir) -> usize {
    dir.annex.load(Relaxed).min(annex::LEN as u64) as usize
}

/// Reads of it, with the receiving lock held. None: nothing is read here.
#[cold]
pub fn read(s: &Sock, sock: i32, dir: &Dir, bufs: &Bufs, from: usize, flags: i32) -> Option<Step> {
    if may_be_read(s) {
        claim(s, dir);
    }
    if !heirs::is_any(s) {
        return read_now(s, sock, dir, bufs, from, flags);
    }
    heirs::alone(s, sock, dir, || read_now(s, sock, dir, bufs, from, flags)).unwrap_or_else(Some)
}

fn read_now(s: &Sock, sock: i32, dir: &Dir, bufs: &Bufs, from: usize, flags: i32) -> Option<Step> {
    if !is_begun(s) {
        return None;
    }
    let (there, skip) = (left(s, dir), peek::offset(s, flags));
    if skip > 0 && skip >= there {
        return None; // the look begins behind it
    }
    if bufs.len() == 0 {
        return Some(Step::End);
    }
    let n = there.saturating_sub(skip).min(bufs.len() - from);
    let copies = n > 0 && flags & libc::MSG_TRUNC == 0;
    if copies && bufs.are_nowhere(from, n) {
        return Some(Step::Failed(Errno(libc::EFAULT)));
    }
    let Some(Ok(mut annex)) = s.region_of_peers().map(|r| Annex::map(r, dir)) else {
        return Some(Step::Failed(Errno(libc::ENOBUFS)));
    };
    if copies {
        // SAFETY: memory of so many bytes, which outlives the ring.
        let bytes = unsafe { Ring::new(annex.bytes().as_mut_ptr(), annex::LEN, 0) };
        let mut pos = (place(s) + skip) as u64;
        bufs.pieces(from, n, |p, len| {
            // SAFETY: the program's buffer, valid for writes as it promised the kernel.
            unsafe { bytes.get(pos, p, len) };
            pos += len as u64;
        });
    }
    if flags & libc::MSG_PEEK != 0 {
        peek::move_offset(s, n);
        return Some(if n == 0 { Step::Empty } else { Step::Moved(n) });
    }
    let read = (place(s) + n) as u32;
    if let Err(e) = heirs::have_read(s, sock, (n < there).then_some(read)) {
        return Some(Step::Failed(e));
    }
    peek::has_read(s, n, flags);
    if n < there {
        is_read_to(s, read);
    } else {
        drop(annex);
        is_over(s, dir);
    }
    Some(Step::Moved(n))
}

/// As [`heirs::begin`]: what is told on the socket from now on says whose it is.
pub fn share(s: &Sock, sock: i32) -> bool {
    let marker = Marker::new();
    let Some(dir) = s.rx.dir() else { return false };
    s.rx.lock.take(&marker).is_ok_and(|_held| heirs::begin(s, sock, dir, 0))
}

/// All that is unread comes into the annex, also `n` bytes of the ring and what lies behind that, and is read here. The receiving lock is held.
/// False: it can't be, its sender has just been asked for it, or there is nothing.
pub fn gather(s: &Sock, dir: &Dir, n: usize) -> bool {
    let Some(Ok(mut annex)) = s.region_of_peers().map(|r| Annex::map(r, dir)) else { return false };
    let Some((ring, size)) = bulk::rx_ring(s, dir).filter(|(_, size)| n <= *size) else { return false };
    let (before, behind) = (unread(s, dir), refill::behind_ring(s, dir));
    let (first, last) = (before.len(), behind.len());
    let all = first + n + last;
    if all == 0 || all > annex::LEN || !follow::take_back_request(s, dir) {
        return false;
    }
    // A handler that left it would have a part of them twice.
    signals::quietly(|| {
        let from = s.rx.cursor.load(Relaxed);
        annex.bytes().copy_within(before, 0);
        // SAFETY: the annex has room for as many bytes. What lies behind the ring begins above them, at its place in the stream.
        unsafe { ring.get(from, annex.bytes()[first..][..n].as_mut_ptr(), n) };
        annex.bytes().copy_within(behind, first + n);
        dir.annex.store(all as u64, Relaxed);
        is_read_to(s, 0);
        if last > 0 {
            dir.space.store(0, Relaxed);
            dir.head.store(from + (n + last) as u64, Release); // as in `refill::put`
        }
        if n + last > 0 {
            rx::give_back(s, dir, size, from + (n + last) as u64);
        }
        changes::note(s);
    });
    true
}

/// What stands on the socket, as this family knows it.
pub fn shared(s: &Sock) -> Option<Shared> {
    heirs::is_any(s).then(|| Shared { number: s.shared.load(Relaxed), read: place(s) as u32 })
}

/// A former program has left it, with other programs that have a copy as well.
pub fn is_left(s: &Sock, number: u32) {
    s.shared.store(number, Relaxed);
    is_read_to(s, 0);
}

/// So much of the annex has been read, with the receiving lock held.
pub fn is_read_to(s: &Sock, place: u32) {
    s.rx.gate.store(HERE | place & !(HERE | MAY), Relaxed);
}

/// All of it has been.
pub fn is_over(s: &Sock, dir: &Dir) {
    s.rx.gate.store(0, Relaxed);
    dir.annex.store(0, Relaxed);
    s.shared.store(0, Relaxed);
    if let Some(Ok(mut annex)) = s.region_of_peers().map(|r| Annex::map(r, dir)) {
        annex.clear();
    }
    changes::note(s); // the kernel alone knows what is ready
}

/// Before more is taken up: how much lies in the annex, from its beginning on. None: it can't be reached.
pub fn again(s: &Sock, dir: &Dir) -> Option<usize> {
    if s.rx.gate.load(Relaxed) <= 1 {
        return Some(taken(dir));
    }
    let marker = Marker::new();
    let Ok(_held) = s.rx.lock.take(&marker) else { return None };
    compact(s, dir, 0)
}

/// As [`again`], with the receiving lock held; from then on it `may` be read here ([`MAY`]). None as well: other programs have a copy.
fn compact(s: &Sock, dir: &Dir, may: u32) -> Option<usize> {
    if !is_begun(s) {
        s.rx.gate.store(s.rx.gate.load(Relaxed) & !MAY | may, Relaxed);
        return Some(taken(dir));
    }
    if heirs::is_any(s) {
        return None;
    }
    let mut annex = Annex::map(s.region_of_peers()?, dir).ok()?;
    // A handler that left it would have a part of them twice.
    signals::quietly(|| {
        let (from, n) = (place(s), left(s, dir));
        annex.bytes().copy_within(from..from + n, 0);
        dir.annex.store(n as u64, Relaxed);
        s.rx.gate.store(u32::from(n > 0) | may, Relaxed);
        Some(n)
    })
}
