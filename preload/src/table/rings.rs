//! Rings of io_uring that the program has made by syscall(2), as libuv does: the queue of each, for as long as its descriptor is open.
//!
//! Begun by the hook of syscall(2), ended by `life` where the descriptor goes; `ready::ring` asks for them.

use super::{Entry, get, life, put, range, take};
use crate::family::lock::{Lock, Marker};
use crate::sys::uring::{Params, Queue};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// A ring.
pub struct Ring {
    lock: Lock,
    is_taken: AtomicBool,
    queue: UnsafeCell<Option<Queue>>,
}

// SAFETY: `queue` is used only with `lock` held.
unsafe impl Sync for Ring {}

/// A loop of libuv has one, and a process one for each of its threads that loop. Those beyond stay unknown.
const MOST: usize = 128;

static RINGS: [Ring; MOST] = [const { Ring { lock: Lock::free(), is_taken: AtomicBool::new(false), queue: UnsafeCell::new(None) } }; MOST];

/// io_uring_setup(2) has returned it, with these.
pub fn begin(fd: i32, params: &Params) {
    life::begin_anew(fd);
    if !super::has_room(fd) {
        return;
    }
    // Acquire: pairs with the Release in `release`.
    let Some(ring) = RINGS.iter().find(|r| !r.is_taken.swap(true, Acquire)) else { return };
    if Queue::map(fd, params).is_ok_and(|queue| ring.replace(Some(queue))) {
        put(fd, Entry::Ring(ring));
    } else {
        ring.is_taken.store(false, Release);
    }
}

/// Its descriptor is gone.
pub fn release(ring: &'static Ring) {
    if ring.replace(None) {
        ring.is_taken.store(false, Release);
    }
}

/// Its queue is about to lie elsewhere (IORING_REGISTER_RESIZE_RINGS).
pub fn forget(fd: i32) {
    if let Some(Entry::Ring(ring)) = get(fd) {
        take(fd);
        release(ring);
    }
}

/// A forked child has the descriptors, and the mappings neither of the program nor of the library.
pub fn forget_in_child() {
    if RINGS.iter().all(|r| !r.is_taken.load(Relaxed)) {
        return;
    }
    for (fd, entry) in range(0, u32::MAX) {
        if let Entry::Ring(ring) = entry {
            take(fd);
            ring.lock.reset();
            let marker = Marker::new();
            if let Ok(_held) = ring.lock.take(&marker) {
                // SAFETY: the lock is held.
                std::mem::forget(unsafe { &mut *ring.queue.get() }.take());
            }
            ring.is_taken.store(false, Release);
        }
    }
}

impl Ring {
    /// Runs `f` with its queue; not in a handler that interrupted such a run.
    pub fn with(&self, f: impl FnOnce(&Queue)) {
        let marker = Marker::new();
        if let Ok(_held) = self.lock.take(&marker) {
            // SAFETY: the lock is held.
            if let Some(queue) = unsafe { &*self.queue.get() } {
                f(queue);
            }
        }
    }

    /// It has this queue from now on, and the one before is unmapped. False: a handler wants that, in the middle of the use of the other one.
    fn replace(&self, queue: Option<Queue>) -> bool {
        let marker = Marker::new();
        let Ok(_held) = self.lock.take(&marker) else { return false };
        // SAFETY: the lock is held.
        unsafe { *self.queue.get() = queue };
        true
    }
}
