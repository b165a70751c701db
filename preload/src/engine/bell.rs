//! The doorbell words: how the end that sleeps tells the other to wake it.
//!
//! Word of arriving data (`Dir::bell`), one per direction:
//!
//! | value | who stored it | what the producer does after publishing |
//! |---|---|---|
//! | 0 | consumer | nothing: the consumer looks by itself |
//! | waiter | consumer | looks at that waiter's sleep word; asleep: its eventfd, once per sleep |
//! | waiter, POSTED | consumer | moves it to RUNG, posts the connection ([`super::post`]), and as for a waiter |
//! | ARMED | consumer | moves it to RINGING, sends one byte on the TCP connection, moves it to RUNG |
//! | EACH | consumer | sends one byte at every publish: the consumer's waiter is unseen and may be edge-triggered |
//! | RINGING, RUNG | producer | nothing: a byte is on its way or unread |
//! | LINK | link | tells the link, which sends (`crate::link`); it never changes |
//!
//! Word of space (`Dir::space`): 0 or a waiter, of a link's connection also EACH ([`super::room`]); TCP bytes are never used for it, so an end that waits
//! for space and has no eventfd to be woken by moves its direction to TCP instead.
//!
//! A waiter is named only while it is the sole one there can be. As soon as a second one comes, or one
//! may exist that we never see (*public*), the word is EACH: the byte wakes everybody, since everybody
//! sleeps on the TCP connection too, and it is taken off only when the ring is empty (`kernel::settle`),
//! so whoever looks later still finds it. docs/readiness.md has the rule and why it holds.

use super::{budget, end, kept, kernel, known, post, resets, signals};
use crate::family::process::count;
use crate::family::sock::{Sock, flag};
use crate::fault::{self, Step as Fault};
use crate::sys::thread::full_fence;
use crate::sys::{Errno, Res, clock, fd, net};
use crate::transport::peers::{self, Peer};
use crate::transport::region::Dir;
use crate::transport::waiters::{Waiter, is_lenient};
use smcr_proto::cursor;
use smcr_proto::page::Counter;
use std::sync::atomic::{Ordering::*, fence};

use crate::layout::word::MORE;
pub use crate::layout::word::{ARMED, EACH, LINK, RINGING, RUNG};

/// Bit of `Half::gate`: no doorbell byte may be sent (the stream carries payload).
pub const CLOSED: u32 = 1 << 31;

/// What a doorbell is on the TCP connection.
pub const BYTE: [u8; 1] = [0xb7];

/// After the producer has published its cursor: wake the consumer if it asked for it.
#[inline]
pub fn after_publish(s: &Sock, dir: &Dir, sock: i32) {
    // Pairs with the fence of a consumer that arms or falls asleep and then looks at the cursor.
    full_fence();
    let word = dir.bell.load(Relaxed);
    if word != 0 && word != RUNG && !is_awake(s, word) && !is_taken(s, dir, word) {
        ring(s, dir, sock, word);
    }
}

/// Whether the consumer has taken all meanwhile, so that a byte would call it for nothing: unread when it dies, that makes a reset,
/// which destroys what it has sent through TCP (hazard 8).
#[cold]
fn is_taken(s: &Sock, dir: &Dir, word: u32) -> bool {
    matches!(word, ARMED | EACH) && dir.tail.load(Acquire) == s.tx.cursor.load(Relaxed)
}

/// Whether the word names a waiter that is known to be awake, and looks at the connection.
#[inline]
fn is_awake(s: &Sock, word: u32) -> bool {
    Waiter::of_plain_word(word).and_then(|w| peers::get(s.peer.load(Relaxed))?.sleep_word(w)).is_some_and(|sleep| sleep & 1 == 0)
}

/// Rings by the word, and once more where another waiter has stored its own meanwhile: who was there before hears by that as well.
#[cold]
fn ring(s: &Sock, dir: &Dir, sock: i32, word: u32) {
    const TRIES: u32 = 4;
    let mut word = word;
    for _ in 0..TRIES {
        match ring_by(s, dir, sock, word) {
            Ok(()) | Err(0 | RINGING | RUNG) => return,
            Err(now) => word = now,
        }
    }
}

/// The error: something else stands there now.
fn ring_by(s: &Sock, dir: &Dir, sock: i32, word: u32) -> Result<(), u32> {
    if word == LINK {
        super::linked::kick(s);
    } else if let Some(w) = Waiter::of_posted_word(word) {
        return post::ring(s, dir, sock, w);
    } else if let Some(w) = Waiter::of_word(word) {
        let slot = s.peer.load(Relaxed);
        if let Some(peer) = peers::get(slot)
            && ring_waiter(peer, w, Some((slot, dir))) == Rang::Unknown
        {
            ring_tcp(s, dir, sock);
        }
    } else if word == EACH {
        ring_tcp(s, dir, sock);
    } else if word == ARMED {
        // A handler that jumps out of this would leave a byte that is sent for ever about to come.
        return signals::quietly(|| {
            dir.bell.compare_exchange(ARMED, RINGING, AcqRel, Relaxed)?;
            fault::pass(Fault::Ringing);
            ring_tcp_now(s, dir, sock);
            // Fails if the consumer armed again meanwhile: then the next publish rings again.
            let _ = dir.bell.compare_exchange(RINGING, RUNG, AcqRel, Relaxed);
            Ok(())
        });
    }
    Ok(())
}

#[derive(PartialEq, Eq)]
pub(super) enum Rang {
    /// It is awake, was rung already, or is rung now.
    Done,
    /// Asleep, and its eventfd is not known here.
    Unknown,
}

/// Wakes a waiter if it sleeps. `data`: the slot of the peer and the direction, where bytes have come, for which a lenient one can wait.
pub(super) fn ring_waiter(peer: &Peer, w: Waiter, data: Option<(u32, &Dir)>) -> Rang {
    let sleep = peer.sleep_word(w).or_else(|| {
        // The page may lie unread in the channel.
        crate::transport::channel::drain(peer);
        peer.sleep_word(w)
    });
    match sleep {
        Some(sleep) if sleep & 1 == 0 => Rang::Done,
        Some(sleep) => {
            // Whichever connection it was for: it looks at all of them when it wakes.
            if peer.is_rung(w, sleep) {
                return Rang::Done;
            }
            match data {
                Some((slot, dir)) if is_lenient(sleep) && kept::is_beside(&dir.consumer_cpu) && kept::keep(slot, w, sleep) => Rang::Done,
                data => ring_sleep(peer, w, sleep, data.map(|(_, dir)| dir)),
            }
        }
        None => Rang::Unknown,
    }
}

/// Ends this sleep of a waiter, for bytes of this direction or for whatever there is.
pub(super) fn ring_sleep(peer: &Peer, w: Waiter, sleep: u32, data: Option<&Dir>) -> Rang {
    if let Some(dir) = data {
        dir.rung_at.store(clock::ticks(), Relaxed);
    }
    if peer.ring(w) || (crate::transport::channel::drain(peer) && peer.ring(w)) {
        // After the ring: a thread that finds the note must not rely on one that fails. Two that
        // ring at once do no harm.
        peer.note_rung(w, sleep);
        count(Counter::EventWakes, 1);
        return Rang::Done;
    }
    Rang::Unknown
}

/// Sends one byte on the TCP connection, unless the stream carries payload.
pub(super) fn ring_tcp(s: &Sock, dir: &Dir, sock: i32) {
    // A jump out of this would leave a byte that is sent and not counted.
    signals::quietly(|| ring_tcp_now(s, dir, sock));
}

fn ring_tcp_now(s: &Sock, dir: &Dir, sock: i32) {
    let gate = &s.tx.gate;
    dir.rung_at.store(clock::ticks(), Relaxed);
    // AcqRel pairs with `switch`, which closes the gate and waits for the bells on their way.
    if gate.fetch_add(1, AcqRel) & CLOSED == 0 {
        match send_byte(sock) {
            Ok(_) => {
                fault::pass(Fault::Uncounted);
                s.tx.kernel.fetch_add(1, Relaxed);
                s.bells_tx.fetch_add(1, Relaxed);
                count(Counter::BellsTx, 1);
                // After the send: the consumer never expects a byte that was not sent.
                dir.bells.fetch_add(1, Release);
            }
            Err(e) => end::took(s, e),
        }
    }
    gate.fetch_sub(1, AcqRel);
}

/// A full send queue needs no doorbell: the consumer's socket is readable as it is. Where the kernel has no
/// memory for the byte (tcp_mem) the consumer would sleep on, so it is tried again for a moment.
fn send_byte(sock: i32) -> Res {
    const TRIES: u32 = 64;
    for _ in 0..TRIES {
        if !fault::fails(Fault::Byte) {
            match net::send_slice(sock, &BYTE, libc::MSG_DONTWAIT) {
                Err(e) if e.0 == libc::EAGAIN && net::has_room(sock) => {}
                sent => return sent,
            }
        }
        let _ = fd::poll(&mut [], 1);
    }
    Err(Errno(libc::EAGAIN))
}

/// After the consumer has published its cursor: wake the producer if it waits and there is room.
///
/// Exactly only where the consumer has passed a multiple of [`cursor::wake_step`]: a producer sleeps while
/// more than that is unread, so there is one ahead of the consumer.
#[inline(always)]
pub fn after_consume(s: &Sock, dir: &Dir, size: usize, before: u64, now: u64) {
    if cursor::has_passed(before, now, cursor::wake_step(size)) {
        // Pairs with the fence of a producer that says that it waits and then looks at the cursor.
        full_fence();
    }
    let word = dir.space.load(Relaxed);
    if word != 0 && !is_awake(s, word) {
        ring_space(s, dir, size, word);
    }
}

#[cold]
fn ring_space(s: &Sock, dir: &Dir, size: usize, word: u32) {
    if word == LINK {
        // Pairs with the fence of a link that is not calm any more, and then looks at the cursor (`link::calm`).
        full_fence();
        if s.rx.cursor.load(Relaxed) >= dir.quiet.load(Relaxed) {
            super::linked::kick(s);
        }
        return;
    }
    if word == MORE {
        return super::refill::refill(s, dir);
    }
    let unread = dir.head.load(Relaxed).wrapping_sub(s.rx.cursor.load(Relaxed));
    if unread > (size - cursor::wake_space(size)) as u64 {
        return;
    }
    let (Some(w), Some(peer)) = (Waiter::of_word(word), peers::get(s.peer.load(Relaxed))) else {
        return;
    };
    ring_waiter(peer, w, None);
}

/// Wakes the peer without data, so that it takes its direction back to TCP. Not where that is on TCP, followed by us
/// or not: the peer has nothing to do then, and a doorbell that it never takes off would make a reset of its death,
/// which destroys what it has sent.
pub fn call_peer(s: &Sock, sock: i32) {
    let Some(from) = s.rx.dir() else { return };
    fence(SeqCst);
    if !from.switch.load(Acquire).is_multiple_of(2) {
        call(s, sock);
    }
}

/// As [`call_peer`], wherever its direction is: there is something for it to do.
pub fn call(s: &Sock, sock: i32) {
    let (Some(to), Some(from)) = (s.tx.dir(), s.rx.dir()) else { return };
    fence(SeqCst);
    let word = to.bell.load(Relaxed);
    if word != 0 && word != RUNG {
        // Nobody makes up for this if it is left (`tell_again`): it is no publish.
        signals::quietly(|| ring(s, to, sock, word));
    }
    let waiter = Waiter::of_word(from.space.load(Relaxed));
    if let (Some(w), Some(peer)) = (waiter, peers::get(s.peer.load(Relaxed))) {
        ring_waiter(peer, w, None);
    }
}

/// A call of this thread was left that may have published either cursor, and told nobody.
pub fn tell_again(s: &Sock, sock: i32) {
    if let Some(to) = s.tx.dir().filter(|_| s.tx_in_memory()) {
        after_publish(s, to, sock);
        post::again(s, to, sock);
    }
    if let Some(from) = s.rx.dir().filter(|_| s.rx_in_memory()) {
        full_fence(); // as in `after_consume`
        let waiter = Waiter::of_word(from.space.load(Relaxed));
        if let (Some(w), Some(peer)) = (waiter, peers::get(s.peer.load(Relaxed))) {
            ring_waiter(peer, w, None);
        }
    }
}

/// After a sleep since `since`: notes how long the wake took, if one of this direction's ended it. What
/// the peer says of the time is believed as far as it can be.
pub fn time_wake(dir: &Dir, since: u64) -> bool {
    let (at, now) = (dir.rung_at.load(Relaxed), clock::ticks());
    if at <= since || at > now {
        return false;
    }
    count(Counter::WakesTimed, 1);
    count(Counter::WakeTime, clock::us_of_ticks(now - at) as i64);
    budget::was_rung(at);
    true
}

/// Takes the doorbell bytes off the TCP connection that are known to be there. Called with the
/// receiving lock held, while the receiving direction is in memory.
pub fn drain(s: &Sock, dir: &Dir, sock: i32) {
    // Pairs with the Release in `ring_tcp`.
    drain_to(s, dir, sock, dir.bells.load(Acquire));
}

/// As [`drain`], but no more than `sent` doorbells of the region's life.
pub fn drain_to(s: &Sock, dir: &Dir, sock: i32, sent: u32) {
    // Over a link the stream of TCP has ended with the handshake. While receiving is on TCP, what is counted
    // lies behind payload: a producer that has gone on to memory is ahead of a slow reader.
    if s.is_linked() || !s.rx_in_memory() {
        return;
    }
    loop {
        let taken = s.bells_rx.load(Relaxed);
        let mut due = u64::from(sent.wrapping_sub(taken));
        if due > 1 << 31 {
            return; // more were taken than the caller knew of, or than the peer has counted yet
        }
        if due > 1 << 20 {
            return resets::hostile(s, sock);
        }
        // Behind the next switch comes payload, and doorbells of a later stretch of memory.
        let passed = s.rx.switches.load(Relaxed);
        if dir.switch.load(Acquire) != passed {
            let at = dir.at_kernel(passed.wrapping_add(1)).load(Relaxed);
            due = due.min(at.saturating_sub(s.rx.kernel.load(Relaxed)));
        }
        if due == 0 {
            return;
        }
        let mut buf = [0u8; 64];
        let want = (due as usize).min(buf.len());
        match net::recv_slice(sock, &mut buf[..want], libc::MSG_DONTWAIT) {
            // Else our own SHUT_RD.
            Ok(0) if kernel::has_peer_ended(s, sock) => return end::found(s, end::FIN),
            Ok(0) => return,
            Ok(n) => note_taken(s, n),
            Err(e) if e.0 == libc::EAGAIN || e.0 == libc::EINTR => return,
            Err(e) => return end::took(s, e),
        }
    }
}

/// Doorbells that the peer has counted and we have not taken; below 0 where we were faster.
pub fn unread(s: &Sock, dir: &Dir) -> i32 {
    dir.bells.load(Acquire).wrapping_sub(s.bells_rx.load(Relaxed)) as i32
}

/// Counts doorbells that were taken off the TCP connection.
pub fn note_taken(s: &Sock, n: usize) {
    super::count::took(s, n as u64);
    s.bells_rx.fetch_add(n as u32, Relaxed);
    count(Counter::BellsRx, n as i64);
}

/// Arms the doorbell byte. The caller looks at the ring once more afterwards.
pub fn arm(s: &Sock, dir: &Dir) {
    s.rx.waiter.store(ARMED, Relaxed);
    dir.bell.store(ARMED, Relaxed);
    // Pairs with the fence in `after_publish`.
    fence(SeqCst);
}

/// Arms the doorbell byte for every arrival.
pub fn arm_each(s: &Sock, dir: &Dir) {
    s.rx.waiter.store(EACH, Relaxed);
    dir.bell.store(EACH, Relaxed);
    fence(SeqCst); // as in `arm`
}

/// Nobody is to be rung any more. A doorbell that comes behind the last look, when the peer calls for something else than data,
/// would make a reset of the end.
pub fn silence(s: &Sock, dir: &Dir) {
    disarm(dir);
    s.rx.waiter.store(0, Relaxed);
    dir.bell.store(0, Relaxed);
    fence(SeqCst); // as in `arm`
}

/// Nobody sleeps on the doorbell byte now, and who does next arms it again.
pub fn disarm(dir: &Dir) {
    // Pairs with the exchange in `ring`: one of them finds the word armed.
    let _ = dir.bell.compare_exchange(ARMED, RUNG, AcqRel, Relaxed);
    await_ringing(dir);
}

/// A doorbell on its way comes in a moment.
pub fn await_ringing(dir: &Dir) {
    for _ in 0..2000 {
        if dir.bell.load(Acquire) != RINGING {
            break;
        }
        std::hint::spin_loop();
    }
}

/// What a waiter is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A thread in a blocking call, poll or select; it is counted in [`Sock::readers`].
    Thread,
    /// A hooked epoll set; it is counted in [`Sock::sets`].
    Set,
}

/// Whether a waiter of this kind is the only one there can be now, so that it may be woken alone.
/// Called with the receiving lock held; whoever comes later finds this one counted.
#[inline]
pub fn is_sole(s: &Sock, kind: Kind) -> bool {
    let (sets, threads) = (s.sets.load(Relaxed), s.readers.load(Relaxed));
    !s.is_public()
        && match kind {
            Kind::Thread => (sets == 0 || s.are_sets_idle()) && threads <= 1,
            Kind::Set => sets <= 1 && threads == 0,
        }
}

/// Names the sole waiter in the doorbell word; false if it can't be woken by name.
pub fn name_waiter(s: &Sock, dir: &Dir, w: Waiter) -> bool {
    name_by(s, dir, w, w.word())
}

/// As [`name_waiter`], by one of the waiter's words.
pub(super) fn name_by(s: &Sock, dir: &Dir, w: Waiter, word: u32) -> bool {
    let now = s.rx.waiter.load(Relaxed);
    if now == word && dir.bell.load(Relaxed) == word {
        return true;
    }
    // After a fork the sets of two processes are one to the counts.
    if Waiter::of_word(now).is_some_and(|o| o != w && !o.is_ours() && o.is_asleep()) {
        s.set(flag::SHARED);
        return false;
    }
    if !known::tell(s, w) {
        return false;
    }
    s.rx.waiter.store(word, Relaxed);
    dir.bell.store(word, Release); // pairs with the exchange in `post::ring`
    fence(SeqCst); // as in `arm`
    true
}
