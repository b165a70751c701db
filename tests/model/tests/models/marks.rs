//! (m) Marks in words that both ends change (`ctl`, `fin` of the region).
//!
//! `door`: a receiver that wants to stay on TCP takes READY back, while the sender may be about to mark its switch
//! (`engine/follow.rs: close_door`, `switch.rs: try_to_memory`). `end`: whoever sees that nothing more comes sees all that
//! came (`engine/close.rs`, `end.rs`).

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, Ordering::*};
use loom::thread;
use smcr_model::{breaks, holds};

const READY: u32 = 1;
const MARKING: u32 = 2;

#[derive(Clone, Copy)]
struct Rules {
    /// The sender says that it is marking before it does.
    says: bool,
    /// How it says that it has marked, and how the receiver sees it.
    marked: Ordering,
    seen: Ordering,
}

const AS_IT_IS: Rules = Rules { says: true, marked: AcqRel, seen: Acquire };

#[derive(Default)]
struct Dir {
    ctl: AtomicU32,
    switch: AtomicU32,
    head: AtomicU32,
    fin: AtomicU32,
}

fn door(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let dir = Arc::new(Dir::default());
        dir.ctl.store(READY, Release);
        let sender = {
            let dir = dir.clone();
            thread::spawn(move || {
                let may = |c| (c & READY != 0).then_some(if r.says { c | MARKING } else { c });
                if dir.ctl.fetch_update(AcqRel, Acquire, may).is_err() {
                    return false;
                }
                dir.switch.store(1, Relaxed);
                dir.ctl.fetch_and(!MARKING, r.marked);
                true
            })
        };
        dir.ctl.fetch_and(!READY, AcqRel);
        while dir.ctl.load(r.seen) & MARKING != 0 {
            thread::yield_now();
        }
        let seen = dir.switch.load(Relaxed) != 0;
        assert_eq!(seen, sender.join().unwrap(), "a switch behind a closed door");
    }
}

fn end(marked: Ordering, seen: Ordering) -> impl Fn() + Sync + Send + 'static {
    move || {
        let dir = Arc::new(Dir::default());
        let sender = {
            let dir = dir.clone();
            thread::spawn(move || {
                dir.head.store(1, Relaxed);
                dir.fin.fetch_or(1, marked);
            })
        };
        if dir.fin.load(seen) & 1 != 0 {
            assert_eq!(dir.head.load(Relaxed), 1, "an end before the last byte");
        }
        sender.join().unwrap();
    }
}

#[test]
fn a_door() {
    holds(door(AS_IT_IS));
}

#[test]
fn a_door_without_saying_so() {
    breaks("says that it marks", door(Rules { says: false, ..AS_IT_IS }));
}

#[test]
fn a_door_without_release() {
    breaks("Release of who has marked", door(Rules { marked: Relaxed, ..AS_IT_IS }));
}

/// The receiver's own exchange may have come behind all of it: the load alone is what a closed door waits by.
#[test]
fn a_door_without_acquire() {
    breaks("Acquire of who closes", door(Rules { seen: Relaxed, ..AS_IT_IS }));
}

#[test]
fn an_end() {
    holds(end(Release, Acquire));
}

#[test]
fn an_end_without_release() {
    breaks("Release of the mark", end(Relaxed, Acquire));
}

#[test]
fn an_end_without_acquire() {
    breaks("Acquire of who looks for it", end(Release, Relaxed));
}
