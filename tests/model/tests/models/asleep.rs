//! (b3) What comes to an epoll set while a thread falls asleep in it: a member becomes hot (`ready/sleep.rs: prepare, lie_down`,
//! `Inner::heats`), or a connection comes to memory (`ready/sleep.rs: call_who_is_alone`, `table/full.rs`).

use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use smcr_model::kernel::EventFd;
use smcr_model::{breaks, holds};

/// Under the lock of the set.
#[derive(Default)]
struct Inner {
    hot: bool,
    heats: u32,
    /// Changes that were taken in.
    changes: u32,
}

struct Set {
    inner: Mutex<Inner>,
    sleepers: AtomicU32,
    alone: AtomicU32,
    word: AtomicU32,
    eventfd: EventFd,
    /// 1: the producer looks at the word of sleep.
    bell: AtomicU32,
    head: AtomicU32,
    changes: AtomicU32,
    /// What wakes in the kernel whoever sleeps in the set.
    kernel: EventFd,
}

impl Set {
    fn new() -> Arc<Set> {
        Arc::new(Set {
            inner: Mutex::default(),
            sleepers: AtomicU32::new(0),
            alone: AtomicU32::new(0),
            word: AtomicU32::new(0),
            eventfd: EventFd::new(),
            bell: AtomicU32::new(0),
            head: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            kernel: EventFd::new(),
        })
    }

    fn prepare(&self) -> u32 {
        let inner = self.inner.lock().unwrap();
        if inner.hot {
            self.bell.store(1, Relaxed);
            fence(SeqCst);
        }
        inner.heats
    }

    fn lie_down(&self) {
        let _held = self.inner.lock().unwrap();
        self.sleepers.fetch_add(1, AcqRel);
        self.word.store(1, Relaxed);
        fence(SeqCst);
    }

    /// Whether the look found nothing, and the sleep is prepared for all.
    fn may_sleep(&self, heats: u32, look_at_heats: bool) -> bool {
        let inner = self.inner.lock().unwrap();
        let found = inner.hot && self.head.load(Acquire) != 0;
        !found && (!look_at_heats || inner.heats == heats)
    }

    /// EPOLL_CTL_ADD of a connection in memory, or a doorbell that another thread has taken.
    fn heat(&self) {
        let mut inner = self.inner.lock().unwrap();
        inner.hot = true;
        inner.heats += 1;
        if self.sleepers.load(Relaxed) > 0 {
            self.eventfd.ring();
        }
    }

    fn publish(&self) {
        self.head.store(1, Release);
        fence(SeqCst);
        if self.bell.load(Relaxed) == 1 && self.word.load(Relaxed) == 1 {
            self.eventfd.ring();
        }
    }
}

fn a_member_becomes_hot(look_at_heats: bool) -> impl Fn() + Sync + Send + 'static {
    move || {
        let set = Set::new();
        let other = thread::spawn({
            let set = set.clone();
            move || set.heat()
        });
        let producer = thread::spawn({
            let set = set.clone();
            move || set.publish()
        });
        let heats = set.prepare();
        set.lie_down();
        let sleeps = set.may_sleep(heats, look_at_heats);
        other.join().unwrap();
        producer.join().unwrap();
        if sleeps {
            assert!(set.eventfd.wakes(), "data of a member that is not armed");
        }
    }
}

#[test]
fn hot_since_it_was_prepared() {
    holds(a_member_becomes_hot(true));
}

#[test]
fn hot_since_it_was_prepared_and_nobody_looks() {
    breaks("look at the heats", a_member_becomes_hot(false));
}

/// The parts that can be left out.
#[derive(Clone, Copy)]
struct Parts {
    fence_of_sleep: bool,
    fence_of_change: bool,
    look_at_changes: bool,
}

const ALL: Parts = Parts { fence_of_sleep: true, fence_of_change: true, look_at_changes: true };

/// A thread goes to sleep in the kernel alone while another one's sends bring a connection to memory, and find its ring full.
fn a_connection_comes_to_memory(p: Parts) -> impl Fn() + Sync + Send + 'static {
    move || {
        let set = Set::new();
        let other = thread::spawn({
            let set = set.clone();
            move || {
                set.changes.fetch_add(1, AcqRel);
                if p.fence_of_change {
                    fence(SeqCst);
                }
                if set.alone.load(Relaxed) > 0 {
                    set.kernel.ring();
                }
            }
        });
        let sleeps = {
            let inner = set.inner.lock().unwrap();
            set.alone.fetch_add(1, AcqRel);
            if p.fence_of_sleep {
                fence(SeqCst);
            }
            !p.look_at_changes || inner.changes == set.changes.load(Acquire)
        };
        other.join().unwrap();
        if sleeps {
            assert!(set.kernel.wakes(), "who sleeps in the kernel alone hears of no room");
        }
    }
}

#[test]
fn alone_while_a_connection_comes_to_memory() {
    holds(a_connection_comes_to_memory(ALL));
}

#[test]
fn alone_without_the_look_at_changes() {
    breaks("look at the changes", a_connection_comes_to_memory(Parts { look_at_changes: false, ..ALL }));
}

#[test]
fn alone_without_the_sleepers_fence() {
    breaks("fence of who sleeps", a_connection_comes_to_memory(Parts { fence_of_sleep: false, ..ALL }));
}

#[test]
fn alone_without_the_senders_fence() {
    breaks("fence of who changes", a_connection_comes_to_memory(Parts { fence_of_change: false, ..ALL }));
}
