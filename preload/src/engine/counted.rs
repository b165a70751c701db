//! Counts of threads that wait: for data of a connection ([`Sock::readers`]), for room in its ring ([`Sock::writers`]), in an epoll
//! set (`Set::sleepers`).
//!
//! Who is the only one is woken by its name (`bell::is_sole`), so none that waits may be missing from a count, and one that waits
//! no more makes every wake dearer. A thread may leave its wait without returning: cancelled, or by a jump out of a handler. So each
//! notes in its own memory what it is counted in, and where on its stack. Who sees it leave says so ([`leave_below`]); of other
//! jumps what lies below its next wait is over; the end of the thread ends them all.
//!
//! Called by [`super::wait`], and by `ready` for poll and for epoll sets.

use crate::family::lock;
use crate::sys::thread;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*, compiler_fence};

/// Of so many a thread that leaves without returning is counted out; a poll of more connections in memory stays counted in the others.
const NOTES: usize = 16;

/// What one wait is counted in.
struct Note {
    count: Cell<Option<&'static AtomicU32>>,
    /// What changes when the record, or the set, is another.
    generation: Cell<Option<&'static AtomicU32>>,
    since: Cell<u32>,
    /// Where on the stack it is.
    at: Cell<usize>,
}

thread_local! {
    static COUNTED: [Note; NOTES] = const {
        [const { Note { count: Cell::new(None), generation: Cell::new(None), since: Cell::new(0), at: Cell::new(0) } }; NOTES]
    };
}

/// The calling thread waits as well, in the call at `at` of its stack. Returns the generation, for [`leave`].
pub fn enter(count: &'static AtomicU32, generation: &'static AtomicU32, at: usize) -> u32 {
    forget_abandoned();
    let since = generation.load(Relaxed);
    count.fetch_add(1, AcqRel);
    // Counted and not noted, not the other way round: one too many costs wakes, one too few loses them.
    compiler_fence(SeqCst);
    COUNTED.with(|notes| {
        if let Some(n) = notes.iter().find(|n| n.count.get().is_none()) {
            n.generation.set(Some(generation));
            n.since.set(since);
            n.at.set(at);
            compiler_fence(SeqCst);
            n.count.set(Some(count));
        }
    });
    since
}

/// It waits no more. Returns how many there were, with it; 0 where the record is another's by now.
pub fn leave(count: &'static AtomicU32, generation: &'static AtomicU32, at: usize, since: u32) -> u32 {
    COUNTED.with(|notes| {
        let is_it = |n: &&Note| n.at.get() == at && n.count.get().is_some_and(|c| std::ptr::eq(c, count));
        if let Some(n) = notes.iter().find(is_it) {
            n.count.set(None);
        }
    });
    compiler_fence(SeqCst); // as in `enter`
    one_less(count, generation, since)
}

fn one_less(count: &AtomicU32, generation: &AtomicU32, since: u32) -> u32 {
    if generation.load(Relaxed) != since {
        return 0;
    }
    count.fetch_update(AcqRel, Relaxed, |n| n.checked_sub(1)).unwrap_or(0)
}

fn forget(n: &Note) {
    let (count, generation) = (n.count.take(), n.generation.get());
    compiler_fence(SeqCst);
    if let (Some(count), Some(generation)) = (count, generation) {
        one_less(count, generation, n.since.get());
    }
}

/// Waits of this thread that a jump has left of which nobody was told: they lay below this place on the stack.
#[inline(never)]
fn forget_abandoned() {
    let here = 0u8;
    let here = std::ptr::from_ref(&here) as usize;
    COUNTED.with(|notes| {
        let is_over = |n: &&Note| n.count.get().is_some() && n.at.get() < here;
        if notes.iter().any(|n| is_over(&n)) && !thread::is_on_alternate_stack() {
            notes.iter().filter(is_over).for_each(forget);
        }
    });
}

/// The calling thread goes on at `target` of its stack.
pub fn leave_below(target: usize) {
    COUNTED.with(|notes| {
        if notes.iter().all(|n| n.count.get().is_none()) {
            return;
        }
        let is_left = lock::is_left(target);
        notes.iter().filter(|n| n.count.get().is_some() && is_left(n.at.get())).for_each(forget);
    });
}

/// The calling thread ends.
pub fn thread_ends() {
    COUNTED.with(|notes| notes.iter().for_each(forget));
}

/// A forked child has one thread: where it is in a wait, below a handler that forks, it is one more in the records that the two
/// share.
pub fn forget_in_child() {
    COUNTED.with(|notes| {
        for count in notes.iter().filter_map(|n| n.count.get()) {
            count.fetch_add(1, AcqRel);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    static COUNT: AtomicU32 = AtomicU32::new(0);
    static GENERATION: AtomicU32 = AtomicU32::new(7);

    fn place<T>(frame: &T) -> usize {
        std::ptr::from_ref(std::hint::black_box(frame)) as usize
    }

    #[inline(never)]
    fn enter_and_jump() {
        let frame = 0u8;
        enter(&COUNT, &GENERATION, place(&frame));
    }

    #[inline(never)]
    fn deeper(f: impl FnOnce()) {
        let much = std::hint::black_box([0u8; 4096]);
        f();
        std::hint::black_box(&much);
    }

    #[test]
    fn who_leaves_without_returning_is_counted_out_once() {
        let now = || COUNT.load(Relaxed);
        let frame = 0u8;
        let since = enter(&COUNT, &GENERATION, place(&frame));
        enter_and_jump();
        assert_eq!(now(), 2, "a handler on top of a wait");
        deeper(|| leave_below(place(&frame)));
        assert_eq!(now(), 1, "it was left");
        assert_eq!(leave(&COUNT, &GENERATION, place(&frame), since), 1);
        assert_eq!(now(), 0);
        enter_and_jump();
        let since = enter(&COUNT, &GENERATION, place(&frame));
        assert_eq!(now(), 1, "what was left lies below the next one");
        deeper(|| leave_below(usize::MAX));
        assert_eq!(leave(&COUNT, &GENERATION, place(&frame), since), 0, "never below 0");
    }

    #[test]
    fn in_a_record_that_is_anothers_nothing_is_changed() {
        static OTHER: AtomicU32 = AtomicU32::new(0);
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let frame = 0u8;
        let since = enter(&OTHER, &NUMBER, place(&frame));
        NUMBER.store(2, Relaxed);
        OTHER.store(1, Relaxed); // that of another thread
        assert_eq!(leave(&OTHER, &NUMBER, place(&frame), since), 0);
        enter(&OTHER, &NUMBER, place(&frame));
        NUMBER.store(3, Relaxed);
        thread_ends();
        assert_eq!(OTHER.load(Relaxed), 2);
    }
}
