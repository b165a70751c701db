//! Receiving from the kernel's TCP stream: the careful read of a connection that may switch, and the plain one before.
//!
//! [`super::rx`] and `table::receiving` call it.

use super::bufs::Bufs;
use super::rx::Step;
use super::within::Within;
use super::{count, end, follow, kernel, peek};
use crate::family::sock::{Sock, flag};
use crate::sys::{Errno, fd, net};
use crate::transport::region::{Dir, ctl};
use std::sync::atomic::Ordering::*;

/// A careful read from the kernel: looks how much is there, then whether the stream switched, and
/// takes no more than both allow. Moved(0): the stream goes on elsewhere.
pub fn read(s: &Sock, sock: i32, dir: Option<&Dir>, bufs: &Bufs, from: usize, flags: i32, limit: u64) -> Step {
    let there = match fd::unread(sock) {
        // A call that has something leaves the error to the next one, which may be another process's (tcp_recvmsg).
        Ok(0) if from > 0 && fd::is_broken(sock) => return Step::End,
        // At an urgent mark the kernel counts nothing beyond it: look instead.
        Ok(0) => {
            match net::recv_slice(sock, &mut [0], libc::MSG_PEEK | libc::MSG_DONTWAIT) {
                // Its last bytes, and its end behind them, may have come through the ring.
                Ok(0) if limit == u64::MAX && dir.is_some_and(|d| follow::is_marked(s, d)) => return Step::Moved(0),
                Ok(0) => return at_end_of_tcp(s, sock, dir, flags),
                Ok(n) => peek::beyond_mark(sock).unwrap_or(n),
                Err(Errno(libc::EAGAIN)) if limit == u64::MAX && passes_mark(s, sock, flags) => bufs.len() - from,
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return Step::Empty,
                Err(e) => return failed(s, e),
            }
        }
        Ok(n) => n,
        Err(e) => return Step::Failed(e),
    };
    // A part of the proof, which is no payload: the rest is to come.
    if limit == 0 {
        return Step::Empty;
    }
    // The switch was stored before the first byte that is not payload was sent, so it is visible
    // once that byte is counted above. Pairs with the Release in `switch::to_memory`.
    let limit = match dir {
        Some(d) if follow::is_marked(s, d) => match follow::payload_left(s, d) {
            Some(n) => limit.min(n),
            None => return Step::Moved(0),
        },
        _ => limit,
    };
    let n = (there as u64).min(limit).min((bufs.len() - from) as u64) as usize;
    if n == 0 {
        // As in `rx::from_ring`: the stream has not moved on.
        return if bufs.len() == 0 { Step::End } else { Step::Moved(0) };
    }
    let keep = libc::MSG_PEEK | libc::MSG_TRUNC;
    let peeks = flags & libc::MSG_PEEK != 0;
    let mut peeked = 0;
    let got = bufs.with_parts(from, n, |part, _| {
        if peeked > 0 {
            return peek::skipping(sock, peeked, part, flags).inspect(|n| peeked += n);
        }
        // SAFETY: an all-zero msghdr is valid.
        let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
        msg.msg_iov = part.as_mut_ptr();
        msg.msg_iovlen = part.len();
        if let Some(c) = bufs.control() {
            c.ask(&mut msg);
        }
        // SAFETY: the buffers are the program's, valid for writes.
        let r = unsafe { net::recvmsg(sock, &mut msg, (flags & keep) | libc::MSG_DONTWAIT) };
        if let (Ok(_), Some(c)) = (&r, bufs.control()) {
            c.came.set(Some((msg.msg_controllen as usize, msg.msg_flags)));
        }
        match r {
            Ok(moved) if peeks => peeked = moved,
            Ok(moved) => {
                count::took(s, moved as u64);
                s.rx.tcp.fetch_add(moved as u64, Relaxed);
            }
            Err(_) => {}
        }
        r
    });
    match got {
        // The kernel's SO_PEEK_OFF is behind all that is there, and so is the end.
        Ok(0) if peeks => Step::End,
        Ok(got) => {
            if let Some(d) = dir
                && peeks
                && got as u64 == limit
            {
                return Step::Moved(got + peek::behind_tcp(s, sock, d, bufs, from + got, flags));
            }
            Step::Moved(got)
        }
        Err(e) if e.0 == libc::EAGAIN => Step::Empty,
        Err(e) => failed(s, end::as_of_tcp(s, sock, e)),
    }
}

/// Whether a receive that finds nothing is to be the kernel's all the same: behind an urgent byte that is the last of the stream only such a one
/// takes POLLPRI back. What comes meanwhile is payload, for who has sent such a byte never sends through memory again.
#[cold]
fn passes_mark(s: &Sock, sock: i32, flags: i32) -> bool {
    let is_pinned = s.tx.dir().is_some_and(|d| d.ctl.load(Acquire) & ctl::PINNED != 0);
    is_pinned && flags & libc::MSG_PEEK == 0 && fd::is_at_mark(sock)
}

/// The kernel has told an error, which it does once: of a connection that has ended, nothing is left to tell.
#[cold]
fn failed(s: &Sock, e: Errno) -> Step {
    if end::ends(e) {
        end::take_death(s);
    }
    Step::Failed(e)
}

/// The kernel's stream has ended. What the dead end left unread in the ring, and an error that a call of
/// ours has taken, make a reset of it.
#[cold]
fn at_end_of_tcp(s: &Sock, sock: i32, dir: Option<&Dir>, flags: i32) -> Step {
    let is_peers = kernel::has_peer_ended(s, sock);
    if is_peers {
        end::found(s, end::FIN);
    }
    match end::take_left(s) {
        0 => {}
        e => return failed(s, Errno(e as i32)),
    }
    // Of our own SHUT_RD there is nothing to be judged; behind a link the kernel alone knows.
    let dir = dir.filter(|_| is_peers && s.region_of_peers().is_some());
    dir.and_then(|d| end::outcome(s, sock, d, flags & libc::MSG_PEEK != 0)).unwrap_or(Step::End)
}

/// A receive of `wanted` bytes inside the kernel has found the end of a connection that began meanwhile: whether it ended in
/// order is known from the ring ([`end`]), so a careful read has to say it.
pub fn is_end_in_doubt(s: &Sock, n: isize, wanted: usize) -> bool {
    n == 0 && wanted > 0 && s.has(flag::CAREFUL)
}

/// Runs a kernel receive for a socket that is not careful and counts its bytes. None: it became
/// careful meanwhile.
#[inline]
pub fn through_kernel(s: &Sock, peek: bool, real: impl FnOnce() -> isize) -> Option<isize> {
    let frame = 0u8;
    let within = Within::enter(s, &s.rx, &frame);
    // SeqCst here and in `offer::become_careful`.
    if s.flags.load(SeqCst) & flag::CAREFUL != 0 {
        return None;
    }
    let n = real();
    if n > 0 && !peek && within.is_of_record() {
        s.rx.tcp.fetch_add(n as u64, Relaxed);
        s.rx.kernel.fetch_add(n as u64, Relaxed);
    }
    Some(n)
}
