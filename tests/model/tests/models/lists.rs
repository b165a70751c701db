//! (o) Lists that are changed by exchange alone. `free`: records of sockets, with a tag against a head that has come back
//! (`sys/free_list.rs: take, give`). `changes`: the numbers of records that have changed their medium, in a ring that is written
//! over (`transport/changes.rs`).

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, Ordering::*};
use loom::thread;
use smcr_model::{breaks, holds};

#[derive(Clone, Copy)]
struct Free {
    /// How the head is read, and how a record is given back.
    taken: Ordering,
    given: Ordering,
    /// The head has a number of its own for each change.
    tag: bool,
}

const FREE: Free = Free { taken: Acquire, given: Release, tag: true };

struct List {
    /// {tag: 24, index + 1: 8}
    head: AtomicU32,
    next: [AtomicU32; 2],
    records: [UnsafeCell<u32>; 2],
}

impl List {
    /// Both are free, the second behind the first.
    fn new() -> List {
        List { head: AtomicU32::new(1), next: [AtomicU32::new(2), AtomicU32::new(0)], records: [UnsafeCell::new(0), UnsafeCell::new(0)] }
    }

    fn changed(r: Free, old: u32, index: u32) -> u32 {
        if r.tag { ((old >> 8) + 1) << 8 | index } else { index }
    }

    fn take(&self, r: Free) -> Option<usize> {
        let mut old = self.head.load(r.taken);
        loop {
            let index = old & 0xff;
            let at = index.checked_sub(1)? as usize;
            let new = List::changed(r, old, self.next[at].load(Relaxed));
            match self.head.compare_exchange(old, new, r.taken, r.taken) {
                Ok(_) => return Some(at),
                Err(now) => old = now,
            }
        }
    }

    fn give_back(&self, r: Free, at: usize) {
        let mut old = self.head.load(Relaxed);
        loop {
            self.next[at].store(old & 0xff, Relaxed);
            let new = List::changed(r, old, at as u32 + 1);
            match self.head.compare_exchange(old, new, r.given, Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    fn write(&self, at: usize) {
        // SAFETY: loom's cell fails where two threads are in it.
        self.records[at].with_mut(|record| unsafe { *record += 1 });
    }
}

fn free(r: Free) -> impl Fn() + Sync + Send + 'static {
    move || {
        let list = Arc::new(List::new());
        let other = {
            let list = list.clone();
            thread::spawn(move || {
                // Takes both, gives the first back and keeps the second: the head is what it was.
                let (a, b) = (list.take(r), list.take(r));
                if let Some(a) = a {
                    list.write(a);
                    list.give_back(r, a);
                }
                if let Some(b) = b {
                    list.write(b);
                }
            })
        };
        for _ in 0..2 {
            if let Some(at) = list.take(r) {
                list.write(at);
            }
        }
        other.join().unwrap();
    }
}

#[test]
fn a_free_list() {
    holds(free(FREE));
}

#[test]
fn a_free_list_without_acquire() {
    breaks("Acquire of who takes", free(Free { taken: Relaxed, ..FREE }));
}

#[test]
fn a_free_list_without_release() {
    breaks("Release of who gives back", free(Free { given: Relaxed, ..FREE }));
}

#[test]
fn a_free_list_without_tags() {
    breaks("a head that has come back", free(Free { tag: false, ..FREE }));
}

#[derive(Clone, Copy)]
struct Changes {
    counted: Ordering,
    seen: Ordering,
    /// An entry says which change it is.
    named: bool,
}

const CHANGES: Changes = Changes { counted: AcqRel, seen: Acquire, named: true };
const LEN: usize = 2;
const RECORDS: usize = 2;

fn changes(r: Changes) -> impl Fn() + Sync + Send + 'static {
    move || {
        // The ring is full of what is known: record 0 changed, twice.
        let count = Arc::new(AtomicU32::new(LEN as u32));
        let ring = Arc::new([0, 1].map(|n: u32| AtomicU32::new(n << 8 | 1)));
        let media = Arc::new([0; RECORDS].map(AtomicU32::new));
        let writer = {
            let (count, ring, media) = (count.clone(), ring.clone(), media.clone());
            thread::spawn(move || {
                media[1].store(1, Relaxed);
                let n = count.fetch_add(1, r.counted);
                ring[n as usize % LEN].store(n << 8 | 2, Relaxed);
            })
        };
        let end = count.load(r.seen);
        let mut known = [0; RECORDS];
        for n in LEN as u32..end {
            let entry = ring[n as usize % LEN].load(Relaxed);
            if r.named && entry >> 8 != n {
                known = [0, 1].map(|i: usize| media[i].load(Relaxed));
            } else {
                let at = (entry & 0xff) as usize - 1;
                known[at] = media[at].load(Relaxed);
            }
        }
        writer.join().unwrap();
        assert!(end == LEN as u32 || known[1] == 1, "a change was counted and is not known");
    }
}

#[test]
fn a_ring_of_changes() {
    holds(changes(CHANGES));
}

#[test]
fn a_ring_of_changes_without_release() {
    breaks("Release of the count", changes(Changes { counted: Relaxed, ..CHANGES }));
}

#[test]
fn a_ring_of_changes_without_acquire() {
    breaks("Acquire of the count", changes(Changes { seen: Relaxed, ..CHANGES }));
}

#[test]
fn a_ring_of_changes_without_names() {
    breaks("an entry that is counted and not written", changes(Changes { named: false, ..CHANGES }));
}
