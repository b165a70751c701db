//! (b2) Several threads that sleep: on one epoll set (`ready/wait.rs: lie_down, get_up`), and in
//! blocking reads of one socket (`engine/wait.rs: for_data`, `bell.rs: name_waiter`).

use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use smcr_model::kernel::EventFd;
use smcr_model::{breaks, holds};

/// An epoll set: one sleep word, a count of the threads that sleep.
struct Set {
    lock: Mutex<()>,
    sleepers: AtomicU32,
    word: AtomicU32,
    eventfd: EventFd,
    head: AtomicU32,
}

impl Set {
    /// Runs `f` with the count and the word changed as one step, or not.
    fn together(&self, one: bool, f: impl FnOnce()) {
        let held = one.then(|| self.lock.lock().unwrap());
        f();
        drop(held);
    }

    fn lie_down(&self, one_step: bool) {
        self.together(one_step, || {
            self.sleepers.fetch_add(1, AcqRel);
            self.word.store(self.word.load(Relaxed) | 1, Relaxed);
        });
        fence(SeqCst);
    }

    fn get_up(&self, one_step: bool) {
        self.together(one_step, || {
            let v = self.word.load(Relaxed);
            if self.sleepers.fetch_sub(1, AcqRel) > 1 {
                self.word.store((v | 1) + 2, Relaxed);
            } else {
                self.word.store(v + (v & 1), Relaxed);
            }
        });
        fence(SeqCst);
    }
}

/// One thread of the set wakes up by its time-out while another lies down; then data arrives.
fn two_threads_of_a_set(one_step: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let set = Arc::new(Set {
            lock: Mutex::new(()),
            sleepers: AtomicU32::new(0),
            word: AtomicU32::new(0),
            eventfd: EventFd::new(),
            head: AtomicU32::new(0),
        });
        set.lie_down(one_step);
        let first = {
            let set = set.clone();
            thread::spawn(move || set.get_up(one_step))
        };
        let producer = {
            let set = set.clone();
            thread::spawn(move || {
                set.head.store(1, Release);
                fence(SeqCst);
                if set.word.load(Relaxed) & 1 != 0 {
                    set.eventfd.ring();
                }
            })
        };
        set.lie_down(one_step);
        let empty = set.head.load(Acquire) == 0;
        first.join().unwrap();
        producer.join().unwrap();
        if empty && set.head.load(Acquire) != 0 {
            assert!(
                set.eventfd.wakes(),
                "a thread of the set sleeps and the word says awake"
            );
        }
    }
}

#[test]
fn a_set_with_two_threads() {
    holds(two_threads_of_a_set(true));
}

/// Count and word are changed one after the other without the lock.
#[test]
fn a_set_with_two_threads_in_two_steps() {
    breaks("count and word in two steps", two_threads_of_a_set(false));
}

/// How a reader makes sure that it is woken.
#[derive(Clone, Copy)]
struct Reading {
    /// It says "asleep" before it names itself, under the lock, so that others see it.
    asleep_first: bool,
    /// With another sleeper, armed or named, the byte is armed, which wakes all.
    respects_armed: bool,
}

const ARMED: u32 = 9;

struct Sock {
    /// Head, and tail as the readers of the process share it, under the receiving lock.
    lock: Mutex<State>,
    head: AtomicU32,
    word: AtomicU32,
    sleep: [AtomicU32; 3],
    eventfd: [EventFd; 3],
    byte: AtomicU32,
}

#[derive(Default)]
struct State {
    tail: u32,
    /// What a reader stored last.
    waiter: u32,
    /// Readers that sleep.
    asleep: u32,
}

impl Sock {
    fn publish(&self, head: u32) {
        self.head.store(head, Release);
        fence(SeqCst);
        match self.word.load(Relaxed) {
            ARMED => {
                self.byte.store(1, Release);
            }
            0 => {}
            w => {
                let w = w as usize - 1;
                if self.sleep[w].load(Relaxed) & 1 != 0 {
                    self.eventfd[w].ring();
                }
            }
        }
    }

    /// Names the reader or arms the byte, and says "asleep"; true: nothing to read, it sleeps.
    fn lie_down(&self, me: usize, r: Reading) -> bool {
        let tail;
        {
            let mut s = self.lock.lock().unwrap();
            if r.asleep_first {
                self.sleep[me].store(1, Relaxed);
            }
            let other = match s.waiter {
                0 => false,
                ARMED => r.respects_armed && s.asleep > 0,
                w => w as usize - 1 != me && self.sleep[w as usize - 1].load(Relaxed) & 1 != 0,
            };
            let word = if other { ARMED } else { me as u32 + 1 };
            s.waiter = word;
            s.asleep += 1;
            self.word.swap(word, Relaxed);
            tail = s.tail;
        }
        self.sleep[me].store(1, Relaxed);
        fence(SeqCst);
        self.head.load(Acquire) == tail
    }

    fn will_wake(&self, me: usize) -> bool {
        self.byte.load(Acquire) != 0 || self.eventfd[me].wakes()
    }
}

/// `readers` threads lie down one after the other or together, the last one is ended by a signal
/// and goes away; then data arrives. The first one must be woken.
fn readers(r: Reading, again: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let sock = Arc::new(Sock {
            lock: Mutex::default(),
            head: AtomicU32::new(0),
            word: AtomicU32::new(0),
            sleep: std::array::from_fn(|_| AtomicU32::new(0)),
            eventfd: std::array::from_fn(|_| EventFd::new()),
            byte: AtomicU32::new(0),
        });
        let second = {
            let sock = sock.clone();
            thread::spawn(move || {
                for _ in 0..=u32::from(again) {
                    sock.lie_down(1, r);
                    sock.lock.lock().unwrap().asleep -= 1;
                    sock.sleep[1].store(2, Relaxed);
                }
            })
        };
        let asleep = sock.lie_down(0, r);
        second.join().unwrap();
        sock.publish(1);
        assert!(
            !asleep || sock.will_wake(0),
            "a reader sleeps and another is named"
        );
    }
}

const RIGHT: Reading = Reading {
    asleep_first: true,
    respects_armed: true,
};

#[test]
fn two_readers_of_a_socket() {
    holds(readers(RIGHT, false));
}

#[test]
fn two_readers_one_comes_again() {
    holds(readers(RIGHT, true));
}

/// The first has named itself but does not say "asleep" yet: the second names itself over it.
#[test]
fn a_reader_that_names_itself_first() {
    breaks(
        "asleep before named",
        readers(
            Reading {
                asleep_first: false,
                ..RIGHT
            },
            false,
        ),
    );
}

/// Both sleep on the byte; one of them comes again and names itself alone.
#[test]
fn a_reader_that_names_itself_over_the_byte() {
    breaks(
        "armed for others",
        readers(
            Reading {
                respects_armed: false,
                ..RIGHT
            },
            true,
        ),
    );
}
