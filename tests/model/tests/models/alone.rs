//! (b3) Several waiters of one socket (`engine/kernel.rs: arm_for, settle, tidy`): one is woken by name
//! only while it is alone; else by the doorbell byte, which stays until the ring is empty.

use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use smcr_model::kernel::{Byte, EventFd, Queue};
use smcr_model::{breaks, holds};

const EACH: u32 = 4;
/// Names of the two waiters.
const NAMES: [u32; 2] = [0x10, 0x11];

#[derive(Clone, Copy)]
struct Rule {
    /// A waiter counts itself before it arms, and is named only if it is the only one counted.
    counts: bool,
    /// While the word is EACH, doorbells are taken off only if the ring is empty.
    leaves: bool,
    /// A waiter looks at the ring once more before it sleeps.
    looks: bool,
}

const RIGHT: Rule = Rule { counts: true, leaves: true, looks: true };

struct Sock {
    /// The receiving lock; below it what was taken out of the ring and of the queue.
    lock: Mutex<(u32, u32)>,
    waiters: AtomicU32,
    head: AtomicU32,
    word: AtomicU32,
    sleep: [AtomicU32; 2],
    eventfd: [EventFd; 2],
    bells: AtomicU32,
    queue: Queue,
}

impl Sock {
    fn new() -> Arc<Sock> {
        Arc::new(Sock {
            lock: Mutex::default(),
            waiters: AtomicU32::new(0),
            head: AtomicU32::new(0),
            word: AtomicU32::new(EACH),
            sleep: std::array::from_fn(|_| AtomicU32::new(0)),
            eventfd: std::array::from_fn(|_| EventFd::new()),
            bells: AtomicU32::new(0),
            queue: Queue::new(),
        })
    }

    fn publish(&self, head: u32) {
        self.head.store(head, Release);
        fence(SeqCst);
        match self.word.load(Relaxed) {
            EACH => {
                self.queue.send(Byte::Doorbell);
                self.bells.fetch_add(1, Release);
            }
            name => {
                let n = (name - NAMES[0]) as usize;
                if self.sleep[n].load(Relaxed) & 1 != 0 {
                    self.eventfd[n].ring();
                }
            }
        }
    }

    fn take(&self, taken: &mut (u32, u32), due: u32) {
        taken.1 += self.queue.take((due - taken.1) as usize).len() as u32;
    }

    fn settle(&self, taken: &mut (u32, u32), r: Rule) {
        let due = self.bells.load(Acquire);
        self.word.swap(EACH, Relaxed);
        fence(SeqCst);
        if !r.leaves || self.head.load(Acquire) == taken.0 {
            self.take(taken, due);
        }
    }

    /// True: sleeps.
    fn lie_down(&self, me: usize, r: Rule) -> bool {
        let others = if r.counts { self.waiters.fetch_add(1, Relaxed) } else { 0 };
        let mut taken = self.lock.lock().unwrap();
        let alone = !r.counts || others == 0 && self.waiters.load(Relaxed) == 1;
        if alone {
            let due = self.bells.load(Acquire);
            self.take(&mut taken, due);
            self.word.swap(NAMES[me], Relaxed);
            fence(SeqCst);
        } else {
            self.settle(&mut taken, r);
        }
        let read = taken.0;
        drop(taken);
        self.sleep[me].fetch_add(1, Relaxed);
        fence(SeqCst);
        if r.looks && self.head.load(Acquire) != read {
            self.get_up(me, r);
            return false;
        }
        true
    }

    fn get_up(&self, me: usize, r: Rule) {
        self.sleep[me].fetch_add(1, Relaxed);
        if r.counts {
            self.waiters.fetch_sub(1, Relaxed);
        }
    }

    /// What a waiter that the kernel woke does before it reports or reads.
    fn tidy(&self, r: Rule) {
        let mut taken = self.lock.lock().unwrap();
        if self.word.load(Relaxed) == EACH {
            self.settle(&mut taken, r);
        }
    }

    fn wakes(&self, me: usize) -> bool {
        !self.queue.is_empty() || self.eventfd[me].wakes()
    }
}

/// The second waiter lies down, is ended by a signal, perhaps comes again, and goes away; data arrives
/// meanwhile or later. The first must be woken.
fn one_goes_away(r: Rule, again: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let sock = Sock::new();
        let second = {
            let sock = sock.clone();
            thread::spawn(move || {
                for _ in 0..=u32::from(again) {
                    if sock.lie_down(1, r) {
                        sock.get_up(1, r);
                    }
                }
            })
        };
        let asleep = sock.lie_down(0, r);
        second.join().unwrap();
        sock.publish(1);
        assert!(!asleep || sock.wakes(0), "a waiter sleeps and another is named");
    }
}

/// Two waiters lie down while data arrives. Whoever is woken looks at the kernel's queue and does not
/// read: the other one must be told all the same.
fn both_are_told(r: Rule) -> impl Fn() + Sync + Send + 'static {
    move || {
        let sock = Sock::new();
        let producer = {
            let sock = sock.clone();
            thread::spawn(move || sock.publish(1))
        };
        let second = {
            let sock = sock.clone();
            thread::spawn(move || sock.lie_down(1, r))
        };
        let first = sock.lie_down(0, r);
        producer.join().unwrap();
        let second = second.join().unwrap();
        if second {
            assert!(sock.wakes(1), "the second is not told");
            sock.tidy(r);
        }
        assert!(!first || sock.wakes(0), "the first is not told");
    }
}

#[test]
fn a_waiter_that_stays() {
    holds(one_goes_away(RIGHT, false));
}

#[test]
fn a_waiter_that_stays_while_another_comes_again() {
    holds(one_goes_away(RIGHT, true));
}

#[test]
fn two_waiters() {
    holds(both_are_told(RIGHT));
}

/// Each names itself, whoever else is there.
#[test]
fn waiters_that_do_not_count() {
    let r = Rule { counts: false, ..RIGHT };
    breaks("count", one_goes_away(r, false));
    breaks("count", both_are_told(r));
}

/// The one that was woken takes the byte off although there is something to read.
#[test]
fn a_waiter_that_takes_the_byte_along() {
    breaks("leave the byte", both_are_told(Rule { leaves: false, ..RIGHT }));
}

#[test]
fn waiters_that_do_not_look_again() {
    breaks("second look", both_are_told(Rule { looks: false, ..RIGHT }));
}
