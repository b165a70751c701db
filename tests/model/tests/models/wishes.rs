//! (p) What a consumer asks its producer for: to send through TCP what it has left in the ring (`engine/follow.rs: freeze,
//! take_back_request`, `switch.rs: give_back`, `take_up.rs: claimed`; `link/leave.rs` alike).
//!
//! Where the ring was frozen stands beside the word. Who gives up waiting for an answer takes the request back, or finds that it
//! was taken: then the bytes come through TCP, else they are read from the ring, and never both.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, Ordering::*};
use loom::thread;
use smcr_model::{breaks, holds};

const RETURN: u32 = 1;
const TAKEN: u32 = 2;

#[derive(Clone, Copy)]
struct Rules {
    asked: Ordering,
    claimed: Ordering,
    /// One exchange takes the request and says so; one looks for that and takes it back.
    claims_at_once: bool,
    looks_before: bool,
    /// How the answer is shown, and seen.
    answered: Ordering,
    followed: Ordering,
}

const AS_IT_IS: Rules = Rules { asked: AcqRel, claimed: AcqRel, claims_at_once: true, looks_before: true, answered: Release, followed: Acquire };

#[derive(Default)]
struct Dir {
    ctl: AtomicU32,
    frozen: AtomicU32,
    at_ring: AtomicU32,
    switch: AtomicU32,
}

fn asks(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let dir = Arc::new(Dir::default());
        let producer = {
            let dir = dir.clone();
            thread::spawn(move || {
                let failure = if r.claimed == Relaxed { Relaxed } else { Acquire };
                if r.claims_at_once {
                    let claim = |c| (c & RETURN != 0).then_some(c & !RETURN | TAKEN);
                    if dir.ctl.fetch_update(r.claimed, failure, claim).is_err() {
                        return false;
                    }
                } else {
                    if dir.ctl.load(Acquire) & RETURN == 0 {
                        return false;
                    }
                    dir.ctl.fetch_and(!RETURN, AcqRel);
                    dir.ctl.fetch_or(TAKEN, AcqRel);
                }
                let from = dir.frozen.load(Relaxed);
                assert_eq!(from, 7, "sent again from another place");
                dir.at_ring.store(from, Relaxed);
                dir.switch.store(1, r.answered);
                true
            })
        };
        dir.frozen.store(7, Relaxed);
        dir.ctl.fetch_or(RETURN, r.asked);
        let mut back = false;
        if dir.switch.load(r.followed) == 1 {
            assert_eq!(dir.at_ring.load(Relaxed), 7, "follows to another place");
        } else if r.looks_before {
            let take_back = |c| (c & TAKEN == 0).then_some(c & !RETURN);
            back = dir.ctl.fetch_update(AcqRel, Acquire, take_back).is_ok();
        } else {
            dir.ctl.fetch_and(!RETURN, AcqRel);
            back = true;
        }
        let sent = producer.join().unwrap();
        assert!(!(sent && back), "the same bytes from the ring and through TCP");
    }
}

#[test]
fn a_request() {
    holds(asks(AS_IT_IS));
}

#[test]
fn a_request_without_release() {
    breaks("Release of the request", asks(Rules { asked: Relaxed, ..AS_IT_IS }));
}

#[test]
fn a_request_without_acquire() {
    breaks("Acquire of who takes it", asks(Rules { claimed: Relaxed, ..AS_IT_IS }));
}

#[test]
fn a_request_that_is_taken_in_two_steps() {
    breaks("one step", asks(Rules { claims_at_once: false, ..AS_IT_IS }));
}

#[test]
fn a_request_that_is_taken_back_without_a_look() {
    breaks("look for TAKEN", asks(Rules { looks_before: false, ..AS_IT_IS }));
}

#[test]
fn an_answer_without_release() {
    breaks("Release of the answer", asks(Rules { answered: Relaxed, ..AS_IT_IS }));
}

#[test]
fn an_answer_without_acquire() {
    breaks("Acquire of who follows", asks(Rules { followed: Relaxed, ..AS_IT_IS }));
}
