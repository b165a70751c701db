//! (h) Numbers of descriptors that are rung while another thread gives them up (`sys/held.rs`, `transport/wakes.rs`).
//!
//! A number is ours until it is closed, and the program's from then on. Whoever rings writes under a number that is ours, and what
//! is given up is closed once, in the end. Or the program takes the number itself: it waits for those who ring. (That letting go is
//! Release is not shown here: the write is a system call, which lies before it in any case.)

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, Ordering::*};
use loom::thread;
use smcr_model::{breaks, holds};

const GIVEN_UP: u32 = 1 << 31;
const USERS: u32 = GIVEN_UP - 1;

/// The number that the model is about, and one that comes instead.
const OLD: u32 = 7;
const NEW: u32 = 8;

#[derive(Clone, Copy)]
struct Rules {
    /// Who rings is counted.
    counted: bool,
    /// It looks again whether the number is still there.
    second_look: bool,
    /// How it counts itself and gives up is seen.
    enter: Ordering,
    /// The last who lets go closes; else whoever gives it up does, used or not.
    deferred: bool,
    /// The last look and the mark are one step.
    one_step: bool,
}

const AS_IT_IS: Rules = Rules { counted: true, second_look: true, enter: AcqRel, deferred: true, one_step: true };

struct Process {
    slot: AtomicU32,
    /// Of OLD.
    word: AtomicU32,
    /// Closes of OLD; not of the protocol. From the first one on the number is the program's.
    closed: AtomicU32,
}

impl Process {
    fn new() -> Arc<Process> {
        Arc::new(Process { slot: AtomicU32::new(OLD), word: AtomicU32::new(0), closed: AtomicU32::new(0) })
    }

    fn close(&self) {
        self.closed.fetch_add(1, Relaxed);
    }

    fn ring(&self, r: Rules) {
        if self.slot.load(Acquire) != OLD {
            return;
        }
        if r.counted {
            self.word.fetch_add(1, r.enter);
        }
        if !r.second_look || self.slot.load(Acquire) == OLD {
            // The kernel's table has one order: a look at the latest value.
            assert_eq!(self.closed.fetch_add(0, Relaxed), 0, "written into the program's file");
        }
        if r.counted {
            self.let_go(r);
        }
    }

    fn let_go(&self, r: Rules) {
        if r.one_step {
            let left = |v: u32| Some(if v == GIVEN_UP | 1 { 0 } else { v - 1 });
            if self.word.fetch_update(AcqRel, Relaxed, left) == Ok(GIVEN_UP | 1) {
                self.close();
            }
        } else if self.word.fetch_sub(1, AcqRel) & USERS == 1 && self.word.load(Acquire) == GIVEN_UP {
            self.close();
        }
    }

    fn give_up(&self, r: Rules) {
        self.slot.swap(NEW, AcqRel);
        if !r.deferred {
            return self.close();
        }
        let mark = |v: u32| Some(if v & USERS == 0 { v } else { v | GIVEN_UP });
        if self.word.fetch_update(r.enter, Relaxed, mark).is_ok_and(|v| v & USERS == 0) {
            self.close();
        }
    }

    /// The program's dup2 to that number.
    fn take_number(&self, r: Rules) {
        self.slot.swap(NEW, AcqRel);
        while self.word.fetch_or(0, r.enter) & USERS != 0 {
            thread::yield_now();
        }
        self.close();
    }
}

fn ringer(p: &Arc<Process>, r: Rules) -> thread::JoinHandle<()> {
    let p = p.clone();
    thread::spawn(move || p.ring(r))
}

fn replaced(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let p = Process::new();
        let ringers = [ringer(&p, r), ringer(&p, r)];
        p.give_up(r);
        ringers.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(p.closed.load(Relaxed), 1, "closed once");
        assert_eq!(p.word.load(Relaxed), 0);
    }
}

fn taken(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let p = Process::new();
        let ringers = [ringer(&p, r), ringer(&p, r)];
        p.take_number(r);
        ringers.into_iter().for_each(|t| t.join().unwrap());
    }
}

#[test]
fn what_is_rung_is_ours_and_closed_once() {
    holds(replaced(AS_IT_IS));
}

#[test]
fn what_the_program_takes_is_rung_no_more() {
    holds(taken(AS_IT_IS));
}

#[test]
fn who_rings_is_not_counted() {
    breaks("counted", replaced(Rules { counted: false, ..AS_IT_IS }));
    breaks("counted, dup2", taken(Rules { counted: false, ..AS_IT_IS }));
}

#[test]
fn no_second_look() {
    breaks("second look", replaced(Rules { second_look: false, ..AS_IT_IS }));
    breaks("second look, dup2", taken(Rules { second_look: false, ..AS_IT_IS }));
}

#[test]
fn entering_relaxed() {
    breaks("AcqRel of who enters and gives up", replaced(Rules { enter: Relaxed, ..AS_IT_IS }));
    breaks("AcqRel of who enters and takes", taken(Rules { enter: Relaxed, ..AS_IT_IS }));
}

#[test]
fn closed_by_who_gives_it_up() {
    breaks("deferred", replaced(Rules { deferred: false, ..AS_IT_IS }));
}

#[test]
fn letting_go_in_two_steps() {
    breaks("one step", replaced(Rules { one_step: false, ..AS_IT_IS }));
}
