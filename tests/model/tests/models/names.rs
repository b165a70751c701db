//! (n) Names that not every process at the other end knows: a producer names its waiter for room, while the consumer forks a
//! child that can't read the channel (`engine/room.rs: name_writer`, `bell.rs: before_fork, learn_before_fork, after_consume`), or
//! becomes another user and knows none any more (`bell.rs: no_names`, `transport/kin.rs: part`); and a receiver on TCP that names
//! itself, while its peer comes to want something (`room.rs: be_callable`, `bell.rs: call`).
//!
//! The channel is a relaxed word: nothing is asked of the kernel's own order.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::thread;
use smcr_model::kernel::EventFd;
use smcr_model::{breaks, holds};

const NAME: u32 = 1;

#[derive(Clone, Copy)]
struct Rules {
    producer_fence: bool,
    consumer_fence: bool,
    /// The mark is stored before the channel is emptied.
    mark_first: bool,
    /// The producer looks at the mark, and once more for room or for the wish.
    looks_at_mark: bool,
    looks_again: bool,
    /// Who leaves rings all that it knew.
    rings_all: bool,
}

const AS_IT_IS: Rules =
    Rules { producer_fence: true, consumer_fence: true, mark_first: true, looks_at_mark: true, looks_again: true, rings_all: true };

#[derive(Default)]
struct Both {
    channel: AtomicU32,
    space: AtomicU32,
    forked_at: AtomicU32,
    tail: AtomicU32,
    ctl: AtomicU32,
    eventfd: EventFd,
}

fn full(there: bool) {
    if there {
        fence(SeqCst);
    }
}

/// Names itself; true if it sleeps by that name then.
fn goes_to_sleep(both: &Both, r: Rules) -> bool {
    both.channel.store(NAME, Relaxed);
    both.space.store(NAME, Relaxed);
    full(r.producer_fence);
    if r.looks_at_mark && both.forked_at.load(Relaxed) != 0 {
        return false; // looks by itself, in time
    }
    !r.looks_again || both.tail.load(Relaxed) == 0 && both.ctl.load(Relaxed) == 0
}

fn run(r: Rules, other: impl FnOnce(&Both) + Send + 'static) {
    let both = Arc::new(Both::default());
    let consumer = {
        let both = both.clone();
        thread::spawn(move || other(&both))
    };
    let sleeps = goes_to_sleep(&both, r);
    consumer.join().unwrap();
    assert!(!sleeps || both.eventfd.wakes(), "asleep, and nobody rings");
}

fn forks(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        run(r, move |both| {
            let mark = || {
                both.forked_at.store(1, Relaxed);
                full(r.consumer_fence);
            };
            if r.mark_first {
                mark();
            }
            let known = both.channel.load(Relaxed) == NAME;
            if !r.mark_first {
                mark();
            }
            // The child, which knows what its parent knew, takes the bytes.
            both.tail.store(1, Release);
            full(r.consumer_fence);
            if both.space.load(Relaxed) == NAME && known {
                both.eventfd.ring();
            }
        });
    }
}

/// The process knew the name, and knows none now.
fn leaves(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        run(r, move |both| {
            both.forked_at.store(1, Relaxed);
            full(r.consumer_fence);
            if r.rings_all {
                both.eventfd.ring();
            }
            both.tail.store(1, Release);
        });
    }
}

fn is_called(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        run(r, move |both| {
            both.ctl.fetch_or(1, AcqRel);
            full(r.consumer_fence);
            if both.space.load(Relaxed) == NAME {
                both.eventfd.ring();
            }
        });
    }
}

#[test]
fn a_consumer_forks() {
    holds(forks(AS_IT_IS));
}

#[test]
fn a_consumer_forks_without_its_fence() {
    breaks("fence before the channel is emptied", forks(Rules { consumer_fence: false, ..AS_IT_IS }));
}

#[test]
fn a_consumer_forks_without_the_producers_fence() {
    breaks("fence of who names itself", forks(Rules { producer_fence: false, ..AS_IT_IS }));
}

#[test]
fn a_consumer_forks_and_marks_last() {
    breaks("the mark before the channel", forks(Rules { mark_first: false, ..AS_IT_IS }));
}

#[test]
fn a_consumer_forks_and_the_mark_is_not_looked_at() {
    breaks("look at the mark", forks(Rules { looks_at_mark: false, ..AS_IT_IS }));
}

#[test]
fn a_consumer_leaves() {
    holds(leaves(AS_IT_IS));
}

#[test]
fn a_consumer_leaves_and_rings_nobody() {
    breaks("rings all", leaves(Rules { rings_all: false, ..AS_IT_IS }));
}

#[test]
fn a_receiver_is_called() {
    holds(is_called(AS_IT_IS));
}

#[test]
fn a_receiver_is_called_without_its_fence() {
    breaks("fence of who names itself", is_called(Rules { producer_fence: false, ..AS_IT_IS }));
}

#[test]
fn a_receiver_is_called_without_the_callers_fence() {
    breaks("fence of who calls", is_called(Rules { consumer_fence: false, ..AS_IT_IS }));
}

#[test]
fn a_receiver_is_called_and_does_not_look() {
    breaks("look at the wish", is_called(Rules { looks_again: false, ..AS_IT_IS }));
}
