//! (g) The gate that keeps doorbells out of the payload when a direction moves back to TCP
//! (`engine/bell.rs: ring_tcp`, `switch.rs: back_to_tcp, follow_to_tcp`).
//!
//! In the kernel's stream: doorbells up to the mark, payload from there on. The receiver takes the
//! doorbells that it knows of, never beyond the mark, and then the payload.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, Ordering::*};
use loom::thread;
use smcr_model::kernel::{Byte, Queue};
use smcr_model::{breaks, holds};

const CLOSED: u32 = 1 << 31;

#[derive(Clone, Copy)]
struct Rules {
    /// The ringer is counted before it asks whether the gate is open.
    counted: bool,
    /// The switch waits until no doorbell is on its way.
    waits: bool,
    /// How it sees that, and how a ringer says so.
    wait_load: Ordering,
    leave: Ordering,
    /// The receiver takes no more than up to the mark.
    limited: bool,
}

const AS_IT_IS: Rules = Rules { counted: true, waits: true, wait_load: Acquire, leave: Release, limited: true };

struct Half {
    gate: AtomicU32,
    /// Bytes sent through the kernel; private to the sending process.
    kernel: AtomicU32,
    /// In the region.
    bells: AtomicU32,
    switch: AtomicU32,
    at_kernel: AtomicU32,
    queue: Queue,
}

impl Half {
    fn ring(&self, r: Rules) {
        let open = if r.counted { self.gate.fetch_add(1, AcqRel) & CLOSED == 0 } else { self.gate.load(Acquire) & CLOSED == 0 };
        if open {
            self.queue.send(Byte::Doorbell);
            self.kernel.fetch_add(1, Relaxed);
            self.bells.fetch_add(1, Release);
        }
        if r.counted {
            self.gate.fetch_sub(1, r.leave);
        }
    }

    fn back_to_tcp(&self, r: Rules) {
        self.gate.fetch_or(CLOSED, AcqRel);
        while r.waits && self.gate.load(r.wait_load) & !CLOSED != 0 {
            thread::yield_now();
        }
        self.at_kernel.store(self.kernel.load(Relaxed), Relaxed);
        self.switch.store(1, Release);
        self.queue.send(Byte::Payload(1));
    }

    /// One attempt of the receiver to take the doorbells off; then, at the mark, it goes on in TCP.
    fn follow(&self, taken: &mut u32, r: Rules) -> bool {
        let sent = self.bells.load(Acquire);
        let mut due = sent - *taken;
        let switched = self.switch.load(Acquire) == 1;
        let at = self.at_kernel.load(Relaxed);
        if switched && r.limited {
            due = due.min(at.saturating_sub(*taken));
        }
        for byte in self.queue.take(due as usize) {
            assert_eq!(byte, Byte::Doorbell, "payload taken for a doorbell");
            *taken += 1;
        }
        if !switched {
            return false;
        }
        assert!(*taken <= at, "beyond the mark");
        *taken == at
    }
}

fn model(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let half = Arc::new(Half {
            gate: AtomicU32::new(0),
            kernel: AtomicU32::new(0),
            bells: AtomicU32::new(0),
            switch: AtomicU32::new(0),
            at_kernel: AtomicU32::new(0),
            queue: Queue::new(),
        });
        let ringer = {
            let half = half.clone();
            thread::spawn(move || half.ring(r))
        };
        let sender = {
            let half = half.clone();
            thread::spawn(move || half.back_to_tcp(r))
        };
        let mut taken = 0;
        let mut followed = half.follow(&mut taken, r);
        ringer.join().unwrap();
        sender.join().unwrap();
        if !followed {
            followed = half.follow(&mut taken, r);
        }
        assert!(followed, "the receiver never reaches the mark");
        assert_eq!(half.queue.take(9), [Byte::Payload(1)], "what the program reads from TCP");
    }
}

#[test]
fn doorbells_stay_before_the_mark() {
    holds(model(AS_IT_IS));
}

#[test]
fn a_ringer_that_is_not_counted() {
    breaks("counted", model(Rules { counted: false, ..AS_IT_IS }));
}

#[test]
fn a_switch_that_does_not_wait() {
    breaks("waits", model(Rules { waits: false, ..AS_IT_IS }));
}

/// The doorbell went, but the count of the kernel's stream that the mark is made of is an old one.
#[test]
fn a_ringer_that_leaves_relaxed() {
    breaks("Release of the leaving ringer", model(Rules { leave: Relaxed, ..AS_IT_IS }));
}

#[test]
fn a_switch_that_sees_relaxed() {
    breaks("Acquire of the wait", model(Rules { wait_load: Relaxed, ..AS_IT_IS }));
}

/// The next stretch of memory rings behind the payload; its doorbells are counted before the
/// receiver has come to the mark.
#[test]
fn doorbells_of_the_next_stretch() {
    let stretch = |limited| {
        move || {
            let r = Rules { limited, ..AS_IT_IS };
            let half = Arc::new(Half {
                gate: AtomicU32::new(0),
                kernel: AtomicU32::new(0),
                bells: AtomicU32::new(0),
                switch: AtomicU32::new(0),
                at_kernel: AtomicU32::new(0),
                queue: Queue::new(),
            });
            let sender = {
                let half = half.clone();
                thread::spawn(move || {
                    half.ring(r);
                    half.back_to_tcp(r);
                    // Memory again, before the receiver has followed: its mark lies behind.
                    half.gate.fetch_and(!CLOSED, AcqRel);
                    half.ring(r);
                })
            };
            let mut taken = 0;
            let mut followed = half.follow(&mut taken, r);
            sender.join().unwrap();
            if !followed {
                followed = half.follow(&mut taken, r);
            }
            assert!(followed);
            assert_eq!(half.queue.take(1), [Byte::Payload(1)]);
        }
    };
    holds(stretch(true));
    breaks("limit at the mark", stretch(false));
}
