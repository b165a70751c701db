//! (k) Memory that others find by an address, and when it goes.
//!
//! `published`: the family page, the page of waiters, tables of peers' names, wide rings, regions, the slots of the
//! descriptor table, functions that a higher layer leaves (`family::make`, `transport/{waiters,wakes,wide,told}.rs`,
//! `table::put`, `control::on_drain`). `counted`: whoever counts down to nothing gives it back (`transport/peers.rs: refs`,
//! `table/life.rs: REFS`, `table/set.rs`, `family/holders.rs`). `record`: words that change together while somebody reads
//! (`family/links.rs`).

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, Ordering::*, fence};
use loom::thread;
use smcr_model::{breaks, holds};

struct Memory {
    /// 0: not made, else where it is.
    at: AtomicU32,
    refs: AtomicU32,
    what: [UnsafeCell<u32>; 3],
}

// SAFETY: the cells are used by the rules of each model; loom checks that these are enough.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Memory {
    fn new(refs: u32) -> Memory {
        Memory { at: AtomicU32::new(0), refs: AtomicU32::new(refs), what: [UnsafeCell::new(0), UnsafeCell::new(0), UnsafeCell::new(0)] }
    }

    fn write(&self, at: u32) {
        self.what[at as usize].with_mut(|p| {
            // SAFETY: nobody else has it, or loom finds whoever has.
            unsafe { *p = at }
        });
    }

    fn read(&self, at: u32) -> u32 {
        self.what[at as usize].with(|p| {
            // SAFETY: as in `write`.
            unsafe { *p }
        })
    }

    /// Makes it, or takes what another thread has made meanwhile.
    fn make(&self, mine: u32, store: Ordering, found: Ordering) -> u32 {
        self.write(mine);
        match self.at.compare_exchange(0, mine, store, found) {
            Ok(_) => mine,
            Err(theirs) => theirs,
        }
    }
}

/// Two make it at the same time, a third finds it.
fn published(store: Ordering, found: Ordering, load: Ordering) -> impl Fn() + Sync + Send + 'static {
    move || {
        let memory = Arc::new(Memory::new(0));
        let maker = {
            let memory = memory.clone();
            thread::spawn(move || {
                let at = memory.make(1, store, found);
                assert_eq!(memory.read(at), at);
            })
        };
        let finder = {
            let memory = memory.clone();
            thread::spawn(move || {
                let at = memory.at.load(load);
                assert!(at == 0 || memory.read(at) == at, "found before it was written");
            })
        };
        let at = memory.make(2, store, found);
        assert_eq!(memory.read(at), at);
        maker.join().unwrap();
        finder.join().unwrap();
    }
}

/// Two use it; the last one gives it back, which writes to it.
fn counted(less: Ordering) -> impl Fn() + Sync + Send + 'static {
    move || {
        let memory = Arc::new(Memory::new(2));
        let leave = move |memory: &Memory| {
            memory.read(1);
            if memory.refs.fetch_sub(1, less) == 1 {
                memory.write(1);
            }
        };
        let other = {
            let memory = memory.clone();
            thread::spawn(move || leave(&memory))
        };
        leave(&memory);
        other.join().unwrap();
    }
}

/// One writer; a reader takes what stood between two looks at the same even number.
fn record(first: bool, last: Ordering) -> impl Fn() + Sync + Send + 'static {
    move || {
        let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)]);
        let writer = {
            let words = words.clone();
            thread::spawn(move || {
                words[0].store(1, Relaxed);
                if first {
                    fence(Release);
                }
                words[1].store(7, Relaxed);
                words[2].store(7, Relaxed);
                words[0].store(2, last);
            })
        };
        let before = words[0].load(Acquire);
        let (a, b) = (words[1].load(Relaxed), words[2].load(Relaxed));
        fence(Acquire);
        if before.is_multiple_of(2) && words[0].load(Relaxed) == before {
            assert_eq!(a, b, "half of a record");
            assert!(before == 0 || a == 7, "a record of before");
        }
        writer.join().unwrap();
    }
}

#[test]
fn an_address() {
    holds(published(AcqRel, Acquire, Acquire));
}

#[test]
fn an_address_without_release() {
    breaks("Release of the address", published(Acquire, Acquire, Acquire));
}

#[test]
fn an_address_without_acquire() {
    breaks("Acquire of who looks for it", published(AcqRel, Acquire, Relaxed));
}

#[test]
fn an_address_that_another_one_made_without_acquire() {
    breaks("Acquire of who came second", published(AcqRel, Relaxed, Acquire));
}

#[test]
fn the_last_one() {
    holds(counted(AcqRel));
}

#[test]
fn the_last_one_without_acquire() {
    breaks("Acquire of the last one", counted(Release));
}

#[test]
fn the_last_one_without_release() {
    breaks("Release of the others", counted(Acquire));
}

#[test]
fn a_record() {
    holds(record(true, Release));
}

#[test]
fn a_record_without_the_first_fence() {
    breaks("fence behind the odd number", record(false, Release));
}

#[test]
fn a_record_without_the_last_release() {
    breaks("Release of the even number", record(true, Relaxed));
}
