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
    /// A reader that finds another one asleep under the name that it takes over makes the connection
    /// shared: from then on the byte is armed, which wakes everybody.
    shares: bool,
    /// A reader that has said "asleep" looks whether the word still names it.
    looks_again: bool,
    /// A reader without a waiter of its own arms the byte...
    first_has_waiter: bool,
    /// ...and makes the connection shared by that.
    byte_shares: bool,
}

const ARMED: u32 = 9;

struct Sock {
    /// What a reader stored last, and whether the connection is shared; under the receiving lock.
    lock: Mutex<(u32, bool)>,
    head: AtomicU32,
    word: AtomicU32,
    sleep: [AtomicU32; 2],
    eventfd: [EventFd; 2],
    byte: AtomicU32,
}

impl Sock {
    fn publish(&self, head: u32) {
        self.head.store(head, Release);
        fence(SeqCst);
        match self.word.load(Relaxed) {
            ARMED => self.byte.store(1, Release),
            0 => {}
            w => {
                let w = w as usize - 1;
                if self.sleep[w].load(Relaxed) & 1 != 0 {
                    self.eventfd[w].ring();
                }
            }
        }
    }

    fn arm(&self, stored: &mut (u32, bool)) -> bool {
        stored.0 = ARMED;
        self.word.swap(ARMED, Relaxed);
        fence(SeqCst);
        false
    }

    /// `bell::name_waiter`, with the lock held.
    fn name(&self, me: usize, r: Reading) -> bool {
        let mut stored = self.lock.lock().unwrap();
        let (now, word) = (stored.0, me as u32 + 1);
        if now == word && self.word.load(Relaxed) == word {
            return true;
        }
        if me == 0 && !r.first_has_waiter {
            stored.1 |= r.byte_shares;
            return self.arm(&mut stored);
        }
        if stored.1 {
            return self.arm(&mut stored);
        }
        stored.0 = word;
        self.word.swap(word, Relaxed);
        fence(SeqCst);
        let other = now != 0 && now != ARMED && now != word;
        if r.shares && other && self.sleep[now as usize - 1].load(Relaxed) & 1 != 0 {
            stored.1 = true;
            return self.arm(&mut stored);
        }
        true
    }

    fn is_named(&self, me: usize) -> bool {
        let word = self.word.load(Relaxed);
        word == me as u32 + 1 || word == ARMED
    }

    /// Some(named): sleeps.
    fn lie_down(&self, me: usize, r: Reading) -> Option<bool> {
        for _ in 0..3 {
            let named = self.name(me, r);
            if named {
                self.sleep[me].fetch_add(1, Relaxed);
                fence(SeqCst);
            }
            let go_on =
                self.head.load(Acquire) != 0 || (named && r.looks_again && !self.is_named(me));
            if !go_on {
                return Some(named);
            }
            if named {
                self.sleep[me].fetch_add(1, Relaxed);
            }
        }
        None
    }
}

/// Two readers lie down; the second is ended by a signal, perhaps comes again, and goes away. Then
/// data arrives: the first must be woken.
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
                    if sock.lie_down(1, r) == Some(true) {
                        sock.sleep[1].fetch_add(1, Relaxed);
                    }
                }
            })
        };
        let asleep = sock.lie_down(0, r);
        second.join().unwrap();
        sock.publish(1);
        if let Some(named) = asleep {
            let rung = sock.byte.load(Acquire) != 0 || (named && sock.eventfd[0].wakes());
            assert!(rung, "a reader sleeps and another is named");
        }
    }
}

const RIGHT: Reading = Reading {
    shares: true,
    looks_again: true,
    first_has_waiter: true,
    byte_shares: true,
};

#[test]
fn two_readers_of_a_socket() {
    holds(readers(RIGHT, false));
}

#[test]
fn two_readers_one_comes_again() {
    holds(readers(RIGHT, true));
}

#[test]
fn two_readers_one_without_a_waiter() {
    holds(readers(
        Reading {
            first_has_waiter: false,
            ..RIGHT
        },
        true,
    ));
}

/// The first has named itself but does not say "asleep" yet: the second names itself over it.
#[test]
fn a_reader_that_does_not_look_whether_it_is_named() {
    breaks(
        "look again",
        readers(
            Reading {
                looks_again: false,
                ..RIGHT
            },
            false,
        ),
    );
}

#[test]
fn a_reader_that_takes_over_a_sleepers_name() {
    breaks(
        "shared",
        readers(
            Reading {
                shares: false,
                ..RIGHT
            },
            false,
        ),
    );
}

/// One sleeps on the byte because it has no waiter; the other names itself over it.
#[test]
fn a_reader_that_names_itself_over_the_byte() {
    let r = Reading {
        first_has_waiter: false,
        byte_shares: false,
        ..RIGHT
    };
    breaks("the byte shares", readers(r, false));
}
