//! (l) Something is taken away while another thread may be about to use it: each says what it does and then looks at the
//! other, with a full fence in between.
//!
//! `step`: a descriptor is closed while a wait brings on its set-up (`rendezvous::step_in_wait`, `table/steps.rs`); alike
//! `table/late.rs` with `engine/inside.rs`, `table/waited.rs: enter, lives_on`, `rendezvous/smc/backlog.rs: enter`, `rendezvous/legacy.rs: left`. `settings`: a
//! policy is replaced while it is read (`control: with_policy, publish`).

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, Ordering::*, fence};
use loom::thread;
use smcr_model::{breaks, holds, sc};

#[derive(Clone, Copy)]
struct Rules {
    /// Full fences: of who uses it, and of who takes it away.
    user: bool,
    taker: bool,
    /// Who uses it says that it has finished; who takes it away sees it.
    over: Ordering,
    wait: Ordering,
}

const AS_IT_IS: Rules = Rules { user: true, taker: true, over: Release, wait: Acquire };

struct Shared {
    /// The slot of the table; the place in force.
    slot: AtomicU32,
    /// Whether somebody is in it.
    users: AtomicU32,
    what: [UnsafeCell<u32>; 2],
}

// SAFETY: the cells are used by the rules of each model; loom checks that these are enough.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new(slot: u32) -> Arc<Shared> {
        Arc::new(Shared { slot: AtomicU32::new(slot), users: AtomicU32::new(0), what: [UnsafeCell::new(0), UnsafeCell::new(0)] })
    }

    fn read(&self, at: u32) {
        self.what[at as usize].with(|p| {
            // SAFETY: nobody writes to it now, or loom finds who does.
            unsafe { *p }
        });
    }

    fn write(&self, at: u32) {
        self.what[at as usize].with_mut(|p| {
            // SAFETY: nobody else is at it now, or loom finds who is.
            unsafe { *p += 1 }
        });
    }

    fn step_in_wait(&self, r: Rules) {
        if self.users.swap(1, AcqRel) != 0 {
            return;
        }
        if r.user {
            fence(SeqCst);
        }
        if self.slot.load(Relaxed) == 1 {
            self.read(0); // the descriptor is used
        }
        self.users.store(0, r.over);
    }

    fn close(&self, r: Rules) {
        self.slot.store(0, Relaxed);
        if r.taker {
            fence(SeqCst);
        }
        while self.users.load(r.wait) != 0 {
            thread::yield_now();
        }
        self.write(0); // it is closed, and is another one's
    }

    fn with_policy(&self, r: Rules) {
        sc::add(&self.users, 1, r.user);
        self.read(self.slot.load(Acquire));
        self.users.fetch_sub(1, r.over);
    }

    fn publish(&self, r: Rules) {
        let free = 1 - self.slot.load(Relaxed);
        if self.users.load(r.wait) == 0 {
            self.write(free);
            sc::store(&self.slot, free, r.taker);
        }
    }
}

fn step(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Shared::new(1);
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.step_in_wait(r))
        };
        shared.close(r);
        other.join().unwrap();
    }
}

fn settings(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Shared::new(0);
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.with_policy(r))
        };
        shared.publish(r);
        shared.publish(r); // into the place of the first
        other.join().unwrap();
    }
}

#[test]
fn a_step() {
    holds(step(AS_IT_IS));
}

#[test]
fn a_step_without_its_fence() {
    breaks("fence of the step", step(Rules { user: false, ..AS_IT_IS }));
}

#[test]
fn a_step_without_the_fence_of_who_closes() {
    breaks("fence of who closes", step(Rules { taker: false, ..AS_IT_IS }));
}

#[test]
fn a_step_without_release() {
    breaks("Release behind the step", step(Rules { over: Relaxed, ..AS_IT_IS }));
}

#[test]
fn a_step_without_acquire() {
    breaks("Acquire of who closes", step(Rules { wait: Relaxed, ..AS_IT_IS }));
}

#[test]
fn a_policy() {
    holds(settings(AS_IT_IS));
}

#[test]
fn a_policy_without_the_readers_fence() {
    breaks("SeqCst of the reader", settings(Rules { user: false, ..AS_IT_IS }));
}

#[test]
fn a_policy_without_the_writers_fence() {
    breaks("SeqCst of the change", settings(Rules { taker: false, ..AS_IT_IS }));
}

#[test]
fn a_policy_without_release() {
    breaks("Release of the reader", settings(Rules { over: Relaxed, ..AS_IT_IS }));
}

#[test]
fn a_policy_without_acquire() {
    breaks("Acquire of the change", settings(Rules { wait: Relaxed, ..AS_IT_IS }));
}
