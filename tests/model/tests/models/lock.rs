//! (i) A lock by exchange (`family/lock.rs`, `link/lock.rs`; the flags of `control`, `rendezvous`, `transport/peers.rs`,
//! `sys/porter.rs` and `*/MAKING` that one thread at a time sets), and the marks that are left for whoever holds it
//! (`link/lock.rs: kick, after`).

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, Ordering::*, fence};
use loom::thread;
use smcr_model::{breaks, holds};

#[derive(Clone, Copy)]
struct Rules {
    take: Ordering,
    release: Ordering,
    /// Full fences: of who left a mark, before it tries the lock; of who let it go, before it looks for marks.
    kick: bool,
    after: bool,
    /// Who let it go looks.
    looks: bool,
}

const AS_IT_IS: Rules = Rules { take: Acquire, release: Release, kick: true, after: true, looks: true };

struct Lock {
    owner: AtomicU32,
    marked: AtomicU32,
    /// What the lock is for.
    state: UnsafeCell<u32>,
}

// SAFETY: the cell is used with the lock held; that this is enough is what loom checks.
unsafe impl Sync for Lock {}
// SAFETY: as above.
unsafe impl Send for Lock {}

impl Lock {
    fn new() -> Lock {
        Lock { owner: AtomicU32::new(0), marked: AtomicU32::new(0), state: UnsafeCell::new(0) }
    }

    fn try_take(&self, me: u32, r: Rules) -> bool {
        self.owner.compare_exchange(0, me, r.take, Relaxed).is_ok()
    }

    fn count(&self) {
        self.state.with_mut(|p| {
            // SAFETY: the lock is held.
            unsafe { *p += 1 }
        });
    }

    fn let_go(&self, r: Rules) {
        self.owner.store(0, r.release);
    }

    /// Takes the marks and does what they ask for; with the lock held.
    fn flush(&self) {
        if self.marked.swap(0, AcqRel) != 0 {
            self.count();
        }
    }

    fn after(&self, me: u32, r: Rules) {
        if !r.looks {
            return;
        }
        loop {
            if r.after {
                fence(SeqCst);
            }
            if self.marked.load(Relaxed) == 0 || !self.try_take(me, r) {
                return;
            }
            self.flush();
            self.let_go(r);
        }
    }

    fn kick(&self, me: u32, r: Rules) {
        self.marked.store(1, Relaxed);
        if r.kick {
            fence(SeqCst);
        }
        while self.marked.load(Relaxed) != 0 && self.try_take(me, r) {
            self.flush();
            self.let_go(r);
            fence(SeqCst);
        }
    }
}

/// Two threads, one after the other in any order.
fn two(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let lock = Arc::new(Lock::new());
        let other = {
            let lock = lock.clone();
            thread::spawn(move || {
                if lock.try_take(2, r) {
                    lock.count();
                    lock.let_go(r);
                }
            })
        };
        while !lock.try_take(1, r) {
            thread::yield_now();
        }
        lock.count();
        lock.let_go(r);
        other.join().unwrap();
    }
}

/// A mark is left while somebody holds the lock or not: it is never left over.
fn marks(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let lock = Arc::new(Lock::new());
        let other = {
            let lock = lock.clone();
            thread::spawn(move || lock.kick(2, r))
        };
        if lock.try_take(1, r) {
            lock.count();
            lock.let_go(r);
            lock.after(1, r);
        }
        other.join().unwrap();
        assert_eq!(lock.marked.load(Relaxed), 0, "a mark that nobody comes for");
    }
}

#[test]
fn one_at_a_time() {
    holds(two(AS_IT_IS));
}

#[test]
fn one_at_a_time_without_acquire() {
    breaks("Acquire of who takes it", two(Rules { take: Relaxed, ..AS_IT_IS }));
}

#[test]
fn one_at_a_time_without_release() {
    breaks("Release of who lets it go", two(Rules { release: Relaxed, ..AS_IT_IS }));
}

#[test]
fn no_mark_is_left() {
    holds(marks(AS_IT_IS));
}

#[test]
fn marks_without_the_first_fence() {
    breaks("fence in kick", marks(Rules { kick: false, ..AS_IT_IS }));
}

#[test]
fn marks_without_the_second_fence() {
    breaks("fence in after", marks(Rules { after: false, ..AS_IT_IS }));
}

#[test]
fn marks_that_nobody_looks_for() {
    breaks("look in after", marks(Rules { looks: false, ..AS_IT_IS }));
}
