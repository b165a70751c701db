//! Room in the ring of a writer: whether there is enough, and who is woken when there is.
//!
//! [`super::wait`] calls it for a blocking send, `ready` for poll and epoll.

use super::{called, known, switch};
use crate::family;
use crate::family::sock::Sock;
use crate::layout::word::EACH;
use crate::transport::region::{Dir, RING_MIN};
use crate::transport::waiters::Waiter;
use smcr_proto::cursor;
use std::sync::atomic::{Ordering::*, fence};

/// Whether a quarter of the ring is free.
pub fn has_room(s: &Sock, dir: &Dir) -> bool {
    // What the last look at the consumer's cursor found is enough almost always, and a line that the producer does not
    // read stays with the consumer, which writes it at each read.
    let known = room_before(s, s.tx.seen.load(Relaxed));
    known == Some(true) || room_before(s, dir.tail.load(Acquire)).unwrap_or(true) // else the sender finds out
}

/// Whether a quarter of the ring is free if the consumer has come to `tail`; None: it can't have.
#[inline]
fn room_before(s: &Sock, tail: u64) -> Option<bool> {
    let size = s.tx.size.load(Relaxed) as usize;
    let free = cursor::writable(s.tx.cursor.load(Relaxed), tail, size)?;
    let limit = s.buffer_limit.load(Relaxed) as usize;
    let used = size - free;
    Some(free >= cursor::wake_space(size) && (limit == 0 || used < limit.max(RING_MIN)))
}

/// How long a writer sleeps whom not every process at the other end can name (one was forked since): then it looks
/// by itself. A ring that is full that long is not read much, and one that is not read at
/// all is given up (`stuck`).
pub const UNNAMED_NS: u64 = 150_000;

/// Before a sleep of poll or epoll that waits for room as well: makes sure that `me` is woken when there is, or else
/// moves the direction to TCP. Some: ns after which to look again at a ring that is full. `reads`: it waits for data too.
pub fn prepare_writer(s: &Sock, sock: i32, me: Option<Waiter>, reads: bool) -> Option<u64> {
    let dir = s.tx.dir().filter(|d| s.tx_in_memory() && !has_room(s, d))?;
    let Some(me) = me else {
        if called::keeps_full(s) {
            return Some(called::AGAIN_NS);
        }
        switch::spill(s, sock, switch::Spill::NoWaiter);
        return None;
    };
    let named = name_writer(s, dir, me) != Named::No;
    if s.is_linked() {
        return None;
    }
    let trust = if named { known::trust(s, me) } else { UNNAMED_NS };
    Some(switch::leave_unread(s, sock, dir, reads)?.min(trust))
}

/// Whether a waiter sleeps by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// It can't: the peer, or a process that it forked, may not know its eventfd.
    No,
    Yes,
    /// Another waiter of this process had its name there, and may wait for the same: it is told when this one goes on.
    InPlaceOf,
}

/// Names a waiter for space.
pub fn name_writer(s: &Sock, dir: &Dir, w: Waiter) -> Named {
    if !known::tell(s, w) {
        return Named::No;
    }
    let mut named = Named::Yes;
    if !is_named(s, dir, w, 0) {
        let other = Waiter::of_word(dir.space.load(Relaxed)).filter(|o| o.is_ours());
        // Whether it waits here, or is an epoll set that has long waited for something else, nobody knows. A link wakes both.
        let is_asleep = s.is_linked() && other.is_some_and(Waiter::is_asleep);
        dir.space.store(if is_asleep { EACH } else { w.word() }, Relaxed);
        if other.is_some() {
            named = Named::InPlaceOf;
        }
    }
    // Pairs with the fence in `bell::after_consume`, and with the one in `known::before_fork`.
    fence(SeqCst);
    if s.is_linked() || known::is_known_to_all(s, dir, w) {
        return named;
    }
    unname(dir, w);
    Named::No
}

/// It waits no more: who comes next must not rely on a thread that sleeps for something else then.
pub fn unname(dir: &Dir, w: Waiter) {
    let _ = dir.space.compare_exchange(w.word(), 0, Relaxed, Relaxed);
}

/// Before a sleep in which `me` waits for no room here: takes its name out, which it has left when the ring was full, or for
/// [`be_callable`]. It would be rung each time that the peer reads, for nothing.
pub fn forget(s: &Sock, me: Waiter) {
    if let Some(dir) = s.tx.dir().filter(|_| s.rx_in_memory() && !s.is_linked())
        && dir.space.load(Relaxed) == me.word()
    {
        unname(dir, me);
    }
}

/// Before a sleep of one that receives through TCP, after it has sent through memory: a peer that sends there as well, or has said
/// its last word, can ring no doorbell, and may want something all the same (`follow::is_asked`). It rings who waits for room
/// (`bell::call`). False: it can't.
pub fn be_callable(s: &Sock, w: Waiter) -> bool {
    if s.rx_in_memory() || s.is_linked() || s.tx.switches.load(Relaxed) == 0 {
        return false;
    }
    s.tx.dir().is_some_and(|dir| name_writer(s, dir, w) != Named::No)
}

/// Whether the word of space names this waiter, or a thread of ours that sleeps in a send on this connection, and tells the others
/// when it goes on. `counted`: this waiter is one of its writers.
pub fn is_named(s: &Sock, dir: &Dir, me: Waiter, counted: u32) -> bool {
    let word = dir.space.load(Relaxed);
    match Waiter::of_word(word) {
        Some(w) => w == me || w.is_ours() && w.is_asleep() && family::record(s).writers.load(Acquire) > counted,
        None => word == EACH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::sock::medium;

    #[test]
    fn a_waiter_takes_its_own_name_out_and_only_where_data_comes_through_memory() {
        // SAFETY: all zero is a fresh record, and so is a direction of a page.
        let (s, dir): (Sock, Dir) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        s.tx.dir.store(std::ptr::from_ref(&dir).cast_mut(), Relaxed);
        let [me, other] = [1, 2].map(|slot| Waiter::named(slot, 3).expect("a slot"));
        let after = |named: Waiter| {
            dir.space.store(named.word(), Relaxed);
            forget(&s, me);
            dir.space.load(Relaxed)
        };
        assert_eq!(after(me), me.word()); // it may be callable
        s.rx_medium.store(medium::SHM, Relaxed);
        assert_eq!(after(me), 0);
        assert_eq!(after(other), other.word());
    }
}
