//! (f) The ring: publish and consume by cursors, and base and size that change while it is empty
//! (`engine/tx.rs: look_at_tail, fill`, `rx.rs: follow, from_ring`).
//!
//! The cells are loom's: two accesses of which one writes and which are not ordered are a failure.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, Ordering::*};
use loom::thread;
use smcr_model::{breaks, holds};

const MAX: u32 = 2;

#[derive(Clone, Copy)]
struct Rules {
    /// The producer's store of head, and the consumer's load.
    publish: Ordering,
    see: Ordering,
    /// The consumer's store of tail, and the producer's load.
    free: Ordering,
    reuse: Ordering,
    /// Base and size change only while the ring is empty.
    when_empty: bool,
    /// The consumer reads base and size after it has seen bytes.
    size_after_head: bool,
}

const AS_IT_IS: Rules = Rules { publish: Release, see: Acquire, free: Release, reuse: Acquire, when_empty: true, size_after_head: true };

struct Ring {
    head: AtomicU32,
    tail: AtomicU32,
    base: AtomicU32,
    size: AtomicU32,
    cells: [UnsafeCell<u32>; MAX as usize],
}

// SAFETY: that accesses to the cells are ordered is what loom checks here.
unsafe impl Sync for Ring {}
// SAFETY: as above.
unsafe impl Send for Ring {}

/// The producer's private state.
struct Producer {
    head: u32,
    base: u32,
    size: u32,
}

impl Producer {
    /// Puts a message in; false: full.
    fn put(&mut self, ring: &Ring, r: Rules) -> bool {
        let tail = ring.tail.load(r.reuse);
        if tail == self.head || !r.when_empty {
            self.size = MAX;
            ring.size.store(MAX, Relaxed);
            self.base = self.head;
            ring.base.store(self.head, Relaxed);
        }
        if self.head - tail == self.size {
            return false;
        }
        let cell = (self.head - self.base) % self.size;
        // SAFETY: checked by loom.
        ring.cells[cell as usize].with_mut(|p| unsafe { *p = self.head + 100 });
        self.head += 1;
        ring.head.store(self.head, r.publish);
        true
    }
}

/// Takes what is there; returns the new tail.
fn take(ring: &Ring, tail: u32, r: Rules) -> u32 {
    let (head, size, base);
    if r.size_after_head {
        head = ring.head.load(r.see);
        size = ring.size.load(Relaxed);
        base = ring.base.load(Relaxed);
    } else {
        size = ring.size.load(Relaxed);
        base = ring.base.load(Relaxed);
        head = ring.head.load(r.see);
    }
    let mut at = tail;
    while at != head {
        let cell = at.wrapping_sub(base) % size;
        // SAFETY: checked by loom.
        let got = ring.cells[cell as usize].with(|p| unsafe { *p });
        assert_eq!(got, at + 100, "other bytes");
        at += 1;
        ring.tail.store(at, r.free);
    }
    at
}

fn model(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        // The ring has carried one message before and has room for one: the next finds it empty.
        let ring = Arc::new(Ring {
            head: AtomicU32::new(1),
            tail: AtomicU32::new(1),
            base: AtomicU32::new(0),
            size: AtomicU32::new(1),
            cells: std::array::from_fn(|_| UnsafeCell::new(0)),
        });
        let producer = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut p = Producer { head: 1, base: 0, size: 1 };
                (0..3).filter(|_| p.put(&ring, r)).count() as u32
            })
        };
        let mut tail = take(&ring, 1, r);
        tail = take(&ring, tail, r);
        let put = producer.join().unwrap();
        tail = take(&ring, tail, r);
        assert_eq!(tail, 1 + put);
    }
}

#[test]
fn every_byte_once_and_whole() {
    holds(model(AS_IT_IS));
}

#[test]
fn head_published_relaxed() {
    breaks("head's Release", model(Rules { publish: Relaxed, ..AS_IT_IS }));
}

#[test]
fn head_seen_relaxed() {
    breaks("head's Acquire", model(Rules { see: Relaxed, ..AS_IT_IS }));
}

#[test]
fn tail_published_relaxed() {
    breaks("tail's Release", model(Rules { free: Relaxed, ..AS_IT_IS }));
}

#[test]
fn tail_seen_relaxed() {
    breaks("tail's Acquire", model(Rules { reuse: Relaxed, ..AS_IT_IS }));
}

#[test]
fn base_changed_while_it_holds_bytes() {
    breaks("empty", model(Rules { when_empty: false, ..AS_IT_IS }));
}

#[test]
fn size_read_before_head() {
    breaks("size after head", model(Rules { size_after_head: false, ..AS_IT_IS }));
}
