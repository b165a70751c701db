//! This process: its record in the family page, its counters, and how a fork is noticed.
//!
//! A page marked MADV_WIPEONFORK holds the pid: zero there means that this is a forked child that
//! has not introduced itself yet. A vfork child shares it with its parent, so paths that change
//! state on close or dup compare getpid as well ([`is_vfork_child`]).

use super::{PROC_CAP, PROC_OFF, at, ended};
use crate::sys::thread::Thread;
use crate::sys::{mem, proc, thread};
use smcr_proto::page::{self, Counter, process as field};
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::*};

const COUNTERS: usize = (field::FALLBACKS - field::COUNTERS) / 8;

/// Mirror of a process record (`proto::page::process`).
#[repr(C)]
pub struct Record {
    pub(super) pid: AtomicU32,
    pub(super) enabled: AtomicU32,
    pub(super) start: AtomicU64,
    name: [AtomicU64; 2],
    version: AtomicU32,
    wake_fd: AtomicI32,
    pub(super) wake_inode: AtomicU64,
    _pad: [AtomicU32; 4],
    pub(super) counters: [AtomicU64; COUNTERS],
    pub(super) fallbacks: [AtomicU64; field::FALLBACK_CAP],
}

const _: () = assert!(size_of::<Record>() == page::process::LEN);
const _: () = assert!(std::mem::offset_of!(Record, counters) == field::COUNTERS);
const _: () = assert!(std::mem::offset_of!(Record, fallbacks) == field::FALLBACKS);
const _: () = assert!(std::mem::offset_of!(Record, start) == field::START);
const _: () = assert!(std::mem::offset_of!(Record, name) == field::NAME);
const _: () = assert!(std::mem::offset_of!(Record, version) == field::LIB_VERSION);
const _: () = assert!(std::mem::offset_of!(Record, wake_fd) == field::WAKE_FD);
const _: () = assert!(std::mem::offset_of!(Record, wake_inode) == field::WAKE_INODE);

/// Counts when there is no record (family page refused or full).
static NOWHERE: [AtomicU64; COUNTERS] = [const { AtomicU64::new(0) }; COUNTERS];
static RECORD: AtomicPtr<Record> = AtomicPtr::new(std::ptr::null_mut());
static INDEX: AtomicU32 = AtomicU32::new(u32::MAX);
/// The page that a fork zeroes: the pid in its first word.
static WIPED: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Takes a record for this process. Called when the family page is made, and in a forked child.
pub fn register(base: *mut u8) {
    let pid = proc::pid();
    remember_pid(pid);
    // Each child asks about a few others: with all of them, each fork would cost what there are relatives.
    let (high, turn) = (high(base), FORKS.load(Relaxed) as usize * FEW);
    (0..FEW.min(high)).for_each(|n| {
        reap_if_gone(base, (turn + n) % high);
    });
    let Some(i) = take_record(base, pid).or_else(|| {
        reap_dead(base);
        take_record(base, pid)
    }) else {
        return unregister();
    };
    used(base, i);
    let r = record(base, i);
    r.name_it(&proc::name());
    r.start.store(proc::start_time(), Relaxed);
    r.enabled.store(ENABLED.load(Relaxed), Relaxed);
    r.wake_inode.store(0, Relaxed);
    RECORD.store(std::ptr::from_ref(r).cast_mut(), Release);
    INDEX.store(i as u32, Relaxed);
}

/// So many records are looked at by each new process whether theirs is gone: dead ones stay few beside the living.
const FEW: usize = 8;

/// A record for this process: one that stands with its number, which a process had that is gone (a member would have registered
/// itself), else a free one.
fn take_record(base: *mut u8, pid: u32) -> Option<usize> {
    if let Some(i) = (0..high(base)).find(|i| record(base, *i).pid.load(Relaxed) == pid) {
        empty(base, i);
        return Some(i);
    }
    (0..PROC_CAP).find(|i| record(base, *i).pid.compare_exchange(0, pid, AcqRel, Relaxed).is_ok())
}

/// This process has no record in the page: one that was forked shows its parent's until it [`register`]s.
pub fn unregister() {
    remember_pid(proc::pid());
    RECORD.store(std::ptr::null_mut(), Release);
    INDEX.store(u32::MAX, Relaxed);
}

/// Children that this process forked last: they may not have introduced themselves yet.
static CHILDREN: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A child was forked.
pub fn note_child(pid: u32) {
    CHILDREN[FORKS.fetch_add(1, Relaxed) as usize % CHILDREN.len()].store(pid, Relaxed);
}

/// A forked child has none.
pub fn forget_children() {
    CHILDREN.iter().for_each(|c| c.store(0, Relaxed));
}

/// Whether another process has, or had, what this one has by a fork.
pub fn has_had_relatives() -> bool {
    FORKS.load(Relaxed) > 0 || has_relatives()
}

/// Whether another process lives that has this page.
pub fn has_relatives() -> bool {
    let Some(base) = super::base() else { return false };
    let high = high(base);
    let records = || (0..high).map(|i| record(base, i));
    let is_other = |pid: u32| pid != 0 && pid != field::ENDED && pid != self::pid();
    let is_new = |pid: u32| pid != 0 && records().all(|r| r.pid.load(Relaxed) != pid);
    let shares = |r: &Record| is_other(r.pid.load(Relaxed)) && r.enabled.load(Relaxed) != field::APART;
    records().any(|r| shares(r) && !proc::is_gone(r.pid.load(Relaxed)))
        || CHILDREN.iter().map(|c| c.load(Relaxed)).any(|pid| is_new(pid) && !proc::is_gone(pid))
}

/// The others that have this page and have introduced themselves.
pub fn relatives() -> impl Iterator<Item = u32> {
    let base = super::base();
    let high = base.map_or(0, high);
    let pid = move |i| base.map(|b| record(b, i)).filter(|r| r.enabled.load(Relaxed) != field::APART);
    let all = (0..high).filter_map(pid).map(|r| r.pid.load(Acquire));
    all.filter(|pid| *pid != 0 && *pid != field::ENDED && *pid != self::pid())
}

/// The number of the record of a process.
pub fn number_of(pid: u32) -> Option<u32> {
    let base = super::base()?;
    (0..high(base)).find(|i| record(base, *i).pid.load(Relaxed) == pid).map(|i| i as u32)
}

/// In the page that this process leaves: its record says that it has gone, and keeps its place until it ends.
pub(super) fn go_away(others: *mut u8) {
    let Some(r) = ((index() as usize) < PROC_CAP).then(|| record(others, index() as usize)) else { return };
    r.enabled.store(field::APART, Relaxed);
    r.wake_inode.store(0, Relaxed);
    for counter in &r.counters {
        counter.store(0, Relaxed);
    }
    for entry in &r.fallbacks {
        entry.store(0, Relaxed);
    }
}

/// Gives back what processes held that are gone; true if anything became free, a record among it.
pub fn reap_dead(base: *mut u8) -> bool {
    (0..high(base)).filter(|i| reap_if_gone(base, *i)).count() > 0
}

/// Gives back what the process with this record held, if that is gone; false if it is not.
pub(super) fn reap_if_gone(base: *mut u8, number: usize) -> bool {
    let r = record(base, number);
    let pid = r.pid.load(Relaxed);
    if pid == 0 || pid == field::ENDED || !proc::is_gone(pid) {
        return false;
    }
    // It is ours while it is emptied: nobody else takes it then, unless we are gone as well.
    if r.pid.compare_exchange(pid, proc::pid(), AcqRel, Relaxed).is_ok() {
        empty(base, number);
        r.pid.store(0, Release); // pairs with the exchange of whoever takes it
    }
    true
}

/// Gives back what a process held that is gone, and adds its counters to those of the ended ones.
fn empty(base: *mut u8, number: usize) {
    super::reap(base, number as u32);
    ended::absorb(base, record(base, number));
}

/// No record at or above this was ever in use.
fn high(base: *mut u8) -> usize {
    (at::<AtomicU32>(base, page::header::PROC_HIGH).load(Acquire) as usize).min(PROC_CAP)
}

/// The record with this number is, or was, in use.
pub(super) fn used(base: *mut u8, number: usize) {
    at::<AtomicU32>(base, page::header::PROC_HIGH).fetch_max(number as u32 + 1, Relaxed);
}

/// The record with this number.
pub(super) fn record(base: *mut u8, number: usize) -> &'static Record {
    at(base, PROC_OFF + number * page::process::LEN)
}

fn version() -> u32 {
    let part = |s: &str| s.parse::<u32>().unwrap_or(0);
    part(env!("CARGO_PKG_VERSION_MAJOR")) << 16 | part(env!("CARGO_PKG_VERSION_MINOR")) << 8 | part(env!("CARGO_PKG_VERSION_PATCH"))
}

fn remember_pid(pid: u32) {
    let mut page = WIPED.load(Acquire);
    if page.is_null() {
        let Ok(p) = mem::map_private(4096) else { return };
        if mem::wipe_on_fork(p, 4096).is_err() {
            mem::unmap(p, 4096);
            return;
        }
        page = p.cast();
        WIPED.store(page, Release);
    }
    // SAFETY: the page is a live mapping of our own, never unmapped.
    unsafe { &*page }.store(pid, Relaxed);
}

/// Whether this is a forked child that has not introduced itself.
#[inline]
pub fn is_new_child() -> bool {
    let page = WIPED.load(Relaxed);
    // SAFETY: as above.
    !page.is_null() && unsafe { &*page }.load(Relaxed) == 0
}

/// vfork(2) was called in this process (a byte that the hook sets before the real call).
pub static SMCR_VFORK_USED: AtomicU8 = AtomicU8::new(0);

/// Whether the caller runs in a vfork child: the memory is the parent's, the pid is not. Costs a
/// system call only in processes that have called vfork.
pub fn is_vfork_child() -> bool {
    let page = WIPED.load(Relaxed);
    if page.is_null() || SMCR_VFORK_USED.load(Relaxed) == 0 {
        return false;
    }
    // SAFETY: as above.
    let known = unsafe { &*page }.load(Relaxed);
    known != 0 && known != proc::pid()
}

/// The pid as remembered; 0 before the first eligible socket and in a new child.
pub fn pid() -> u32 {
    let page = WIPED.load(Relaxed);
    // SAFETY: as above.
    if page.is_null() { 0 } else { unsafe { &*page }.load(Relaxed) }
}

/// Index of this process's record, for socket records.
pub fn index() -> u32 {
    INDEX.load(Relaxed)
}

/// Start time of this process in clock ticks since boot, as in its record.
pub fn start_time() -> u64 {
    let r = RECORD.load(Relaxed);
    // SAFETY: the record is in the family page, which is never unmapped.
    if r.is_null() { proc::start_time() } else { unsafe { (*r).start.load(Relaxed) } }
}

/// What the record shows: a forked child begins with the policy that its parent had.
static ENABLED: AtomicU32 = AtomicU32::new(1);

/// Shows whether acceleration is on for this process.
pub fn show_enabled(on: bool) {
    ENABLED.store(u32::from(on), Relaxed);
    let r = RECORD.load(Relaxed);
    if !r.is_null() {
        // SAFETY: as above.
        unsafe { (*r).enabled.store(u32::from(on), Relaxed) };
    }
}

/// Shows the pipe that wakes this process (`control::wake`).
pub fn show_wake(fd: i32, inode: u64) {
    let r = RECORD.load(Relaxed);
    if !r.is_null() {
        // SAFETY: as above.
        let r = unsafe { &*r };
        r.wake_fd.store(fd, Relaxed);
        r.wake_inode.store(inode, Release); // a reader that sees the inode sees its number
    }
}

/// Adds to a counter.
#[inline]
pub fn count(c: Counter, n: i64) {
    count_at(c as usize, n);
}

/// Adds to the counter with this number.
#[inline]
pub fn count_at(number: usize, n: i64) {
    let r = RECORD.load(Relaxed);
    // SAFETY: the record is in the family page, which is never unmapped.
    let counters = if r.is_null() { &NOWHERE } else { unsafe { &(*r).counters } };
    counters[number].fetch_add(n as u64, Relaxed);
}

/// Counts a connection that ended on TCP, by its reason.
pub fn count_fallback(reason: u32) {
    let r = RECORD.load(Relaxed);
    if !r.is_null() {
        // SAFETY: as above.
        unsafe { &*r }.add_fallback(reason, 1);
    }
}

impl Record {
    /// Adds to the counter with this number.
    pub(super) fn add(&self, number: usize, n: i64) {
        self.counters[number].fetch_add(n as u64, Relaxed);
    }

    /// Adds to the connections that ended on TCP for this reason.
    pub(super) fn add_fallback(&self, reason: u32, n: u32) {
        for entry in &self.fallbacks {
            let mut old = entry.load(Relaxed);
            while old == 0 || old >> 32 == u64::from(reason) {
                let new = u64::from(reason) << 32 | u64::from((old as u32).saturating_add(n));
                match entry.compare_exchange_weak(old, new, Relaxed, Relaxed) {
                    Ok(_) => return,
                    Err(v) => old = v,
                }
            }
        }
    }

    /// Shows the program's name and the library's version.
    pub(super) fn name_it(&self, name: &[u8; 16]) {
        for (n, part) in self.name.iter().zip(name.chunks_exact(8)) {
            n.store(u64::from_ne_bytes(part.try_into().unwrap_or([0; 8])), Relaxed);
        }
        self.version.store(version(), Relaxed);
    }
}

/// The value of a counter.
pub fn value(c: Counter) -> u64 {
    let r = RECORD.load(Relaxed);
    // SAFETY: as above.
    let counters = if r.is_null() { &NOWHERE } else { unsafe { &(*r).counters } };
    counters[c as usize].load(Relaxed)
}

/// The calling thread's id, asked of the kernel once per thread.
#[inline]
pub fn tid() -> u32 {
    tid_of(thread::here())
}

/// The same, of its block.
#[inline(always)]
pub fn tid_of(t: &Thread) -> u32 {
    match t.tid.get() {
        0 => {
            let id = proc::tid();
            t.tid.set(id);
            id
        }
        id => id,
    }
}

/// The calling thread is another one now (fork).
pub fn forget_tid() {
    thread::with(|t| t.tid.set(0));
}

/// Shared memory mapped by this process, in bytes (also the counter `memory`).
static MEMORY: AtomicI64 = AtomicI64::new(0);

/// Notes that `bytes` more (or less) are mapped.
pub fn note_memory(bytes: i64) {
    MEMORY.fetch_add(bytes, Relaxed);
    count(Counter::Memory, bytes);
}

/// Notes that `bytes` more are about to be mapped, unless that makes more than `limit`.
pub fn reserve_memory(bytes: u64, limit: u64) -> bool {
    let then = |now: i64| now.checked_add_unsigned(bytes).filter(|n| u64::try_from(*n).is_ok_and(|n| n <= limit));
    let taken = MEMORY.fetch_update(Relaxed, Relaxed, then).is_ok();
    if taken {
        count(Counter::Memory, bytes as i64);
    }
    taken
}

/// A forked child has what its parent has mapped: its gauge begins there, for what it unmaps is taken off.
pub fn show_memory_in_child() {
    count(Counter::Memory, memory() as i64);
}

/// Bytes of shared memory mapped now.
pub fn memory() -> u64 {
    MEMORY.load(Relaxed).max(0) as u64
}
