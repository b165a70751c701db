//! select and pselect, by way of poll.

use super::early::by_kernel;
use super::{poll, stand_in};
use crate::engine::handlers::Since;
use crate::real;
use crate::sys::scratch;
use crate::table;
use libc::{pollfd, sigset_t};

/// What poll calls the three sets.
const EVENTS: [i16; 3] = [libc::POLLIN | libc::POLLRDNORM, libc::POLLOUT | libc::POLLWRNORM, libc::POLLPRI];

/// One of the three sets: bits of the program's memory.
pub struct Bits(*mut u64);

impl Bits {
    /// Wraps an fd_set of at least the descriptors that are asked about, or null.
    ///
    /// # Safety
    /// The memory must hold bits up to the largest number used with it.
    pub unsafe fn new(p: *mut libc::fd_set) -> Bits {
        Bits(p.cast())
    }

    fn has(&self, fd: usize) -> bool {
        // SAFETY: by the contract of `new`.
        !self.0.is_null() && unsafe { *self.0.add(fd / 64) } >> (fd % 64) & 1 != 0
    }

    fn word(&self, i: usize) -> u64 {
        // SAFETY: by the contract of `new`.
        if self.0.is_null() { 0 } else { unsafe { *self.0.add(i) } }
    }

    fn put(&self, fd: usize, on: bool) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: by the contract of `new`.
        let word = unsafe { &mut *self.0.add(fd / 64) };
        if on { *word |= 1 << (fd % 64) } else { *word &= !(1 << (fd % 64)) }
    }

    /// The kernel writes whole words.
    fn clear_behind(&self, n: usize) {
        if !self.0.is_null() && !n.is_multiple_of(64) {
            // SAFETY: by the contract of `new`; the kernel would write this word as well.
            unsafe { *self.0.add(n / 64) &= !(u64::MAX << (n % 64)) };
        }
    }
}

/// The highest descriptor below `n` that is in one of the sets; -1: none.
pub fn highest(n: i32, sets: &[Bits; 3]) -> i32 {
    let n = n.max(0) as usize;
    let words = (0..n.div_ceil(64)).rev().map(|i| (i, sets.iter().fold(0, |all, set| all | set.word(i))));
    let mut below = words.map(|(i, all)| (i, if n - i * 64 < 64 { all & !(u64::MAX << (n % 64)) } else { all }));
    below.find(|(_, all)| *all != 0).map_or(-1, |(i, all)| (i * 64) as i32 + all.ilog2() as i32)
}

/// The descriptors below `n` that are in one of the sets, with the events that poll calls so.
fn asked(n: usize, sets: &[Bits; 3]) -> impl Iterator<Item = (usize, i16)> + '_ {
    (0..n.div_ceil(64)).flat_map(move |word| {
        let words = [sets[0].word(word), sets[1].word(word), sets[2].word(word)];
        let beyond = if n - word * 64 < 64 { u64::MAX << (n % 64) } else { 0 };
        let mut any = (words[0] | words[1] | words[2]) & !beyond;
        std::iter::from_fn(move || {
            let bit = (any != 0).then(|| any.trailing_zeros())?;
            any &= any - 1;
            let wanted = words.iter().zip(EVENTS).filter(|(w, _)| **w >> bit & 1 != 0);
            Some((word * 64 + bit as usize, wanted.fold(0, |all, (_, e)| all | e)))
        })
    })
}

/// Whether select must be served here, as for `poll`.
pub fn concerns(n: i32, sets: &[Bits; 3], sleeps: bool) -> bool {
    table::steps::tick();
    stand_in::refresh();
    let mut any = false;
    for (fd, _) in asked(n.max(0) as usize, sets) {
        any |= poll::is_concern(fd as i32, sleeps);
    }
    any
}

/// pselect(2). `timeout` in ns, None for ever.
///
/// # Safety
/// `mask` must be null or valid.
pub unsafe fn select(n: i32, sets: &[Bits; 3], timeout: Option<u64>, mask: *const sigset_t) -> i32 {
    let n = n.max(0) as usize;
    let count = asked(n, sets).count();
    let mut small = [pollfd { fd: -1, events: 0, revents: 0 }; 64];
    if count <= small.len() {
        // SAFETY: by the contract.
        return unsafe { with_array(n, &mut small[..count], sets, timeout, mask) };
    }
    // SAFETY: by the contract.
    let served = scratch::with(count, small[0], |fds| unsafe { with_array(n, fds, sets, timeout, mask) });
    served.unwrap_or_else(|_| {
        crate::sys::set_errno(crate::sys::Errno(libc::ENOMEM));
        -1
    })
}

/// # Safety
/// `mask` must be null or valid.
unsafe fn with_array(n: usize, fds: &mut [pollfd], sets: &[Bits; 3], timeout: Option<u64>, mask: *const sigset_t) -> i32 {
    for (p, (fd, wanted)) in fds.iter_mut().zip(asked(n, sets)) {
        *p = pollfd { fd: fd as i32, events: wanted, revents: 0 };
    }
    let since = Since::now();
    let [r, w, e] = [0, 1, 2].map(|i| sets[i].0.cast());
    // SAFETY: sets and mask by the contract.
    let wait = |fds: &mut [pollfd], t| unsafe {
        put_back(fds, sets); // where it is not the first time
        real::pselect(n as i32, r, w, e, t, mask)
    };
    let left = match by_kernel(fds, timeout, since, wait) {
        Ok(r) => {
            if r < 0 {
                put_back(fds, sets); // a wait before the last may have had no result
            }
            return r;
        }
        Err(left) => left,
    };
    let mut looked = put_back(fds, sets);
    // SAFETY: by the contract.
    let r = unsafe { poll::poll_in_turns(fds, left, mask, since, &mut looked) };
    finish(n, fds, sets, r, looked)
}

/// What the program asked, where the kernel has put its answer; true: it has.
fn put_back(fds: &[pollfd], sets: &[Bits; 3]) -> bool {
    let mut answered = false;
    for p in fds {
        for (set, _) in sets.iter().zip(EVENTS).filter(|(_, events)| p.events & events != 0) {
            answered |= !set.has(p.fd as usize);
            set.put(p.fd as usize, true);
        }
    }
    answered
}

/// Turns revents into bits, as the kernel does (fs/select.c: POLLIN_SET and its like): a descriptor that was closed while
/// the call waited is ready, one that was never there an error.
fn finish(n: usize, fds: &[pollfd], sets: &[Bits; 3], r: i32, were_open: bool) -> i32 {
    if r < 0 {
        return r;
    }
    if !were_open && fds.iter().any(|p| p.revents & libc::POLLNVAL != 0) {
        crate::sys::set_errno(crate::sys::Errno(libc::EBADF));
        return -1;
    }
    let masks = [
        libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL,
        libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR | libc::POLLNVAL,
        libc::POLLPRI | libc::POLLNVAL,
    ];
    let mut total = 0;
    for p in fds {
        for (b, mask) in sets.iter().zip(masks) {
            if b.has(p.fd as usize) {
                let on = p.revents & mask != 0;
                b.put(p.fd as usize, on);
                total += i32::from(on);
            }
        }
    }
    sets.iter().for_each(|b| b.clear_behind(n));
    total
}
