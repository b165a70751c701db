//! epoll_create, epoll_ctl, epoll_wait and its relatives, poll, ppoll, select, pselect and their
//! fortified entries.

use super::{cancel, direct, guard, hooks};
use crate::config;
use crate::engine::bufs::is_nowhere;
use crate::ready::{ctl, poll as polls, select as selects, wait};
use crate::sys::probe::{can_be_written, is_null_or_there, is_there};
use crate::sys::{Errno, clock, set_errno};
use crate::table::set::{self, Set};
use crate::table::{life, own};
use crate::{real, table};
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

/// As many as poll is always given, whatever the limit on descriptors.
const SURELY_ALLOWED: nfds_t = 64;

hooks! {
    fn epoll_create(size: c_int) -> c_int {
        // SAFETY: the program's argument.
        let fd = unsafe { real::epoll_create(size) };
        if fd >= 0 {
            life::on_epoll(fd);
        }
        fd
    }

    fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: the program's argument.
        let fd = unsafe { real::epoll_create1(flags) };
        if fd >= 0 {
            life::on_epoll(fd);
        }
        fd
    }

    fn epoll_ctl(ep: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        // SAFETY: the program's pointer, which is there.
        let e = is_there(event, 1).then(|| unsafe { *event });
        // SAFETY: the program's arguments.
        guard(|| ctl::ctl(ep, op, fd, e, || unsafe { real::epoll_ctl(ep, op, fd, event) }) as isize) as c_int
    }

    fn epoll_wait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        match to_wait_in(ep) {
            Some(set) if is_room(events, max) => {
                let call = wait::Call { events, max, timeout: millis(timeout), is_exact: false, mask: std::ptr::null() };
                cancel::point();
                // SAFETY: the program's arguments.
                direct(|| unsafe { wait::wait(ep, set, &call) } as isize) as c_int
            }
            // SAFETY: no mask.
            Some(_) if is_no_room(events, max) => unsafe { told_nowhere(ep, millis(timeout), std::ptr::null()) },
            // SAFETY: the program's arguments.
            _ => unsafe { real::epoll_wait(ep, events, max, timeout) },
        }
    }

    fn epoll_pwait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
        match to_wait_in(ep).filter(|_| is_mask(mask)) {
            Some(set) if is_room(events, max) => {
                let call = wait::Call { events, max, timeout: millis(timeout), is_exact: false, mask };
                cancel::point();
                // SAFETY: the program's arguments.
                direct(|| unsafe { wait::wait(ep, set, &call) } as isize) as c_int
            }
            // SAFETY: the program's mask, null or there.
            Some(_) if is_no_room(events, max) => unsafe { told_nowhere(ep, millis(timeout), mask) },
            // SAFETY: the program's arguments.
            _ => unsafe { real::epoll_pwait(ep, events, max, timeout, mask) },
        }
    }

    fn epoll_pwait2(ep: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        // SAFETY: the program's pointer, null or there.
        match to_wait_in(ep).filter(|_| is_mask(mask) && is_null_or_there(timeout) && unsafe { is_sound(timeout) }) {
            Some(set) if is_room(events, max) => {
                // SAFETY: the program's pointer, null or valid.
                let call = wait::Call { events, max, timeout: unsafe { nanos(timeout) }, is_exact: true, mask };
                cancel::point();
                // SAFETY: the program's arguments.
                direct(|| unsafe { wait::wait(ep, set, &call) } as isize) as c_int
            }
            // SAFETY: the program's pointers, null or there.
            Some(_) if is_no_room(events, max) => unsafe { told_nowhere(ep, nanos(timeout), mask) },
            // SAFETY: the program's arguments.
            _ => unsafe { real::epoll_pwait2(ep, events, max, timeout, mask) },
        }
    }

    fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
        // SAFETY: the program's arguments.
        unsafe {
            match array(fds, n) {
                Some(a) if polls::concerns(a, timeout != 0) => {
                    cancel::point();
                    direct(|| polls::poll(a, millis(timeout), std::ptr::null()) as isize) as c_int
                }
                _ => real::poll(fds, n, timeout),
            }
        }
    }

    fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, room: size_t) -> c_int {
        if n as usize <= room / size_of::<pollfd>() {
            // SAFETY: the program's arguments.
            return unsafe { poll(fds, n, timeout) };
        }
        // SAFETY: the program's arguments.
        unsafe { real::__poll_chk(fds, n, timeout, room) }
    }

    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        // SAFETY: the program's arguments.
        unsafe {
            match array(fds, n) {
                Some(a) if is_null_or_there(timeout) && is_sound(timeout) && is_mask(mask) && polls::concerns(a, nanos(timeout) != Some(0)) => {
                    cancel::point();
                    direct(|| polls::poll(a, nanos(timeout), mask) as isize) as c_int
                }
                _ => real::ppoll(fds, n, timeout, mask),
            }
        }
    }

    fn __ppoll_chk(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int {
        if n as usize <= room / size_of::<pollfd>() {
            // SAFETY: the program's arguments.
            return unsafe { ppoll(fds, n, timeout, mask) };
        }
        // SAFETY: the program's arguments.
        unsafe { real::__ppoll_chk(fds, n, timeout, mask, room) }
    }

    fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int {
        // SAFETY: the program's arguments.
        unsafe { select_and_tell(n, [r, w, e], timeout, |_| true, |n| real::select(n, r, w, e, timeout)) }
    }

    fn pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let n = as_many(n, [r, w, e]);
        if !are_there(n, [r, w, e]) || !is_null_or_there(timeout) || !is_mask(mask) {
            // SAFETY: the program's arguments.
            return unsafe { real::pselect(n, r, w, e, timeout, mask) };
        }
        // SAFETY: the program's sets hold `n` bits.
        let sets = unsafe { [selects::Bits::new(r), selects::Bits::new(w), selects::Bits::new(e)] };
        // SAFETY: the program's pointer, null or valid.
        if n <= 0 || !unsafe { is_sound(timeout) } || !selects::concerns(n, &sets, unsafe { nanos(timeout) } != Some(0)) {
            // SAFETY: the program's arguments.
            return unsafe { real::pselect(n, r, w, e, timeout, mask) };
        }
        cancel::point();
        // SAFETY: the program's pointers, null or valid.
        direct(|| unsafe { selects::select(n, &sets, nanos(timeout), mask) } as isize) as c_int
    }
}

/// select(2), which writes the time left where it may; `kernel` is that of so many descriptors.
///
/// # Safety
/// As for the function.
unsafe fn select_and_tell(
    n: c_int,
    all: [*mut fd_set; 3],
    timeout: *mut timeval,
    may_write: impl Fn(*mut timeval) -> bool,
    kernel: impl Fn(c_int) -> c_int,
) -> c_int {
    let n = as_many(n, all);
    if !are_there(n, all) || !is_null_or_there(timeout) {
        return kernel(n);
    }
    // SAFETY: the program's sets hold `n` bits.
    let sets = unsafe { all.map(|p| selects::Bits::new(p)) };
    // SAFETY: the program's pointer, null or valid.
    let given = unsafe { timeout.as_ref() };
    let sound = given.is_none_or(|t| t.tv_sec >= 0 && t.tv_usec >= 0);
    let limit = given.map(|t| (t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add((t.tv_usec as u64).saturating_mul(1000)));
    if n <= 0 || !sound || !selects::concerns(n, &sets, limit != Some(0)) {
        return kernel(n);
    }
    cancel::point();
    // SAFETY: no mask.
    let (result, left) = timed(limit, || direct(|| unsafe { selects::select(n, &sets, limit, std::ptr::null()) } as isize) as c_int);
    if let Some(left) = left.filter(|_| may_write(timeout)) {
        // Linux writes the time left.
        // SAFETY: the program's pointer.
        unsafe {
            (*timeout).tv_sec = (left / 1_000_000_000) as i64;
            (*timeout).tv_usec = (left % 1_000_000_000 / 1000) as i64;
        }
    }
    result
}

/// select(2) by its number: a time in memory that can't be written stays as it is, as the kernel leaves it.
///
/// # Safety
/// As for the system call.
#[cfg(target_arch = "x86_64")]
pub unsafe fn select_by_number(n: c_int, sets: [*mut fd_set; 3], timeout: *mut timeval) -> c_int {
    // SAFETY: by the contract.
    unsafe {
        let [r, w, e] = sets.map(|p| p as libc::c_long);
        let kernel = |n: c_int| real::syscall(libc::SYS_select, n.into(), r, w, e, timeout as libc::c_long, 0) as c_int;
        select_and_tell(n, sets, timeout, can_be_written, kernel)
    }
}

/// How many descriptors a select of `n` is about.
fn as_many(n: c_int, sets: [*mut fd_set; 3]) -> c_int {
    const PAGE: usize = 4096;
    let bytes = (n.max(1) as usize).div_ceil(64) * 8;
    let is_whole = |p: *mut fd_set| {
        let last = p.cast::<u8>().wrapping_add(bytes - 1);
        p.is_null() || (0..bytes).step_by(PAGE).all(|at| is_there(p.cast::<u8>().wrapping_add(at), 1)) && is_there(last, 1)
    };
    own::as_many(n, || {
        // SAFETY: each page of so many bits can be read; what is no set's is only looked at.
        sets.iter().all(|p| is_whole(*p)).then(|| selects::highest(n, &unsafe { sets.map(|p| selects::Bits::new(p)) }))
    })
}

/// Whether the sets of a select are there; the kernel says EFAULT else.
fn are_there(n: c_int, sets: [*mut fd_set; 3]) -> bool {
    let bytes = (n.max(1) as usize).div_ceil(8);
    sets.iter().all(|p| p.is_null() || is_there(p.cast::<u8>(), bytes))
}

/// The set of an epoll descriptor, also before its first member.
#[inline]
fn to_wait_in(ep: c_int) -> Option<&'static Set> {
    table::epoll_set(ep).or_else(|| config::enabled().then(|| set::begin(ep))?)
}

/// Whether the kernel would take an array of this length there (else it says EINVAL or EFAULT).
fn is_room(events: *mut epoll_event, max: c_int) -> bool {
    is_count(max) && !is_nowhere(events.cast())
}

fn is_count(max: c_int) -> bool {
    const MOST: c_int = c_int::MAX / size_of::<epoll_event>() as c_int;
    (1..=MOST).contains(&max)
}

/// Whether the kernel would look for events there, and say EFAULT only when it has one to tell.
fn is_no_room(events: *mut epoll_event, max: c_int) -> bool {
    is_nowhere(events.cast()) && events as usize <= isize::MAX as usize && is_count(max)
}

/// epoll_wait whose events have no place: none is taken from the set.
///
/// # Safety
/// The mask is null or there.
unsafe fn told_nowhere(ep: c_int, limit: Option<u64>, mask: *const sigset_t) -> c_int {
    let mut p = pollfd { fd: ep, events: libc::POLLIN, revents: 0 };
    let limit = limit.map(clock::timespec);
    // SAFETY: one entry of ours, and a time.
    let r = unsafe { ppoll(&raw mut p, 1, limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref), mask) };
    if r > 0 {
        set_errno(Errno(libc::EFAULT));
        return -1;
    }
    r
}

/// Whether the mask of a wait can be read, if there is one; the kernel says EFAULT else.
fn is_mask(mask: *const sigset_t) -> bool {
    is_null_or_there(mask.cast::<[u8; SIGNAL_SET]>())
}

/// Whether the kernel takes a mask of this size (else it says EINVAL).
pub fn is_sized(mask: *const sigset_t, size: usize) -> bool {
    mask.is_null() || size == SIGNAL_SET
}

/// ppoll(2) by its number: the time left is written. None: the kernel's.
///
/// # Safety
/// As for the system call.
pub unsafe fn ppoll_by_number(fds: *mut pollfd, n: nfds_t, timeout: *mut timespec, mask: *const sigset_t, size: usize) -> Option<c_int> {
    if !is_sized(mask, size) || !is_mask(mask) || !is_null_or_there(timeout) {
        return None;
    }
    // SAFETY: the program's arguments.
    unsafe {
        let a = array(fds, n).filter(|a| is_sound(timeout) && polls::concerns(a, nanos(timeout) != Some(0)))?;
        Some(with_time_left(timeout, |limit| direct(|| polls::poll(a, limit, mask) as isize) as c_int))
    }
}

/// pselect6(2): `mask` points to where the mask is and to its size.
///
/// # Safety
/// As for the system call.
pub unsafe fn pselect_by_number(n: c_int, sets: [*mut fd_set; 3], timeout: *mut timespec, mask: *const [usize; 2]) -> Option<c_int> {
    let n = as_many(n, sets);
    if n <= 0 || !are_there(n, sets) || !is_null_or_there(timeout) || !is_null_or_there(mask) {
        return None;
    }
    // SAFETY: the program's arguments, which are there.
    unsafe {
        let [mask, size] = mask.as_ref().copied().unwrap_or_default();
        let bits = sets.map(|p| selects::Bits::new(p));
        let mask = mask as *const sigset_t;
        if !is_sized(mask, size) || !is_mask(mask) || !is_sound(timeout) || !selects::concerns(n, &bits, nanos(timeout) != Some(0)) {
            return None;
        }
        Some(with_time_left(timeout, |limit| direct(|| selects::select(n, &bits, limit, mask) as isize) as c_int))
    }
}

/// The kernel's size of a set of signals.
const SIGNAL_SET: usize = 8;

/// # Safety
/// `timeout` is null or there.
unsafe fn with_time_left(timeout: *mut timespec, wait: impl FnOnce(Option<u64>) -> c_int) -> c_int {
    // SAFETY: by the contract.
    let limit = unsafe { nanos(timeout) };
    let (r, left) = timed(limit, || wait(limit));
    if let Some(left) = left.filter(|_| can_be_written(timeout)) {
        // SAFETY: by the contract.
        unsafe { *timeout = clock::timespec(left) };
    }
    r
}

/// What it returns, and the ns that are left of the limit.
fn timed(limit: Option<u64>, wait: impl FnOnce() -> c_int) -> (c_int, Option<u64>) {
    let start = clock::now_ns();
    let r = wait();
    (r, limit.map(|limit| limit.saturating_sub(clock::now_ns() - start)))
}

fn millis(timeout: c_int) -> Option<u64> {
    (timeout >= 0).then(|| timeout as u64 * 1_000_000)
}

/// Whether the kernel would take this time (else it says EINVAL).
///
/// # Safety
/// Null or valid.
unsafe fn is_sound(t: *const timespec) -> bool {
    // SAFETY: by the contract.
    unsafe { t.as_ref() }.is_none_or(|t| t.tv_sec >= 0 && (0..1_000_000_000).contains(&t.tv_nsec))
}

/// # Safety
/// Null or valid.
unsafe fn nanos(t: *const timespec) -> Option<u64> {
    // SAFETY: by the contract.
    unsafe { t.as_ref() }.map(|t| (t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64))
}

/// # Safety
/// `n` entries at `fds`, as the program promised the kernel.
unsafe fn array<'a>(fds: *mut pollfd, n: nfds_t) -> Option<&'a mut [pollfd]> {
    let n = nfds_t::from(n as u32); // all that the kernel looks at
    if n == 0 || n > 1 << 20 || !is_there(fds, n as usize) {
        return None;
    }
    if n > SURELY_ALLOWED && own::exceeds_limit(n) {
        return None; // the kernel says EINVAL
    }
    // SAFETY: by the contract.
    Some(unsafe { std::slice::from_raw_parts_mut(fds, n as usize) })
}
