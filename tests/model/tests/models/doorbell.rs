//! (a) The doorbell word with the TCP byte: publish, arm, ring, drain (`engine/bell.rs`).
//!
//! The consumer reads until the ring is empty, takes the doorbells off that it knows of, arms, looks
//! once more and sleeps on the kernel's queue. If it sleeps in the end, there is nothing to read.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::thread;
use smcr_model::kernel::{Byte, Queue};
use smcr_model::{breaks, holds};

pub(super) const ARMED: u32 = 1;
const RINGING: u32 = 2;
const RUNG: u32 = 3;

/// What is left as it is, or weakened.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    producer_fence: bool,
    consumer_fence: bool,
    /// The consumer looks again after it has armed.
    looks_again: bool,
    /// The producer says RUNG only if it still says RINGING.
    rung_by_exchange: bool,
    /// Doorbells are counted before they are sent.
    counts_first: bool,
    /// Two threads ring: the sender, and one that calls the peer.
    second_ringer: bool,
}

pub(super) const AS_IT_IS: Rules =
    Rules { producer_fence: true, consumer_fence: true, looks_again: true, rung_by_exchange: true, counts_first: false, second_ringer: false };

pub(super) struct Dir {
    pub head: AtomicU32,
    pub bell: AtomicU32,
    pub bells: AtomicU32,
    pub queue: Queue,
}

impl Dir {
    pub fn new() -> Arc<Dir> {
        Arc::new(Dir { head: AtomicU32::new(0), bell: AtomicU32::new(ARMED), bells: AtomicU32::new(0), queue: Queue::new() })
    }

    pub fn publish(&self, head: u32, r: Rules) {
        self.head.store(head, Release);
        if r.producer_fence {
            fence(SeqCst);
        }
        self.ring(r);
    }

    fn ring(&self, r: Rules) {
        if self.bell.load(Relaxed) == ARMED && self.bell.compare_exchange(ARMED, RINGING, AcqRel, Relaxed).is_ok() {
            if r.counts_first {
                self.bells.fetch_add(1, Release);
            }
            self.queue.send(Byte::Doorbell);
            if !r.counts_first {
                self.bells.fetch_add(1, Release);
            }
            if r.rung_by_exchange {
                let _ = self.bell.compare_exchange(RINGING, RUNG, AcqRel, Relaxed);
            } else {
                self.bell.store(RUNG, Relaxed);
            }
        }
    }

    /// Reads and sleeps; returns (bytes read, doorbells taken, asleep).
    fn consume(&self, r: Rules, wakes: u32) -> (u32, u32, bool) {
        let (mut tail, mut taken) = (0, 0);
        for _ in 0..=wakes {
            tail = self.head.load(Acquire);
            let due = self.bells.load(Acquire) - taken;
            let got = self.queue.take(due as usize).len() as u32;
            // A byte that is counted is there.
            assert_eq!(got, due, "the consumer expects a byte that was not sent");
            taken += got;
            // A plain store in the library. loom does not place a store between the exchanges of
            // another thread; as an exchange it has the place that the store would have.
            self.bell.swap(ARMED, Relaxed);
            if r.consumer_fence {
                fence(SeqCst);
            }
            if r.looks_again && self.head.load(Acquire) != tail {
                continue;
            }
            if self.queue.is_empty() {
                return (tail, taken, true);
            }
        }
        (tail, taken, false)
    }
}

fn model(r: Rules, messages: u32) -> impl Fn() + Sync + Send + 'static {
    move || {
        let dir = Dir::new();
        let producer = {
            let dir = dir.clone();
            thread::spawn(move || (1..=messages).for_each(|head| dir.publish(head, r)))
        };
        let caller = r.second_ringer.then(|| {
            let dir = dir.clone();
            thread::spawn(move || {
                fence(SeqCst);
                dir.ring(r);
            })
        });
        let (tail, taken, asleep) = dir.consume(r, 2);
        producer.join().unwrap();
        if let Some(caller) = caller {
            caller.join().unwrap();
        }
        if asleep && dir.head.load(Acquire) != tail {
            assert!(!dir.queue.is_empty(), "sleeps with data in the ring and no doorbell");
        }
        let sent = dir.bells.load(Acquire);
        assert_eq!(dir.queue.len() as u32, sent - taken, "every doorbell is counted");
    }
}

#[test]
fn no_wake_up_is_lost() {
    holds(model(AS_IT_IS, 2));
}

#[test]
fn two_threads_may_ring() {
    holds(model(Rules { second_ringer: true, ..AS_IT_IS }, 1));
}

#[test]
fn without_the_producers_fence() {
    breaks("producer's fence", model(Rules { producer_fence: false, ..AS_IT_IS }, 2));
}

#[test]
fn without_the_consumers_fence() {
    breaks("consumer's fence", model(Rules { consumer_fence: false, ..AS_IT_IS }, 2));
}

#[test]
fn without_the_second_look() {
    breaks("second look", model(Rules { looks_again: false, ..AS_IT_IS }, 2));
}

/// The consumer armed again between the byte and RUNG: its ARMED must not be overwritten.
#[test]
fn rung_by_a_plain_store() {
    breaks("RUNG by store", model(Rules { rung_by_exchange: false, ..AS_IT_IS }, 2));
}

/// Counted before it is sent, a doorbell may be expected that is not there: payload would be taken
/// for it.
#[test]
fn counted_before_it_is_sent() {
    breaks("count first", model(Rules { counts_first: true, ..AS_IT_IS }, 2));
}
