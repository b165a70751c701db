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
    /// The number of the sleep that was rung is noted before the eventfd is written...
    /// (else every publication in one sleep rings).
    once: bool,
    /// The waiter's number is mixed into what is noted, so that another waiter's sleep with the same
    /// count is another sleep.
    mixed: bool,
}

const AS_IT_IS: Rules = Rules {
    producer_fence: true,
    consumer_fence: true,
    numbered: true,
    once: true,
    mixed: true,
};

struct Waiter {
    word: AtomicU32,
    eventfd: EventFd,
}

impl Waiter {
    fn new(word: u32) -> Waiter {
        Waiter {
            word: AtomicU32::new(word),
            eventfd: EventFd::new(),
        }
    }

    fn fall_asleep(&self, r: Rules) {
        self.word.store(self.word.load(Relaxed) | 1, Relaxed);
        if r.consumer_fence {
            fence(SeqCst);
        }
    }

    fn wake_up(&self, r: Rules) {
        let v = self.word.load(Relaxed);
        let next = if r.numbered { v + 1 } else { v & !1 };
        self.word.store(next, Relaxed);
    }
}

struct Dir {
    head: AtomicU32,
    /// Which waiter is named.
    named: AtomicU32,
    waiters: [Waiter; 2],
}

fn publish(dir: &Dir, rung: &mut u32, head: u32, r: Rules) -> u32 {
    dir.head.store(head, Release);
    if r.producer_fence {
        fence(SeqCst);
    }
    let who = dir.named.load(Relaxed) as usize;
    let sleep = dir.waiters[who].word.load(Relaxed);
    let this = if r.mixed {
        sleep | (who as u32) << 16
    } else {
        sleep
    };
    if sleep & 1 == 0 || (r.once && *rung == this) {
        return 0;
    }
    *rung = this;
    dir.waiters[who].eventfd.ring();
    1
}

/// The consumer reads and sleeps, up to `sleeps` times, as waiter 0 and then, if `other`, as
/// waiter 1. In the end either it runs or nothing is left to read or it will be woken.
fn model(r: Rules, messages: u32, other: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let dir = Arc::new(Dir {
            head: AtomicU32::new(0),
            named: AtomicU32::new(0),
            waiters: [Waiter::new(0), Waiter::new(0)],
        });
        let producer = {
            let dir = dir.clone();
            thread::spawn(move || {
                let mut rung = 0;
                (1..=messages)
                    .map(|head| publish(&dir, &mut rung, head, r))
                    .sum::<u32>()
            })
        };
        let (mut tail, mut who, mut asleep, mut sleeps) = (0, 0, false, 0);
        for round in 0..3 {
            if other && round == 1 {
                who = 1;
                dir.named.store(1, Relaxed);
            }
            tail = dir.head.load(Acquire);
            let w = &dir.waiters[who];
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
            assert!(
                dir.waiters[who].eventfd.wakes(),
                "sleeps with data in the ring, not rung"
            );
        }
        assert!(rings <= sleeps, "more than one ring for a sleep");
    }
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
    breaks(
        "producer's fence",
        model(
            Rules {
                producer_fence: false,
                ..AS_IT_IS
            },
            2,
            false,
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
                ..AS_IT_IS
            },
            2,
            false,
        ),
    );
}

/// The second sleep looks like the first, which was rung already.
#[test]
fn without_numbers() {
    breaks(
        "numbered sleeps",
        model(
            Rules {
                numbered: false,
                ..AS_IT_IS
            },
            2,
            false,
        ),
    );
}

/// The sleep of the second waiter carries the count of the first one's.
#[test]
fn without_the_waiters_number() {
    breaks(
        "mixed number",
        model(
            Rules {
                mixed: false,
                ..AS_IT_IS
            },
            2,
            true,
        ),
    );
}

#[test]
fn without_once_per_sleep() {
    breaks(
        "once",
        model(
            Rules {
                once: false,
                ..AS_IT_IS
            },
            2,
            false,
        ),
    );
}
