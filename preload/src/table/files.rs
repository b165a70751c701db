//! sendfile and splice into a tracked socket: memory or kernel, as the direction stands.
//!
//! Called by their hooks with a closure that makes the program's own call. Results are C results: -1 with errno.

use super::sending::{ASKED, after_kernel, answer_of_end, disconnected, in_memory, is_nonblocking, note_full, note_reset, pay, to_c};
use super::{late, life};
use crate::engine::bufs::MOST;
use crate::engine::file::{self, FromFile};
use crate::engine::handlers::Since;
use crate::engine::{begin, debt, end, follow, inside, pipes, switch, tx, wait};
use crate::family::sock::{Sock, flag};
use crate::sys::{Errno, errno, fd as desc};
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::Relaxed;

/// sendfile(2) to a tracked socket. `offset` as for the program: updated, or the file's own. `real` sends through the kernel, to
/// the number that the socket has by then.
pub fn send_file(fd: i32, s: &'static Sock, file: i32, offset: Option<&mut i64>, count: usize, real: impl Fn(i32, usize) -> isize) -> isize {
    // Closed meanwhile, the call goes on to its end, as in the kernel.
    let _visit = if is_nonblocking(s, 0) { None } else { inside::visit(s, &count) };
    let count = count.min(MOST); // as do_sendfile in the kernel
    let number = fd;
    let mut fd = fd;
    let mut offset = offset;
    let mut done = 0isize;
    let mut asked = 0;
    let since = Since::now();
    let connection = s.disconnects.load(Relaxed);
    loop {
        if s.is_another(connection) {
            return disconnected(done as usize, 0);
        }
        if late::has_lost(s, number) {
            fd = inside::descriptor(s, fd);
        }
        if s.tx_in_memory() {
            let mut source = FromFile::new(file, offset.as_deref().copied(), count - done as usize);
            let before = count - done as usize;
            let r = in_memory(fd, s, &mut source, 0, &mut limit(s));
            if let (Some(to), Some(now)) = (offset.as_deref_mut(), source.offset) {
                *to = now;
            }
            match r {
                Some(n) if n >= 0 => return done + n,
                Some(_) if done > 0 => return done,
                Some(n) if errno() == Errno(libc::EINVAL) && file::is_direct(file) => {
                    switch::pin(s, fd, Reason::TcpSpecial);
                    if s.tx_in_memory() {
                        return n; // a handler above a sender of this socket
                    }
                }
                Some(n) => return n,
                None => done += (before - source.remaining()) as isize,
            }
            if done as usize >= count {
                return done;
            }
            continue; // under the number that it has now
        }
        life::first_use(s, fd);
        if s.tx_in_memory() || begin::with_payload(s, fd) {
            continue;
        }
        let left = count - done as usize;
        if debt::owes(s) {
            match pay(s, fd, is_nonblocking(s, 0), &mut limit(s), done as usize) {
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
        if done > 0 && end::has_died(s, fd) {
            return done; // the next call is told
        }
        // A file that has ended moves nothing, and takes no error.
        let is_over = s.rx.end.load(Relaxed) != 0 || s.error.load(Relaxed) != 0;
        let is_nothing = is_over && file::has_ended(file, offset.as_deref().copied());
        if done == 0
            && !is_nothing
            && let Some(answer) = answer_of_end(s, fd, left, 0)
        {
            return to_c(answer.and_then(|n| file::swallow(file, offset.as_deref_mut(), n)));
        }
        // In between the peer may ask for something.
        let part = tx::most(s, left);
        if let Some(n) = tx::through_kernel(s, fd, || real(fd, part)) {
            // A handler that has run between two of them ends a call that waits.
            let goes_on = n == part as isize && part < left;
            if goes_on && (is_nonblocking(s, 0) || !since.has_one_run()) {
                done += n;
                continue;
            }
            if !s.is_another(connection) {
                // The real call was made by the closure with the program's own offset.
                note_full(s, n, left);
                after_kernel(fd, s, n);
            }
            return match n {
                0.. => done + n,
                _ if done > 0 => done,
                _ => n,
            };
        }
    }
}

/// The limit of each of their parts, as in the kernel, which sends some pages at a time.
fn limit(s: &Sock) -> wait::Timer {
    wait::Timer::lazy(s.send_timeout.load(Relaxed))
}

/// splice(2) from a pipe into a tracked socket. `real` is the kernel's, to the number that the socket has by then.
pub fn splice_in(fd: i32, s: &'static Sock, pipe: i32, count: usize, flags: u32, real: impl Fn(i32) -> isize) -> isize {
    // Closed meanwhile, the call goes on to its end, as in the kernel.
    let _visit = inside::visit(s, &count);
    pipe_to_memory(fd, s, pipe, count, flags).unwrap_or_else(|| pipe_through_kernel(fd, s, pipe, count, flags, real))
}

/// Where the direction is in memory. None: on TCP, and nothing went.
fn pipe_to_memory(fd: i32, s: &'static Sock, pipe: i32, count: usize, flags: u32) -> Option<isize> {
    life::first_use(s, fd);
    let begins = || begin::is_due(s) && desc::unread(pipe).is_ok_and(|n| n > 0) && begin::with_payload(s, fd);
    if !s.tx_in_memory() && !begins() {
        return None;
    }
    loop {
        let mut source = FromFile::pipe(pipe, count);
        let r = in_memory(inside::descriptor(s, fd), s, &mut source, 0, &mut limit(s));
        let went = count - source.remaining();
        if r.is_none() {
            // In part, which a program has to expect; the rest is its next call.
            return Some(went as isize).filter(|_| went > 0);
        }
        if !source.was_empty {
            return r;
        }
        match desc::status_flags(pipe) {
            Ok(f) if f & libc::O_ACCMODE == libc::O_WRONLY => return Some(to_c(Err(Errno(libc::EBADF)))),
            // The socket's O_NONBLOCK is for the socket alone.
            Ok(f) if f & libc::O_NONBLOCK == 0 && flags & libc::SPLICE_F_NONBLOCK == 0 => {}
            _ => return r,
        }
        if let Err(e) = pipes::wait(pipe, libc::POLLIN) {
            return Some(to_c(Err(e)));
        }
    }
}

/// Where it is on TCP. A direction that moves to memory meanwhile: EAGAIN for a call that may say so, else it comes back to
/// TCP.
fn pipe_through_kernel(fd: i32, s: &'static Sock, pipe: i32, count: usize, flags: u32, real: impl Fn(i32) -> isize) -> isize {
    let nonblock = flags & libc::SPLICE_F_NONBLOCK != 0 || s.has(flag::NONBLOCK);
    let connection = s.disconnects.load(Relaxed);
    loop {
        let fd = inside::descriptor(s, fd);
        if debt::owes(s)
            && let Err(e) = tx::pay_first(s, fd, nonblock, &mut limit(s))
        {
            return to_c(Err(e));
        }
        if s.is_another(connection) {
            return disconnected(0, 0);
        }
        // An empty pipe is waited for first, and the end of the connection is no matter until then.
        let there = desc::unread(pipe).unwrap_or(0).min(count);
        if there > 0
            && let Some(answer) = answer_of_end(s, fd, there, 0)
        {
            return to_c(answer.and_then(|n| file::swallow(pipe, None, n)));
        }
        if let Some(n) = tx::through_kernel(s, fd, || real(fd)) {
            if !s.is_another(connection) {
                note_reset(s, n);
                note_full(s, n, there);
            }
            return n;
        }
        switch::pin(s, fd, Reason::CountMismatch);
        if s.tx_in_memory() {
            return to_c(Err(Errno(libc::EAGAIN)));
        }
    }
}
