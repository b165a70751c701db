//! Epoll sets that are closed while threads of this process wait in them: each lives on under a number of ours until they have
//! come back, as in the kernel, where the wait holds the file.
//!
//! A thread may leave its wait without returning (`engine::inside`, which does the same for sockets): each remembers where on its
//! stack its waits are, and who sees it leave says so ([`leave_below`]). Called by `ready::wait`, by `life` (close), by fork, and by `own` for the numbers.

use super::set::{self, Set};
use super::{epoll_set, take};
use crate::engine::threads;
use crate::family::lock;
use crate::fault::{self, Step as Fault};
use crate::sys::{self, thread};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*, fence};

/// Waits of one thread that can be told apart: one, and those of handlers that interrupted it.
const DEPTH: usize = 8;

/// How many sets live on.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// One wait.
struct Wait {
    set: Cell<Option<&'static Set>>,
    /// Where on the stack it is.
    at: Cell<usize>,
}

thread_local! {
    static WAITS: [Wait; DEPTH] = const { [const { Wait { set: Cell::new(None), at: Cell::new(0) } }; DEPTH] };
}

/// A wait in a set, which is not taken away from under it.
pub struct Visit(&'static Set);

impl Drop for Visit {
    fn drop(&mut self) {
        WAITS.with(|waits| {
            if let Some(w) = waits.iter().rev().find(|w| w.set.get().is_some_and(|s| std::ptr::eq(s, self.0))) {
                w.set.set(None);
            }
        });
        leave(self.0);
    }
}

/// Why there is no visit.
pub enum Without {
    /// No other thread can close the set.
    Alone,
    /// It was closed just now.
    Closed,
}

/// The calling thread is about to sleep in the set of this number. `deadline` lives on its stack as long as the call.
#[inline]
pub fn visit(epfd: i32, set: &'static Set, deadline: &Option<u64>) -> Result<Visit, Without> {
    if thread::is_only() {
        return Err(Without::Alone);
    }
    enter(epfd, set, std::ptr::from_ref(deadline) as usize)
}

fn enter(epfd: i32, set: &'static Set, frame: usize) -> Result<Visit, Without> {
    forget_abandoned(frame + 1); // where this one is there is no other
    set.inside.fetch_add(1, AcqRel);
    // Pairs with the fence in `lives_on`: either we find it closed, or who closes it finds us.
    fence(SeqCst);
    WAITS.with(|waits| {
        if let Some(w) = waits.iter().find(|w| w.set.get().is_none()) {
            w.at.set(frame);
            w.set.set(Some(set));
        }
    });
    threads::at_exit();
    let visit = Visit(set);
    if epoll_set(epfd).is_some_and(|s| std::ptr::eq(s, set)) { Ok(visit) } else { Err(Without::Closed) }
}

/// By which number the kernel has it now; it was `epfd`.
#[inline]
pub fn number(set: &'static Set, epfd: i32) -> i32 {
    let is_same = epoll_set(epfd).is_some_and(|s| std::ptr::eq(s, set));
    if is_same { epfd } else { set.number().unwrap_or(epfd) }
}

/// The number under which it lives on.
pub(super) fn own_number(set: &Set) -> i32 {
    set.kept.load(Acquire) - 1
}

/// The last number of a set is about to be closed. True: the table has it no more, and it lives on where somebody waits in it.
pub fn lives_on(set: &'static Set, fd: i32) -> bool {
    let here = 0u8;
    forget_abandoned(std::ptr::from_ref(&here) as usize);
    if set.refs() != 1 {
        return false;
    }
    let is_taken = set.inside.load(Acquire) == 0;
    if is_taken {
        fault::pass(Fault::Unvisited);
        let _ = take(fd);
        // As below: one that has come since that look has found the number, and waits in the set.
        fence(SeqCst);
        if set.inside.load(Relaxed) == 0 {
            set::release(set);
            return true;
        }
    }
    let Ok(new) = sys::fd::another(fd) else {
        if is_taken {
            set::release(set);
        }
        return is_taken;
    };
    COUNT.fetch_add(1, AcqRel);
    set.kept.store(new + 1, Release);
    let _ = take(fd);
    // Pairs with the fences in `enter` and `leave`.
    fence(SeqCst);
    if set.inside.load(Relaxed) == 0 {
        end(set);
    }
    true
}

fn leave(set: &'static Set) {
    let _ = set.inside.fetch_update(AcqRel, Relaxed, |n| n.checked_sub(1));
    // Pairs with the fence in `lives_on`: either we find it closed, or who closes it finds nobody.
    fence(SeqCst);
    if set.kept.load(Relaxed) != 0 && set.inside.load(Relaxed) == 0 {
        end(set);
    }
}

/// Nobody waits in it any more. Of several that find that one ends it.
#[cold]
fn end(set: &'static Set) {
    let n = set.kept.swap(0, AcqRel);
    if n != 0 {
        COUNT.fetch_sub(1, AcqRel);
        set::release(set);
        sys::fd::close(n - 1);
    }
}

/// Waits of this thread that siglongjmp has left: they lay below this place on the stack.
#[inline(never)]
fn forget_abandoned(here: usize) {
    WAITS.with(|waits| {
        let is_over = |w: &&Wait| w.set.get().is_some() && w.at.get() < here;
        if waits.iter().any(|w| is_over(&w)) && !thread::is_on_alternate_stack() {
            waits.iter().filter(is_over).filter_map(|w| w.set.take()).for_each(leave);
        }
    });
}

/// The calling thread goes on at `target` of its stack.
pub fn leave_below(target: usize) {
    WAITS.with(|waits| {
        if waits.iter().all(|w| w.set.get().is_none()) {
            return;
        }
        let is_left = lock::is_left(target);
        let left = waits.iter().filter(|w| w.set.get().is_some() && is_left(w.at.get()));
        left.filter_map(|w| w.set.take()).for_each(leave);
    });
}

/// The calling thread ends.
pub fn thread_ends() {
    WAITS.with(|waits| waits.iter().filter_map(|w| w.set.take()).for_each(leave));
}

fn kept() -> impl Iterator<Item = &'static Set> {
    let any = COUNT.load(Acquire) != 0;
    set::all().filter(move |s| any && s.kept.load(Relaxed) != 0)
}

/// Whether the number is one of these.
pub fn owns(fd: i32) -> bool {
    kept().any(|s| own_number(s) == fd)
}

/// Names them.
pub fn descriptors(add: &mut impl FnMut(i32)) {
    kept().for_each(|s| add(own_number(s)));
}

/// One of them has another number now; false if it is none.
pub fn moved(old: i32, new: i32) -> bool {
    kept().any(|s| s.kept.compare_exchange(old + 1, new + 1, AcqRel, Relaxed).is_ok())
}

/// In a forked child nobody waits in them.
pub fn forget_in_child() {
    for s in set::all() {
        s.inside.store(0, Relaxed);
        let n = s.kept.swap(0, Relaxed);
        if n != 0 {
            set::release(s);
            sys::fd::close(n - 1);
        }
    }
    COUNT.store(0, Relaxed);
    WAITS.with(|waits| waits.iter().for_each(|w| w.set.set(None)));
}
