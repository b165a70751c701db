//! Sending on a tracked socket: into memory or through the kernel, as the direction stands.
//!
//! Called by the hooks with the program's buffers and a closure that makes the program's own call.
//! Results are C results: -1 with errno. Receiving is in `receiving`.

use crate::engine::bufs::{self, Bufs};
use crate::engine::tx::{FromBufs, Source, Step};
use crate::engine::{begin, beside, debt, end, fast, follow, inside, kernel, linked, switch, tx, wait};
use crate::family::sock::{Sock, flag};
use crate::rendezvous;
use crate::sys::{Errno, Res, errno, net, set_errno};
use crate::table::{full, late, life};
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::Relaxed;

/// Flags that need the kernel's own TCP.
const TCP_ONLY: i32 = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

/// Wishes of the peer's that one call follows without sending anything: a peer can wish faster than they are followed.
pub(super) const ASKED: u32 = 16;

/// Turns a result into a C result.
#[inline]
pub fn to_c(r: Res) -> isize {
    match r {
        Ok(n) => n as isize,
        Err(e) => {
            set_errno(e);
            -1
        }
    }
}

pub(super) const NO_BUFFER: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// The kernel cuts the buffer of a call that has one alone before it looks where that ends; of several each has to lie where memory
/// can be.
pub(super) fn cut<'a>(iov: &'a [libc::iovec], to: &'a mut [libc::iovec; 1]) -> &'a [libc::iovec] {
    match iov {
        [v] if v.iov_len > bufs::MOST => {
            to[0] = libc::iovec { iov_base: v.iov_base, iov_len: bufs::MOST };
            to
        }
        _ => iov,
    }
}

/// send(2) and its relatives.
///
/// # Safety
/// The entries of `iov` must be valid for reads, as the program promised the kernel.
pub unsafe fn send(fd: i32, s: &'static Sock, iov: &[libc::iovec], flags: i32, real: impl Fn() -> isize) -> isize {
    // SAFETY: by the contract.
    if let Some(n) = unsafe { fast::send_all(s, fd, iov, flags) } {
        return n as isize;
    }
    // SAFETY: by the contract.
    unsafe { send_slowly(fd, s, cut(iov, &mut [NO_BUFFER]), flags, real) }
}

/// As [`send`] for a call that is not the usual one.
///
/// # Safety
/// As for [`send`].
pub unsafe fn send_slowly(fd: i32, s: &'static Sock, iov: &[libc::iovec], flags: i32, real: impl Fn() -> isize) -> isize {
    if bufs::reach_beyond(iov) {
        return to_c(Err(Errno(libc::EFAULT)));
    }
    let connection = s.connection();
    if is_plain(s, flags)
        && let Some(n) = tx::through_kernel(s, fd, &real)
    {
        // As in `recv_slowly`.
        return if s.connection() == connection { sent(fd, s, n, iov) } else { n };
    }
    // SAFETY: by the contract.
    unsafe { send_anyhow(fd, s, iov, flags, real) }
}

/// Whether nothing has to be looked at before the kernel sends: a connection without ring and link.
#[inline]
fn is_plain(s: &Sock, flags: i32) -> bool {
    const OTHERWISE: u32 = flag::UNASKED | flag::LINKED | flag::CAREFUL | flag::OWES | flag::ENDED;
    !s.has(OTHERWISE) && s.tx.dir().is_none() && s.rx.dir().is_none() && s.error.load(Relaxed) == 0 && flags & TCP_ONLY == 0
}

/// What the kernel said to a send of `iov`.
#[inline]
fn sent(fd: i32, s: &'static Sock, n: isize, iov: &[libc::iovec]) -> isize {
    if s.has(flag::CAREFUL) {
        note_full(s, n, iov.iter().map(|v| v.iov_len).sum());
    }
    after_kernel(fd, s, n);
    n
}

/// Behind a call of the kernel's on the connection. A reset is told once, whoever says it; errno stays the call's.
#[inline]
pub fn after_kernel(fd: i32, s: &'static Sock, n: isize) {
    if n < 0 {
        after_error(fd, s, n);
    } else if !late::has_lost(s, fd) {
        rendezvous::after_op(s, fd);
    }
}

#[cold]
fn after_error(fd: i32, s: &'static Sock, n: isize) {
    let told = note_reset(s, n);
    if !late::has_lost(s, fd) {
        rendezvous::after_op(s, fd);
    }
    told.into_iter().for_each(set_errno);
}

/// As [`send`], whatever there is to be looked at.
#[cold]
#[inline(never)]
unsafe fn send_anyhow(fd: i32, s: &'static Sock, iov: &[libc::iovec], flags: i32, real: impl Fn() -> isize) -> isize {
    // SAFETY: by the contract.
    let bufs = unsafe { Bufs::new(iov) };
    let mut source = FromBufs::new(bufs);
    if flags & libc::MSG_ZEROCOPY != 0 && s.is_linked() && s.can_return() {
        life::hand_over(s, fd, Reason::ZeroCopy); // the kernel alone says when it has done with the bytes
    }
    // Closed meanwhile, the call goes on to its end, as in the kernel.
    let _visit = if is_nonblocking(s, flags) { None } else { inside::visit(s, &flags) };
    // One limit for all that this call waits for.
    let mut timer = wait::Timer::lazy(s.send_timeout.load(Relaxed));
    let number = fd;
    let mut fd = fd;
    let mut asked = 0;
    let mut interrupted = false;
    let connection = s.disconnects.load(Relaxed);
    loop {
        if s.is_another(connection) {
            return disconnected(source.done, flags);
        }
        if late::has_lost(s, number) {
            fd = inside::descriptor(s, fd);
        }
        source.urgent = flags & libc::MSG_OOB != 0 && s.is_linked();
        if s.tx_in_memory() {
            if flags & TCP_ONLY != 0 && source.done == 0 && !s.is_linked() {
                let why = if flags & libc::MSG_OOB != 0 { Reason::Urgent } else { Reason::ZeroCopy };
                switch::pin(s, fd, why);
                if s.tx_in_memory() {
                    return to_c(Err(Errno(libc::EAGAIN))); // a handler above a sender of this socket
                }
                continue;
            }
            let before = source.done;
            match in_memory(fd, s, &mut source, flags, &mut timer) {
                Some(r) if before == 0 => return r,
                Some(r) => return before as isize + r.max(0),
                None if late::has_lost(s, number) => fd = inside::descriptor(s, fd),
                None => {}
            }
        }
        if debt::owes(s) {
            match pay(s, fd, is_nonblocking(s, flags), &mut timer, source.done) {
                None => continue,
                Some(r) => return r,
            }
        }
        if asked < ASKED && follow::is_asked(s) {
            asked += 1;
            switch::attend(s, fd); // to memory, if it can be done now
            if s.tx_in_memory() {
                continue;
            }
        }
        if source.done > 0 {
            if end::has_died(s, fd) {
                return source.done as isize; // the next call is told
            }
            interrupted |= timer.is_interrupted();
            match a_part(fd, s, bufs, source.done, flags, &mut timer, interrupted) {
                Ok(Part::GoesOn(n)) => source.done += n,
                Ok(Part::Ends(n)) => return sent(fd, s, (source.done + n) as isize, iov),
                Err(_) if s.is_another(connection) => return source.done as isize,
                Err(e) => {
                    if e.0 == libc::EAGAIN {
                        note_full(s, source.done as isize, bufs.len());
                    }
                    end::keep(s, fd, e);
                    return source.done as isize;
                }
            }
            continue;
        }
        if s.has(flag::UNASKED) {
            life::first_use(s, fd);
            if s.tx_in_memory() {
                continue;
            }
        }
        let len = bufs.len();
        if flags & TCP_ONLY == 0 && len > 0 && begin::with_payload(s, fd) {
            continue;
        }
        if let Some(r) = answer_of_end(s, fd, len, flags) {
            return to_c(r);
        }
        if flags & TCP_ONLY != 0 && !s.has(flag::PINNED) {
            switch::pin(s, fd, if flags & libc::MSG_OOB != 0 { Reason::Urgent } else { Reason::ZeroCopy });
        }
        if let Err(e) = beside::wait_for_room(s, fd, flags) {
            return to_c(Err(e));
        }
        if s.is_another(connection) {
            return disconnected(0, flags);
        }
        kernel::before_payload(s, fd);
        // The program's number is another file by now, or the peer may ask for something in between, or a part of the limit is over.
        if fd != number || flags & TCP_ONLY == 0 && (tx::most(s, len) < len || timer.has_begun()) {
            match a_part(fd, s, bufs, 0, flags, &mut timer, false) {
                Ok(Part::GoesOn(n)) => source.done = n,
                Ok(Part::Ends(n)) => return sent(fd, s, n as isize, iov),
                Err(_) if s.is_another(connection) => return disconnected(0, flags),
                Err(e) => {
                    if e.0 == libc::EAGAIN {
                        note_full(s, 0, bufs.len());
                    }
                    if e.0 == libc::EPIPE {
                        end::pipe_signal(flags);
                    }
                    if e.0 == libc::ECONNRESET {
                        end::take_death(s);
                    }
                    return to_c(Err(e));
                }
            }
            continue;
        }
        if let Some(n) = tx::through_kernel(s, fd, &real) {
            return if s.is_another(connection) { n } else { sent(fd, s, n, iov) };
        }
    }
}

/// Over a link, and where this call is to make one, the kernel never sees a message, so it is asked by an empty one what it says to the
/// control messages. None: it takes them.
///
/// # Safety
/// What the header says of them must be as the program promised the kernel.
#[cold]
pub unsafe fn refused_control(s: &Sock, fd: i32, msg: &libc::msghdr) -> Option<isize> {
    let is_unasked = s.has(flag::UNASKED);
    if !s.is_linked() && !is_unasked {
        return None;
    }
    // SAFETY: an all-zero msghdr is valid: no address, no buffers.
    let mut alone: libc::msghdr = unsafe { std::mem::zeroed() };
    (alone.msg_control, alone.msg_controllen) = (msg.msg_control, msg.msg_controllen);
    // SAFETY: by the contract.
    match unsafe { net::sendmsg(fd, &alone, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) } {
        Err(e @ Errno(libc::EFAULT | libc::ENOBUFS | libc::EINVAL | libc::EPERM)) => Some(to_c(Err(e))),
        // The connection is still the kernel's alone, and has told its error by this.
        Err(e) if is_unasked && !matches!(e.0, libc::EPIPE | libc::EAGAIN | libc::ENOTCONN) => {
            if e.0 == libc::ECONNRESET {
                end::take_death(s);
            }
            Some(to_c(Err(e)))
        }
        _ => None,
    }
}

/// As [`end::disconnected`].
#[cold]
pub(super) fn disconnected(done: usize, flags: i32) -> isize {
    let ended = end::disconnected(done);
    if ended.is_err() {
        end::pipe_signal(flags);
    }
    to_c(ended)
}

/// Pays what the ring owes ([`tx::pay_first`]). Some: that can't be done, and so the call ends, `done` bytes having been moved before.
pub(super) fn pay(s: &Sock, fd: i32, nonblock: bool, timer: &mut wait::Timer, done: usize) -> Option<isize> {
    match tx::pay_first(s, fd, nonblock, timer) {
        Ok(()) => None,
        Err(_) if done > 0 => Some(done as isize),
        Err(e) => Some(to_c(Err(e))),
    }
}

/// What a send of `n` bytes gets instead of the kernel's answer, where the connection has ended.
pub(super) fn answer_of_end(s: &Sock, fd: i32, n: usize, flags: i32) -> Option<Res> {
    kernel::look_behind_ring(s, fd);
    let answer = left_error(s).map(Err).or_else(|| end::answer_send(s, fd, n))?;
    if answer == Err(Errno(libc::EPIPE)) {
        end::pipe_signal(flags);
    }
    Some(answer)
}

/// What a call of the kernel's has left in errno, if it failed. A reset counts as told.
pub(super) fn note_reset(s: &Sock, n: isize) -> Option<Errno> {
    let told = (n < 0).then(errno);
    if told == Some(Errno(libc::ECONNRESET)) {
        end::take_death(s);
    }
    told
}

/// The kernel took less than all: an edge-triggered set that serves the socket since the other direction
/// is in memory owes the program an event when there is room again.
#[inline]
pub(super) fn note_full(s: &Sock, n: isize, wanted: usize) {
    if s.has(flag::CAREFUL) && n < wanted as isize {
        s.tx.looked.fetch_add(1, Relaxed);
    }
}

/// Sends what a source has while the direction is in memory. None: it is on TCP now, the source
/// knows how much went.
pub(super) fn in_memory(fd: i32, s: &'static Sock, source: &mut impl Source, flags: i32, timer: &mut wait::Timer) -> Option<isize> {
    let nonblock = is_nonblocking(s, flags);
    // Over a link a reset is not the kernel's to tell.
    if source.left() == 0 && !s.has(flag::SHUT_WR) && !linked::reads_no_more(s) {
        return (!tx::nothing(s, fd)).then_some(0);
    }
    let (n, step) = tx::send(s, fd, source, nonblock, timer);
    if matches!(step, Step::Full) {
        full::tell(s, fd);
    }
    let has_ended = s.has(flag::ENDED);
    late::leave(s);
    // Closed meanwhile, and nowhere to go on.
    if has_ended && matches!(step, Step::Kernel) && !late::is_alive(s) {
        return Some(to_c(end::closed(n)));
    }
    match step {
        Step::Kernel => None,
        Step::Moved(_) => Some(n as isize),
        Step::Failed(e) if n > 0 => {
            if end::ends(e) {
                end::leave(s, e);
            }
            Some(n as isize)
        }
        _ if n > 0 => Some(n as isize),
        Step::Full => Some(to_c(Err(Errno(libc::EAGAIN)))),
        Step::Failed(e) => {
            if e.0 == libc::EPIPE {
                end::pipe_signal(flags);
            }
            Some(to_c(Err(e)))
        }
    }
}

#[inline]
pub(super) fn is_nonblocking(s: &Sock, flags: i32) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || s.has(flag::NONBLOCK)
}

/// How a call stands behind a part of it.
enum Part {
    /// So much went, and the rest goes where the direction is by then.
    GoesOn(usize),
    /// So much went, and that is all.
    Ends(usize),
}

/// Of a call that goes on through TCP, behind the first `done` bytes: what the kernel takes of a part of the rest. What the call
/// waits for is one limit's, which the kernel would begin anew for each part. `interrupted`: a handler has run between two of them,
/// so that the call ends where it would wait.
fn a_part(fd: i32, s: &Sock, bufs: Bufs, done: usize, flags: i32, timer: &mut wait::Timer, interrupted: bool) -> Res<Part> {
    let left = bufs.len() - done;
    let is_timed = timer.has_limit() && !is_nonblocking(s, flags);
    let now = if is_timed || interrupted { libc::MSG_DONTWAIT } else { 0 };
    match tx::rest_through_kernel(s, fd, bufs, done, flags | now) {
        Ok((n, is_in_memory)) if n < left && (is_in_memory || is_timed && !interrupted || n == tx::PART) => Ok(Part::GoesOn(n)),
        Ok((n, _)) => Ok(Part::Ends(n)),
        Err(Errno(libc::EAGAIN)) if interrupted => Ok(Part::Ends(0)),
        Err(Errno(libc::EAGAIN)) if is_timed => wait::for_kernel_room(s, fd, timer).map(|()| Part::GoesOn(0)),
        Err(e) => Err(e),
    }
}

/// The error that a call before this one left.
#[inline]
fn left_error(s: &Sock) -> Option<Errno> {
    if s.error.load(Relaxed) == 0 {
        return None;
    }
    match s.error.swap(0, Relaxed) {
        0 => None, // another thread has told it meanwhile
        e => Some(end::took_left(s, e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    #[test]
    fn an_error_that_was_left_is_told_once() {
        const TIMES: u32 = 100_000;
        // SAFETY: all zero is a socket of which nothing is known.
        let s: Sock = unsafe { std::mem::zeroed() };
        let (told, wrong, is_over) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        let look = || match left_error(&s) {
            Some(Errno(libc::ETIMEDOUT)) => told.fetch_add(1, Relaxed),
            Some(_) => wrong.fetch_add(1, Relaxed),
            None => 0,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    look();
                }
            });
            for n in 1..=TIMES {
                s.error.store(libc::ETIMEDOUT as u32, Relaxed);
                while told.load(Relaxed) < n {
                    look();
                }
            }
            is_over.store(true, Relaxed);
        });
        assert_eq!((told.into_inner(), wrong.into_inner()), (TIMES, 0));
    }
}
