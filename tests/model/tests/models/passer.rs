//! (a) A doorbell for one who sleeps is taken off by another one, that reads past it (`kernel::keep_armed`, called by `tidy`).
//!
//! The sleeper has armed the word once and does nothing any more but wake by the byte. The reader takes what is in the ring; where it finds
//! it empty it counts the doorbells, arms again, looks once more, and takes those that it counted. What is left unread in the end has a byte.

use loom::sync::atomic::{Ordering::*, fence};
use loom::thread;
use smcr_model::{breaks, holds};

use super::doorbell::{self, ARMED, Dir};

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

/// One read past the sleeper; where it stands then.
fn read(dir: &Dir, taken: &mut u32, r: Rules) -> u32 {
    let tail = dir.head.load(Acquire);
    let mut known = dir.bells.load(Acquire);
    if r.arms {
        // An exchange for the library's plain store, as in `doorbell`.
        dir.bell.swap(ARMED, Relaxed);
        if r.fence {
            fence(SeqCst);
        }
    }
    if r.looks_again && dir.head.load(Acquire) != tail {
        return tail;
    }
    if !r.counts_first {
        known = dir.bells.load(Acquire);
    }
    *taken += dir.queue.take((known - *taken) as usize).len() as u32;
    tail
}

fn model(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let dir = Dir::new();
        let producer = {
            let dir = dir.clone();
            thread::spawn(move || (1..=2).for_each(|head| dir.publish(head, doorbell::AS_IT_IS)))
        };
        let mut taken = 0;
        let first = read(&dir, &mut taken, r);
        let tail = read(&dir, &mut taken, r).max(first);
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
