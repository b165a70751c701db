//! (e1) The switch of a sender to memory against other senders of the same socket that may be inside
//! the kernel (`engine/switch.rs: try_to_memory`, `tx.rs: through_kernel`).
//!
//! The stream of the kernel up to the marked byte, and then the ring, hold every message once; no
//! payload stands in the kernel's stream behind the mark.

use loom::sync::atomic::{AtomicU32, Ordering::*};
use loom::sync::{Arc, Mutex};
use loom::thread;
use smcr_model::kernel::{Byte, Queue};
use smcr_model::{breaks, holds, sc};

const TCP: u32 = 0;
const SHM: u32 = 1;

#[derive(Clone, Copy)]
struct Rules {
    /// SeqCst where a sender goes into the kernel...
    sender: bool,
    /// ...and where the switch takes the medium away.
    switcher: bool,
    /// A sender asks for the medium after it has said that it is inside.
    asks_inside: bool,
    /// The mark is stored before the switch is counted.
    mark_first: bool,
}

const AS_IT_IS: Rules = Rules { sender: true, switcher: true, asks_inside: true, mark_first: true };

struct Half {
    lock: Mutex<()>,
    medium: AtomicU32,
    in_kernel: AtomicU32,
    /// Bytes sent through the kernel.
    kernel: AtomicU32,
    queue: Queue,
    ring: Mutex<Vec<u8>>,
    /// In the region.
    switch: AtomicU32,
    at_kernel: AtomicU32,
}

impl Half {
    fn send(&self, b: u8, r: Rules) {
        loop {
            if self.medium.load(Acquire) != TCP {
                let _held = self.lock.lock().unwrap();
                if self.medium.load(Acquire) != TCP {
                    self.ring.lock().unwrap().push(b);
                    return;
                }
            }
            if !r.asks_inside && self.medium.load(Acquire) != TCP {
                continue;
            }
            sc::add(&self.in_kernel, 1, r.sender);
            if r.asks_inside && self.medium.load(Acquire) != TCP {
                self.in_kernel.fetch_sub(1, Release);
                thread::yield_now();
                continue;
            }
            self.queue.send(Byte::Payload(b));
            self.kernel.fetch_add(1, Relaxed);
            self.in_kernel.fetch_sub(1, Release);
            return;
        }
    }

    fn try_to_memory(&self, r: Rules) -> bool {
        let _held = self.lock.lock().unwrap();
        sc::store(&self.medium, SHM, r.switcher);
        if self.in_kernel.load(Acquire) != 0 {
            self.medium.store(TCP, Release);
            return false;
        }
        if r.mark_first {
            self.at_kernel.store(self.kernel.load(Relaxed), Relaxed);
            self.switch.store(1, Release);
        } else {
            self.switch.store(1, Release);
            self.at_kernel.store(self.kernel.load(Relaxed), Relaxed);
        }
        true
    }
}

fn model(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let half = Arc::new(Half {
            lock: Mutex::new(()),
            medium: AtomicU32::new(TCP),
            in_kernel: AtomicU32::new(0),
            kernel: AtomicU32::new(0),
            queue: Queue::new(),
            ring: Mutex::default(),
            switch: AtomicU32::new(0),
            at_kernel: AtomicU32::new(u32::MAX),
        });
        let other = {
            let half = half.clone();
            thread::spawn(move || half.send(1, r))
        };
        let reader = {
            let half = half.clone();
            // The peer: whoever sees the switch sees where.
            thread::spawn(move || {
                if half.switch.load(Acquire) == 1 {
                    assert_ne!(half.at_kernel.load(Relaxed), u32::MAX, "a switch without its mark");
                }
            })
        };
        let switched = half.try_to_memory(r);
        other.join().unwrap();
        reader.join().unwrap();
        half.send(2, r);
        let ring = half.ring.lock().unwrap().clone();
        let tcp: Vec<_> = half.queue.take(9);
        if switched {
            let at = half.at_kernel.load(Relaxed) as usize;
            assert_eq!(tcp.len(), at, "payload behind the mark");
            assert_eq!(ring.last(), Some(&2));
        } else {
            assert!(ring.is_empty());
        }
        assert_eq!(tcp.len() + ring.len(), 2, "each message once");
    }
}

#[test]
fn nothing_behind_the_mark() {
    holds(model(AS_IT_IS));
}

#[test]
fn a_sender_without_seqcst() {
    breaks("sender's SeqCst", model(Rules { sender: false, ..AS_IT_IS }));
}

#[test]
fn a_switch_without_seqcst() {
    breaks("switcher's SeqCst", model(Rules { switcher: false, ..AS_IT_IS }));
}

#[test]
fn a_sender_that_asks_before_it_says_so() {
    breaks("ask inside", model(Rules { asks_inside: false, ..AS_IT_IS }));
}

#[test]
fn a_switch_counted_before_its_mark() {
    breaks("mark first", model(Rules { mark_first: false, ..AS_IT_IS }));
}
