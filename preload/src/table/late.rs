//! Sockets that were closed, here or everywhere, while threads of this process are in calls on them: each lives on under a number of ours
//! until they have left, as in the kernel, and its record and memory are given back then.
//!
//! Called by `life` (close), by whoever ends a call on a socket that was closed meanwhile, by fork, and by `own` for the
//! numbers.

use super::{life, steps};
use crate::control;
use crate::engine::{close, inside, rouse, unmap};
use crate::family::sock::{Sock, flag};
use crate::family::{self, SOCK_CAP};
use crate::sys::{self, thread};
use smcr_proto::page::State;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*, fence};

/// Index of the record + 1; in the upper half the number under which the socket lives on + 1, 0 where it is closed and only
/// its record is left. There is a place for each record.
static LATE: [AtomicU64; SOCK_CAP] = [const { AtomicU64::new(0) }; SOCK_CAP];
/// How many there are.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// No place at or above this was ever used.
static HIGH: AtomicU32 = AtomicU32::new(0);

fn places() -> &'static [AtomicU64] {
    &LATE[..(HIGH.load(Acquire) as usize).min(SOCK_CAP)]
}

/// What the number of a socket in memory names while it is about to be closed: to all calls it is closed already. A thread
/// that no longer finds the socket in the table would wait in the kernel else, for what comes through memory, and keep the
/// socket open.
static NOTHING: AtomicI32 = AtomicI32::new(-1);

/// The last number of a socket in memory is about to be closed: another one for it, of ours. None where no other
/// thread can use it, or there is no number left.
pub fn withdraw(s: &Sock, fd: i32) -> Option<i32> {
    let is_passed_by = thread::is_only() || s.holders.load(Relaxed) > 1;
    // On TCP for good the kernel keeps it for its threads; and fclose writes what it has by the number, which is to name it still.
    let is_home = s.has(flag::PINNED) && !s.rx_in_memory() && !s.tx_in_memory();
    if is_passed_by || is_home || s.region().is_none() || control::is_restricted() {
        return None;
    }
    let new = sys::fd::another(fd).ok()?;
    inside::go_on_by(s, new);
    s.set(flag::ENDED); // before the first call that finds the number closed
    if nothing().is_some_and(|nothing| sys::fd::dup3(nothing, fd, libc::O_CLOEXEC).is_ok()) {
        return Some(new);
    }
    s.clear(flag::ENDED);
    inside::go_on_by(s, fd);
    sys::fd::close(new);
    None
}

fn nothing() -> Option<i32> {
    if NOTHING.load(Acquire) < 0 {
        let made = sys::fd::park(sys::fd::open_nothing().ok()?);
        if NOTHING.compare_exchange(-1, made, AcqRel, Relaxed).is_err() {
            sys::fd::close(made);
        }
    }
    Some(NOTHING.load(Acquire)).filter(|fd| *fd >= 0)
}

/// The last descriptor is about to be closed. True if the socket lives on, for a thread is in a call on it: under `fd` if
/// that is one of ours, else under another number.
pub fn lives_on(s: &'static Sock, fd: i32, is_ours: bool) -> bool {
    if inside::count(s) == 0 {
        return false;
    }
    let Ok(new) = (if is_ours { Ok(fd) } else { sys::fd::another(fd) }) else { return false };
    s.set(flag::ENDED);
    let lives_on = keep(s, new);
    if !lives_on && !is_ours {
        s.clear(flag::ENDED);
        sys::fd::close(new);
    }
    lives_on
}

/// The last descriptor of this process is about to be closed, and relatives have the socket too. True if it stays this process's as
/// well, for a thread is in a call on it, under a number of ours.
pub fn stays(s: &'static Sock, fd: i32) -> bool {
    if inside::count(s) == 0 || control::is_restricted() {
        return false;
    }
    let Ok(new) = sys::fd::another(fd) else { return false };
    let stays = keep(s, new);
    if !stays {
        sys::fd::close(new);
    }
    stays
}

/// Calls on it go on by a number of ours, until the last one has left. False: there is no place for it.
fn keep(s: &'static Sock, new: i32) -> bool {
    inside::go_on_by(s, new); // first: who leaves it as soon as it has its place ends it
    if !put(s, new) {
        end(s);
        return false;
    }
    rouse::all();
    settle(); // they may have left before they could see that
    true
}

/// Nothing is left of it for calls of this process: one that comes late, or has no number to go on by, ends.
pub fn end(s: &Sock) {
    inside::end(s);
    rouse_inside(s);
}

fn rouse_inside(s: &Sock) {
    if inside::count(s) != 0 {
        rouse::all();
    }
}

/// The number `fd` of a socket that has others is about to be closed, or was: calls that began by it go on by one of those.
pub fn leave_to(s: &Sock, other: i32) {
    inside::go_on_by(s, other);
    rouse_inside(s);
}

/// Whether the number by which a call on it began is its own no more.
pub fn has_lost(s: &Sock, fd: i32) -> bool {
    s.has(flag::ENDED) || inside::has_moved(s) && !steps::is_there(s, fd)
}

/// Nothing is left of the socket, but a thread is in its record.
pub fn give_up(s: &'static Sock) {
    s.set_state(State::Closed);
    s.set(flag::ENDED);
    // Without a place it stays mapped, and its record is never used again.
    if put(s, -1) {
        settle();
    }
}

/// A call on a socket that was closed meanwhile is over.
#[cold]
pub fn leave(s: &Sock) {
    if inside::has_moved(s) {
        settle();
    }
}

/// Whether a socket that was closed still lives, for a thread is in a call on it.
pub fn is_alive(s: &Sock) -> bool {
    inside::number(s).is_some()
}

/// Ends the sockets that no thread is in any more.
#[inline]
pub fn settle() {
    // Pairs with the fence of `inside`, after it has counted one thread less.
    fence(SeqCst);
    if COUNT.load(Relaxed) != 0 {
        places().iter().for_each(settle_one);
    }
}

fn settle_one(place: &AtomicU64) {
    let word = place.load(Acquire);
    let Some(s) = record(word).filter(|s| inside::count(s) == 0) else { return };
    if place.compare_exchange(word, 0, AcqRel, Relaxed).is_err() {
        return; // another thread does it
    }
    COUNT.fetch_sub(1, AcqRel);
    let fd = number(word);
    if fd >= 0 {
        inside::end(s);
        if !s.has(flag::ENDED) {
            life::part(s, Some(fd), false); // relatives have it too, or had
            return sys::fd::close(fd);
        }
        close::before_close(s, fd);
    }
    let is_over = unmap::unmap(s, true);
    if fd >= 0 {
        sys::fd::close(fd);
    }
    if is_over {
        life::finish(s, true);
    } else {
        put(s, -1);
    }
}

/// In a forked child: its parent's threads are not in it, and nothing of theirs is its own.
pub fn forget_in_child() {
    for place in places() {
        let fd = number(place.swap(0, Relaxed));
        if fd >= 0 {
            sys::fd::close(fd);
        }
    }
    COUNT.store(0, Relaxed);
}

/// Whether the number is one of these.
pub fn owns(fd: i32) -> bool {
    NOTHING.load(Relaxed) == fd || COUNT.load(Relaxed) != 0 && places().iter().any(|place| number(place.load(Relaxed)) == fd)
}

/// Names them.
pub fn descriptors(add: &mut impl FnMut(i32)) {
    add(NOTHING.load(Relaxed));
    places().iter().for_each(|place| add(number(place.load(Relaxed))));
}

/// One of them has another number now; false if it is none.
pub fn moved(old: i32, new: i32) -> bool {
    if NOTHING.compare_exchange(old, new, AcqRel, Relaxed).is_ok() {
        return true;
    }
    places().iter().any(|place| {
        let word = place.load(Acquire);
        let Some(s) = record(word).filter(|_| number(word) == old) else { return false };
        let moved = place.compare_exchange(word, word_of(s, new), AcqRel, Relaxed).is_ok();
        if moved {
            inside::go_on_by(s, new);
        }
        moved
    })
}

fn put(s: &Sock, fd: i32) -> bool {
    COUNT.fetch_add(1, AcqRel);
    let done = LATE.iter().enumerate().any(|(at, place)| {
        place.load(Relaxed) == 0 && {
            HIGH.fetch_max(at as u32 + 1, SeqCst); // before it is taken: who looks behind the fence of `settle` finds it
            place.compare_exchange(0, word_of(s, fd), AcqRel, Relaxed).is_ok()
        }
    });
    if !done {
        COUNT.fetch_sub(1, AcqRel);
    }
    done
}

fn word_of(s: &Sock, fd: i32) -> u64 {
    ((fd + 1) as u64) << 32 | u64::from(family::index_of(s) + 1)
}

fn number(word: u64) -> i32 {
    (word >> 32) as i32 - 1
}

fn record(word: u64) -> Option<&'static Sock> {
    let index = (word as u32).checked_sub(1)?;
    family::base().map(|base| family::sock(base, index))
}
