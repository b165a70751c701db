//! Where the stream goes on for the one that receives: follows the sender's switches (`switch`).
//!
//! Called by `rx` before each read, and by whoever must know what is pending without reading. What
//! the peer says of its switches is checked against our own counts.

use super::proof::{self, Proof, stands_in_stream};
use super::{bell, end, here, kernel, known, resets, shadow, signals, switch, urgent};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag, medium};
use crate::family::{holders, process};
use crate::fault::{self, Step as Fault};
use crate::log;
use crate::transport::changes;
use crate::transport::region::{self, Dir, ctl};
use crate::transport::wide;
use smcr_proto::cursor;
use smcr_proto::page::{Counter, State};
use std::sync::atomic::{Ordering::*, fence};

/// Where the next bytes come from.
pub enum Source {
    /// The ring holds this many.
    Ring(usize),
    /// The kernel; at most this many bytes belong to the program.
    Tcp(u64),
    /// The peer broke the rules.
    Broken,
}

/// Follows the producer's switches as far as the stream has been taken, and says where it goes on.
#[inline]
pub fn follow(s: &Sock, sock: i32, dir: &Dir) -> Source {
    follow_on(s, sock, dir, &mut 0)
}

/// As [`follow`], for a call that does so again and again: `turns` of the stream are counted, and only so many are followed.
#[inline]
pub fn follow_on(s: &Sock, sock: i32, dir: &Dir, turns: &mut u32) -> Source {
    loop {
        if *turns > MOST_TURNS {
            return Source::Broken;
        }
        let passed = s.rx.switches.load(Relaxed);
        if s.rx_in_memory() {
            urgent::pass_over(s, dir);
            let tail = s.rx.cursor.load(Relaxed);
            // Pairs with the Release publish in `tx::fill`: the bytes below head are there.
            let head = dir.head.load(Acquire);
            let Some(size) = region::size_of_ring(dir.size.load(Relaxed)) else {
                return Source::Broken;
            };
            let Some(n) = cursor::readable(head, tail, size) else { return Source::Broken };
            s.rx.seen.store(head, Relaxed);
            if dir.switch.load(Acquire) == passed {
                return Source::Ring(if is_frozen(s) { 0 } else { urgent::limit(s, dir, n as u64) as usize });
            }
            // The ring may go on behind a stretch of TCP: no further than to the next switch.
            let end = dir.at_ring(passed.wrapping_add(1)).load(Relaxed);
            match end.checked_sub(tail) {
                None => return Source::Broken,
                Some(left) if left > 0 => {
                    // A way back that crossed our request: the rest of the ring is ours to read.
                    if s.has(flag::FROZEN) {
                        thaw(s, dir);
                    }
                    return Source::Ring((n as u64).min(left) as usize);
                }
                Some(_) => {}
            }
            match follow_to_tcp(s, sock, dir, passed) {
                Followed::Yes => *turns += 1,
                Followed::NotYet => return Source::Ring(0),
                Followed::Broken => return Source::Broken,
            }
        } else {
            if dir.switch.load(Acquire) == passed {
                return Source::Tcp(u64::MAX);
            }
            match follow_to_memory(s, sock, dir, passed) {
                ToMemory::After(n) => return Source::Tcp(n),
                ToMemory::NotYet => return Source::Tcp(0),
                ToMemory::Yes | ToMemory::TakenBack => *turns += 1,
                ToMemory::Broken => return Source::Broken,
            }
        }
    }
}

/// Switches that one call follows without a byte between them, marks that were taken back among them (those whose proof the kernel does
/// not take). One or two are rare; a peer that claims them without end would keep a call, which may have no time, and the lock.
pub const MOST_TURNS: u32 = 100;

/// Follows switches without reading: for a side that only sends.
pub fn progress(s: &Sock, sock: i32) {
    let Some(dir) = s.rx.dir() else { return };
    let marker = Marker::new();
    let Some(held) = s.rx.lock.try_take(&marker) else { return };
    if matches!(follow(s, sock, dir), Source::Broken) {
        if proof::is_due(s) {
            proof::has_failed(s);
        } else {
            resets::hostile(s, sock);
        }
    }
    drop(held);
    // The peer's proof may have come: our own direction goes the same way at once.
    if s.rx_in_memory() {
        switch::answer_tx(s, sock);
    }
}

/// Whether what the ring holds comes again through TCP: frozen for a hand-over, and the peer still
/// there to send it.
#[inline]
fn is_frozen(s: &Sock) -> bool {
    s.has(flag::FROZEN) && s.rx.end.load(Relaxed) == 0 && !here::may_be_read(s)
}

/// Whether the peer has been asked to send again what lies in memory, and has not done so.
pub fn has_asked(dir: &Dir) -> bool {
    dir.ctl.load(Acquire) & (ctl::RETURN | ctl::TAKEN) != 0
}

/// From here on nobody of this family takes from the ring, and the peer is asked for what it holds (`wishes` are [`ctl`] bits).
/// False: this is a handler above a reader of the same socket.
pub fn freeze(s: &Sock, dir: &Dir, wishes: u32) -> bool {
    let marker = Marker::new();
    let Ok(_held) = s.rx.lock.take(&marker) else { return false };
    freeze_locked(s, dir, wishes);
    true
}

/// As [`freeze`], with the receiving lock held.
pub fn freeze_locked(s: &Sock, dir: &Dir, wishes: u32) {
    if s.rx_in_memory() {
        dir.frozen.store(s.rx.cursor.load(Relaxed), Relaxed);
        s.set(flag::FROZEN);
        dir.ctl.fetch_or(wishes, AcqRel);
    }
    // Behind the wishes: one that was called for them goes as soon as it is called no more.
    dir.ctl.fetch_and(!ctl::COME, AcqRel);
}

/// The ring is read on.
fn thaw(s: &Sock, dir: &Dir) {
    s.clear(flag::FROZEN);
    dir.ctl.fetch_and(!ctl::RETURN, AcqRel);
}

/// Whether the peer has marked a switch that was not followed: the stream goes on elsewhere behind what is unread here. Acquire pairs with the
/// Release in `switch`: what it did before is seen, and none of the bytes that are not payload was sent before the mark.
#[inline(always)]
pub fn is_marked(s: &Sock, dir: &Dir) -> bool {
    dir.switch.load(Acquire) != s.rx.switches.load(Relaxed)
}

/// Whether the next attempt finds something: data, a switch, the end. Without system calls. Never true
/// for long when an attempt finds nothing: whoever waits would spin.
#[inline]
pub fn pending(s: &Sock, dir: &Dir) -> bool {
    let in_memory = s.rx_in_memory();
    urgent::look(s);
    if in_memory && in_ring(s, dir) != 0 || s.rx.end.load(Relaxed) != 0 || is_asked(s) || here::is_here(s) {
        return true;
    }
    if is_marked(s, dir) {
        return is_reached(s, dir);
    }
    in_memory && end::is_marked_end(dir)
}

/// Whether the next switch can be followed without taking more from the kernel.
fn is_reached(s: &Sock, dir: &Dir) -> bool {
    let next = s.rx.switches.load(Relaxed).wrapping_add(1);
    can_follow(s, dir) && if s.rx_in_memory() { dir.at_kernel(next).load(Relaxed) == s.rx.kernel.load(Relaxed) } else { !stands_in_stream(s) }
}

/// Whether the stream has been taken up to a switch that is made: what is behind it an attempt can tell, after it took what stands
/// before that in the kernel's stream, the proof or doorbells.
pub fn is_at_switch(s: &Sock, dir: &Dir) -> bool {
    is_marked(s, dir) && can_follow(s, dir)
}

/// Bytes of the ring that may be read now: not beyond a stretch of TCP that comes first.
#[inline]
pub fn in_ring(s: &Sock, dir: &Dir) -> u64 {
    let tail = s.rx.cursor.load(Relaxed);
    let n = dir.head.load(Acquire).wrapping_sub(tail).min(wide::SIZE as u64);
    let passed = s.rx.switches.load(Relaxed);
    if n == 0 || !s.rx_in_memory() {
        return n;
    }
    if dir.switch.load(Acquire) == passed {
        return if is_frozen(s) { 0 } else { urgent::limit(s, dir, n) };
    }
    n.min(dir.at_ring(passed.wrapping_add(1)).load(Relaxed).saturating_sub(tail))
}

/// Whether the peer wants our sending direction on the other medium.
#[inline]
pub fn is_asked(s: &Sock) -> bool {
    let asks = |d: &Dir| {
        let wishes = d.ctl.load(Acquire);
        // Behind our FIN nothing can be sent again. One that is called stays until it is asked for its return.
        wishes & (ctl::PINNED | ctl::COME) == ctl::PINNED || wishes & ctl::RETURN != 0 && !s.has(flag::SHUT_WR)
    };
    s.tx.dir().is_some_and(|d| if s.tx_in_memory() { asks(d) } else { d.ctl.load(Acquire) & ctl::COME != 0 })
}

/// Result of following a switch to memory.
pub enum ToMemory {
    /// Followed.
    Yes,
    /// This many payload bytes come first.
    After(u64),
    /// The proof is not complete yet.
    NotYet,
    /// The mark that was seen is gone, or another one.
    TakenBack,
    /// The claim can't be right.
    Broken,
}

/// Whether the next switch is one that `follow_*` could act on, with what the kernel holds.
pub fn can_follow(s: &Sock, dir: &Dir) -> bool {
    let next = s.rx.switches.load(Relaxed).wrapping_add(1);
    if s.rx_in_memory() {
        dir.at_ring(next).load(Relaxed) == s.rx.cursor.load(Relaxed)
    } else {
        dir.at_kernel(next).load(Relaxed) == s.rx.kernel.load(Relaxed)
    }
}

/// Whether `switch` is a number of switches that the producer can have reached.
fn is_ahead(switch: u32, passed: u32) -> bool {
    (1..=2).contains(&switch.wrapping_sub(passed))
}

/// Payload bytes that the TCP stream holds before a switch to memory that is marked; None if it is
/// reached.
pub fn payload_left(s: &Sock, dir: &Dir) -> Option<u64> {
    let next = s.rx.switches.load(Relaxed).wrapping_add(1);
    let left = dir.at_kernel(next).load(Relaxed).checked_sub(s.rx.kernel.load(Relaxed))?;
    (left > 0).then_some(left)
}

/// The TCP stream ends at a marked byte: takes the proof where one is due, then the ring.
pub fn follow_to_memory(s: &Sock, sock: i32, dir: &Dir, passed: u32) -> ToMemory {
    let mark = || (dir.switch.load(Acquire), dir.at_kernel(passed.wrapping_add(1)).load(Relaxed));
    let (made, at) = mark();
    if !is_ahead(made, passed) {
        return if made == passed { ToMemory::TakenBack } else { ToMemory::Broken };
    }
    match at.checked_sub(s.rx.kernel.load(Relaxed)) {
        None => return ToMemory::Broken,
        Some(0) => {}
        Some(n) => return ToMemory::After(n),
    }
    let is_proved_now = stands_in_stream(s);
    if is_proved_now {
        match proof::look(s, sock) {
            Proof::Right => {}
            Proof::Missing => return ToMemory::NotYet,
            // Taken back before these bytes were sent, they are payload.
            Proof::Wrong if mark() != (made, at) => return ToMemory::TakenBack,
            Proof::Wrong => return ToMemory::Broken,
        }
    }
    shadow::accelerate(s, sock);
    if passed > 0 {
        shadow::take_peek_offset(s, sock); // before the first switch it pins
    }
    // No handler may leave it half done, nor come into the middle of it and give the connection away (exec).
    let follows = signals::quietly(|| {
        if is_proved_now && !proof::take(s, sock) {
            return false;
        }
        s.rx.switches.store(passed + 1, Relaxed);
        s.rx_switches.store(passed + 1, Relaxed);
        s.rx_medium.store(medium::SHM, Release);
        changes::note(s);
        fault::pass(Fault::FollowedToMemory);
        dir.passed.store(passed + 1, Release);
        true
    });
    if !follows {
        return ToMemory::NotYet;
    }
    // While the stream was on TCP its end was not looked for, and an epoll set was told of it then.
    kernel::look_at_kernel_for_sender(s, sock);
    if s.state.swap(State::Accelerated as u32, Relaxed) != State::Accelerated as u32 {
        process::count(Counter::Accelerated, 1);
    }
    process::count(Counter::SwitchRxMem, 1);
    log::debug!(target: "smcr::switch", fd = sock, "receiving follows to memory");
    ToMemory::Yes
}

/// Result of following a switch to TCP.
pub enum Followed {
    /// Followed.
    Yes,
    /// Bytes of the ring, or doorbells, come first.
    NotYet,
    /// The claim can't be right.
    Broken,
}

/// The ring ends at a marked byte: takes the doorbells that stand before the payload, then TCP.
pub fn follow_to_tcp(s: &Sock, sock: i32, dir: &Dir, passed: u32) -> Followed {
    let next = passed.wrapping_add(1);
    if !is_ahead(dir.switch.load(Acquire), passed) {
        return Followed::Broken;
    }
    if dir.at_ring(next).load(Relaxed) != s.rx.cursor.load(Relaxed) {
        return Followed::NotYet;
    }
    bell::drain(s, dir, sock);
    let at = dir.at_kernel(next).load(Relaxed);
    match at.checked_sub(s.rx.kernel.load(Relaxed)) {
        None => return Followed::Broken,
        Some(0) => {}
        // An end found in the kernel is the end of the stream, whatever was announced.
        Some(_) if s.rx.end.load(Relaxed) != 0 => {}
        // Only doorbells stand before the mark, and all of them were counted before it was made.
        Some(n) if n > bell::unread(s, dir).max(0) as u64 => return Followed::Broken,
        Some(_) => return Followed::NotYet,
    }
    if !signals::quietly(|| to_tcp(s, dir, passed)) {
        return Followed::Broken;
    }
    process::count(Counter::SwitchRxTcp, 1);
    shadow::restore_receiving(s, sock);
    log::debug!(target: "smcr::switch", fd = sock, "receiving follows to TCP");
    Followed::Yes
}

/// Receiving is on TCP from here on. False: the claim can't be right.
fn to_tcp(s: &Sock, dir: &Dir, passed: u32) -> bool {
    s.rx.switches.store(passed + 1, Relaxed);
    s.rx_switches.store(passed + 1, Relaxed);
    s.rx_medium.store(medium::TCP, Release);
    changes::note(s);
    if !holders::is_shared(s) {
        known::is_unshared(dir);
    }
    s.clear(flag::FROZEN);
    if dir.ctl.fetch_and(!(ctl::RETURN | ctl::TAKEN), AcqRel) & ctl::TAKEN != 0 {
        dir.annex.store(0, Relaxed); // it comes again
        s.rx.gate.store(0, Relaxed);
        // So does what the ring held: in the next stretch of memory, if there is one, it lies behind us.
        let (head, tail) = (dir.head.load(Acquire), s.rx.cursor.load(Relaxed));
        if region::size_of_ring(dir.size.load(Relaxed)).and_then(|size| cursor::readable(head, tail, size)).is_none() {
            return false;
        }
        s.rx.cursor.store(head, Relaxed);
        dir.tail.store(head, Release); // pairs with the Acquire in `tx::look_at_tail`
    }
    // Whoever sleeps on this side next must hear of the next switch.
    bell::arm(s, dir);
    fence(SeqCst);
    fault::pass(Fault::FollowedToTcp);
    dir.passed.store(passed + 1, Release);
    true
}

/// The peer did not answer a request to return: reading goes on in the ring. False: it has just
/// taken the request.
pub fn take_back_request(s: &Sock, dir: &Dir) -> bool {
    let back = dir.ctl.fetch_update(AcqRel, Acquire, |c| (c & ctl::TAKEN == 0).then_some(c & !ctl::RETURN)).is_ok();
    if back {
        s.clear(flag::FROZEN);
    }
    back
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_without_a_byte_between_them_are_followed_for_a_while() {
        // SAFETY: all zero is a fresh record, and so is the page's half.
        let (s, dir): (Sock, Dir) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        dir.size.store(region::RING_MIN as u32, Relaxed);
        s.rx.switches.store(2, Relaxed);
        let mut turns = 0;
        for followed in (2..=MOST_TURNS).step_by(2) {
            // As far as one can be ahead: to memory and back.
            dir.switch.store(s.rx.switches.load(Relaxed) + 2, Release);
            assert!(matches!(follow_on(&s, -1, &dir, &mut turns), Source::Tcp(u64::MAX)));
            assert_eq!((turns, s.rx.switches.load(Relaxed)), (followed, followed + 2));
        }
        dir.switch.store(s.rx.switches.load(Relaxed) + 2, Release);
        assert!(matches!(follow_on(&s, -1, &dir, &mut turns), Source::Broken));
        assert!(matches!(follow(&s, -1, &dir), Source::Tcp(u64::MAX)), "another call");
    }
}
