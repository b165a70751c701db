//! (e2) Readers become careful before the peer may switch (`engine/switch.rs: become_careful,
//! offer_reading`, `rx.rs: through_kernel, from_tcp`).
//!
//! A reader that is inside the kernel takes all that is there. So READY is shown only while nobody is
//! inside, and what follows the mark (proof, doorbells) is never given to the program.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::*};
use loom::thread;
use smcr_model::kernel::{Byte, Queue};
use smcr_model::{breaks, holds, sc};

#[derive(Clone, Copy)]
struct Rules {
    reader: bool,
    setter: bool,
    /// READY is shown only when nobody is inside the kernel.
    waits: bool,
    /// A careful reader looks how much is there before it looks for a switch.
    counts_first: bool,
    /// The sender stores the switch before the first byte that is not payload.
    switch_first: bool,
}

const AS_IT_IS: Rules = Rules { reader: true, setter: true, waits: true, counts_first: true, switch_first: true };

struct Conn {
    careful: AtomicU32,
    in_kernel: AtomicU32,
    ready: AtomicU32,
    switch: AtomicU32,
    at_kernel: AtomicU32,
    queue: Queue,
}

impl Conn {
    /// One recv of the program; what it got.
    fn recv(&self, taken: u32, r: Rules) -> Vec<Byte> {
        if self.careful.load(Acquire) == 0 {
            sc::add(&self.in_kernel, 1, r.reader);
            if self.careful.load(Acquire) == 0 {
                let got = self.queue.take(9);
                self.in_kernel.fetch_sub(1, Release);
                return got;
            }
            self.in_kernel.fetch_sub(1, Release);
        }
        let (there, switched);
        if r.counts_first {
            there = self.queue.len();
            switched = self.switch.load(Acquire) != 0;
        } else {
            switched = self.switch.load(Acquire) != 0;
            there = self.queue.len();
        }
        let left = if switched { self.at_kernel.load(Relaxed) - taken } else { u32::MAX };
        self.queue.take(there.min(left as usize))
    }
}

fn model(r: Rules) -> impl Fn() + Sync + Send + 'static {
    move || {
        let conn = Arc::new(Conn {
            careful: AtomicU32::new(0),
            in_kernel: AtomicU32::new(0),
            ready: AtomicU32::new(0),
            switch: AtomicU32::new(0),
            at_kernel: AtomicU32::new(0),
            queue: Queue::new(),
        });
        conn.queue.send(Byte::Payload(1));
        // The thread of this process that works on the rendezvous.
        let setter = {
            let conn = conn.clone();
            thread::spawn(move || {
                sc::store(&conn.careful, 1, r.setter);
                if !r.waits || conn.in_kernel.load(Acquire) == 0 {
                    conn.ready.store(1, Release);
                }
            })
        };
        let peer = {
            let conn = conn.clone();
            thread::spawn(move || {
                if conn.ready.load(Acquire) == 0 {
                    return;
                }
                if !r.switch_first {
                    conn.queue.send(Byte::Doorbell);
                }
                conn.at_kernel.store(1, Relaxed);
                conn.switch.store(1, Release);
                if r.switch_first {
                    conn.queue.send(Byte::Doorbell);
                }
            })
        };
        let mut got = conn.recv(0, r);
        got.extend(conn.recv(got.len() as u32, r));
        setter.join().unwrap();
        peer.join().unwrap();
        assert!(!got.contains(&Byte::Doorbell), "the program got a byte that is not payload");
    }
}

#[test]
fn the_program_gets_payload_only() {
    holds(model(AS_IT_IS));
}

#[test]
fn a_reader_without_seqcst() {
    breaks("reader's SeqCst", model(Rules { reader: false, ..AS_IT_IS }));
}

#[test]
fn a_setter_without_seqcst() {
    breaks("setter's SeqCst", model(Rules { setter: false, ..AS_IT_IS }));
}

#[test]
fn ready_with_a_reader_inside() {
    breaks("nobody inside", model(Rules { waits: false, ..AS_IT_IS }));
}

#[test]
fn a_reader_that_counts_after_it_looked() {
    breaks("count first", model(Rules { counts_first: false, ..AS_IT_IS }));
}

#[test]
fn a_proof_before_its_switch() {
    breaks("switch first", model(Rules { switch_first: false, ..AS_IT_IS }));
}
