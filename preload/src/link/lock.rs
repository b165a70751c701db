//! The lock of all links, and the marks of those who did not wait for it.
//!
//! It is held for short pieces of work that never wait. A thread that finds it taken leaves a mark at its
//! connection and goes on: who holds the lock looks for marks before and after it lets go.

use super::state::State;
use crate::family::process;
use crate::sys::postponed::Work;
use crate::sys::thread::full_fence;
use crate::sys::{self, clock, fd, held, proc};
use smcr_proto::smc::Time;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// Connections over links at a time.
pub const SLOTS: usize = 4096;

struct Links {
    owner: AtomicU32,
    state: UnsafeCell<State>,
}

// SAFETY: the state is touched only by the holder of `owner`.
unsafe impl Sync for Links {}

static LINKS: Links = Links { owner: AtomicU32::new(0), state: UnsafeCell::new(State::EMPTY) };

/// Connections with a mark, one bit each.
pub(super) static MARKS: [AtomicU64; SLOTS / 64] = [const { AtomicU64::new(0) }; SLOTS / 64];
/// Words of [`MARKS`] in which marks were left since somebody looked, one bit each.
pub(super) static MARKED: AtomicU64 = AtomicU64::new(0);
const _: () = assert!(SLOTS / 64 <= 64);
/// Connections in use: 0 keeps every wait of the engine out of here.
pub(super) static USED: AtomicU32 = AtomicU32::new(0);
/// eventfd of the service thread.
static SERVICE: AtomicI32 = AtomicI32::new(-1);
/// When it comes by itself.
static COMES: AtomicU64 = AtomicU64::new(0);
/// The parent's eventfd, in a forked child.
static PARENT: AtomicI32 = AtomicI32::new(-1);
/// This is a forked child of a process with links.
static INHERITED: AtomicU32 = AtomicU32::new(0);
/// Connections that wait for a completion: events of every kind are asked for.
pub(super) static STALLED: AtomicU32 = AtomicU32::new(0);

/// Whether a connection waits for a completion.
pub fn is_stalled() -> bool {
    STALLED.load(Relaxed) != 0
}

/// Whether this process has connections over links.
#[inline]
pub fn is_used() -> bool {
    USED.load(Relaxed) != 0
}

/// A forked child: the memory of the links is its parent's as well, their queue pairs are not its own.
/// It has no links yet, and none of the locks.
pub fn forget_in_child() {
    sys::device::mark_in_child();
    crate::verbs::uevent::forget_in_child();
    // SAFETY: a forked child has one thread.
    let has_devices = unsafe { !(*LINKS.state.get()).devices.is_empty() };
    if !is_used() && !has_devices && LINKS.owner.load(Relaxed) == 0 {
        return;
    }
    LINKS.owner.store(0, Relaxed);
    // SAFETY: as above. What was there is left as it is: its memory and its queue
    // pairs are in use by the parent. Its descriptors are: whoever has them can destroy what is the parent's.
    unsafe {
        for device in &(*LINKS.state.get()).devices {
            device.descriptors().into_iter().for_each(fd::close);
        }
        std::ptr::write(LINKS.state.get(), State::EMPTY);
    }
    for marks in &MARKS {
        marks.store(0, Relaxed);
    }
    MARKED.store(0, Relaxed);
    STALLED.store(0, Relaxed);
    COMES.store(0, Relaxed);
    super::cover::forget_in_child();
    PARENT.store(SERVICE.swap(-1, Relaxed), Relaxed);
    if USED.swap(0, Relaxed) != 0 {
        INHERITED.store(1, Relaxed);
    }
}

/// Whether connections over the parent's links were inherited.
pub fn is_inherited() -> bool {
    INHERITED.load(Relaxed) != 0
}

/// The eventfd by which it is told; -1 without one.
pub fn parent() -> i32 {
    PARENT.load(Relaxed)
}

/// It has another number now; false if it is another one.
pub fn moved(old: i32, new: i32) -> bool {
    [&PARENT, &SERVICE].iter().any(|place| place.compare_exchange(old, new, AcqRel, Relaxed).is_ok())
}

/// This process has nothing to do with its parent's links any more.
pub fn leave_to_parent() {
    held::close(&PARENT);
    INHERITED.store(0, Relaxed);
    sys::device::leave_to_parent();
}

/// Tells the parent, whose link it is, to look.
pub fn kick_parent() {
    // The child of an inline fork has it under the parent's name.
    held::ring(if process::is_new_child() { &SERVICE } else { &PARENT });
}

/// Rounds of a wait for the lock that are spent spinning; the last of those in which others are let go first.
const SPINS: u32 = 100;
const YIELDS: u32 = 200;

/// Runs `f` with everything; None if this thread is in here already (a signal handler).
pub fn with<T>(f: impl FnOnce(&mut State) -> T) -> Option<T> {
    let me = process::tid();
    let mut rounds = 0u32;
    let work = loop {
        if let Some(work) = take(me) {
            break work;
        }
        if LINKS.owner.load(Relaxed) == me || process::is_new_child() {
            return None;
        }
        rounds += 1;
        if rounds <= SPINS {
            std::hint::spin_loop();
        } else if rounds <= YIELDS {
            proc::yield_now();
        } else {
            // Memory is being registered, or a device opened: many who yield to each other would leave little of the
            // processors to the one that does it.
            let _ = fd::poll(&mut [], 1);
        }
    };
    let result = run(&work, |state| {
        let r = f(state);
        state.flush_marked();
        r
    });
    after();
    result
}

/// Takes the lock if it is free. A child of an inline fork, of which nothing has been told, has it not: what is in here is its parent's.
fn take(me: u32) -> Option<Work> {
    if process::is_new_child() {
        return None;
    }
    let work = Work::begin();
    LINKS.owner.compare_exchange(0, me, Acquire, Relaxed).is_ok().then_some(work)
}

/// As [`with`], but only if nobody else is in here.
pub fn try_with(f: impl FnOnce(&mut State)) -> bool {
    let Some(work) = take(process::tid()) else { return false };
    run(&work, |state| {
        f(state);
        state.flush_marked();
    });
    after();
    true
}

/// Runs `f` with the lock held and lets it go; None if it panicked. libibverbs makes system calls that are cancellation
/// points, where no thread may be unwound. `_work`: since before it was taken, so that no handler jumps out of here.
fn run<T>(_work: &Work, f: impl FnOnce(&mut State) -> T) -> Option<T> {
    let mut old = 0;
    // SAFETY: glibc's call; PTHREAD_CANCEL_DISABLE is 1.
    unsafe { pthread_setcancelstate(1, &mut old) };
    // SAFETY: the lock is held by this thread.
    let state = unsafe { &mut *LINKS.state.get() };
    state.turn.begin(state.devices.len());
    let result = crate::sys::caught(|| f(state));
    LINKS.owner.store(0, Release);
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(old, &mut old) };
    result
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
}

/// How often a thread looks for marks before the service thread goes on: where a link is flooded there is no end of them, and it has something
/// else to do.
const LOOKS: u32 = 64;

/// Marks that were left while the lock was held, or now.
fn after() {
    for _ in 0..LOOKS {
        // Pairs with itself in who has left a mark (`kick`): either we see it, or that one finds the lock free.
        full_fence();
        if MARKED.load(Relaxed) == 0 || !try_flush() {
            return;
        }
    }
    call_service();
}

fn try_flush() -> bool {
    let Some(work) = take(process::tid()) else { return false };
    run(&work, State::flush_marked);
    true
}

/// A connection has something to send or to tell: now, or by who is at it.
pub fn kick(index: u32) {
    mark(index);
    after();
}

/// Says where the service thread listens.
pub fn set_service(eventfd: i32) {
    SERVICE.store(eventfd, Release);
}

/// Where the service thread listens, -1 without one.
pub fn service() -> i32 {
    SERVICE.load(Acquire)
}

/// Calls the service thread.
pub fn call_service() {
    held::ring(&SERVICE);
}

/// The service thread comes.
pub fn was_called() {
    held::clear(&SERVICE);
}

/// The service thread has looked at everything, and comes again at this time if nothing calls it. With the lock held, as
/// [`call_by`] is.
pub(super) fn comes_at(at: Option<Time>) {
    COMES.store(at.map_or(u64::MAX, |at| at.as_nanos() as u64), Relaxed);
}

/// It has to come by this time. A little later will do: who is called seldom needs no call for each message.
pub(super) fn call_by(at: Time) {
    const LATE: Time = Time::from_secs(1);
    if COMES.load(Relaxed) > (at + LATE).as_nanos() as u64 {
        COMES.store(0, Relaxed);
        call_service();
    }
}

/// The time for the machines.
pub fn now() -> Time {
    Time::from_nanos(clock::now_ns())
}

/// Leaves a mark at a connection, for who holds the lock.
pub(super) fn mark(index: u32) {
    let i = index as usize % SLOTS;
    MARKS[i / 64].fetch_or(1 << (i % 64), AcqRel);
    // Release: who takes the bit (`State::flush_marked`) finds the mark.
    MARKED.fetch_or(1 << (i / 64), Release);
}
