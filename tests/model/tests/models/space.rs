//! (d) The word of space: a producer that found the ring full names a waiter and looks again; the
//! consumer wakes it when there is room (`engine/wait.rs: for_space`, `bell.rs: after_consume`).

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::thread;
use smcr_model::kernel::EventFd;
use smcr_model::{breaks, holds};

const SIZE: u32 = 2;

#[derive(Clone, Copy)]
struct Rules {
    producer_fence: bool,
    consumer_fence: bool,
    looks_again: bool,
    /// A second writer finds the word taken and goes through TCP instead of overwriting it.
    respects_other: bool,
}

const AS_IT_SHOULD_BE: Rules = Rules {
    producer_fence: true,
    consumer_fence: true,
    looks_again: true,
    respects_other: true,
};

struct Dir {
    head: AtomicU32,
    tail: AtomicU32,
    space: AtomicU32,
    eventfd: [EventFd; 2],
}

impl Dir {
    /// The consumer takes one, publishes, and rings whoever waits.
    fn take_one(&self, tail: u32, r: Rules) {
        self.tail.store(tail, Release);
        if r.consumer_fence {
            fence(SeqCst);
        }
        let word = self.space.load(Relaxed);
        if word != 0 && self.head.load(Relaxed) - tail < SIZE {
            self.eventfd[word as usize - 1].ring();
        }
    }

    fn has_room(&self) -> bool {
        self.head.load(Relaxed) - self.tail.load(Acquire) < SIZE
    }

    /// True: sleeps until its eventfd rings.
    fn wait_for_room(&self, me: u32, r: Rules) -> bool {
        if r.respects_other {
            if self.space.compare_exchange(0, me, AcqRel, Relaxed).is_err() {
                return false;
            }
        } else {
            self.space.swap(me, Relaxed);
        }
        if r.producer_fence {
            fence(SeqCst);
        }
        !(r.looks_again && self.has_room())
    }
}

fn model(r: Rules, writers: u32) -> impl Fn() + Sync + Send + 'static {
    move || {
        let dir = Arc::new(Dir {
            head: AtomicU32::new(SIZE),
            tail: AtomicU32::new(0),
            space: AtomicU32::new(0),
            eventfd: [EventFd::new(), EventFd::new()],
        });
        let consumer = {
            let dir = dir.clone();
            thread::spawn(move || (1..=SIZE).for_each(|tail| dir.take_one(tail, r)))
        };
        let second = (writers == 2).then(|| {
            let dir = dir.clone();
            thread::spawn(move || dir.wait_for_room(2, r))
        });
        let first = dir.wait_for_room(1, r);
        let second = second.map(|t| t.join().unwrap());
        consumer.join().unwrap();
        assert!(
            !first || dir.eventfd[0].wakes(),
            "the first writer sleeps beside an empty ring"
        );
        assert!(
            second != Some(true) || dir.eventfd[1].wakes(),
            "the second writer sleeps beside an empty ring"
        );
    }
}

#[test]
fn no_wake_up_is_lost() {
    holds(model(AS_IT_SHOULD_BE, 1));
}

#[test]
fn two_writers() {
    holds(model(AS_IT_SHOULD_BE, 2));
}

#[test]
fn without_the_producers_fence() {
    breaks(
        "producer's fence",
        model(
            Rules {
                producer_fence: false,
                ..AS_IT_SHOULD_BE
            },
            1,
        ),
    );
}

#[test]
fn without_the_consumers_fence() {
    breaks(
        "consumer's fence",
        model(
            Rules {
                consumer_fence: false,
                ..AS_IT_SHOULD_BE
            },
            1,
        ),
    );
}

#[test]
fn without_the_second_look() {
    breaks(
        "second look",
        model(
            Rules {
                looks_again: false,
                ..AS_IT_SHOULD_BE
            },
            1,
        ),
    );
}

#[test]
fn two_writers_that_overwrite_each_other() {
    breaks(
        "one word, two writers",
        model(
            Rules {
                respects_other: false,
                ..AS_IT_SHOULD_BE
            },
            2,
        ),
    );
}
