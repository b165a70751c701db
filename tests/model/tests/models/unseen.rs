//! (c) The rule of the unseen waiter: while a waiter may exist that the library never sees, the word
//! is EACH, ARMED, RINGING or RUNG, so a waiter that looks at the kernel's queue alone never sleeps with
//! data in the ring.
//!
//! The waiter is a raw poll (level) or a raw edge-triggered epoll; reads go through the library.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::thread;
use smcr_model::kernel::{Byte, Queue};
use smcr_model::{breaks, holds};

const LOOKING: u32 = 0;
const ARMED: u32 = 1;
const RINGING: u32 = 2;
const RUNG: u32 = 3;
const EACH: u32 = 4;

/// When a read of the library arms.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// When it has emptied the ring, and before it returns EAGAIN.
    Empty,
    /// As `Empty`, but not while the word asks for each arrival and no doorbell is counted as unread.
    Unasked,
    /// As `Empty`, but not while no doorbell is counted as unread, whatever the word.
    Counted,
    /// Only before it returns EAGAIN.
    Eagain,
}

/// How it arms.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Counts the doorbells, arms, looks again; takes the counted ones off if there is nothing.
    TakesLast,
    /// Takes the doorbells off, arms, looks again.
    TakesFirst,
    /// Arms and takes the doorbells off without a second look.
    Blindly,
    /// Takes the doorbells off and says "the consumer looks by itself", as a seen one may.
    Disarms,
}

/// How the program waits.
#[derive(Clone, Copy, PartialEq)]
enum Wait {
    Level,
    /// Edge-triggered, and a short read is taken for "drained" (epoll(7), question 9).
    Edge,
}

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
        let word = self.bell.load(Relaxed);
        if word == EACH {
            self.queue.send(Byte::Doorbell);
            self.bells.fetch_add(1, Release);
        } else if word == ARMED && self.bell.compare_exchange(ARMED, RINGING, AcqRel, Relaxed).is_ok() {
            self.queue.send(Byte::Doorbell);
            self.bells.fetch_add(1, Release);
            let _ = self.bell.compare_exchange(RINGING, RUNG, AcqRel, Relaxed);
        }
    }
}

struct Reader {
    dir: Arc<Dir>,
    tail: u32,
    taken: u32,
    when: When,
    how: How,
    /// ARMED asks for one byte, EACH for one at every arrival.
    asks: u32,
    /// It has asked.
    asked: bool,
}

impl Reader {
    fn due(&self) -> u32 {
        self.dir.bells.load(Acquire) - self.taken
    }

    fn take(&mut self, due: u32) {
        self.taken += self.dir.queue.take(due as usize).len() as u32;
    }

    /// True: something has come meanwhile.
    fn arm(&mut self) -> bool {
        let due = self.due();
        if self.how != How::TakesLast {
            self.take(due);
        }
        let word = if self.how == How::Disarms { LOOKING } else { self.asks };
        self.asked = true;
        self.dir.bell.swap(word, Relaxed);
        fence(SeqCst);
        if self.how != How::Blindly && self.dir.head.load(Acquire) != self.tail {
            return true;
        }
        if self.how == How::TakesLast {
            // Those that were counted before: what rings from here on stays.
            self.take(due);
        }
        false
    }

    /// A non-blocking read of at most `n` messages; 0 is EAGAIN.
    fn read(&mut self, n: u32) -> u32 {
        let mut got = 0;
        loop {
            let head = self.dir.head.load(Acquire);
            let part = (head - self.tail).min(n - got);
            self.tail += part;
            got += part;
            let arms = match self.when {
                When::Empty => true,
                When::Unasked => !self.asked || self.due() != 0,
                When::Counted => self.due() != 0,
                When::Eagain => false,
            };
            if head != self.tail || (got > 0 && !arms) {
                return got;
            }
            if !self.arm() || got == n {
                return got;
            }
        }
    }
}

/// The program reads up to `n` messages at a time; what it does in between is its way of waiting.
fn model(asks: u32, when: When, how: How, wait: Wait, n: u32, messages: u32) -> impl Fn() + Sync + Send + 'static {
    move || {
        let dir = Arc::new(Dir { head: AtomicU32::new(0), bell: AtomicU32::new(ARMED), bells: AtomicU32::new(0), queue: Queue::new() });
        let producer = {
            let dir = dir.clone();
            thread::spawn(move || (1..=messages).for_each(|head| dir.publish(head)))
        };
        let mut reader = Reader { dir: dir.clone(), tail: 0, taken: 0, when, how, asks, asked: false };
        let mut seen = 0;
        // Each round: the waiter finds something, or sleeps for good.
        let mut asleep = false;
        for _ in 0..=messages {
            let arrivals = dir.queue.arrivals();
            asleep = match wait {
                Wait::Level => dir.queue.is_empty(),
                Wait::Edge => arrivals == seen,
            };
            if asleep {
                break;
            }
            seen = arrivals;
            match wait {
                Wait::Level => {
                    reader.read(n);
                }
                // Until a short read.
                Wait::Edge => while reader.read(n) == n {},
            }
        }
        let before = seen;
        producer.join().unwrap();
        if asleep && dir.head.load(Acquire) != reader.tail {
            let woken = match wait {
                Wait::Level => !dir.queue.is_empty(),
                Wait::Edge => dir.queue.arrivals() != before,
            };
            assert!(woken, "a raw waiter sleeps with data in the ring");
        }
        // A program that reads until EAGAIN is not called again for nothing: it must not spin.
        while reader.read(n) > 0 {}
        assert!(how == How::Disarms || dir.queue.is_empty(), "readable with nothing to read");
    }
}

/// As it is: EACH, armed when a read has emptied the ring and before EAGAIN.
#[test]
fn level_triggered() {
    holds(model(EACH, When::Empty, How::TakesLast, Wait::Level, 1, 3));
    holds(model(EACH, When::Empty, How::TakesLast, Wait::Level, 2, 3));
}

#[test]
fn edge_triggered() {
    holds(model(EACH, When::Empty, How::TakesLast, Wait::Edge, 2, 2));
}

/// The fast read.
#[test]
fn once_it_has_asked_a_short_read_need_not_arm() {
    holds(model(EACH, When::Unasked, How::TakesLast, Wait::Level, 2, 3));
    holds(model(EACH, When::Unasked, How::TakesLast, Wait::Edge, 2, 3));
}

/// The doorbell that called it is counted, and the word set to RUNG, behind its read.
#[test]
fn a_short_read_that_arms_only_where_a_doorbell_is_counted() {
    breaks("ask before a short read", model(EACH, When::Counted, How::TakesLast, Wait::Edge, 2, 2));
}

/// One byte for each arming is enough for waiters that go by EAGAIN or short reads.
#[test]
fn one_byte_for_each_arming() {
    holds(model(ARMED, When::Empty, How::TakesLast, Wait::Level, 1, 3));
    holds(model(ARMED, When::Eagain, How::TakesLast, Wait::Level, 1, 3));
    holds(model(ARMED, When::Empty, How::TakesLast, Wait::Edge, 2, 2));
}

/// What arrived between the taking and the arming rang nobody; if the program's buffer does not hold
/// all of it, the rest lies in the ring without a doorbell.
#[test]
fn doorbells_taken_before_the_word_is_armed() {
    breaks("take last", model(ARMED, When::Eagain, How::TakesFirst, Wait::Level, 1, 3));
}

/// An edge-triggered program that goes by short reads never hears of what comes next.
#[test]
fn edge_triggered_armed_only_at_eagain() {
    breaks("arm at a short read", model(ARMED, When::Eagain, How::TakesLast, Wait::Edge, 2, 2));
}

#[test]
fn a_reader_that_disarms() {
    breaks("unseen may not disarm", model(EACH, When::Empty, How::Disarms, Wait::Level, 1, 2));
}

/// The first arming finds the word at RUNG: what was published before it rang nobody.
#[test]
fn a_reader_that_does_not_look_again() {
    breaks("second look", model(ARMED, When::Empty, How::Blindly, Wait::Level, 2, 2));
    breaks("second look", model(EACH, When::Empty, How::Blindly, Wait::Level, 2, 2));
}
