//! The submission queue of a ring that the program has made (io_uring_setup(2)), mapped once more, and the operations in it that register
//! with an epoll set.
//!
//! `table::rings` has one for each ring that is known, `ready::ring` takes what is about to be submitted. The layout is the kernel's
//! (include/uapi/linux/io_uring.h). What lies there is the program's, as the arguments of its calls are.

use super::{Errno, Res, mem};
use libc::{c_int, epoll_event};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::*};

/// struct io_uring_params, as io_uring_setup(2) has filled it in.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Params {
    entries: u32,
    _of_completions: u32,
    flags: u32,
    _others: [u32; 7],
    offsets: Offsets,
    _completions: [u32; 10],
}

/// struct io_sqring_offsets: bytes from where the rings begin.
#[repr(C)]
#[derive(Clone, Copy)]
struct Offsets {
    head: u32,
    tail: u32,
    mask: u32,
    _others: [u32; 3],
    array: u32,
    _reserved: u32,
    _address: u64,
}

/// Flags of setup with which an entry is read by the thread that submits it, has 64 bytes, and lies where the kernel says: CQSIZE, CLAMP, ATTACH_WQ,
/// SUBMIT_ALL, COOP_TASKRUN, TASKRUN_FLAG, SINGLE_ISSUER, DEFER_TASKRUN, and [`NO_ARRAY`].
const USUAL: u32 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 12 | 1 << 13 | NO_ARRAY;
/// Entries are taken in their order, not by an array of their numbers.
const NO_ARRAY: u32 = 1 << 16;
/// The kernel's IORING_MAX_ENTRIES.
const MOST_ENTRIES: u32 = 32_768;
/// No part of the rings lies further in.
const MOST_BYTES: usize = 1 << 22;
const ENTRIES_OFFSET: usize = 0x1000_0000;

/// Flags of an entry whose fields mean what they do without: IO_DRAIN, IO_LINK, IO_HARDLINK, ASYNC, CQE_SKIP_SUCCESS.
const PLAIN: u8 = 1 << 1 | LINKS | 1 << 4 | 1 << 6;
/// The next one begins when this one is over: IO_LINK, IO_HARDLINK.
const LINKS: u8 = 1 << 2 | 1 << 3;

/// Flag of io_uring_enter(2): the ring is named by an index, not by a descriptor (IORING_ENTER_REGISTERED_RING).
pub const BY_INDEX: u32 = 1 << 4;
/// Operation of io_uring_register(2), behind which the queue lies elsewhere (IORING_REGISTER_RESIZE_RINGS).
pub const RESIZE_RINGS: u32 = 33;

const OP_NOP: u8 = 0;
const OP_EPOLL_CTL: u8 = 29;

/// struct io_uring_sqe, of which an operation on an epoll set uses the first part.
#[repr(C)]
pub struct Sqe {
    op: AtomicU8,
    flags: AtomicU8,
    priority: AtomicU16,
    fd: AtomicI32,
    offset: AtomicU64,
    address: AtomicU64,
    len: AtomicU32,
    op_flags: AtomicU32,
    user_data: AtomicU64,
    rest: [AtomicU64; 3],
}

const _: () = assert!(size_of::<Params>() == 120 && size_of::<Sqe>() == 64);

/// What epoll_ctl(2) is called with.
pub struct Control {
    pub set: c_int,
    pub op: c_int,
    pub fd: c_int,
    pub event: *mut epoll_event,
}

/// The queue of a ring.
pub struct Queue {
    rings: *mut u8,
    len: usize,
    entries: *mut u8,
    number: u32,
    offsets: Offsets,
    has_array: bool,
}

impl Queue {
    /// Maps the queue of the ring behind `fd`. An error too where it is of a kind whose entries are not to be taken here.
    pub fn map(fd: c_int, params: &Params) -> Res<Queue> {
        let Params { entries: number, flags, offsets, .. } = *params;
        let has_array = flags & NO_ARRAY == 0;
        let array = if has_array { Some((offsets.array, number)) } else { None };
        let parts = [(offsets.head, 1), (offsets.tail, 1), (offsets.mask, 1)].into_iter().chain(array);
        let len = parts.map(|(at, n)| at as usize + n as usize * size_of::<u32>()).max().unwrap_or(0);
        if flags & !USUAL != 0 || !number.is_power_of_two() || number > MOST_ENTRIES || len > MOST_BYTES {
            return Err(Errno(libc::EINVAL));
        }
        let rings = mem::map_for_us_alone(fd, len, 0)?;
        let entries = mem::map_for_us_alone(fd, number as usize * size_of::<Sqe>(), ENTRIES_OFFSET).inspect_err(|_| mem::unmap(rings, len))?;
        Ok(Queue { rings, len, entries, number, offsets, has_array })
    }

    /// The entries that are taken when so many are submitted.
    pub fn submitted(&self, most: u32) -> impl Iterator<Item = &Sqe> {
        // Acquire: what the kernel has taken is the program's again. The tail is the submitting thread's own.
        let (first, tail) = (self.word(self.offsets.head).load(Acquire), self.word(self.offsets.tail).load(Relaxed));
        let n = tail.wrapping_sub(first).min(most).min(self.number);
        (0..n).filter_map(move |i| self.entry(first.wrapping_add(i) & (self.number - 1)))
    }

    fn entry(&self, place: u32) -> Option<&Sqe> {
        let i = if self.has_array { self.word(self.offsets.array + place * size_of::<u32>() as u32).load(Relaxed) } else { place };
        // SAFETY: there are so many in the mapping, which lives as long as this does; all are atomics.
        (i < self.number).then(|| unsafe { &*self.entries.cast::<Sqe>().add(i as usize) })
    }

    /// A word of the rings.
    fn word(&self, at: u32) -> &AtomicU32 {
        // SAFETY: `map` has looked at each offset that is passed; they are the kernel's, which aligns its words.
        unsafe { &*self.rings.add(at as usize).cast::<AtomicU32>() }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        mem::unmap(self.rings, self.len);
        mem::unmap(self.entries, self.number as usize * size_of::<Sqe>());
    }
}

impl Sqe {
    /// What it does to an epoll set, if that is all that it is for.
    pub fn control(&self) -> Option<Control> {
        let others = (self.flags.load(Relaxed) & !PLAIN) as u64
            | self.priority.load(Relaxed) as u64
            | self.op_flags.load(Relaxed) as u64
            | self.rest.iter().fold(0, |all, word| all | word.load(Relaxed));
        (self.op.load(Relaxed) == OP_EPOLL_CTL && others == 0).then(|| Control {
            set: self.fd.load(Relaxed),
            op: self.len.load(Relaxed) as c_int,
            fd: self.offset.load(Relaxed) as c_int,
            event: std::ptr::with_exposed_provenance_mut(self.address.load(Relaxed) as usize),
        })
    }

    /// Whether the one behind it waits for its success.
    pub fn leads(&self) -> bool {
        self.flags.load(Relaxed) & LINKS != 0
    }

    /// It has succeeded: the kernel has nothing to do but to say so.
    pub fn is_done(&self) {
        self.op.store(OP_NOP, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Sysno, call, fd as desc};

    const ENTRIES: u32 = 4;

    fn setup(flags: u32) -> Res<(c_int, Params)> {
        // SAFETY: all zero asks for nothing more.
        let mut params: Params = unsafe { std::mem::zeroed() };
        params.flags = flags;
        // SAFETY: the kernel fills the struct.
        let fd = unsafe { call(Sysno::io_uring_setup, [ENTRIES as usize, (&raw mut params) as usize, 0, 0, 0, 0]) }?;
        Ok((fd as c_int, params))
    }

    #[test]
    fn what_is_submitted_is_found_in_its_order() {
        for flags in [0, NO_ARRAY] {
            let Ok((fd, params)) = setup(flags) else { continue }; // none here, or an older kernel
            let queue = Queue::map(fd, &params).unwrap();
            let tail = queue.word(params.offsets.tail);
            for i in 0..3u32 {
                let place = if flags == 0 { ENTRIES - 1 - i } else { i };
                if flags == 0 {
                    queue.word(params.offsets.array + 4 * i).store(place, Relaxed);
                }
                // SAFETY: one of the entries.
                let entry = unsafe { &*queue.entries.cast::<Sqe>().add(place as usize) };
                entry.op.store(if i == 1 { OP_NOP } else { OP_EPOLL_CTL }, Relaxed);
                entry.flags.store(if i == 0 { 1 << 2 } else { 0 }, Relaxed);
                entry.offset.store(u64::from(100 + i), Relaxed);
                tail.store(i + 1, Relaxed);
            }
            let of = |most| queue.submitted(most).map(|e| (e.control().map(|c| c.fd), e.leads())).collect::<Vec<_>>();
            assert_eq!(of(9), [(Some(100), true), (None, false), (Some(102), false)]);
            assert_eq!(of(1), [(Some(100), true)]);
            queue.submitted(1).for_each(Sqe::is_done);
            assert_eq!(of(1), [(None, true)]);
            let odd = queue.submitted(3).last().unwrap();
            odd.rest[0].store(1, Relaxed);
            assert!(odd.control().is_none(), "what it says besides, the kernel is to judge");
            drop(queue);
            desc::close(fd);
        }
    }

    #[test]
    fn rings_whose_entries_are_others_are_left_alone() {
        const SQE128: u32 = 1 << 10;
        if let Ok((fd, params)) = setup(SQE128) {
            assert!(Queue::map(fd, &params).is_err());
            desc::close(fd);
        }
        // SAFETY: all zero is a value.
        let mut params: Params = unsafe { std::mem::zeroed() };
        for (entries, array) in [(3, 0), (MOST_ENTRIES * 2, 0), (4, u32::MAX)] {
            (params.entries, params.offsets.array) = (entries, array);
            assert!(Queue::map(-1, &params).is_err());
        }
    }
}
