//! (q) Arrivals that a producer posts in its log for an epoll set that does not look at the connection (`engine/post.rs`,
//! `transport/posts.rs`, `ready/posted.rs`, `table/logs.rs`), beside one that posts for somebody else.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::thread;
use smcr_model::kernel::EventFd;
use smcr_model::{breaks, holds};

const POSTED: u32 = 1;
const RUNG: u32 = 2;
/// Another waiter has come: a byte wakes both.
const EACH: u32 = 3;

/// The parts that can be left out.
#[derive(Clone, Copy)]
struct Rules {
    /// Behind the cursor, and behind the post.
    producer_fences: [bool; 2],
    /// Behind the word, and behind "asleep".
    consumer_fences: [bool; 2],
    /// The place in the log is taken before the word is armed.
    place_first: bool,
    /// The ring is looked at once more when it is armed.
    looks_again: bool,
    /// Acquire of the count.
    ordered: bool,
    /// An entry that is not there: all that is armed is looked at.
    heeds_loss: bool,
    /// The other one has gone between its two steps.
    dies: bool,
}

const AS_IT_IS: Rules = Rules {
    producer_fences: [true; 2],
    consumer_fences: [true; 2],
    place_first: true,
    looks_again: true,
    ordered: true,
    heeds_loss: true,
    dies: false,
};

#[derive(Default)]
struct Both {
    head: AtomicU32,
    word: AtomicU32,
    count: AtomicU32,
    /// 0: not there, else the token + 1.
    entries: [AtomicU32; 2],
    sleep: AtomicU32,
    eventfd: EventFd,
}

const OURS: u32 = 1;
const ANOTHERS: u32 = 2;

fn full(there: bool) {
    if there {
        fence(SeqCst);
    }
}

impl Both {
    fn append(&self, token: u32, all: bool) {
        let at = self.count.fetch_add(1, Relaxed);
        if all {
            self.entries[at as usize].store(token, Relaxed);
        }
    }

    fn send(&self, r: Rules) {
        self.head.store(1, Release);
        full(r.producer_fences[0]);
        if self.word.compare_exchange(POSTED, RUNG, AcqRel, Relaxed).is_ok() {
            self.append(OURS, true);
            full(r.producer_fences[1]);
            if self.sleep.load(Relaxed) == 1 {
                self.eventfd.ring();
            }
        }
    }

    /// Whether the connection is to be looked at, by what the log has behind that place.
    fn take(&self, at: &mut u32, r: Rules) -> bool {
        while self.count.load(if r.ordered { Acquire } else { Relaxed }) != *at {
            match self.entries[*at as usize].load(Relaxed) {
                OURS => return true,
                0 if r.heeds_loss => return true,
                _ => *at += 1,
            }
        }
        false
    }

    /// A member turns cold, and the set goes to sleep. True: it has seen what has come.
    fn cools_and_sleeps(&self, at: &mut u32, r: Rules) -> bool {
        if r.place_first {
            *at = self.count.load(Acquire);
        }
        self.word.store(POSTED, Release);
        full(r.consumer_fences[0]);
        if r.looks_again && self.head.load(Acquire) != 0 {
            return true;
        }
        if !r.place_first {
            *at = self.count.load(Acquire);
        }
        self.sleep.store(1, Relaxed);
        full(r.consumer_fences[1]);
        self.take(at, r) && self.sees()
    }

    /// Called by the log, it looks at the ring.
    fn sees(&self) -> bool {
        self.head.load(Relaxed) != 0
    }
}

fn posts(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let both = Arc::new(Both::default());
        let producer = thread::spawn({
            let both = both.clone();
            move || both.send(r)
        });
        let other = thread::spawn({
            let both = both.clone();
            move || both.append(ANOTHERS, !r.dies)
        });
        let mut at = 0;
        let seen = both.cools_and_sleeps(&mut at, r);
        producer.join().unwrap();
        other.join().unwrap();
        if !seen {
            assert!(both.eventfd.wakes(), "asleep, and nobody rings");
            assert!(both.take(&mut at, r), "awake, and nothing tells of the connection");
        }
    }
}

/// Who reads the log while it is awake: what tells of the connection shows its data as well.
fn shows(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let both = Arc::new(Both::default());
        both.word.store(POSTED, Relaxed);
        let producer = thread::spawn({
            let both = both.clone();
            move || both.send(r)
        });
        let mut at = 0;
        if both.take(&mut at, r) {
            assert!(both.sees(), "told of nothing");
        }
        producer.join().unwrap();
        assert!(both.take(&mut at, r));
    }
}

/// A set sleeps on what is posted to it, and another waiter stores its own word just when something comes. It finds that, and leaves it.
fn is_replaced(rings_again: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let both = Arc::new(Both::default());
        both.word.store(POSTED, Relaxed);
        both.sleep.store(1, Relaxed);
        let other = thread::spawn({
            let both = both.clone();
            move || {
                both.word.store(EACH, Release);
                fence(SeqCst);
                both.head.load(Acquire)
            }
        });
        both.head.store(1, Release);
        fence(SeqCst);
        let mut byte = false;
        let mut word = both.word.load(Relaxed);
        if word == POSTED {
            match both.word.compare_exchange(POSTED, RUNG, AcqRel, Relaxed) {
                Ok(_) => both.eventfd.ring(), // and the post, as above
                Err(now) if rings_again => word = now,
                Err(_) => {}
            }
        }
        if word == EACH {
            byte = true;
        }
        let sees = other.join().unwrap() != 0;
        assert!(byte || both.eventfd.wakes(), "a set sleeps over what another waiter has seen: {sees}");
    }
}

#[test]
fn all_of_it() {
    holds(posts(AS_IT_IS));
    holds(shows(AS_IT_IS));
}

#[test]
fn beside_one_that_dies() {
    holds(posts(Rules { dies: true, ..AS_IT_IS }));
    breaks("heed an entry that is not there", posts(Rules { dies: true, heeds_loss: false, ..AS_IT_IS }));
}

#[test]
fn without_a_fence() {
    breaks("fence behind the cursor", posts(Rules { producer_fences: [false, true], ..AS_IT_IS }));
    breaks("fence behind the post", posts(Rules { producer_fences: [true, false], ..AS_IT_IS }));
    breaks("fence behind the word", posts(Rules { consumer_fences: [false, true], ..AS_IT_IS }));
    breaks("fence of the sleep", posts(Rules { consumer_fences: [true, false], ..AS_IT_IS }));
}

#[test]
fn beside_another_waiter() {
    holds(is_replaced(true));
    breaks("ring by the word that stands there now", is_replaced(false));
}

#[test]
fn out_of_order() {
    breaks("the place before the word", posts(Rules { place_first: false, ..AS_IT_IS }));
    breaks("one more look", posts(Rules { looks_again: false, ..AS_IT_IS }));
    breaks("Acquire of the count", shows(Rules { ordered: false, ..AS_IT_IS }));
}
