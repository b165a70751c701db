//! (b2) Several threads that sleep on one epoll set (`ready/sleep.rs: lie_down, get_up`).

use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use smcr_model::kernel::EventFd;
use smcr_model::{breaks, holds};

/// An epoll set: one sleep word, a count of the threads that sleep.
struct Set {
    lock: Mutex<()>,
    sleepers: AtomicU32,
    word: AtomicU32,
    eventfd: EventFd,
    head: AtomicU32,
}

impl Set {
    /// Runs `f` with the count and the word changed as one step, or not.
    fn together(&self, one: bool, f: impl FnOnce()) {
        let held = one.then(|| self.lock.lock().unwrap());
        f();
        drop(held);
    }

    fn lie_down(&self, one_step: bool) {
        self.together(one_step, || {
            self.sleepers.fetch_add(1, AcqRel);
            self.word.store(self.word.load(Relaxed) | 1, Relaxed);
        });
        fence(SeqCst);
    }

    fn get_up(&self, one_step: bool) {
        self.together(one_step, || {
            let v = self.word.load(Relaxed);
            if self.sleepers.fetch_sub(1, AcqRel) > 1 {
                self.word.store((v | 1) + 2, Relaxed);
            } else {
                self.word.store(v + (v & 1), Relaxed);
            }
        });
        fence(SeqCst);
    }
}

/// One thread of the set wakes up by its time-out while another lies down; then data arrives.
fn two_threads_of_a_set(one_step: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let set = Arc::new(Set {
            lock: Mutex::new(()),
            sleepers: AtomicU32::new(0),
            word: AtomicU32::new(0),
            eventfd: EventFd::new(),
            head: AtomicU32::new(0),
        });
        set.lie_down(one_step);
        let first = {
            let set = set.clone();
            thread::spawn(move || set.get_up(one_step))
        };
        let producer = {
            let set = set.clone();
            thread::spawn(move || {
                set.head.store(1, Release);
                fence(SeqCst);
                if set.word.load(Relaxed) & 1 != 0 {
                    set.eventfd.ring();
                }
            })
        };
        set.lie_down(one_step);
        let empty = set.head.load(Acquire) == 0;
        first.join().unwrap();
        producer.join().unwrap();
        if empty && set.head.load(Acquire) != 0 {
            assert!(set.eventfd.wakes(), "a thread of the set sleeps and the word says awake");
        }
    }
}

#[test]
fn a_set_with_two_threads() {
    holds(two_threads_of_a_set(true));
}

/// Count and word are changed one after the other without the lock.
#[test]
fn a_set_with_two_threads_in_two_steps() {
    breaks("count and word in two steps", two_threads_of_a_set(false));
}
