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
    /// A writer that finds another one named and asleep leaves the word; whoever wakes up while
    /// others wait wakes them.
    passes_on: bool,
    /// A writer that relies on another's name looks, once asleep, whether that one still is.
    looks_at_name: bool,
    /// The consumer has a fence only where it passes a multiple of this (`cursor::wake_step`).
    step: u32,
    /// How many it takes, one by one.
    takes: u32,
}

const AS_IT_IS: Rules =
    Rules { producer_fence: true, consumer_fence: true, looks_again: true, passes_on: true, looks_at_name: true, step: 1, takes: 1 };

/// The consumer takes all that the ring held, and makes sure at the end alone.
const NOW_AND_THEN: Rules = Rules { step: SIZE, takes: SIZE, ..AS_IT_IS };

struct Dir {
    head: AtomicU32,
    tail: AtomicU32,
    space: AtomicU32,
    /// Writers that wait; private to the sending family.
    writers: AtomicU32,
    sleep: [AtomicU32; 2],
    eventfd: [EventFd; 2],
}

impl Dir {
    /// The consumer takes one, publishes, and rings whoever is named and sleeps.
    fn take_one(&self, tail: u32, r: Rules) {
        self.tail.store(tail, Release);
        if r.consumer_fence && ((tail - 1) ^ tail) & !(r.step - 1) != 0 {
            fence(SeqCst);
        }
        let word = self.space.load(Relaxed) as usize;
        if word != 0 && self.head.load(Relaxed) - tail < SIZE && self.sleep[word - 1].load(Relaxed) & 1 != 0 {
            self.eventfd[word - 1].ring();
        }
    }

    fn has_room(&self) -> bool {
        self.head.load(Relaxed) - self.tail.load(Acquire) < SIZE
    }

    fn is_named(&self, me: usize) -> bool {
        match self.space.load(Relaxed) as usize {
            0 => false,
            w => w == me + 1 || self.sleep[w - 1].load(Relaxed) & 1 != 0,
        }
    }

    /// True: sleeps until its eventfd rings.
    fn wait_for_room(&self, me: usize, r: Rules) -> bool {
        if !self.is_named(me) {
            self.space.swap(me as u32 + 1, Relaxed);
        }
        fence(SeqCst);
        self.writers.fetch_add(1, AcqRel);
        self.sleep[me].fetch_add(1, Relaxed);
        if r.producer_fence {
            fence(SeqCst);
        }
        let go_on = (r.looks_again && self.has_room()) || (r.looks_at_name && !self.is_named(me));
        if go_on {
            self.wakes_up(me, r);
        }
        !go_on
    }

    fn wakes_up(&self, me: usize, r: Rules) {
        self.sleep[me].fetch_add(1, Relaxed);
        if self.writers.fetch_sub(1, AcqRel) > 1 && r.passes_on {
            fence(SeqCst);
            if self.sleep[1 - me].load(Relaxed) & 1 != 0 {
                self.eventfd[1 - me].ring();
            }
        }
    }
}

/// `interrupted`: the first writer is ended by a signal as soon as it sleeps.
fn model(r: Rules, writers: u32, interrupted: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let dir = Arc::new(Dir {
            head: AtomicU32::new(SIZE),
            tail: AtomicU32::new(0),
            space: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            sleep: [AtomicU32::new(0), AtomicU32::new(0)],
            eventfd: [EventFd::new(), EventFd::new()],
        });
        let consumer = {
            let dir = dir.clone();
            thread::spawn(move || (1..=r.takes).for_each(|tail| dir.take_one(tail, r)))
        };
        let second = (writers == 2).then(|| {
            let dir = dir.clone();
            thread::spawn(move || dir.wait_for_room(1, r))
        });
        let mut asleep = [dir.wait_for_room(0, r), false];
        if asleep[0] && interrupted {
            asleep[0] = false;
            dir.wakes_up(0, r);
        }
        if let Some(second) = second {
            asleep[1] = second.join().unwrap();
        }
        consumer.join().unwrap();
        // Whoever is rung wakes up, and may ring the other.
        for me in [0, 1, 0] {
            if asleep[me] && dir.eventfd[me].wakes() {
                asleep[me] = false;
                dir.wakes_up(me, r);
            }
        }
        assert_eq!(asleep, [false; 2], "a writer sleeps beside a ring with room");
    }
}

#[test]
fn no_wake_up_is_lost() {
    holds(model(AS_IT_IS, 1, false));
}

#[test]
fn two_writers() {
    holds(model(AS_IT_IS, 2, false));
    holds(model(AS_IT_IS, 2, true));
}

#[test]
fn a_fence_now_and_then() {
    holds(model(NOW_AND_THEN, 1, false));
    holds(model(NOW_AND_THEN, 2, false));
    holds(model(NOW_AND_THEN, 2, true));
}

#[test]
fn too_seldom_a_fence() {
    let r = Rules { step: 2 * SIZE, ..NOW_AND_THEN };
    breaks("fence within what is unread", model(r, 1, false));
}

#[test]
fn without_the_producers_fence() {
    let r = Rules { producer_fence: false, ..AS_IT_IS };
    breaks("producer's fence", model(r, 1, false));
}

#[test]
fn without_the_consumers_fence() {
    let r = Rules { consumer_fence: false, ..AS_IT_IS };
    breaks("consumer's fence", model(r, 1, false));
}

#[test]
fn without_the_second_look() {
    let r = Rules { looks_again: false, ..AS_IT_IS };
    breaks("second look", model(r, 1, false));
}

#[test]
fn two_writers_without_passing_on() {
    let r = Rules { passes_on: false, ..AS_IT_IS };
    breaks("pass on", model(r, 2, false));
}

#[test]
fn two_writers_that_trust_the_others_name() {
    let r = Rules { looks_at_name: false, ..AS_IT_IS };
    breaks("look at the name", model(r, 2, true));
}
