//! The library's own descriptors, which the program must neither see nor take.
//!
//! Called by the hooks that close, duplicate or list descriptors.

use super::{late, set, waited};
use crate::engine::rouse;
use crate::family::process;
use crate::sys::{self, proc};
use crate::transport::{peers, waiters};
use crate::{control, family, log, rendezvous};

/// Where the library's own descriptors begin, if the limit permits it.
pub const FIRST_OWN: i32 = 1024;

/// Whether a descriptor is the library's own: the program can't have opened it, so it is closed for
/// the program (EBADF).
#[inline]
pub fn is_own(fd: i32) -> bool {
    sys::fd::may_be_own(fd) && is_among_own(fd)
}

#[inline(never)]
fn is_among_own(fd: i32) -> bool {
    fd >= 0
        && (family::descriptor() == fd
            || log::descriptor() == fd
            || waiters::owns(fd)
            || peers::owns(fd)
            || rendezvous::owns(fd)
            || late::owns(fd)
            || waited::owns(fd)
            || control::wake::owns(fd))
}

/// For diagnostics: this process's id as the kernel says.
pub fn own_pid() -> u32 {
    proc::pid()
}

/// The lowest of the library's own descriptors from `first` to `last`, in order, as many as fit; returns the number.
pub fn own_descriptors(first: u32, last: u32, out: &mut [i32]) -> usize {
    let mut n = 0;
    let mut add = |fd: i32| {
        let Ok(number) = u32::try_from(fd) else { return };
        let Err(at) = out[..n].binary_search(&fd) else { return };
        if (first..=last).contains(&number) && at < out.len() {
            n = (n + 1).min(out.len());
            out[at..n].rotate_right(1); // the highest of too many goes
            out[at] = fd;
        }
    };
    add(family::descriptor());
    add(log::descriptor());
    control::wake::descriptors(&mut add);
    rendezvous::descriptors(&mut add);
    waiters::descriptors(&mut add);
    peers::descriptors(&mut add);
    late::descriptors(&mut add);
    waited::descriptors(&mut add);
    n
}

/// Whether so many descriptors are more than the program may have, as far as that may be asked.
pub fn exceeds_limit(n: u64) -> bool {
    !control::is_restricted() && proc::descriptor_limit().is_some_and(|most| n > most)
}

/// How many descriptors a select of `n` looks at. The kernel leaves out what lies beyond the program's table of descriptors, and
/// programs that ask for as many as there may be have sets for no more. Ours beyond 1023 make that table larger. `highest`: the last
/// that is asked for (-1: none), of sets that are there so far; behind it the kernel has nothing to look at and nothing to write.
pub fn as_many(n: i32, highest: impl FnOnce() -> Option<i32>) -> i32 {
    if n <= FIRST_OWN || control::is_restricted() {
        return n;
    }
    match highest() {
        Some(last) if last < FIRST_OWN => return FIRST_OWN,
        Some(last) if sys::fd::is_open(last) && !is_own(last) => return last + 1,
        _ => {}
    }
    // What lies behind a program's small set may look like one that is asked for.
    let mut highest = FIRST_OWN - 1;
    let listed = sys::dir::numbers(c"/proc/self/fd", |fd| {
        if fd > highest && sys::fd::is_open(fd) && !is_own(fd) {
            highest = fd;
        }
    });
    if listed.is_err() {
        highest = highest.max(super::range(0, u32::MAX).map(|(fd, _)| fd).last().unwrap_or(0));
    }
    // It grows in powers of two.
    n.min((highest.cast_unsigned() + 1).next_power_of_two().cast_signed())
}

/// The program takes the number of one of our descriptors: ours moves away. Not in a vfork child: what it has
/// under that number is a copy, which exec closes, and where ours is stands in its parent's memory.
pub fn move_own(fd: i32) {
    if process::is_vfork_child() {
        return;
    }
    let Ok(new) = sys::fd::dup_from(fd, 1024).or_else(|_| sys::fd::dup_from(fd, 3)) else { return };
    sys::fd::note_own(new);
    if family::descriptor() == fd {
        family::set_descriptor(new);
    } else if !(waiters::moved(fd, new)
        || peers::moved(fd, new)
        || rendezvous::moved(fd, new)
        || control::wake::moved(fd, new)
        || late::moved(fd, new)
        || waited::moved(fd, new))
    {
        sys::fd::close(new);
    } else {
        rouse::off_old_number();
    }
    if control::wake::is_writable(new) {
        set::take_stand_ins(fd);
    }
    // Who loaded the old number writes into what the program has there.
    sys::held::await_users(fd);
}
