//! Which epoll sets may have a socket as a member, so that a close, or a ring that is full, asks one set and not all of the process: a program
//! with a thread and a set for each connection has thousands. And which numbers of files that are none of ours have been members.
//!
//! Never too few: a set that has given a member up may stand here still. Written by `ready::ctl` with the set locked, and by `life` where a
//! record or a number begins; read by [`super::set`] and [`super::full`].

use super::set::{self, Set};
use super::{CAP, life};
use crate::family::sock::Sock;
use crate::family::{self, SOCK_CAP};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::*};

/// By record: null, a set, or [`ANY`].
static HOMES: [AtomicPtr<Set>; SOCK_CAP] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SOCK_CAP];
/// More than one, or it is not known which. No set lies there.
const ANY: *mut Set = std::ptr::without_provenance_mut(1);

/// By number, a bit each: it was added to a set as a file that is none of ours, of whose close no hook tells.
static STRAYS: [AtomicU8; CAP / 8] = [const { AtomicU8::new(0) }; CAP / 8];

fn home(s: &Sock) -> &'static AtomicPtr<Set> {
    &HOMES[family::index_of(s) as usize % SOCK_CAP]
}

/// A record is taken for a number that the kernel has just given: no set can have it.
pub fn begin(s: &Sock) {
    home(s).store(std::ptr::null_mut(), Relaxed);
}

/// A record is taken for a descriptor that was there before.
pub fn begin_unknown(s: &Sock) {
    home(s).store(ANY, Relaxed);
}

/// The set is about to have it as a member.
pub fn add(s: &Sock, set: &'static Set) {
    let p = std::ptr::from_ref(set).cast_mut();
    // Release: pairs with the Acquire in `of`, which finds a set as it was made.
    match home(s).compare_exchange(std::ptr::null_mut(), p, AcqRel, Relaxed) {
        Ok(_) => {}
        Err(other) if std::ptr::eq(other, p) => {}
        Err(_) => home(s).store(ANY, Relaxed),
    }
}

/// The set has it no more, by this number; by another one it may.
pub fn leave(s: &Sock, set: &'static Set) {
    if !life::has_twins(s) {
        let _ = home(s).compare_exchange(std::ptr::from_ref(set).cast_mut(), std::ptr::null_mut(), AcqRel, Relaxed);
    }
}

/// Whether no set has it.
#[inline]
pub fn has_none(s: &Sock) -> bool {
    home(s).load(Relaxed).is_null()
}

/// The sets that may have it.
pub fn of(s: &Sock) -> impl Iterator<Item = &'static Set> {
    let at = home(s).load(Acquire); // pairs with the Release in `add`
    let is_any = std::ptr::eq(at, ANY);
    // SAFETY: a set, which is recycled but never unmapped, unless it is the mark.
    let one = if is_any { None } else { unsafe { at.as_ref() } };
    let all = is_any.then(set::all);
    one.into_iter().chain(all.into_iter().flatten()).filter(|set| set.refs() > 0)
}

/// A file that is none of ours is a member by this number.
pub fn note_stray(fd: i32) {
    if let Some(bits) = STRAYS.get(fd as usize / 8) {
        bits.fetch_or(1 << (fd % 8), Relaxed);
    }
}

/// Whether it may be.
#[inline]
pub fn is_stray(fd: i32) -> bool {
    STRAYS.get(fd as usize / 8).is_some_and(|bits| bits.load(Relaxed) & 1 << (fd % 8) != 0)
}

/// The number is another file's from now on: whether it was a stray's.
pub fn take_stray(fd: i32) -> bool {
    let is_taken = |bits: &AtomicU8| bits.fetch_and(!(1 << (fd % 8)), Relaxed) & 1 << (fd % 8) != 0;
    STRAYS.get(fd as usize / 8).is_some_and(is_taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_in_the_set_that_took_it_and_in_any_after_a_second_one() {
        let s = family::take_sock().expect("a record");
        let sets = [(); 3].map(|()| set::make().expect("a set"));
        let is_asked = |which: &Set| of(s).any(|set| std::ptr::eq(set, which));
        begin(s);
        assert_eq!(of(s).count(), 0);
        add(s, sets[0]);
        add(s, sets[0]);
        assert!(is_asked(sets[0]) && of(s).count() == 1);
        leave(s, sets[1]);
        assert!(is_asked(sets[0]));
        leave(s, sets[0]);
        add(s, sets[1]);
        assert!(is_asked(sets[1]) && of(s).count() == 1);
        add(s, sets[2]);
        leave(s, sets[1]);
        assert!(sets.into_iter().all(is_asked));
        begin_unknown(s);
        assert!(sets.into_iter().all(is_asked));
        for set in sets {
            set::release(set);
        }
        assert!(!is_asked(sets[0]) || sets[0].refs() > 0);
        family::give_back(s);
    }

    #[test]
    fn a_stray_is_told_of_once() {
        const FD: i32 = 77_777;
        assert!(!take_stray(FD) && !take_stray(-1));
        note_stray(FD);
        assert!(!take_stray(FD + 1) && take_stray(FD) && !take_stray(FD));
    }
}
