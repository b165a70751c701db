//! The memory of one connection: a header and two rings, in a memfd shared with one peer.
//!
//! The ring back lies before the header and ends at it, the other one begins behind it: both have some bytes in the header's page,
//! and a connection of small messages needs no other one (`engine::near`).
//!
//! The connecting side makes it, the accepting side maps it after checking that it can't shrink or
//! raise SIGBUS. Either end may be hostile: whatever is read from here is a claim, checked by the
//! reader (`ring::claim`). Each line of 64 bytes has one writer, except the two wake words.

use super::{annex, wide};
use crate::config;
use crate::control;
use crate::family::process;
use crate::fault::{self, Step as Fault};
use crate::layout::HEADER;
use crate::sys::{self, Errno, Res, mem, thread};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

pub use crate::layout::{Dir, NEAR, RegionHeader, ctl, fin, setup, size};

/// Largest ring, and the room kept for each (pages that are never touched cost nothing).
pub const RING_MAX: usize = 256 * 1024;
/// Smallest ring.
pub const RING_MIN: usize = 4096;
/// Bytes of a region.
pub const LEN: usize = HEADER + 2 * RING_MAX;
/// Where its header lies.
const HEADER_AT: usize = RING_MAX + NEAR[1];
/// Bytes of the file that it lies in: each direction has a wide ring (`wide`) and an annex (`annex`) behind it.
pub const FILE_LEN: usize = LEN + wide::BOTH + 2 * annex::LEN;
/// "SMCRSHM" and the layout version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SMCRSHM\x09");

/// Makes a region: the mapping and its descriptor (to be sent and closed). ENOBUFS: no room below `max_memory`.
pub fn make(ring_size: usize) -> Res<(*mut RegionHeader, i32)> {
    reserve()?;
    build(ring_size).inspect_err(|_| process::note_memory(-(LEN as i64)))
}

/// Room for a region below `max_memory`. Taken before anything is mapped: several threads may look at the same time.
fn reserve() -> Res<()> {
    if process::reserve_memory(LEN as u64, config::max_memory()) { Ok(()) } else { Err(Errno(libc::ENOBUFS)) }
}

fn build(ring_size: usize) -> Res<(*mut RegionHeader, i32)> {
    if fault::fails(Fault::Memory) {
        return Err(Errno(libc::ENOMEM));
    }
    let fd = mem::memfd(c"smcr-region", FILE_LEN)?;
    let p = map(fd).inspect_err(|_| sys::fd::close(fd))?;
    // SAFETY: a fresh mapping; all fields are atomics.
    let r = unsafe { &*p };
    r.magic.store(MAGIC, Relaxed);
    for d in &r.dirs {
        d.size.store(ring_size as u32, Relaxed);
    }
    fault::pass(Fault::RegionMade);
    Ok((p, fd))
}

/// Fresh memory in the place of a region that a peer refused; its descriptor, as from [`make`]. A thread
/// that looks there meanwhile finds one or the other.
pub fn renew(p: *mut RegionHeader, ring_size: usize) -> Res<i32> {
    let (fresh, fd) = build(ring_size)?;
    let over = mem::map_over(start_of(p), fd, LEN, true);
    mem::unmap(start_of(fresh), LEN);
    match over {
        Ok(_) => Ok(fd),
        Err(e) => {
            sys::fd::close(fd);
            Err(e)
        }
    }
}

/// Maps a region that a peer sent; closes the descriptor. ENOBUFS: no room below `max_memory`.
pub fn adopt(fd: i32) -> Res<*mut RegionHeader> {
    let mapped = reserve().and_then(|()| check_and_map(fd).inspect_err(|_| process::note_memory(-(LEN as i64))));
    sys::fd::close(fd);
    let p = mapped?;
    fault::pass(Fault::RegionAdopted);
    Ok(p)
}

fn check_and_map(fd: i32) -> Res<*mut RegionHeader> {
    if fault::fails(Fault::Memory) || !mem::is_safe_memfd(fd, FILE_LEN) {
        return Err(Errno(libc::EPROTO));
    }
    let p = map(fd)?;
    // SAFETY: a fresh mapping of LEN bytes whose size is sealed.
    if unsafe { &*p }.magic.load(Relaxed) != MAGIC {
        mem::unmap(start_of(p), LEN);
        return Err(Errno(libc::EPROTO));
    }
    Ok(p)
}

/// Unmaps a region that no thread of this process uses any more. Where there are other threads, one may just be about to look
/// into it without a lock (a hint, before it asks who it is for): it finds zeros there, until some more have gone.
pub fn drop_mapping(p: *mut RegionHeader) {
    process::note_memory(-(LEN as i64));
    let mut over = p;
    if !thread::is_only() && !control::is_restricted() && mem::empty(start_of(p), LEN).is_ok() {
        over = GONE[NEXT_GONE.fetch_add(1, Relaxed) % GONE.len()].swap(p, AcqRel);
    }
    if !over.is_null() {
        mem::unmap(start_of(over), LEN);
    }
}

/// Where the last regions were.
static GONE: [AtomicPtr<RegionHeader>; 32] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 32];
static NEXT_GONE: AtomicUsize = AtomicUsize::new(0);

/// Maps the region in a file of [`FILE_LEN`] bytes; its header.
pub fn map(fd: i32) -> Res<*mut RegionHeader> {
    mem::map_shared(fd, LEN, true).map(|start| start.wrapping_add(HEADER_AT).cast())
}

/// First byte of the mapping that a region's header lies in.
pub fn start_of(p: *const RegionHeader) -> *mut u8 {
    p.cast::<u8>().wrapping_sub(HEADER_AT).cast_mut()
}

/// What a direction is in its region.
#[inline]
pub fn number_of(region: &RegionHeader, dir: &Dir) -> usize {
    usize::from(std::ptr::eq(dir, &region.dirs[1]))
}

/// First byte of the ring of direction `dir` while it has `size` bytes, RING_MAX at most.
#[inline]
pub fn ring_of(p: *const RegionHeader, dir: usize, size: usize) -> *mut u8 {
    let p = p.cast::<u8>().cast_mut();
    if dir == 0 { p.wrapping_add(size_of::<RegionHeader>()) } else { p.wrapping_sub(size) }
}

/// Gives the pages of an empty ring back, but for the header's.
pub fn give_back(p: *const RegionHeader, dir: usize, size: usize) {
    let (first, end) = match dir {
        0 => (RING_MAX + HEADER, (HEADER_AT + size_of::<RegionHeader>() + size).next_multiple_of(HEADER)),
        _ => ((HEADER_AT - size) / HEADER * HEADER, RING_MAX),
    };
    let _ = mem::give_back(start_of(p).wrapping_add(first), end - first);
}

/// Ring size as the producer claims it, forced into what is possible.
pub fn size_of_ring(claimed: u32) -> Option<usize> {
    let n = (claimed & !(size::WISH | size::WIDE)) as usize;
    let is_ring = n.is_power_of_two() && (RING_MIN..=RING_MAX).contains(&n);
    (is_ring || n == wide::SIZE && claimed & size::WIDE != 0).then_some(n)
}
