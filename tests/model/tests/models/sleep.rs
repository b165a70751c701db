//! (b) The sleep word of a waiter: named in the doorbell word, rung once per sleep
//! (`transport/waiters.rs`, `engine/bell.rs: ring_waiter`).

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::thread;
use smcr_model::kernel::EventFd;
use smcr_model::{breaks, holds};

#[derive(Clone, Copy)]
struct Rules {
    producer_fence: bool,
    consumer_fence: bool,
    /// Each sleep has a number of its own.
    numbered: bool,
    /// The number of the sleep that was rung is noted (else every publication in one sleep rings).
    once: bool,
    /// There is a note for each waiter, so that another one's sleep with the same count is another sleep.
    apart: bool,
}

const AS_IT_IS: Rules = Rules { producer_fence: true, consumer_fence: true, numbered: true, once: true, apart: true };

/// Beside the number of a sleep: its ring may be kept.
const LENIENT: u32 = 1 << 31;

struct Waiter {
    word: AtomicU32,
    eventfd: EventFd,
}

impl Waiter {
    fn new(word: u32) -> Waiter {
        Waiter { word: AtomicU32::new(word), eventfd: EventFd::new() }
    }

    fn fall_asleep(&self, r: Rules) {
        self.fall_asleep_as(0, r);
    }

    /// `how`: 0 or [`LENIENT`], which is no part of the number.
    fn fall_asleep_as(&self, how: u32, r: Rules) {
        self.word.store(self.word.load(Relaxed) | 1 | how, Relaxed);
        if r.consumer_fence {
            fence(SeqCst);
        }
    }

    fn wake_up(&self, r: Rules) {
        let v = self.word.load(Relaxed) & !LENIENT;
        let next = if r.numbered { v + 1 } else { v & !1 };
        self.word.store(next, Relaxed);
    }
}

struct Dir {
    head: AtomicU32,
    /// Which waiter is named.
    named: AtomicU32,
}

impl Dir {
    fn new() -> Dir {
        Dir { head: AtomicU32::new(0), named: AtomicU32::new(0) }
    }
}

/// What the ringing process has noted.
type Rung = [AtomicU32; 2];

fn nothing_rung() -> Rung {
    [AtomicU32::new(0), AtomicU32::new(0)]
}

/// Rings this sleep, and then notes it.
fn ring(w: &Waiter, note: &AtomicU32, sleep: u32) {
    w.eventfd.ring();
    note.store(sleep, Relaxed);
}

/// Stores the cursor, before the look at a sleep word.
fn store_head(dir: &Dir, head: u32, r: Rules) {
    dir.head.store(head, Release);
    if r.producer_fence {
        fence(SeqCst);
    }
}

/// Publishes in one ring; returns how many eventfds were written.
fn publish(dir: &Dir, waiters: &[Waiter; 2], rung: &Rung, head: u32, r: Rules) -> u32 {
    store_head(dir, head, r);
    let who = dir.named.load(Relaxed) as usize;
    let sleep = waiters[who].word.load(Relaxed);
    let note = &rung[if r.apart { who } else { 0 }];
    if sleep & 1 == 0 || (r.once && note.load(Relaxed) == sleep) {
        return 0;
    }
    ring(&waiters[who], note, sleep);
    1
}

/// Publishes so many messages; how often it rings.
fn producer(shared: &Arc<(Dir, [Waiter; 2])>, messages: u32, r: Rules) -> thread::JoinHandle<u32> {
    let shared = shared.clone();
    thread::spawn(move || {
        let (dir, waiters) = &*shared;
        let rung = nothing_rung();
        (1..=messages).map(|head| publish(dir, waiters, &rung, head, r)).sum()
    })
}

/// The consumer reads and sleeps, up to `sleeps` times, as waiter 0 and then, if `other`, as
/// waiter 1. In the end either it runs or nothing is left to read or it will be woken.
fn model(r: Rules, messages: u32, other: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Arc::new((Dir::new(), [Waiter::new(0), Waiter::new(0)]));
        let producer = producer(&shared, messages, r);
        let (dir, waiters) = &*shared;
        let (mut tail, mut who, mut asleep, mut sleeps) = (0, 0, false, 0);
        for round in 0..3 {
            if other && round == 1 {
                who = 1;
                dir.named.store(1, Relaxed);
            }
            tail = dir.head.load(Acquire);
            let w = &waiters[who];
            w.fall_asleep(r);
            sleeps += 1;
            if dir.head.load(Acquire) != tail {
                w.wake_up(r);
                continue;
            }
            if !w.eventfd.wakes() {
                asleep = true;
                break;
            }
            w.wake_up(r);
        }
        let rings = producer.join().unwrap();
        if asleep && dir.head.load(Acquire) != tail {
            assert!(waiters[who].eventfd.wakes(), "sleeps with data in the ring, not rung");
        }
        assert!(rings <= sleeps, "more than one ring for a sleep");
    }
}

/// Two connections of one waiter, their producers two threads of one process: a ring for one of them is one
/// for both.
fn model_of_two(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Arc::new(([Dir::new(), Dir::new()], [Waiter::new(0), Waiter::new(0)], nothing_rung()));
        let producers = [0, 1].map(|i| {
            let shared = shared.clone();
            thread::spawn(move || {
                let (dirs, waiters, rung) = &*shared;
                publish(&dirs[i], waiters, rung, 1, r);
            })
        });
        let (dirs, [w, _], _) = &*shared;
        let look = || [0, 1].map(|i: usize| dirs[i].head.load(Acquire));
        let (mut seen, mut asleep) = ([0, 0], false);
        for _ in 0..2 {
            seen = look();
            w.fall_asleep(r);
            if look() == seen && !w.eventfd.wakes() {
                asleep = true;
                break;
            }
            w.wake_up(r);
        }
        for p in producers {
            p.join().unwrap();
        }
        if asleep && look() != seen {
            assert!(w.eventfd.wakes(), "sleeps with data in a ring, not rung");
        }
    }
}

/// A thread takes what it was rung before its next sleep, and not when it wakes (`engine/waiter.rs: hear_later`). `first`: before its word
/// says that it sleeps.
fn model_of_late_hearing(first: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Arc::new((Dir::new(), [Waiter::new(0), Waiter::new(0)]));
        let producer = producer(&shared, 2, AS_IT_IS);
        let (dir, [w, _]) = &*shared;
        let (mut tail, mut asleep) = (0, false);
        for _ in 0..3 {
            tail = dir.head.load(Acquire);
            if first {
                w.eventfd.clear();
            }
            w.fall_asleep(AS_IT_IS);
            if dir.head.load(Acquire) == tail {
                if !first {
                    w.eventfd.clear();
                }
                if !w.eventfd.is_rung() {
                    asleep = true;
                    break;
                }
            }
            w.wake_up(AS_IT_IS);
        }
        producer.join().unwrap();
        if asleep && dir.head.load(Acquire) != tail {
            assert!(w.eventfd.is_rung(), "sleeps with data in the ring, not rung");
        }
    }
}

/// Two producers of one process, the first on the sleeper's processor, which keeps the ring of a lenient sleep (`engine/kept.rs`). `gives`: it
/// comes back, and rings what sleeps as it did; else it never does, and its own message may wait for the sleeper's bound, which is not here.
/// `noted`: a ring that is kept counts as one that was rung.
fn model_of_kept(gives: bool, noted: bool, r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let shared = Arc::new(([Dir::new(), Dir::new()], [Waiter::new(0), Waiter::new(0)], nothing_rung()));
        let keeper = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (dirs, [w, _], rung) = &*shared;
                store_head(&dirs[0], 1, r);
                let sleep = w.word.load(Relaxed);
                let keeps = sleep & LENIENT != 0;
                if keeps && noted {
                    rung[0].store(sleep, Relaxed);
                }
                // At once, or later, where it still sleeps so.
                let rings = if keeps { gives && w.word.load(Relaxed) == sleep } else { sleep & 1 != 0 && rung[0].load(Relaxed) != sleep };
                if rings {
                    ring(w, &rung[0], sleep);
                }
            })
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (dirs, waiters, rung) = &*shared;
                publish(&dirs[1], waiters, rung, 1, r);
            })
        };
        let (dirs, [w, _], _) = &*shared;
        let look = || [0, 1].map(|i: usize| dirs[i].head.load(Acquire));
        let (mut seen, mut asleep) = ([0, 0], false);
        for round in 0..2 {
            seen = look();
            w.fall_asleep_as(if round == 0 { LENIENT } else { 0 }, r);
            if look() == seen && !w.eventfd.wakes() {
                asleep = true;
                break;
            }
            w.wake_up(r);
        }
        keeper.join().unwrap();
        other.join().unwrap();
        let now = look();
        if asleep && (now[1] != seen[1] || gives && now[0] != seen[0]) {
            assert!(w.eventfd.wakes(), "sleeps with data in a ring, not rung");
        }
    }
}

#[test]
fn no_wake_up_is_lost_beside_a_kept_ring() {
    holds(model_of_kept(true, false, AS_IT_IS));
    holds(model_of_kept(false, false, AS_IT_IS));
}

#[test]
fn a_kept_ring_noted_as_rung() {
    breaks("noting it when it is rung", model_of_kept(false, true, AS_IT_IS));
}

#[test]
fn a_kept_ring_without_the_producers_fence() {
    breaks("producer's fence", model_of_kept(true, false, Rules { producer_fence: false, ..AS_IT_IS }));
}

#[test]
fn no_wake_up_is_lost_by_late_hearing() {
    holds(model_of_late_hearing(true));
}

#[test]
fn late_hearing_behind_the_word() {
    breaks("hearing first", model_of_late_hearing(false));
}

#[test]
fn no_wake_up_of_two_connections_is_lost() {
    holds(model_of_two(AS_IT_IS));
}

#[test]
fn two_connections_without_numbers() {
    breaks("numbered sleeps", model_of_two(Rules { numbered: false, ..AS_IT_IS }));
}

#[test]
fn no_wake_up_is_lost() {
    holds(model(AS_IT_IS, 2, false));
}

#[test]
fn no_wake_up_is_lost_when_another_waiter_takes_over() {
    holds(model(AS_IT_IS, 2, true));
}

#[test]
fn without_the_producers_fence() {
    breaks("producer's fence", model(Rules { producer_fence: false, ..AS_IT_IS }, 2, false));
}

#[test]
fn without_the_consumers_fence() {
    breaks("consumer's fence", model(Rules { consumer_fence: false, ..AS_IT_IS }, 2, false));
}

/// The second sleep looks like the first, which was rung already.
#[test]
fn without_numbers() {
    breaks("numbered sleeps", model(Rules { numbered: false, ..AS_IT_IS }, 2, false));
}

/// The sleep of the second waiter carries the count of the first one's.
#[test]
fn without_a_note_for_each_waiter() {
    breaks("notes apart", model(Rules { apart: false, ..AS_IT_IS }, 2, true));
}

#[test]
fn without_once_per_sleep() {
    breaks("once", model(Rules { once: false, ..AS_IT_IS }, 2, false));
}
