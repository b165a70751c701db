//! Descriptors, where the program has few left.
//!
//! What the library opens for a moment ([`Brief`]) may be the last one that there is: an accept(2) of the program's that is refused meanwhile, and
//! would not be without the library, is made again ([`call`]). What it would keep for longer is not to be the last ([`are_left`]).
//! Used by `sys` where it looks something up, by `interpose` for accept(2), and where a descriptor is taken for a link or a channel.

use super::{Errno, Res, clock, errno, fd, proc, set_errno};
use libc::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// Open for a moment now, and so many have been.
static OPEN: AtomicU32 = AtomicU32::new(0);
static PAST: AtomicU32 = AtomicU32::new(0);

/// Whether the limit may be asked for.
static MAY_ASK: AtomicBool = AtomicBool::new(true);

/// How long one is waited for. Who has it may not be on a processor.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Numbers that are looked at from either end.
const LOOKED_AT: c_int = 64;

/// A descriptor that is closed in a moment: when this goes.
pub struct Brief(c_int);

impl Brief {
    /// What `open` gives.
    pub fn open(open: impl FnOnce() -> Res<c_int>) -> Res<Brief> {
        // SeqCst, as the system calls here and there: who is refused for it finds it open, or past.
        OPEN.fetch_add(1, SeqCst);
        let opened = open();
        if opened.is_err() {
            OPEN.fetch_sub(1, SeqCst);
        }
        opened.map(Brief)
    }

    /// Its number.
    pub fn fd(&self) -> c_int {
        self.0
    }

    /// It stays open, and the other one is closed.
    pub fn instead_of(self, other: c_int) -> c_int {
        let fd = self.0;
        std::mem::forget(self);
        drop(Brief(other));
        fd
    }

    /// It was closed in another way.
    pub fn is_gone(self) {
        std::mem::forget(self);
        count_past();
    }

    /// It stays open.
    pub fn keep(self) -> c_int {
        let fd = self.0;
        std::mem::forget(self);
        OPEN.fetch_sub(1, SeqCst);
        fd
    }
}

impl Drop for Brief {
    fn drop(&mut self) {
        fd::close(self.0);
        count_past();
    }
}

fn count_past() {
    PAST.fetch_add(1, SeqCst);
    OPEN.fetch_sub(1, SeqCst);
}

/// A call of the program's that takes a descriptor before it waits, as accept(2) does. Where the last one was ours for a moment it is made again.
pub fn call(call: impl Fn() -> c_int) -> c_int {
    let mut past = PAST.load(SeqCst);
    loop {
        let new = call();
        if new >= 0 || errno() != FULL {
            return new;
        }
        let before = std::mem::replace(&mut past, await_all());
        set_errno(FULL);
        if before == past {
            return new;
        }
    }
}

const FULL: Errno = Errno(libc::EMFILE);

/// Waits until none is open; how many have been.
fn await_all() -> u32 {
    let (mut pause, end) = (proc::Pause::default(), clock::now_ns() + PATIENCE_NS);
    // Some may be of threads that were left in the middle.
    while OPEN.load(SeqCst) != 0 && clock::now_ns() < end {
        pause.turn();
    }
    PAST.load(SeqCst)
}

/// Whether the program may open so many more, beside `own` and what lies below. Not all numbers are looked at: some that are said not to be there
/// may be.
pub fn are_left(own: c_int, number: usize) -> bool {
    !MAY_ASK.load(Relaxed) || proc::descriptor_limit().is_none_or(|limit| are_left_below(limit, own, number))
}

/// As [`are_left`], with RLIMIT_NOFILE as it is.
pub fn are_left_below(limit: u64, own: c_int, number: usize) -> bool {
    if !MAY_ASK.load(Relaxed) {
        return true;
    }
    let (first, limit) = (own + 1, limit.min(c_int::MAX as u64) as c_int);
    let far = (limit - LOOKED_AT).max(first)..limit;
    let near = first..far.start.min(first + LOOKED_AT);
    // From the top, where hardly a program has any: each look is a system call.
    far.rev().chain(near).filter(|n| !fd::is_open(*n)).take(number).count() == number
}

/// The program may have a filter that forbids it.
pub fn ask_no_more() {
    MAY_ASK.store(false, Relaxed);
}

/// A forked child has none open.
pub fn forget_in_child() {
    OPEN.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A call that is refused so often, and what happens meanwhile.
    fn refused(times: u32, meanwhile: impl Fn(u32)) -> (c_int, u32) {
        let calls = Cell::new(0);
        let r = call(|| {
            calls.set(calls.get() + 1);
            meanwhile(calls.get());
            set_errno(FULL);
            if calls.get() > times { 7 } else { -1 }
        });
        (r, calls.get())
    }

    #[test]
    fn who_is_refused_for_a_moment_of_ours_is_called_again() {
        let ours = Cell::new(Brief::open(fd::eventfd).ok());
        assert_eq!(refused(1, |_| drop(ours.take())), (7, 2), "it was over when the call came back");
        assert_eq!(refused(3, |_| drop(Brief::open(fd::eventfd))), (7, 4));
        let ours = Brief::open(fd::eventfd).unwrap();
        let (told, hears) = std::sync::mpsc::channel();
        let holder = std::thread::spawn(move || {
            hears.recv().unwrap();
            drop(ours);
        });
        assert_eq!(
            refused(1, |n| if n == 1 {
                told.send(()).unwrap()
            }),
            (7, 2),
            "it is waited for"
        );
        holder.join().unwrap();
    }

    #[test]
    fn who_is_refused_by_the_kernel_alone_is_told() {
        // Other tests of this process have descriptors for a moment: at some time there is none.
        let told = |_| refused(100, |_| assert!(Brief::open(|| Err::<c_int, _>(FULL)).is_err())).0 == -1 && errno() == FULL;
        assert!((0..1000).any(told));
    }

    #[test]
    fn one_that_is_kept_stays_open() {
        let [kept, other] = [(); 2].map(|()| Brief::open(fd::eventfd).unwrap().keep());
        let new = Brief::open(fd::eventfd).unwrap().instead_of(other);
        assert_eq!([kept, other, new].map(fd::is_open), [true, false, true]);
        [kept, new].into_iter().for_each(fd::close);
    }

    #[test]
    fn what_is_left_is_counted_from_both_ends() {
        let limit = proc::descriptor_limit().expect("a limit");
        let own = fd::eventfd().unwrap();
        assert!(are_left(own, 1) && are_left(own, 2));
        assert!(!are_left(limit as c_int - 2, 2) && !are_left(limit as c_int - 1, 1));
        assert!(are_left(limit as c_int - 2, 1) && !are_left(own, 1 << 20));
        fd::close(own);
    }
}
