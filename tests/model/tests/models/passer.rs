//! (a) A doorbell for one who sleeps is taken off by another one, that reads past it (`kernel::keep_armed`, called by `tidy`).
//!
//! The sleeper has armed the word once and does nothing any more but wake by the byte. The reader takes what is in the ring; where it finds
//! it empty it counts the doorbells, arms again, looks once more, and takes those that it counted. What is left unread in the end has a byte.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::thread;
use smcr_model::kernel::{Byte, Queue};
use smcr_model::{breaks, holds};

const ARMED: u32 = 1;
const RINGING: u32 = 2;
const RUNG: u32 = 3;

#[derive(Clone, Copy)]
struct Rules {
    /// The reader arms again.
    arms: bool,
    /// It fences between the arming and its last look.
    fence: bool,
    /// It takes off only what it had counted before it armed.
    counts_first: bool,
    /// It takes nothing off where the ring holds something.
    looks_again: bool,
}

const AS_IT_IS: Rules = Rules { arms: true, fence: true, counts_first: true, looks_again: true };

struct Dir {
    head: AtomicU32,
    bell: AtomicU32,
    bells: AtomicU32,
    queue: Queue,
}

impl Dir {
    fn publish(&self, head: u32) {
        self.head.store(head, Release);
        fence(SeqCst);
        let armed = self.bell.load(Relaxed) == ARMED;
        if armed && self.bell.compare_exchange(ARMED, RINGING, AcqRel, Relaxed).is_ok() {
            self.queue.send(Byte::Doorbell);
            self.bells.fetch_add(1, Release);
            let _ = self.bell.compare_exchange(RINGING, RUNG, AcqRel, Relaxed);
        }
    }

    /// One read past the sleeper; where it stands then.
    fn read(&self, taken: &mut u32, r: Rules) -> u32 {
        let tail = self.head.load(Acquire);
        let mut known = self.bells.load(Acquire);
        if r.arms {
            // An exchange for the library's plain store, as in `doorbell`.
            self.bell.swap(ARMED, Relaxed);
            if r.fence {
                fence(SeqCst);
            }
        }
        if r.looks_again && self.head.load(Acquire) != tail {
            return tail;
        }
        if !r.counts_first {
            known = self.bells.load(Acquire);
        }
        *taken += self.queue.take((known - *taken) as usize).len() as u32;
        tail
    }
}

fn model(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let dir = Arc::new(Dir {
            head: AtomicU32::new(0),
            bell: AtomicU32::new(ARMED),
            bells: AtomicU32::new(0),
            queue: Queue::new(),
        });
        let producer = {
            let dir = dir.clone();
            thread::spawn(move || (1..=2).for_each(|head| dir.publish(head)))
        };
        let mut taken = 0;
        let first = dir.read(&mut taken, r);
        let tail = dir.read(&mut taken, r).max(first);
        producer.join().unwrap();
        if dir.head.load(Acquire) != tail {
            assert!(!dir.queue.is_empty(), "who sleeps is not told of what the reader has left");
        }
    }
}

#[test]
fn what_the_reader_leaves_is_told() {
    holds(model(AS_IT_IS));
}

#[test]
fn without_arming_again() {
    breaks("arming again", model(Rules { arms: false, ..AS_IT_IS }));
}

#[test]
fn without_the_fence() {
    breaks("reader's fence", model(Rules { fence: false, ..AS_IT_IS }));
}

#[test]
fn without_the_last_look() {
    breaks("last look", model(Rules { looks_again: false, ..AS_IT_IS }));
}

#[test]
fn what_came_behind_the_arming_is_taken() {
    breaks("count", model(Rules { counts_first: false, ..AS_IT_IS }));
}
