//! Owns: what the kernel does for one direction of a TCP connection, and an eventfd.

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU32, Ordering::*};
use std::collections::VecDeque;

/// One byte of the TCP stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Byte {
    /// The program's.
    Payload(u8),
    /// Wakes whoever waits.
    Doorbell,
}

/// The receive queue at the far end. A byte that was sent is there: loopback.
pub struct Queue(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    bytes: VecDeque<Byte>,
    arrivals: u32,
}

impl Queue {
    pub fn new() -> Queue {
        Queue(Mutex::new(Inner::default()))
    }

    /// send(2).
    pub fn send(&self, byte: Byte) {
        let mut q = self.0.lock().unwrap();
        q.bytes.push_back(byte);
        q.arrivals += 1;
    }

    /// recv(2) of up to `n` bytes without waiting.
    pub fn take(&self, n: usize) -> Vec<Byte> {
        let mut q = self.0.lock().unwrap();
        let n = n.min(q.bytes.len());
        q.bytes.drain(..n).collect()
    }

    /// FIONREAD; what a level-triggered waiter goes by.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().bytes.len()
    }

    /// Whether a level-triggered waiter would sleep.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How often something has arrived: what an edge-triggered waiter goes by.
    pub fn arrivals(&self) -> u32 {
        self.0.lock().unwrap().arrivals
    }
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::new()
    }
}

/// An eventfd that is registered edge-triggered, or cleared after each wake.
pub struct EventFd(AtomicU32);

impl EventFd {
    pub fn new() -> EventFd {
        EventFd(AtomicU32::new(0))
    }

    /// write(2).
    pub fn ring(&self) {
        self.0.fetch_add(1, AcqRel);
    }

    /// A wake that clears it; false: the waiter sleeps.
    pub fn wakes(&self) -> bool {
        self.0.swap(0, AcqRel) != 0
    }

    /// Whether it ends a poll.
    pub fn is_rung(&self) -> bool {
        self.0.load(Acquire) != 0
    }

    /// read(2).
    pub fn clear(&self) {
        self.0.swap(0, AcqRel);
    }
}

impl Default for EventFd {
    fn default() -> EventFd {
        EventFd::new()
    }
}
