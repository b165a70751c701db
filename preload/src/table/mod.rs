//! The socket table: descriptor -> socket, epoll set or ring, one load and no lock.
//!
//! A slot holds null (not ours: the hook calls the real function), a [`Sock`] or, tagged, an epoll
//! set or a ring of io_uring. The table covers the descriptors up to `fs.nr_open`'s default; it lies in .bss, so pages that
//! are never touched cost nothing and no RLIMIT_NOFILE makes it large. Private to the process; a
//! forked child has a copy.
//!
//! - [`life`]: how slots begin and end (socket, accept, dup, close, fork, exec);
//! - [`leaver`]: connections that are closed here and held by relatives;
//! - [`late`]: sockets that were closed while threads are in calls on them;
//! - [`inherit`]: connections that were there before the program was;
//! - [`passed`]: connections that messages take to other processes;
//! - [`spawned`]: those that file actions give to programs;
//! - [`sending`], [`receiving`]: payload of a tracked socket;
//! - [`set`]: what a hooked epoll set knows of its members;
//! - [`homes`]: which sets may have a socket;
//! - [`rings`]: rings of io_uring;
//! - [`waited`]: epoll sets that were closed while threads wait in them;
//! - [`options`]: socket options, fcntl and ioctl of a tracked socket;
//! - [`busy`]: how long ago a connection was used;
//! - [`steps`]: the rendezvous goes on in calls that wait;
//! - [`child`], [`forks`]: fork, exec and the end of a process;
//! - [`apart`]: processes that change their privileges;
//! - [`confine`]: processes that restrict their system calls;
//! - [`drain`]: connections that the control page wants on TCP.

pub mod apart;
pub mod buried;
pub mod busy;
pub mod child;
pub mod confine;
pub mod disconnect;
pub mod drain;
pub mod files;
pub mod forks;
pub mod full;
pub mod homes;
pub mod index;
pub mod inherit;
pub mod late;
mod leaver;
pub mod left;
pub mod life;
pub mod logs;
mod marks;
pub mod member;
pub mod members;
pub mod options;
pub mod own;
pub mod passed;
pub mod passing;
pub mod receiving;
pub mod returning;
pub mod rings;
pub mod sending;
pub mod set;
pub mod spawned;
pub mod steps;
pub mod torn;
pub mod waited;

use crate::family::sock::Sock;
use rings::Ring;
use set::Set;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// Descriptors that can be tracked.
pub const CAP: usize = 1 << 20;
const SET_TAG: usize = 1;
const RING_TAG: usize = 3;

static TABLE: [AtomicPtr<u8>; CAP] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CAP];
/// No slot at or above this was ever used.
static HIGH: AtomicU32 = AtomicU32::new(0);

/// What a descriptor is.
#[derive(Clone, Copy)]
pub enum Entry {
    /// A TCP socket.
    Sock(&'static Sock),
    /// An epoll set with tracked members.
    Set(&'static Set),
    /// A ring of io_uring.
    Ring(&'static Ring),
}

/// The tracked socket behind a descriptor.
#[inline]
pub fn sock(fd: i32) -> Option<&'static Sock> {
    let p = TABLE.get(fd as usize)?.load(Acquire); // pairs with the Release in `put`
    // Null or tagged, in one question: the tag is the lowest bit, and here the sign.
    if p.addr().rotate_right(1).cast_signed() <= 0 {
        return None;
    }
    // SAFETY: untagged pointers are socket records, which are never unmapped.
    Some(unsafe { &*p.cast::<Sock>() })
}

/// Whatever is tracked behind a descriptor.
#[inline]
pub fn get(fd: i32) -> Option<Entry> {
    let p = TABLE.get(fd as usize)?.load(Acquire);
    decode(p)
}

fn decode(p: *mut u8) -> Option<Entry> {
    if p.is_null() {
        return None;
    }
    if p as usize & RING_TAG == RING_TAG {
        // SAFETY: so tagged pointers are rings, which are static.
        return Some(Entry::Ring(unsafe { &*p.map_addr(|a| a & !RING_TAG).cast::<Ring>() }));
    }
    if p as usize & SET_TAG != 0 {
        // SAFETY: tagged pointers are sets, which are recycled but never unmapped.
        return Some(Entry::Set(unsafe { &*p.map_addr(|a| a & !SET_TAG).cast::<Set>() }));
    }
    // SAFETY: as in `sock`.
    Some(Entry::Sock(unsafe { &*p.cast::<Sock>() }))
}

/// The epoll set behind a descriptor.
#[inline]
pub fn epoll_set(fd: i32) -> Option<&'static Set> {
    let p = TABLE.get(fd as usize)?.load(Acquire); // pairs with the Release in `put`
    // SAFETY: so tagged pointers are sets, which are recycled but never unmapped.
    (p.addr() & RING_TAG == SET_TAG).then(|| unsafe { &*p.map_addr(|a| a - SET_TAG).cast::<Set>() })
}

/// Whether a descriptor number has room in the table.
pub fn has_room(fd: i32) -> bool {
    (fd as usize) < CAP
}

/// Fills a slot; what was there (a close that nobody saw) is returned.
pub fn put(fd: i32, e: Entry) -> Option<Entry> {
    let slot = TABLE.get(fd as usize)?;
    if HIGH.load(Relaxed) <= fd as u32 {
        HIGH.fetch_max(fd as u32 + 1, Relaxed);
    }
    decode(slot.swap(encode(e), AcqRel))
}

fn encode(e: Entry) -> *mut u8 {
    match e {
        Entry::Sock(s) => std::ptr::from_ref(s).cast::<u8>().cast_mut(),
        Entry::Set(s) => std::ptr::from_ref(s).cast::<u8>().cast_mut().map_addr(|a| a | SET_TAG),
        Entry::Ring(r) => std::ptr::from_ref(r).cast::<u8>().cast_mut().map_addr(|a| a | RING_TAG),
    }
}

/// The set of an epoll descriptor: this one, unless another thread was first with one of its own; then this one goes back.
fn put_set(fd: i32, s: &'static set::Set) -> &'static set::Set {
    let Some(slot) = TABLE.get(fd as usize) else { return s };
    loop {
        let now = slot.load(Acquire);
        if let Some(Entry::Set(first)) = decode(now) {
            set::release(s);
            return first;
        }
        HIGH.fetch_max(fd as u32 + 1, Relaxed);
        // A connection that stands there was closed, and nobody saw that.
        if slot.compare_exchange(now, encode(Entry::Set(s)), AcqRel, Relaxed).is_ok() {
            return s;
        }
    }
}

/// Empties a slot.
pub fn take(fd: i32) -> Option<Entry> {
    decode(TABLE.get(fd as usize)?.swap(std::ptr::null_mut(), AcqRel))
}

/// All tracked descriptors from `first` to `last`.
pub fn range(first: u32, last: u32) -> impl Iterator<Item = (i32, Entry)> {
    let end = HIGH.load(Relaxed).min(last.saturating_add(1));
    (first..end).filter_map(|fd| Some((fd as i32, get(fd as i32)?)))
}

/// All descriptors of connections.
fn connections() -> impl Iterator<Item = (i32, &'static Sock)> {
    range(0, u32::MAX).filter_map(|(fd, e)| match e {
        Entry::Sock(s) if s.is_connection() => Some((fd, s)),
        _ => None,
    })
}
